"""Sessions whose draft model has the target's encoder."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import pytest

from speculative_decoding import Session
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.drafters import DraftModel, model_drafter
from speculative_decoding.models import shared_encoder
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.shared_encoder import encoder_parameters, share_encoder
from tests.parity.test_scoring import Numbers
from tests.support.tiny import audio_frames, noisy_copy, tiny_model, tiny_whisper

PROMPTS = ["5 9 3 7 1", "2 2 8 1", "11 4 19 6 13 8 1"]


def shared_pair() -> tuple[EncoderDecoder, EncoderDecoder]:
    """Return a target, and a draft model with the same encoder arrays."""
    target = tiny_model()
    draft = noisy_copy(target)
    draft.load_weights(list(encoder_parameters(target).items()), strict=False)
    assert share_encoder(target, draft)
    return target, draft


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[EncoderDecoder]:
    """A list of the models whose encoders ran, in order."""
    found: list[EncoderDecoder] = []
    cls = type(tiny_model())
    encode = cls.encode

    def recorded(self: EncoderDecoder, *args: mx.array | None) -> mx.array:
        found.append(self)
        return encode(self, *args)

    monkeypatch.setattr(cls, "encode", recorded)
    return found


@pytest.mark.parametrize("drafter", ["model", "auto"])
def test_a_draft_model_with_the_targets_encoder_encodes_nothing(drafter: str, encoded: list[EncoderDecoder]) -> None:
    target, draft = shared_pair()
    session = Session(target, Numbers(), draft)
    for prompt in PROMPTS:
        session.generate(prompt, drafter=drafter, num_draft_tokens=3, max_tokens=8)
    session.generate(PROMPTS, drafter=drafter, num_draft_tokens=3, max_tokens=8)
    assert any(model is target for model in encoded)
    assert not any(model is draft for model in encoded)


def test_a_distilled_whisper_shares_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decoder has fewer layers and its own embedding. Another encoder is not shared."""
    target = tiny_whisper()
    draft = noisy_copy(tiny_whisper(decoder_layers=1))
    assert not share_encoder(target, draft)
    draft.load_weights(list(encoder_parameters(target).items()), strict=False)
    assert share_encoder(target, draft) and not mx.array_equal(target.embedding.weight, draft.embedding.weight)
    source = audio_frames()
    baseline = Session(target, Numbers()).generate(source, max_tokens=20).tokens
    monkeypatch.setattr(draft, "encode", None)
    for drafter in ("model", "auto"):
        found = Session(target, Numbers(), draft).generate(source, drafter=drafter, num_draft_tokens=3, max_tokens=20)
        assert found.tokens == baseline and found.stats.drafted_tokens > 5


def test_a_draft_model_with_another_encoder_encodes_each_source(encoded: list[EncoderDecoder]) -> None:
    target = tiny_model()
    draft = noisy_copy(target)
    Session(target, Numbers(), draft).generate("5 9 3 7 1", drafter="model", num_draft_tokens=3, max_tokens=8)
    assert [model is draft for model in encoded] == [False, True]


def test_calibration_times_a_draft_without_the_shared_encoder(encoded: list[EncoderDecoder]) -> None:
    target, draft = shared_pair()
    probe = Probe(target, lambda: model_drafter(DraftModel(draft), target, shares_encoder=True))
    assert min(probe.draft_seconds(2)) >= 0
    assert any(model is target for model in encoded)
    assert not any(model is draft for model in encoded)


def test_a_session_compares_encoders_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing all weights takes longer than the host work of one round."""
    walked: list[EncoderDecoder] = []

    def recorded(model: EncoderDecoder) -> Mapping[str, mx.array]:
        walked.append(model)
        return encoder_parameters(model)

    target, draft = shared_pair()
    monkeypatch.setattr(shared_encoder, "encoder_parameters", recorded)
    session = Session(target, Numbers(), draft)
    compared = len(walked)
    assert compared == 2
    for drafter in ("model", "auto", "ngram", "none"):
        session.generate("5 9 3 7 1", drafter=drafter, max_tokens=4)
    session.generate(PROMPTS, max_tokens=4)
    assert len(walked) == compared

"""Sessions whose draft model has the target's encoder."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import pytest

from speculative_decoding import Session
from speculative_decoding.models import shared_encoder
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.shared_encoder import encoder_parameters, share_encoder
from tests.parity.test_scoring import Numbers
from tests.support.tiny import noisy_copy, tiny_model

PROMPTS = ["5 9 3 7 1", "2 2 8 1", "11 4 19 6 13 8 1"]


def shared_pair() -> tuple[EncoderDecoder, EncoderDecoder]:
    """A target, and a draft model with the same encoder arrays."""
    target = tiny_model()
    draft = noisy_copy(target)
    draft.load_weights(list(encoder_parameters(target).items()), strict=False)
    assert share_encoder(target, draft)
    return target, draft


@pytest.mark.parametrize("drafter", ["model", "auto"])
def test_a_shared_encoder_runs_once_per_source(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = shared_pair()
    encoded: list[EncoderDecoder] = []
    encode = type(target).encode

    def recorded(self: EncoderDecoder, *args: mx.array) -> mx.array:
        encoded.append(self)
        return encode(self, *args)

    monkeypatch.setattr(type(target), "encode", recorded)
    session = Session(target, Numbers(), draft)
    for prompt in PROMPTS:
        session.generate(prompt, drafter=drafter, num_draft_tokens=3, max_tokens=8)
    session.generate(PROMPTS, drafter=drafter, num_draft_tokens=3, max_tokens=8)
    assert any(model is target for model in encoded)
    assert not any(model is draft for model in encoded)

    unshared = Session(target, Numbers(), noisy_copy(target))
    unshared.generate("5 9 3 7 1", drafter="model", num_draft_tokens=3, max_tokens=8)
    assert encoded[-1] is not target


def test_a_session_compares_encoders_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison walks all weights, which takes longer than the host's work for one round."""
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

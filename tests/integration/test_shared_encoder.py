"""Sessions whose draft model has the target's encoder."""

from __future__ import annotations

import mlx.core as mx
import pytest

from speculative_decoding import Session
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.drafters import checked_draft, model_drafter
from speculative_decoding.models.shared_encoder import encoder_parameters, share_encoder
from tests.parity.test_scoring import Numbers
from tests.support.tiny import audio_frames, noisy_copy, tiny_model, tiny_whisper

PROMPTS = ["5 9 3 7 1", "2 2 8 1", "11 4 19 6 13 8 1"]


class Counting(type(tiny_model())):  # type: ignore[misc]
    """A model that counts the batches that it encodes."""

    encoded = 0

    def encode(self, *arguments: mx.array | None) -> mx.array:
        self.encoded += 1
        return super().encode(*arguments)


def counting_pair(*, shared: bool) -> tuple[Counting, Counting]:
    """Return a target, and a draft model that may have the same encoder arrays."""
    model = tiny_model()
    target, draft = Counting(model.config), Counting(model.config)
    target.update(model.parameters())
    draft.update(noisy_copy(model).parameters())
    if shared:
        draft.load_weights(list(encoder_parameters(target).items()), strict=False)
    assert share_encoder(target, draft) == shared
    return target, draft


@pytest.mark.parametrize("shared", [True, False], ids=["the target's", "another"])
def test_a_draft_model_encodes_only_with_an_encoder_of_its_own(shared: bool) -> None:
    target, draft = counting_pair(shared=shared)
    session = Session(target, Numbers(), draft)
    for prompt in PROMPTS:
        session.generate(prompt, drafter="auto", num_draft_tokens=3, max_tokens=8)
    session.generate(PROMPTS, drafter="auto", num_draft_tokens=3, max_tokens=8, strict=False)
    # The batch is encoded at once. With exact passes, devices with other bits for more rows encode one by one.
    assert target.encoded == 4 and draft.encoded == (0 if shared else 4)


@pytest.mark.usefixtures("device")
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


def test_calibration_times_a_draft_without_the_shared_encoder() -> None:
    target, draft = counting_pair(shared=True)
    probe = Probe(target, lambda: model_drafter(checked_draft(draft, target), target))
    assert min(probe.draft_seconds(2)) >= 0
    assert target.encoded and not draft.encoded

"""Scores and encoder states equal Hugging Face's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from speculative_decoding import InputError, Session, encode, generate, score
from tests.parity.test_t5 import load_golden
from tests.support.device import within
from tests.support.paths import GOLDENS
from tests.support.tiny import EOS, OneLanguage, tiny_model


class Numbers(OneLanguage):
    """A tokenizer for texts of ids, such as "5 9 3"."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f"{token} " for token in tokens)


def text_of(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["t5", "bart", "t5gemma"])
def test_scores_and_states_match_hugging_face(name: str) -> None:
    """The reference is a float64 softmax of its logits for the same decoder ids."""
    model, golden = load_golden(GOLDENS / name)
    for row, mask in enumerate(golden["attention_mask"].astype(bool)):
        source, decoder_ids = text_of(golden["input_ids"][row][mask]), golden["decoder_input_ids"][row]
        logits = golden["logits"][row].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        logprobs -= logits.max(-1, keepdims=True)
        target = [int(token) for token in decoder_ids[1:]]
        expected = logprobs[np.arange(len(target)), target]
        found = score(model, Numbers(), source, target, allow_long_prompt=True)
        assert found.tokens == target and np.abs(np.array(found.logprobs) - expected).max() < within(1e-4)
        assert found.logprob == pytest.approx(expected.sum(), abs=within(1e-3))
        states = np.array(encode(model, Numbers(), source, allow_long_prompt=True))
        assert np.abs(states[0] - golden["encoder_last_hidden_state"][row][mask]).max() < within(1e-4)


def test_score_of_an_output_matches_its_logprobs(pair: Session) -> None:
    session = pair
    prompt = "translate English to German: The method returns the value."
    result = session.generate(prompt, logprobs=True)
    found = session.score(prompt, result.text)
    assert found.tokens == result.tokens and found.tokens[-1] == EOS
    assert found.logprobs == pytest.approx(result.logprobs, abs=1e-4)
    assert session.score(prompt, "Das ist falsch.").logprob < found.logprob - 5
    assert session.encode(prompt).shape == (1, len(session.tokenizer.encode(prompt)), 256)


def test_invalid_targets_are_refused() -> None:
    model = tiny_model()
    with pytest.raises(InputError, match="target: is empty"):
        score(model, Numbers(), "5 1", [])
    with pytest.raises(InputError, match="target: must be between 0 and 23, not 24"):
        score(model, Numbers(), "5 1", [24])
    with pytest.raises(InputError, match="decoder_prefix: must be between 0 and 23, not 24"):
        generate(model, Numbers(), "5 1", decoder_prefix=[24])
    with pytest.raises(InputError, match="decoder_prefix: must not contain 1, which ends an output"):
        generate(model, Numbers(), "5 1", decoder_prefix=[4, 1])
    with pytest.raises(InputError, match="prompt: is empty"):
        encode(model, Numbers(), " ")

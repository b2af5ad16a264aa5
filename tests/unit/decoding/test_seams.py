"""What rooms rely on: an observer sees the target's scores, and beam search may be left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import GenerationOptions, InputError, Session, rooms
from speculative_decoding.decoding.prompt import DecoderPrompt
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.drafters import BatchDrafter, NgramDrafter, NoDrafter, SeparateDrafters
from speculative_decoding.engine import Engine
from speculative_decoding.models.generation_config import GenerationConfig
from speculative_decoding.sampling import Constraints, History, scores
from tests.support.tiny import VOCAB, model_drafter, noisy_copy, tiny_model
from tests.support.together import Letters, options_of

TARGET = tiny_model()
PREFIX = [0, 7, 3, 9]
CONSTRAINTS = Constraints(no_repeat_ngram_size=2, banned=((4,),))
BY_NAME: dict[str, Callable[[], BatchDrafter]] = {
    "none": NoDrafter,
    "model": lambda: model_drafter(TARGET, noisy_copy(TARGET)),
    "n-grams": lambda: SeparateDrafters(NgramDrafter(min_chance=0.0).fresh, VOCAB),
}
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"repetition_penalty": 1.3},
    "rejection": {"temperature": 0.8, "acceptance": "rejection"},
    "coupled": {"temperature": 0.8, "top_k": 5},
}


class Watching:
    """Keeps all that it sees."""

    position = 2

    def __init__(self) -> None:
        self.prefix: list[mx.array] = []
        self.scores: list[np.ndarray] = []
        self.tokens: list[int] = []

    def prefilled(self, logits: mx.array) -> None:
        self.prefix.append(logits)

    def committed(self, scores: np.ndarray, tokens: Sequence[int]) -> None:
        self.scores += [*scores]
        self.tokens += tokens


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafter", BY_NAME)
def test_an_observer_sees_the_scores_of_committed_tokens_only(drafter: str, rule: str) -> None:
    """The batch also decodes a request without an observer, and for a while one by another rule."""
    engine = Engine(TARGET, Letters(), BY_NAME[drafter](), slots=3)
    options, observer = options_of(max_tokens=15, **RULES[rule]), Watching()
    start = DecoderPrompt(options, [*PREFIX], {1}, CONSTRAINTS, observer)
    request = engine.submit("abcabc", options, FixedLength(4), start)
    engine.submit("cab", options, FixedLength(2))
    engine.submit("bad", options_of(max_tokens=5, temperature=1.0, acceptance="block"), FixedLength(2))
    while not engine.is_idle:
        engine.step()

    read = mx.array([request.decoder_tokens[:-1]])
    logits = TARGET.logits(TARGET.teacher_forced(read, TARGET.encode(mx.array([request.source]))))
    history = History([request.decoder_tokens[:-1]], None, [CONSTRAINTS])
    first = len(PREFIX) - 1
    assert observer.tokens == request.tokens and len(observer.scores) == len(request.tokens)
    assert len(observer.prefix) == 1 and mx.abs(observer.prefix[0] - logits[0, 1]).max().item() < 1e-5
    for i, found in enumerate(observer.scores):
        history = History([request.decoder_tokens[: first + 1 + i]], None, [CONSTRAINTS])
        expected = np.array(scores(logits[:, first + i : first + i + 1], [options], history)[0, 0])
        assert np.allclose(found, expected, atol=1e-5)


def test_without_the_folder_beams_are_refused_and_a_folder_that_asks_for_them_is_decoded_greedily(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    greedy = Session(TARGET, Letters()).generate("abc").tokens
    monkeypatch.setattr(rooms, "has_room", lambda name: name != "beam_search")
    with pytest.raises(InputError) as error:
        GenerationOptions(num_beams=2)
    line = (
        "num_beams: needs the folder speculative_decoding/beam_search, which this copy lacks; install the whole package"
    )
    assert str(error.value) == line
    model = tiny_model()
    model.generation_config = GenerationConfig.from_dict({"num_beams": 4}, VOCAB, [1])
    assert "num_beams 4 is ignored" in "".join(model.generation_config.note())
    assert Session(model, Letters()).generate("abc").tokens == greedy

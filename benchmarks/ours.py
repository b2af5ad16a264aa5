"""Our ways of decoding as contenders: each with a session of its own, one prompt at a time or several in slots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from speculative_decoding.decoding.ways import Way
from speculative_decoding.drafters import NgramDrafter
from speculative_decoding.generate import GenerationResult
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.sampling import SamplingParams
from speculative_decoding.session import Session

from .interleave import Contender, Output
from .models import Models, bytes_per_pass
from .tasks import Task


class Ids:
    """A tokenizer that costs nothing, since peers get ids and give ids: the text "3" has the ids of source 3 (any other
    text only tries the options), and a token's text is one letter.
    """

    def __init__(self, sources: Sequence[Sequence[int]], vocabulary: Vocabulary | None = None) -> None:
        self.sources, self.vocabulary = sources, vocabulary or Vocabulary({})

    def encode(self, text: str) -> list[int]:
        return list(self.sources[int(text) if text.isdecimal() else 0])

    def decode(self, tokens: Sequence[int]) -> str:
        return "x" * len(tokens)


@dataclass(frozen=True)
class Ours(Contender):
    """A way that decodes one task, with what it learns from request to request."""

    session: Session

    def decode(self, task: Task) -> Iterator[Output]:
        """What others do while this one waits is not counted as its time."""
        finished, results = self._results(task), dict[int, GenerationResult]()
        for number in range(len(task.sources)):
            seconds = 0.0
            while number not in results:
                started = time.perf_counter()
                results |= [next(finished)]
                seconds += time.perf_counter() - started
            result = results.pop(number)
            length = self.session.length if task.slots is None else self.session.batch_length
            yield Output(result.tokens, seconds, result.stats, length.describe())

    def _results(self, task: Task) -> Iterator[tuple[int, GenerationResult]]:
        """(a prompt's number, its result), as they are finished."""
        options: dict[str, Any] = {"max_tokens": task.max_tokens, "allow_long_prompt": True}
        if task.slots is None:
            for number in range(len(task.sources)):
                sampling = SamplingParams(self.temperature, seed=number)
                yield number, self.session.generate(str(number), sampling=sampling, **options)
            return
        prompts = [{"prompt": str(number), "seed": number} for number in range(len(task.sources))]
        for each in self.session.batch(prompts, sampling=SamplingParams(self.temperature), **options):
            assert each.result is not None
            yield each.index, each.result


def ours(task: Task, ways: Sequence[Way], temperatures: Sequence[float], models: Models) -> list[Ours]:
    """A contender for each way and temperature, with a new session: no store, which would know every output from the
    repeat before.
    """
    ids = Ids(task.sources, models.vocabulary)
    made = []
    for temperature in temperatures:
        for way in ways:
            draft = models.draft if way.drafter in ("model", "auto") else None
            ngram = NgramDrafter(pieces=ids.vocabulary.pieces)
            session = Session(models.target, ids, draft, way.drafter, ngram, way.num_draft, task.slots or 1)
            reads = {"model": 0 if draft is None else bytes_per_pass(draft), "auto": None}.get(way.drafter, 0)
            made.append(Ours(way.name, way.flags, temperature, reads, session))
    return made

"""Contenders for this package's decoding modes, each with its own session, for single prompts or batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from speculative_decoding.cli.modes import BASELINE, DecodingMode
from speculative_decoding.decoding.results import GenerationResult
from speculative_decoding.drafters import BatchDrafter, DraftHead, NgramDrafter, checked_draft, model_drafter
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.session import Session

from .interleave import Contender, Output
from .models import Models
from .tasks import Task


class Ids:
    """A tokenizer that takes no time, because peers work on ids. It encodes "3" as source 3, and tokens as letters."""

    vocabulary = Vocabulary({})
    languages = MappingProxyType[str, int]({})

    def __init__(self, sources: Sequence[Sequence[int]]) -> None:
        self.sources = sources

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return list(self.sources[int(text) if text.isdecimal() else 0])

    encode_output = encode

    def decode(self, tokens: Sequence[int]) -> str:
        return "x" * len(tokens)


@dataclass(frozen=True)
class Ours(Contender):
    """A decoding mode for one task. The session keeps learned statistics across requests."""

    session: Session

    def decode(self, task: Task) -> Iterator[tuple[int, Output]]:
        """Time each prompt separately, to exclude the turns of other contenders."""
        results = self._results(task)
        for _ in task.sources:
            started = time.perf_counter()
            number, result = next(results)
            yield number, Output(result.tokens, time.perf_counter() - started, result.stats)

    def _results(self, task: Task) -> Iterator[tuple[int, GenerationResult]]:
        """Yield (index of a prompt, its result) in order of completion."""
        numbers = range(len(task.sources))
        if task.slots is None:
            yield from ((number, self.session.generate(str(number), seed=number)) for number in numbers)
            return
        for each in self.session.batch({"prompt": str(number), "seed": number} for number in numbers):
            assert each.result is not None, each.error
            yield each.index, each.result


def ours(
    task: Task,
    modes: Sequence[DecodingMode],
    temperatures: Sequence[float],
    models: Models,
    rules: Sequence[str | None] = (None,),
) -> list[Ours]:
    """Return a contender for each mode, temperature and, for sampled drafts, acceptance rule.

    Contenders have no text store, because it would contain earlier outputs. A rule of None means the default rule.
    """
    contenders = []
    for temperature, mode in product(temperatures, modes):
        draft = models.draft if mode.drafter in ("model", "auto") else None
        for rule in rules if temperature > 0 and mode != BASELINE else (None,):
            values = {
                "temperature": temperature,
                "max_tokens": task.max_tokens,
                "num_beams": task.num_beams,
                "acceptance": rule,
                "strict": False if mode == BASELINE else None,  # the baseline uses the fastest passes
                **mode.keywords,
            }
            options = GenerationOptions(allow_long_prompt=True, **values)
            session = Session(models.target, Ids(task.sources), draft, options, slots=task.slots or 1)
            name, flags = mode.name, mode.flags
            if rule is not None:
                name, flags = f"{name}, {rule}", f"{flags} --acceptance {rule}"
            contenders.append(Ours(name, flags, temperature, session))
    return contenders


def auto_parts(target: EncoderDecoder, draft: object) -> tuple[NgramDrafter, BatchDrafter, int]:
    """Return the arguments with which a session creates an `AutoDrafter`."""
    assert isinstance(draft, EncoderDecoder | DraftHead)
    model = model_drafter(checked_draft(draft, target), target)
    ngram = NgramDrafter(pieces=target.pieces, max_ngram_size=GenerationOptions().max_ngram_size)
    return ngram, model, target.config.vocab_size

"""Our ways of decoding as contenders: each with a session of its own, one prompt at a time or several in slots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from speculative_decoding.decoding.results import GenerationResult
from speculative_decoding.decoding.ways import PLAIN, Way
from speculative_decoding.drafters import BatchDrafter, DraftHead, DraftModel, NgramDrafter, model_drafter, new_ngram
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.shared_encoder import shares_encoder
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.session import Session

from .interleave import Contender, Output
from .models import Models
from .tasks import Task


class Ids:
    """A tokenizer that costs nothing, for peers get ids and give ids: text "3" is source 3, a token's text a letter."""

    vocabulary, languages = Vocabulary({}), MappingProxyType[str, int]({})

    def __init__(self, sources: Sequence[Sequence[int]]) -> None:
        self.sources = sources

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return list(self.sources[int(text) if text.isdecimal() else 0])

    encode_output = encode

    def decode(self, tokens: Sequence[int]) -> str:
        return "x" * len(tokens)


@dataclass(frozen=True)
class Ours(Contender):
    """A way that decodes one task, with what it learns from request to request."""

    session: Session

    def decode(self, task: Task) -> Iterator[tuple[int, Output]]:
        """What others do while this one waits is not counted as its time."""
        finished = self._results(task)
        for _ in task.sources:
            started = time.perf_counter()
            number, result = next(finished)
            yield number, Output(result.tokens, time.perf_counter() - started, result.stats)

    def _results(self, task: Task) -> Iterator[tuple[int, GenerationResult]]:
        """(a prompt's number, its result), as they are finished."""
        numbers = range(len(task.sources))
        if task.slots is None:
            yield from ((number, self.session.generate(str(number), seed=number)) for number in numbers)
            return
        for each in self.session.batch({"prompt": str(number), "seed": number} for number in numbers):
            assert each.result is not None, each.error
            yield each.index, each.result


def ours(task: Task, ways: Sequence[Way], temperatures: Sequence[float], models: Models) -> list[Ours]:
    """A contender for each way and temperature, each with a session; without a store, which would know every output."""
    made = []
    for temperature in temperatures:
        for way in ways:
            draft = models.draft if way.drafter in ("model", "auto") else None
            own = {
                "temperature": temperature,
                "max_tokens": task.max_tokens,
                "num_beams": task.num_beams,
                "strict": False if way == PLAIN else None,  # the baseline is the fastest that there is
                **way.keywords,
            }
            options = GenerationOptions(allow_long_prompt=True, **own)
            session = Session(models.target, Ids(task.sources), draft, options, slots=task.slots or 1)
            made.append(Ours(way.name, way.flags, temperature, session))
    return made


def auto_parts(target: EncoderDecoder, draft: object) -> tuple[NgramDrafter, BatchDrafter, int]:
    """What a session makes an `AutoDrafter` of."""
    assert isinstance(draft, EncoderDecoder | DraftModel | DraftHead)
    if isinstance(draft, EncoderDecoder):
        model = model_drafter(DraftModel(draft), target, shares_encoder(target, draft))
    else:
        model = model_drafter(draft, target)
    usual = GenerationOptions()
    return new_ngram(target, usual.max_ngram_size), model, target.config.vocab_size

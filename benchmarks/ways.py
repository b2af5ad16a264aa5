"""Our ways of decoding, by name. A new one is a line in `WAYS`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speculative_decoding.decoding.request import choose_length
from speculative_decoding.decoding.stats import GenerationStats
from speculative_decoding.drafters import DraftModel, NgramDrafter
from speculative_decoding.errors import InputError
from speculative_decoding.generate import generate
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.sampling import SamplingParams

from .tasks import Task


@dataclass(frozen=True)
class Models:
    """What ways may use. `draft` is None if there is none."""

    target: EncoderDecoder
    draft: EncoderDecoder | None


@dataclass(frozen=True)
class Way:
    """options: the models, num_draft and how many rows -> what `generate` is asked for besides prompt, sampling and
    max_tokens. Called once for a task, as by a session: what learns from request to request does so within it.
    """

    options: Callable[[Models, int, int], Mapping[str, Any]]
    needs_draft: bool = False
    takes_num_draft: bool = True  # whether it is tried with every --num-draft


def by(drafter: str, *, adaptive: bool = False) -> Callable[[Models, int, int], Mapping[str, Any]]:
    """The options of one of `DRAFTERS`; `adaptive`: it chooses its own num_draft."""

    def options(models: Models, num_draft: int, rows: int) -> Mapping[str, Any]:
        draft = models.draft if drafter in ("model", "auto") else None
        return {
            "drafter": drafter,
            "draft_model": None if draft is None else DraftModel(draft),
            # no store: it would know every output from the repeat before
            "ngram": NgramDrafter(pieces=models.target.pieces),
            "num_draft": choose_length("auto" if adaptive else num_draft, models.target, draft, rows),
        }

    return options


WAYS: dict[str, Way] = {
    "plain": Way(by("none"), takes_num_draft=False),
    "model": Way(by("model"), needs_draft=True),
    "model-auto": Way(by("model", adaptive=True), needs_draft=True, takes_num_draft=False),
    "ngram": Way(by("ngram")),
    "ngram-auto": Way(by("ngram", adaptive=True), takes_num_draft=False),
    "auto": Way(by("auto", adaptive=True), needs_draft=True, takes_num_draft=False),
}


@dataclass(frozen=True)
class Output:
    """One prompt decoded. seconds: wall-clock, encoder included, from ids to ids; of prompts decoded together, the time
    for all since the prompt before. stats: ours has them. length: how the draft length describes itself afterwards.
    """

    tokens: list[int]
    seconds: float
    stats: GenerationStats | None = None
    length: str = ""


@dataclass(frozen=True)
class Ours:
    """A way with its num_draft and temperature, ready to decode."""

    way: str
    num_draft: int
    temperature: float
    target: EncoderDecoder
    options: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.way} {self.num_draft}" if WAYS[self.way].takes_num_draft else self.way

    @property
    def draft_steps(self) -> int | None:
        way = WAYS[self.way]
        if not way.needs_draft:
            return 0
        return self.num_draft if way.takes_num_draft else None

    def decode(self, task: Task) -> Iterator[Output]:
        ids = Ids()
        for number, source in enumerate(task.sources):
            ids.source = list(source)
            started = time.perf_counter()
            result = generate(
                self.target,
                ids,
                "ids",
                sampling=SamplingParams(self.temperature, seed=number),
                max_tokens=task.max_tokens,
                allow_long_prompt=True,
                **self.options,
            )
            yield Output(result.tokens, time.perf_counter() - started, result.stats)


class Ids:
    """A tokenizer that costs nothing, since peers get ids and give ids: any text has the ids it was told, and a
    token's text is one letter.
    """

    source: Sequence[int] = ()
    vocabulary = Vocabulary({})

    def encode(self, text: str) -> list[int]:
        return list(self.source)

    def decode(self, tokens: Sequence[int]) -> str:
        return "x" * len(tokens)


def ours(
    names: Sequence[str], num_drafts: Sequence[int], temperatures: Sequence[float], models: Models, rows: int = 1
) -> list[Ours]:
    """Plain decoding, with which all others are compared, comes first whether named or not."""
    chosen = []
    for temperature in temperatures:
        for name in dict.fromkeys(["plain", *names]):
            way = WAYS[name]
            if way.needs_draft and models.draft is None:
                raise InputError(f"--ways {name}: needs a --draft-model; name one or leave this way out")
            for count in num_drafts if way.takes_num_draft else [0]:
                chosen.append(Ours(name, count, temperature, models.target, way.options(models, count, rows)))
    return chosen

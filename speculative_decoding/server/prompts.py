"""Items for the prompts of clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..decoding.results import GenerationStats
from ..engine import Event
from ..rows.prompts import PromptProgress
from ..rows.scheduling import Progress
from ..sampling import GenerationOptions
from ..sampling.random import sample_seed
from .client_request import ClientItem
from .errors import ServerError
from .limits import Limits

if TYPE_CHECKING:
    from .texts import TextScheduler


@dataclass(eq=False)
class ClientPrompt(ClientItem):
    """A prompt, or one of several samples of a prompt.

    Args:
        prompt: The text. A blank prompt needs no decoding.
        options: The options, including the seed of this sample.

    Attributes:
        samples: All samples of the prompt. They are queued with the first sample, so the prompt is encoded only once.
    """

    prompt: str
    options: GenerationOptions
    _samples: Sequence[ClientPrompt] = field(init=False)
    tokens: list[int] = field(init=False, default_factory=list)
    token_texts: list[str] = field(init=False, default_factory=list)
    logprobs: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._samples = [self]
        if not self.prompt.strip():
            self.finish_reason, self.stats = "stop", GenerationStats()

    @property
    def samples(self) -> Sequence[ClientPrompt]:
        return self._samples

    @property
    def text(self) -> str:
        return "".join(self.token_texts)

    def check(self, limits: Limits) -> None:
        limits.check_length("prompt", self.prompt)
        limits.check_options(self.options)

    def start(self, scheduler: TextScheduler, number: int) -> Iterable[Progress]:
        for progress in scheduler.others.submit((number, {"prompt": self.prompt, "options": self.options})):
            if progress.error is not None:
                raise progress.error
        scheduler.check(scheduler.others, number, "prompt")
        return ()

    def client_progress(self, progress: PromptProgress) -> tuple[ClientPrompt, Event] | None:
        return None if progress.event is None else (self.samples[progress.sample], progress.event)

    def add(self, progress: Event) -> None:
        round = progress.round
        self.tokens += round.tokens
        self.token_texts += progress.texts
        self.logprobs += round.logprobs or []
        if progress.is_last:
            self.finish_reason, self.stats = round.finish_reason, progress.request.stats

    def error_of(self, error: Exception) -> ServerError:
        return ServerError.of(error)


def client_prompts(prompts: Sequence[tuple[str, GenerationOptions]]) -> list[ClientPrompt]:
    """Return an item for each sample of each prompt, in order."""
    items: list[ClientPrompt] = []
    for text, options in prompts:
        seeds = [sample_seed(options.seed, number) for number in range(options.num_return_sequences)]
        samples = [ClientPrompt(text, options.with_values(seed=seed)) for seed in seeds]
        for each in samples:
            each._samples = samples
        items += samples
    return items

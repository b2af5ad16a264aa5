"""Clients' prompts: how the decoding thread decodes them with an engine, and the output that the clients read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ..decoding.request import Request
from ..decoding.results import GenerationStats
from ..engine import Event
from ..sampling import GenerationOptions
from ..sampling.random import sample_seed
from ..session import Session
from .client_request import Callback, ClientItem
from .errors import ServerError
from .limits import Limits

LOG = logging.getLogger("speculative_decoding.server")


@dataclass(eq=False)
class ClientPrompt(ClientItem):
    """A prompt, or one of several samples of a prompt.

    Args:
        prompt: The text. A blank prompt needs no decoding.
        options: The options, with the seed of this sample.
        prompt_field: The API's field that contains the prompt.

    Attributes:
        samples: All samples of the prompt. They are queued with the first one, so that the prompt is encoded once.
        request: The engine's request, used by the decoding thread only.
    """

    prompt: str
    options: GenerationOptions
    prompt_field: str = "prompt"
    samples: Sequence[ClientPrompt] = field(init=False)
    request: Request | None = field(init=False, default=None)
    tokens: list[int] = field(init=False, default_factory=list)
    token_texts: list[str] = field(init=False, default_factory=list)
    logprobs: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.samples = [self]
        if not self.prompt.strip():
            self.finish_reason, self.stats = "stop", GenerationStats()

    @property
    def text(self) -> str:
        return "".join(self.token_texts)

    def check(self, limits: Limits) -> None:
        limits.check_length(self.prompt_field, self.prompt)
        limits.check_options(self.options)

    def add(self, progress: Event) -> None:
        round = progress.round
        self.tokens += round.tokens
        self.token_texts += progress.texts
        self.logprobs += round.logprobs or []
        if progress.is_last:
            self.finish_reason, self.stats = round.finish_reason, progress.request.stats

    def error_of(self, error: Exception) -> ServerError:
        return ServerError.of(error, lambda option: self.prompt_field if option == "prompt" else option)


def client_prompts(
    prompts: Sequence[tuple[str, GenerationOptions]], *, prompt_field: str = "prompt"
) -> list[ClientPrompt]:
    """Return an item for each sample of each prompt, in order."""
    items: list[ClientPrompt] = []
    for text, options in prompts:
        seeds = [sample_seed(options.seed, number) for number in range(options.num_return_sequences)]
        samples = [ClientPrompt(text, options.with_values(seed=seed), prompt_field) for seed in seeds]
        for each in samples:
            each.samples = samples
        items += samples
    return items


class PromptQueue:
    """Decodes prompts for the decoding thread; see `DecodingQueue`."""

    def __init__(self, session: Session, limits: Limits) -> None:
        self._session = session
        self._limits = limits
        self._engine = session.engine(session.options_with({}), limits.slots)
        self._unfinished: dict[Request, ClientPrompt] = {}
        self.finished = 0

    @property
    def decoding(self) -> int:
        return self._engine.decoding

    @property
    def waiting(self) -> int:
        return self._engine.waiting

    @property
    def is_idle(self) -> bool:
        return not (self.decoding or self.waiting)

    @property
    def active(self) -> list[ClientPrompt]:
        return [*self._unfinished.values()]

    def submit(self, item: ClientPrompt) -> list[Callback]:
        if item is not item.samples[0]:
            return []
        length = self._session.planner.draft_length(item.options, self._limits.slots)
        requests = self._engine.submit_samples(item.prompt, item.options, length)
        try:
            self._limits.check_tokens(item.prompt_field, requests[0].stats.prompt_tokens)
            self._limits.check_tokens("decoder_prefix", requests[0].prefix_length - 1)
        except ServerError:
            for request in requests:
                self._engine.cancel(request)
            raise
        for sample, request in zip(item.samples, requests, strict=True):
            self._unfinished[request] = sample
            sample.request = request
        return [sample.client.on_queued for sample in item.samples]

    def cancel(self, item: ClientPrompt) -> None:
        if item.request is not None and item.request in self._unfinished:
            del self._unfinished[item.request]
            self._engine.cancel(item.request)

    def step(self) -> list[Callback]:
        return [self._tell(event) for event in self._engine.step()]

    def _tell(self, event: Event) -> Callback:
        """Return the callback that notifies a client of a round of its prompt."""
        request = event.request
        prompt = self._unfinished.pop(request) if event.is_last else self._unfinished[request]
        if request.error:
            LOG.error("a request failed: %s", request.error)
            return partial(prompt.client.fail, prompt.error_of(ArithmeticError(request.error)))
        self.finished += event.is_last
        return partial(prompt.client.on_progress, prompt, event)

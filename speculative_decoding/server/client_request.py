"""A client's request while it is decoded: its prompts, their outputs so far, and the updates still to be read.

All methods run on the event loop. The decoding thread schedules the calls of `on_queued`, `on_update` and `fail` there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..decoding.request import Request
from ..decoding.stats import GenerationStats, Round
from ..sampling import GenerationOptions
from .errors import ServerError


class PromptUpdate(NamedTuple):
    """What one round added to the output of a prompt."""

    round: Round
    texts: list[str]  # of each token of the round
    rejected: str  # text of the rejected draft tokens, if the client asked for it
    stats: GenerationStats | None  # with the last round


@dataclass(eq=False)
class ServedPrompt:
    """A prompt of a client's request, and its output as far as the client has read it."""

    prompt: str
    options: GenerationOptions
    client: ClientRequest
    index: int  # in the client's request
    engine_request: Request | None = None  # used by the decoding thread only
    prompt_tokens: int = 0
    token_texts: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stats: GenerationStats | None = None

    @property
    def text(self) -> str:
        return "".join(self.token_texts)

    def add(self, update: PromptUpdate) -> None:
        self.token_texts += update.texts
        self.logprobs += update.round.logprobs or []
        self.finish_reason = update.round.finish_reason
        self.stats = update.stats


class ClientRequest:
    """The prompts of one HTTP request, which are decoded together. If one of them fails, the request fails.

    Args:
        prompts: Texts with their options.
        wants_rejected: Whether updates contain the text of rejected draft tokens.
        on_first_token: Called when the first token of each prompt is read.

    Attributes:
        unfinished: How many prompts have updates to come, even if the client has not read the previous ones.
        error: Why the request failed.
    """

    def __init__(
        self,
        prompts: Sequence[tuple[str, GenerationOptions]],
        *,
        wants_rejected: bool = False,
        on_first_token: Callable[[], None] = lambda: None,
    ) -> None:
        self.prompts = [ServedPrompt(text, options, self, index) for index, (text, options) in enumerate(prompts)]
        self.wants_rejected = wants_rejected
        self.unfinished = len(self.prompts)
        self.error: ServerError | None = None
        self._on_first_token = on_first_token
        self._not_queued = len(self.prompts)
        self._all_queued = asyncio.Event()
        self._updates: asyncio.Queue[tuple[ServedPrompt, PromptUpdate] | ServerError] = asyncio.Queue()

    def on_queued(self, prompt: ServedPrompt, prompt_tokens: int) -> None:
        """The engine has accepted a prompt, which may still wait for a slot."""
        prompt.prompt_tokens = prompt_tokens
        self._not_queued -= 1
        if self._not_queued == 0:
            self._all_queued.set()

    def on_update(self, prompt: ServedPrompt, update: PromptUpdate) -> None:
        """A round has added to the output of a prompt."""
        if self.error is not None:
            return  # the update was on its way when the request failed
        if update.round.finish_reason is not None:
            self.unfinished -= 1
        self._updates.put_nowait((prompt, update))

    def fail(self, error: ServerError) -> None:
        self.unfinished = 0
        self.error = error
        self._all_queued.set()
        self._updates.put_nowait(error)

    async def wait_until_queued(self) -> None:
        """Wait until the engine has accepted all prompts. Raises `ServerError` if it refuses one."""
        await self._all_queued.wait()
        if self.error is not None:
            raise self.error

    async def updates(self, timeout: float | None = None) -> AsyncIterator[tuple[ServedPrompt, PromptUpdate] | None]:
        """Yield each update until all prompts are finished, and None after each `timeout` seconds without one.

        Raises `ServerError` if the request fails.
        """
        while any(prompt.finish_reason is None for prompt in self.prompts):
            try:
                item = await asyncio.wait_for(self._updates.get(), timeout)
            except TimeoutError:
                yield None
                continue
            if isinstance(item, ServerError):
                raise item
            prompt, update = item
            if not prompt.token_texts:
                self._on_first_token()
            prompt.add(update)
            yield prompt, update

    async def wait_until_finished(self) -> None:
        """Wait for the complete output of all prompts. Raises `ServerError` if the request fails."""
        await self.wait_until_queued()
        async for _ in self.updates():
            pass

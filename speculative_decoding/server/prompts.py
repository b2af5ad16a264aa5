"""Prompts of clients: how the decoding thread decodes them with an engine, and what the clients read of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ..decoding.request import Request
from ..decoding.stats import GenerationStats, Round
from ..drafters.base import COPY
from ..engine import Event
from ..errors import InputError
from ..loading.tokenizer import continuation_text
from ..sampling import GenerationOptions
from ..session import Session
from .client_request import Call, Served
from .errors import FAILED, ServerError
from .limits import Limits

LOG = logging.getLogger("speculative_decoding.server")


class PromptUpdate(NamedTuple):
    """An extension of a prompt's output by one round."""

    round: Round
    texts: list[str]  # of each token of the round
    rejected: str  # text of the rejected draft tokens, if the client asked for it
    stats: GenerationStats | None  # with the last round

    @property
    def finish_reason(self) -> str | None:
        return self.round.finish_reason


@dataclass(eq=False)
class ServedPrompt(Served):
    """A prompt.

    wants_rejected: whether updates contain the text of rejected draft tokens.
    prompt_field: the field of the API that has the prompt.
    """

    prompt: str
    options: GenerationOptions
    wants_rejected: bool = False
    prompt_field: str = "prompt"
    engine_request: Request | None = field(init=False, default=None)  # used by the decoding thread only
    prompt_tokens: int = field(init=False, default=0)
    token_texts: list[str] = field(init=False, default_factory=list)
    logprobs: list[float] = field(init=False, default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.token_texts)

    def check(self, limits: Limits) -> None:
        limits.check_length(self.prompt_field, self.prompt)
        limits.check_options(self.options)

    def field_name(self, option: str) -> str:
        """Return the field of the API for an option."""
        return self.prompt_field if option == "prompt" else option

    def on_queued(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.client.on_queued()

    def add(self, update: PromptUpdate) -> None:
        super().add(update)
        self.token_texts += update.texts
        self.logprobs += update.round.logprobs or []


def served_prompts(
    prompts: Sequence[tuple[str, GenerationOptions]], *, wants_rejected: bool = False, prompt_field: str = "prompt"
) -> list[ServedPrompt]:
    return [ServedPrompt(text, options, wants_rejected, prompt_field) for text, options in prompts]


def finish_blank(prompt: ServedPrompt) -> None:
    """Give a blank text of several its output, which has no tokens."""
    prompt.on_queued(0)
    end = Round([], [], 0, finish_reason="stop", logprobs=[])
    prompt.client.on_update(prompt, PromptUpdate(end, [], "", GenerationStats()))


class PromptWork:
    """Decodes prompts for the decoding thread; see `Work`."""

    def __init__(self, session: Session, limits: Limits) -> None:
        self._session = session
        self._limits = limits
        self._engine = session.engine(session.options_with({}), limits.slots)
        self._active: dict[Request, ServedPrompt] = {}
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
    def active(self) -> list[ServedPrompt]:
        return [*self._active.values()]

    def submit(self, prompt: ServedPrompt) -> Call:
        if not prompt.prompt.strip():
            return partial(finish_blank, prompt)
        try:
            length = self._session.planner.draft_length(prompt.options, self._limits.slots)
            request = self._engine.submit(prompt.prompt, prompt.options, length)
        except InputError as error:
            return partial(prompt.client.fail, ServerError.of(error, prompt.field_name))
        except Exception:
            LOG.exception("a prompt could not be prepared")
            return partial(prompt.client.fail, ServerError(500, FAILED))
        try:
            self._limits.check_tokens(prompt.prompt_field, request.stats.prompt_tokens)
            self._limits.check_tokens("decoder_prefix", request.prefix_length - 1)
        except ServerError as error:
            self._engine.cancel(request)
            return partial(prompt.client.fail, error)
        prompt.engine_request = request
        self._active[request] = prompt
        return partial(prompt.on_queued, request.stats.prompt_tokens)

    def cancel(self, prompt: ServedPrompt) -> None:
        request = prompt.engine_request
        if request is not None and request in self._active:
            self._engine.cancel(request)
            del self._active[request]

    def step(self) -> list[Call]:
        return [self._handle(event) for event in self._engine.step()]

    def _handle(self, event: Event) -> Call:
        """Return the call that tells a client about a round of its prompt."""
        request, round = event.request, event.round
        prompt = self._active[request]
        if round.finish_reason:
            del self._active[request]
            if request.error:
                LOG.error("a request failed: %s", request.error)
                return partial(prompt.client.fail, ServerError(500, request.error, code="not_finite"))
            self.finished += 1

        rejected = ""
        store = None if self._session.ngram is None else self._session.ngram.store
        may_be_from_store = round.kind == COPY and store is not None
        # If a round ends the text with an accepted token, the tokens after it were not verified
        if prompt.wants_rejected and round.accepted < len(round.tokens) and not may_be_from_store:
            before = request.tokens[: len(request.tokens) - len(round.tokens) + round.accepted]
            rejected = continuation_text(self._session.tokenizer, before, round.rejected)
        stats = request.stats if round.finish_reason else None
        return partial(prompt.client.on_update, prompt, PromptUpdate(round, event.texts, rejected, stats))

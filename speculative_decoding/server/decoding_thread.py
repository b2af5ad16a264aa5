"""The one thread that uses the model. It sleeps while there is nothing to decode, and never waits for a client.

After each round it hands the updates of all requests to the event loop in one call. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial

import mlx.core as mx

from ..decoding.request import Request
from ..distributed import ShardedModel
from ..draft_length.adaptive import LONGEST
from ..draft_length.base import FixedLength
from ..drafters.base import COPY
from ..engine import Engine, Event
from ..errors import InputError
from ..loading.tokenizer import continuation_text
from ..session import Session
from .client_request import PromptUpdate, ServedPrompt
from .errors import ServerError
from .limits import Limits

LOG = logging.getLogger("speculative_decoding.server")
MAX_FAILED_ROUNDS = 3  # in a row, without a finished request in between
FAILED = "the server failed while decoding this request; see its log"

Call = Callable[[], None]


class DecodingThread:
    """Runs an engine for the prompts of all clients.

    A round that fails (out of memory, a bug) fails all requests of the engine, and a new engine takes over. After
    `MAX_FAILED_ROUNDS` failures in a row the thread ends, because only a new process may help. With a
    sharded model it ends after the first failure, because other ranks may wait for a sum of this rank.

    Args:
        open_session: Loads the models. The context is entered and left in the thread.
        limits: Limits of the server.

    Attributes:
        decoding: How many prompts have a slot.
        waiting: How many prompts wait for a slot.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[Session]], limits: Limits) -> None:
        self._open_session = open_session
        self._limits = limits
        self._wake = threading.Condition()
        self._to_submit: list[ServedPrompt] = []
        self._to_cancel: list[ServedPrompt] = []
        self._is_stopping = False
        self._active: dict[Request, ServedPrompt] = {}
        self._failed_rounds = 0
        self.decoding = 0
        self.waiting = 0

    def start(self, on_ready: Callable[[Session], None], on_end: Callable[[Exception | None], None]) -> None:
        """Start the thread. Must be called on the event loop, where both callbacks will run.

        Args:
            on_ready: Called when the models are loaded.
            on_end: Called when the thread ends, with the error, or None after `stop`.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(on_ready, on_end), name="decoding")
        self._thread.start()

    def submit(self, prompts: Sequence[ServedPrompt]) -> None:
        """Queue prompts. Each is accepted or refused before any of them is decoded."""
        with self._wake:
            self._to_submit += prompts
            self._wake.notify()

    def cancel(self, prompts: Sequence[ServedPrompt]) -> None:
        """Free the slots of prompts before the next round. Finished prompts are ignored."""
        with self._wake:
            self._to_cancel += prompts
            self._wake.notify()

    def stop(self) -> None:
        """End after the current round, and wait until the thread has ended."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self, on_ready: Callable[[Session], None], on_end: Callable[[Exception | None], None]) -> None:
        error: Exception | None = None
        try:
            with self._open_session() as session:
                warm_up(session, self._limits.slots)
                note = session.planner.exactness_note(session.options_with({}), self._limits.slots)
                if note:
                    LOG.warning(note)
                self._call_on_loop([partial(on_ready, session)])
                error = self._decode(session)
        except InputError as input_error:
            error = input_error
        except Exception as unexpected:
            LOG.exception("the decoding thread ended")
            error = unexpected
        mx.clear_streams()  # ends MLX's worker of this thread; otherwise the process cannot exit cleanly
        self._call_on_loop([partial(on_end, error)])

    def _decode(self, session: Session) -> Exception | None:
        """Decode until `stop` is called. Returns the error if too many rounds fail."""
        while not self._is_stopping:
            engine = session.engine(session.options_with({}), self._limits.slots)
            try:
                while self._take(session, engine):
                    self._call_on_loop([self._handle(session, event) for event in engine.step()])
                    self.decoding = engine.decoding
                    self.waiting = engine.waiting
            except Exception as error:
                LOG.exception("a round failed, and with it %d prompts", len(self._active))
                failure = ServerError(500, FAILED, code="round_failed")
                self._call_on_loop([partial(prompt.client.fail, failure) for prompt in self._active.values()])
                self._active.clear()
                self.decoding = 0
                self.waiting = 0
                self._failed_rounds += 1
                is_sharded = isinstance(session.model, ShardedModel)
                if is_sharded or self._failed_rounds == MAX_FAILED_ROUNDS:
                    return error
        return None

    def _take(self, session: Session, engine: Engine) -> bool:
        """Submit and cancel what clients asked for, and sleep while there is nothing to do. Returns False to end."""
        with self._wake:
            while engine.is_idle and not self._to_submit and not self._to_cancel and not self._is_stopping:
                self._wake.wait()
            to_submit, self._to_submit = self._to_submit, []
            to_cancel, self._to_cancel = self._to_cancel, []
        self._call_on_loop([self._submit(session, engine, prompt) for prompt in to_submit])
        for prompt in to_cancel:
            request = prompt.engine_request
            if request is not None and request in self._active:
                engine.cancel(request)
                del self._active[request]
        return not self._is_stopping

    def _submit(self, session: Session, engine: Engine, prompt: ServedPrompt) -> Call:
        """Submit a prompt to the engine. Returns the call that tells its client."""
        length = session.planner.draft_length(prompt.options, self._limits.slots)
        try:
            request = engine.submit(prompt.prompt, prompt.options, length)
        except InputError as error:
            return partial(prompt.client.fail, ServerError.of(error))
        except Exception:
            LOG.exception("a prompt could not be prepared")
            return partial(prompt.client.fail, ServerError(500, FAILED))
        try:
            self._limits.check_tokens("prompt", request.stats.prompt_tokens)
            self._limits.check_tokens("decoder_prefix", request.prefix_length - 1)
        except ServerError as error:
            engine.cancel(request)
            return partial(prompt.client.fail, error)
        prompt.engine_request = request
        self._active[request] = prompt
        return partial(prompt.client.on_queued, prompt, request.stats.prompt_tokens)

    def _handle(self, session: Session, event: Event) -> Call:
        """Return the call that tells a client about a round of its prompt."""
        request, round = event.request, event.round
        prompt = self._active[request]
        if round.finish_reason:
            del self._active[request]
            if request.error:
                LOG.error("a request failed: %s", request.error)
                return partial(prompt.client.fail, ServerError(500, request.error, code="not_finite"))
            self._failed_rounds = 0

        rejected = ""
        may_be_from_store = round.kind == COPY and session.ngram is not None and session.ngram.store is not None
        # If a round ends the text with an accepted token, the tokens after it were not verified
        if prompt.client.wants_rejected and round.accepted < len(round.tokens) and not may_be_from_store:
            before = request.tokens[: len(request.tokens) - len(round.tokens) + round.accepted]
            rejected = continuation_text(session.tokenizer, before, round.rejected)
        stats = request.stats if round.finish_reason else None
        return partial(prompt.client.on_update, prompt, PromptUpdate(round, event.texts, rejected, stats))

    def _call_on_loop(self, calls: Sequence[Call]) -> None:
        """Run the calls on the event loop, all in one wake-up."""
        if calls:
            with suppress(RuntimeError):  # the loop is closed, so no client is left
                self._loop.call_soon_threadsafe(run_all, calls)


def run_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def warm_up(session: Session, slots: int) -> None:
    """Calibrate the device, and compile a row's passes with drafts of each length, so that no client waits for that."""
    session.calibrate(slots)
    defaults = session.options_with({})
    language = defaults.tgt_lang or next(iter(session.tokenizer.languages), None)
    # Copies for so short a text would be too short
    drafter = "model" if defaults.drafter == "auto" and session.draft_model is not None else defaults.drafter
    options = replace(defaults, drafter=drafter, min_tokens=0, tgt_lang=language, decoder_prefix="")
    engine = session.engine(options, slots)
    fixed = options.num_draft_tokens
    for length in (0, fixed) if isinstance(fixed, int) else range(LONGEST + 1):
        engine.submit("a", replace(options, max_tokens=length + 1), FixedLength(length))
        while not engine.is_idle:
            engine.step()

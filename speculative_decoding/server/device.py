"""The one thread that owns the model. It sleeps while there is nothing to decode, and waits for no client: what comes
of a round is handed to the event loop, once for all requests. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import mlx.core as mx

from ..decoding.stats import GenerationStats, Round
from ..engine import Engine, Event, Request
from ..errors import InputError
from ..loading.tokenizer import text_behind
from ..models.mirror import ALONE
from ..sampling import GenerationOptions
from ..session import Session
from .errors import ServerError
from .limits import Limits

LOG = logging.getLogger("speculative_decoding.server")
MOST_FAILURES = 3  # of whole rounds, without a request between them that ended well; one, where processes share a model
FAILED = "the server failed while it decoded this; its log says why"


class Step(NamedTuple):
    """What a round brought a prompt. rejected: the text of the drafted tokens that were not accepted, where it is
    wanted. stats: with the last round.
    """

    round: Round
    texts: list[str]
    rejected: str
    stats: GenerationStats | None


class Started(NamedTuple):
    """The prompt is fit to be decoded, and waits for a slot."""

    prompt_tokens: int


@dataclass(eq=False)
class Work:
    """A prompt. receive: is called on the event loop with a `Started`, each `Step`, or the error that ends it.

    request: belongs to the device's thread.
    """

    prompt: str
    options: GenerationOptions
    receive: Callable[[Work, Started | Step | ServerError], None]
    wants_rejected: bool = False
    request: Request | None = field(default=None, init=False)


Told = tuple[Work, Started | Step | ServerError]


class Device:
    """open_session: loads the models; entered and left in the thread.

    A round that fails (out of memory, a fault in this program) fails all requests that the engine has, and a new engine
    goes on. After `MOST_FAILURES` of them in a row the thread ends, for then a new process is needed.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[Session]], limits: Limits) -> None:
        self._open_session, self._limits = open_session, limits
        self._wake = threading.Condition()
        self._inbox: list[tuple[Work, bool]] = []  # and whether it is to be submitted, or cancelled
        self._ends = False
        self._working: dict[Request, Work] = {}
        self._failures = 0
        self.decoding = self.waiting = 0  # prompts in slots, and in front of them

    def start(self, on_ready: Callable[[Session], None], on_end: Callable[[Exception | None], None]) -> None:
        """Within the event loop, where both will be called. on_end: with what ended it, None where that was `stop`."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(on_ready, on_end), name="device")
        self._thread.start()

    def submit(self, works: Sequence[Work]) -> None:
        """All are told that they have started, or have not, before any of them is decoded."""
        self._put(works, True)

    def cancel(self, works: Sequence[Work]) -> None:
        """Their slots are free before the next round. Nothing happens to those that have ended."""
        self._put(works, False)

    def stop(self) -> None:
        """End behind the round that runs, and wait for that."""
        with self._wake:
            self._ends = True
            self._wake.notify()
        self._thread.join()

    def _put(self, works: Sequence[Work], is_new: bool) -> None:
        with self._wake:
            self._inbox += [(work, is_new) for work in works]
            self._wake.notify()

    def _run(self, on_ready: Callable[[Session], None], on_end: Callable[[Exception | None], None]) -> None:
        problem: Exception | None = None
        try:
            with self._open_session() as session:
                warm_up(session, self._limits.slots)
                self._call(on_ready, session)
                problem = self._decode(session)
        except InputError as error:
            problem = error
        except Exception as error:
            LOG.exception("the device's thread ended")
            problem = error
        mx.clear_streams()  # MLX's thread for this one's work ends with it, or the process could not end in order
        self._call(on_end, problem)

    def _decode(self, session: Session) -> Exception | None:
        """Until it is to end; or what failed, again and again."""
        while not self._ends:
            engine = session.engine(session.options_with({}), self._limits.slots)
            try:
                while self._take(session, engine):
                    self._tell([self._told(session, event) for event in engine.step()])
                    self.decoding, self.waiting = engine.decoding, engine.waiting
            except Exception as error:
                LOG.exception("a round failed, and with it %d prompts", len(self._working))
                self._tell([(work, ServerError(500, FAILED, code="round_failed")) for work in self._working.values()])
                self._working.clear()
                self.decoding = self.waiting = 0
                self._failures += 1
                if self._failures == MOST_FAILURES or session.model.mirror is not ALONE:  # others may wait for its sums
                    return error
        return None

    def _take(self, session: Session, engine: Engine) -> bool:
        """Submit and cancel what came meanwhile; wait for something if there is nothing to do. False: to end."""
        with self._wake:
            while engine.is_idle and not self._inbox and not self._ends:
                self._wake.wait()
            inbox, self._inbox = self._inbox, []
        told: list[Told] = []
        for work, is_new in inbox:
            if is_new:
                told.append((work, self._submit(session, engine, work)))
            elif work.request in self._working:
                engine.cancel(work.request)
                del self._working[work.request]
        self._tell(told)
        return not self._ends

    def _submit(self, session: Session, engine: Engine, work: Work) -> Started | ServerError:
        length = session.length_of(work.options, self._limits.slots)
        try:
            request = engine.submit(work.prompt, work.options, length)
        except InputError as error:
            return ServerError.of(error)
        except Exception:
            LOG.exception("a prompt could not be prepared")
            return ServerError(500, FAILED)
        try:
            self._limits.check_tokens("prompt", request.stats.prompt_tokens)
            self._limits.check_tokens("prefix", request.row.given - 1)
        except ServerError as error:
            engine.cancel(request)
            return error
        work.request = request
        self._working[request] = work
        return Started(request.stats.prompt_tokens)

    def _told(self, session: Session, event: Event) -> Told:
        request, round = event.request, event.round
        work = self._working[request]
        if round.finish_reason:
            del self._working[request]
            if request.error:
                LOG.error("a request failed: %s", request.error)
                return work, ServerError(500, request.error, code="not_finite")
            self._failures = 0
        rejected = ""
        if work.wants_rejected and round.accepted < len(round.tokens):  # what stands behind an end was never judged
            before = request.tokens[: len(request.tokens) - len(round.tokens) + round.accepted]
            rejected = text_behind(session.tokenizer, before, round.rejected)
        return work, Step(round, event.texts, rejected, request.stats if round.finish_reason else None)

    def _tell(self, told: Sequence[Told]) -> None:
        if told:
            self._call(hand_out, told)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(function, *arguments)


def hand_out(told: Sequence[Told]) -> None:
    for work, item in told:
        work.receive(work, item)


def warm_up(session: Session, slots: int) -> None:
    """The first passes of a process are slower than the others: no client is to pay for them."""
    usual = session.options_with({})
    language = usual.target_language or next(iter(session.tokenizer.languages), None)
    options = replace(usual, max_tokens=2, min_tokens=0, target_language=language, prefix="")
    engine = session.engine(options, slots)
    engine.submit("a", options, session.length_of(options, slots))
    while not engine.is_idle:
        engine.step()

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

from ..decoding.request import Request
from ..decoding.stats import GenerationStats, Round
from ..distributed import ShardedModel
from ..engine import Engine, Event
from ..errors import InputError
from ..loading.tokenizer import continuation_text
from ..sampling import GenerationOptions
from ..session import Session
from .errors import ServerError
from .limits import Limits

LOG = logging.getLogger("speculative_decoding.server")
MOST_FAILURES = 3  # of whole rounds, without a request between them that ended well; one, where processes share a model
FAILED = "the server failed while it decoded this; its log says why"


class PromptUpdate(NamedTuple):
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
class ServedPrompt:
    """A prompt and its text so far. `receive` is called on the event loop with a `Started`, each `PromptUpdate`, or the
    error that ends it. `index` is the position in the client's request, `pieces` the text of each token.

    request: belongs to the device's thread; all else to the event loop.
    """

    prompt: str
    options: GenerationOptions
    receive: Callable[[ServedPrompt, Started | PromptUpdate | ServerError], None]
    index: int = 0
    wants_rejected: bool = False
    request: Request | None = field(default=None, init=False)
    prompt_tokens: int = field(default=0, init=False)
    pieces: list[str] = field(default_factory=list, init=False)
    logprobs: list[float] = field(default_factory=list, init=False)
    finish_reason: str | None = field(default=None, init=False)
    stats: GenerationStats | None = field(default=None, init=False)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add(self, step: PromptUpdate) -> None:
        self.pieces += step.texts
        self.logprobs += step.round.logprobs or []
        self.finish_reason, self.stats = step.round.finish_reason, step.stats


Told = tuple[ServedPrompt, Started | PromptUpdate | ServerError]


class DecodingThread:
    """open_session: loads the models; entered and left in the thread.

    A round that fails (out of memory, a fault in this program) fails all requests that the engine has, and a new engine
    goes on. After `MOST_FAILURES` of them in a row the thread ends, for then a new process is needed.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[Session]], limits: Limits) -> None:
        self._open_session, self._limits = open_session, limits
        self._wake = threading.Condition()
        self._inbox: list[tuple[ServedPrompt, bool]] = []  # and whether it is to be submitted, or cancelled
        self._ends = False
        self._working: dict[Request, ServedPrompt] = {}
        self._failures = 0
        self.decoding = self.waiting = 0  # prompts in slots, and in front of them

    def start(self, on_ready: Callable[[Session], None], on_end: Callable[[Exception | None], None]) -> None:
        """Within the event loop, where both will be called. on_end: with what ended it, None where that was `stop`."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(on_ready, on_end), name="device")
        self._thread.start()

    def submit(self, rows: Sequence[ServedPrompt]) -> None:
        """All are told that they have started, or have not, before any of them is decoded."""
        self._put(rows, True)

    def cancel(self, rows: Sequence[ServedPrompt]) -> None:
        """Their slots are free before the next round. Nothing happens to those that have ended."""
        self._put(rows, False)

    def stop(self) -> None:
        """End behind the round that runs, and wait for that."""
        with self._wake:
            self._ends = True
            self._wake.notify()
        self._thread.join()

    def _put(self, rows: Sequence[ServedPrompt], is_new: bool) -> None:
        with self._wake:
            self._inbox += [(row, is_new) for row in rows]
            self._wake.notify()

    def _run(self, on_ready: Callable[[Session], None], on_end: Callable[[Exception | None], None]) -> None:
        problem: Exception | None = None
        try:
            with self._open_session() as session:
                warm_up(session, self._limits.slots)
                if note := session.planner.exactness_note(session.options_with({}), self._limits.slots):
                    LOG.warning(note)
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
                self._tell([(row, ServerError(500, FAILED, code="round_failed")) for row in self._working.values()])
                self._working.clear()
                self.decoding = self.waiting = 0
                self._failures += 1
                # Other ranks of a sharded model may be waiting for this rank's sums.
                if self._failures == MOST_FAILURES or isinstance(session.model, ShardedModel):
                    return error
        return None

    def _take(self, session: Session, engine: Engine) -> bool:
        """Submit and cancel what came meanwhile; wait for something if there is nothing to do. False: to end."""
        with self._wake:
            while engine.is_idle and not self._inbox and not self._ends:
                self._wake.wait()
            inbox, self._inbox = self._inbox, []
        told: list[Told] = []
        for row, is_new in inbox:
            if is_new:
                told.append((row, self._submit(session, engine, row)))
            elif row.request in self._working:
                engine.cancel(row.request)
                del self._working[row.request]
        self._tell(told)
        return not self._ends

    def _submit(self, session: Session, engine: Engine, row: ServedPrompt) -> Started | ServerError:
        length = session.planner.length(row.options, self._limits.slots)
        try:
            request = engine.submit(row.prompt, row.options, length)
        except InputError as error:
            return ServerError.of(error)
        except Exception:
            LOG.exception("a prompt could not be prepared")
            return ServerError(500, FAILED)
        try:
            self._limits.check_tokens("prompt", request.stats.prompt_tokens)
            self._limits.check_tokens("decoder_prefix", request.prefix_length - 1)
        except ServerError as error:
            engine.cancel(request)
            return error
        row.request = request
        self._working[request] = row
        return Started(request.stats.prompt_tokens)

    def _told(self, session: Session, event: Event) -> Told:
        request, round = event.request, event.round
        row = self._working[request]
        if round.finish_reason:
            del self._working[request]
            if request.error:
                LOG.error("a request failed: %s", request.error)
                return row, ServerError(500, request.error, code="not_finite")
            self._failures = 0
        rejected = ""
        if row.wants_rejected and round.accepted < len(round.tokens):  # what stands behind an end was never judged
            before = request.tokens[: len(request.tokens) - len(round.tokens) + round.accepted]
            rejected = continuation_text(session.tokenizer, before, round.rejected)
        return row, PromptUpdate(round, event.texts, rejected, request.stats if round.finish_reason else None)

    def _tell(self, told: Sequence[Told]) -> None:
        if told:
            self._call(hand_out, told)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(function, *arguments)


def hand_out(told: Sequence[Told]) -> None:
    for row, item in told:
        row.receive(row, item)


def warm_up(session: Session, slots: int) -> None:
    """Measure the device and trace the first passes, so that no client waits for that."""
    session.calibrate(slots)
    usual = session.options_with({})
    language = usual.tgt_lang or next(iter(session.tokenizer.languages), None)
    options = replace(usual, max_tokens=2, min_tokens=0, tgt_lang=language, decoder_prefix="")
    engine = session.engine(options, slots)
    engine.submit("a", options, session.planner.length(options, slots))
    while not engine.is_idle:
        engine.step()

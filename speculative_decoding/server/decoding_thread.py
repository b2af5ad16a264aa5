"""The decoding thread, the only thread that uses the model. The thread sleeps while there is nothing to decode.

After each round, the thread passes the updates of all requests to the event loop in one call, so the thread never waits
for a client. `Lane` decides what to decode next. This module is independent of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial

import mlx.core as mx

from ..draft_length.adaptive import LONGEST
from ..draft_length.base import FixedLength
from ..drafters.base import Drafter
from ..errors import InputError
from ..models.source import Source
from ..sampling import GenerationOptions
from ..session import Session
from ..subpackages import require_subpackage
from .client_request import Callback, ClientItem
from .errors import FAILED, ServerError
from .lane import Lane
from .limits import EXTRA_SLOTS, Limits
from .reading_threads import ReadingThreads
from .texts import text_scheduler

LOG = logging.getLogger("speculative_decoding.server")
MAX_FAILED_ROUNDS = 3  # in a row, with no request finished in between


class DecodingThread:
    """Decodes the items of all clients.

    If a round fails, for example because memory is full, all requests fail, and decoding continues with new engines.
    After `MAX_FAILED_ROUNDS` consecutive failures, the thread ends, because the process may need a restart. With a
    sharded model, the thread ends after the first failure, because other ranks may be waiting for a reduction.

    Args:
        open_session: Returns a context manager that loads the models. It is entered and exited in the decoding thread.
        limits: The limits of the server.

    Attributes:
        decoding: The number of items that have a slot.
        waiting: The number of items that are waiting for a slot.
        reading: The threads that read recordings and texts.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[Session]], limits: Limits) -> None:
        self.reading = ReadingThreads()
        self._open_session = open_session
        self._limits = limits
        self._wake = threading.Condition()
        self._to_submit: list[ClientItem] = []
        self._to_cancel: list[ClientItem] = []
        self._is_stopping = False
        self._failed_rounds = 0
        self.decoding = 0
        self.waiting = 0

    def start(self, on_ready: Callable[[Session], None], on_end: Callable[[Exception | None], None]) -> None:
        """Start the thread. Call this on the event loop, where both callbacks will run.

        Args:
            on_ready: Called when the models are loaded.
            on_end: Called when the thread ends, with the error that ended it, or with None after `stop`.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(on_ready, on_end), name="decoding")
        self._thread.start()
        self.reading.start()

    def submit(self, items: Sequence[ClientItem]) -> None:
        """Queue items. Each of them is accepted or refused before any is decoded."""
        with self._wake:
            self._to_submit += items
            self._wake.notify()

    def cancel(self, items: Sequence[ClientItem]) -> None:
        """Free the slots of items before the next round. Ignores finished items."""
        with self._wake:
            self._to_cancel += items
            self._wake.notify()

    def wake(self) -> None:
        """Wake the thread, because more speech or another part of a text has arrived."""
        with self._wake:
            self._wake.notify()

    def stop(self) -> None:
        """Make the thread stop after the current round, and wait until it has ended."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join()
        self.reading.stop()

    def _run(self, on_ready: Callable[[Session], None], on_end: Callable[[Exception | None], None]) -> None:
        error: Exception | None = None
        try:
            with self._open_session() as session:
                if session.model.audio is not None:
                    require_subpackage("speech", "model")
                slots = self._limits.slots + (0 if session.model.audio is None else EXTRA_SLOTS)
                warm_up(session, slots)
                note = session.planner.exactness_note(session.options_with({}), slots)
                if note:
                    LOG.warning(str(note))
                self._call_on_loop([partial(on_ready, session)])
                error = self._decode(session)
        except InputError as input_error:
            error = input_error
        except Exception as unexpected:
            LOG.exception("the decoding thread ended")
            error = unexpected
        self._call_on_loop([partial(on_end, error)])

    def _decode(self, session: Session) -> Exception | None:
        """Decode until `stop` is called. Returns the last error if too many rounds fail."""
        while not self._is_stopping:
            lane = new_lane(session, self._limits)
            try:
                while self._take(lane):
                    lane.step()
                    self._notify(lane)
                    self.decoding = lane.decoding
                    self.waiting = lane.waiting
            except Exception as error:
                LOG.exception("a round failed, and with it %d requests", len(lane.active))
                failure = ServerError(500, FAILED, code="round_failed")
                lane.calls += [partial(item.client.fail, failure) for item in lane.active]
                self._notify(lane)
                self.decoding = 0
                self.waiting = 0
                self._failed_rounds = 1 if lane.finished else self._failed_rounds + 1
                if session.model.ranks > 1 or self._failed_rounds == MAX_FAILED_ROUNDS:
                    return error
        return None

    def _take(self, lane: Lane) -> bool:
        """Submit and cancel the queued items, and sleep while there is nothing to do. Returns False after `stop`."""
        with self._wake:
            while lane.is_idle and not (self._to_submit or self._to_cancel or self._is_stopping):
                self._wake.wait()
            to_submit, self._to_submit = self._to_submit, []
            to_cancel, self._to_cancel = self._to_cancel, []
        dropped = {*to_cancel}  # an item can be cancelled before it is submitted
        for item in to_submit:
            if item not in dropped:
                lane.submit(item)
        self._notify(lane)  # now, because the next round may take a long time
        for item in to_cancel:
            lane.cancel(item)
        return not self._is_stopping

    def _notify(self, lane: Lane) -> None:
        calls, lane.calls = lane.calls, []
        self._call_on_loop(calls)

    def _call_on_loop(self, calls: Sequence[Callback]) -> None:
        """Schedule several calls on the event loop as a single callback."""
        if calls:
            with suppress(RuntimeError):  # raised if the loop is closed; there are no clients then
                self._loop.call_soon_threadsafe(run_all, calls)


def new_lane(session: Session, limits: Limits) -> Lane:
    """Return a lane with new engines, either for prompts and texts or for recordings and live speech."""
    if session.model.audio is None:
        texts = text_scheduler(session, limits)
        return Lane(texts, held_clients=texts.held_clients)
    from ..speech.api import new_scheduler
    from ..speech.options import TranscriptionOptions

    options = TranscriptionOptions(**session.model.audio.defaults)
    scheduler = new_scheduler(session, options, {}, limits.slots + EXTRA_SLOTS, live_slots=limits.slots)
    return Lane(scheduler, EXTRA_SLOTS)


def run_all(calls: Sequence[Callback]) -> None:
    for call in calls:
        call()


def warm_up(session: Session, slots: int) -> None:
    """Calibrate the device, and compile a row's passes for each draft length, before the first client arrives."""
    defaults = session.options_with({})
    session.planner.prepare(defaults, slots)
    audio = session.model.audio
    language = next(iter(session.tokenizer.languages), None)
    # The source below is too short for copies of each length, so draft with the draft model
    drafter = "model" if defaults.drafter == "auto" and session.draft_model is not None else defaults.drafter
    options = replace(defaults, drafter=drafter, min_tokens=0, src_lang=None, tgt_lang=language, decoder_prefix="")
    fixed = options.num_draft_tokens
    source: Source
    if audio is None:
        source = session.tokenizer.encode("a")  # token ids, because text would trigger the note about missing prefixes
    else:
        from ..models.whisper import NoiseFrames

        source = NoiseFrames(mx.zeros((audio.window_frames, audio.num_mel_bins)))
    lengths = (0, fixed) if isinstance(fixed, int) else range(LONGEST + 1)
    if session.drafts_text and options.runs_draft_model:
        decode_drafts(session, slots, source, options, [LONGEST])  # the draft model may write only a short text
        options = replace(options, drafter=LastToken())
    decode_drafts(session, slots, source, options, lengths)


def decode_drafts(
    session: Session, slots: int, source: Source, options: GenerationOptions, lengths: Iterable[int]
) -> None:
    """Decode a prompt once for each draft length."""
    engine = session.engine(options, slots)
    for length in lengths:
        engine.submit(source, replace(options, max_tokens=length + 1), FixedLength(length))
        while not engine.is_idle:
            engine.step()


class LastToken(Drafter):
    """Drafts any number of tokens by repeating the last token."""

    def begin(self, input_tokens: Sequence[int]) -> None:
        pass

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> list[int]:
        return [tokens[-1]] * num_draft_tokens

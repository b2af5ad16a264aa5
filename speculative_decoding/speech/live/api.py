"""Transcribes live speech with the speech model of a session. `Session.transcribe_live` is `transcribe_live`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Unpack

from ...errors import InputError
from ..api import mel_bins
from ..keywords import TranscriptionKeywords, shows_transcription_options, split_names, split_options
from ..scheduler import language_code
from .arriving import Arriving, Chunk, samples_of
from .scheduler import LiveScheduler, require_live
from .stream import LiveStream
from .update import LiveUpdate

if TYPE_CHECKING:
    from ...session import Session


@shows_transcription_options
def transcribe_live(
    session: Session,
    chunks: Iterable[Chunk],
    *,
    every: float = 1.0,
    reads_ahead: bool = True,
    **options: Unpack[TranscriptionKeywords],
) -> Iterator[LiveUpdate]:
    """Transcribe speech while it arrives, and yield the text after each hypothesis.

    Words that two hypotheses in a row begin with are final (LocalAgreement-2). Each hypothesis is decoded at
    temperature 0, with the last one as its draft text.

    Args:
        session: A session whose target is a speech model.
        chunks: Samples of one channel at 16 kHz as they arrive: NumPy arrays of floats from -1 to 1 or of integers, or
            bytes of signed 16-bit little-endian PCM. Or an `Arriving`, which reads them already.
        every: Decode after this many seconds of new audio, or later if the last hypothesis is not complete yet.
        reads_ahead: Read chunks in a thread, so that each hypothesis includes all audio so far. False reads the next
            chunk only after the hypothesis for the last one, which makes replays reproducible.
        options: Those of `scheduler.OPTIONS`, and `GenerationOptions` for drafts.

    Raises:
        InputError: A chunk or an option cannot be used.
    """
    scheduler = live_scheduler(session, options, 1)
    stream = scheduler.open(every=every)
    scheduler.start(stream)
    return updates(scheduler, stream, chunks, reads_ahead)


def updates(
    scheduler: LiveScheduler, stream: LiveStream, chunks: Iterable[Chunk] | Arriving, reads_ahead: bool
) -> Iterator[LiveUpdate]:
    """Yield the updates of a single stream. Nothing is read before the first one is wanted."""
    if reads_ahead and not isinstance(chunks, Arriving):
        chunks = Arriving(chunks)
    with closing(chunks if isinstance(chunks, Arriving) else samples_of(chunks)) as samples:
        for some in samples:
            stream.append(some)
            yield from decoded(scheduler)
    stream.finish()
    yield from decoded(scheduler)


def decoded(scheduler: LiveScheduler) -> Iterator[LiveUpdate]:
    """Decode all windows that are due. Raises `InputError` if decoding fails."""
    while not scheduler.is_idle:
        for _, update in scheduler.step():
            if update.error is not None:
                raise InputError(str(update.error))
            yield update


def live_scheduler(session: Session, options: Mapping[str, Any], slots: int) -> LiveScheduler:
    """Return a scheduler for live streams, which creates its own engine.

    Args:
        session: A session whose target is a speech model.
        options: Options for all streams; see `transcribe_live`.
        slots: The maximum number of streams.

    Raises:
        InputError: This model cannot transcribe with these options.
    """
    own, given = split_names(options)
    require_live(own)
    own_options, _ = split_options(own, session.model.audio)
    language_code(session.model.audio, own_options)
    decoding = session.options_with(given)
    if decoding.num_beams > 1:
        raise InputError("must be 1 for live speech", "num_beams", "set it to 1")
    assert session.model.audio is not None
    return LiveScheduler(
        session.model,
        session.tokenizer,
        own_options,
        decoding,
        slots=slots,
        engine=session.engine(decoding, slots),
        draft_length=session.planner.draft_length,
        num_mel_bins=mel_bins(session),
    )

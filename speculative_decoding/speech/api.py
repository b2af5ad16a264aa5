"""Transcribes recordings with the speech model of a session. The `transcribe*` functions are methods of `Session`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from ..errors import InputError
from ..models.base import EncoderDecoder
from ..rows.scheduling import drive
from ..rows.session_like import SessionLike
from ..sampling.options import validate
from ..sampling.values import Int
from .audio_file import Audio
from .chunks import chunk_events
from .keywords import TranscriptionKeywords, shows_transcription_options, split_options
from .live.arriving import Arriving, Chunk, samples_of
from .live.stream import LiveStream, require_live
from .live.update import LiveUpdate
from .options import TranscriptionOptions
from .recording import Recording, open_audio
from .scheduler import Scheduler, TranscriptionEvent
from .speech_text import SpeechText
from .transcription import ResumePoint, Transcription

if TYPE_CHECKING:
    from ..decoding.draft_writer import DraftEngine
    from ..drafters.writing import DraftWriter
    from ..loading.tokenizer import Tokenizer

AnyEvent = TypeVar("AnyEvent", TranscriptionEvent, LiveUpdate)


@shows_transcription_options
def transcribe(
    session: SessionLike, audio: Audio | Recording, **options: Unpack[TranscriptionKeywords]
) -> Transcription:
    """Transcribe a recording with a speech model, following openai-whisper's `transcribe`.

    Args:
        session: A session whose target is a speech model.
        audio: An audio file, given as a path, as bytes or as an open binary file; or mono samples at 16 kHz in a NumPy
            array, MLX array or PyTorch tensor. Samples are floats from -1 to 1, or integers.
        options: See `TranscriptionOptions`, and `GenerationOptions` for drafts, sampling and beams.

    Raises:
        InputError: The recording or an option cannot be used.
    """
    result = None
    for event in transcribe_stream(session, audio, **options):
        result = event.result
    assert result is not None
    return result


@shows_transcription_options
def transcribe_stream(
    session: SessionLike, audio: Audio | Recording, **options: Unpack[TranscriptionKeywords]
) -> Iterator[TranscriptionEvent]:
    """Like `transcribe`, but yield segments as soon as they are finished. Options are checked immediately."""
    return map(raise_error, transcribe_batch(session, [audio], slots=1, **options))


@shows_transcription_options
def transcribe_batch(
    session: SessionLike,
    recordings: Iterable[Audio | Recording | Mapping[str, Any]],
    *,
    slots: int | None = None,
    **options: Unpack[TranscriptionKeywords],
) -> Iterator[TranscriptionEvent]:
    """Transcribe several recordings together, and yield the segments of each as soon as they are finished.

    Each result equals the result of `transcribe` for the same recording.

    Args:
        session: See `transcribe`.
        recordings: Files or samples, as for `transcribe`, or mappings with "audio" and options for that recording. If
            "resume_from" is the `resume_point` of an earlier event and the options are equal, a transcription continues
            there.
        slots: How many recordings are transcribed together (default: the session's `slots`).
        options: See `transcribe`.

    Raises:
        InputError: An argument cannot be used. If a recording cannot be transcribed, its last event has an `error`.
    """
    scheduler = new_scheduler(session, *split_options(options, session.model.audio), slots)
    return scheduler.run(partial(scheduler.open, each) for each in recordings)


@shows_transcription_options
def transcribe_chunks(
    session: SessionLike,
    audio: Audio | Recording,
    *,
    slots: int | None = None,
    resume_from: ResumePoint | None = None,
    **options: Unpack[TranscriptionKeywords],
) -> Iterator[TranscriptionEvent]:
    """Transcribe fixed windows of one recording together. The text differs from that of `transcribe`.

    Args:
        session: See `transcribe`.
        audio: See `transcribe`.
        slots: How many windows are transcribed together (default: the session's `slots`).
        resume_from: The `resume_point` of an earlier event with equal options, from which to continue.
        options: See `transcribe`.

    Raises:
        InputError: The recording or an option cannot be used.
    """
    scheduler = new_scheduler(session, *split_options(options, session.model.audio), slots)
    own = scheduler.options
    recording = open_audio(audio, scheduler.num_mel_bins, voice=own.voice, track=own.audio_track)
    return map(raise_error, chunk_events(recording, scheduler, resume_from))


@shows_transcription_options
def transcribe_live(
    session: SessionLike,
    chunks: Iterable[Chunk],
    *,
    every: float = 1.0,
    reads_ahead: bool = True,
    **options: Unpack[TranscriptionKeywords],
) -> Iterator[LiveUpdate]:
    """Transcribe speech while it arrives, and yield the text after each hypothesis.

    Words become final when two consecutive hypotheses begin with them (LocalAgreement-2). Each hypothesis is decoded at
    temperature 0, with the previous one as its draft text.

    Args:
        session: See `transcribe`.
        chunks: Samples of one channel at 16 kHz as they arrive: NumPy arrays of floats from -1 to 1 or of integers, or
            bytes of signed 16-bit little-endian PCM. Or an `Arriving`, which already reads them in a thread.
        every: Decode after this many seconds of new audio, or later if the previous hypothesis is still being decoded.
        reads_ahead: Read chunks in a thread, so that each hypothesis covers all audio so far. If False, the next chunk
            is read only after the hypothesis for the previous one, which makes replays reproducible.
        options: Those of `live.stream.OPTIONS`, and `GenerationOptions` for drafts.

    Raises:
        InputError: A chunk or an option cannot be used.
    """
    require_live(options)
    own, decoding = split_options({**options, "temperature": 0}, session.model.audio)
    scheduler = new_scheduler(session, own, decoding, 1, live_slots=1)
    if scheduler.decoding.num_beams > 1:
        raise InputError("must be 1 for live speech", "num_beams", "set it to 1")
    return live_updates(scheduler, scheduler.open_stream(every=every), chunks, reads_ahead)


def live_updates(
    scheduler: Scheduler, stream: LiveStream, chunks: Iterable[Chunk] | Arriving, reads_ahead: bool
) -> Iterator[LiveUpdate]:
    """Yield the updates of a single stream. Nothing is read before the first `next`."""
    if reads_ahead and not isinstance(chunks, Arriving):
        chunks = Arriving(chunks)
    opened = iter([(0, lambda: stream)])  # the stream is submitted once

    def decoded() -> Iterator[LiveUpdate]:
        """Decode all due windows."""
        return map(raise_error, cast("Iterator[LiveUpdate]", drive(scheduler, opened)))

    with closing(chunks if isinstance(chunks, Arriving) else samples_of(chunks)) as samples:
        for some in samples:
            stream.append(some)
            yield from decoded()
    stream.finish()
    yield from decoded()


def new_scheduler(
    session: SessionLike,
    options: TranscriptionOptions,
    decoding: Mapping[str, Any],
    slots: int | None = None,
    live_slots: int = 0,
) -> Scheduler:
    """Return a scheduler for recordings and live streams, which creates its own engines.

    Args:
        session: A session whose target is a speech model.
        options: Transcription options.
        decoding: Decoding options that differ from the session's.
        slots: How many recordings are transcribed together (default: the session's `slots`).
        live_slots: The maximum number of live streams. Their windows are decoded without beams.

    Raises:
        InputError: This model cannot transcribe with these options.
    """
    if (hottest := max(options.temperatures)) and decoding.get("num_beams", session.options.num_beams) == 1:
        decoding = {**decoding, "temperature": hottest}  # so that sampling options take effect
    own = live = session.options_with(decoding)
    if live_slots and own.num_beams > 1:
        live = session.options_with({**decoding, "num_beams": 1})
    return Scheduler(
        session.model,
        session.tokenizer,
        options,
        own,
        validate("slots", Int(1), session.slots if slots is None else slots),
        new_engine=session.engine,
        draft_length=session.planner.draft_length,
        num_mel_bins=mel_bins(session),
        live_decoding=live,
        live_slots=live_slots,
    )


def draft_writer(
    model: EncoderDecoder, tokenizer: Tokenizer, draft: EncoderDecoder, draft_tokenizer: Tokenizer, engine: DraftEngine
) -> DraftWriter:
    """Return a writer for a draft model with a different vocabulary. engine: an engine for the draft model."""
    from .draft_writer import SpeechWriter

    assert model.audio is not None and draft.audio is not None
    return SpeechWriter(SpeechText(tokenizer, model.audio), draft, SpeechText(draft_tokenizer, draft.audio), engine)


def mel_bins(session: SessionLike) -> list[int]:
    """Return the target's number of mel bins, followed by the draft model's if it differs."""
    draft = session.draft_model
    models = [session.model, draft] if isinstance(draft, EncoderDecoder) else [session.model]
    return list(dict.fromkeys(model.audio.num_mel_bins for model in models if model.audio is not None))


def raise_error(event: AnyEvent) -> AnyEvent:
    """Raise `InputError` for a recording or stream that cannot be transcribed."""
    if event.error is not None:
        raise event.error if isinstance(event.error, InputError) else InputError(str(event.error))
    return event

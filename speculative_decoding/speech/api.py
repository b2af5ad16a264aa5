"""Transcribes recordings with the speech model of a session. `Session` has the `transcribe*` functions as methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from ..errors import InputError
from ..models.base import EncoderDecoder
from ..sampling.options import validate
from ..sampling.values import Int
from .audio_file import Audio
from .chunks import chunk_events
from .keywords import TranscriptionKeywords, shows_transcription_options, split_options
from .options import TranscriptionOptions
from .recording import Recording, open_audio
from .scheduler import Scheduler, TranscriptionEvent
from .speech_text import SpeechText
from .transcription import Transcription

if TYPE_CHECKING:
    from ..decoding.draft_writer import DraftEngine
    from ..drafters.writing import DraftWriter
    from ..loading.tokenizer import Tokenizer
    from ..session import Session


@shows_transcription_options
def transcribe(session: Session, audio: Audio | Recording, **options: Unpack[TranscriptionKeywords]) -> Transcription:
    """Transcribe a recording with a speech model, as openai-whisper's `transcribe` does.

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
    session: Session, audio: Audio | Recording, **options: Unpack[TranscriptionKeywords]
) -> Iterator[TranscriptionEvent]:
    """Like `transcribe`, but yield segments as soon as they are finished. Options are checked when this is called."""
    return map(raise_error, transcribe_batch(session, [audio], slots=1, **options))


@shows_transcription_options
def transcribe_batch(
    session: Session,
    recordings: Iterable[Audio | Recording | Mapping[str, Any]],
    *,
    slots: int | None = None,
    **options: Unpack[TranscriptionKeywords],
) -> Iterator[TranscriptionEvent]:
    """Transcribe several recordings together, and yield the segments of each as soon as they are finished.

    Each result equals the result of `transcribe` for the same recording.

    Args:
        session: See `transcribe`.
        recordings: Files or samples, as for `transcribe`, or mappings with "audio" and options for that recording.
        slots: How many recordings are transcribed together (default: the slots of the session).
        options: See `transcribe`.

    Raises:
        InputError: An argument cannot be used. If a recording cannot be transcribed, its last event has an `error`.
    """
    scheduler = new_scheduler(session, *split_options(options, session.model.audio), slots)
    return scheduler.run(partial(scheduler.open, each) for each in recordings)


@shows_transcription_options
def transcribe_chunks(
    session: Session, audio: Audio | Recording, *, slots: int | None = None, **options: Unpack[TranscriptionKeywords]
) -> Iterator[TranscriptionEvent]:
    """Transcribe fixed windows of one recording together. The text differs from the text of `transcribe`.

    Args:
        session: See `transcribe`.
        audio: See `transcribe`.
        slots: How many windows are transcribed together (default: the slots of the session).
        options: See `transcribe`.

    Raises:
        InputError: The recording or an option cannot be used.
    """
    own, decoding = split_options(options, session.model.audio)
    config = new_scheduler(session, own, decoding, slots).audio

    def scheduler(language: str | None) -> Scheduler:
        return new_scheduler(session, replace(own, language=language or own.language), decoding, slots)

    recording = open_audio(audio, mel_bins(session), voice=own.voice)
    return map(raise_error, chunk_events(recording, config.window_frames, scheduler))


def new_scheduler(
    session: Session, options: TranscriptionOptions, decoding: Mapping[str, Any], slots: int | None = None
) -> Scheduler:
    """Return a scheduler for recordings. It creates its own engines.

    Args:
        session: A session whose target is a speech model.
        options: How to transcribe.
        decoding: Decoding options that differ from the session's.
        slots: How many recordings are transcribed together (default: the slots of the session).

    Raises:
        InputError: This model cannot transcribe with these options.
    """
    if (hottest := max(options.temperatures)) and decoding.get("num_beams", session.options.num_beams) == 1:
        decoding = {**decoding, "temperature": hottest}  # so that sampling options have an effect
    return Scheduler(
        session.model,
        session.tokenizer,
        options,
        session.options_with(decoding),
        validate("slots", Int(1), session.slots if slots is None else slots),
        new_engine=session.engine,
        draft_length=session.planner.draft_length,
        num_mel_bins=mel_bins(session),
    )


def draft_writer(
    model: EncoderDecoder, tokenizer: Tokenizer, draft: EncoderDecoder, draft_tokenizer: Tokenizer, engine: DraftEngine
) -> DraftWriter:
    """Return a writer for a draft model of another vocabulary. engine: of the draft model."""
    from .draft_writer import SpeechWriter

    assert model.audio is not None and draft.audio is not None
    return SpeechWriter(SpeechText(tokenizer, model.audio), draft, SpeechText(draft_tokenizer, draft.audio), engine)


def mel_bins(session: Session) -> list[int]:
    """Return the number of mel bins of the target, and of the draft model if it differs."""
    draft = session.draft_model
    models = [session.model, draft] if isinstance(draft, EncoderDecoder) else [session.model]
    return list(dict.fromkeys(model.audio.num_mel_bins for model in models if model.audio is not None))


def raise_error(event: TranscriptionEvent) -> TranscriptionEvent:
    """Raise `InputError` for a recording that cannot be transcribed."""
    if event.error is not None:
        raise event.error if isinstance(event.error, InputError) else InputError(str(event.error))
    return event

"""Transcribes fixed windows of one recording together, each as if it were a separate recording.

This is faster on devices where a batch takes little longer than a single row. The text differs from that of
`transcribe`: words are cut at the borders of windows, and no window continues the text of the previous one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter

from ..decoding.results import GenerationStats
from ..models.source import AudioFrames
from ..rows.scheduling import in_order
from .recording import Recording
from .scheduler import Scheduler, Task, TranscriptionEvent
from .segments import FRAMES_PER_SECOND, Segment
from .transcription import ResumePoint, Transcription


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a recording."""

    recording: Recording
    start: int
    num_frames: int

    def window(self, start: int, count: int, length: int) -> AudioFrames:
        return self.recording.window(self.start + start, count, length)


def chunk_events(
    recording: Recording, scheduler: Scheduler, resume_from: ResumePoint | None = None
) -> Iterator[TranscriptionEvent]:
    """Yield the progress of one recording. The scheduler must be idle. resume_from: the point to continue from."""
    total, length = recording.num_frames, scheduler.audio.window_frames
    starts = range(0, max(total, 1), length)  # at least one window, even if voice detection has removed everything
    last = starts[-1]
    options = scheduler.options
    segments: list[Segment] = []
    text = ""
    stats = GenerationStats()
    if resume_from is not None:
        segments += resume_from.segments
        for _, own in groupby(segments, key=lambda segment: segment.seek // length):
            text += scheduler.decode(token for segment in own for token in segment.tokens)
        options = replace(options, language=resume_from.language)
        starts = starts[resume_from.seek // length :]
        yield TranscriptionEvent(
            0, segments[:], resume_from.seek / FRAMES_PER_SECOND, recording.seconds, resume_from.language
        )

    def read(start: int) -> Task:
        part = Part(recording, start, min(length, total - start))
        return Task(part, options, scheduler.decoding, start, recording.speech)

    def decoded(some: Sequence[int]) -> Iterator[TranscriptionEvent]:
        nonlocal text
        events = scheduler.run(partial(read, start) for start in some)
        for event in in_order(events, attrgetter("number"), attrgetter("is_last")):
            start = some[event.number]
            new = [moved(segment, start, len(segments) + i) for i, segment in enumerate(event.segments)]
            segments.extend(new)
            result = point = None
            if event.result is not None:
                text += event.result.text
                stats.add(event.result.stats)
                point = ResumePoint(event.result.language, 0, start + length, 0, 0.0, tuple(segments))
                if start == last:
                    result = Transcription(text, segments, event.result.language, recording.seconds, stats)
            position = start / FRAMES_PER_SECOND + event.position
            event = event._replace(number=0, segments=new, position=position, seconds=recording.seconds)
            yield event._replace(result=result, resume_point=point)

    if resume_from is None:
        for event in decoded(starts[:1]):  # transcribed by itself, to detect the language
            yield event
            options = replace(options, language=event.language)
        starts = starts[1:]
    yield from decoded(starts)


def moved(segment: Segment, frames: int, id: int) -> Segment:
    """Convert a segment's times, relative to a window that starts at frame `frames`, to times in the recording."""
    seconds = frames / FRAMES_PER_SECOND
    words = segment.words
    if words is not None:
        words = [replace(word, start=word.start + seconds, end=word.end + seconds) for word in words]
    return replace(
        segment,
        id=id,
        seek=segment.seek + frames,
        start=segment.start + seconds,
        end=segment.end + seconds,
        words=words,
    )

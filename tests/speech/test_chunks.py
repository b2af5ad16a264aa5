"""Texts and times of chunks are merged into those of the recording."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.speech.chunks import chunk_events
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.recording import open_audio
from speculative_decoding.speech.scheduler import TranscriptionEvent
from speculative_decoding.speech.segments import Segment, Word
from speculative_decoding.speech.transcription import Transcription

STATS = GenerationStats(generated_tokens=30, target_calls=10, drafted_tokens=40, accepted_tokens=20)


def segment(text: str, start: float, words: list[Word] | None = None) -> Segment:
    return Segment(0, 0, start, start + 1, text, [1], 0.0, -0.5, 1.0, 0.1, words)


def test_chunks_are_merged_with_their_times_in_the_recording() -> None:
    """Three chunks of a recording; the first one determines the language of the others."""
    recording = open_audio(np.zeros(65 * 160, np.float32), [80])
    used: list[tuple[int, str | None]] = []

    def run_chunks(chunks: Iterator[Any]) -> Iterator[TranscriptionEvent]:
        tasks = [each() for each in chunks]
        sizes = [task.recording.num_frames for task in tasks]
        used.extend((task.first_frame, task.options.language) for task in tasks)
        for index in reversed(range(len(sizes))):
            words = [Word(" a", 0.1, 0.2, 0.5)]
            result = Transcription(f" {sizes[index]}", [], "de", 1.0, STATS)
            yield TranscriptionEvent(index, [segment(" a", 0.1, words)], sizes[index] / 100, 0.3, "de", result)

    audio, options, decoding = SimpleNamespace(window_frames=30), TranscriptionOptions(), GenerationOptions()
    scheduler: Any = SimpleNamespace(run=run_chunks, audio=audio, options=options, decoding=decoding)
    events = [*chunk_events(recording, scheduler)]
    assert used == [(0, None), (30, "de"), (60, "de")]
    result = events[-1].result
    assert result is not None and (result.text, result.seconds, result.language) == (" 30 30 5", 0.65, "de")
    assert [(each.id, each.seek, round(each.start, 6)) for each in result.segments] == [
        (0, 0, 0.1),
        (1, 30, 0.4),
        (2, 60, 0.7),
    ]
    assert [round(each.words[0].end, 6) for each in result.segments if each.words] == [0.2, 0.5, 0.8]
    assert result.stats.target_calls == 30
    assert [event.position for event in events] == [0.3, 0.6, 0.65] and not any(event.result for event in events[:-1])

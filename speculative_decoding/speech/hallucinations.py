"""Detects text that was probably not spoken and is surrounded by silence (openai-whisper 20250625, transcribe.py)."""

from __future__ import annotations

from collections.abc import Sequence

from .segments import FRAMES_PER_SECOND, Segment, Window, Word

PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
BORDER = 2.0  # time in seconds at the start and end of a window that counts as silence


def anomaly(word: Word) -> float:
    """Return a score of 0 for an ordinary word, and more for a word that is improbable, very short or very long."""
    duration = word.end - word.start
    score = 1.0 if word.probability < 0.15 else 0.0
    if duration < 0.133:
        score += (0.133 - duration) * 15
    if duration > 2.0:
        score += duration - 2.0
    return score


def is_suspicious(segment: Segment | None) -> bool:
    """Whether the first words of a segment have a high anomaly score."""
    if segment is None or not segment.words:
        return False
    words = [word for word in segment.words if word.word not in PUNCTUATION][:8]
    score = sum(anomaly(word) for word in words)
    return score >= 3 or score + 0.01 >= len(words)


def with_words(segments: Sequence[Segment]) -> Segment | None:
    """Return the first segment that has words."""
    return next((segment for segment in segments if segment.words), None)


def leading_silence(segments: Sequence[Segment], window: Window, threshold: float) -> float | None:
    """Return the silence in seconds before a suspicious first segment, or None if it does not exceed the threshold."""
    first = with_words(segments)
    if first is not None and is_suspicious(first) and (gap := first.start - window.start) > threshold:
        return gap
    return None


def cut_hallucinations(
    segments: list[Segment], window: Window, threshold: float, last_speech: float, num_frames: int
) -> int | None:
    """Remove the first suspicious segment that is surrounded by silence, and all later segments.

    Args:
        segments: The segments of one window, with words.
        window: The window.
        threshold: The shortest silence that counts, in seconds.
        last_speech: The time in seconds at which the speech before this window ended.
        num_frames: The number of frames of the recording.

    Returns:
        The first frame of the next window, or None if nothing was removed.
    """
    previous_end = last_speech
    for i, segment in enumerate(segments):
        if not segment.words:
            continue
        if is_suspicious(segment):
            following = with_words(segments[i + 1 :])
            if following is not None and following.words:
                next_start = following.words[0].start
            else:
                next_start = window.start + window.seconds
            silence_before = (
                segment.start - previous_end > threshold
                or segment.start < threshold
                or segment.start - window.start < BORDER
            )
            silence_after = (
                next_start - segment.end > threshold or is_suspicious(following) or window.end - segment.end < BORDER
            )
            if silence_before and silence_after:
                del segments[i:]
                if num_frames / FRAMES_PER_SECOND - segment.end < threshold:
                    return num_frames
                return round(max(window.start + 1, segment.start) * FRAMES_PER_SECOND)
        previous_end = segment.end
    return None

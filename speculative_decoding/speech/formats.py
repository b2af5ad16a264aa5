"""Formats transcripts as text and subtitles, exactly as openai-whisper does (utils.py, with its default options).

Each function yields text segment by segment, so that it can be printed before the recording ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

from .segments import Segment

LINE_CHARACTERS = 1000  # maximum length of a line in a cue with words


def text(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield a line for each segment."""
    for segment in segments:
        yield f"{segment.text.strip()}\n"


def srt(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield numbered cues: SubRip subtitles."""
    numbers = count(1)
    for segment in segments:
        if segment.words != []:
            start, end, content = cue(segment)
            yield f"{next(numbers)}\n{timestamp(start, ',')} --> {timestamp(end, ',')}\n{content}\n\n"


def vtt(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield a header and cues: WebVTT subtitles."""
    yield "WEBVTT\n\n"
    for segment in segments:
        if segment.words != []:
            start, end, content = cue(segment)
            yield f"{timestamp(start).removeprefix('00:')} --> {timestamp(end).removeprefix('00:')}\n{content}\n\n"


STREAMED: dict[str, Callable[[Iterable[Segment]], Iterator[str]]] = {"text": text, "srt": srt, "vtt": vtt}
MEDIA_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}  # of the server's responses
SUBTITLES = tuple(name for name in STREAMED if name != "text")
FORMATS = (*STREAMED, "json")


def cue(segment: Segment) -> tuple[float, float, str]:
    """Return start, end and text of a segment, taken from its words if it has any."""
    if not segment.words:
        return segment.start, segment.end, segment.text.strip().replace("-->", "->")
    content = ""
    line_length = 0
    for word in segment.words:
        if line_length > 0 and line_length + len(word.word) <= LINE_CHARACTERS:
            content += word.word
            line_length += len(word.word)
        else:
            content += ("\n" if line_length else "") + word.word.strip()
            line_length = len(word.word.strip())
    return segment.words[0].start, segment.words[-1].end, content


def timestamp(seconds: float, decimal_mark: str = ".") -> str:
    """Format seconds as hours, minutes, seconds and milliseconds, such as 01:02:03.456."""
    total, milliseconds = divmod(round(seconds * 1000.0), 1000)
    minutes, seconds = divmod(total, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}{decimal_mark}{milliseconds:03d}"

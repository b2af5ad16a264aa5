"""Formats transcripts like openai-whisper's output files (utils.py): text, subtitles, tab-separated values and JSON.

`SubtitleOptions` determines how subtitles are divided into cues and lines. Its fields are also flags of the command.
`STREAMED` yields text segment by segment, or cue by cue, so that it can be printed before the recording ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, dropwhile
from typing import Annotated as A

from ..errors import InputError, Message
from ..sampling.options import documented, validate_fields
from ..sampling.values import Bool, Int, specs_of
from .segments import Segment, Word

MAX_WIDTH = 1000  # default maximum number of characters in a line
MAX_WORDS = 1000  # default maximum number of words in a cue
LONG_PAUSE = 3.0  # seconds between the starts of two words; a longer pause ends a cue that may span segments
ROW_END = re.compile(r"\s*[\r\n]\s*")
BLANK_LINE = re.compile(r"[\r\n]\s*[\r\n]|\r")
SUBTITLES = ("srt", "vtt")
WIDTH = "start a new line of a subtitle before it has more than N characters"
COUNT = Message("start a new subtitle after N lines or a pause, but not with each segment (requires {max_line_width})")
WORDS = "start a new subtitle after N words of a segment"
HIGHLIGHT = "write a subtitle for each word, which is underlined in it"

Cue = tuple[float, float, str]  # start and end in seconds, and the text


@documented
@dataclass(frozen=True, kw_only=True)
class SubtitleOptions:
    """How to divide subtitles. All options require word times. Raises `InputError` for options without effect."""

    max_line_width: A[int | None, Int(1), WIDTH] = None
    max_line_count: A[int | None, Int(1), COUNT] = None
    max_words_per_line: A[int | None, Int(1), WORDS] = None
    highlight_words: A[bool, Bool(), HIGHLIGHT] = False

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.max_line_count and not self.max_line_width:
            raise InputError(Message("has no effect without {max_line_width}"), "max_line_count", "give both")
        if self.max_words_per_line and self.max_line_width:
            problem = Message("cannot be combined with {max_line_width}")
            raise InputError(problem, "max_words_per_line", "leave one of them out")

    @property
    def first_given(self) -> str | None:
        """The first option that differs from its default, if any. Such an option requires word times."""
        return next((name for name in specs_of(SubtitleOptions) if getattr(self, name)), None)

    def require_effect(self, formats: Collection[str]) -> None:
        """Raise `InputError` if an option is given but none of the formats is a subtitle format."""
        if self.first_given is not None and not set(SUBTITLES) & set(formats):
            problem = f"has no effect on {', '.join(formats)}"
            raise InputError(problem, self.first_given, f"choose {' or '.join(SUBTITLES)}, or leave it out")


NO_OPTIONS = SubtitleOptions()


def txt(segments: Iterable[Segment], options: SubtitleOptions = NO_OPTIONS) -> Iterator[str]:
    """Yield a line for each segment."""
    for segment in segments:
        yield f"{ROW_END.sub(' ', segment.text.strip())}\n"


def srt(segments: Iterable[Segment], options: SubtitleOptions = NO_OPTIONS) -> Iterator[str]:
    """Yield numbered cues, for SubRip subtitles."""
    for number, (start, end, text) in zip(count(1), cues(segments, options), strict=False):
        yield f"{number}\n{timestamp(start, ',')} --> {timestamp(end, ',')}\n{text}\n\n"


def vtt(segments: Iterable[Segment], options: SubtitleOptions = NO_OPTIONS) -> Iterator[str]:
    """Yield a header and cues, for WebVTT subtitles."""
    yield "WEBVTT\n\n"
    for start, end, text in cues(segments, options):
        yield f"{timestamp(start).removeprefix('00:')} --> {timestamp(end).removeprefix('00:')}\n{text}\n\n"


def tsv(segments: Iterable[Segment], options: SubtitleOptions = NO_OPTIONS) -> Iterator[str]:
    """Yield a header, then a line for each segment with its start and end in milliseconds and its text."""
    yield "start\tend\ttext\n"
    for segment in segments:
        text = ROW_END.sub(" ", segment.text.strip()).replace("\t", " ")
        yield f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n"


STREAMED: dict[str, Callable[[Iterable[Segment], SubtitleOptions], Iterator[str]]] = {
    "txt": txt,
    "srt": srt,
    "vtt": vtt,
    "tsv": tsv,
}
FORMATS = (*STREAMED, "json")


def cues(segments: Iterable[Segment], options: SubtitleOptions) -> Iterator[Cue]:
    """Yield the cues of subtitles, based on words if word times were requested, or else one for each segment.

    Segments without text have an empty list of words in both cases, so the first segment with text shows which applies.
    openai-whisper fails if the first segment has no text and word times were not requested.
    """
    waiting: Iterator[Segment] = dropwhile(lambda segment: segment.words == [], segments)
    first = next(waiting, None)
    if first is None:
        return
    waiting = chain([first], waiting)
    if first.words is None:
        if options.first_given is not None:
            raise InputError("needs word times", options.first_given, Message("turn {word_timestamps} on"))
        for segment in waiting:
            yield segment.start, segment.end, cue_text(segment.text.strip())
        return
    for words in cues_of_words(waiting, options):
        if options.highlight_words:
            yield from ((start, end, cue_text(text)) for start, end, text in highlighted(words))
        else:
            yield words[0].start, words[-1].end, cue_text("".join(word.word for word in words))


def cue_text(text: str) -> str:
    """Replace text that would end or begin a cue. openai-whisper replaces `-->` only if word timestamps are off."""
    return BLANK_LINE.sub("\n", text.replace("-->", "->"))


def cues_of_words(segments: Iterable[Segment], options: SubtitleOptions) -> Iterator[list[Word]]:
    """Yield the words of each cue, with line breaks. A cue may span segments only if `max_line_count` is set."""
    width = options.max_line_width or MAX_WIDTH
    if options.max_line_count is not None:
        yield from lines_of(chain.from_iterable(each.words or () for each in segments), width, options.max_line_count)
        return
    size = options.max_words_per_line or MAX_WORDS
    for segment in segments:
        words = segment.words or []
        for start in range(0, len(words), size):
            yield from lines_of(words[start : start + size], width)


def lines_of(words: Iterable[Word], width: int, max_lines: int | None = None) -> Iterator[list[Word]]:
    """Divide words into lines, and into cues if the number of lines is limited. A long word may exceed the width."""
    cue: list[Word] = []
    length, lines = 0, 1
    for word in words:
        pauses = max_lines is not None and bool(cue) and word.start - cue[-1].start > LONG_PAUSE
        if length and length + len(word.word) <= width and not pauses:
            cue.append(word)
            length += len(word.word)
            continue
        text = word.word.strip()
        line_break = ""
        if cue and max_lines is not None and (pauses or lines >= max_lines):
            yield cue
            cue, lines = [], 1
        elif length:
            line_break = "\n"
            lines += 1
        cue.append(replace(word, word=line_break + text))
        length = len(text)
    if cue:
        yield cue


def highlighted(words: Sequence[Word]) -> Iterator[Cue]:
    """Yield a cue for each word, in which that word is underlined, and a plain cue for each gap between words.

    Times are compared in milliseconds, the unit in which they are written.
    """
    texts = [word.word for word in words]
    end = words[0].start
    for i, word in enumerate(words):
        if timestamp(word.start) != timestamp(end):
            yield end, word.start, "".join(texts)
        underlined = re.sub(r"^(\s*)(.*)$", r"\1<u>\2</u>", word.word)
        yield word.start, word.end, "".join([*texts[:i], underlined, *texts[i + 1 :]])
        end = word.end


def timestamp(seconds: float, decimal_mark: str = ".") -> str:
    """Format seconds as hours, minutes, seconds and milliseconds, such as 01:02:03.456."""
    total, milliseconds = divmod(round(seconds * 1000.0), 1000)
    minutes, seconds = divmod(total, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}{decimal_mark}{milliseconds:03d}"

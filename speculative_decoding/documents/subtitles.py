"""Parses SRT and WebVTT subtitles. A sentence that spans several cues is decoded as one, with breaks between the cues.

Numbers, times, settings, comments and style sheets are copied. A block consists of one speaker's consecutive cues, up
to the end of a sentence or a pause. Lines that two consecutive cues share, as in rolling captions, are separate blocks.
Speech dashes, speaker names, musical notes and brackets around sounds are copied.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, pairwise
from math import nan
from typing import TYPE_CHECKING, NamedTuple

from .findings import COPIED, Finding
from .layout import UNSPACED, line_break_text
from .tokens import Block, Break, Close, Literal, Open, Part, Point, Text, Token, line_ends

if TYPE_CHECKING:
    from .options import DocumentOptions

MAX_PAUSE = 2.0  # maximum seconds between two cues of one sentence
MAX_OVERLAP = 0.5  # maximum seconds by which two cues of one sentence may overlap
MAX_CUES = 12  # maximum number of cues in a block, for text without punctuation
MAX_LINES = 8  # number of lines compared to find lines that two cues share
MAX_WORDS = 64  # number of words compared to find text that two cues share
MIN_WORDS = 3  # a shorter overlap of two cues may be a coincidence
SHOWN = 80  # number of characters of a line shown in a finding

# Times in every form accepted by FFmpeg (spaces, negative fields), the libraries srt and pysubs2 (separators, arrows)
# or WebVTT. Tools that shift times write negative times as -00:00:01,500 or 0-1:59:58,500.
FIELD = r"[ \t]*+(?:0{1,2}-\d{1,28}|[+-]?\d{1,30})"
SEPARATOR = r"[:.,;\u3002\uff0c\uff0e\uff1a\uff1b]"
CLOCK = rf"({FIELD}(?:{SEPARATOR}{FIELD}){{1,3}}+){SEPARATOR}?"
ARROW = r"(?:[-=\u2010-\u2015\u2212][ \t]*){1,3}(?:[>\uff1e]|&gt;)|[\u2192\u27f6]"
TIMES = re.compile(rf"{CLOCK}[ \t]*(?:{ARROW})[ \t]*{CLOCK}(?!\S)")
# A timing line, which is never text. It contains an arrow, or begins with a complete time even if the rest is damaged
TIMING = re.compile(rf".*?-->|{TIMES.pattern}|{FIELD}:{FIELD}:{FIELD}[.,]\d", re.DOTALL)
SETTINGS = re.compile(r"(?:\s+[\w-]+[:=]\S*)*\s*")  # after the times: "line:0 align:start", or "X1:100 X2:200"
NUMBER = re.compile(r"\s*-?\d+(?:\.\d*)?\s*")
LINE_END = re.compile(r"\r\n?|\n")
# "\N" ends a line in ASS, and is left in converted files
BREAK = re.compile(rf"({LINE_END.pattern}|(?<!\b[A-Za-z]:)\\[Nn])")
SENTENCE_END = frozenset(".!?…‼⁇⁈⁉‽؟।॥။።፧។៕。｡\u0589\u06d4\u1803\u1809\uff0e\uff01\uff1f")
QUOTES = "\"'”»」』)]}\u2019\u203a\uff09"

DASH = re.compile(r"(?:[-\u2010\u2013—]+(?!\d)|(?:>|&gt;){2,3})[ \t]*")
LABEL = re.compile(r"([^\W\d_][^:<>{}\[\]]{0,31}):[ \t]+(?=(.{1,80}))")  # "MAN 1: ", and the text after it
SOUND = re.compile(r"(\[)([^\[\]]{1,200})(\][ \t]*)|([(\uff08])([^()\uff08\uff09]{1,200})([)\uff09]$)")
NOTES = r"[♪♫♬\U0001f3b5\U0001f3b6][♪♫♬\U0001f3b5\U0001f3b6 \t]*"
OVERRIDE = r"\{\\[^{}]*\}"  # such as {\an8}
HARD_SPACES = r"(?:\\h[ \t]*)+"  # of ASS
RUBY = r"<rt>[^<]*</rt>"
ENTITY = re.compile(r"&#?\w{1,32};")
SRT = re.compile(
    rf"{NOTES}|{OVERRIDE}|{HARD_SPACES}|{RUBY}|</?(?:i|b|u|s|em|strong|font|span|c|v|ruby|rt)\b[^<>]*>", re.IGNORECASE
)
VTT = re.compile(rf"{NOTES}|{OVERRIDE}|{HARD_SPACES}|{RUBY}|<[^>]*>?|{ENTITY.pattern}")
TAG = re.compile(r"<(/?)([a-z]+)", re.IGNORECASE)
KARAOKE = re.compile(r"<\d+:")  # a time within the text; such text must stay in its cue
WORD = re.compile(rf"[^\W{UNSPACED[1:-1]}]+|{UNSPACED}")


class Cue(NamedTuple):
    """A continuous part of a cue's text.

    Args:
        before: Everything between the previous `Cue`'s text and this one.
        text: The text; empty at the end of a document and for a malformed timing line.
        line: The number of the line on which the text begins, from 1.
        number: The number of the cue, from 1.
        start, end: The times in seconds, or NaN if unknown.
        finding: A finding about a malformed timing line.
    """

    before: str
    text: str = ""
    line: int = 0
    number: int = 0
    start: float = 0.0
    end: float = 0.0
    finding: Finding | None = None


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of a document. If the options name no format, a document that begins with "WEBVTT" is VTT."""
    lines = iter(lines)
    first = next(lines, "")
    is_vtt = options.format == "vtt" or (options.format is None and first.startswith("WEBVTT"))
    builder = BlockBuilder(is_vtt)
    for cue, following in pairwise(chain(cues_of(chain([first], lines), is_vtt), [Cue("")])):
        yield from (part for part in builder.add(cue, following) if part.raw)


def cues_of(lines: Iterable[str], is_vtt: bool) -> Iterator[Cue]:
    """Yield a `Cue` for each text of each cue, and finally one without text.

    In SRT, what follows a blank line, up to the next timing line, is another text of the same cue. In VTT, it is not
    displayed. A timing line is never text. If malformed, it becomes a cue without text, with a finding.
    """
    before: list[str] = []
    text: list[str] = []
    cue, is_open = Cue(""), False
    for line_number, (line, following) in enumerate(with_next(lines), 1):
        if is_open and is_text(line, following, is_vtt):
            cue = cue if text else cue._replace(line=line_number)
            text.append(line)
            continue
        if text:
            found, rest = with_text(cue, "".join(before), "".join(text))
            yield found
            before, text = [rest], []
        before.append(line)
        if TIMING.match(line):
            times = TIMES.match(line)
            start, end = map(seconds, times.groups()) if times else (nan, nan)
            cue = Cue("", number=cue.number + 1, start=start, end=end)
            is_open = is_open or not is_vtt or times is not None or "-->" in line  # a comment may begin with a time
            if not (times and SETTINGS.fullmatch(line, times.end())) and WORD.search(line):
                yield cue._replace(before="".join(before), finding=Finding(line_number, COPIED, line.strip()[:SHOWN]))
                before = []
        elif is_vtt:
            is_open = False
    found, rest = with_text(cue, "".join(before), "".join(text))
    if cue.number == 0 and WORD.search(found.before):
        found = found._replace(finding=Finding(1, COPIED, "no timing line, so nothing was decoded"))
    yield found
    yield Cue(rest)


def with_next(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each line together with the next line that is not blank."""
    waiting: list[str] = []
    for line in lines:
        if line.strip():
            yield from ((each, line) for each in waiting)
            waiting = []
        waiting.append(line)
    yield from ((each, "") for each in waiting)


def is_text(line: str, following: str, is_vtt: bool) -> bool:
    """Return whether a line is text of the open cue rather than part of the next cue or of the space between them.

    following: the next line that is not blank.
    """
    if is_vtt:
        return bool(line.strip("\r\n")) and not TIMING.match(line)
    is_number = NUMBER.fullmatch(line) and TIMING.match(following)  # a blank line may separate the two
    return bool(line.strip()) and not is_number and not TIMING.match(line)


def with_text(cue: Cue, before: str, text: str) -> tuple[Cue, str]:
    """Return the cue with its text added, and the white space after the text."""
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip()) if start < len(text) else start
    return cue._replace(before=before + text[:start], text=text[start:end]), text[end:]


def seconds(clock: str) -> float:
    """Convert a time to seconds. A sign before the first field applies to all fields, others to their own field."""
    sign = -1 if clock.lstrip().startswith("-") else 1
    fields = re.split(SEPARATOR, clock.replace("-", "") if sign < 0 else re.sub("0+-", "-", clock))
    has_fraction = len(fields) == 4 or re.findall(SEPARATOR, clock)[-1] not in ":\uff1a"
    fraction = float(f"0.{fields.pop().strip().lstrip('+-')}") if has_fraction else 0.0
    whole = 0
    for field in fields:
        whole = 60 * whole + int(field)
    return sign * (whole + fraction)


def lines_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text between each line and the line before, and the line itself without surrounding white space."""
    before = ""
    parts = BREAK.split(text)
    for line, end in zip(parts[::2], [*parts[1::2], ""], strict=True):
        content = line.strip()
        if content:
            start = line.index(content)
            yield before + line[:start], content
            before, line = "", line[start + len(content) :]
        before += line + end


def shared_lines(before: Sequence[str], after: Sequence[str]) -> int:
    """Return the number of lines at the end of a cue that the next cue repeats at its start, as in rolling captions."""
    sizes = range(min(len(before), len(after), MAX_LINES), 0, -1)
    return next((size for size in sizes if before[-size:] == after[:size] and any(after[:size])), 0)


def is_repeated(before: str, after: str) -> bool:
    """Return whether a text begins with the last words of the previous text, as in captions that grow word by word."""
    old, new = ([*map(str.casefold, WORD.findall(each))] for each in (before, after))
    sizes = range(min(len(old), len(new), MAX_WORDS), 0, -1)
    size = next((size for size in sizes if old[-size:] == new[:size]), 0)
    return size >= MIN_WORDS or 0 < size in (len(old), len(new))


class Segment(NamedTuple):
    """A part of a cue's text with one speaker.

    before: The text between the previous segment and this one.
    is_first, is_last: Whether the segment begins or ends its cue: no speaker mark, sound or musical note comes before
        or after it, and the adjacent cue does not show the same line.
    """

    before: str
    tokens: list[Token]
    line: int
    is_first: bool
    is_last: bool

    @property
    def text(self) -> str:
        return text_of(self.tokens)


class Reader:
    """Divides cues into segments."""

    def __init__(self, is_vtt: bool) -> None:
        self._pattern = VTT if is_vtt else SRT
        self._voice = ""  # the last VTT voice, such as "<v Mary>"
        self._numbers = count()
        self._opened: dict[int, str] = {}  # number of an opening token in this cue -> its raw text
        self._open: defaultdict[str, list[int]] = defaultdict(list)  # tag name -> numbers of unclosed markup

    def plain(self, text: str) -> str:
        """Return the text without markup."""
        return self._pattern.sub("", text).strip()

    def segments(self, cue: Cue, alone: Sequence[bool]) -> tuple[list[Segment], str]:
        """Return a cue's segments, and the raw text after the last one. Markup around a segment is not part of it.

        alone: for each line, whether it is a separate segment.
        """
        self._opened.clear()
        self._open.clear()
        found: list[Segment] = []
        outside, line, is_first = [cue.before], cue.line, not any(alone[:1])
        for tokens, mark in split(self._joined_lines(cue.text, alone)):
            before, inner, after = inner_tokens(tokens)
            outside.append(before)
            if inner:
                found.append(Segment("".join(outside), inner, line, is_first, is_last=not mark and not alone[-1]))
                outside = [after]
            outside.append(mark)
            line += sum(line_ends(raw) for raw in (*(token.raw for token in tokens), mark))
            is_first = False
        return found, "".join(outside)

    def _joined_lines(self, text: str, alone: Sequence[bool]) -> list[Token | Literal]:
        """Return the tokens of a cue's lines, with breaks between the lines, and literals where a segment ends."""
        found: list[Token | Literal] = []
        last = ""  # the text since the last literal
        same: dict[int, int] = {}  # markup that resumes after a break: its new number -> its number before the break
        for number, (before, content) in enumerate(lines_of(text)):
            line = [*self._tokens(content)]
            if line and isinstance(line[0], Break):
                before += line.pop(0).raw
            first = text_of(until_literal(line))
            if last and first and not any(alone[number - 1 : number + 1]):
                raw, line = self._fold(found, before, line, same)
                found.append(Break(raw, line_break_text(last, first), is_required=False))
            elif before:
                found.append(Literal(before))
            found += (
                replace(token, number=same.get(token.number, token.number)) if isinstance(token, Close) else token
                for token in line
            )
            ending = [*until_literal(reversed(line))]
            last = text_of(reversed(ending)) or (last if len(ending) == len(line) else "")
        return found

    def _fold(
        self, found: list[Token | Literal], raw: str, line: list[Token | Literal], same: dict[int, int]
    ) -> tuple[str, list[Token | Literal]]:
        """Extend a break over markup that is closed before and resumed after it. Returns its raw text and the rest."""
        for taken, token in enumerate(line):
            last = found[-1]
            if not (isinstance(last, Close) and isinstance(token, Open) and self._opened.get(last.number) == token.raw):
                return raw, line[taken:]
            raw = last.raw + raw + token.raw
            same[token.number] = last.number
            found.pop()
        return raw, []

    def _tokens(self, line: str, is_start: bool = True) -> Iterator[Token | Literal]:
        """Yield the tokens of a line. is_start: whether the line may begin with a speaker mark or a sound."""
        position = 0
        while position < len(line):
            mark = speaker(line, position) if is_start else None
            sound = SOUND.match(line, position) if is_start and not mark else None
            if mark:
                yield Literal(mark.group())
            elif sound:
                opening, inside, closing = filter(None, sound.groups())
                yield from (Literal(opening), *self._tokens(inside, is_start=False), Literal(closing))
            if found := mark or sound:
                position = found.end()
                continue
            markup = self._pattern.search(line, position)
            end = markup.start() if markup else len(line)
            if end > position:
                text = line[position:end]
                yield Text(text, text)
                is_start = is_start and not text.strip()
            if markup:
                token = self._token(markup.group())
                yield token
                is_start = is_start and not isinstance(token, Text)
            position = markup.end() if markup else end

    def _token(self, raw: str) -> Token | Literal:
        if raw.startswith("&"):
            return Text(html.unescape(raw) or raw, raw)
        if raw.startswith("<"):
            return self._tag(raw)
        if raw.startswith("\\"):
            return Break(raw)
        return Point(raw) if raw.startswith("{") else Literal(raw)

    def _tag(self, raw: str) -> Token | Literal:
        tag = TAG.match(raw)
        if not tag or re.fullmatch(RUBY, raw):
            return Point(raw)
        numbers = self._open[tag[2].lower()]
        if tag[1]:
            return Close(raw, numbers.pop() if numbers else next(self._numbers))
        number = next(self._numbers)
        numbers.append(number)
        self._opened[number] = raw
        if tag[2] == "v" and raw != self._voice:
            self._voice = raw
            return Literal(raw)
        return Open(raw, number)


def speaker(line: str, position: int) -> re.Match[str] | None:
    """Return a speaker mark: a dash, ">>", or a name in capitals if the text after it is not in capitals."""
    if dash := DASH.match(line, position):
        return dash
    label = LABEL.match(line, position)
    return label if label and label[1].isupper() and any(map(str.islower, label[2])) else None


def until_literal(tokens: Iterable[Token | Literal]) -> Iterator[Token]:
    for token in tokens:
        if isinstance(token, Literal):
            return
        yield token


def split(tokens: Iterable[Token | Literal]) -> Iterator[tuple[list[Token], str]]:
    """Yield the tokens before each literal with the literal's raw text, and the last tokens with an empty string."""
    found: list[Token] = []
    for token in tokens:
        if isinstance(token, Literal):
            yield found, token.raw
            found = []
        else:
            found.append(token)
    yield found, ""


def inner_tokens(tokens: list[Token]) -> tuple[str, list[Token], str]:
    """Return the tokens without markup that encloses all of their text, and the raw text before and after them."""
    texts = [index for index, token in enumerate(tokens) if token.text.strip()]
    if not texts:
        return raw_of(tokens), [], ""
    start, end = texts[0], texts[-1] + 1
    closed = {token.number for token in tokens[start:end] if isinstance(token, Close)}
    opening = enumerate(tokens[:start])
    start = next((index for index, token in opening if isinstance(token, Open) and token.number in closed), start)
    opened = {token.number for token in tokens[start:end] if isinstance(token, Open)}
    closing = enumerate(tokens[end:], end + 1)
    inner = (index for index, token in closing if isinstance(token, Close) and token.number in opened)
    end = max(inner, default=end)
    return raw_of(tokens[:start]), tokens[start:end], raw_of(tokens[end:])


def text_of(tokens: Iterable[Token]) -> str:
    return "".join(token.text for token in tokens).strip()


def raw_of(tokens: Iterable[Token]) -> str:
    return "".join(token.raw for token in tokens)


class BlockBuilder:
    """Joins the segments of cues into blocks. is_vtt: whether the format is WebVTT, in which text contains entities."""

    def __init__(self, is_vtt: bool) -> None:
        self._reader = Reader(is_vtt)
        self._write = write_vtt if is_vtt else str
        self._tokens: list[Token] = []  # of the block
        self._line = self._cues = 0
        self._last = Segment("", [], 0, True, True)  # of the block
        self._previous = Cue("")
        self._after = ""  # the text after the block

    def add(self, cue: Cue, following: Cue) -> Iterator[Part]:
        """Yield the parts that end with or within this cue."""
        before, lines, later = (
            [self._reader.plain(line) for _, line in lines_of(each.text)] for each in (self._previous, cue, following)
        )
        first, last = shared_lines(before, lines), len(lines) - shared_lines(lines, later)
        alone = [not first <= number < last for number in range(len(lines))]  # so that both cues have the same output
        segments, after = self._reader.segments(cue, alone)
        for segment in segments:
            outside = self._after + segment.before
            if segment.is_first and self._continues(cue, segment.text):
                self._tokens.append(Break(outside, line_break_text(self._last.text, segment.text)))
            else:
                yield from self._end()
                yield Literal(outside)
                self._line, self._cues = segment.line, 0
            self._tokens += segment.tokens
            self._last = segment
            self._after = ""
        if segments:
            self._after = after
        else:
            yield from self._end()
            yield Literal(self._after + after, finding=cue.finding)
            self._after = ""
        self._cues += 1
        self._previous = cue

    def _end(self) -> Iterator[Part]:
        if self._tokens:
            yield Block(self._tokens, self._line, self._write)
        self._tokens = []

    def _continues(self, cue: Cue, text: str) -> bool:
        """Return whether a cue's first segment, with this text, continues the block."""
        previous = self._previous
        is_next = cue.number == previous.number + 1 and -MAX_OVERLAP <= cue.start - previous.end <= MAX_PAUSE
        is_bound = self._cues >= MAX_CUES or KARAOKE.search(cue.text) or KARAOKE.search(previous.text)
        is_end = (
            self._last.text.rstrip(QUOTES)[-1:] in SENTENCE_END and not next(filter(str.isalpha, text), "").islower()
        )
        may = bool(self._tokens) and self._last.is_last and is_next and not is_bound and not is_end
        return may and not is_repeated(self._reader.plain(previous.text), self._reader.plain(cue.text))


def write_vtt(text: str) -> str:
    """Escape text for VTT. As in most programs, "&" is escaped only if it would begin an entity."""
    text = ENTITY.sub(lambda each: f"&amp;{each[0][1:]}" if html.unescape(each[0]) != each[0] else each[0], text)
    return text.replace("<", "&lt;").replace("-->", "--&gt;")

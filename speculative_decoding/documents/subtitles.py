"""Subtitles, SRT and VTT: a sentence that runs over several cues is one text, with breaks where the cues change.

Numbers, times, settings, comments and style sheets are copied. A block is a run of cues of one speaker, up to the end of
a sentence or a pause. Speech dashes, names of speakers, musical notes and brackets around sounds are copied, too.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

from .layout import line_break_text
from .tokens import Block, Break, Close, Literal, Open, Part, Point, Text, Token

if TYPE_CHECKING:
    from .options import DocumentOptions

MAX_PAUSE = 2.0  # seconds between two cues of one sentence
MAX_OVERLAP = 0.5  # seconds that two cues of one sentence may share
MAX_CUES = 12  # cues of one block, for texts without punctuation
TAIL = 20  # characters in which the end of a sentence is found

CLOCK = r"(?:(\d{1,9}):)?(\d{1,2}):(\d{1,2})(?:[.,:](\d{1,3}))?"
TIMES = re.compile(rf"[ \t]*{CLOCK}[ \t]*-->[ \t]*{CLOCK}(?!\S)")
NUMBER = re.compile(r"\s*\d+\s*")
LINE_END = re.compile(r"(\r\n?|\n)")
SENTENCE_END = frozenset(".!?…‼⁇⁈⁉‽։؟۔।॥။።፧។៕᠃᠉。｡\uff0e\uff01\uff1f")
QUOTES = "\"'”’»›「」『』)]}\uff09"

DASH = re.compile(r"(?:[-\u2010\u2013—]+(?!\d)|(?:>|&gt;){2,3})[ \t]*")
LABEL = re.compile(r"([^\W\d_][^:<>{}\[\]]{0,31}):[ \t]+(?=(.{1,80}))")  # "MAN 1: ", and what he says
SOUND = re.compile(r"(\[)([^\[\]]{1,200})(\][ \t]*)|([(\uff08])([^()\uff08\uff09]{1,200})([)\uff09]$)")
NOTES = r"[♪♫♬\U0001f3b5\U0001f3b6][♪♫♬\U0001f3b5\U0001f3b6 \t]*"
OVERRIDE = r"\{\\[^{}]*\}"  # such as {\an8}
RUBY = r"<rt>[^<]*</rt>"
ENTITY = re.compile(r"&#?\w{1,32};")
SRT = re.compile(rf"{NOTES}|{OVERRIDE}|{RUBY}|</?(?:i|b|u|s|em|strong|font|span|c|v|ruby|rt)\b[^<>]*>", re.IGNORECASE)
VTT = re.compile(rf"{NOTES}|{OVERRIDE}|{RUBY}|<[^>]*>?|{ENTITY.pattern}")
TAG = re.compile(r"<(/?)([a-z]+)", re.IGNORECASE)
KARAOKE = re.compile(r"<\d+:")  # a time within the text, which must stay in its cue


class Cue(NamedTuple):
    """A cue's text, and what stands before it. The last one of a document has no text.

    line: on which the text begins, from 1. number: of the cue, from 1. The times are in seconds.
    """

    before: str
    text: str = ""
    line: int = 0
    number: int = 0
    start: float = 0.0
    end: float = 0.0


def parse(lines: Iterable[str], options: DocumentOptions) -> Iterator[Part]:
    """Yield the parts of a document. Without a format in the options, a document that begins with "WEBVTT" is VTT."""
    lines = iter(lines)
    first = next(lines, "")
    is_vtt = options.format == "vtt" or (options.format is None and first.startswith("WEBVTT"))
    runs = Runs(is_vtt)
    for cue in cues_of(chain([first], lines), is_vtt):
        yield from (part for part in runs.add(cue) if part.raw)


def cues_of(lines: Iterable[str], is_vtt: bool) -> Iterator[Cue]:
    """Yield the texts of all cues.

    In SRT, what follows a blank line is another text of the same cue, up to the next times. In VTT it is not shown.
    """
    before: list[str] = []
    text: list[str] = []
    cue, is_open = Cue(""), False
    for line_number, (line, following) in enumerate(pairwise(chain(lines, [""])), 1):
        if is_open and is_text(line, following, is_vtt):
            cue = cue if text else cue._replace(line=line_number)
            text.append(line)
            continue
        if text:
            found, rest = between_spaces(cue, "".join(before), "".join(text))
            yield found
            before, text = [rest], []
        before.append(line)
        if times := TIMES.match(line):
            start, end = seconds(times.groups()[:4]), seconds(times.groups()[4:])
            cue, is_open = Cue("", number=cue.number + 1, start=start, end=end), True
        elif is_vtt:
            is_open = False
    found, rest = between_spaces(cue, "".join(before), "".join(text))
    yield found
    yield Cue(rest)


def is_text(line: str, following: str, is_vtt: bool) -> bool:
    """Whether a line belongs to a cue's text, and neither to the next cue nor to the space between them."""
    if is_vtt:
        return bool(line.strip("\r\n")) and "-->" not in line
    is_number = NUMBER.fullmatch(line) and TIMES.match(following)
    return bool(line.strip()) and not is_number and not TIMES.match(line)


def between_spaces(cue: Cue, before: str, text: str) -> tuple[Cue, str]:
    """Return the cue with a text, and the white space behind it."""
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip()) if start < len(text) else start
    return cue._replace(before=before + text[:start], text=text[start:end]), text[end:]


def seconds(clock: Sequence[str | None]) -> float:
    hours, minutes, whole = (int(part or 0) for part in clock[:3])
    return hours * 3600 + minutes * 60 + whole + int((clock[3] or "").ljust(3, "0")) / 1000


def lines_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line, without white space around it, and what stands before it."""
    before = ""
    parts = LINE_END.split(text)
    for line, end in zip(parts[::2], [*parts[1::2], ""], strict=True):
        content = line.strip()
        if content:
            start = line.index(content)
            yield before + line[:start], content
            before, line = "", line[start + len(content) :]
        before += line + end


class Markup:
    """Divides the lines of cues into tokens, and literals at which a block ends.

    Attributes:
        opened: The raw of the markup with each number.
        voice: The last VTT voice, such as "<v Mary>".
    """

    def __init__(self, is_vtt: bool) -> None:
        self.opened: dict[int, str] = {}
        self.voice = ""
        self._pattern = VTT if is_vtt else SRT
        self._numbers = count()
        self._open: defaultdict[str, list[int]] = defaultdict(list)

    def start_cue(self) -> None:
        """Forget what a cue left open: it ends with the cue."""
        self._open.clear()

    def tokens(self, line: str, is_start: bool = True) -> Iterator[Token | Literal]:
        """Yield the tokens of a line. is_start: whether marks of speakers and sounds may stand at its beginning."""
        position = 0
        while position < len(line):
            mark = speaker(line, position) if is_start else None
            sound = SOUND.match(line, position) if is_start and not mark else None
            if mark:
                yield Literal(mark.group())
            elif sound:
                opening, inside, closing = filter(None, sound.groups())
                yield from (Literal(opening), *self.tokens(inside, is_start=False), Literal(closing))
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
            return Text(html.unescape(raw), raw)
        if raw.startswith("<"):
            return self._tag(raw)
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
        self.opened[number] = raw
        if tag[2] == "v" and raw != self.voice:
            self.voice = raw
            return Literal(raw)
        return Open(raw, number)


def speaker(line: str, position: int) -> re.Match[str] | None:
    """Return the mark of a speaker: a dash, ">>", or a name in capitals if what follows it is not in capitals."""
    if dash := DASH.match(line, position):
        return dash
    label = LABEL.match(line, position)
    return label if label and label[1].isupper() and any(map(str.islower, label[2])) else None


class Runs:
    """Joins cues into blocks. is_vtt: whether text is written with entities."""

    def __init__(self, is_vtt: bool) -> None:
        self._markup = Markup(is_vtt)
        self._write = write_vtt if is_vtt else str
        self._previous = Cue("")
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[Token] = []
        self._same: dict[int, int] = {}  # number of markup that goes on behind a break -> its number before
        self._line = self._cues = 0
        self._tail = ""  # the last characters of the block

    def add(self, cue: Cue) -> Iterator[Part]:
        """Yield the parts that end with this cue, or within it."""
        self._markup.start_cue()
        line = cue.line
        is_new = True
        for before, content in lines_of(cue.text):
            tokens = [*self._markup.tokens(content)]
            text = "".join(token.text for token in takewhile(is_token, tokens)).strip()
            line += len(LINE_END.findall(before))
            if self._goes_on(cue, text, is_new):
                tokens = self._join(cue.before if is_new else before, tokens, text, is_new)
            else:
                yield from self._end()
                yield Literal(cue.before if is_new else before)
            is_new = False
            yield from self._extend(tokens, line)
        if is_new:
            yield from self._end()
            yield Literal(cue.before)
        self._previous = cue
        self._cues += 1

    def _goes_on(self, cue: Cue, text: str, is_new: bool) -> bool:
        """Whether a line belongs to the block. text: up to the first literal in the line."""
        if not text or not self._tail or not is_new:
            return bool(text and self._tail)
        previous = self._previous
        is_next = cue.number == previous.number + 1 and -MAX_OVERLAP <= cue.start - previous.end <= MAX_PAUSE
        is_bound = self._cues >= MAX_CUES or KARAOKE.search(cue.text) or KARAOKE.search(previous.text)
        is_end = self._tail.rstrip(QUOTES)[-1:] in SENTENCE_END and not text[0].islower()
        return is_next and not is_bound and not is_end

    def _join(self, before: str, tokens: list[Token | Literal], text: str, is_new: bool) -> list[Token | Literal]:
        """Append a break, which includes markup that ends before it and begins again behind it. Return the rest."""
        raw, taken = before, 0
        for token in tokens:
            last = self._tokens[-1]
            is_same = isinstance(token, Open) and isinstance(last, Close)
            if is_same and self._markup.opened.get(last.number) == token.raw:
                raw = last.raw + raw + token.raw
                self._same[token.number] = last.number
                self._tokens.pop()
            elif (is_new and isinstance(token, Point)) or token.raw == self._markup.voice:
                raw += token.raw
            else:
                break
            taken += 1
        self._tokens.append(Break(raw, line_break_text(self._tail, text), is_required=is_new))
        return tokens[taken:]

    def _extend(self, tokens: Iterable[Token | Literal], line: int) -> Iterator[Part]:
        for token in tokens:
            if isinstance(token, Literal):
                yield from self._end()
                yield token
                continue
            if isinstance(token, Close):
                token = replace(token, number=self._same.get(token.number, token.number))
            self._line = self._line or line
            self._tail = (self._tail + token.text)[-TAIL:].rstrip()
            self._tokens.append(token)

    def _end(self) -> Iterator[Part]:
        """Yield the block, and before and behind it what need not be in it, and start another one."""
        tokens, line = self._tokens, self._line
        self._clear()
        texts = [i for i, token in enumerate(tokens) if token.text.strip()]
        first, last = (texts[0], texts[-1] + 1) if texts else (len(tokens), len(tokens))
        closed = {token.number for token in tokens[first:last] if isinstance(token, Close)}
        inner = (i for i in range(first) if isinstance(tokens[i], Open) and tokens[i].number in closed)
        first = next(inner, first)
        opened = {token.number for token in tokens[first:last] if isinstance(token, Open)}
        inner = (i for i in range(last, len(tokens)) if isinstance(tokens[i], Close) and tokens[i].number in opened)
        last = max(inner, default=last - 1) + 1
        yield Literal("".join(token.raw for token in tokens[:first]))
        if texts:
            yield Block(tokens[first:last], line, self._write)
        yield Literal("".join(token.raw for token in tokens[last:]))


def is_token(part: Token | Literal) -> bool:
    return not isinstance(part, Literal)


def write_vtt(text: str) -> str:
    """Write a text for VTT. A "&" is written as it is, as most programs do, unless it would begin an entity."""
    text = ENTITY.sub(lambda each: f"&amp;{each[0][1:]}" if html.unescape(each[0]) != each[0] else each[0], text)
    return text.replace("<", "&lt;").replace("-->", "--&gt;")

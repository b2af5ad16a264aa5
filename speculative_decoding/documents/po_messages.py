"""Divides gettext catalogs into messages, and their strings into tokens. Each keyword must be the first on its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..errors import InputError
from .cells import blocks_of
from .findings import SHOWN
from .layout import line_break_text
from .tokens import Break, Kept, Literal, Part, Point, Text, Token, line_ends

LINE = re.compile(
    r'\s*+(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?|domain)(?!\w)\s*+)?(?:"(?:[^"\\\r\n]++|\\.)*+"\s*+)*+\Z'
)
MESSAGE = re.compile(r"domain|(?:msgctxt )?msgid (?:msgstr|msgid_plural(?: msgstr\[\d\])+)")  # its keywords
BORDER = re.compile(r'"\s*+"')  # between two strings
# An escaped character, white space with borders between strings, or words
SPELLED = re.compile(
    r'\\(?:[0-7]{1,3}|x[\dA-Fa-f]+|[^nrt])|(?P<space>(?:\s|\\[nrt]|"\s*+")++)|[^\\\s"]++(?:\s[^\\\s"]++)*+'
)
SPACES = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}
CONTROLS = {chr(code): f"\\{code:03o}" for code in range(32)}
WRITE = str.maketrans(CONTROLS | {text: raw for raw, text in SPACES.items()} | {'"': r"\"", "\\": r"\\"})


@dataclass(frozen=True)
class Field:
    """A keyword, its strings, and the blank lines after them. line: The number of its first line."""

    keyword: str
    line: int
    lines: Sequence[str]

    @cached_property
    def raw(self) -> str:
        return "".join(self.lines)

    @cached_property
    def inside(self) -> slice:
        """The range of `raw` from the beginning of the first string to the end of the last one."""
        return slice(self.raw.index('"') + 1, self.raw.rindex('"'))

    @cached_property
    def is_empty(self) -> bool:
        return not BORDER.sub("", self.raw[self.inside])

    @cached_property
    def tokens(self) -> list[Token]:
        return [*map(token_of, SPELLED.finditer(self.raw[self.inside]))]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @cached_property
    def _rest(self) -> tuple[str, str]:
        """The end of the line with the last string, and the blank lines after it."""
        line, end, blank = re.split(r"(\r\n?|\n|\Z)", self.raw[self.inside.stop + 1 :], maxsplit=1)
        return line + end, blank

    @property
    def line_end(self) -> str:
        """The end of the line with the last string. Empty at the end of a catalog without a final line end."""
        return self._rest[0]

    @property
    def blank_lines(self) -> str:
        return self._rest[1]

    def copy(self, keyword: str) -> Iterator[Part]:
        """Yield the parts of this field with another keyword, up to the end of the last string."""
        start = self.raw[: self.inside.start]
        yield Literal(start.replace(self.keyword, keyword, 1))
        yield from blocks_of(self.tokens, self.line + line_ends(start), lambda text: text.translate(WRITE))
        yield Literal('"')


def messages(lines: Iterable[str]) -> Iterator[tuple[list[str], dict[str, Field]]]:
    """Yield the comments before each message, and its fields. Obsolete lines, and a last comment, have no fields."""
    comments: list[str] = []
    fields: list[tuple[str, int, list[str]]] = []
    for number, line in enumerate(lines, 1):
        is_comment = line.lstrip().startswith("#")
        keyword = match[1] if (match := LINE.match(line)) else None
        if not (is_comment or keyword or (match and (fields or not line.strip()))):
            raise InputError(f"line {number}: not valid in a PO file ({line.strip()[:SHOWN]})", way_out="correct it")
        is_first = is_comment or keyword in ("domain", "msgctxt", "msgid")
        if fields and is_first and (keyword, fields[-1][0]) != ("msgid", "msgctxt"):
            yield comments, by_keyword(fields)
            comments, fields = [], []
        if keyword:
            fields.append((keyword, number, [line]))
        else:
            (fields[-1][2] if fields else comments).append(line)
        if line.lstrip().startswith("#~"):
            yield comments, {}
            comments = []
    yield comments, by_keyword(fields) if fields else {}


def by_keyword(fields: Sequence[tuple[str, int, list[str]]]) -> dict[str, Field]:
    """Return the fields of a message. Raises `InputError` if one is missing, repeated, or without a string."""
    found = {field[0]: Field(*field) for field in fields}
    is_complete = len(found) == len(fields) and MESSAGE.fullmatch(" ".join(found))
    if is_complete and all('"' in field.raw for field in found.values()):
        return found
    keywords = ", ".join(field[0] for field in fields)
    raise InputError(f"line {fields[0][1]}: not a complete message (got {keywords[:SHOWN]})", way_out="correct it")


def token_of(match: re.Match[str]) -> Token:
    raw, (start, end) = match[0], match.span()
    if match["space"] is None:
        return escape(raw) if raw[0] == "\\" else Text(raw, raw)
    text = re.sub(r"\\[nrt]", lambda found: SPACES[found[0]], BORDER.sub("", raw))
    if text == raw or len(text) > 1 or text in SPACES.values():
        return Text(text, raw)
    if not text and line_break_text(match.string[max(start - 1, 0) : start], match.string[end : end + 1]):
        return Point(raw)  # within a word, or before or after the whole text
    return Break(raw, text and " ", is_required=False)


@lru_cache(1 << 12)  # a text may consist only of escapes, and shared tokens save memory
def escape(raw: str) -> Token:
    r"""Return the token for an escape: a `Point` for control characters and bytes, such as "\a", "\303" or "\x41"."""
    if raw[1] in '"\\':
        return Text(raw[1], raw)
    return Point(raw) if re.match(r"\\(?:[0-7abfv]|x.)", raw) else Kept(raw, raw)

"""Parses ICU messages: the text in "{n, plural, one {# file} other {# files}}" is decoded, and the syntax is copied.

The grammar is that of ICU's class MessagePattern in DOUBLE_OPTIONAL mode. An apostrophe starts a quotation only before
a special character, and two apostrophes stand for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .code_patterns import CODE_PATTERNS

COMPLEX = re.compile(r"\{\s*[\w.-]+\s*,\s*(?:plural|select|selectordinal)\s*,", re.IGNORECASE)
HEAD = re.compile(r"\{\s*[\w.-]+\s*(?:,\s*(\w+)\s*(,)?)?\s*")  # "{name", "{name, number", "{name, plural,"
OFFSET = re.compile(r"\s*offset\s*:\s*-?[\d.]+\s*")
SELECTOR = re.compile(r"\s*(?:=-?[\d.]+|[^\s{}=:,']+)\s*\{")
STYLE = re.compile(r"(?:[^{}']|'[^']*')*+([{}])")  # up to a brace, as in "{0, date, yyyy-MM-dd}"
BRANCH_END = re.compile(r"\}\s*")
UNSAFE = re.compile(r"(?P<braces>(?<!')'*+[{}]['{}]*)|'(?=[#']|$)")
PLURALS = frozenset(["plural", "selectordinal"])
PLAIN = re.compile(r"[^{}'#]+")
MAX_DEPTH = 20  # nesting depth of arguments; text with deeper nesting is not parsed as a message

TEXT, SYNTAX, ARGUMENT, APOSTROPHE, QUOTED = "text", "syntax", "argument", "apostrophe", "quoted"


class Part(NamedTuple):
    """A part of a message. type: one of the constants above. The "#" of a plural is an argument."""

    type: str
    start: int
    end: int


class NoMessage(Exception):
    """The text is not an ICU message."""


def message_parts(text: str) -> list[Part]:
    """Return the parts of an ICU message with a plural or select argument, or an empty list for any other text."""
    if not COMPLEX.search(text):
        return []
    try:
        return with_whole_tags(text, [*MessageParser(text).message()])
    except NoMessage:
        return []


def with_whole_tags(text: str, parts: list[Part]) -> list[Part]:
    """Return the parts, merging each tag that contains an argument, such as "<a href='{url}'>", into one argument."""
    found: list[Part] = []
    i = 0
    for tag in CODE_PATTERNS["tag"][1].finditer(text):
        start, end = tag.span()
        while i < len(parts) and parts[i].end <= start:
            found.append(parts[i])
            i += 1
        j = i
        while j < len(parts) and parts[j].start < end:
            j += 1
        inside = parts[i:j]
        if any(part.type == ARGUMENT for part in inside) and all(part.type != SYNTAX for part in inside):
            found += [inside[0]._replace(end=start), Part(ARGUMENT, start, end)]
            i = j - 1
            parts[i] = inside[-1]._replace(start=end)  # the rest after the tag
    return [part for part in [*found, *parts[i:]] if part.start < part.end]


class MessageParser:
    """Parses a message from start to end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def message(self, special: frozenset[str] = frozenset("{}"), depth: int = 0) -> Iterator[Part]:
        """Yield the parts up to the end of the text, or to the brace that ends a branch.

        special: The characters that an apostrophe quotes.
        """
        if depth > MAX_DEPTH:
            raise NoMessage
        text = self.text
        while self.position < len(text):
            start = self.position
            match text[start]:
                case "{":
                    yield from self.argument(depth)
                case "}" if depth:
                    return
                case "'":
                    yield self.apostrophe(special)
                case "#" if "#" in special:
                    self.position += 1
                    yield Part(ARGUMENT, start, self.position)
                case _:
                    plain = PLAIN.match(text, start)
                    self.position = plain.end() if plain else start + 1
                    yield Part(TEXT, start, self.position)

    def apostrophe(self, special: frozenset[str]) -> Part:
        start, text = self.position, self.text
        following = text[start + 1 : start + 2]
        if following == "'":
            self.position += 2
            return Part(APOSTROPHE, start, self.position)
        if following not in special or not following:
            self.position += 1
            return Part(TEXT, start, self.position)
        end = start + 1  # the quotation ends at the next single apostrophe, or at the end of the text
        while (end := text.find("'", end)) >= 0 and text.startswith("''", end):
            end += 2
        self.position = len(text) if end < 0 else end + 1
        return Part(QUOTED, start, self.position)

    def argument(self, depth: int) -> Iterator[Part]:
        """Yield the parts of an argument. An argument without branches is a single part."""
        start = argument = self.position
        head = self.match(HEAD)
        argument_type = (head[1] or "").lower()
        if argument_type not in {*PLURALS, "select"} or head[2] is None:
            self.skip_style(has_style=head[1] is not None)
            yield Part(ARGUMENT, start, self.position)
            return
        special = frozenset("{}#" if argument_type in PLURALS else "{}")
        if argument_type in PLURALS and (offset := OFFSET.match(self.text, self.position)):
            self.position = offset.end()
        while start == argument or not self.text.startswith("}", self.position):
            self.match(SELECTOR)
            yield Part(SYNTAX, start, self.position)
            yield from self.message(special, depth + 1)
            start = self.position
            self.match(BRANCH_END)
        self.position += 1
        yield Part(SYNTAX, start, self.position)

    def skip_style(self, *, has_style: bool) -> None:
        """Move past the brace that ends an argument without branches. has_style: whether the argument has a type."""
        depth = 1
        while depth:
            brace = self.match(STYLE if has_style else BRANCH_END)[0][-1:]
            depth += 1 if brace == "{" else -1

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.position)
        if found is None:
            raise NoMessage
        self.position = found.end()
        return found


def unquoted(text: str) -> str:
    """Return the text that a quotation represents."""
    return text.strip("'").replace("''", "'")


def write_message(text: str) -> str:
    """Escape text for an ICU message: quote braces, and double any apostrophe that could start a quotation."""
    return UNSAFE.sub(quoted, text)


def quoted(match: re.Match[str]) -> str:
    doubled = match[0].replace("'", "''")
    return f"'{doubled}'" if match["braces"] else doubled

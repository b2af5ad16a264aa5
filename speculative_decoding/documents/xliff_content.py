"""Reads the content of an XLIFF source: text, references, CDATA sections, and the inline codes of all versions.

The document must be well-formed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from itertools import groupby

from .html import MAX_REFERENCE, Content, escape_markup
from .html_scanner import FLAGS, TEXT, TEXT_TOKEN, WHITE_SPACE
from .messages import message_parts
from .tokens import Block, Break, Literal, Part, Point, Token, line_ends
from .xml_source import MARKUP, attributes_of

TOKEN = re.compile(f"{MARKUP} | {TEXT}", FLAGS)
OPENING = frozenset(["bpt", "bx", "sc", "sm"])  # codes that begin a range which another element ends
CLOSING = frozenset(["ept", "ex", "ec", "em"])
NATIVE = frozenset(["bpt", "ept", "it", "ph"])  # their content is code
LINE_BREAKS = frozenset(["lb", "pb", "xlf:lb", "xlf:pb", "LINE_BREAK"])  # values of ctype, subType and equiv
# Angular writes tags as empty elements, whose identifiers are START_TAG_DIV_1 and CLOSE_TAG_DIV
ANGULAR = re.compile(r"(START|CLOSE)_(\w+?)(?:_\d+)?")
INVALID = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # XML cannot represent these characters
PAIR = "/"  # starts the names of ranges between two codes in `Content`, unlike those of elements
# Phrase writes codes around text as {1>text<1}, with numbers or letters. Tags are skipped
PHRASE_CODE = re.compile(
    rf"{MARKUP} | (?P<code>\{{(?P<opened>\w{{1,9}})(?:&gt;|>) | &lt;(?P<closed>\w{{1,9}})\}})", FLAGS
)
MAX_TOKENS = 256  # per block; `places` finds places for as many codes


def parts_of_content(
    source: str, start: int, stop: int, line: int, *, keeps_lines: bool, is_phrase: bool = False
) -> Iterator[Part]:
    """Yield the parts of a range of the document.

    Args:
        line: The number of the line on which the range begins.
        keeps_lines: Whether line breaks divide the text, as opposed to being equivalent to spaces.
        is_phrase: Whether the document is Phrase's, whose text contains codes.
    """
    content = Content()
    matches = phrase_tokens(source, start, stop) if is_phrase else TOKEN.finditer(source, start, stop)
    segments: list[bool] = []  # whether each open "mrk" is a segment
    for match in matches:
        if match.re is PHRASE_CODE:
            add_phrase_code(content, match)
            continue
        name = (match["name"] or "").rpartition(":")[2]
        attributes = attributes_of(match[0]) if name else {}
        is_segment = attributes.get("mtype") == "seg"
        if name == "mrk" and not match["empty"]:
            is_segment = segments.pop() if match["closing"] else is_segment
            segments += [] if match["closing"] else [is_segment]
        if is_segment or len(content.tokens) >= MAX_TOKENS:
            yield from blocks_of(content, line)
            line += line_ends("".join(token.raw for token in content.tokens))
            content = Content()
        if is_segment:
            yield Literal(match[0])
            line += line_ends(match[0])
        elif not name:
            add_text(content, match, keeps_lines=keeps_lines)
        elif is_whole(name, attributes) and not (match["closing"] or match["empty"]):
            end = element_end(matches)
            add_code(content, name, attributes, source[match.start() : end], source[end : end + 1])
            segments = segments[:-1] if name == "mrk" else segments
        elif match["closing"]:
            content.close(name, 0, match[0])
        elif match["empty"]:
            add_code(content, name, attributes, match[0], source[match.end() : match.end() + 1])
        else:
            content.open(name, 0, match[0], is_link=True)
    yield from blocks_of(content, line)


def phrase_tokens(source: str, start: int, stop: int) -> Iterator[re.Match[str]]:
    """Yield the codes of Phrase in a range as matches of `PHRASE_CODE`, and the tokens between them."""
    for code in PHRASE_CODE.finditer(source, start, stop):
        if code["code"]:
            yield from TOKEN.finditer(source, start, code.start())
            yield code
            start = code.end()
    yield from TOKEN.finditer(source, start, stop)


def add_phrase_code(content: Content, match: re.Match[str]) -> None:
    key = PAIR + str(match["opened"] or match["closed"])
    if match["opened"]:
        content.open(key, 0, match[0], is_link=True)
    elif content.is_open(key):
        content.close(key, 0, match[0])
    else:
        content.append(0, Point(match[0]))


def is_whole(name: str, attributes: dict[str, str]) -> bool:
    """Return whether the content of an element is copied."""
    return name in NATIVE or attributes.get("translate") == "no" or attributes.get("mtype") == "protected"


def element_end(matches: Iterator[re.Match[str]]) -> int:
    """Return where an element ends. matches: the tokens after its start tag, which are consumed up to the end."""
    depth, end = 1, 0
    while depth:
        match = next(matches)
        end = match.end()
        if match["name"]:
            depth += -1 if match["closing"] else not match["empty"]
    return end


def add_text(content: Content, match: re.Match[str], *, keeps_lines: bool) -> None:
    """Add a token that is not a tag. A required break is a line break that is kept, or white space as a reference."""
    found = [match] if match["cdata"] is None else TEXT_TOKEN.finditer(escape_markup(match["cdata"]))
    for each in found:
        type, raw = str(each.lastgroup), each[0]
        is_reference = type == "reference" and len(raw) <= MAX_REFERENCE and unescape(raw) in {*WHITE_SPACE}
        if is_reference or (keeps_lines and type == "space"):
            content.append(0, Break(raw))
        else:
            content.add(type, 0, raw)


def add_code(content: Content, name: str, attributes: dict[str, str], raw: str, following: str) -> None:
    """Add an element without content, or one whose content is copied. following: the character after it.

    A code without text, such as a placeholder between two words, is placed after a word together with the space before
    it.
    """
    is_opening, is_closing = name in OPENING, name in CLOSING
    key = attributes.get("rid") or attributes.get("startRef") or attributes.get("id", "")
    if name == "x" and (angular := ANGULAR.fullmatch(key)):
        is_opening, is_closing, key = angular[1] == "START", angular[1] == "CLOSE", angular[2]
    if name == "mrk":
        content.keep(0, raw)
    elif LINE_BREAKS.intersection(attributes.values()):
        content.append(0, Break(raw))
    elif is_opening:
        content.open(PAIR + key, 0, raw, is_link=True)
    elif is_closing and content.is_open(PAIR + key):
        content.close(PAIR + key, 0, raw)
    else:
        space = content.take_space() if following in {*WHITE_SPACE, *".,:;!?"} else ""
        content.append(0, Point(space + raw))


def blocks_of(content: Content, line: int) -> Iterator[Part]:
    """Yield a block for the content, or for each of its lines. An ICU message is always a single block."""
    content.drop_open(PAIR)
    raw = "".join(token.raw for token in content.tokens)
    if not content.has_text:
        if raw:
            yield Literal(raw)
        return
    tokens, start = content.stripped()
    end = start + sum(len(token.raw) for token in tokens)
    if start:
        yield Literal(raw[:start])
        line += line_ends(raw[:start])
    if message_parts("".join(token.text for token in tokens)):
        whole = [replace(each, is_required=True) if isinstance(each, Break) else each for each in tokens]
        yield Block(whole, line, escape)
    else:
        for is_break, group in groupby(tokens, ends_line):
            line_tokens = [*group]
            yield from (Literal(each.raw) for each in line_tokens) if is_break else [Block(line_tokens, line, escape)]
            line += sum(line_ends(each.raw) for each in line_tokens)
    if raw[end:]:
        yield Literal(raw[end:])


def ends_line(token: Token) -> bool:
    return isinstance(token, Break) and token.is_required


def escape(text: str) -> str:
    return INVALID.sub("", escape_markup(text))

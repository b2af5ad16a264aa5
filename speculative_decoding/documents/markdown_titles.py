"""Separates descriptions of images, and titles of images and links, from the sentences of a Markdown block."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from html import unescape
from typing import NamedTuple

from .code_patterns import CODE_PATTERNS
from .findings import COPIED, SHOWN, Finding
from .markdown_templates import WORDS
from .markdown_writing import attribute_writer
from .splitting import Span, needs_decoding
from .tokens import Block, Break, Close, Literal, Open, Point, Text, Token

# The title at the end of a link or an image
TITLE = re.compile(r"""\][(\[].*?[\s>](?:"(?P<a>[^"\n]+)"|'(?P<b>[^'\n]+)'|\((?P<c>[^()\n]+)\))\s*\)""", re.DOTALL)
REFERENCE = re.compile(rf"{CODE_PATTERNS['entity'][1].pattern}|\\[!-/:-@\[-`{{-~]")


def separated(parts: Sequence[Literal | Token], line: int) -> Iterator[Literal | Token | Block]:
    """Yield parts with the descriptions of images, and the titles of images and links, as separate blocks.

    An image does not belong to a sentence if there are no other words in its line, or in its block before or after it.
    Titles of such images, and of links without other words in their block, are decoded. Other titles are copied, with a
    finding.
    """
    closings = {part.number: index for index, part in enumerate(parts) if isinstance(part, Close)}
    spans = [
        (index, closings[part.number], part.raw == "![")
        for index, part in enumerate(parts)
        if isinstance(part, Open) and part.number in closings and part.raw in ("![", "[")
    ]
    if not spans:
        yield from parts
        return
    described = {index for start, end, is_image in spans if is_image for index in range(start, end)}
    before = words_before(parts, described)
    after = words_before(parts[::-1], {len(parts) - 1 - index for index in described})[::-1]
    changed: dict[int, list[Literal | Token | Block]] = {}
    merged = 0  # the end of the last image without words
    for start, end, is_image in spans:
        if start < merged:
            continue
        whole = parts[start : end + 1]
        text = "".join(part.text for part in whole if not isinstance(part, Literal))
        raw = parts[end].raw
        titles = [span for span in title_spans(raw) if needs_decoding(raw[slice(*span)])]
        if is_image:
            is_within = before[start].in_block and after[end].in_block
            is_within = is_within and (before[start].in_line or after[end].in_line)
        else:
            is_within = not titles or before[start].in_block or after[end].in_block
        if not is_within and (titles or needs_decoding(text)):
            changed[start] = [Literal(parts[start].raw)]
            changed[end] = [*closing_parts(raw, titles)]
            continue
        for first, last in titles:
            yield Literal("", finding=Finding(line, COPIED, raw[first:last][:SHOWN]))
        if is_image and not needs_decoding(text):
            merged = end + 1
            changed |= {index: [] for index in range(start, merged)}
            changed[start] = [Point("".join(part.raw for part in whole))]
    for index, part in enumerate(parts):
        yield from changed.get(index, [part])


def title_spans(raw: str) -> list[Span]:
    """Return the spans of the title, and of attributes with words, in the end of a link or an image."""
    title = TITLE.match(raw)
    found = [title.span(title.lastgroup or 0)] if title else []
    return found + [words.span("words") for words in WORDS.finditer(raw, title.end() if title else 0)]


def closing_parts(raw: str, titles: Iterable[Span]) -> Iterator[Literal | Block]:
    """Yield the end of a link or an image, with its titles as blocks."""
    position = 0
    for start, end in titles:
        yield Literal(raw[position:start])
        yield plain_block(raw[start:end], raw[start - 1])
        position = end
    yield Literal(raw[position:])


def plain_block(raw: str, quote: str) -> Block:
    """Return a block for text without markup after a quotation mark or a parenthesis. Its line is not set."""
    tokens: list[Token] = []
    position = 0
    for found in REFERENCE.finditer(raw):
        before, reference = raw[position : found.start()], found[0]
        tokens += [Text(before, before)] if before else []
        tokens.append(Text(unescape(reference) if reference[0] == "&" else reference[1:], reference))
        position = found.end()
    rest = raw[position:]
    tokens += [Text(rest, rest)] if rest else []
    return Block(tokens, 0, attribute_writer(quote))


class Words(NamedTuple):
    """Whether there are words before a part: in its line, and in its block."""

    in_line: bool = False
    in_block: bool = False


def words_before(parts: Iterable[Literal | Token], described: Collection[int]) -> list[Words]:
    """Return the words before each part. described: the indices of parts that do not count."""
    found: list[Words] = []
    words = Words()
    for index, part in enumerate(parts):
        found.append(words)
        if isinstance(part, Literal):
            words = Words()
        elif isinstance(part, Break):
            words = Words(False, words.in_block)
        elif index not in described and any(map(str.isalnum, part.text)):
            words = Words(True, True)
    return found

"""Parses HTML and XHTML. Only the text of elements is decoded, not scripts, styles or code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from html import unescape
from html.entities import html5
from itertools import chain

from .html_scanner import ATTRIBUTE, BLOCK, FLOW, RAW, TEXT_TOKEN, TOKEN, WHITE_SPACE, Element, Scanner
from .html_scanner import Token as SourceToken
from .layout import line_break_text
from .options import DocumentOptions
from .tokens import Block, Break, Close, Kept, Literal, Open, Part, Point, Text, Token, line_ends, read_whole

KEPT = frozenset(["code", "kbd", "math", "samp", "tt", "var"])
COPIED = frozenset(["listing", "pre"])
MAX_TOKENS = 1024  # per block; a longer block is unlikely to be prose, and is divided
MAX_REFERENCE = 64  # characters; no code point has that many digits


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of a document, which is read as a whole."""
    return Reader(read_whole(lines)).parts()


def escape_html(text: str) -> str:
    """Escape text for HTML."""
    return escape_xml(text).replace("&#160;", "&nbsp;")


def escape_xml(text: str) -> str:
    """Escape text for XML, which has no named reference for a no-break space."""
    return escape_markup(text).replace("\xa0", "&#160;")


def escape_markup(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Reader:
    """Divides a document into parts, from start to end."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.scanner = Scanner(source)
        self.write = escape_xml if self.scanner.is_xml else escape_html
        self.position = 0
        self.copied = 0  # the end of the last part that was yielded
        self.line = 1  # at `copied`
        self.content = Content()  # tokens since the last block tag
        self.in_paragraph = False
        self.sections: list[tuple[Element, bool]] = []  # open elements that enable or disable translation

    def parts(self) -> Iterator[Part]:
        while self.position < len(self.source):
            token = self.scanner.read(self.position)
            self.position = token.end
            if token.type == "tag":
                yield from self.read_tag(token)
            elif self.is_translated:
                self.content.add(token.type, token.start, self.source[token.start : token.end])
            if len(self.content.tokens) >= MAX_TOKENS:
                yield from self.end_block()
        yield from self.end_block()
        if self.copied < len(self.source):
            yield self.copy_until(len(self.source))

    @property
    def is_translated(self) -> bool:
        return not self.sections or self.sections[-1][1]

    def read_tag(self, tag: SourceToken) -> Iterator[Part]:
        while self.sections and self.sections[-1][0].ends_at(tag):
            yield from self.end_block()
            section, _ = self.sections.pop()
            self.in_paragraph = False
            if section.is_closed_by(tag):
                return
        if not self.is_translated:
            if translation(self.source, tag):
                self.sections.append((Element(tag.name), True))
        elif tag.name in BLOCK:
            yield from self.end_block()
            if tag.name in FLOW:
                self.in_paragraph = tag.name == "p" and not (tag.is_closing or tag.is_empty)
            self.begin_block(tag)
        elif tag.is_closing:
            self.content.close(tag.name, tag.start, self.source[tag.start : tag.end])
        else:
            self.begin_inline(tag)

    def begin_block(self, tag: SourceToken) -> None:
        if tag.is_closing or tag.is_empty:
            return
        if tag.name == "title":
            for match in TEXT_TOKEN.finditer(self.source, tag.content, tag.end):
                self.content.add(str(match.lastgroup), match.start(), match[0])
        elif tag.name in COPIED:
            self.position = self.scanner.element_end(tag)
        elif tag.name not in RAW and translation(self.source, tag) is False:
            self.sections.append((Element(tag.name, self.in_paragraph), False))

    def begin_inline(self, tag: SourceToken) -> None:
        if tag.name in KEPT or translation(self.source, tag) is False:
            if not tag.is_empty:
                self.position = self.scanner.element_end(tag, self.in_paragraph)
            self.content.keep(tag.start, self.source[tag.start : self.position])
        elif tag.is_empty:
            self.content.append(tag.start, Point(self.source[tag.start : tag.end]))
        else:
            is_link = tag.name == "a" and "href" in attributes(self.source, tag)
            self.content.open(tag.name, tag.start, self.source[tag.start : tag.end], is_link)

    def end_block(self) -> Iterator[Part]:
        """Yield the content since the last block tag if it contains text, preceded by the literal before it."""
        content, self.content = self.content, Content()
        if not content.has_text:
            return
        tokens, start = content.stripped()
        if self.copied < start:
            yield self.copy_until(start)
        block = Block(tokens, self.line, self.write)
        yield block
        self.copy_until(start + sum(len(token.raw) for token in tokens))

    def copy_until(self, end: int) -> Literal:
        raw = self.source[self.copied : end]
        self.copied = end
        self.line += line_ends(raw)
        return Literal(raw)


class Content:
    """Collects the tokens of a block."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.start = 0  # position of the first token in the document
        self.has_text = False
        self._size = 0  # number of characters in the tokens, without white space
        self._last = ""  # the last character of the text
        # If the last token with text is a break: its index, and the character before it
        self._break: tuple[int, str] | None = None
        self._opened: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # keyed by name: index and `_size`

    def append(self, start: int, token: Token) -> None:
        if not self.tokens:
            self.start = start
        if token.text and self._break is not None:
            self._end_break(token.text[0])
        self.tokens.append(token)
        self._size += not token.text.isspace() and len(token.text)
        self._last = token.text[-1:] or self._last

    def add(self, type: str, start: int, raw: str) -> None:
        """Add a token that is not a tag. type: see `html_scanner.Token`."""
        if type == "reference":
            for each in tokens_of_reference(raw):
                self.append(start, each)
                self.has_text |= not each.text.isspace()
        elif type == "text":
            self.append(start, Text(raw, raw))
            self.has_text |= not raw.isspace()
        elif type == "space" and self._last and not self._last.isspace():
            before = self._last
            self.append(start, Break(raw, is_required=False))
            self._break = len(self.tokens) - 1, before
        else:
            self.append(start, Point(raw))

    def _end_break(self, after: str) -> None:
        """Set the text of the last break, given the next character. Before white space, the break becomes a `Point`."""
        assert self._break is not None
        index, before = self._break
        raw = self.tokens[index].raw
        self.tokens[index] = (
            Point(raw) if after.isspace() else Break(raw, line_break_text(before, after), is_required=False)
        )
        self._break = None

    def is_open(self, name: str) -> bool:
        return len(self._opened[name]) > 0

    def drop_open(self, prefix: str) -> None:
        """Turn markup that has not been closed, and whose name has this prefix, into points."""
        opened = (places for name, places in self._opened.items() if name.startswith(prefix))
        for index, _ in chain.from_iterable(opened):
            self.tokens[index] = Point(self.tokens[index].raw)

    def take_space(self) -> str:
        """Remove the space at the end of the last token, if it is a text that ends with one, and return it."""
        last = self.tokens[-1] if self.tokens else None
        if not isinstance(last, Text) or last.raw != last.text or last.text[-1:] != " " or len(last.text.rstrip()) == 0:
            return ""
        self.tokens[-1] = Text(last.text[:-1], last.raw[:-1])
        self._size -= 1
        self._last = last.text[-2]
        return " "

    def keep(self, start: int, raw: str) -> None:
        text = text_of(raw)
        self.append(start, Kept(text, raw) if text else Point(raw))

    def open(self, name: str, start: int, raw: str, is_link: bool) -> None:
        self._opened[name].append((len(self.tokens), self._size))
        self.append(start, Open(raw, len(self.tokens), is_link))

    def close(self, name: str, start: int, raw: str) -> None:
        if not self._opened[name]:
            self.append(start, Close(raw, len(self.tokens)))
            return
        index, size = self._opened[name].pop()
        if size == self._size:  # it encloses no text, such as an anchor or an icon
            self.tokens[index] = Point(self.tokens[index].raw)
            self.append(start, Point(raw))
        else:
            self.append(start, Close(raw, index))

    def stripped(self) -> tuple[list[Token], int]:
        """Return the tokens without surrounding white space, and their position in the document."""
        tokens, start, end = self.tokens, 0, len(self.tokens)
        while not tokens[start].raw.strip(WHITE_SPACE):
            start += 1
        while not tokens[end - 1].raw.strip(WHITE_SPACE):
            end -= 1
        position = self.start + sum(len(token.raw) for token in tokens[:start])
        first = tokens[start].raw
        position += len(first) - len(first.lstrip(WHITE_SPACE))
        inside = tokens[start:end]
        if isinstance(inside[0], Text):
            inside[0] = stripped_text(inside[0], inside[0].raw.lstrip(WHITE_SPACE))
        if isinstance(inside[-1], Text):
            inside[-1] = stripped_text(inside[-1], inside[-1].raw.rstrip(WHITE_SPACE))
        return inside, position


def stripped_text(token: Text, raw: str) -> Text:
    return token if raw == token.raw else Text(raw, raw)


def tokens_of_reference(raw: str) -> Iterator[Token]:
    """Yield a reference's character, and the text after it if only the start of the name is a known name."""
    name = raw[1:]
    if not name.startswith("#"):
        name = next((name[:size] for size in range(len(name), 1, -1) if name[:size] in html5), "")
    reference = raw[: 1 + len(name)]
    text = character(reference)
    yield Text(text, reference) if text else Point(reference)
    if rest := raw[len(reference) :]:
        yield Text(rest, rest)


def unescaped(reference: str) -> str:
    return "".join(token.text for token in tokens_of_reference(reference))


def character(reference: str) -> str:
    text = unescape(reference) if len(reference) <= MAX_REFERENCE else "\ufffd"
    return " " if text in {*WHITE_SPACE} else text


def text_of(raw: str) -> str:
    """Return the text of an element on one line."""
    found = []
    for match in TOKEN.finditer(raw):
        if match.lastgroup == "tag":
            found.append(" " if match["name"].lower() in BLOCK else "")
        elif match.lastgroup != "comment":
            found.append(unescaped(match[0]) if match.lastgroup == "reference" else match[0])
    return " ".join("".join(found).split())


def attributes(source: str, tag: SourceToken) -> dict[str, str]:
    """Return the attributes of a tag, with names in lower case."""
    found = ATTRIBUTE.findall(source, tag.start, tag.content)
    return {name.lower(): value.strip("\"'") for name, value in reversed(found)}


def translation(source: str, tag: SourceToken) -> bool | None:
    """Return whether a start tag enables (True) or disables (False) the translation of its element, or None."""
    if tag.is_closing or "translate" not in source[tag.start : tag.content].lower():
        return None
    found = attributes(source, tag)
    if "notranslate" in found.get("class", "").split():
        return False
    return {"no": False, "yes": True, "": True}.get(found.get("translate", "none").lower())

"""Finds the tags, references, texts and element ends in HTML, with their source positions. Builds no tree.

Tokens follow the tokenizer of the HTML standard (https://html.spec.whatwg.org/multipage/parsing.html), including its
error handling. Element ends are tracked by tag name only.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

WHITE_SPACE = "\t\n\f\r "
WHITE = r"\t\n\f\r "
TAG = rf"""
    <(?P<closing>/?)(?P<name>[a-zA-Z][^{WHITE}/>]*+)
    (?:[{WHITE}]++ | /(?!>)                                      # between attributes
     | [^{WHITE}/>][^{WHITE}/>=]*+                               # the name of an attribute
       (?:[{WHITE}]*+=[{WHITE}]*+(?:"[^"]*+(?:"|\Z) | '[^']*+(?:'|\Z) | [^{WHITE}>"'][^{WHITE}>]*+)?)?
    )*+
    (?:(?P<empty>/?)>|\Z)
"""
TEXT = rf"""
    (?P<reference>&(?:\#[0-9]++;? | \#[xX][0-9a-fA-F]++;? | [a-zA-Z][a-zA-Z0-9]{{0,30}};?))
  | (?P<space>[ \t\f]*+[\r\n][{WHITE}]*+)
  | (?P<text>[^<&\r\n]*[^<&{WHITE}](?:[ \t\f]++(?![\r\n]))? | [ \t\f]++ | [<&])
"""
MARKUP = rf"""
    (?P<comment><!--(?:-?> | .*?(?:--!?>|\Z)) | <[!?][^>]*+>? | </(?=[^a-zA-Z])[^>]*+>?)
  | (?P<tag>{TAG})
"""
FLAGS = re.VERBOSE | re.DOTALL
TOKEN = re.compile(f"{MARKUP} | {TEXT}", FLAGS)
TOKEN_WITH_CDATA = re.compile(rf"(?P<cdata><!\[CDATA\[.*?(?:\]\]>|\Z)) | {MARKUP} | {TEXT}", FLAGS)
TEXT_TOKEN = re.compile(TEXT, FLAGS)
ATTRIBUTE = re.compile(
    rf"""(?<=[{WHITE}/"'])([^{WHITE}/>][^{WHITE}/>=]*+)(?:[{WHITE}]*+=[{WHITE}]*+("[^"]*+"?|'[^']*+'?|[^{WHITE}>]++)?)?"""
)
SCRIPT = re.compile(rf"<!(?=--)|-->|<(?P<closing>/?)script(?=[{WHITE}/>])", re.ASCII | re.IGNORECASE)


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VOID = names("area base basefont bgsound br col embed frame hr img input keygen link meta param source track wbr")
RAW = names("iframe noembed noframes plaintext script style textarea title xmp")  # their content has no tags
FOREIGN = names("math svg")
WHOLE = FOREIGN | {"template"}  # elements that are read as one token
# Elements whose tags end a paragraph
FLOW = names(
    "address article aside blockquote body caption center col colgroup dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html li listing main menu nav ol p "
    "plaintext pre search section summary table tbody td tfoot th thead tr ul xmp"
)
# Elements whose tags end a sentence
BLOCK = FLOW | names(
    "applet audio br button canvas datalist iframe legend map marquee noembed noframes noscript object optgroup option "
    "script select style template textarea title video"
)
ROWS = names("table tbody tfoot thead")
# A start tag implies the end of the elements around it, up to the nearest ancestor in this set
PARENTS = {
    "li": names("dir menu ol ul"),
    **dict.fromkeys(["dd", "dt"], names("dl div")),
    **dict.fromkeys(["option", "optgroup"], names("datalist optgroup select")),
    **dict.fromkeys(["td", "th"], ROWS | {"tr"}),
    "tr": ROWS,
    **dict.fromkeys(["caption", "colgroup", "tbody", "tfoot", "thead"], names("table")),
}
HTML_WITHIN = ("foreignobject", "annotation-xml")  # foreign elements that contain HTML


class Token(NamedTuple):
    """A token of the source.

    Args:
        type: "text", "space" (with a line break), "reference", "tag", or "comment" (also a declaration or CDATA).
        start, end: Its range. The start tag of a `RAW` or `WHOLE` element includes the content of the element.
        name: The name of a tag, in lower case.
        is_closing: Whether it is an end tag.
        is_empty: Whether no content and no end tag follow.
        content: The end of the tag itself.
    """

    type: str
    start: int
    end: int
    name: str = ""
    is_closing: bool = False
    is_empty: bool = False
    content: int = 0


class Scanner:
    """Reads the tokens of a document from any position."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.is_xml = re.match(r"\ufeff?<\?xml\s", source) is not None

    def read(self, start: int, within: str = "") -> Token:
        """Return the token at a position. within: the `WHOLE` element that is being read."""
        has_cdata = self.is_xml or within in FOREIGN
        match = (TOKEN_WITH_CDATA if has_cdata else TOKEN).match(self.source, start)
        assert match is not None and match.lastgroup is not None
        end = match.end()
        if match.lastgroup != "tag":
            return Token("comment" if match.lastgroup == "cdata" else match.lastgroup, start, end)
        name = match["name"].lower()
        is_empty = name in VOID or (bool(match["empty"]) and (has_cdata or name in FOREIGN))
        token = Token("tag", start, end, name, bool(match["closing"]), is_empty, end)
        if token.is_closing or is_empty or within in FOREIGN:
            return token
        if name in RAW:
            return token._replace(end=self.raw_end(name, end))
        if name in WHOLE and name != within:
            return token._replace(end=self.element_end(token), is_empty=True)
        return token

    def raw_end(self, name: str, start: int) -> int:
        """Return where the content of a `RAW` element ends."""
        if name == "script":
            return self.script_end(start)
        closing = re.compile(rf"</{name}(?=[{WHITE}/>])", re.ASCII | re.IGNORECASE).search(self.source, start)
        return len(self.source) if closing is None or name == "plaintext" else closing.start()

    def script_end(self, start: int) -> int:
        """Return where a script ends. After "<!--", a nested script element belongs to its content."""
        is_escaped = is_nested = False
        for match in SCRIPT.finditer(self.source, start):
            if match["closing"] is None:
                is_escaped = match[0] == "<!"
                is_nested = is_nested and is_escaped
            elif not match["closing"]:
                is_nested = is_escaped
            elif is_nested:
                is_nested = False
            else:
                return match.start()
        return len(self.source)

    def element_end(self, tag: Token, in_paragraph: bool = False) -> int:
        """Return where the element of a start tag ends. in_paragraph: whether the next block tag ends it."""
        element = Element(tag.name, in_paragraph)
        position = tag.content
        while position < len(self.source):
            token = self.read(position, tag.name if tag.name in WHOLE else "")
            if token.type == "tag" and element.ends_at(token):
                return token.end if element.is_closed_by(token) else token.start
            position = token.end
        return position


class Element:
    """Recognizes the tag that ends an element: its own end tag, or a tag that ends an enclosing element.

    Args:
        name: The name of the element.
        in_paragraph: Whether the element is in a paragraph, which the next block tag ends.
    """

    def __init__(self, name: str, in_paragraph: bool = False) -> None:
        self.name = name
        self.in_paragraph = in_paragraph or name == "p" or name in FOREIGN
        self._open: Counter[str] = Counter()  # number of open elements within it, keyed by name

    def is_closed_by(self, tag: Token) -> bool:
        return tag.is_closing and tag.name == self.name

    def ends_at(self, tag: Token) -> bool:
        """Return whether the element ends at the next tag. Must be called for each tag within the element."""
        name = tag.name
        is_open = self._open[name] > 0 if tag.is_closing else not tag.is_empty
        if tag.is_closing and not is_open and name == self.name:
            return True
        if not is_open or not tag.is_closing:
            is_sealed = self.name == "template" or any(self._open[each] for each in HTML_WITHIN)
            if not is_sealed and (self._outer_end(name) if tag.is_closing else self._outer_start(name)):
                return True
        self._open[name] += is_open * (-1 if tag.is_closing else 1)
        return False

    def _outer_end(self, name: str) -> bool:
        return self.in_paragraph if name == "p" else name in BLOCK and name not in VOID

    def _outer_start(self, name: str) -> bool:
        if self.in_paragraph and name in FLOW:
            return True
        parents = PARENTS.get(name)
        return parents is not None and self.name not in parents and not any(self._open[each] for each in parents)

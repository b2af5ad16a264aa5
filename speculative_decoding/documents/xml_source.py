"""Checks that an XML document is well-formed, and finds its elements with their positions. Builds no tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from ..errors import InputError
from .html_scanner import ATTRIBUTE, FLAGS, WHITE

MARKUP = rf"""
    (?P<comment><!--.*?--> | <\?.*?\?>)
  | <!\[CDATA\[(?P<cdata>.*?)\]\]>
  | <(?P<closing>/?)(?P<name>[^{WHITE}/>]++)(?:[^"'/>]++ | "[^"]*+" | '[^']*+' | /(?!>))*+(?P<empty>/?)>
"""
TAG = re.compile(MARKUP, FLAGS)
MAX_DEPTH = 100

Refuse = Callable[[str, str], NoReturn]


def check(source: str, check_root: Callable[[str, Mapping[str, str], Refuse], None]) -> None:
    """Raise `InputError` if a document is not well-formed, is nested too deeply, or has a document type declaration.

    Without document types, no entities can be declared.

    Args:
        check_root: A function of the root element's name and attributes. Its third argument raises `InputError` with a
            problem and a way out.
    """
    parser = expat.ParserCreate("utf-8")  # not the declared encoding, because the text is already decoded
    depth = 0

    def refuse(problem: str, way_out: str) -> NoReturn:
        raise InputError(f"line {parser.CurrentLineNumber}: {problem}", way_out=way_out)

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        if not depth:
            check_root(name, attributes, refuse)
        depth += 1
        if depth > MAX_DEPTH:
            refuse(f"over {MAX_DEPTH} levels of elements", "correct it")

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = lambda *_: refuse("a document type declaration is not supported", "remove it")
    try:
        parser.Parse(source.encode(errors="surrogatepass"), True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise InputError(f"line {error.lineno}: not well-formed XML ({reason})", way_out="correct it") from error


@dataclass(slots=True)
class Element:
    """An element of a document.

    Args:
        name: Its name.
        attributes: Its attributes, as they are written.
        start, end: Its range in the document.
        content, stop: The range of its content.
        parent: The element that contains it; None for the root element.
        parts: For callers: elements within it.
    """

    name: str
    attributes: dict[str, str]
    start: int
    content: int
    parent: Element | None
    stop: int = 0
    end: int = 0
    parts: dict[str, Element] = field(default_factory=dict)

    def inherited(self, name: str) -> str:
        """Return the value of an attribute of the nearest element that has it, including this one, or ""."""
        element: Element | None = self
        while element is not None and name not in element.attributes:
            element = element.parent
        return element.attributes[name] if element is not None else ""


def elements(source: str) -> Iterator[Element]:
    """Yield the elements of a well-formed document in the order of their ends."""
    current: Element | None = None
    for match in TAG.finditer(source):
        if match["name"] is None:
            continue
        if not match["closing"]:
            current = Element(match["name"], attributes_of(match[0]), match.start(), match.end(), current)
        if match["closing"] or match["empty"]:
            assert current is not None
            current.stop, current.end = match.start() if match["closing"] else match.end(), match.end()
            yield current
            current = current.parent


def attributes_of(tag: str) -> dict[str, str]:
    """Return the attributes of a start tag, as they are written."""
    return {name: value[1:-1] for name, value in ATTRIBUTE.findall(tag)}


def with_attributes(tag: str, values: Mapping[str, str | None]) -> str:
    """Return a start tag with changed or added attributes. A value of None removes the attribute."""
    for name, value in values.items():
        found = next((each for each in ATTRIBUTE.finditer(tag) if each[1] == name), None)
        last = len(tag.removesuffix(">").removesuffix("/").rstrip())
        start, end = found.span() if found else (last, last)
        written = "" if value is None else f' {name}="{value}"'
        tag = tag[:start].rstrip() + written + tag[end:] if found or written else tag
    return tag

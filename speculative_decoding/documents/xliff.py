"""Parses XLIFF 1.0 to 1.2 and 2.0 to 2.2. Each missing target is decoded from its source; finished targets are copied.

A target is missing if there is none, if its state says so ("new", "needs-translation" or "initial"), or if it is empty
and not finished. The new target contains the inline codes of the source. CDATA sections are written as escaped text.
https://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html, https://docs.oasis-open.org/xliff/xliff-core/v2.2/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from .findings import UNTRANSLATED, Finding
from .options import DocumentOptions
from .pieces import has_words
from .splitting import wrong_target
from .tokens import Block, Literal, Part, line_ends, read_whole
from .xliff_content import parts_of_content
from .xml_source import TAG, Element, Refuse, check, elements, with_attributes

LOCKED = frozenset([("m:locked", "true"), ("mq:locked", "locked")])  # units that Phrase and memoQ protect
PHRASE = "http://www.memsource.com/mxlf/2.0"
FINISHED = frozenset(["translated", "reviewed", "final", "signed-off"])


class Version(NamedTuple):
    """What the versions name differently.

    Args:
        unit: The element that contains a source and its target.
        has_language, language: The element with the language of the targets, and the attribute.
        has_state: The element with the state of a target.
        marks: The attributes that mark a target as decoded. An attribute with None is removed.
        missing: The states of targets that are still to be written.
    """

    unit: str
    has_language: str
    language: str
    has_state: str
    marks: Mapping[str, str | None]
    missing: frozenset[str]


MARKS = {"state": "needs-review-translation", "state-qualifier": "leveraged-mt"}
FIRST = Version("trans-unit", "file", "target-language", "target", {**MARKS}, frozenset(["new", "needs-translation"]))
MARKS_2 = {"state": "translated", "subState": None}  # a substate refers to the previous state
SECOND = Version("segment", "xliff", "trgLang", "segment", MARKS_2, frozenset(["initial"]))
OLDEST = FIRST._replace(marks={"state": MARKS["state"]})  # without qualifiers
VERSIONS = {"1.0": OLDEST, "1.1": FIRST, "1.2": FIRST, "2.0": SECOND, "2.1": SECOND, "2.2": SECOND}


class Edit(NamedTuple):
    """A range of the document to replace with `before`, the decoded content of an element if given, and `after`."""

    start: int
    end: int
    before: str
    element: Element | None = None
    after: str = ""
    finding: Finding | None = None


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of a document, which is read as a whole. Raises `InputError` if it is not XLIFF or is damaged."""
    return Reader(read_whole(lines), target).parts()


class Reader:
    """Finds the missing targets of a document. language: the language of the targets, if known."""

    def __init__(self, source: str, language: str | None) -> None:
        self.source = source
        self.language = language
        self.labeled = -1  # the position of the last element whose missing language has been set
        self.counted = 0, 1  # a position and its line number
        check(source, self.check_root)

    def check_root(self, name: str, attributes: Mapping[str, str], refuse: Refuse) -> None:
        self.prefix = name.removesuffix("xliff")
        if name != "xliff" and not name.endswith(":xliff"):
            refuse(f"not XLIFF (its first element is {name[:40]})", "name another file")
        version = attributes.get("version") or attributes.get("xmlns", "").rpartition(":")[2]
        if version not in VERSIONS:
            refuse(f"XLIFF version {version[:40]!r} is not supported", f"convert it to version {', '.join(VERSIONS)}")
        self.version = VERSIONS[version]
        self.is_phrase = PHRASE in attributes.values()

    def parts(self) -> Iterator[Part]:
        position = 0
        for edit in sorted(self.edits(), key=lambda each: each.start):
            yield Literal(self.source[position : edit.start] + edit.before, finding=edit.finding)
            if edit.element is not None:
                yield from self.content(edit.element)
                yield Literal(edit.after)
            position = edit.end
        yield Literal(self.source[position:])

    def content(self, element: Element) -> Iterator[Part]:
        line, keeps_lines = self.line_at(element.content), element.inherited("xml:space") == "preserve"
        return parts_of_content(
            self.source, element.content, element.stop, line, keeps_lines=keeps_lines, is_phrase=self.is_phrase
        )

    def line_at(self, position: int) -> int:
        """Return the number of a line, counted from the previous position."""
        before, line = self.counted
        line += line_ends(self.source[before:position]) - line_ends(self.source[position:before])
        self.counted = position, line
        return line

    def edits(self) -> Iterator[Edit]:
        for element in elements(self.source):
            name, parent = element.name.removeprefix(self.prefix), element.parent
            if name in ("source", "seg-source", "target") and parent is not None:
                parent.parts[name] = element
            elif name == "mrk" and element.attributes.get("mtype") == "seg":
                while parent is not None and parent.name.removeprefix(self.prefix) not in ("seg-source", "target"):
                    parent = parent.parent
                if parent is not None:
                    parent.parts[element.attributes.get("mid", "")] = element
            elif element.name == "sdl:seg" and element.attributes.get("locked") == "true":  # Trados
                if parent is not None and parent.parent is not None:
                    parent.parent.parts[f"locked {element.attributes.get('id')}"] = element
            elif name == self.version.unit and element.inherited("translate") != "no":
                yield from self.edits_of(element)

    def edits_of(self, unit: Element) -> Iterator[Edit]:
        version, target = self.version, unit.parts.get("target")
        source = unit.parts.get("seg-source", unit.parts.get("source"))
        if source is None or not LOCKED.isdisjoint(unit.attributes.items()):
            return
        locked = {mid for mid in source.parts if f"locked {mid}" in unit.parts}
        unlocked = source.parts.keys() - locked
        if locked and not unlocked:
            return
        stateful = unit if version.has_state == version.unit else target
        state = "" if stateful is None else stateful.attributes.get("state")
        is_open = target is None or (unit.attributes.get("approved") != "yes" and state not in FINISHED)
        found: list[tuple[Element | None, Element]] = []  # elements to write, and the elements with their sources
        if is_open and locked and (target is None or target.parts.keys().isdisjoint(unlocked)):
            what = "some segments are locked, and there is no target with segments"
            yield Edit(unit.start, unit.start, "", finding=Finding(self.line_at(unit.start), UNTRANSLATED, what))
        elif target is None:
            found = [(None, source)]
        elif is_open:
            segments = [(each, source.parts[mid]) for mid, each in target.parts.items() if mid in unlocked]
            is_whole = (state in version.missing or self.is_blank(target)) and not locked
            found = [(target, source)] if is_whole else [each for each in segments if self.is_blank(each[0])]
        if not (found := [each for each in found if self.has_words(each[1])]):
            return
        yield from self.language_edits(unit)
        if stateful is not None and found[0][0] is not stateful:
            yield Edit(stateful.start, stateful.content, with_attributes(self.tag(stateful), version.marks))
        for missing, element in found:
            tag, name = f"<{self.prefix}target>", f"{self.prefix}target"
            if missing is None:
                tag = with_attributes(tag, {"xml:space": unit.parts["source"].attributes.get("xml:space")})
                tag = with_attributes(tag, version.marks if version.has_state == "target" else {})
                start = end = element.end
                tag = self.indentation(unit, element) + tag
            else:
                start, end, name = missing.start, missing.end, missing.name
                tag = with_attributes(self.tag(missing), version.marks if missing is stateful else {})
                tag = f"{tag[:-2].rstrip()}>" if tag.endswith("/>") else tag
            yield Edit(start, end, tag, element, f"</{name}>")

    def language_edits(self, unit: Element) -> Iterator[Edit]:
        """Yield an edit that sets the language of the targets, if it is missing and known.

        Raises `InputError` if they have another language.
        """
        element: Element | None = unit
        while element is not None and element.name != self.prefix + self.version.has_language:
            element = element.parent
        if element is None or self.language is None:
            return
        if declared := element.attributes.get(self.version.language):
            if error := wrong_target(declared, self.language):
                raise error.at(f"line {1 + line_ends(self.source[: element.content])}")
        elif self.labeled != element.start:
            self.labeled = element.start
            values = {self.version.language: self.language}
            yield Edit(element.start, element.content, with_attributes(self.tag(element), values))

    def tag(self, element: Element) -> str:
        return self.source[element.start : element.content]

    def indentation(self, unit: Element, element: Element) -> str:
        """Return the line break and the white space before an element, or "" if it does not start a line."""
        start = self.source.rfind("\n", unit.content, element.start)
        start -= self.source.startswith("\r", start - 1)
        spaces = self.source[max(start, unit.content) : element.start]
        return spaces if spaces.isspace() and "\n" in spaces else ""

    def is_blank(self, element: Element) -> bool:
        content = self.source[element.content : element.stop]
        return not TAG.sub(lambda match: match["cdata"] or "", content).strip()

    def has_words(self, element: Element) -> bool:
        return any(has_words(each.tokens) for each in self.content(element) if isinstance(each, Block))

"""Rules for markdown-it-py that parse blocks of Markdown dialects: admonitions, tabs, callouts, notes, and formulas.

A block's title is decoded, the rest of the title line is copied, and the block's content is parsed as Markdown.
Formulas are copied. Templates and components have their own module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock, html_block, reference

from .markdown_templates import PLAIN, add_content, component, statement, template

TITLE = "title"  # the tag of the event after a title
HTML = "html"  # the tag of the event after an HTML block
INDENT = 4  # columns by which the content of an admonition or a tab is indented
NAMES = r"[\w-]++(?:[ \t]++[\w-]++)*+"
ATTRIBUTES = r"\{[^{}]*\}"
# MkDocs: !!! note inline "Title"; ??? tip; ???+ "Title"; === "Tab". Without a title, content must follow
INDENTED = re.compile(
    rf'(?:!{{3}}|\?{{3}}\+?+)[ \t]*+(?=\S)(?:{NAMES})?(?:(?:(?<=[ \t])|[ \t]+)"(?P<title>.*)")?[ \t]*\Z'
    r'|={3}[+!]{0,2}[ \t]+"(?P<tab>.*)"[ \t]*\Z'
)
# MyST directives whose argument is a title. The argument of other directives is a file or a language
DIRECTIVES = (
    "admonition|attention|card|caution|danger|dropdown|error|hint|important|note|seealso|sidebar|tab-item|tip|topic"
    "|warning"
)
# Docusaurus: :::note[Title]{#id}; VitePress: ::: tip Title; MyST: :::{note} Title; Pandoc: ::: {.note}; ::: note :::
COLONS = re.compile(
    rf":{{3,}}[ \t]*(?:(?:[A-Za-z][\w.-]*|\{{(?:{DIRECTIVES})\}})(?:\[(?P<label>.*)\])?(?:{ATTRIBUTES})?"
    rf"(?:[ \t]+(?P<title>[^\s:{{=](?:(?!\w=)[^{{}}])*(?<![\s:])))?)?[ \t]*(?:{ATTRIBUTES}[ \t]*)?:*[ \t]*\Z"
)
# PyMdown: /// note | Title
SLASHES = re.compile(r"/{3,}[ \t]*(?:[\w-]+[ \t]*(?:\|[ \t]*(?P<title>.*(?<![ \t])))?)?[ \t]*\Z")
# GitHub, Obsidian: > [!NOTE]- Title
CALLOUT = re.compile(r"\[![\w-]+(?:[ |][^\[\]]*)?\][+-]?(?![\[(])[ \t]*(?P<title>.*(?<![ \t]))?[ \t]*\Z")
CONTAINERS = {"!": INDENTED, "?": INDENTED, "=": INDENTED, ":": COLONS, "/": SLASHES, "[": CALLOUT}

# The mark of a footnote or of a term's definition, and comments after it, which would begin an HTML block
ITEM = re.compile(r"(?:\[\^[^\]\s]{1,100}\]:[ \t]*+|:[ \t]++(?=\S))(?:<!--(?:(?!-->).)*+-->[ \t]*+)*+")
# The title of a link reference definition, at the end of its last line
LINK_TITLE = re.compile(r"""(?:\]:[ \t]*+\S.*[ \t]|^[ \t]*+)(?:"([^"]+)"|'([^']+)'|\(([^()]+)\))[ \t]*+\Z""")
# A link reference definition whose target contains templates
TEMPLATE_DEFINITION = re.compile(r"\[(?P<label>[^\[\]\n]{1,200}+)\]:[ \t]*+(?=[^\s{]{0,200}+\{[{%])")

ENVIRONMENT = re.compile(r"\\begin\{([A-Za-z]{1,40}\*?)\}")
FORMULA_END = re.compile(r"[ \t]*+(?:[.,;]|\([\w:.-]{1,60}\)|\{[^{}]{0,200}\})*+[ \t]*\Z")  # (1), {#eq:a}
MATHEMATICAL = re.compile(r"[\\^_=+<>{}]")


def add_rules(parser: MarkdownIt) -> None:
    """Add the rules to a parser. The `push` method of its state must record titles."""
    ends: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    ruler = parser.block.ruler
    for name, rule in {
        "title": title,
        "formula": formula,
        "template": template,
        "component": component,
        "item": item,
    }.items():
        ruler.before("table", name, rule, ends)
    ruler.before("table", "statement", statement)
    ruler.at("reference", definition)
    ruler.at("html_block", html, ends)


def line_of(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]


def title(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule for the first line of a container, and for the content of an indented container."""
    text = line_of(state, start)
    pattern = CONTAINERS.get(text[:1])
    if pattern is None or state.is_code_block(start) or not (found := pattern.match(text)):
        return False
    group = next((name for name, value in found.groupdict().items() if value), None)
    content_end = indented_end(state, start + 1, end) if pattern is INDENTED else start + 1
    if (pattern is INDENTED and group is None and content_end == start + 1) or (
        pattern is CALLOUT and not starts_quote_line(state, start)
    ):
        return False
    if silent:
        return True
    if group is not None:
        first = state.bMarks[start] + state.tShift[start]
        add_content(state, start, first + found.start(group), first + found.end(group), TITLE)
    if pattern is INDENTED:
        parse_indented(state, start + 1, content_end)
    state.line = content_end
    return True


def starts_quote_line(state: StateBlock, line: int) -> bool:
    """Return whether the ">" of a block quote directly precedes a line's text, with no list markup in between.

    GitHub and Obsidian recognize a callout only on the first line of a quote, but in DocFX it may start on any line.
    """
    start = state.bMarks[line]  # after the ">" and at most one space
    return state.blkIndent == 0 and state.src[max(start - 2, 0) : start].rstrip(" \t").endswith(">")


def indented_end(state: StateBlock, start: int, end: int) -> int:
    """Return the number of the line after the last indented line."""
    last = start
    for line in range(start, end):
        if not state.isEmpty(line):
            if state.sCount[line] < state.blkIndent + INDENT:
                break
            last = line + 1
    return last


def parse_indented(state: StateBlock, start: int, end: int) -> None:
    """Parse the content of an indented container."""
    before = state.parentType, state.lineMax, state.blkIndent
    state.parentType, state.lineMax, state.blkIndent = "admonition", end, state.blkIndent + INDENT
    state.push("container_open", "div", 1)
    state.md.block.tokenize(state, start, end)
    state.push("container_close", "div", -1)
    state.parentType, state.lineMax, state.blkIndent = before


def item(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule for a footnote or a definition. Its first line begins after a mark, and its other lines are indented."""
    if state.is_code_block(start) or not (found := ITEM.match(line_of(state, start))):
        return False
    if silent:
        return True
    before = state.bMarks[start], state.tShift[start], state.sCount[start]
    state.bMarks[start] += state.tShift[start] + found.end()
    state.tShift[start], state.sCount[start] = 0, state.blkIndent + INDENT
    parse_indented(state, start, end)
    state.bMarks[start], state.tShift[start], state.sCount[start] = before
    return True


def definition(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule for link reference definitions, whose titles are decoded."""
    if not silent and (found := TEMPLATE_DEFINITION.match(line_of(state, start))) and not state.is_code_block(start):
        references = state.env.setdefault("references", {})
        references.setdefault(normalizeReference(found["label"]), {"title": "", "href": ""})
        state.line = start + 1
        return True
    if not reference(state, start, end, silent):
        return False
    last = state.line - 1
    if not silent and (found := LINK_TITLE.search(line_of(state, last))):
        first = state.bMarks[last] + state.tShift[last]
        first, stop = (first + place for place in found.span(found.lastindex or 0))
        add_content(state, last, first, stop, PLAIN)
    return True


def html(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule for HTML blocks, which are parsed as HTML unless they are divided by the markup of a quote."""
    if not html_block(state, start, end, silent):
        return False
    if not silent:
        borders = zip(state.eMarks[start : state.line - 1], state.bMarks[start + 1 : state.line], strict=True)
        if all(begin == stop + 1 for stop, begin in borders):
            add_content(state, start, state.bMarks[start], state.eMarks[state.line - 1], HTML)
    return True


def formula(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    r"""A rule for formulas in $$, \[...\], or a LaTeX environment. Text after a formula is parsed as Markdown."""
    text = line_of(state, start)
    if text[:1] not in ("$", "\\") or state.is_code_block(start) or not (found := formula_end(state, start, end)):
        return False
    line, position = found
    if not silent and FORMULA_END.match(state.src[position : state.eMarks[line]]):
        state.line = line + 1
    elif not silent:
        state.bMarks[line], state.tShift[line], state.sCount[line] = position, 0, state.blkIndent
        state.line = line
    return True


def formula_end(state: StateBlock, start: int, end: int) -> tuple[int, int] | None:
    """Return the line and position at which the formula at the start of a line ends, or None if there is no formula."""
    text = line_of(state, start)
    if text.startswith("$$"):
        marks, size = re.compile(r"\$\$"), 2
    elif re.match(r"\\\[(?:\s|$)", text):
        marks, size = re.compile(r"\\\]"), 2
    elif found := ENVIRONMENT.match(text):
        marks, size = re.compile(rf"\\(?:(?P<opening>begin)|end)\{{{re.escape(found[1])}\}}"), found.end()
    else:
        return None
    unclosed = state.env.setdefault("unclosed", set())
    if (marks, end) in unclosed:  # searching again from each line would take quadratic time
        return None
    depth, is_mathematical = 1, text[1] != "["
    for line, each, place in lines_from(state, start, end, size):
        for mark in marks.finditer(each):
            depth += 1 if mark.lastgroup else -1
            if depth == 0:
                is_mathematical |= MATHEMATICAL.search(each, 0, mark.start()) is not None
                is_alone = line > start or FORMULA_END.match(each, mark.end()) is not None
                return (line, place + mark.end()) if is_mathematical and is_alone else None
        is_mathematical |= MATHEMATICAL.search(each) is not None
    unclosed.add((marks, end))
    return None


def lines_from(state: StateBlock, start: int, end: int, size: int) -> Iterator[tuple[int, str, int]]:
    """Yield each line of the container with its text and position. size: characters to skip in the first line."""
    for line in range(start, end):
        if line > start and state.sCount[line] < state.blkIndent and not state.isEmpty(line):
            return
        place = state.bMarks[line] + state.tShift[line] + (size if line == start else 0)
        yield line, state.src[place : state.eMarks[line]], place

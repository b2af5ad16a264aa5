"""Rules for markdown-it-py that copy lines of templates and programs: Liquid, Jinja, Hugo, kramdown, MDX, Obsidian.

Tags, expressions, comments, attribute lists, and the statements and components of MDX are copied. The words between two
tags are parsed as Markdown, and so are the children of a component, whose indentation is removed.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from markdown_it.common.html_blocks import block_names
from markdown_it.rules_block import StateBlock

PLAIN = "plain"  # the tag of the event after text that is not Markdown, such as an attribute
LONGEST = 1 << 12  # maximum length of a tag, an expression or a comment; a longer one is read as text
# Start -> end
DELIMITERS = {"{/*": "*/}", "{{<": ">}}", "{{%": "%}}", "{{": "}}", "{%": "%}", "{#": "#}", "%%": "%%"}
COMMENTS = ("{/*", "{#", "%%")
BRACES = r"\{[^{}]*+\}"
for _ in range(5):  # levels of nesting
    BRACES = rf"\{{(?:[^{{}}]++|{BRACES})*+\}}"
BRACED = re.compile(BRACES)
# A list of attributes in kramdown, MkDocs and Pandoc: {: .class #id}, { width="300" }, {:toc}, {::options /}
NAME = r"[\w:-]{1,60}+"
ATTRIBUTE = rf"(?:[#.]{NAME}|{NAME}=(?:\"[^\"\n]{{0,300}}+\"|'[^'\n]{{0,300}}+'|[^\s\"'{{}}]{{1,300}}+))"
ATTRIBUTES = re.compile(rf"\{{:?[ \t]*+{ATTRIBUTE}(?:[ \t]++(?:{ATTRIBUTE}|{NAME}))*+[ \t]*+\}}")
SPAN = re.compile(r"\{:(?!\))[^{}\n]{0,300}+\}")
EXPRESSION = re.compile(r"\w\(|\w\.\w|=>|&&|\|\||\.\.\.|`")  # in an expression of MDX, unlike in a placeholder
# The first tag of an element whose content is not Markdown: {% highlight sh %}, {{< mermaid >}}
VERBATIM = re.compile(
    r"\{(?:%-?|\{[<%])[ \t]*+(?P<name>chart|code[\w-]*+|comment|graphviz|highlight|javascript|katex|latex|math|mermaid"
    r"|plantuml|schema|style)\b(?![^{}\n]*+(?<=/)>\}\})"
)
# Statements of MDX, at the start of a line
ESM = re.compile(
    r"import[ \t]+(?:[\"'{*]|(?:type[ \t]+)?[\w$]+[ \t]*(?:,[ \t]*[{*]|[ \t]from[ \t]+[\"']))"
    r"|export[ \t]+(?:[{*]|(?:const|let|var|function\*?|async|class|type|interface|enum)[ \t]+"
    r"(?:[{\[]|function\b|[\w$]+[ \t]*(?:[=:({<]|extends\b|\Z))"
    r"|default[ \t]+(?:[\[{(<]|function\b|class\b|async\b|[\w$.]+[ \t]*(?:[;(]|=>|\Z)))"
)
BRACKET = re.compile(r"[\[({]|([\])}])")
# A tag whose attributes may have values in braces. Tags without them are also tags of HTML, unless they are components
JSX = re.compile(rf"</?(?:(?P<name>[A-Za-z][\w.:-]*+)(?:[^<>{{}}\"'`/]++|/(?!>)|\"[^\"]*+\"|'[^']*+'|{BRACES})*+)?/?>")
MARKDOWN = re.compile(r"\smarkdown(?:=[\"'](?:1|block|span)[\"'])?[\s>]")  # in an HTML tag before Markdown
# Attributes with words that the reader sees
WORDS = re.compile(
    r"(?<=[\s\"'{}])(?:(?:fig-)?(?:alt|cap)|caption|description|label|summary|title)=\"(?P<words>[^\"\n]+)\""
)


def construct_end(source: str, start: int, end: int) -> int:
    """Return the end of the tag, expression or comment that starts at a position, or 0 if there is none."""
    end = min(end, start + LONGEST)
    for pattern in (SPAN, ATTRIBUTES):
        if found := pattern.match(source, start, end):
            return found.end()
    for opening, closing in DELIMITERS.items():
        if source.startswith(opening, start) and (at := source.find(closing, start + len(opening), end)) >= 0:
            return at + len(closing)
    found = BRACED.match(source, start, end)
    return found.end() if found and EXPRESSION.search(found[0]) else 0


def is_component(name: str | None) -> bool:
    """Return whether a tag's name is a component's name, or is missing in a fragment, as in "<>"."""
    return not name or (name[0].isupper() and not (name.isupper() and name.lower() in block_names))


def line_at(state: StateBlock, position: int, start: int) -> int:
    """Return the number of the line with a position. start: the number of a line before it."""
    return bisect_right(state.bMarks, position, start) - 1


def template(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule for lines that consist of tags, expressions, comments and attribute lists."""
    position = state.bMarks[start] + state.tShift[start]
    source, last = state.src, state.eMarks[end - 1]
    if source[position : position + 1] not in ("{", "%") or state.is_code_block(start):
        return False
    ends_paragraph = source.startswith(("{%", "{{%", "{{<", "{/*", "{:", "%%"), position) or (
        ATTRIBUTES.match(source, position, state.eMarks[start]) is not None
    )
    if silent and not ends_paragraph:
        return False
    line = start
    while position < state.eMarks[line]:
        stop = verbatim_end(state, position, last) or construct_end(source, position, last)
        if not stop:
            return False
        line = line_at(state, stop - 1, line)
        rest = source[stop : state.eMarks[line]]
        position = stop + len(rest) - len(rest.lstrip(" \t"))
    if line >= end or not (ends_paragraph or line + 1 >= end or state.isEmpty(line + 1)):
        return False  # "{{ name }}" may begin a sentence
    if not silent:
        state.line = line + 1
    return True


def verbatim_end(state: StateBlock, start: int, end: int) -> int:
    """Return the end of an element of Liquid or Hugo whose content is not Markdown, or 0."""
    if not (found := VERBATIM.match(state.src, start, end)):
        return 0
    unclosed = state.env.setdefault("unclosed", set())
    name = found["name"]
    pattern = re.compile(rf"\{{%-?\s*+end{name}\s*+-?%\}}|\{{\{{[<%]\s*+/{name}\s*+[>%]\}}\}}")
    closing = None if name in unclosed else pattern.search(state.src, start, end)
    if closing is None:  # searching again from each tag would take quadratic time
        unclosed.add(name)
        return 0
    return closing.end()


def statement(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule for the imports and exports of MDX, up to a blank line that is not between brackets."""
    first = state.bMarks[start]
    if silent or state.level or state.tShift[start] or not ESM.match(state.src, first, state.eMarks[start]):
        return False
    depth, line, after = 0, start, start
    while line == after < end:
        for bracket in BRACKET.finditer(state.src, state.bMarks[line], state.eMarks[line]):
            depth += -1 if bracket[1] else 1
        line += 1
        after = state.skipEmptyLines(line)
        if depth > 0 and (state.tShift[after] or state.src.startswith(("}", ")", "]"), state.bMarks[after])):
            line = after
    state.line = line
    state.env["mdx"] = True
    return True


def component(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule for lines that contain only tags, which enclose Markdown. Words in their attributes are decoded.

    These are the tags of components, all tags in a document with statements of MDX, tags with the attribute "markdown",
    and the end tags after them.
    """
    position = state.bMarks[start] + state.tShift[start]
    source = state.src
    if source[position : position + 1] != "<" or state.is_code_block(start):
        return False
    first, line, last = position, start, state.eMarks[end - 1]
    is_program = False
    while position < state.eMarks[line]:
        found = JSX.match(source, position, min(last, position + LONGEST))
        if found is None:
            return False
        tag = found[0]
        if is_component(found["name"]) or "{" in tag or state.env.get("mdx"):
            is_program = True
        elif MARKDOWN.search(tag) and not silent:
            state.env["markdown"] = True
        elif not (MARKDOWN.search(tag) or (tag[1] == "/" and state.env.get("markdown"))):
            return False  # HTML
        line = line_at(state, found.end() - 1, line)
        rest = source[found.end() : state.eMarks[line]]
        position = found.end() + len(rest) - len(rest.lstrip(" \t"))
    if silent:
        return True
    for words in WORDS.finditer(source, first, position):
        add_content(state, line_at(state, words.start(), start), *words.span("words"), PLAIN)
    state.line = line + 1
    if is_program:
        dedent(state, line + 1, end)
    return True


def dedent(state: StateBlock, start: int, end: int) -> None:
    """Remove the indentation of a component's children, which is not code."""
    start = state.skipEmptyLines(start)
    indent = state.sCount[start] if start < end else 0
    if indent > state.blkIndent:
        for line in range(start, end):
            if not state.isEmpty(line):
                if state.sCount[line] < indent:
                    return
                state.sCount[line] -= indent - state.blkIndent


def add_content(state: StateBlock, line: int, start: int, end: int, tag: str) -> None:
    """Add text of a line that is decoded. tag: the tag of the event after it, which determines how it is parsed."""
    event = state.push("inline", "", 0)
    event.content = state.src[start:end]
    event.map = [line, line + 1]
    event.meta["start"] = start
    state.push(f"{tag}_close", tag, 0)

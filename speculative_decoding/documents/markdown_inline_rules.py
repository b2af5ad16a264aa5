"""Rules for markdown-it-py that find inline markup of CommonMark and of Markdown's dialects.

Events have meta["end"] unless their markup determines where they end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it import rules_inline as rules
from markdown_it.rules_inline import StateInline

from .code_patterns import CODE_PATTERNS
from .markdown_templates import ATTRIBUTES, COMMENTS, JSX, LONGEST, SPAN, construct_end
from .splitting import Span

# At the start of a block: a task's checkbox, or a GitHub alert. At the start of a line: the marker of an abbreviation
# ("*[HTML]: "), or the first or last line of a container (":::: note")
CONTAINER = r"(?:(?::{3}[^\n]*(?:\n|$))+|\*\[[^\[\]\n]{1,60}\]:[ \t]+)"
MARKER = re.compile(rf"\n{CONTAINER}")
FIRST_MARKER = re.compile(rf"\[[^\[\]^]\][ \t]+|\[![A-Za-z]+\][ \t]*(?:\n|$)|{CONTAINER}")
# Formulas with backticks, over two lines, or between double backslashes, in addition to those of other formats
FORMULA = re.compile(
    r"\$`[^`\n]{1,400}+`\$|(?<![\w$\\])\$(?=[^$]{0,300}?[\\^_=])(?![\s\d])[^$\n]{1,400}+\n[^$\n]{1,400}+(?<!\s)\$(?![\w$])"
    r"|\\\\(?:\((?:(?!\\\\)[^\n]){1,300}+\\\\\)|\[(?:(?!\\\\)[^\n]){1,300}+\\\\\])"
    rf"|{CODE_PATTERNS['formula'][1].pattern}"
)
FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,100}\]|\[(?:TOC|toc)\](?![\[(:])")  # or the table of contents
# A link or an embedded file of a wiki: [[Page]], [[Page|Label]], ![[image.png|300]]
WIKI = re.compile(r"!?\[\[(?P<target>[^\[\]|\\\n]{1,300}+)(?:\\?\|(?P<label>[^\[\]\n]{1,300}+))?\]\](?!\()")
# The target of a link that contains templates: ({{ site.url }}/page), ({% link page.md %})
TEMPLATE_TARGET = re.compile(
    r"\((?=[^\s{}]{0,200}+\{)(?:[^\s(){}]{1,200}+|\{\{[^{}\n]{1,300}+\}\}|\{%[^{}\n]{1,300}+%\}){1,20}+"
    r"(?:[ \t]++\"[^\"\n]{1,300}+\")?\)"
)
KEYS = re.compile(
    r"(?<!\+)\+\+(?:[\w-]{1,20}+|\"[^\"\n]{1,30}+\")(?:\+(?:[\w-]{1,20}+|\"[^\"\n]{1,30}+\")){0,8}+\+\+(?!\+)"
)
EMOJI = re.compile(r"(?<![\w:]):[a-z\d_+-]{1,60}+:(?![\w:])")
# Not a word in upper case at the start of a block, which is a heading without a space, as in "#Install the program"
HASHTAG = re.compile(r"(?<!\S)(?!\A#[A-Z])#[^\W\d_][\w/-]{0,100}+")
LABEL = re.compile(r"\]\[(?!\^)[^\[\]\n]{1,100}+\]")  # of a link that another file defines
KEPT = {"+": KEYS, ":": EMOJI, "#": HASHTAG, "]": LABEL}
HIGHLIGHT = re.compile(r"(?<![\w=])==(?=\S)([^=\n]{1,300}+)(?<=\S)==(?![\w=])")
CRITIC = re.compile(r"\{(?P<mark>\+\+|--|==)(?P<text>(?:(?!(?P=mark)\}).){1,500}+)(?P=mark)\}", re.DOTALL)
# A replacement or a comment, whose texts are separate sentences
CRITIC_TEXTS = re.compile(
    r"\{~~((?:(?!~[~>]).){1,500}+)~>((?:(?!~~\}).){1,500}+)~~\}|\{>>((?:(?!<<\}).){1,500}+)<<\}", re.DOTALL
)
ENDING = {"newline": rules.newline, "escape": rules.escape, "backticks": rules.backtick, "link": rules.link}
WHOLE = {"autolink": rules.autolink, "html_inline": rules.html_inline}


def inline_parser() -> MarkdownIt:
    """Return a parser for inline markup."""
    parser = MarkdownIt("commonmark").enable("strikethrough")
    ruler = parser.inline.ruler
    for name, rule in ENDING.items():
        ruler.at(name, with_end(rule))
    for name, rule in WHOLE.items():
        ruler.at(name, as_one(rule, name))
    ruler.at("image", image)
    ruler.before("newline", "marker", as_one(marker, "marker"))
    ruler.before("escape", "dialect", dialect)
    ruler.before("escape", "formula", as_one(matching(FORMULA, "$\\"), "formula"))
    ruler.before("escape", "template", template)
    ruler.before("link", "footnote", as_one(matching(FOOTNOTE, "["), "footnote"))
    ruler.before("link", "wiki", wiki)
    ruler.before("link", "template_link", template_link)
    ruler.before("html_inline", "comment", as_one(comment, "html_inline"))
    ruler.before("autolink", "component", as_one(component, "html_inline"))
    return parser


def with_end(rule: Any) -> Any:
    """Wrap a rule so that it records where its last event ends."""

    def recording(state: StateInline, silent: bool) -> bool:
        count = len(state.tokens)
        found = bool(rule(state, silent))
        if found and len(state.tokens) > count:
            state.tokens[-1].meta["end"] = state.pos
        return found

    return recording


def as_one(rule: Any, name: str) -> Any:
    """Return a rule that emits one event without content for each match of another rule."""

    def emitting(state: StateInline, silent: bool) -> bool:
        if not rule(state, True):
            return False
        if not silent:
            state.push(name, "", 0).meta["end"] = state.pos
        return True

    return emitting


def matching(pattern: re.Pattern[str], first: str) -> Any:
    """Return a rule that matches a pattern. first: the characters with which a match may begin."""

    def rule(state: StateInline, silent: bool) -> bool:
        if state.src[state.pos] not in first or not (found := pattern.match(state.src, state.pos, state.posMax)):
            return False
        state.pos = found.end()
        return True

    return rule


def add_enclosed(state: StateInline, spans: Iterable[Span], end: int, *, is_markup: bool) -> None:
    """Add events for texts and for everything around them. Each text is parsed as Markdown.

    Args:
        spans: The position of each text.
        end: The end of the whole.
        is_markup: Whether the text belongs to the sentence around it, like emphasized words.
    """
    last = state.posMax
    for start, stop in spans:
        state.push(*(("enclosed", "", 1) if is_markup else ("marker", "", 0))).meta["end"] = start
        state.pos, state.posMax = start, stop
        state.md.inline.tokenize(state)
    state.push(*(("enclosed", "", -1) if is_markup else ("marker", "", 0))).meta["end"] = end
    state.pos, state.posMax = end, last


def marker(state: StateInline, silent: bool) -> bool:
    pattern = FIRST_MARKER if state.pos == 0 else MARKER
    if state.src[state.pos] not in "[:*\n" or state.level or not (found := pattern.match(state.src, state.pos)):
        return False
    state.pos = found.end()
    return True


def template(state: StateInline, silent: bool) -> bool:
    """Match a tag, expression, comment or list of attributes."""
    source, start = state.src, state.pos
    if source[start] not in "{%" or not (end := construct_end(source, start, state.posMax)):
        return False
    name = "template"
    if source.startswith(COMMENTS, start):
        name = "note"
    if source[start] == "%" and not (is_edge(source, start - 1) and is_edge(source, end)):
        return False
    if SPAN.match(source, start) or ATTRIBUTES.match(source, start):
        name = "attributes"
        follows_markup = start > 0 and source[start - 1] in ")]}*_`~:>"
        if not follows_markup and source[end : state.posMax].strip(" \t")[:1] not in ("", "\n"):
            return False
    if not silent:
        state.push(name, "", 0).meta["end"] = end
    state.pos = end
    return True


def is_edge(source: str, position: int) -> bool:
    """Return whether there is white space at a position, or no character."""
    return not source[max(position, 0) : position + 1].strip()


def dialect(state: StateInline, silent: bool) -> bool:
    """Match keys, emoji, hashtags, labels, highlighted text, changes in CriticMarkup, and inline notes."""
    source, start, last = state.src, state.pos, state.posMax
    first = source[start]
    if (pattern := KEPT.get(first)) and (found := pattern.match(source, start, last)):
        if not silent:
            state.push("template", "", 0).meta["end"] = found.end()
        state.pos = found.end()
        return True
    spans: list[Span] = []
    end, is_markup = 0, first != "^"
    if first == "=" and (found := HIGHLIGHT.match(source, start, last)):
        spans, end = [found.span(1)], found.end()
    elif first == "{" and (found := CRITIC.match(source, start, last)):
        spans, end = [found.span("text")], found.end()
    elif first == "{" and (found := CRITIC_TEXTS.match(source, start, last)):
        spans, end = [span for span in found.regs[1:] if span[0] >= 0], found.end()
        is_markup = False
    elif source.startswith("^[", start) and (close := state.md.helpers.parseLinkLabel(state, start + 1)) >= 0:
        spans, end = [(start + 2, close)], close + 1
    if not spans:
        return False
    state.pos = end
    if not silent:
        add_enclosed(state, spans, end, is_markup=is_markup)
    return True


def wiki(state: StateInline, silent: bool) -> bool:
    found = WIKI.match(state.src, state.pos, state.posMax) if state.src[state.pos] in "[!" else None
    if found is None:
        return False
    end = found.end()
    state.pos = end
    if not silent and found["label"] and found[0][0] == "[":
        add_enclosed(state, [found.span("label")], end, is_markup=True)
    elif not silent:
        state.push("template" if found[0][0] == "[" else "note", "", 0).meta["end"] = end
    return True


@lru_cache(maxsize=1)  # searching a block again from each bracket would take quadratic time
def has_templates(source: str) -> bool:
    return "{{" in source or "{%" in source


def template_link(state: StateInline, silent: bool) -> bool:
    """Match a link or an image whose target contains templates."""
    source, start = state.src, state.pos
    label = start + source.startswith("!", start)
    if not source.startswith("[", label) or not has_templates(source):
        return False
    close = state.md.helpers.parseLinkLabel(state, label, label == start)
    found = TEMPLATE_TARGET.match(source, close + 1, state.posMax) if close >= 0 else None
    if found is None:
        return False
    state.pos = found.end()
    if not silent:
        add_enclosed(state, [(label + 1, close)], found.end(), is_markup=True)
    return True


def image(state: StateInline, silent: bool) -> bool:
    """Match an image, and parse its description as Markdown."""
    start, last = state.pos, state.posMax
    if not rules.image(state, True):
        return False
    if not silent:
        end, state.pos = state.pos, start
        close = state.md.helpers.parseLinkLabel(state, start + 1, False)
        add_enclosed(state, [(start + 2, close)], end, is_markup=True)
        state.posMax = last
    return True


def component(state: StateInline, silent: bool) -> bool:
    """Match a tag that has attributes in braces, or a name with dots."""
    if state.src[state.pos] != "<":
        return False
    found = JSX.match(state.src, state.pos, min(state.posMax, state.pos + LONGEST))
    if found is None or not ("{" in found[0] or "." in (found["name"] or "")):
        return False
    state.pos = found.end()
    return True


def comment(state: StateInline, silent: bool) -> bool:
    """Match a comment as in CommonMark 0.31. markdown-it-py's pattern takes quadratic time for "<!--<!--...--->"."""
    if not state.src.startswith("<!--", state.pos) or state.html_terminator_last("-->") < state.pos + 4:
        return False
    state.pos = state.src.index("-->", state.pos + 4) + 3
    return True

"""Divides a text into prompts: sentences, lines, and parts that a model accepts. Independent of document tokens.

The results are spans (start, end) of the text, in order and without surrounding white space. Unless a function says
otherwise, only white space and the given line breaks lie outside the spans.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import accumulate, chain, pairwise

from ..errors import InputError, Message, note
from ..loading.language_map import language_of, language_tag, languages_named
from .findings import SHOWN
from .options import DocumentOptions
from .survival import Required, must_survive

Span = tuple[int, int]

LONGEST = 1 << 14  # maximum length of a span; decoding a piece is never interrupted, so a server's other clients wait
WINDOW = 1 << 13  # characters per call of sentencex, which takes quadratic time for unbalanced quotation marks
MARKS_TRIED = 16  # how many characters a cut within a word may move back to keep a combined character whole
# Marks after which a long sentence may be divided. In scripts with spaces, white space must follow (not in 1,000 or
# 12:30)
CLAUSE_END = re.compile(r"[,;:،؛;·](?=\s)|[\u2013\u2014](?!\d)|[、\uff0c\uff1a\uff1b]")
WORD = re.compile(r"\S")
SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "arabic": "Arab"}  # variant of a locale -> script
# Bullets, arrows, lines, musical notes, stars and emoji that stand alone
SYMBOLS = (
    "[|\u00a6\u00ab\u00b6\u00b7\u00bb\u2022\u2039\u203a\u2190-\u21ff\u2300-\u27bf\u2b00-\u2bff"
    "\U0001f300-\U0001faff\ufe0f\u200d]+"
)
# Signs without letters that precede or follow the words of a text, except punctuation and the start of a placeholder
SIGNS_FIRST = re.compile(rf"(?:(?:{SYMBOLS}|[^\w\s\"'()\[\]{{}}<$%\u00a1-\u00bf\u2018-\u203a\u20a0-\u20cf]+)\s+)*+")
SIGNS_LAST = re.compile(rf"(?:(?:{SYMBOLS}|[-*+=#~_/|<>@^\u2013\u2014]+)\s+)*+")  # matched in the reversed text
ORDINARY = re.compile(
    r"(?<!\S)[^\W\d_A-Z]{2,} [^\W\d_A-Z]{2,}(?![^\s.,;!?])"
)  # two words, at most one of which is a unit
MAY_ENCLOSE = re.compile(r"[`<{$\\]")  # may start code, a tag or a placeholder, which can contain two such words
OPAQUE = re.compile("[!-~]{100,}")  # longer than any word of a script with spaces
MIN_JUDGED = 20  # characters; shorter text is assumed to be language
CODE = re.compile(r"[{}\[\]<>=+*\\|^~$#@%;`_]|[a-z]\d+[a-z]|\d[a-z]+\d", re.IGNORECASE)
AROUND_WORD = ".,;:!?\"'()[]*_-\u2013\u2014/\u2026\u00ab\u00bb\u201c\u201d\u201e\u2018\u2019\u00bf\u00a1"
FORMULA = re.compile(r"[=\u2248\u2260\u2264\u2265\u2211\u222b\u221a\u00b1]")
# Three letters in a row, or one letter of a script that formulas do not use
SPOKEN = re.compile(
    r"[^\W\d_\u00aa-\u00be\u0590-\U0010ffff]{3}|[\u0590-\u1cff\u1e00-\u1fff\u2c00-\U0001d3ff\U0001d800-\U0010ffff]"
)
STATEMENT = re.compile(r"[\w)\]];(?! )|\w[=<][\w\"'\[(!]|\)\{|=>|&&|\|\|")  # in minified code
STATEMENT_SPACING = 20  # maximum average number of characters per statement in code
MIN_WORD_SHARE = 0.3  # minimum share of characters in words for a text to count as language


def has_sentences() -> bool:
    """Return whether sentencex is installed, which `sentence_spans` requires."""
    return find_spec("sentencex") is not None


def effective_unit(options: DocumentOptions) -> str:
    """Return the unit to decode. If sentencex is missing, sentences become lines, with a note to the user."""
    if options.unit != "sentence" or has_sentences():
        return options.unit
    way_out = "for sentences, run pip install sentencex"
    note(Message("{unit} sentence requires sentencex, so each line is one prompt; {way_out}", way_out=way_out))
    return "line"


def sentence_spans(text: str, language: str) -> list[Span]:
    """Return the sentences of a text. No sentence ends within a part that must survive.

    language: an ISO code; sentencex treats unknown codes as English.
    """
    starts = [*sentence_starts(re.sub(r"\s", " ", text), language)]  # sentencex's offsets are wrong at line breaks
    if starts and CODE.search(text):
        kept = [(span.start, span.end) for span in must_survive(text, ())]
        starts = [each for each in starts if not overlaps((each, each), kept)]
    return list(trimmed(text, pairwise([0, *starts, len(text)])))


def overlaps(span: Span, others: Sequence[Span]) -> bool:
    """Return whether a span overlaps any of the sorted, disjoint others. An empty span overlaps a span around it."""
    before = bisect_left(others, (span[1],)) - 1  # index of the last span that begins before this one ends
    return before >= 0 and others[before][1] > span[0]


def sentence_starts(text: str, language: str) -> Iterator[int]:
    """Yield the start of each sentence except the first. A sentence may be longer than `WINDOW`."""
    from sentencex import segment

    start = 0
    while start < len(text):
        window = text[start : start + WINDOW]
        lengths = [len(each) for each in segment(language, window)]
        assert sum(lengths) == len(window)
        starts = list(accumulate(lengths[:-1]))
        yield from (start + each for each in starts)
        if start + len(window) == len(text):
            return
        step = starts[-1] if starts else window.rfind(" ", 1)
        start += step if step > 0 else len(window)


def without_symbols(text: str, span: Span) -> Span:
    """Return a span without signs before and after its words, such as a bullet, an arrow, or the "»" of a link."""
    start, end = span
    part = text[start:end]
    if "\u00ab" in part and "\u00bb" in part:  # quotation marks
        return span
    before, after = len(SIGNS_FIRST.match(part)[0]), len(SIGNS_LAST.match(part[::-1])[0])  # type: ignore[index]
    return (start + before, end - after) if before + after < end - start else span


def line_spans(text: str, breaks: Iterable[Span]) -> list[Span]:
    """Return the lines of a text, divided at the breaks."""
    return list(trimmed(text, gaps(breaks, len(text))))


def short_spans(text: str, span: Span) -> list[Span]:
    """Divide a span into spans of at most `LONGEST` characters."""
    start, end = span
    if end - start <= LONGEST:
        return [span]
    parts = fitting_spans(text[start:end], lambda part: len(part) <= LONGEST)
    return [(start + first, start + last) for first, last in parts]


def gaps(spans: Iterable[Span], size: int) -> Iterator[Span]:
    """Yield the ranges of a text before, between and after spans. size: the length of the text."""
    borders = [0, *(border for span in spans for border in span), size]
    return zip(borders[::2], borders[1::2], strict=True)


def trimmed(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans without the white space at their ends, omitting blank spans."""
    for start, end in spans:
        part = text[start:end]
        if content := part.strip():
            start += len(part) - len(part.lstrip())
            yield start, start + len(content)


def needs_decoding(text: str) -> bool:
    """Return whether a text has letters outside the parts that must survive, such as addresses and placeholders."""
    if ORDINARY.search(text) and not MAY_ENCLOSE.search(text):  # a much faster shortcut
        return True
    return any(map(str.isalpha, without(text, must_survive(text, ()))))


def is_language(text: str) -> bool:
    """Return whether a text, without the parts that must survive, is natural language and not base64 or code."""
    if FORMULA.search(text) and not SPOKEN.search(text):
        return False
    if len(text) < MIN_JUDGED or not (CODE.search(text) or OPAQUE.search(text)):
        return True
    if OPAQUE.fullmatch(text):
        return is_word(text)
    spans = must_survive(text, ())
    statements = STATEMENT.findall(without(text, (span for span in spans if span.text[0] != "{")))
    if len(text) < STATEMENT_SPACING * len(statements):
        return False
    runs = without(text, spans).split()
    size = sum(map(len, runs))
    return size < MIN_JUDGED or sum(len(run) for run in runs if is_word(run)) >= MIN_WORD_SHARE * size


def without(text: str, spans: Iterable[Required]) -> str:
    """Return the text with each span replaced by a space."""
    return " ".join(text[start:end] for start, end in gaps(((each.start, each.end) for each in spans), len(text)))


def is_word(run: str) -> bool:
    """Return whether a string without white space may be a word: at least two letters, or one non-ASCII letter."""
    word = run.strip(AROUND_WORD)
    return (
        len(word) > word.isascii()
        and any(map(str.isalpha, word))
        and not CODE.search(word)
        and not OPAQUE.fullmatch(word)
    )


def around_opaque(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    """Divide spans at long runs without spaces, such as base64, and leave these runs out."""
    for start, end in spans:
        found = [match.span() for match in OPAQUE.finditer(text, start, end) if not is_word(match[0])]
        yield from trimmed(text, pairwise([start, *chain.from_iterable(found), end]))


def fitting_spans(text: str, fits: Callable[[str], bool]) -> list[Span]:
    """Divide a text into parts that a model accepts, if possible after a clause, else between words, else anywhere.

    fits: Returns whether a string is short enough. It may be slow, so it is called only a few times per part.

    If not even one character fits, the rest of the text becomes one part.
    """
    spans: list[Span] = []
    end, size = len(text.rstrip()), len(text)
    first = WORD.search(text)
    while first is not None:
        start = first.start()
        size = fitting_size(text, start, end, size, fits)
        stop = part_end(text, start, size, fits) if 0 < size < end - start else end
        spans.append((start, stop))
        first = WORD.search(text, stop)
    return spans


def fitting_size(text: str, start: int, end: int, guess: int, fits: Callable[[str], bool]) -> int:
    """Return a number of characters from `start` that fit, no more than 1/16 below the maximum."""
    rest = end - start
    low, high = 0, rest + 1  # `low` fits, `high` does not
    size = min(guess, rest)
    while high - low > 1 and (high > rest or high - low > low // 16):
        if fits(text[start : start + size]):
            low = size
        else:
            high = size
        size = min(2 * low, rest) if high > rest else (low + high) // 2
    return low


def part_end(text: str, start: int, size: int, fits: Callable[[str], bool]) -> int:
    """Return where the part from `start` ends. It has at most `size` characters, and never reaches the text's end."""
    while True:
        part = text[start : start + cut_size(text[start : start + size + 1])].rstrip()
        if len(part) == 1 or fits(part):
            return start + len(part)
        size = len(part) - 1  # a part may have more tokens than the longer string from which it was cut


def cut_size(text: str) -> int:
    """Return the position at which to cut a string, at the latest before its last character."""
    last = len(text) - 1
    clause = max((match.end() for match in CLAUSE_END.finditer(text) if match.end() <= last), default=0)
    space = max((match.start() for match in re.finditer(r"\s", text)), default=0)
    if cut := clause if clause > last // 2 else space or clause:  # prefer a long part to a short clause
        return cut
    marks = next((n for n in range(MARKS_TRIED) if last - n > 0 and not is_attached(text, last - n)), 0)
    return last - marks


def is_attached(text: str, position: int) -> bool:
    """Return whether a character belongs to the one before it, such as a combining mark, or a part of an emoji."""
    return "\u200d" in text[position - 1 : position + 1] or unicodedata.category(text[position])[0] == "M"


def source_language(src_lang: str | None, prefix: str) -> str:
    """Return the source language's ISO code, from a model's code or a prefix that names the language, or else "en"."""
    return language_of(src_lang).code if src_lang else languages_named(prefix)[0] or "en"


def target_language(tgt_lang: str | None, prefix: str) -> str | None:
    """Return the target language's BCP 47 tag, from a model's code or a prefix that names the language."""
    name = tgt_lang or languages_named(prefix)[1]
    return language_tag(name) if name else None


def wrong_target(declared: str, target: str | None) -> InputError | None:
    """Return an error if a bilingual document is for another language than the output's, or else None.

    Args:
        declared: The language of its targets: a BCP 47 tag, or a locale such as pt_BR or sr@latin.
        target: See `target_language`.
    """
    name, _, variant = declared.partition("@")
    known = language_of(f"{name.partition('.')[0]}_{SCRIPTS.get(variant, '')}")
    if target is None or known.includes(language_of(target)):
        return None
    problem = f"the document is for translations into {declared[:SHOWN]}, not into {target}"
    return InputError(problem, way_out="correct its language, or name another document")

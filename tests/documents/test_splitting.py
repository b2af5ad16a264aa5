"""Spans of sentences, lines, and parts that fit leave only white space out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from speculative_decoding.documents import splitting
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.splitting import (
    WINDOW,
    Span,
    effective_unit,
    fitting_spans,
    line_spans,
    needs_decoding,
    sentence_spans,
    source_language,
    without_symbols,
)
from speculative_decoding.documents.survival import must_survive
from speculative_decoding.errors import Note
from tests.documents.properties import SMALL, TEXTS


def parts_of(text: str, spans: list[Span]) -> list[str]:
    """Return the parts, after checking that only white space lies outside of them."""
    borders = [0, *(border for span in spans for border in span), len(text)]
    assert borders == sorted(borders)
    assert not "".join(text[start:end] for start, end in zip(borders[::2], borders[1::2], strict=True)).strip()
    parts = [text[start:end] for start, end in spans]
    assert all(part and part == part.strip() for part in parts)
    return parts


@SMALL
@given(TEXTS, st.sampled_from(["en", "de", "ja", "hi", "ar", "unknown", ""]))
def test_sentences_leave_only_white_space_out(text: str, language: str) -> None:
    parts_of(text, sentence_spans(text, language))


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Mr. Smith came at 5 p.m. today.", "“Is it late?”", "Yes!", "It costs 1.5 m."]),
        ("de", ["Das gilt z. B. am 3. Mai.", "Und dann?"]),
        ("ja", ["これは文です。", "次の文です。"]),
        ("xx", ["A language that is unknown.", "It has 😀 sentences."]),
    ],
)
def test_sentences_are_found(language: str, sentences: list[str]) -> None:
    for space in [" ", "\n\n", " \u2028\r\n"]:
        text = space.join(sentences)
        assert parts_of(text, sentence_spans(text, language)) == sentences


def test_long_texts_have_the_sentences_of_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """sentencex receives few characters at a time, and each character at most three times."""
    given, segment = [], sentencex.segment

    def counting(language: str, text: str) -> list[str]:
        given.append(len(text))
        return segment(language, text)

    monkeypatch.setattr(sentencex, "segment", counting)
    texts = {
        "This is it. Mr. Smith left.": 2,
        "“你好。” “走。”": 2,
        "a" * (3 * WINDOW) + ".": 1,
        "word " * WINDOW + "end.": 1,
        "“" * (2 * WINDOW) + ".": 1,
        ("a" * (WINDOW // 2) + " ") * 9 + ".": 1,
    }
    for repeated, count in texts.items():
        times = max(4 * WINDOW // len(repeated), 1)
        text = " ".join([f"Go. {repeated}"] * times)
        given.clear()
        assert len(sentence_spans(text, "en")) in ((count + 1) * times, count * times)
        assert max(given) <= WINDOW and sum(given) <= 3 * len(text)


def test_lines_lie_between_breaks() -> None:
    assert parts_of("One two 三四", line_spans("One two 三四", [(3, 4), (7, 8)])) == ["One", "two", "三四"]
    assert line_spans("三四", [(1, 1)]) == [(0, 1), (1, 2)]
    assert line_spans(" One two ", []) == [(1, 8)]
    assert line_spans("  ", [(0, 1)]) == line_spans("", []) == []


def test_without_sentencex_lines_are_decoded_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert effective_unit(DocumentOptions()) == "sentence"
    monkeypatch.setattr(splitting, "find_spec", lambda name: None)
    with pytest.warns(Note, match="pip install sentencex"):
        assert effective_unit(DocumentOptions()) == "line"
    assert effective_unit(DocumentOptions(unit="paragraph")) == "paragraph"


WITHOUT_WORDS = ["", " \n", "12", "1,000.5", "---", "* * *", "https://example.org/a?b=c", "<you@example.org>", "%1$s"]
WITHOUT_WORDS += [
    "{name}: ${x}",
    "&amp;",
    "get_name()",
    "docs/index.md",
    "12 km",
    "!?",
    "½",
    "`git push origin`",
    "textContent innerText",
    "5 km",
]


@pytest.mark.parametrize("text", WITHOUT_WORDS)
def test_only_words_need_decoding(text: str) -> None:
    assert not needs_decoding(text)
    for word in ["Word", "ß", "你", "and/or", "can't"]:
        assert needs_decoding(word) and needs_decoding(f"{text} {word}.") and needs_decoding(f"{word} {text}")


@SMALL
@given(st.lists(st.sampled_from([*"5.,{}`<>", "km", "mb", "and", "Word", "textContent", "a_b", "--", "=", "%", "@"])))
def test_text_without_words_is_all_of_what_must_survive(words: list[str]) -> None:
    text = " ".join(words)
    kept = {index for span in must_survive(text, ()) for index in range(span.start, span.end)}
    assert needs_decoding(text) == any(each.isalpha() and index not in kept for index, each in enumerate(text))


def bytes_up_to(limit: int) -> Callable[[str], bool]:
    return lambda text: len(text.encode()) <= limit


@SMALL
@given(TEXTS, st.integers(4, 60))
def test_parts_fit_and_leave_only_white_space_out(text: str, limit: int) -> None:
    assert all(map(bytes_up_to(limit), parts_of(text, fitting_spans(text, bytes_up_to(limit)))))


def test_parts_fit_although_a_shorter_text_may_have_more_tokens() -> None:
    def tokens(part: str) -> int:
        return len(part) + 10 * (len(part) % 3 == 0)

    text = "When it rains, we all stay. Others, who are new here, go out and dance, or sing."
    for limit in range(12, 40):
        spans = fitting_spans(text, lambda part, limit=limit: tokens(part) <= limit)  # type: ignore[misc]
        assert max(map(tokens, parts_of(text, spans))) <= limit


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("It fits whole.", ["It fits whole."]),
        ("When it rains, we all stay.", ["When it rains,", "we all stay."]),
        ("1,000 of them: not 12:30, ok", ["1,000 of them:", "not 12:30, ok"]),
        ("No marks are in these words", ["No marks are in", "these words"]),
        ("So, this mark is too early", ["So, this mark is", "too early"]),
        ("abcdefghijklmnopqrstuvwxyz", ["abcdefghijklmnop", "qrstuvwxyz"]),
        ("我们今天都很好、他们昨天也都来了、是吗", ["我们今天都很好、", "他们昨天也都来了、是吗"]),
        ("abcdefghijklmno\u0301\u0302pqrst", ["abcdefghijklmn", "o\u0301\u0302pqrst"]),
    ],
)
def test_a_part_ends_at_the_last_clause_or_word_that_fits(text: str, parts: list[str]) -> None:
    assert parts_of(text, fitting_spans(text, lambda part: len(part) <= 16)) == parts


@pytest.mark.parametrize(
    "text", ["a" * 100_000, "He came, and she went away. " * 4000, "\u0301" * 20_000, "字" * 50_000]
)
def test_few_characters_are_tried_for_each_part(text: str) -> None:
    tried = []

    def fits(part: str) -> bool:
        tried.append(len(part))
        return len(part) <= 1000

    spans = fitting_spans(text, fits)
    assert len(spans) <= len(text) // 800 and len(tried) <= 12 * len(spans) + 20
    assert sum(tried) <= 16 * len(text)


def test_what_no_cut_makes_fit_is_one_part() -> None:
    assert fitting_spans(" a b c ", lambda part: False) == [(1, 6)]
    assert fitting_spans("aXb", lambda part: len(part) == 1) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("src_lang", "prefix", "language"),
    [
        ("eng_Latn", "", "en"),
        ("zho_Hans", "", "zh"),
        ("de_DE", "", "de"),
        ("ja", "translate English to German: ", "ja"),
        (None, "translate German to English: ", "de"),
        (None, "Translate from French into English: ", "fr"),
        (None, "translate ja to en: ", "ja"),
        (None, "translate it to German: ", "en"),
        (None, "<2de> ", "en"),
        (None, "summarize: ", "en"),
        (None, "", "en"),
    ],
)
def test_the_language_is_that_of_the_source(src_lang: str | None, prefix: str, language: str) -> None:
    assert source_language(src_lang, prefix) == language


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\u2022 One item", "One item"),
        ("Home \u00bb", "Home"),
        ("\u266a La la \U0001f600 \u266a", "La la"),
        ("\u00ab Bonjour \u00bb, dit-il.", "\u00ab Bonjour \u00bb, dit-il."),
        ("I like C++ at 5 \u20ac", "I like C++ at 5 \u20ac"),
        ("\u2192 \u2192", "\u2192 \u2192"),
        ("Vraiment ?", "Vraiment ?"),
    ],
)
def test_symbols_at_the_ends_are_no_words(text: str, words: str) -> None:
    start, end = without_symbols(text, (0, len(text)))
    assert text[start:end] == words

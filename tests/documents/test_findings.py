"""Loops and unusual lengths are found, ordinary outputs have no findings, and a report is short."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.documents.findings import LENGTH, MARKUP, MAX_LINES, Finding, report
from speculative_decoding.documents.output_checks import MIN_PIECES, LengthRatios, loop_in

WORD = st.text("abc,東 ", min_size=1, max_size=30).map(str.strip).filter(lambda text: any(map(str.isalpha, text)))


@given(WORD, st.integers(4, 9), st.text("xyz ", max_size=20), st.text("xyz ", max_size=20))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_a_repeated_text_is_a_loop_unless_the_source_repeats_as_often(
    text: str, times: int, before: str, after: str
) -> None:
    output = f"{before} {f'{text} ' * times}{after}"
    assert loop_in(output, "A source.") is not None
    assert loop_in(output, output) is None


@given(st.lists(st.sampled_from("abcdefghij"), max_size=60, unique_by=None))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_loops_are_those_of_brute_force(words: list[str]) -> None:
    expected = any(
        words[i : i + n] * 4 == words[i : i + 4 * n] for n in range(1, 16) for i in range(len(words) - 4 * n + 1)
    )
    assert (loop_in(" ".join(words), "") is not None) == expected


@pytest.mark.parametrize(
    ("output", "source", "loop"),
    [
        ("er sagte, er sagte, er sagte, er sagte,", "he said", "er sagte,"),
        ("la la la la", "la la la la", None),
        ("nein nein nein nein!", "no no no no!", None),
        ("la la la la la", "la la la la", "la"),
        ("Dateidateidateidateidateidateidatei", "file", "datei"),
        ("東京都東京都東京都東京都", "Tokyo", "東京都"),
        ("Wait....", "Wait.", None),
        ("(" * 40, "(", "("),
        ("10000 und 100000", "x", None),
        ("a b c a b c a b c", "x", None),
        ("", "", None),
    ],
)
def test_loops(output: str, source: str, loop: str | None) -> None:
    found = loop_in(output, source)
    assert found == loop or (found is not None and loop is not None and sorted(found) == sorted(loop))


@pytest.mark.parametrize("unit", ["a", "a b ", "東"])
def test_a_hundred_thousand_characters_take_linear_time(unit: str) -> None:
    text = (unit * 100_000)[:100_000]
    assert loop_in(text, text[:-9]) is not None


def ratios_of(lengths: list[tuple[int, int]]) -> LengthRatios:
    ratios = LengthRatios()
    for line, (source, output) in enumerate(lengths, 1):
        ratios.add(line, "s" * source, "o" * output)
    return ratios


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), max_size=60))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_outliers_are_those_of_the_exact_median(lengths: list[tuple[int, int]]) -> None:
    ratios = {line: output / source for line, (source, output) in enumerate(lengths, 1) if source >= 20}
    middle = median(ratios.values()) if ratios else 0
    expected = [
        line for line, ratio in ratios.items() if not middle / 3.0001 < ratio < middle * 3.0001 and ratio != middle
    ]
    found = [finding.line for finding in ratios_of(lengths).outliers()]
    clear = [
        line for line, ratio in ratios.items() if not middle / 2.9999 < ratio < middle * 2.9999 and ratio != middle
    ]
    assert not found if len(ratios) < MIN_PIECES else {*expected} <= {*found} <= {*clear}


def test_outliers_are_named_by_line_and_ratio() -> None:
    ratios = ratios_of([(100, 110)] * 20 + [(100, 400), (100, 30), (19, 300)])
    what = "{} times as long as the source (median of the document: 1.1)"
    assert list(ratios.outliers()) == [Finding(21, LENGTH, what.format("4")), Finding(22, LENGTH, what.format("0.3"))]


def test_a_report_names_file_and_line_and_is_grouped_by_category() -> None:
    findings = [
        Finding(2, MARKUP, "{a}"),
        Finding(2, MARKUP, "{b}"),
        Finding(2, MARKUP, "{b}"),
        Finding(3, LENGTH, "long"),
        Finding(4, MARKUP, "\x1b[2J"),
    ]
    expected = ["a.md:2: markup: {a}; {b}", r"a.md:4: markup: \x1b[2J", "a.md:3: length: long"]
    assert report(findings, "a.md") == expected


def test_a_report_of_many_findings_ends_with_their_number() -> None:
    lines = report((Finding(line, MARKUP, "x") for line in range(1, 1_001)), "a.md")
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == f"a.md: markup: {1_000 - MAX_LINES} more; --stats-json lists all"

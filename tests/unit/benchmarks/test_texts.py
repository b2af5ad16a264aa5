"""The benchmark of given texts: its texts are determined by their inputs, and its figures agree with counts by hand."""

from __future__ import annotations

import json
import wave
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import interleave, texts
from benchmarks.given_texts import Decoded, GivenTexts, noisy, read_references, reference_of, with_changed_clauses
from benchmarks.speech_texts import read_samples
from benchmarks.tasks import prompts_from_files
from benchmarks.text_rows import Bench, Row, TimeRow, WasteRow, token_rows, waste_row
from speculative_decoding import InputError, Session
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import WHISPER, save_whisper, tiny_whisper


def test_noise_replaces_a_tenth_of_the_words_as_the_seed_determines() -> None:
    clean = [" ".join(f"w{i}x{j}" for j in range(20)) for i in range(100)]
    found = noisy(clean, ["a", "b"], 3)
    assert found == noisy(clean, ["a", "b"], 3) != noisy(clean, ["a", "b"], 4)
    words = [[*zip(text.split(), old.split(), strict=True)] for text, old in zip(found, clean, strict=True)]
    assert all(word in (old, "a", "b") for pairs in words for word, old in pairs)
    assert 160 <= sum(word != old for pairs in words for word, old in pairs) <= 240  # of 2,000


def test_one_prompt_of_ten_takes_the_last_clause_of_the_next_one() -> None:
    alone = [*"efghijk"]
    prompts = ["x", "a, b", "c, d", *alone, "l; m", "n // b"]
    assert with_changed_clauses(prompts) == ["x", "a, m", "c, d", *alone, "l; b", "n // b"]
    assert with_changed_clauses(["a, b", *"123456789", "c; b"]) == ["a, b", *"123456789", "c; b"]  # equal clauses
    assert with_changed_clauses(["a"]) == ["a"]


def test_one_of_ten_bundled_prompts_changes() -> None:
    for prompts in prompts_from_files((), 200).values():
        changed = with_changed_clauses(prompts)
        places = [i for i, (old, new) in enumerate(zip(prompts, changed, strict=True)) if old != new]
        assert [place // 10 for place in places] == [*range(20)]


def test_references_are_found_by_prompt_or_source(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("He go: home.\tHe goes: home.\ngrammar: It.\tThat.\n")
    references = read_references([file])
    assert reference_of("grammar: He go: home.", references) == "He goes: home."
    assert reference_of("grammar: It.", references) == "That."
    with pytest.raises(InputError, match='--references: no line for "grammar: I."'):
        reference_of("grammar: I.", references)
    file.write_text("one\ttwo\nthree\n")
    with pytest.raises(InputError, match=f"--references {file}: line 2 has no tab"):
        read_references([file])


@pytest.fixture(scope="module")
def bench(pair: Session) -> Bench:
    return Bench(pair, max_tokens=24)


@pytest.fixture(scope="module")
def decoded(bench: Bench) -> Decoded:
    return bench.decoded("grammar", ["grammar: It were a cod business.", "grammar: He go home."])


def test_the_best_place_in_an_exact_text_needs_the_fewest_calls(bench: Bench, decoded: Decoded) -> None:
    exact = [[result.text] for result in decoded.outputs]
    lengths = [len(result.tokens) for result in decoded.outputs]
    assert bench.best_place(decoded, exact) == sum(lengths) / sum(ceil(length / 16) for length in lengths)
    assert bench.best_place(decoded, [(), ()]) == 1.0


def test_no_text_draft_surpasses_the_best_place(bench: Bench, decoded: Decoded) -> None:
    given = GivenTexts("noise", decoded, [[["It was a business. A cold"], ["He goes, goes home."]]])
    found, together, best = token_rows(bench, given)
    assert (found.drafts, together.drafts, best.drafts) == ("text", "all", "text, best place")
    assert 1.0 < found.by_seed[0] <= best.by_seed[0]


def test_an_exact_text_wastes_no_pass(bench: Bench, decoded: Decoded) -> None:
    row = waste_row(bench, GivenTexts("prompt", decoded, [[[result.text] for result in decoded.outputs]]), 2)
    assert row.wasted == [0, 0] and max(row.more_calls) <= 0


def test_an_output_that_differs_from_the_baselines_is_an_error(bench: Bench, decoded: Decoded) -> None:
    swapped = Decoded(decoded.task, decoded.prompts, decoded.outputs[::-1])
    with pytest.raises(AssertionError, match="grammar: an output differs from the baseline's"):
        bench.tokens_per_call(swapped, [(), ()], "ngram")


def test_rows_show_means_and_medians() -> None:
    assert Row("noise", "text", "a", [4.0, 5.0]).figure == "4.50"
    assert WasteRow("noise", "a", [0, 1], [-1, 3]).figure == "0.50 (1), 1.00 (3)"
    assert TimeRow("noise", "a", [0.5, 0.75, 1.0]).figure == "0.750 (0.625-0.875)"
    rows = [Row("x", "text", "a", [1.0]), Row("y", "text", "a", [2.0]), Row("y", "text", "b", [3.0])]
    expected = "| given | a | b |\n| --- | --- | --- |\n| x | 1.00 |  |\n| y | 2.00 | 3.00 |"
    assert texts.table("Title", rows, ["given"]) == f"Title\n\n{expected}"


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = texts.main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "one.txt").write_text("grammar: It were a cod, cold business.\ngrammar: He go home.\n")
    (tmp_path / "two.txt").write_text("describe: hotels // inform: price per night = $168\n")
    return [str(tmp_path / name) for name in ("one.txt", "two.txt")]


@needs_subpackage("memory")
def test_the_command_counts_tokens_per_call(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    status, out, _ = command(capsys, *files, "--seeds", "2", "-m", "8", "--slots", "2", "--json", str(file))
    rows = json.loads(file.read_text())["rows"]
    kinds = ("none", "its own output with wrong words", "a memory of similar sources")
    useless = ("another prompt's output", "another task's output")
    drafts = ("text", "all", "text, best place")
    lines = [("none", each) for each in ("copies", "head", "head and copies")]
    lines += [(kind, each) for kind in (*kinds[1:], *useless) for each in drafts]
    counted = [row for row in rows if "by_seed" in row]
    assert status == 0
    assert [(row["given"], row["drafts"]) for row in counted if row["task"] == "two"] == lines
    assert all(len(row["by_seed"]) == 1 + (row["given"] == kinds[1]) for row in counted)
    assert [(row["given"], row["task"]) for row in rows if "wasted" in row] == [
        (kind, task) for task in ("one", "two") for kind in useless
    ]
    assert out.count("\n| ") == len(lines) + len(useless) + 4


@needs_subpackage("memory")
def test_the_command_times_texts(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleave, "SETTLE", 0.0)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("It were a cod, cold business.\tIt was a cold business.\nHe go home.\tHe goes home.\n")
    arguments = [files[0], "--time", "--repeats", "2", "-m", "8", "--references", str(pairs), "--json", "-"]
    status, out, err = command(capsys, *arguments)
    rows = json.loads(out)["rows"]
    assert status == 0 and "| a person's output | " in err
    assert [row["given"] for row in rows] == [
        "its own output with wrong words",
        "a person's output",
        "a memory of similar sources",
        "another prompt's output",
    ]
    assert all(len(row["ratios"]) == 2 and min(row["ratios"]) > 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--repeats", "2"], "--repeats: no effect without --time"),
        (["--time", "--seeds", "2"], "--seeds: no effect with --time"),
        (["--time", "--slots", "2"], "--slots: cannot be combined with --time"),
        (["--kinds", "person"], "--kinds person: needs --references"),
        (["--kinds", "noise", "--references", "pairs.tsv"], "--references: no effect without --kinds person"),
        (["--kinds", "speech"], "--kinds speech: needs --whisper"),
        (["--recordings", "a.wav"], "--recordings: no effect without --whisper"),
        (["--whisper", "a"], "--whisper: needs --transcriber"),
        (["--references", "no-such-file.tsv"], "no-such-file.tsv: not readable"),
    ],
)
def test_conflicting_options_are_one_line_errors(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = command(capsys, *arguments)
    assert status == 2 and out == "" and err.count("\n") == 1 and words in err


def test_another_task_needs_several_files(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = command(capsys, files[0], "--kinds", "task")
    assert status == 2 and "--kinds task: needs several files of prompts" in err


@needs_subpackage("speech")
def test_the_command_counts_tokens_per_call_of_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording's row does not depend on the other recordings, and "all" adds their tokens and calls."""
    from tests.support.speech import noise, wav

    for name in ("target", "other"):
        save_whisper(tiny_whisper(), tmp_path / name, WHISPER)
    files = [tmp_path / f"{name}.wav" for name in "ab"]
    for seed, file in enumerate(files):
        file.write_bytes(wav(noise(seed, 1.1)))

    def rows(*recordings: Path) -> list[dict[str, Any]]:
        models = ["--whisper", str(tmp_path / "target"), "--transcriber", str(tmp_path / "other")]
        status, out, _ = command(
            capsys, *models, "--kinds", "speech", "--json", "-", "--recordings", *map(str, recordings)
        )
        assert status == 0
        found: list[dict[str, Any]] = json.loads(out)["rows"]
        return found

    both = rows(*files)
    texts = ("transcript", "transcript with times", "the last hypothesis, after each second")
    lines = [
        ("none", "copies"),
        ("none", "draft model"),
        *((text, drafts) for drafts in ("text", "all") for text in texts),
    ]
    assert [
        (row["given"].removeprefix("another model's "), row["drafts"]) for row in both if row["task"] == "all"
    ] == lines
    assert rows(files[1]) == [row for row in both if row["task"] == "b"]
    for first, second, together in zip(both[::3], both[1::3], both[2::3], strict=True):
        low, high = sorted((first["by_seed"][0], second["by_seed"][0]))
        assert 1.0 <= low <= together["by_seed"][0] <= high
    assert both[5]["by_seed"][0] > 1.0 and both[8]["by_seed"][0] > 1.0  # the other model is the same one


def test_recordings_of_another_format_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(b"no sound")
    with pytest.raises(InputError, match="--recordings .*a.wav: not a WAV file"):
        read_samples(file)
    with wave.open(str(file), "wb") as writer:
        writer.setparams((2, 2, 16_000, 0, "NONE", ""))
    with pytest.raises(InputError, match="--recordings .*a.wav: must have 16 kHz, one channel and 16 bits"):
        read_samples(file)

"""Tests jobs over files: line n of the output is the record of line n of the input."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import load
from speculative_decoding.cli import lines
from speculative_decoding.jobs import InputLine, Job, choose_format, parse_line, read_lines
from speculative_decoding.jobs.fields import LINE_OPTIONS, RECORD_FIELDS
from speculative_decoding.jobs.input import ParsedLine
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.sampling.options import option_specs
from tests.support.job_engine import (
    Choose,
    FakeScheduler,
    at_random,
    first,
    last,
    result_of,
    run_job,
    sample_input,
)

INPUT = sample_input(40)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync, which is slow."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# Parsing and records


@pytest.mark.parametrize("choose", [first, last, at_random()])
def test_records_keep_the_order_of_the_input(tmp_path: Path, choose: Choose) -> None:
    run_job(tmp_path / "out", INPUT, FakeScheduler(choose))
    lines = INPUT.decode().split("\n")
    for number, (line, fields) in enumerate(zip(lines, records(tmp_path / "out"), strict=True), start=1):
        assert fields["line"] == number
        if line == "too long":
            assert fields["error"] == "too long"
        elif not line:
            assert (fields["text"], fields["finish_reason"], fields["generated_tokens"]) == ("", "blank", 0)
        else:
            assert fields["text"] == line[::-1]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"nonsense", "not JSON (Expecting value, column 1)"),
        (b'{"prompt": "\xff"}', "not UTF-8 (invalid start byte, byte 13)"),
        (b"", "empty (expected a JSON object"),
        (b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}", "unsupported JSON (more than 32 levels)"),
        (b"[" * 100_000, "unsupported JSON (maximum recursion depth"),
        (b'{"x": %s}' % (b"9" * 5000), "unsupported JSON (Exceeds the limit (4300 digits) for integer"),
        (b'{"x": NaN, "prompt": "a"}', "'x': is not valid JSON (a lone surrogate, NaN or Infinity)"),
        (b'{"x": "\\ud800", "prompt": "a"}', "lone surrogate"),
        (b'{"prompt": "a", "prompt": "b"}', "field 'prompt' is given twice"),
        (b'{"id": 1}', 'prompt: is missing; give the line a "prompt", or an "audio" for a speech model'),
        (b"{}", 'prompt: is missing; give the line a "prompt"'),  # a guard
        (b'{"text": "a"}', 'prompt: is missing; rename the field "text" to "prompt", or to "audio" if it names a rec'),
        (b'{"id": 1, "input": "a", "seed": 3}', 'prompt: is missing; rename the field "input" to "prompt"'),
        (b'{"sentence": "a"}', 'prompt: is missing; rename the field "sentence" to "prompt"'),
        (b'{"file": "a.wav"}', 'prompt: is missing; rename the field "file" to "prompt", or to "audio" if it names'),
        (b'{"en": "a", "de": "b"}', 'prompt: is missing; give the line a "prompt"'),  # a guard
        (b'{"promt": "a"}', 'prompt: is missing; rename the field "promt" to "prompt"'),
        (b'{"prompt": "a", "text": "b"}', "text: is also a field of the output; rename it"),  # a guard
        (b'{"prompt": 5}', "prompt: must be text, not 5"),
        (b'"a\x00b"', "contains a NUL character (character 3)"),
        (b'{"prompt": "a", "num_beam_groups": 4}', "num_beam_groups: unknown option; leave it out, or rename the"),
        (b'{"prompt": "a", "temprature": 1}', "temprature: unknown option; use temperature"),
        (b'{"prompt": "too long"}', "too long"),
    ],
)
def test_an_invalid_line_becomes_an_error_record(tmp_path: Path, line: bytes, error: str) -> None:
    content = b'{"prompt": "one"}\n' + line + b'\n{"prompt": "two"}\n'
    totals = run_job(tmp_path / "out", content, format="jsonl")
    one, bad, two = records(tmp_path / "out")
    assert one["text"] == "eno" and two["text"] == "owt"
    assert bad["line"] == 2 and error in bad["error"] and "\n" not in bad["error"] and "text" not in bad
    assert (totals.lines, totals.errors, [*totals.first_errors], totals.rows) == (3, 1, [2], 2)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_records_do_not_depend_on_the_encoding_of_the_input(tmp_path: Path, encoding: str, format: str) -> None:
    texts = ["eins", "", "Ünïcödé 😀", "a\u2028b", "\u0a0a\u0d0a", "drei" * 5000, "Ende"]
    lines = [json.dumps({"prompt": text, "id": text}, ensure_ascii=False) for text in texts]
    content = "\r\n".join(texts if format == "text" else lines)
    mark = "" if encoding == "utf-8-sig" else "\ufeff"
    run_job(tmp_path / "plain", content.encode(), format=format)
    run_job(tmp_path / "other", (mark + content).encode(encoding), format=format)
    expected = (tmp_path / "plain").read_bytes()
    assert (tmp_path / "other").read_bytes() == expected and len(expected.splitlines()) == len(texts)
    assert b'"error"' not in expected
    assert choose_format("-", (mark + content).encode(encoding)[:8192]) == format


@pytest.mark.parametrize("mark", [b"", b"\xff\xfe"])
def test_a_text_with_nul_characters_is_an_error_record(tmp_path: Path, mark: bytes) -> None:
    """Tests UTF-16 without a byte-order mark, and a binary file."""
    content = "eins\nzwei\n".encode("utf-16-le") if not mark else mark + "a\0b\nok\n".encode("utf-16-le")
    run_job(tmp_path / "out", content)
    first, *_, last = records(tmp_path / "out")
    assert "contains a NUL character" in first["error"] and first["error"].endswith("; convert it to UTF-8")
    assert ("text" in last) == bool(mark)


def test_a_blank_prompt_is_a_blank_record_with_the_fields_of_its_line(tmp_path: Path) -> None:
    totals = run_job(tmp_path / "out", b'{"prompt": " ", "id": 7}\n{"prompt": "", "top_p": 3}\n', format="jsonl")
    blank, wrong = records(tmp_path / "out")
    expected = {"line": 1, "id": 7, "text": "", "finish_reason": "blank", "prompt_tokens": 0, "generated_tokens": 0}
    assert blank == expected | {"input_sha256": hashlib.sha256(b'{"prompt": " ", "id": 7}').hexdigest()[:16]}
    assert wrong["error"].startswith("top_p: must be")
    assert (totals.lines, totals.errors, totals.rows) == (2, 1, 0)


def test_user_fields_are_copied_to_the_record(tmp_path: Path) -> None:
    own = {
        "id": 2**70,
        "ü": "\u2028\x00ß",
        "nested": {"prompts": [None, 1.5, {"stop": True}]},
        "output": "",
        "speed": 1,
    }
    lines = [{"prompt": "a\n\rb", **own}, {"prompt": 5, **own}, {"prompt": "too long", **own}]
    run_job(tmp_path / "out", b"\n".join(json.dumps(each).encode() for each in lines), format="jsonl")
    for fields in records(tmp_path / "out"):
        assert {name: fields[name] for name in own} == own and ("text" in fields) != ("error" in fields)
    assert records(tmp_path / "out")[0]["text"] == "b\r\na"


@pytest.mark.parametrize(
    ("field", "error"),
    [
        ("max_tokens", "max_tokens: unknown option; use sample_len, or rename"),
        ("stop", "stop: unknown option; leave it out, or rename"),
        ("strict", "strict: is an option of all lines; give it on the command line"),
        ("speaker", None),
    ],
)
def test_a_field_of_a_recording_that_looks_like_an_option_is_refused(field: str, error: str | None) -> None:
    (line,) = read_lines(io.BytesIO(json.dumps({"audio": "a.wav", field: "x"}).encode()))
    row = parse_line(line, "jsonl")
    assert (row.error or "").startswith(error or "") and (row.error is None) == (error is None)


@pytest.mark.parametrize("name", option_specs())
def test_an_option_with_a_wrong_value_or_name_is_refused(name: str) -> None:
    def error_of(**fields: Any) -> str:
        (line,) = read_lines(io.BytesIO(json.dumps({"prompt": "a", **fields}).encode()))
        return parse_line(line, "jsonl").error or ""

    camel = name[0] + name.title().replace("_", "")[1:]
    camel = camel[:-1] if name.endswith("s") else f"{camel}s"
    if name not in LINE_OPTIONS:
        for spelling in (name, camel, name.replace("_", "-")):
            assert error_of(**{spelling: None}).startswith(f"{spelling}: is an option of all lines; give it on the")
        return
    assert error_of(**{name: {}}) == f"{name}: must be {LINE_OPTIONS[name].expected}, not {{}}"
    for spelling in (camel, f"--{name}"):
        assert error_of(**{spelling: None}).startswith(f"{spelling}: unknown option; use {name}, or rename the field")


def test_fields_with_the_names_of_output_fields_are_refused(tmp_path: Path) -> None:
    run_job(tmp_path / "out", b"a\ntoo long")
    for name in {*RECORD_FIELDS}.union(*records(tmp_path / "out")) - {"seed", "prompt"}:
        (line,) = read_lines(io.BytesIO(json.dumps({"prompt": "a", name: 1}).encode()))
        assert parse_line(line, "jsonl").error == f"{name}: is also a field of the output; rename it"


def test_seeds_depend_only_on_the_job_seed_and_the_line_number() -> None:
    def seeds(content: bytes, **options: Any) -> list[int | None]:
        lines = read_lines(io.BytesIO(content))
        return [parse_line(line, "jsonl", GenerationOptions(**options)).seed for line in lines]

    content = b'{"prompt": "a"}\n' * 500
    found = seeds(content, seed=3, temperature=1)
    assert len({*found, *seeds(content, seed=4, temperature=1)}) == 1000
    assert all(seed is not None and 0 <= seed < 2**32 for seed in found)
    changed = seeds(b"x\n" + content[16:], seed=3, temperature=1)
    assert changed == [None, *found[1:]] and seeds(content[:16]) == [None]  # no sampling at temperature 0


def test_line_ends_byte_order_mark_and_long_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_job(tmp_path / "out", "\ufeffab\r\n\ufeffc".encode())
    assert [each["text"] for each in records(tmp_path / "out")] == ["ba", "c\ufeff"]
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 8)
    content = b"1234567\n" + b"x" * 8 + b"\n" + b"y" * 30 + b"\nend"
    run_job(tmp_path / "out", content, force=True)
    texts = [each.get("text") for each in records(tmp_path / "out")]
    assert texts == ["7654321", None, None, "dne"] and "longer than 8 bytes" in records(tmp_path / "out")[2]["error"]
    assert [line.end for line in read_lines(io.BytesIO(content))] == [8, 17, 48, 51]


def test_format_is_chosen_by_suffix_or_first_line() -> None:
    for name, begins, expected in (
        ("a.jsonl", b"text", "jsonl"),
        ("a.NDJSON", b"", "jsonl"),
        ("a.txt", b"{}", "text"),
        ("-", b'\xef\xbb\xbf {"prompt"', "jsonl"),
        ("-", b"text", "text"),
        ("/dev/fd/63", b"{", "jsonl"),
        ("-", b"", "text"),
    ):
        assert choose_format(name, begins) == expected


# Memory


def test_memory_does_not_grow_with_the_number_of_lines() -> None:
    """Finishes the oldest row last, which is the worst order. A leak of one object per line would add 3,000 objects."""
    ahead, peaks = 0, [0, 0]  # number of lines read ahead; memory blocks in the first tenth of the job, and afterwards

    def lines_and_memory() -> Iterator[InputLine]:
        nonlocal ahead
        for line in read_lines(io.BytesIO(b"some words\n" * 4_000)):
            ahead = max(ahead, line.number - job.totals.lines)
            is_later = line.number > 1_000
            peaks[is_later] = max(peaks[is_later], sys.getallocatedblocks())
            yield line

    parse = partial(parse_line, format="text")
    job = Job(lines_and_memory(), parse, FakeScheduler(last, 8), lambda _: None, slots=8)
    gc.collect()
    *_, totals = job.run()
    early, later = peaks
    assert totals.lines == 4_000 and ahead == 512 and later < early + 1000


def test_long_lines_reduce_the_window() -> None:
    ahead = 0

    def parse(line: InputLine) -> ParsedLine:
        nonlocal ahead
        ahead = max(ahead, line.number - job.totals.lines)
        return ParsedLine(line, {"prompt": "a"})

    lines = (InputLine(number, bytes(10**7), b"", 0) for number in range(1, 51))
    job = Job(lines, parse, FakeScheduler(last), lambda _: None, slots=4)
    assert [totals.lines for totals in job.run()][-1] == 50 and ahead == 7


def test_a_long_source_is_encoded_in_a_batch_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory estimate covers one prompt, not a batch of prompts."""
    session = load("t5-web-docs-draft")
    shapes = []
    encode = type(session.model).encode
    monkeypatch.setattr(
        type(session.model), "encode", lambda self, *given: shapes.append(given[0].shape) or encode(self, *given)
    )
    prompts = ["grammar: He go.", "grammar: It were a cod business."]
    expected = [each.tokens for each in session.generate(prompts, drafter="none")]
    monkeypatch.setattr("speculative_decoding.models.base.MAX_BATCHED_SOURCE", 7)
    assert [each.tokens for each in session.generate(prompts, drafter="none")] == expected
    (together, *alone) = shapes
    assert together[0] == 2 and [each[0] for each in alone] == [1, 1]


# Statistics


def test_totals_sum_up_the_rows(tmp_path: Path) -> None:
    prompts = ["a", "a b c", "too long", "a b"]
    totals = run_job(tmp_path / "out", "\n".join(prompts).encode())
    results = [result_of(prompt).stats for prompt in prompts if prompt != "too long"]
    totals.seconds = 3.0  # the total time of the rows is six seconds, so three rows overlapped on average
    assert totals.rows == 3 and totals.stats.generated_tokens == 2 + 4 + 3 and totals.end_to_end_tps == 3.0
    assert totals.mean_time_to_first_token == pytest.approx(sum(each.time_to_first_token for each in results) / 3)
    assert (totals.encode_seconds, totals.decode_seconds) == (0.75, 2.25)
    assert totals.decode_tps == 9 / 2.25
    assert totals.as_dict()["iterations"] == 6

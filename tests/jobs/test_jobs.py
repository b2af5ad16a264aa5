"""Jobs over files: line n of the output is the record of line n of the input.

This holds for any order in which the engine finishes rows, and for any number of interruptions.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError, generate, load
from speculative_decoding.cli import lines
from speculative_decoding.cli.parser import flag
from speculative_decoding.jobs import Job, choose_format, output, parse_line, read_lines
from speculative_decoding.jobs import command as batch_command
from speculative_decoding.jobs.fields import LINE_OPTIONS
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import FastTokenizer
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.sampling.options import option_specs
from tests.support.job_engine import (
    SETTINGS,
    Choose,
    FakeScheduler,
    HalfWrites,
    Pipe,
    at_random,
    first,
    interrupted_batch,
    last,
    print_memory,
    result_of,
    run_job,
    sample_input,
)
from tests.support.kill_states import KillStates
from tests.support.processes import launch
from tests.support.terminal import read_terminal

ROOT = BUNDLED.parent
INPUT = sample_input(40)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, which is slow. Only a power failure needs it, and the tests simulate those."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def in_a_process(folder: Path, target: Callable[..., None], *arguments: object) -> tuple[int | None, str, str]:
    """Call a function in a new process. Return its exit status, standard output and standard error."""
    out, said = (Path(tempfile.mkstemp(dir=folder)[1]) for _ in range(2))
    process = launch(target, *arguments, out=out, said=said, folder=ROOT)
    process.join()
    return process.exitcode, out.read_text(), said.read_text()


def memory(folder: Path, *arguments: int) -> dict[str, Any]:
    """Measure a job in a separate process, where only its memory counts."""
    status, out, err = in_a_process(folder, print_memory, *arguments)
    assert status == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


# Parsing and records


@pytest.mark.parametrize("choose", [first, last, at_random(1), at_random(2)])
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
        (b'{"prompt": "a"', "not JSON (Expecting ',' delimiter, column 15)"),
        (b'{"prompt": "\xff"}', "not UTF-8 (invalid start byte, byte 13)"),
        (b"", "empty (expected a JSON object"),
        (b"[1]", "must be a JSON object, not [1]"),
        (b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}", "unsupported JSON (more than 32 levels)"),
        (b"[" * 100_000, "unsupported JSON (maximum recursion depth"),
        (
            b'{"x": ' + b"9" * 5000 + b"}",
            "unsupported JSON (Exceeds the limit (4300 digits) for integer string conversion)",
        ),
        (b'{"x": NaN, "prompt": "a"}', "'x': is not valid JSON (a lone surrogate, NaN or Infinity)"),
        (b'{"x": 1e999, "prompt": "a"}', "'x': is not valid JSON"),
        (b'{"x": "\\ud800", "prompt": "a"}', "lone surrogate"),
        (b'{"prompt": "\\ud800"}', "lone surrogate"),
        (b'{"prompt": "a", "prompt": "b"}', "field 'prompt' is given twice"),
        (b'{"text": "a"}', "text: is also a field of the output"),
        (b'{"id": 1}', "prompt: is missing"),
        (b'{"prompt": 5}', "prompt: must be text, not 5"),
        (b'"a\x00b"', "contains a NUL character (character 3)"),
        (b'{"prompt": "a", "max_tokens": "5"}', 'max_tokens: must be a whole number, 1 to 1048576, not "5"'),
        (b'{"prompt": "a", "max_tokens": true}', "max_tokens: must be a whole number, 1 to 1048576, not true"),
        (b'{"prompt": "a", "temperature": null}', "temperature: must be 0 or a number, 1e-10 to 1e+10, not null"),
        (b'{"prompt": "a", "stop": "b"}', 'stop: must be a list, each text that is not empty, not "b"'),
        (
            b'{"prompt": "a", "eos_token_ids": [1.5]}',
            "eos_token_ids: must be a list, each a whole number >= 0, not [1.5]",
        ),
        (b'{"prompt": "a", "num_draft_tokens": 65}', "num_draft_tokens: must be a whole number, 0 to 64, not 65"),
        (
            b'{"prompt": "a", "temperature": 1%s}' % (b"0" * 400),
            "temperature: must be 0 or a number, 1e-10 to",
        ),
        (
            b'{"prompt": "a", "repetition_penalty": 1%s}' % (b"0" * 400),
            "repetition_penalty: must be a number, 1e-10 to",
        ),
        (b'{"prompt": "a", "max_new_tokens": 5}', "max_new_tokens: unknown option; use max_tokens, or rename"),
        (b'{"prompt": "a", "temp": 1}', "temp: unknown option; use temperature"),
        (b'{"prompt": "a", "do_sample": true}', "do_sample: unknown option; use temperature"),
        (b'{"prompt": "a", "min_ngram_size": 2}', "min_ngram_size: is an option of all lines; give it on"),
        (
            b'{"prompt": "a", "num_beam_groups": 4}',
            "num_beam_groups: unknown option; leave it out, or rename the field",
        ),
        (b'{"prompt": "a", "num_beams": 4}', "num_beams: is an option of all lines; give it on the command line"),
        (b'{"prompt": "a", "--top-k": 4}', "--top-k: unknown option; use top_k"),
        (b'{"prompt": "a", "output-prefix": "b"}', "output-prefix: is an option of all lines"),
        (b'{"prompt": "a", "maxTokens": 5}', "maxTokens: unknown option; use max_tokens"),
        (b'{"prompt": "a", "temprature": 1}', "temprature: unknown option; use temperature"),
        (b'{"prompt": "a", "repitition_penalty": 1}', "repitition_penalty: unknown option; use repetition_penalty"),
        (b'{"prompt": "a", "drafer": "none"}', "drafer: is an option of all lines"),
        (b'{"prompt": "a", "eos-token-id": 5}', "eos-token-id: unknown option; use eos_token_ids"),
        (b'{"prompt": "a", "strict": true}', "strict: is an option of all lines"),
        (b'{"prompt": "a", "decoder_prefix": "b"}', "decoder_prefix: is an option of all lines"),
        (b'{"prompt": "a", "top_p": 2}', "top_p: must be a number above 0, at most 1, not 2"),
        (b'{"prompt": "too long"}', "too long"),
    ],
)
def test_an_invalid_line_becomes_an_error_record(tmp_path: Path, line: bytes, error: str) -> None:
    content = b'{"prompt": "one"}\n' + line + b'\n{"prompt": "two"}\n'
    totals = run_job(tmp_path / "out", content, format="jsonl")
    one, bad, two = records(tmp_path / "out")
    assert one["text"] == "eno" and two["text"] == "owt"
    assert bad["line"] == 2 and error in bad["error"] and "\n" not in bad["error"] and "text" not in bad
    assert (totals.lines, totals.errors, totals.error_lines, totals.rows) == (3, 1, [2], 2)


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
    """UTF-16 without a byte-order mark, and a binary file."""
    content = "eins\nzwei\n".encode("utf-16-le") if not mark else mark + "a\0b\nok\n".encode("utf-16-le")
    run_job(tmp_path / "out", content)
    first, *_, last = records(tmp_path / "out")
    assert "contains a NUL character" in first["error"] and first["error"].endswith("; convert it to UTF-8")
    assert ("text" in last) == bool(mark)


def test_a_blank_prompt_is_a_blank_record_with_the_fields_of_its_line(tmp_path: Path) -> None:
    totals = run_job(tmp_path / "out", b'{"prompt": " ", "id": 7}\n{"prompt": "", "top_p": 3}\n', format="jsonl")
    blank, wrong = records(tmp_path / "out")
    expected = {"line": 1, "id": 7, "text": "", "finish_reason": "blank", "prompt_tokens": 0, "generated_tokens": 0}
    assert blank == expected and wrong["error"].startswith("top_p: must be")
    assert (totals.lines, totals.errors, totals.rows) == (2, 1, 0)


def test_user_fields_are_copied_to_the_record(tmp_path: Path) -> None:
    own = {
        "id": 2**70,
        "ü": "\u2028\x00ß",
        "nested": {"prompts": [None, 1.5, {"stop": True}]},
        "output": "",
        "speed": 1,
    }
    lines = [{"prompt": "abc", **own}, {"prompt": 5, **own}, {"prompt": "too long", **own}]
    run_job(tmp_path / "out", b"\n".join(json.dumps(each).encode() for each in lines), format="jsonl")
    for fields in records(tmp_path / "out"):
        assert {name: fields[name] for name in own} == own and ("text" in fields) != ("error" in fields)


def test_options_of_a_line_are_passed_on() -> None:
    given = {"prompt": "a", "max_tokens": 3, "stop": ["x"], "seed": 5, "temperature": 1, "top_p": 0.5, "id": 0}
    (line,) = read_lines(io.BytesIO(json.dumps(given).encode()))
    row = parse_line(line, "jsonl")
    assert row.fields == {name: value for name, value in given.items() if name != "id"}
    assert row.seed == 5 and row.carried == {"id": 0}
    assert {name for name, spec in option_specs().items() if spec.per_row} - LINE_OPTIONS.keys() == {
        "decoder_prefix",
        "logprobs",
    }


@pytest.mark.parametrize(
    ("field", "error"),
    [
        ("langauge", "langauge: unknown option; use language, or rename the field if it is not an option"),
        ("word-timestamps", "word-timestamps: unknown option; use word_timestamps, or rename"),
        ("max_tokens", "max_tokens: unknown option; use sample_len, or rename"),
        ("source_language", "source_language: unknown option; use language, or rename"),
        ("stop", "stop: unknown option; leave it out, or rename"),
        ("strict", "strict: is an option of all lines; give it on the command line"),
        ("speaker", None),
    ],
)
def test_a_field_of_a_recording_that_looks_like_an_option_is_refused(field: str, error: str | None) -> None:
    (line,) = read_lines(io.BytesIO(json.dumps({"audio": "a.wav", field: "x"}).encode()))
    row = parse_line(line, "jsonl")
    assert (row.error or "").startswith(error or "") and (row.error is None) == (error is None)


@pytest.mark.parametrize(
    ("former", "meant"),
    [("num_draft", "num_draft_tokens"), ("source_language", "src_lang"), ("target_language", "tgt_lang")],
)
def test_a_former_name_of_an_option_gets_a_suggestion(former: str, meant: str) -> None:
    (line,) = read_lines(io.BytesIO(json.dumps({"prompt": "a", former: 3}).encode()))
    assert (parse_line(line, "jsonl").error or "").startswith(f"{former}: unknown option; use {meant}, or rename")


def test_seeds_depend_only_on_the_job_seed_and_the_line_number() -> None:
    content = b"\n".join(b'{"prompt": "a"}' for _ in range(2000))
    seeds = [
        parse_line(line, "jsonl", GenerationOptions(seed=3, temperature=1)).seed
        for line in read_lines(io.BytesIO(content))
    ]
    others = [
        parse_line(line, "jsonl", GenerationOptions(seed=4, temperature=1)).seed
        for line in read_lines(io.BytesIO(content))
    ]
    assert len({*seeds, *others}) == 4000 and all(seed is not None and 0 <= seed < 2**32 for seed in seeds)
    changed = [
        parse_line(line, "jsonl", GenerationOptions(seed=3, temperature=1)).seed
        for line in read_lines(io.BytesIO(b"x\n" + content[16:]))
    ]
    assert changed[1:] == seeds[1:] and changed[0] is None
    assert parse_line(next(read_lines(io.BytesIO(content))), "jsonl").seed is None  # no sampling at temperature 0


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


def test_memory_does_not_grow_with_the_number_of_lines(tmp_path: Path) -> None:
    """Uses the worst order, which finishes the oldest row last. An object kept per line would add 18,000 objects."""
    seen = memory(tmp_path, 20_000)
    assert seen["lines"] == 20_000 and seen["ahead"] == 512
    early, later = seen["peaks"]
    assert later < early + 1000
    without_window = memory(tmp_path, 15_000, 10**9)  # without the window, memory must grow
    early, later = without_window["peaks"]
    assert without_window["ahead"] == 15_000 and later > early + 50_000


def test_long_lines_reduce_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speculative_decoding.jobs.job.WINDOW_BYTES", 1000)
    written = io.BytesIO()
    lines = read_lines(io.BytesIO(b"\n".join([b"x" * 100] * 200)))
    taken = 0

    def counted() -> Iterator[Any]:
        nonlocal taken
        for line in lines:
            taken = line.number
            yield line

    job = Job(
        counted(),
        partial(parse_line, format="text"),
        FakeScheduler(last),
        lambda record, _: written.write(record),
        slots=4,
    )
    assert max(taken - totals.lines for totals in job.run()) <= 10
    assert len(written.getvalue().splitlines()) == 200


LONG = b'{"prompt": "%s"}' % (b"word " * 2_000_000)


def lines_of(capfd: pytest.CaptureFixture[str], path: Path, content: bytes, *arguments: object) -> list[dict[str, Any]]:
    """Return the records that `batch` writes for these lines."""
    path.write_bytes(content)
    _, out, _ = main(capfd, path, "-m", "3", *arguments)
    return [json.loads(line) for line in out.splitlines()]


def test_long_prompts_are_refused_before_tokenization(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = FastTokenizer.encode
    seen = []
    monkeypatch.setattr(
        FastTokenizer, "encode", lambda self, text, language: seen.append(len(text)) or encode(self, text)
    )
    monkeypatch.setattr("speculative_decoding.models.memory_budget.available_memory", lambda: 24 * 10**9)
    content = LONG + b'\n{"prompt": "grammar: He go."}'
    long, short = lines_of(capfd, tmp_path / "in.jsonl", content)
    assert long["error"].startswith("prompt: has 8000000 characters, but the model was trained on at most 512 tokens")
    assert short["text"] == "He go."
    content += b'\n{"prompt": "%s"}' % (b"word " * 30_000)
    long, short, middle = lines_of(capfd, tmp_path / "in.jsonl", content, "--allow-long-prompt")
    assert long["error"] == (
        "prompt: encoding 156250 tokens takes about 3906 GB of memory, and 24 GB are free; shorten or split it"
    )
    assert "takes about 144 GB of memory, and 24 GB are free" in middle["error"] and short["text"] == "He go."
    assert max(seen) < 200_000


def test_a_long_source_is_encoded_in_a_batch_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory estimate is for one prompt, not for a batch of them."""
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


# Interruption and resuming


def resumes_after_any_kill(folder: Path, monkeypatch: pytest.MonkeyPatch, finished_lines: int) -> bool:
    """Resume a job from the state before and after each important system call. Is each output the same?"""
    content = sample_input(5)
    run_job(folder / "whole", content)
    whole = (folder / "whole").read_bytes()
    job = folder / "job"
    job.mkdir()
    if finished_lines:
        run_job(job / "out", b"\n".join(content.split(b"\n")[:finished_lines]))
    states = KillStates(job, folder / "states")
    begin = output.ResumableOutput.__init__

    def begin_with_half_writes(self: output.ResumableOutput, path: Path, file: Any, settings: Any) -> None:
        begin(self, path, HalfWrites(file, states.moment), settings)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(output, "COMMIT_SECONDS", 1e9)  # no automatic commits
        patch.setattr(output.ResumableOutput, "__init__", begin_with_half_writes)
        for place, name in ((os, "fsync"), (tempfile, "mkstemp"), (Path, "chmod"), (Path, "replace")):
            states.around(patch, place, name)
        run_job(job / "out", content, resume=True, after_row=lambda journal: journal._commit())
    assert len(states.paths) > 20
    for state in states.paths:
        run_job(state / "out", content, resume=True)
        assert {*os.listdir(state)} == {"out", "out.job"}  # temporary files are removed
    return all((state / "out").read_bytes() == whole for state in states.paths)


@pytest.mark.parametrize("finished_lines", [0, 3])
def test_output_is_the_same_after_a_kill_around_any_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_lines: int
) -> None:
    assert resumes_after_any_kill(tmp_path, monkeypatch, finished_lines)


def test_a_missing_truncation_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.ResumableOutput, "_truncate", lambda self: self._file.seek(0, os.SEEK_END))
    assert not resumes_after_any_kill(tmp_path, monkeypatch, 3)


def test_a_torn_last_record_is_replaced(tmp_path: Path) -> None:
    run_job(tmp_path / "whole", INPUT)
    whole = (tmp_path / "whole").read_bytes()
    *_, before, end = whole.splitlines(keepends=True)
    for size in range(len(whole) - len(end) - len(before), len(whole) + 1):
        (tmp_path / "out").write_bytes(whole[:size])
        shutil.copy(output.journal_path(tmp_path / "whole"), output.journal_path(tmp_path / "out"))
        totals = run_job(tmp_path / "out", INPUT, resume=True)
        assert (tmp_path / "out").read_bytes() == whole and totals.lines == 40 and totals.errors == 4


def test_a_job_decodes_its_input_as_it_is_when_it_is_read(tmp_path: Path) -> None:
    """Lines that are appended during a job are decoded. After a truncation, the restored file can be resumed."""
    path, content = tmp_path / "in", b"".join(b"%031d\n" % i for i in range(1000))  # longer than a buffer

    def job(name: str, change: Any, **options: Any) -> bytes:
        source: Any = lambda _: path.open("rb")  # noqa: E731
        run_job(tmp_path / name, b"", source=source, after_row=lambda _: change(), **options)
        return (tmp_path / name).read_bytes()

    path.write_bytes(content)
    whole = job("whole", lambda: None)
    cut = job("cut", lambda: os.truncate(path, 320))
    assert len(cut) < len(whole) and whole.startswith(cut)
    path.write_bytes(content)
    assert job("cut", lambda: None, resume=True) == whole
    path.write_bytes(content[:320])
    assert job("grown", lambda: path.write_bytes(content)) == whole


def survives_power_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Simulate a power failure at each commit: unsynchronized data is lost, zero or kept, the journal old or new."""
    path = folder / "out"
    lost = folder / "lost"
    lost.mkdir()
    synced = 0
    fsync = os.fsync
    write_journal = output.atomic_write
    states = []

    def sync(descriptor: int) -> None:
        nonlocal synced
        fsync(descriptor)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            synced = path.stat().st_size

    def traced_write(journal: Path, content: str) -> None:
        if journal.exists():
            states.append((journal.read_bytes(), synced))
        write_journal(journal, content)
        states.append((journal.read_bytes(), synced))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        patch.setattr(output, "atomic_write", traced_write)
        run_job(path, INPUT, after_row=lambda resumable: resumable._commit())
    whole = path.read_bytes()
    assert len(set(states)) > 40
    for journal, size in set(states):
        for tail in (b"", bytes(100), whole[size : size + 100]):
            (lost / "out").write_bytes(whole[:size] + tail)
            output.journal_path(lost / "out").write_bytes(journal)
            try:
                run_job(lost / "out", INPUT, resume=True, source=Pipe)
            except InputError:
                return False
            if (lost / "out").read_bytes() != whole:
                return False
    shutil.rmtree(lost)
    return True


@pytest.mark.slow
def test_output_survives_a_power_failure_at_any_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert survives_power_failure(tmp_path, monkeypatch)


def test_a_journal_written_before_fsync_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = output.ResumableOutput._commit

    def early(resumable: Any) -> None:
        content = {"version": output.VERSION, **vars(resumable.written), "settings": resumable.settings}
        output.atomic_write(output.journal_path(resumable.path), json.dumps(content))
        commit(resumable)

    monkeypatch.setattr(output.ResumableOutput, "_commit", early)
    assert not survives_power_failure(tmp_path, monkeypatch)


def test_a_full_disk_is_reported_in_one_line_and_the_job_can_be_resumed(tmp_path: Path) -> None:
    run_job(tmp_path / "whole", INPUT)

    def fill(resumable: Any) -> None:
        if resumable.written.lines >= 10:
            room = iter((5,))

            def write(data: memoryview) -> int:
                for size in room:
                    return int(file.write(data[:size]))
                raise OSError(28, "No space left on device")

            file = resumable._file
            resumable._file = type(
                "Full", (), {"write": staticmethod(write), "__getattr__": lambda _, n: getattr(file, n)}
            )()

    with pytest.raises(
        InputError, match=r"\(No space left on device\); the records written so far are kept; continue with resume"
    ):
        run_job(tmp_path / "out", INPUT, after_row=fill)
    assert (tmp_path / "whole").read_bytes().startswith((tmp_path / "out").read_bytes())
    run_job(tmp_path / "out", INPUT, resume=True)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def interrupted(path: Path, after: int = 15) -> bytes:
    """Make an unfinished output and return its content."""

    def stop(resumable: Any) -> None:
        if resumable.written.lines >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(path, INPUT, after_row=stop)
    return path.read_bytes()


def test_an_interrupt_keeps_all_complete_records(tmp_path: Path) -> None:
    content = interrupted(tmp_path / "out")
    assert content.endswith(b"\n") and 15 <= len(content.splitlines()) < 40
    journal = json.loads(output.journal_path(tmp_path / "out").read_text())
    assert journal["size"] == len(content) and journal["lines"] == len(content.splitlines())
    totals = run_job(tmp_path / "out", INPUT, resume=True)
    run_job(tmp_path / "whole", INPUT)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    assert totals.errors == sum("error" in each for each in records(tmp_path / "out")) == 4
    again = run_job(tmp_path / "out", INPUT, resume=True)  # all lines are finished
    assert again.lines == 40 and again.rows == 0


def test_resuming_refuses_changed_files_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "out"
    before = interrupted(path)
    done = len(before.splitlines())
    lines = INPUT.split(b"\n")

    def refused(match: str, content: bytes = INPUT, **more: Any) -> None:
        left = path.read_bytes()
        with pytest.raises(InputError, match=match) as error:
            run_job(path, content, resume=True, **more)
        assert "--force" in error.value.message(flag) and "\n" not in str(error.value)
        assert path.read_bytes() == left

    for number in (1, done):
        refused("have changed since", b"\n".join([*lines[: number - 1], b"other", *lines[number:]]))
    refused("have changed since", b"\n".join(lines[1:]))
    refused(f"lists {done} finished lines, but input has {done - 1}", b"\n".join(lines[: done - 1]))
    refused("temperature was 0.0, is 1.0", settings=SETTINGS | {"temperature": 1.0})
    refused("top_k was null, is 5", settings=SETTINGS | {"top_k": 5})
    first, second, *rest = before.splitlines(keepends=True)
    for changed in ([second, first, *rest], [first, *rest], [b"1\n", second, *rest], [first, b" " + second, *rest]):
        path.write_bytes(b"".join(changed))
        refused("has changed")
    path.write_bytes(before)
    journal = output.journal_path(path)
    for content, match in ((b'{"version": 99, "settings": {}}', "another version"), (b"{", "cannot be read")):
        journal.write_bytes(content)
        refused(match)
    journal.unlink()
    refused("has no journal")
    run_job(path, INPUT, force=True)
    assert len(path.read_bytes().splitlines()) == 40


def damages(journal: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield damaged journals, and what is said about them."""
    for value in (-1, "3", 3.0, True, None, [3], {}, 1 << 63, 10**400, float("inf"), float("nan")):
        yield journal | {"lines": value}, "out.job cannot be read .*lines: must be a whole number, 0 to"
    for value in (-1, "3", 3.5, None, {}):
        yield journal | {"size": value}, "out.job cannot be read .*size: must be a whole number >= 0"
    for value in (3, None, "", "x" * 64, journal["input_sha256"][1:]):
        yield journal | {"input_sha256": value}, "out.job cannot be read .*input_sha256"
    for value in (None, 3, [], "abc"):
        yield journal | {"settings": value}, "out.job cannot be read"
    yield (
        {name: value for name, value in journal.items() if name != "lines"},
        "out.job cannot be read .*the digest of 0 lines",
    )
    yield journal | {"colour": 3}, "out.job cannot be read"
    lines = journal["lines"]
    yield journal | {"lines": 10_000}, "out.job lists 10000 finished lines, but input has 40"
    yield journal | {"lines": sys.maxsize}, f"out.job lists {sys.maxsize} finished lines, but input has 40"
    yield journal | {"lines": lines + 1}, f"the first {lines + 1} lines of input have changed .*, or .*out.job has"
    yield journal | {"lines": lines - 1}, "out or its journal has changed"
    yield journal | {"size": journal["size"] + 1}, "out or its journal has changed"
    yield journal | {"size": 10**400}, "out or its journal has changed"
    yield journal | {"input_sha256": "0" * 64}, f"the first {lines} lines of input have changed .*, or .*out.job has"


def test_a_damaged_journal_is_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "out"
    left = interrupted(path)
    for changed, message in damages(json.loads(output.journal_path(path).read_text())):
        output.journal_path(path).write_text(json.dumps(changed))
        with pytest.raises(InputError, match=message) as error:
            run_job(path, INPUT, resume=True)
        assert "force" in str(error.value) and len(str(error.value)) < 700, changed
        assert path.read_bytes() == left
    path.write_bytes(b"[" * 100_000 + b"\n" + left.partition(b"\n")[2])
    output.journal_path(path).write_text(json.dumps(changed))
    with pytest.raises(InputError, match="line 1 is not the record"):
        run_job(path, INPUT, resume=True)


def test_lost_records_can_be_redone_only_from_a_seekable_input(tmp_path: Path) -> None:
    whole = interrupted(tmp_path / "out")
    for size in (len(whole) - 3, len(whole) // 2):
        (tmp_path / "out").write_bytes(whole[:size])
        with pytest.raises(InputError, match="has lost records, and input cannot be read twice"):
            run_job(tmp_path / "out", INPUT, resume=True, source=Pipe)
    run_job(tmp_path / "out", INPUT, resume=True)
    run_job(tmp_path / "whole", INPUT)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_unfinished_lines_may_change_before_resuming(tmp_path: Path) -> None:
    done = len(interrupted(tmp_path / "out").splitlines())
    changed = b"\n".join([*INPUT.split(b"\n")[:done], b"new", b"lines\n"])
    run_job(tmp_path / "out", changed, resume=True)
    run_job(tmp_path / "whole", changed)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    run_job(tmp_path / "out", changed + b"more", resume=True)
    assert records(tmp_path / "out")[-1]["text"] == "erom"


def test_an_existing_output_is_kept_without_resume_or_force(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    with pytest.raises(InputError, match="already exists; continue it with resume, or replace it with force"):
        run_job(tmp_path / "out", INPUT)
    with pytest.raises(InputError, match="not a regular file"):
        run_job(tmp_path, INPUT)
    with pytest.raises(InputError, match=r"cannot be written \(No such file or directory\); name another file"):
        run_job(tmp_path / "nowhere" / "out", INPUT)
    assert (tmp_path / "out").read_text() == "precious"


def test_a_symlink_in_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    """Another user of the folder could have planted it."""
    (tmp_path / "precious").write_text("precious")
    for name in ("out.job", ".out.job.partial"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    run_job(tmp_path / "out", INPUT)
    assert (tmp_path / "precious").read_text() == "precious" and len(records(tmp_path / "out")) == 40


def test_an_output_is_locked_against_a_second_job(tmp_path: Path) -> None:
    def another(_: object) -> None:
        with pytest.raises(InputError, match="another job is writing it"):
            run_job(tmp_path / "out", INPUT, resume=True)

    run_job(tmp_path / "out", b"one\ntwo", after_row=another)
    assert len(records(tmp_path / "out")) == 2


# Statistics


def test_totals_sum_up_the_rows(tmp_path: Path) -> None:
    prompts = ["a", "a b c", "too long", "a b"]
    totals = run_job(tmp_path / "out", "\n".join(prompts).encode())
    results = [result_of(prompt).stats for prompt in prompts if prompt != "too long"]
    totals.seconds = 3.0  # the rows took six seconds in total, so three ran at once on average
    assert totals.rows == 3 and totals.stats.generated_tokens == 2 + 4 + 3 and totals.end_to_end_tps == 3.0
    assert totals.mean_time_to_first_token == pytest.approx(sum(each.time_to_first_token for each in results) / 3)
    assert (totals.encode_seconds, totals.decode_seconds) == (0.75, 2.25)
    assert totals.decode_tps == 9 / 2.25
    assert totals.as_dict()["iterations"] == 6


# `batch` with the bundled models

SAMPLE = {"temperature": 1.5}  # does not depend on the draft
PROMPTS = (ROOT / "data" / "grammar.txt").read_text().split("\n")[:12]


def main(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        status = batch_command.main([str(each) for each in arguments])
    except SystemExit as exit:  # raised by argparse
        status = int(exit.code or 0)
    return status, *capfd.readouterr()


def test_each_record_equals_generate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = [{}, {"max_tokens": 3}, SAMPLE | {"id": "x"}, SAMPLE | {"seed": 9}, {"stop": ["e"]}]
    content = [{"prompt": prompt, **own} for prompt, own in zip(PROMPTS, options, strict=False)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, content)))
    arguments = [tmp_path / "in.jsonl", "--output", tmp_path / "out", "--stats-json", tmp_path / "stats"]
    status, out, err = main(capfd, *arguments)
    assert status == 0 and not out
    model, tokenizer = load("t5-web-docs")
    draft, _ = load("t5-web-docs-draft")
    for given, fields in zip(content, records(tmp_path / "out"), strict=True):
        own = {name: given[name] for name in ("max_tokens", "stop", "temperature", "acceptance") if name in given}
        own["seed"] = fields.get("seed", 0)
        result = generate(model, tokenizer, given["prompt"], draft_model=draft, **own)
        assert fields["text"] == result.text and fields["generated_tokens"] == len(result.tokens)
        assert ("seed" in fields) == ("temperature" in given) and fields.get("id") == given.get("id")
    assert records(tmp_path / "out")[3]["seed"] == 9
    for words in (
        "5 lines; ",
        "first token after",
        "decoding",
        "end to end",
        "iterations",
        "decode",
    ):
        assert words in err
    stats = json.loads((tmp_path / "stats").read_text())
    assert stats["rows"] == 5 and stats["generated_tokens"] == sum(
        each["generated_tokens"] for each in records(tmp_path / "out")
    )
    assert stats["temperature"] == 0.0 and stats["slots"] == 8 and stats["model"].endswith("t5-web-docs")


def test_standard_input_and_output_and_exit_status_1_for_errors(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_bytes(f"{PROMPTS[0]}\n\n{'word ' * 600}\n".encode() + b"\xff\n")
    status, out, err = main(capfd, tmp_path / "in.txt", "--baseline")
    fields = [json.loads(line) for line in out.splitlines()]
    assert status == 1 and [each["line"] for each in fields] == [1, 2, 3, 4]
    assert (
        fields[1]["finish_reason"] == "blank" and "at most 512" in fields[2]["error"] and "UTF-8" in fields[3]["error"]
    )
    assert "4 lines, 2 of them errors (first errors of this run: lines 3, 4)" in err
    with (tmp_path / "in.txt").open("rb") as stdin:  # for -
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        assert main(capfd, "-", "--baseline")[:2] == (status, out)


def test_batch_resumes_an_interrupted_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text("\n".join(PROMPTS))
    options = [
        "--temperature",
        "1.5",
        "--max-tokens",
        "12",
        "--slots",
        "2",
        "--model",
        "t5-web-docs-draft",
        "--dtype",
        "float32",
    ]
    arguments = [tmp_path / "in.txt", *options]
    assert main(capfd, *arguments, "--output", tmp_path / "whole")[0] == 0
    arguments += ["--output", tmp_path / "out"]
    resumed = [*map(str, arguments), "--resume"]
    status, _, err = in_a_process(tmp_path, interrupted_batch, 3, signal.SIGINT, resumed)
    assert status == 130 and "Traceback" not in err
    assert "run the same command with --resume to continue" in err
    assert (tmp_path / "out").read_bytes().count(b"\n") == 3
    assert in_a_process(tmp_path, interrupted_batch, 4, signal.SIGKILL, resumed)[0] == -signal.SIGKILL
    assert (tmp_path / "out").read_bytes().count(b"\n") == 7
    status, _, err = main(capfd, *arguments, "--resume")
    assert status == 0 and "resuming" in err
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    status, _, err = main(capfd, *arguments, "--resume", "--seed", 1)
    assert status == 2 and "seed was 0, is 1" in err


def test_an_unfinished_job_of_an_earlier_version_keeps_its_acceptance_rule(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The default was rejection, and settings recorded it like a rule that was named."""
    file = tmp_path / "in.jsonl"
    lines = [json.dumps({"prompt": prompt} | own) + "\n" for prompt in PROMPTS[:3] for own in (SAMPLE, {})]
    arguments = [file, "-m", "8", "--drafter", "model", "--num-draft", "3", "--output"]
    for rule in ("rejection", "block"):
        file.write_text("".join(lines[:3]))
        assert main(capfd, *arguments, tmp_path / rule, "--temperature", "0.9", "--acceptance", rule)[0] == 0
        file.write_text("".join(lines))
        assert (
            main(capfd, *arguments, tmp_path / f"{rule}, whole", "--temperature", "0.9", "--acceptance", rule)[0] == 0
        )
    assert main(capfd, *arguments, tmp_path / "default", "--temperature", "0.9")[0] == 0
    status, _, err = main(capfd, *arguments, tmp_path / "rejection", "--temperature", "0.9", "--resume")
    assert status == 0 and "resuming" in err
    assert (tmp_path / "rejection").read_bytes() == (tmp_path / "rejection, whole").read_bytes()
    assert (tmp_path / "rejection").read_bytes() != (tmp_path / "default").read_bytes()
    status, _, err = main(capfd, *arguments, tmp_path / "block", "--temperature", "0.9", "--resume")
    assert status == 2 and 'acceptance was "block", is "coupled"' in err
    named = [*arguments, tmp_path / "rejection", "--temperature", "0.9", "--resume", "--acceptance", "coupled"]
    status, _, err = main(capfd, *named)
    assert status == 2 and 'acceptance was "rejection", is "coupled"' in err


def test_progress_is_a_bar_at_a_terminal_and_lines_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(PROMPTS))
    arguments = [str(tmp_path / "in.txt"), "--model", "t5-web-docs-draft", "-m", "5", "--output"]
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "speculative_decoding", "batch", *arguments, str(tmp_path / "out")]
    environment = os.environ | {"COLUMNS": "120", "TERM": "xterm"}
    with subprocess.Popen(command, cwd=ROOT, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b"".join(iter(lambda: read_terminal(ours), b"")).decode()
    os.close(ours)
    assert process.returncode == 0
    assert "100%" in seen and "12 lines, " in seen and "tokens/s" in seen
    monkeypatch.setattr("speculative_decoding.cli.progress.LINE_SECONDS", 0)
    _, _, err = main(capfd, *arguments, tmp_path / "out", "--force")
    assert re.search(r"^12 lines, .*, about 0 min left$", err, re.MULTILINE) and "100%" not in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--output", "x"], "the following arguments are required: FILE"),
        (["-", "--prompt", "x"], "--prompt: unknown option"),
        (["-", "--verify"], "--verify: unknown option"),
        (["-", "--parallel", "data"], "--parallel: data has no effect on one process; start several with mlx.launch"),
        (["-", "--resume"], "--resume: has no effect without --output"),
        (["-", "--force"], "--force: has no effect without --output"),
        (["-", "--output", "x", "--force", "--resume"], "leave one of them out"),
        (["-", "--slots", "0"], "--slots: must be a whole number >= 1"),
        (["-", "--max-memory", "0"], "--max-memory: must be a number above 0"),
        (["/nowhere"], "FILE: /nowhere: No such file or directory"),
        (["/"], "FILE: /: not a regular file; name a file"),
        (["README.md", "--output", "./README.md"], "--output: README.md is already used by FILE; name"),
        (
            ["x.job", "--output", "x"],
            "--output: x.job is already used by FILE; name another",
        ),
        (
            ["README.md", "--stats-json", "LICENSE", "--output", "LICENSE"],
            "--output: LICENSE is already used by",
        ),
        (
            ["README.md", "--stats-json", "-"],
            "--stats-json: must be the path of a file (- is not supported), not '-'",
        ),
        (
            ["README.md", "--output", "-"],
            "--output: must be the path of a file (- is not supported), not '-'",
        ),
        (
            ["README.md", "--output", "LICENSE"],
            "--output: LICENSE already exists; continue it with --resume",
        ),
    ],
)
def test_contradicting_options_are_reported_in_one_line(
    arguments: list[str], named: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    status, out, err = main(capfd, *arguments)
    lines = [line for line in err.splitlines() if not line.startswith("target ")]
    assert status == 2 and len(lines) == 1 and named in lines[0] and not out

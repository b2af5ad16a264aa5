"""Tests `batch` with the bundled models: records, resuming, prefixes, progress and one-line errors."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, InputError, generate, load
from speculative_decoding.cli.common import read_prompts
from speculative_decoding.cli.runner import settle_exactness
from speculative_decoding.jobs import ResumableOutput
from speculative_decoding.jobs import command as batch_command
from speculative_decoding.jobs.command import open_input
from speculative_decoding.jobs.output import settings_path
from speculative_decoding.loading.pair import ModelPair
from speculative_decoding.loading.tokenizer import FastTokenizer
from tests.integration.test_cli import FIXED, PROMPT
from tests.support.other_vocabulary import save_with_other_vocabulary
from tests.support.paths import ROOT

Batch = Callable[..., tuple[int, str, str]]
SAMPLE = {"temperature": 1.5}  # does not depend on the draft
PROMPTS = (ROOT / "data" / "grammar.txt").read_text().split("\n")[:12]


def records(output: str | Path) -> list[dict[str, Any]]:
    content = output.read_text() if isinstance(output, Path) else output
    return [json.loads(line) for line in content.split("\n")[:-1]]


@pytest.fixture
def batch(capfd: pytest.CaptureFixture[str]) -> Batch:
    """Run `batch` in this process. Returns the exit status, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            status = batch_command.main([str(each) for each in arguments])
        except SystemExit as exit:  # raised by argparse
            status = int(exit.code or 0)
        return status, *capfd.readouterr()

    return call


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_of_prompts_may_have_a_byte_order_mark(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_bytes(f"{PROMPT}\n\nGrüße\n".encode(encoding))
    assert read_prompts(tmp_path / "prompts.txt") == [PROMPT, "Grüße"]


def test_a_delta_of_a_line_is_labeled_lossy(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": PROMPT, "delta": 0.5}))
    _, _, err = batch(str(tmp_path / "in.jsonl"))
    assert "LOSSY: the delta of a line accepts tokens" in err


@pytest.mark.parametrize("decided", [True, False])
def test_a_resumed_job_keeps_the_recorded_exactness(decided: bool) -> None:
    session = load("t5-web-docs-draft")
    log: Any = SimpleNamespace(settings={"exact": decided}, is_new=False)
    settle_exactness(session, 2, log)
    assert session.options.strict is decided
    new: Any = SimpleNamespace(settings={}, is_new=True)
    session.options = GenerationOptions()
    settle_exactness(session, 2, new)
    assert new.settings["exact"] == session.planner.widths(GenerationOptions(), 2).exact == session.options.strict


def test_the_first_run_records_its_exactness_and_a_finished_job_needs_no_weights(
    tmp_path: Path, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    arguments = [prompts, "--output", output, "-m", "2", "--model", "t5-web-docs-draft"]
    prompts.write_text("a\nb")
    assert batch(*arguments)[0] == 0
    settings = json.loads(settings_path(output).read_text())["settings"]
    assert "strict" not in settings
    status, _, err = batch(*arguments, "--resume", "--no-strict" if settings["exact"] else "--strict")
    assert status == 2 and "exact was " in err
    monkeypatch.setattr(ModelPair, "load_weights", None)
    written = output.read_bytes()
    output.write_bytes(written + bytes(9))
    status, _, err = batch(*arguments, "--resume")
    assert status == 0 and "resuming" in err and "2 lines" in err and output.read_bytes() == written


@pytest.mark.parametrize("prefix", ["grammar: ", " "])
def test_a_prefix_equals_writing_it_before_each_prompt(prefix: str, batch: Batch, tmp_path: Path) -> None:
    """Blank lines stay blank, and a line keeps its options, seed and other fields."""
    for name, lines in {
        "in.txt": ["He go home.", "", "It were a cod business."],
        "in.jsonl": [{"prompt": "He go home.", "id": 1}, {"prompt": " "}, {"prompt": "It were.", "temperature": 1.0}],
    }.items():
        found = []
        for each in (prefix, ""):
            written = [with_prefix(line, "" if each else prefix) for line in lines]
            (tmp_path / name).write_text("\n".join(written))
            status, out, _ = batch(tmp_path / name, "--prefix", each, "-m", "6", *FIXED)
            found.append([{**record, "input_sha256": "", "prompt": ""} for record in records(out)])
            given = [line if isinstance(line, str) else line["prompt"] for line in lines]
            given = [text if each or not text.strip() else prefix + text for text in given]
            assert [record.get("prompt", "") for record in records(out)] == [text.strip() and text for text in given]
            assert status == 0
        assert found[0] == found[1] and len(found[0]) == 3


def with_prefix(line: Any, prefix: str) -> str:
    text = line if isinstance(line, str) else line["prompt"]
    text = prefix + text if text.strip() else text
    return text if isinstance(line, str) else json.dumps(line | {"prompt": text})


def test_a_job_is_not_resumed_with_another_prefix(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("He go home.\n")
    arguments = [tmp_path / "in.txt", "--output", tmp_path / "out", "-m", "2", *FIXED, "--resume"]
    for prefix, status in (("grammar: ", 0), ("grammar: ", 0), ("x", 2), ("", 2)):
        assert batch(*arguments, "--prefix", prefix)[0] == status


OLD = "It was a cold business, and I had neither coat nor hat."


def test_draft_texts_change_no_record(batch: Batch, tmp_path: Path) -> None:
    """Draft counts are omitted even for a fixed draft length, because learned probabilities shorten the drafts."""
    plain = [{"prompt": prompt} for prompt in PROMPTS[:3]]
    own = [{"draft_text": OLD}, {"draft_text": [OLD, "x", ""]}, {"draft_text": [], "num_draft_tokens": 3}]
    (tmp_path / "draft.txt").write_text(OLD * 9)
    found = []
    for lines, *flags in (
        [plain, "--num-draft", "0"],
        [[each | texts for each, texts in zip(plain, own, strict=True)]],
        [plain, "--draft-text-file", tmp_path / "draft.txt", "--drafter", "text", "--num-draft", "5"],
    ):
        (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
        status, out, err = batch(tmp_path / "in.jsonl", "-m", "12", *flags)
        assert status == 0
        names = {"target_calls", "drafted_tokens", "accepted_tokens", "input_sha256"}
        assert all(("drafted_tokens" in each) == ("0" in flags) for each in records(out))
        found.append([{name: value for name, value in each.items() if name not in names} for each in records(out)])
    assert found[0] == found[1] == found[2] and "draft tokens" in err and ": text " in err


def test_records_do_not_depend_on_the_rows_beside_them(batch: Batch, tmp_path: Path) -> None:
    """A draft model with another vocabulary writes the texts of all rows in one batch, which changes draft counts."""
    folder = ROOT / "models" / "t5-web-docs-draft"
    draft = save_with_other_vocabulary(load(folder).model, folder, tmp_path / "other")
    (tmp_path / "in.txt").write_text("\n".join(PROMPTS[:6]))
    found = []
    for slots in (1, 4):
        flags = ("--draft-model", draft, "--drafter", "model", "--num-draft", "4", "-m", "12", "--slots", slots)
        status, out, _ = batch(tmp_path / "in.txt", *flags)
        assert status == 0
        found.append(records(out))
    assert found[0] == found[1] and not any("drafted_tokens" in each for each in found[0])


def test_wrong_draft_texts_of_lines_are_error_records(batch: Batch, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"draft_text": 5},
        {"draft_text": [OLD, 5]},
        {"draft_text": {"type": "content"}},
        {"draft_text": OLD, "num_draft_tokens": 0},
        {"draft_texts": [OLD]},
        {"draft_text": OLD},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"prompt": PROMPT, **each}) for each in lines))
    status, out, _ = batch(tmp_path / "in.jsonl", "-m", "2")
    *wrong, right = records(out)
    assert status == 1 and right["text"]
    for each, words in zip(
        wrong,
        [
            *["draft_text: must be text, or a list of such, not "] * 3,
            "no effect with num_draft_tokens 0",
            "use draft_text",
        ],
        strict=True,
    ):
        assert words in each["error"] and "\n" not in each["error"]
    _, out, _ = batch(tmp_path / "in.jsonl", "-m", "2", "--baseline")
    assert "has no effect with drafter none" in records(out)[-1]["error"]


def test_a_job_records_a_hash_of_its_draft_texts_and_is_resumed_with_the_same_texts(
    batch: Batch, tmp_path: Path
) -> None:
    """Draft settings can decide near-ties in 16 bits, and samples with some acceptance rules."""
    (tmp_path / "in.txt").write_text("\n".join(PROMPTS[:3]))
    (tmp_path / "draft.txt").write_text(OLD * 1000)
    output, stats = tmp_path / "out", tmp_path / "stats.json"
    arguments = [tmp_path / "in.txt", "--output", output, "-m", "6", "--stats-json", stats]
    assert batch(*arguments, "--draft-text-file", tmp_path / "draft.txt")[0] == 0
    written = output.read_bytes()
    for content in (settings_path(output).read_text(), stats.read_text()):
        assert OLD not in content and len(content) < 4000 and '"draft_text_sha256": "' in content
    output.write_bytes(written[: len(written) // 2])
    status, _, err = batch(*arguments, "--resume", "--draft-text", OLD)
    assert status == 2 and "draft_text_sha256 was " in err and "give the same settings" in err
    assert batch(*arguments, "--resume")[0] == 2
    assert batch(*arguments, "--resume", "--draft-text", OLD * 1000)[0] == 0 and output.read_bytes() == written


LONG = b'{"prompt": "%s"}' % (b"word " * 2_000_000)


def test_long_prompts_are_refused_before_tokenization(
    tmp_path: Path, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = FastTokenizer.encode
    seen: list[int] = []

    def noted(self: FastTokenizer, text: str, language: str | None) -> list[int]:
        seen.append(len(text))
        return encode(self, text, language)

    def decoded(content: bytes, *arguments: object) -> list[dict[str, Any]]:
        (tmp_path / "in.jsonl").write_bytes(content)
        return records(batch(tmp_path / "in.jsonl", "-m", "3", *arguments)[1])

    monkeypatch.setattr(FastTokenizer, "encode", noted)
    monkeypatch.setattr("speculative_decoding.models.memory_budget.available_memory", lambda: 24 * 10**9)
    content = LONG + b'\n{"prompt": "grammar: He go."}'
    long, short = decoded(content)
    assert long["error"].startswith("prompt: has 8000000 characters, but the model was trained on at most 512 tokens")
    assert short["text"] == "He go."
    content += b'\n{"prompt": "%s"}' % (b"word " * 30_000)
    long, short, middle = decoded(content, "--allow-long-prompt")
    assert long["error"] == (
        "prompt: encoding 156250 tokens takes about 3906 GB of memory, and 24 GB are free; shorten or split it"
    )
    assert "takes about 144 GB of memory, and 24 GB are free" in middle["error"] and short["text"] == "He go."
    assert max(seen) < 200_000


def test_each_record_equals_generate(tmp_path: Path, batch: Batch) -> None:
    options = [{}, {"max_tokens": 3}, SAMPLE | {"id": "x"}, SAMPLE | {"seed": 9}, {"stop": ["e"]}]
    options += [{"draft_text": "He goes to school."}, SAMPLE | {"draft_text": ["", *PROMPTS]}]
    content = [{"prompt": prompt, **own} for prompt, own in zip(PROMPTS, options, strict=False)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, content)))
    arguments = [tmp_path / "in.jsonl", "--output", tmp_path / "out", "--stats-json", tmp_path / "stats"]
    status, out, err = batch(*arguments)
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
    for words in ("7 lines; ", "first token after", "decoding", "end to end", "iterations", "decode"):
        assert words in err
    stats = json.loads((tmp_path / "stats").read_text())
    assert stats["rows"] == 7 and stats["generated_tokens"] == sum(
        each["generated_tokens"] for each in records(tmp_path / "out")
    )
    assert stats["temperature"] == 0.0 and stats["slots"] == 8 and stats["model"].endswith("t5-web-docs")


def test_standard_input_and_output_and_exit_status_1_for_errors(
    tmp_path: Path, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_bytes(f"{PROMPTS[0]}\n\n{'word ' * 600}\n".encode() + b"\xff\n")
    status, out, err = batch(tmp_path / "in.txt", "--baseline")
    _, blank, long, wrong = found = records(out)
    assert status == 1 and [each["line"] for each in found] == [1, 2, 3, 4]
    assert blank["finish_reason"] == "blank" and "at most 512" in long["error"] and "UTF-8" in wrong["error"]
    assert "4 lines, 2 of them errors (line 3: prompt: has 601 tokens" in err and "; also line 4); " in err
    with (tmp_path / "in.txt").open("rb") as stdin:  # the input -
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        assert batch("-", "--baseline")[:2] == (status, out)


@pytest.mark.parametrize(
    ("lines", "summary"),
    [
        (
            1,
            '1 line, 1 of them an error (line 1: prompt: is missing; rename the field "text" to "prompt", or to ',
        ),
        (2, "2 lines, 2 of them errors (line 1: prompt: is missing; "),
        (2, "; also line 2); 0 tokens"),
        (6, "; also lines 2, 3, 4, 5, ...); 0 tokens"),
    ],
)
def test_the_summary_says_what_failed_and_in_which_lines_also_after_a_resume(
    lines: int, summary: str, batch: Batch, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n' * lines)
    arguments = (tmp_path / "in.jsonl", "--baseline", "--output", tmp_path / "out")
    for own in ([], ["--resume"]):
        status, _, err = batch(*arguments, *own)
        assert status == 1 and summary in err


def test_batch_resumes_an_interrupted_job(tmp_path: Path, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.txt").write_text("\n".join(PROMPTS))
    options = "--temperature 1.5 --max-tokens 12 --slots 2 --model t5-web-docs-draft --dtype float32"
    arguments = [tmp_path / "in.txt", *options.split(), "--output"]
    monkeypatch.setattr("speculative_decoding.cli.progress.LINE_SECONDS", 0)
    status, _, err = batch(*arguments, tmp_path / "whole")
    assert status == 0 and re.search(r"^12 lines, .* tokens/s.*, about 0 min left$", err, re.MULTILINE)

    arguments += [tmp_path / "out", "--resume"]
    write = ResumableOutput.write
    with monkeypatch.context() as patch:
        patch.setattr(ResumableOutput, "write", lambda *given: (write(*given), signal.raise_signal(signal.SIGINT)))
        status, _, err = batch(*arguments)
    assert status == 130 and "Traceback" not in err
    assert "interrupted after line 0; run the same command with --resume to continue" in err
    assert (tmp_path / "out").read_bytes().count(b"\n") == 1
    status, _, err = batch(*arguments)
    assert status == 0 and "resuming" in err
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    status, _, err = batch(*arguments, "--seed", 1)
    assert status == 2 and "seed was 0, is 1" in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--output", "x"], "the following arguments are required: FILE"),
        (["-", "--prompt", "x"], "--prompt: unknown option"),
        (["-", "--parallel", "data"], "--parallel: data has no effect on one process; start several with mlx.launch"),
        (["-", "--resume"], "--resume: has no effect without --output"),
        (["-", "--output", "x", "--force", "--resume"], "leave one of them out"),
        (["/nowhere"], "FILE: /nowhere: No such file or directory"),
        (["/"], "FILE: /: not a regular file; name a file"),
        (["README.md", "--output", "./README.md"], "--output: README.md is already used by FILE; name"),
        (["x.job", "--output", "x"], "--output: x.job is already used by FILE; name another"),
        (["README.md", "--output", "-"], "--output: must be the path of a file (- is not supported), not '-'"),
        (["README.md", "--output", "LICENSE"], "--output: LICENSE already exists; continue it with --resume"),
    ],
)
def test_contradicting_options_are_reported_in_one_line(
    arguments: list[str], named: str, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    status, out, err = batch(*arguments)
    lines = [line for line in err.splitlines() if not line.startswith("target ")]
    assert status == 2 and len(lines) == 1 and named in lines[0] and not out


def test_an_input_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """Reading a named pipe would block, and reading /dev/zero would never end."""
    (path := tmp_path / "input").symlink_to("/dev/null")
    with pytest.raises(InputError, match="not a regular file"):
        open_input(str(path))

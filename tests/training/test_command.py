"""The command: it writes a draft, resumes, and refuses wrong options with one line."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import load
from speculative_decoding.checkpoints.npz import read_npz
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.loading.load import ModelHandle
from speculative_decoding.models.draft_head import DraftHead
from speculative_decoding.training import command as train_command
from speculative_decoding.training import training_run as training_run_module
from tests.support.subpackages import copy_without, run_in
from tests.support.tiny import small_target
from tests.support.training import (
    LAYERS,
)


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    (tmp_path / "prompts.txt").write_text("a\n" * 40)
    small_target(tmp_path)

    def call(*arguments: str, **changes: str) -> tuple[int, str]:
        flags = {"model": str(tmp_path / "target"), "output": str(tmp_path / "head"), "steps": "4"} | changes
        words = [word for name, value in flags.items() if value for word in (f"--{name.replace('_', '-')}", value)]
        parts = ["--prompts", str(tmp_path / "prompts.txt"), "--max-tokens", "6", *words, *arguments]
        status = train_command.main(parts)
        return status, capsys.readouterr().err

    return call  # type: ignore[return-value]


def test_command_writes_a_draft_head_and_resumes(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    status, err = command()
    assert status == 0 and "tokens per target call with 7 draft tokens" in err and "stored on disk" in err
    assert (tmp_path / "head" / "curves.png").stat().st_size > 1000
    assert isinstance(load(tmp_path / "target", draft=tmp_path / "head").draft_model, DraftHead)
    status, err = command()
    assert status == 2 and "already exists; name another folder, or replace it with --force" in err
    status, err = command("--force")
    assert status == 2 and "holds an unfinished training; continue with --resume" in err
    status, err = command("--force", "--resume", seed="3")
    assert status == 2 and '(seed was "0", is "3"); give the same settings, or delete' in err
    (tmp_path / "prompts.txt").write_text("a\n" * 39 + "b\n")
    status, err = command("--force", "--resume")
    assert status == 2 and "was written with other settings (prompts was [" in err
    (tmp_path / "prompts.txt").write_text("a\n" * 40)
    status, err = command("--force", "--resume", max_disk_gb="0")
    assert status == 0 and "resuming after step 4" in err and "computed when needed" in err
    path = tmp_path / "head.training" / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:-100])
    status, err = command("--force", "--resume")
    assert status == 2 and "checkpoint.npz" in err and err.count("error:") == 1
    assert isinstance(load(tmp_path / "target", draft=tmp_path / "head").draft_model, DraftHead)


def test_training_continues_from_a_head(
    command: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_command, "plot_curves", lambda *_: None)
    assert command(dtype="float32")[0] == 0
    begun, after = tmp_path / "head", tmp_path / "after"
    still = {"draft_model": str(begun), "learning_rate": "1e-12", "dtype": "float32"}
    assert command(output=str(after), **still)[0] == 0
    old, new = (read_npz(folder / "weights.npz") for folder in (begun, after))
    assert all(mx.allclose(old[name], new[name], rtol=1e-5, atol=1e-6) for name in old)
    first = DraftHead.for_target(load(tmp_path / "target").model, LAYERS)
    assert not mx.allclose(old["wo.weight"], first.wo.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("prompts", "flags", "message"),
    [
        ([""], [], "0.txt is empty or blank; name another file, or leave it out"),
        (["\n \n\n"], [], "0.txt is empty or blank; name another file, or leave it out"),
        (["\ufeff"], [], "0.txt is empty or blank; name another file, or leave it out"),
        (["a\n" * 40, ""], [], "1.txt is empty or blank; name another file, or leave it out"),
        (["a"], [], "too few to train on (got 1, need 24); add more, or lower --batch-size"),
        (["a\n" * 24], [], "too few to train on (got 22, need 24); add more, or lower --batch-size"),
        (["a\n" * 3], ["--batch-size", "4"], "too few to train on (got 3, need 4); add more, or lower --batch-size"),
    ],
)
def test_too_few_prompts_are_refused_before_weights_load(
    prompts: list[str],
    flags: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ModelHandle, "load_weights", None)
    paths = [tmp_path / f"{number}.txt" for number in range(len(prompts))]
    for path, text in zip(paths, prompts, strict=True):
        path.write_text(text, encoding="utf-8")
    small_target(tmp_path)
    model, output = str(tmp_path / "target"), str(tmp_path / "head")
    given = ["--model", model, "--output", output, "--steps", "1", "--prompts", *map(str, paths), *flags]
    assert train_command.main(given) == 2
    err = capsys.readouterr().err
    assert message in err and "error: --prompts: " in err and err.count("\n") == 1
    assert not list(tmp_path.glob("head*"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"steps": ""}, "--minutes and --steps: give exactly one of them"),
        ({"kind": "model"}, "--kind: model needs a small model"),
        ({"draft_model": "nowhere"}, "--draft-model: model 'nowhere' is neither a folder"),
        (
            {"draft_model": "models/t5-web-docs-draft"},
            "t5-web-docs-draft is the wrong kind of draft (got a model, expected a draft head); name another",
        ),
        ({"draft_model": "models/t5-web-docs-head"}, "belongs to another target"),
        (
            {"draft_model": "models/t5-web-docs-head", "model": "t5-web-docs", "kind": "model"},
            "wrong kind of draft (got a draft head, expected a model)",
        ),
        ({"model": ""}, "--model and --output: both are required"),
        ({"prompts": "nowhere.txt"}, "--prompts: nowhere.txt: not readable"),
    ],
    ids=str,
)
def test_wrong_options_are_one_line_errors(
    command: Callable[..., tuple[int, str]], changes: dict[str, str], named: str
) -> None:
    status, err = command(**changes)
    assert status == 2 and named in err and err.count("\n") == 1


def test_full_disk_is_a_one_line_error(
    command: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    work = tmp_path / "head.training"
    for most, missing in (
        (100, "settings.jsonl"),
        (600, "features"),
        (4_000, "features/done.jsonl"),
        (30_000, "c*npz"),
    ):
        with largest_file(most):  # settings, outputs, features, checkpoint
            status, err = command("--resume", "--force")
        assert status == 2 and "File too large" in err.splitlines()[-1] and not [*work.glob(missing)]
    monkeypatch.setattr(training_run_module, "write_draft_head", full)
    status, err = command("--resume", "--force")
    assert status == 2 and "No space left on device" in err.splitlines()[-1]
    assert not (tmp_path / "head").exists()


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("speedup", "is_slow"), [(0.9, True), (1.4, False)])
def test_a_draft_that_is_slower_than_none_says_so(
    speedup: float, is_slow: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run: Any = SimpleNamespace(
        held_out_stats={"a.txt": GenerationStats(generated_tokens=9, target_calls=3)},
        expected_speedup=lambda tokens: speedup,
        trainer=SimpleNamespace(step=1, positions=1, seconds=1.0, history=[]),
        finish=lambda *arguments, **facts: None,
        work=tmp_path,
    )
    train_command.finish(run, tmp_path / "head", "target")
    err = capsys.readouterr().err
    assert ("note: for a.txt, this draft is slower than no draft on this device; train it longer" in err) == is_slow


def test_only_recordings_need_speech(tmp_path: Path) -> None:
    copy = copy_without(["speech"], tmp_path / "copy")
    program = ["-m", "speculative_decoding", "train"]
    assert run_in(copy, [*program, "--help"]).returncode == 0
    done = run_in(
        copy,
        [*program, "--model", "t5-web-docs", "--audio-manifest", "talks.jsonl", "--output", "draft", "--steps", "4"],
    )
    assert (
        done.returncode == 2 and "error: --audio-manifest: needs the folder speculative_decoding/speech" in done.stderr
    )

"""The command that finds the fastest setting: what it prints, keeps and draws, and who takes what it kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tune
from benchmarks.sweep import Setting
from speculative_decoding.cli import main as main_command
from speculative_decoding.cli.tool_options import tune_parser
from speculative_decoding.cli.tuned import FILE, Tuned
from speculative_decoding.draft_length import costs
from speculative_decoding.draft_length.costs import Costs
from speculative_decoding.generate import GenerationResult
from speculative_decoding.loading.load import BUNDLED, Opened

DRAFT = BUNDLED / "t5-web-docs-draft"
PROMPTS = [
    "translate English to German: The method returns the value of the property.",
    "grammar: It were a cod business.",
]
QUICK = ["--repeats", "1", "-m", "12"]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled target in a folder of its own, and costs that take no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(costs, "measure", lambda *_: Costs((1.0, 1.1, 1.2, 1.3), 0.1, 0.05))
    return linked("t5-web-docs", tmp_path / "target")


def linked(name: str, folder: Path) -> Path:
    folder.mkdir()
    for path in (BUNDLED / name).iterdir():
        (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n\n".join(PROMPTS) + "\n", encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        status = tune.main(list(map(str, arguments)))
    except SystemExit as exit:  # argparse
        status = int(exit.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def lines_of(out: str) -> dict[tuple[str, str], list[str]]:
    """(drafter, num-draft) -> the other cells."""
    head, *lines = out.splitlines()
    names = "drafter num-draft acceptance tokens/call tokens/s speed-up first token memory same"
    assert " ".join(head.split()) == names
    return {(cells[0], cells[1]): cells[2:] for cells in map(str.split, lines[:-1])}


def always_fastest(monkeypatch: pytest.MonkeyPatch, choice: Tuned) -> None:
    """Makes one setting the fastest, so that a test knows which."""
    run = Setting.run

    def timed(self: Setting, prompt: str, request: Any) -> GenerationResult:
        result = run(self, prompt, request)
        result.stats.decode_seconds = 0.5 if self.choice == choice else 1.0
        return result

    monkeypatch.setattr(Setting, "run", timed)


def main_says(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main_command.main(["--prompt", PROMPTS[1], *map(str, arguments)]) == 0
    return capsys.readouterr().err


def test_the_table_has_every_setting_and_main_takes_the_fastest(
    target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    always_fastest(monkeypatch, Tuned("auto", 3))
    pair = ["--model", target, "--draft-model", DRAFT]
    status, out, err = run(capsys, *pair, "--prompts", prompts, "--num-draft", 0, 1, 3, "auto", *QUICK)
    lines = lines_of(out)
    drafters = ("model", "ngram", "auto")
    assert status == 0
    assert lines.keys() == {("none", "-")} | {(name, count) for name in drafters for count in ("1", "3", "auto")}
    assert all(cells[-1] == "2/2" for cells in lines.values())
    assert lines["none", "-"][:2] == ["-", "1.00"] and lines["none", "-"][3] == "1.00x"
    assert all(float(lines["model", count][1]) > 1.3 for count in ("1", "3"))
    assert out.splitlines()[-1] == "fastest: --drafter auto --num-draft 3, 2.00x the speed of plain decoding"
    assert f"kept in {target / FILE}" in err and "10 settings on 2 prompts" in err

    (entry,) = json.loads((target / FILE).read_text())
    assert (entry["drafter"], entry["num_draft"], entry["speed_up"], entry["prompts"]) == ("auto", 3, 2.0, 2)
    stats = tmp_path / "stats.json"
    said = main_says(capsys, *pair, "--stats-json", stats)
    assert "as tuned for this machine: --drafter auto --num-draft 3" in said and "and n-grams" in said
    used = json.loads(stats.read_text())
    assert (used["drafter"], used["num_draft"]) == ("auto", 3)

    others: Sequence[Sequence[object]] = (
        [*pair, "--num-draft", 2],
        [*pair, "--drafter", "model"],
        [*pair, "--regular-decode"],
        [*pair, "--dtype", "bfloat16"],
        ["--model", target],
        ["--model", target, "--draft-model", "self-8bit"],
        ["--model", target, "--draft-model", linked("t5-web-docs-draft", tmp_path / "other")],
    )
    for arguments in others:
        assert "as tuned" not in main_says(capsys, *arguments)


def test_where_plain_decoding_is_fastest_it_says_so_and_main_drafts_nothing(
    target: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    always_fastest(monkeypatch, Tuned("none", 0))
    pair = ["--model", target, "--draft-model", DRAFT]
    _, out, _ = run(capsys, *pair, "--prompts", prompts, "--num-draft", 2, *QUICK)
    assert out.splitlines()[-1] == "fastest: --drafter none; plain decoding beats every draft here"
    said = main_says(capsys, *pair)
    assert "as tuned for this machine: --drafter none --num-draft 0" in said and "accepted 0 of 0" in said


def test_without_a_draft_model_only_copies_are_tried(
    target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "--model", target, "--prompts", prompts, "--num-draft", 3, *QUICK)
    assert lines_of(out).keys() == {("none", "-"), ("ngram", "3")}
    assert "as tuned" in main_says(capsys, "--model", target)


def test_a_dry_run_keeps_nothing_and_limits_count_by_file(
    target: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(target.iterdir())
    arguments = ["--model", target, "--prompts", prompts, prompts, "--limit", 1, "--num-draft", 2, "--dry-run", *QUICK]
    status, _, err = run(capsys, *arguments)
    assert status == 0 and "2 settings on 2 prompts, 1 times" in err and "kept" not in err
    assert sorted(target.iterdir()) == before
    assert "on 4 prompts" in run(capsys, *arguments, "--seed", 1, 2)[2]


def test_outputs_that_differ_show_in_the_table(target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A lossy rule writes something else for one of the two prompts."""
    arguments = ["--model", target, "--draft-model", DRAFT, "--prompts", prompts, "--drafter", "model"]
    arguments += ["--num-draft", 5, "--dry-run", *QUICK]
    assert lines_of(run(capsys, *arguments, "--delta", 1)[1])["model", "5"][-1] in ("0/2", "1/2")
    sampled = lines_of(run(capsys, *arguments, "--temperature", 1)[1])
    assert {cells[-1] for cells in sampled.values()} == {"-"}
    coupled = lines_of(run(capsys, *arguments, "--temperature", 1, "--acceptance", "coupled")[1])
    assert {cells[-1] for cells in coupled.values()} == {"2/2"}


def test_a_planted_wrong_token_shows_in_the_table(
    target: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_setting, seen = Setting.run, []

    def wrong_once(self: Setting, prompt: str, request: Any) -> GenerationResult:
        result = run_setting(self, prompt, request)
        if self.choice == Tuned("ngram", 3) and prompt == PROMPTS[1]:
            seen.append(prompt)
            result.tokens[-1] += len(seen) == 2
        return result

    monkeypatch.setattr(Setting, "run", wrong_once)
    arguments = ["--model", target, "--prompts", prompts, "--num-draft", 2, 3, "--dry-run", "--repeats", 3, "-m", 12]
    lines = lines_of(run(capsys, *arguments)[1])
    assert (lines["ngram", "2"][-1], lines["ngram", "3"][-1]) == ("2/2", "1/2")


def test_each_setting_learns_for_itself_alone(
    target: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths, ngrams = set(), set()
    run_setting = Setting.run

    def noted(self: Setting, prompt: str, request: Any) -> GenerationResult:
        lengths.add(id(self.length.length))
        ngrams.add(id(self.ngram))
        return run_setting(self, prompt, request)

    monkeypatch.setattr(Setting, "run", noted)
    arguments = ["--model", target, "--prompts", prompts, "--num-draft", 2, "auto", "heuristic", "--dry-run", *QUICK]
    assert run(capsys, *arguments)[0] == 0
    assert len(lengths) == len(ngrams) == 4  # plain decoding has no n-grams: None


def test_the_plot_is_a_png_with_measured_and_promised_speed_ups(
    target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    save = figure.Figure.savefig
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k)))
    path = tmp_path / "plot.png"
    arguments = ["--model", target, "--draft-model", DRAFT, "--prompts", prompts, "--plot", path, "--dry-run"]
    status, out, _ = run(capsys, *arguments, "--num-draft", 4, 1, "auto", *QUICK)
    assert status == 0 and path.read_bytes().startswith(b"\x89PNG")
    axes, table = drawn[0].axes[0], lines_of(out)
    found = {line.get_label(): line for line in axes.get_lines()}
    for drafter in ("model", "ngram", "auto"):
        measured = found[f"{drafter}, measured"]
        assert list(measured.get_xdata()) == [4, 1]
        for count, speed_up in zip(("4", "1"), measured.get_ydata(), strict=True):
            assert table[drafter, count][3] == f"{speed_up:.2f}x"
        curve = found[f"{drafter}, S(g)"]
        assert list(curve.get_xdata()) == [1, 2, 3, 4] and min(curve.get_ydata()) > 0
        assert found[f"{drafter}, auto"].get_linestyle() == "--"


def nothing(target: Path, prompts: Path) -> None:
    pass


def damaged(target: Path, prompts: Path) -> None:
    (target / FILE).write_text("{")


def empty(target: Path, prompts: Path) -> None:
    prompts.write_text("\n \n")


def long(target: Path, prompts: Path) -> None:
    prompts.write_text(f"one\n{'word ' * 600}\n")


@pytest.mark.parametrize(
    ("arguments", "damage", "named"),
    [
        ([], damaged, "tuned.json: not what tune wrote"),
        ([], empty, "--prompts: there is no text in them"),
        ([], long, "prompts.txt, prompt 2: prompt has"),
        (["--prompts", "/nowhere.txt"], nothing, "prompts /nowhere.txt: not readable"),
        (["--plot", "/nowhere/at/all.png"], nothing, "--plot /nowhere/at/all.png: cannot be written"),
        (["--drafter", "none"], nothing, "--drafter none and --num-draft 0 are measured in any case"),
        (["--num-draft", "0"], nothing, "--drafter none and --num-draft 0 are measured in any case"),
        (["--drafter", "model"], nothing, "--drafter model: there is no draft model"),
        (["--drafter", "oracle"], nothing, "--drafter: invalid choice: 'oracle'"),
        (["--num-draft", "3", "many"], nothing, "--num-draft: must be a whole number from 0 to 64, not 'many'"),
        (["--limit", "0"], nothing, "--limit"),
        (["--repeats", "0"], nothing, "--repeats"),
        (["--confidence-threshold", "0.5"], nothing, "--confidence-threshold belongs to --drafter model or auto"),
        (["--ngram-store", "s.json"], nothing, "unrecognized arguments: --ngram-store"),  # it would know the outputs
        (["--eos-token-id", "99999"], nothing, "eos_token_ids must be between 0 and"),
        (["--acceptance", "block", "--delta", "0.1"], nothing, "delta 0.1 relaxes"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_loaded(
    arguments: list[str],
    damage: Any,
    named: str,
    target: Path,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Opened, "load_weights", lambda _: pytest.fail("loaded weights first"))
    damage(target, prompts)
    status, out, err = run(capsys, "--model", target, "--prompts", prompts, *arguments)
    assert status == 2 and not out and err.count("\n") == 1 and named in err


def test_a_folder_that_cannot_be_written_is_found_before_the_sweep(
    target: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_only(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", read_only)
    with monkeypatch.context() as patch:
        patch.setattr(Opened, "load_weights", lambda _: pytest.fail("loaded weights first"))
        status, _, err = run(capsys, "--model", target, "--prompts", prompts)
        assert status == 2 and err.count("\n") == 1 and f"{target / FILE}: cannot be written" in err
        assert "--dry-run" in err
    arguments = ["--model", target, "--prompts", prompts, "--num-draft", 2, "--dry-run", *QUICK]
    assert run(capsys, *arguments)[0] == 0


def test_without_matplotlib_only_the_plot_is_refused(
    target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    arguments = ["--model", target, "--prompts", prompts, "--num-draft", 2, "--dry-run", *QUICK]
    status, _, err = run(capsys, *arguments, "--plot", tmp_path / "plot.png")
    assert status == 2 and "needs matplotlib" in err and "pip install matplotlib" in err and err.count("\n") == 1
    assert run(capsys, *arguments)[0] == 0


def test_help_says_what_is_tried() -> None:
    chosen = tune_parser().parse_args([])
    assert chosen.num_draft == [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, "auto"] and not hasattr(chosen, "drafter")
    help = " ".join(tune_parser().format_help().split())
    for words in ("--prompts", "--limit", "--repeats", "--plot", "--dry-run", "(default: 3)", "[1, 2, 3, 4"):
        assert words in help

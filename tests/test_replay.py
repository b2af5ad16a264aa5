"""Replayed acceptance: recorded is what drafts do, replayed is what was recorded, and the text is plain decoding's."""

from __future__ import annotations

from pathlib import Path

import pytest

import benchmarks.record
from benchmarks import __main__ as benchmark
from benchmarks import acceptance, models
from benchmarks.record import Recorder, record
from benchmarks.replay import replays
from benchmarks.tasks import random_task
from speculative_decoding import InputError, Session
from speculative_decoding.decoding.ways import ways
from speculative_decoding.drafters import DraftModel
from speculative_decoding.sampling import GenerationOptions
from tests.test_benchmark import command
from tests.tiny import CONFIG, SOURCES, noisy_copy, tiny_head, tiny_model

ENDLESS = CONFIG | {"eos_token_id": [], "d_model": 64, "d_kv": 32, "d_ff": 64}
FILE = Path(acceptance.__file__).with_suffix(".txt")
TINY = "# about\na head 0210 10\na copy 0000 00\na found 3000 00\n"


class Ids:
    def encode(self, text: str) -> list[int]:
        return SOURCES[int(text) % len(SOURCES)]

    def decode(self, tokens: list[int]) -> str:
        return "x" * len(tokens)


def test_what_is_recorded_is_what_shorter_drafts_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: real rounds with drafts of three tokens."""
    monkeypatch.setattr(benchmarks.record, "MOST", 24)
    target = tiny_model(eos_token_id=[])
    drafts = {"head": tiny_head(target), "model": DraftModel(noisy_copy(target))}
    plain = Session(target, Ids(), None, GenerationOptions(max_tokens=24))
    found = record(plain, Recorder(target, drafts), ["0", "1"])
    assert found.keys() == {"head", "model", "copy", "found"} and sum(map(sum, found["model"])) > 8
    for kind, draft in drafts.items():
        session = Session(target, Ids(), draft, GenerationOptions(drafter="model", num_draft=3, max_tokens=24))
        for number, output in enumerate(found[kind]):
            accepted, place = [], 0
            while place < len(output):
                accepted.append(min(3, output[place], len(output) - 1 - place))
                place += 1 + accepted[-1]
            seen = session.generate(str(number)).stats.accepted_histogram
            assert seen == {count: accepted.count(count) for count in set(accepted)}


def test_replayed_rounds_accept_what_was_recorded_and_write_what_plain_decoding_does() -> None:
    target = models.random_model(ENDLESS)
    recorded, tokens = acceptance.read(FILE, ["head", "t5-small"]), 40
    task = random_task(24, 2, tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "SHAPES", {"t5-small": ENDLESS})
        chosen, only = ways(["model", "auto"], [3]), {"grammar": recorded["grammar"]}
        plain, *others = replays(task, target, ["head", "t5-small"], [], chosen, only)
    expected = [output.tokens for output in plain.decode(task)]
    runs = acceptance.stretch(recorded["grammar"], 2 * tokens)
    assert [each.label for each in others] == [
        f"grammar: {copies}{draft}, 3" for draft in ("head", "t5-small") for copies in ("", "copies and ")
    ]
    for contender, kind, copies in zip(others, ("head", "head", "model", "model"), (0, 1) * 2, strict=True):
        outputs = [*contender.decode(task)]
        assert [output.tokens for output in outputs] == expected
        for number, output in enumerate(outputs):
            place, end, accepted = number * tokens, (number + 1) * tokens, 0
            while place < end:
                copy = copies and runs["found"][place]
                right = runs["copy" if copy else kind][place]
                new = min(3, right, end - place - 1)
                place, accepted = place + new + 1, accepted + new
            assert output.stats is not None and output.stats.accepted_tokens == accepted


def test_a_target_whose_wide_passes_differ_is_said() -> None:
    """Planted: the script is of another output."""
    target = models.random_model(ENDLESS)
    task = random_task(24, 1, 6)
    _, replay = replays(task, target, ["head"], [], ways(["model"], [3]), {"a": {"head": [[3, 2, 1, 0, 0, 0]]}})
    drafter = replay.session.options.drafter
    script = drafter._scripts[task.sources[0]]
    script.output[2] = abs(script.output[2] - 1)
    with pytest.raises(InputError, match="--acceptance: this target's arg-max is another one in wide passes"):
        list(replay.decode(task))


def test_the_stretch_is_worth_what_the_whole_is() -> None:
    for task in acceptance.read(FILE, ()).values():
        whole = acceptance.worth(acceptance.joined(task, range(len(task["head"]))))
        part = acceptance.worth(acceptance.stretch(task, 128))
        assert part == pytest.approx(whole, rel=0.12)
    ends = acceptance.stretch({"head": [[3, 2, 1], [1, 1]]}, 7)["head"]  # the last token of each is no draft's
    assert ends in ([2, 1, 0, 1, 0, 2, 1], [1, 0, 2, 1, 0, 1, 0])


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    tasks = {"a": {"head": [[0, 2, 1, 0], [1, 0]], "copy": [[0] * 4, [0, 1]], "found": [[16] * 4, [0, 1]]}}
    acceptance.write(file, tasks, "about")
    assert acceptance.read(file, ["head"]) == tasks
    acceptance.write(file, acceptance.read(FILE, ()), FILE.read_text().split("\n")[0][2:])
    assert file.read_text() == FILE.read_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("a head 0210 10", "a head 0230 10", "line 2"),  # three right where three tokens are left: two behind it
        ("a head 0210 10", "a head 0210 1", "line 3"),
        ("a head 0210 10", "a head 02!0 10", "line 2"),
        ("a head", "a thing", "line 2"),
        ("a copy", "a head", "line 3"),
        ("a copy 0000 00", "a copy", "line 3"),
        ("a found 3000 00\n", "", "it is no recorded acceptance"),
        (TINY, "", "it is no recorded acceptance"),
    ],
)
def test_a_damaged_file_is_one_line(
    old: str, new: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "damaged.txt"
    file.write_text(TINY.replace(old, new))
    status, out, err = command(capsys, "--random", "t5-small", "--draft", "head", "--acceptance", str(file))
    assert status == 2 and out == "" and err.count("\n") == 1 and f"--acceptance {file}: {words}" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft", "head"], "--draft: goes with --random and --acceptance FILE"),
        (["--random", "t5-small", "--acceptance", str(FILE)], "--acceptance: goes with --random and --draft"),
        (["--bits", "8"], "--bits: goes with --acceptance"),
        (["--slots", "2"], "--acceptance: has --drafter model or auto"),
        (["--drafter", "ngram"], "--acceptance: has --drafter model or auto"),
        (["--num-draft", "17"], "--num-draft [17]: with --acceptance auto, or 1 to 16"),
    ],
)
def test_what_does_not_go_with_replays_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = ["--random", "t5-small", "--draft", "head", "--acceptance", str(FILE)]
    alone = arguments[0] in ("--draft", "--random", "--bits")
    status, out, err = command(capsys, *([] if alone else replay), *arguments)
    assert status == 2 and out == "" and words in err


def test_a_kind_that_was_not_recorded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text(TINY)
    with pytest.raises(InputError, match="--draft t5-small: --acceptance .*tiny.txt has no drafts of a model"):
        acceptance.read(tmp_path / "tiny.txt", ["head", "t5-small"])


def test_every_table_says_that_acceptance_was_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "SHAPES", {"t5-small": ENDLESS, "t5-base": ENDLESS})
    monkeypatch.setattr(benchmark, "SETTLE", 0.0)
    monkeypatch.setattr(benchmark, "measure_bandwidth", lambda: 1e10)
    arguments = ["--random", "t5-small,t5-base", "--draft", "head", "--acceptance", str(FILE), "--bits", "8", "-m", "4"]
    status, out, _ = command(capsys, *arguments, "--limit", "1", "--repeats", "1", "--warm-ups", "0")
    titles = [line for line in out.split("\n") if line.startswith("### ")]
    assert status == 0 and len(titles) == 2 and all("replayed acceptance" in title for title in titles)
    assert "fastest for" not in out
    for label in (
        "plain",
        "8 bits, plain",
        "grammar: copies and head, auto",
        "8 bits, describe: copies and head, auto",
    ):
        assert out.count(f"| {label} |") == 2

"""Replayed acceptance: recordings match real drafts, replays match recordings, outputs match the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmark
from benchmarks import interleave, models, record
from benchmarks.interleave import Contender
from benchmarks.ours import Ids, Ours
from benchmarks.replay import ReplayDrafter, replays
from benchmarks.tasks import Task, random_task
from speculative_decoding import InputError, Session
from speculative_decoding.sampling import GenerationOptions
from tests.parity.test_scoring import Numbers
from tests.support.tiny import CONFIG, SOURCES, noisy_copy, tiny_head, tiny_model
from tests.unit.benchmarks.test_benchmark import command, tokens_by

ENDLESS = CONFIG | {"eos_token_id": [], "d_model": 64, "d_kv": 32, "d_ff": 64}
FILE = Path(record.__file__).with_name("acceptance.txt")
TINY = "# about\na head 0210 10\na copy 0000 00\na found 3000 00\n"


def test_recording_matches_real_rounds() -> None:
    """The recording predicts the acceptance of real drafts of three tokens."""
    target, task = tiny_model(eos_token_id=[]), Task("some", tuple(map(tuple, SOURCES[:2])), 24)
    for kind, draft in (("head", tiny_head(target)), ("model", noisy_copy(target))):
        found = record.record(Session(target, Ids(task.sources), draft), task)
        assert found.keys() == {kind, "copy", "found", "text", "followed"}
        assert kind == "head" or sum(map(sum, found[kind])) > 8
        session = Session(target, Ids(task.sources), draft, GenerationOptions(drafter="model", num_draft_tokens=3))
        for number, output in enumerate(found[kind]):
            accepted, place = [], 0
            while place < task.max_tokens:
                accepted.append(min(3, [*output, 0][place], task.max_tokens - 1 - place))
                place += 1 + accepted[-1]
            seen = session.generate(str(number), max_tokens=task.max_tokens).stats.accepted_histogram
            assert seen == {count: accepted.count(count) for count in set(accepted)}


def test_a_given_text_is_recorded_where_it_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens from the output itself are right, and none from a text of other words."""
    target, task = tiny_model(eos_token_id=[]), Task("some", tuple(map(tuple, SOURCES[:2])), 80)
    pair = Session(target, Numbers(), tiny_head(target))
    monkeypatch.setattr(record, "REPLACED", 0.0)
    found = record.record(pair, task)
    for right, lengths in zip(found["text"], found["followed"], strict=True):
        assert right == [min(length, 79 - i) for i, length in enumerate(lengths)] and max(right) == 63
    monkeypatch.setattr(record, "REPLACED", 1.0)
    monkeypatch.setattr(record.random, "Random", lambda seed: WrongWords())  # type: ignore[attr-defined]
    assert not any(map(any, record.record(pair, task)["text"]))


class WrongWords:
    """Replaces all words by one that no output contains."""

    def random(self) -> float:
        return 0.0

    def choice(self, words: Sequence[str]) -> str:
        unused = {*range(2, CONFIG["vocab_size"])} - {int(word) for word in words}
        return str(min(unused))


def test_words_are_replaced_at_the_given_rate() -> None:
    texts = [" ".join(f"w{i}.{j}" for j in range(50)) for i in range(40)]
    changed = record.with_other_words(texts)
    pairs = [
        pair for old, new in zip(texts, changed, strict=True) for pair in zip(old.split(), new.split(), strict=True)
    ]
    assert 0.08 < sum(old != new for old, new in pairs) / len(pairs) < 0.12
    assert changed == record.with_other_words(texts) != record.with_other_words(texts, seed=1)


def replayed(task: Task, monkeypatch: pytest.MonkeyPatch, name: str) -> list[Ours]:
    """Return the baseline and the replays of one recorded task, with drafts of three tokens."""
    monkeypatch.setattr(models, "SHAPES", {"t5-small": ENDLESS})
    recorded = record.read(FILE, ["head", "model"])
    found = replays(task, models.random_model(ENDLESS), ["head", "t5-small"], {name: recorded[name]})
    for contender in found:
        vars(contender.session.options)["num_draft_tokens"] = 3
    return found


@pytest.mark.parametrize("name", ["translation", "grammar"])
def test_replay_accepts_as_recorded_and_writes_the_baseline_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, task = 40, random_task(24, 2, 40)
    baseline, *others = replayed(task, monkeypatch, name)
    runs = record.excerpt(record.read(FILE, ())[name], 2 * tokens)
    expected = tokens_by(baseline, task)
    assert [each.label for each in others] == [f"{name}: copies and {draft}, auto" for draft in ("head", "t5-small")]
    for contender, kind in zip(others, ("head", "model"), strict=True):
        for number, output in contender.decode(task):
            place, end, accepted = number * tokens, (number + 1) * tokens, 0
            while place < end:
                right = runs["copy" if runs["found"][place] else kind][place]
                new = min(3, right, end - place - 1)
                place, accepted = place + new + 1, accepted + new
            assert output.tokens == expected[number]
            assert output.stats is not None and output.stats.accepted_tokens == accepted > 0


def test_output_that_differs_from_the_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = random_task(24, 1, 6)
    replay: Contender
    _, replay, _ = replayed(task, monkeypatch, "grammar")
    drafter = replay.session.options.drafter
    assert isinstance(drafter, ReplayDrafter)
    output = drafter.scripts[task.sources[0]].output
    output[2] = abs(output[2] - 1)
    with pytest.raises(InputError, match="--replay: the target's output depends on the width of a pass"):
        list(replay.decode(task))


def test_an_excerpt_has_evenly_spaced_pieces() -> None:
    outputs = [[*range(40)], [*range(40, 100)]]
    found = record.excerpt({"head": outputs}, 50)["head"]
    assert found == [*range(16), *range(32, 48), *range(64, 80), 96, 97]
    assert record.excerpt({"head": outputs}, 120)["head"] == [*range(100), *range(20)]


def test_a_recording_survives_saving_and_loading(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    tasks = {"a": {"head": [[0, 2, 1, 0], [1, 0]], "copy": [[0] * 4, [0, 1]], "found": [[16] * 4, [0, 1]]}}
    record.write(file, tasks, "about")
    assert record.read(file, ["head"]) == tasks
    record.write(file, record.read(FILE, ()), FILE.read_text().split("\n")[0][2:])
    assert file.read_text() == FILE.read_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("a copy 0000 00", "a copy 0000 0", "line 3 is not recorded acceptance"),
        ("a head 0210 10", "a head 02!0 10", "line 2 is"),
        ("a found 3000 00\n", "", 'a task has no "found"'),
    ],
)
def test_damaged_file_is_a_one_line_error(
    old: str, new: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "damaged.txt"
    file.write_text(TINY.replace(old, new))
    status, out, err = command(capsys, "--random", "t5-small", "--draft", "head", "--replay", str(file))
    assert status == 2 and out == "" and err.count("\n") == 1 and f"--replay {file}: {words}" in err


def test_every_table_mentions_replayed_acceptance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "SHAPES", {"t5-small": ENDLESS, "t5-base": ENDLESS})
    monkeypatch.setattr(interleave, "SETTLE", 0.0)
    monkeypatch.setattr(benchmark, "measure_bandwidth", lambda: 1e10)
    arguments = ["--random", "t5-small,t5-base", "--draft", "head", "--replay", str(FILE), "-m", "4"]
    for bits, names in (
        ((), ("random t5-base",)),
        (("--bits", "4", "8"), ("random t5-small, 4 bits", "t5-base, 8 bits")),
    ):
        status, out, _ = command(capsys, *arguments, "--limit", "1", "--repeats", "1", "--warm-ups", "0", *bits)
        titles = [line for line in out.split("\n") if line.startswith("### ")]
        assert status == 0 and len(titles) == 2 * max(1, len(bits) - 1) and "fastest for" not in out
        assert all("replayed acceptance" in title for title in titles) and all(name in out for name in names)
        for label in ("baseline", "grammar: copies and head, auto", "describe: copies and head, auto"):
            assert out.count(f"| {label} |") == len(titles)

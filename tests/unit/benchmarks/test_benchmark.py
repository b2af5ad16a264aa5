"""The benchmark: its figures against oracles, its handling of peers with a fake peer, and its command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from benchmarks import __main__ as benchmark
from benchmarks import drafts, interleave, peers, report, worker
from benchmarks.interleave import Contender, Output, Run, take_turns
from benchmarks.models import SHAPES, Models, bytes_per_pass, exported, random_model
from benchmarks.ours import ours
from benchmarks.summary import Spread, SummaryRow, summarize
from benchmarks.tasks import Task
from speculative_decoding import GenerationStats, InputError
from speculative_decoding.cli.modes import BASELINE, combine_modes
from speculative_decoding.loading.load import open_model
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.session import Session
from tests.support.paths import ROOT
from tests.support.tiny import CONFIG, SOURCES, noisy_copy, tiny_model

FAKE = ROOT / "tests" / "support" / "fake_peer.py"
TASK = Task("tiny", tuple(map(tuple, SOURCES)), 12)


# Figures.


def test_draft_costs_are_recovered_from_synthetic_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds: 0.9 + 0.1 L for a pass over L positions, 0.5 per source, 0.25 per draft, 0.04 per draft token."""

    def timed(session: Session, number: int, num_draft_tokens: int) -> tuple[float, float, int, int]:
        calls = 10 + 7 * number // (1 + num_draft_tokens)
        drafted = calls * num_draft_tokens - number  # the last drafts are shorter
        return 0.5 + 0.25 * calls + 0.04 * drafted, calls * (1 + 0.1 * num_draft_tokens), calls, drafted

    monkeypatch.setattr(drafts, "timed", timed)
    target = tiny_model()
    *_, passes, shares = drafts.lines(Models(target, target), [TASK], repeats=1)
    assert passes == "target pass over 1 / 2 / 4 / 8 positions: 1000000 / 1100000 / 1300000 / 1700000 us"
    assert shares == "relative to a pass over one position: source 0.50, start of a draft 0.25, draft token 0.04"


def test_tokens_per_target_call_is_maximal_when_the_draft_is_the_target() -> None:
    target = tiny_model(eos_token_id=[])
    task = replace(TASK, sources=TASK.sources[:2], max_tokens=drafts.MAX_TOKENS)
    first = next(drafts.lines(Models(target, target), [task], repeats=1))
    assert first == "tiny: 7.69 tokens per target call, 2 prompts, drafts of 7"  # 100 tokens in 13 calls


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"feed_forward_proj": "gated-gelu"}])
def test_bytes_per_pass_equal_a_count_by_hand(changes: dict[str, object]) -> None:
    d, inner, ff, layers, vocab, heads, buckets = 16, 8, 32, 2, 24, 2, 8
    wide = 2 if "feed_forward_proj" in changes else 1
    attention = 4 * d * inner + 2 * d * inner  # q, k, v, o of self-attention, and q, o of cross-attention
    layer = attention + (wide + 1) * d * ff + 3 * d
    expected = layers * layer + buckets * heads + d + vocab * d
    assert bytes_per_pass(tiny_model(num_layers=layers, **changes)) == 4 * expected


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let turns follow each other at once. Only timings need the pauses."""
    monkeypatch.setattr(interleave, "SETTLE", 0.0)


class Fake(Contender):
    """A contender that records when it decodes."""

    def __init__(self, label: str, seen: list[str]) -> None:
        super().__init__(label, f"--{label}", 0.0)
        object.__setattr__(self, "seen", seen)

    def decode(self, task: Task) -> Iterator[tuple[int, Output]]:
        self.seen.append(self.label)  # type: ignore[attr-defined]
        yield from ((number, Output([1], 1.0)) for number in range(len(task.sources)))


def fake_run(label: str, repeat: int, prompt: int, tokens: list[int], seconds: float, task: str = "task") -> Run:
    """Return a run; labels that start with "model" take two tokens per target call."""
    drafts, calls = label.startswith("model"), len(tokens) // (1 + label.startswith("model"))
    stats = GenerationStats(generated_tokens=len(tokens), target_calls=calls, decode_seconds=seconds / 2)
    stats.drafted_tokens, stats.accepted_tokens = 3 * calls * drafts, calls * drafts
    return Run(
        Task(task, (), 9), Fake(label, []), repeat, prompt, Output(tokens, seconds, None if label == "peer" else stats)
    )


def test_table_rows_are_medians_over_repeats() -> None:
    runs = []
    for repeat, factor in enumerate([1.0, 5.0, 2.0]):
        runs += [fake_run("baseline", repeat, i, [5 * i, 2, 3, 4], 0.016 * factor) for i in range(2)]
        runs += [fake_run("model 3", repeat, i, [5 * i, 2, 3, 4], 0.008 * factor) for i in range(2)]
        runs += [fake_run("peer", repeat, 0, [1, 2, 3, 4], 0.004 * factor)]
        runs += [fake_run("peer", repeat, 1, [9, 9, 9, 9], 0.004 * factor)]
    baseline, model, peer = summarize("tiny", runs, 30_000, 1e7)
    assert [row.label for row in (baseline, model, peer)] == ["baseline", "model 3", "peer"]
    assert [row.is_ours for row in (baseline, model, peer)] == [True, True, False]
    assert baseline.ms_per_token == Spread(6.0, 8.0, 14.0) and baseline.tokens == 8
    assert (baseline.speedup, model.speedup, peer.speedup) == (1.0, 2.0, 4.0)
    assert baseline.same_ids == model.same_ids == 1.0
    assert peer.same_ids == pytest.approx(3 / 8) and peer.setting == "--peer"
    assert baseline.decode_ms_per_token == 4.0 and peer.decode_ms_per_token is None
    assert (baseline.acceptance, model.acceptance) == (None, pytest.approx(1 / 3))
    assert (baseline.tokens_per_target_call, model.tokens_per_target_call) == (1.0, 2.0)
    assert baseline.share_of_limit == pytest.approx(30_000 / 1e7 / 4e-3)
    assert model.share_of_limit is None


def test_outputs_of_different_lengths_are_reported_as_different() -> None:
    runs = [fake_run("baseline", 0, 0, [1, 2, 3, 4], 1.0)]
    for tokens, share in (([1, 2, 3], 3 / 4), ([1, 2, 3, 4, 5], 4 / 5)):
        peer = summarize("tiny", [*runs, fake_run("peer", 0, 0, tokens, 1.0)], 1, 1.0)[1]
        assert peer.same_ids == pytest.approx(share)


def lines_of(times: dict[str, tuple[float, ...]], *, temperature: float = 0.0) -> list[str]:
    """Return the lines for modes with these ms per token on a task of 10 tokens and, optionally, on one of 90."""
    rows = [
        SummaryRow("m", task, None, label, f"--drafter {label}", temperature, True, tokens, Spread(ms, ms, ms), 1.0)
        for label, each in times.items()
        for task, tokens, ms in zip(("short", "long"), (10, 90), each, strict=False)
    ]
    return report.fastest_lines(
        [*rows, SummaryRow("m", "short", None, "peer", "", 0.0, False, 10, Spread(0, 0, 0), 9.0)]
    )


def test_the_fastest_flags_are_reported() -> None:
    times = {"baseline": (2.0, 2.0), "model": (1.0, 3.0), "ngram": (1.5, 1.9)}
    assert lines_of(times) == [
        "fastest for short: --drafter model, 2.00x baseline decoding",
        "fastest for long: --drafter ngram, 1.05x baseline decoding",
        "fastest for all of them: --drafter ngram, 1.08x baseline decoding",  # 200 ms, 280 ms and 186 ms
    ]
    slow = {"baseline": (2.0,), "model": (2.0,), "ngram": (2.5,)}
    expected = ["fastest for short, temperature 1: --drafter baseline, no draft beats baseline decoding"]
    assert lines_of(slow, temperature=1.0) == expected
    assert lines_of({"baseline": (2.0, 2.0)}) == []  # only one mode


# Turns.


def test_contenders_take_turns_and_warm_ups_do_not_count() -> None:
    seen: list[str] = []
    one, two = Task("one", ((1,), (2,)), 5), Task("two", ((3,),), 5)
    a, b, c = (Fake(name, seen) for name in "abc")
    said: list[str] = []
    runs = list(take_turns([(one, [a, b, c]), (two, [a, b])], 3, 1, said.append))
    assert "".join(seen) == "cabba" + "abcab" + "bcaba" + "cabab"
    assert said == ["warm-up", "repeat 1 of 3", "repeat 2 of 3", "repeat 3 of 3"]
    assert {run.repeat for run in runs} == {0, 1, 2} and len(runs) == 3 * (3 * 2 + 2)
    assert len({(run.task.name, run.contender.label, run.repeat, run.prompt) for run in runs}) == len(runs)


def test_long_turns_are_cut_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only decoding advances, the third prompt of a turn is the last one."""
    now = 0.0
    monkeypatch.setattr(interleave.time, "perf_counter", lambda: now)
    seen: list[str] = []

    class Slow(Fake):
        def decode(self, task: Task) -> Iterator[tuple[int, Output]]:
            nonlocal now
            for number in range(len(task.sources)):
                now += 0.4 * interleave.SLICE
                seen.append(self.label)
                yield number, Output([1], 1.0)

    task = Task("long", ((1,),) * 7, 5)
    runs = list(take_turns([(task, [Slow(name, []) for name in "ab"])], 1, 0, print))
    assert "".join(seen) == "aaabbb" * 2 + "ab"
    assert [run.prompt for run in runs if run.contender.label == "b"] == list(range(7))


# Modes and tasks.


def test_each_acceptance_rule_is_a_contender_for_sampled_drafts() -> None:
    models = Models(tiny_model(), noisy_copy(tiny_model()))
    found = ours(TASK, [BASELINE, *combine_modes(["model"], [3])], [0.0, 1.0], models, ["coupled", "block"])
    labels = [(each.label, each.temperature) for each in found]
    sampled = [(f"model 3, {rule}", 1) for rule in ("coupled", "block")]
    assert labels == [("baseline", 0), ("model 3", 0), ("baseline", 1), *sampled]
    assert found[-1].session.options.rule == "block" and found[-1].setting.endswith("--acceptance block")


def tokens_by(contender: Contender, task: Task) -> list[list[int]]:
    return [output.tokens for _, output in sorted(contender.decode(task), key=lambda pair: pair[0])]


def test_random_models_have_published_sizes_and_do_not_end() -> None:
    """The sizes of T5 in Raffel et al. 2020: about 60, 220 and 770 million parameters."""
    for name, millions in (("t5-small", 60.5), ("t5-base", 222.9), ("t5-large", 737.7)):
        shape = SHAPES[name]
        d, inner, ff, depth = (shape[key] for key in ("d_model", "d_kv", "d_ff", "num_layers"))
        inner *= shape["num_heads"]
        encoder = depth * (4 * d * inner + 2 * d * ff + 2 * d) + d + 32 * shape["num_heads"]
        decoder = depth * (8 * d * inner + 2 * d * ff + 3 * d) + d + 32 * shape["num_heads"]
        assert (encoder + decoder + shape["vocab_size"] * d) / 1e6 == pytest.approx(millions, abs=0.1)
    model = random_model(CONFIG | {"eos_token_id": [], "tie_word_embeddings": True})
    (baseline,) = ours(TASK, [BASELINE], [0.0], Models(model, None))
    assert [*map(len, tokens_by(baseline, TASK))] == [12] * len(SOURCES)


# Peers.


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "umt5", "feed_forward_proj": "gated-gelu"},
        {"num_decoder_layers": 1, "eos_token_id": [1, 5]},
    ],
    ids=str,
)
def test_exported_folder_loads_identically(changes: dict[str, object], tmp_path: Path) -> None:
    model = tiny_model(**changes)
    folder = exported(model, tmp_path / "exported")
    assert exported(tiny_model(1), folder) == folder  # an existing folder is kept
    opened = open_model(folder)
    opened.load_weights()
    assert opened.model.config.eos_token_ids == model.config.eos_token_ids
    assert_same(model, opened.model)
    source = mx.array([SOURCES[0]])
    assert mx.array_equal(model.encode(source), opened.model.encode(source))


def assert_same(one: EncoderDecoder, other: EncoderDecoder) -> None:
    ours, theirs = (dict(tree_flatten(model.parameters())) for model in (one, other))
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        assert mx.array_equal(value, theirs[path]) and theirs[path].dtype == mx.float32


def test_weights_that_peers_cannot_read_are_not_exported(tmp_path: Path) -> None:
    quantized = tiny_model(d_model=64, d_kv=32, d_ff=64)
    nn.quantize(quantized, group_size=64, bits=4)
    for model, words in ((quantized, "unquantized"), (tiny_model(residual_scale=0.25), "not rescaled for float16")):
        with pytest.raises(InputError, match=f"peers need weights that are {words}|peers need {words} weights"):
            exported(model, tmp_path / "exported")
        assert not (tmp_path / "exported").exists()


def fake_worker(peer: str = "fake", **mode: object) -> peers.Worker:
    return peers.Worker([sys.executable, str(FAKE)], {"peer": peer, "mode": mode})


@pytest.mark.parametrize(("failure", "words"), [("raise", "ValueError: no such mode"), ("exit", "process ended")])
def test_failing_peer_is_a_one_line_error(failure: str, words: str) -> None:
    expected = pytest.raises(InputError, match=f"--peers fake: {words}.*omit this peer")
    with closing(fake_worker(fail=failure)) as started, expected:
        started.decode(TASK)


def test_worker_reports_errors(tmp_path: Path) -> None:
    """The real worker fails because of a missing folder, or because the peer is not installed."""
    job = {"peer": "ct2", "target": str(tmp_path / "nothing"), "draft": None, "scratch": str(tmp_path), "ends": True}
    with pytest.raises(InputError, match="--peers ct2: [A-Z]"):
        peers.Worker([sys.executable, str(peers.WORKER)], {**job, "mode": {"threads": 1, "compute_type": "int8"}})
    assert worker.PEERS.keys() - worker.OF_SPEECH.keys() == peers.PEERS.keys()


class Reversing:
    """A fake peer that reverses sources; 7 ends an output, 0 pads it."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []

    def decode(self, sources: list[list[int]], max_tokens: int, beams: int) -> tuple[list[list[int]], float]:
        self.groups.append([len(source) for source in sources])
        width = max(map(len, sources))
        rows = [source[::-1] + [0] * (width - len(source)) for source in sources]
        return [worker.until_end(row, [7]) for row in rows], 1.0 * len(sources)


def test_worker_batches_similar_lengths_and_answers_in_order() -> None:
    sources = [[7, 1, 2, 3], [7], [7, 1, 2], [7, 5], [7, 1, 0, 0, 2]]
    peer = Reversing()
    answer = worker.decode_all(peer, sources, 9, 2, 1)
    assert peer.groups == [[1, 2], [3, 4], [5]]
    assert answer == {"tokens": [source[::-1] for source in sources], "seconds": [1.0] * 5}
    assert worker.decode_all(Reversing(), sources, 9, 1, 1) == answer
    assert worker.until_end([1, 2], [7]) == [1, 2] and worker.until_end([1, 7, 7], [7]) == [1, 7]


# The command.


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = benchmark.main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "measure_bandwidth", lambda: 1e10)
    monkeypatch.setattr(peers, "WORKER", FAKE)


def test_the_command_measures_a_peer(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "one.txt", tmp_path / "two.txt"]
    files[0].write_text("translate English to German: Hello.\n\ngrammar: It were a cod.\n")
    files[1].write_text("grammar: It were a cod.\n")
    options = ["--model", "t5-web-docs", "--draft-model", "t5-web-docs-draft", "--drafter", "model", "--num-draft", "3"]
    options += ["--temperature", "0", "1", "-m", "8", "--repeats", "2"]
    file = tmp_path / "figures.json"
    status, out, _ = command(capsys, *map(str, files), *options, "--peers", "ct2", "--json", str(file))
    text, fastest = out.rstrip().rsplit("\n\n", 1)
    summary = json.loads(file.read_text())
    assert status == 0 and "{" not in out
    labels = [(row["label"], row["temperature"]) for row in summary["rows"] if row["task"] == "one"]
    ours_ = [("baseline", 0), ("model 3", 0), ("baseline", 1), ("model 3", 1)]
    assert labels == [*ours_, ("ct2 float32", 0), ("ct2 int8", 0)] and summary["environment"]["fake"] == "1.0"
    rows = {(row["label"], row["temperature"]): row for row in summary["rows"] if row["task"] == "one"}
    assert rows["model 3", 0]["same_ids"] == 1.0 and rows["baseline", 0]["share_of_limit"] > 0
    assert rows["ct2 int8", 0]["same_ids"] < 1.0 and rows["ct2 int8", 0]["setting"].endswith("threads 1")
    assert [line.partition(": ")[0] for line in fastest.split("\n")] == [
        f"fastest for {task}{where}" for where in ("", ", temperature 1") for task in ("one", "two", "all of them")
    ]
    table = [line for line in text.split("\n") if line.startswith("|")]
    assert len(table) == 2 * (6 + 2) and len({line.count("|") for line in table}) == 1


def test_the_command_measures_several_slots(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"translate English to German: Open the {word}.\n" for word in ("file", "door", "box")))
    options = ["--slots", "1", "2", "--drafter", "auto", "model", "--num-draft", "2", "--max-tokens", "4"]
    options += ["--peers", "ct2", "--repeats", "1", "--warm-ups", "0", "--json", "-"]
    status, out, err = command(capsys, str(prompts), *options)
    assert status == 0
    rows = json.loads(out)["rows"]
    labels = ["baseline", "auto 2", "model 2", "ct2 float32", "ct2 int8"]
    expected = [("prompts", slots, label) for slots in (1, 2) for label in labels]
    assert [(row["task"], row["slots"], row["label"]) for row in rows] == expected
    ours_ = [row for row in rows if row["is_ours"]]
    assert all(row["same_ids"] == 1.0 and row["tokens"] == ours_[0]["tokens"] for row in ours_)
    assert err.count("fastest for prompts, ") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--peers", "ct2", "--temperature", "1"], "--peers: requires temperature 0"),
        (["--random", "t5-small", "--model", "x"], "--model: cannot be combined with --random"),
        (["--draft", "head"], "--draft, --replay: need each other and --random"),
        (["--acceptance", "block"], "--acceptance: no effect at temperature 0"),
        (["--model", "t5-web-docs", "--drafter", "model"], "--drafter model: needs a --draft-model"),
        (["--model", "t5-web-docs", "--peers", "hf-assisted"], "--peers hf-assisted: needs a draft model"),
        (["no-such-file.txt"], "no-such-file.txt: not readable"),
    ],
)
def test_conflicting_options_are_one_line_errors(
    quick: None, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = command(capsys, *arguments)
    errors = [line for line in err.split("\n") if "error" in line]
    assert status == 2 and out == "" and len(errors) == 1 and words in errors[0]

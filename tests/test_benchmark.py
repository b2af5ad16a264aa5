"""The benchmark: its figures against oracles, its peers against a fake one, its command as a person calls it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from benchmarks import batches, environment, interleave, peers, random_weights, report, speedup, worker
from benchmarks import main as benchmark
from benchmarks.export import export
from benchmarks.interleave import Run, take_turns
from benchmarks.limits import bytes_per_pass
from benchmarks.summary import Row, Spread, Weights, summarise
from benchmarks.tasks import Task, growth_tasks, random_task
from benchmarks.ways import WAYS, Ids, Models, Output, ours
from speculative_decoding import GenerationStats, InputError, SamplingParams, generate
from speculative_decoding.draft_length.costs import Costs
from speculative_decoding.loading.load import BUNDLED, load_model, open_model
from speculative_decoding.models.base import EncoderDecoder
from tests.tiny import CONFIG, SOURCES, noisy_copy, run, tiny_model, tokens_of

FAKE = [sys.executable, str(Path(__file__).with_name("fake_peer.py"))]
TASK = Task("tiny", tuple(map(tuple, SOURCES)), 12)
COSTS = Costs((3e-3, 3.5e-3, 4e-3, 4.5e-3), draft=0.6e-3, host=0.3e-3)  # seconds; t(4) = 1.5 t(1)


# --- figures ---


def test_quartiles_are_numpys() -> None:
    rng = random.Random(3)
    for count in range(1, 12):
        values = [rng.expovariate(1) for _ in range(count)]
        spread = Spread.of(values)
        assert (spread.low, spread.median, spread.high) == pytest.approx(tuple(np.percentile(values, [25, 50, 75])))


def test_expected_tokens_is_the_mean_of_a_simulated_round() -> None:
    """Enumerated: of g drafts exactly t < g are kept with probability alpha^t (1 - alpha), all with alpha^g."""
    for alpha in (0.0, 0.3, 0.75, 1.0):
        for g in range(8):
            enumerated = sum((t + 1) * alpha**t * (1 - alpha) for t in range(g)) + (g + 1) * alpha**g
            assert speedup.expected_tokens(alpha, g) == pytest.approx(enumerated)


def test_the_predicted_speedup_is_tokens_over_time() -> None:
    """A schedule added up: 7 rounds of 3 drafts, in ms, against a bare pass for each token."""
    rounds, tokens = 7, 17
    time_ms = rounds * (1.5 * 3.0 + 3 * 0.2 * 3.0 + 0.1 * 3.0)
    assert speedup.predicted_speedup(tokens / rounds, 3, COSTS) == pytest.approx(tokens * 3.0 / time_ms)
    plain_ms = tokens * (3.0 + 0.1 * 3.0)  # its rounds have the host's share too
    assert speedup.predicted_gain(tokens / rounds, 3, COSTS) == pytest.approx(plain_ms / time_ms)
    assert speedup.efficiency(plain_ms / time_ms, tokens / rounds, 3, COSTS) == pytest.approx(1.0)
    assert speedup.efficiency(plain_ms / (2 * time_ms), tokens / rounds, 3, COSTS) == pytest.approx(0.5)


def test_reading_the_source_is_spread_over_the_rounds_that_draft() -> None:
    costs = replace(COSTS, reading=2e-3)
    spread = costs.with_reading_spread(4)
    assert speedup.predicted_speedup(3.0, 3, spread) == pytest.approx(3.0 * 3.0 / (4.5 + 3 * 0.6 + 0.3 + 0.5))
    assert speedup.predicted_speedup(3.0, 3, costs) == speedup.predicted_speedup(3.0, 3, COSTS)
    assert speedup.predicted_speedup(1.0, 0, spread) == speedup.predicted_speedup(1.0, 0, COSTS)


def test_published_speedups_follow_from_the_formula() -> None:
    """Leviathan et al. 2023, table 1: alpha and g -> the speed-up, where the draft costs nothing and a pass over
    g + 1 positions what one costs.
    """
    table = [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)]
    for alpha, g, published in table:
        costs = Costs((1.0,) * (g + 1))
        tokens = speedup.expected_tokens(alpha, g)
        assert speedup.predicted_speedup(tokens, g, costs) == pytest.approx(published, abs=0.005)


def test_share_of_limit() -> None:
    assert speedup.share_of_limit(30e6, 10e9, 6e-3) == pytest.approx(0.5)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"feed_forward_proj": "gated-gelu"}])
def test_bytes_per_pass_counted_by_hand(changes: dict[str, object]) -> None:
    d, inner, ff, layers, vocab, heads, buckets = 16, 8, 32, 2, 24, 2, 8
    wide = 2 if "feed_forward_proj" in changes else 1
    attention = 4 * d * inner + 2 * d * inner  # q k v o, and across q o
    layer = attention + (wide + 1) * d * ff + 3 * d
    expected = layers * layer + buckets * heads + d + vocab * d
    assert bytes_per_pass(tiny_model(**changes)) == 4 * expected


def test_a_quantised_pass_reads_fewer_bytes() -> None:
    model = tiny_model(d_model=64, d_kv=32, d_ff=64)
    before = bytes_per_pass(model)
    nn.quantize(model, group_size=64, bits=4)
    packed = 4 / 32 + 2 * 4 / (64 * 4)  # bits of float32, and a scale and a bias for 64
    assert packed < bytes_per_pass(model) / before < packed + 0.1  # norms and position biases stay


def fake_run(label: str, repeat: int, prompt: int, tokens: list[int], seconds: float, is_ours: bool = True) -> Run:
    steps = 3 if label == "model 3" else 0
    stats = GenerationStats(
        generated_tokens=len(tokens), target_calls=len(tokens) // (1 + (steps > 0)), decode_seconds=seconds / 2
    )
    stats.drafted_tokens, stats.accepted_tokens = 4 * steps, steps
    output = Output(tokens, seconds, stats if is_ours else None)
    return Run("task", label, 0.0, steps, steps, repeat, prompt, output, 0.0)


def test_rows_are_medians_over_repeats_of_all_prompts() -> None:
    runs = []
    for repeat, factor in enumerate([1.0, 5.0, 2.0]):
        runs += [fake_run("peer", repeat, 0, [1, 2, 3, 4], 0.004 * factor, is_ours=False)]
        runs += [fake_run("peer", repeat, 1, [9, 9, 9, 9], 0.004 * factor, is_ours=False)]
        runs += [fake_run("model 3", repeat, i, [5 * i, 2, 3, 4], 0.008 * factor) for i in range(2)]
        runs += [fake_run("plain", repeat, i, [5 * i, 2, 3, 4], 0.016 * factor) for i in range(2)]
    costs = replace(COSTS, reading=1e-3)
    plain, model, peer = summarise(runs, {("task", "peer"): "threads 2"}, costs, Weights(30_000, 10_000, 1e7))
    assert [row.label for row in (plain, model, peer)] == ["plain", "model 3", "peer"]
    assert plain.ms_per_token == Spread(8.0, 6.0, 14.0) and plain.tokens == 8 and plain.tokens_per_second == 125.0
    assert (plain.gain, model.gain, peer.gain) == (1.0, 2.0, 4.0)
    assert (plain.same_ids, plain.same_outputs) == (model.same_ids, model.same_outputs) == (1.0, 1.0)
    assert peer.same_ids == pytest.approx(3 / 8) and peer.same_outputs == 0.0 and peer.setting == "threads 2"
    assert peer.efficiency is None and plain.efficiency is None and peer.decode_ms_per_token is None
    assert model.efficiency == pytest.approx(speedup.efficiency(2.0, 2.0, 3, costs.with_reading_spread(2)))
    assert model.acceptance == 0.25
    assert plain.decode_ms_per_token is not None and plain.decode_ms_per_token.median == 4.0
    assert plain.share_of_limit == pytest.approx(3 / 4) and model.share_of_limit == pytest.approx((60 / 2 / 10) / 2)


def test_a_shorter_or_longer_output_is_not_the_same() -> None:
    runs = [fake_run("plain", 0, 0, [1, 2, 3, 4], 1.0)]
    for tokens, share in (([1, 2, 3], 3 / 4), ([1, 2, 3, 4, 5], 4 / 5)):
        peer = summarise([*runs, fake_run("peer", 0, 0, tokens, 1.0, is_ours=False)], {})[1]
        assert peer.same_ids == pytest.approx(share) and peer.same_outputs == 0.0


# --- who runs when ---


class Watched:
    temperature, num_draft, draft_steps = 0.0, 0, 0

    def __init__(self, label: str, seen: list[tuple[str, str]]) -> None:
        self.label, self.seen = label, seen

    def decode(self, task: Task) -> Iterator[Output]:
        self.seen.append((task.name, self.label))
        yield from (Output([1], 1.0) for _ in task.sources)


def test_contenders_take_turns_and_warm_up_does_not_count() -> None:
    seen: list[tuple[str, str]] = []
    tasks = [Task("one", ((1,), (2,)), 5), Task("two", ((3,),), 5)]
    contenders = {"one": [Watched(name, seen) for name in "abc"], "two": [Watched(name, seen) for name in "ab"]}
    runs = list(take_turns(contenders, tasks, 3, warm_ups=1, settle=0))
    assert "".join(name for _, name in seen) == "cabba" + "abcab" + "bcaba" + "cabab"
    assert {run.repeat for run in runs} == {0, 1, 2} and len(runs) == 3 * (3 * 2 + 2)
    assert len({(run.task, run.label, run.repeat, run.prompt) for run in runs}) == len(runs)


def test_long_turns_are_cut_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only decoding moves: the third prompt of a turn is its last."""
    now = 0.0
    monkeypatch.setattr(interleave.time, "perf_counter", lambda: now)

    class Slow(Watched):
        def decode(self, task: Task) -> Iterator[Output]:
            nonlocal now
            for _ in task.sources:
                now += 0.4 * interleave.SLICE
                self.seen.append((task.name, self.label))
                yield Output([1], 1.0)

    seen: list[tuple[str, str]] = []
    contenders = [Slow(name, seen) for name in "ab"]
    runs = list(take_turns({"long": contenders}, [Task("long", ((1,),) * 7, 5)], 1, warm_ups=0, settle=0))
    assert "".join(name for _, name in seen) == "aaabbb" * 2 + "ab"
    assert [run.prompt for run in runs if run.label == "b"] == list(range(7))


# --- ways and tasks ---


def test_every_way_decodes_what_plain_decoding_does() -> None:
    """All of `WAYS`, at temperature 0: the ids of the loop itself."""
    target = tiny_model()
    expected = [tokens_of(run(target, source, max_tokens=TASK.max_tokens)) for source in SOURCES]
    chosen = ours(list(WAYS), [2, 4], [0.0], Models(target, noisy_copy(target)))
    assert chosen[0].label == "plain" and len(chosen) >= 3 and len({each.label for each in chosen}) == len(chosen)
    for contender in chosen:
        outputs = list(contender.decode(TASK))
        assert [output.tokens for output in outputs] == expected
        for output in outputs:
            assert output.stats is not None and output.stats.generated_tokens == len(output.tokens)
            assert output.stats.encode_seconds + output.stats.decode_seconds <= output.seconds
        assert contender.draft_steps in (0, contender.num_draft, None)


def test_sampled_outputs_repeat() -> None:
    target = tiny_model()
    (plain,) = ours(["plain"], [], [1.0], Models(target, None))
    first, second = ([output.tokens for output in plain.decode(TASK)] for _ in range(2))
    assert first == second
    assert (
        first[1] == generate(target, given(SOURCES[1]), "x", sampling=SamplingParams(1.0, seed=1), max_tokens=12).tokens
    )


def given(source: list[int]) -> Ids:
    ids = Ids()
    ids.source = source
    return ids


def test_a_way_without_its_draft_is_refused() -> None:
    with pytest.raises(InputError, match="--ways model: needs a --draft-model"):
        ours(["model"], [3], [0.0], Models(tiny_model(), None))


def test_random_tasks_are_fixed_and_of_the_length_asked_for() -> None:
    one, other = (random_task("r", 100, 3, 40, 7) for _ in range(2))
    assert one == other and [len(source) for source in one.sources] == [40] * 3 and not one.ends
    assert all(1 < token < 100 for source in one.sources for token in source)
    grown = growth_tasks(100, [16, 32], [8])
    assert [(task.name, len(task.sources[0]), task.max_tokens) for task in grown] == [
        ("source 16", 16, 32),
        ("source 32", 32, 32),
        ("output 8", 40, 8),
    ]


def test_random_models_have_published_sizes_and_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raffel et al. 2020: about 60, 220 and 770 million parameters."""
    for name, millions in (("t5-small", 60.5), ("t5-base", 222.9), ("t5-large", 737.7)):
        shape = random_weights.SHAPES[name]
        d, inner, ff, depth = (shape[key] for key in ("d_model", "d_kv", "d_ff", "num_layers"))
        inner *= shape["num_heads"]
        encoder = depth * (4 * d * inner + 2 * d * ff + 2 * d) + d + 32 * shape["num_heads"]
        decoder = depth * (8 * d * inner + 2 * d * ff + 3 * d) + d + 32 * shape["num_heads"]
        assert (encoder + decoder + shape["vocab_size"] * d) / 1e6 == pytest.approx(millions, abs=0.1)
    tiny = CONFIG | {"eos_token_id": [], "tie_word_embeddings": True}
    model = random_weights.random_model(tiny)
    (plain,) = ours(["plain"], [], [0.0], Models(model, None))
    assert [len(output.tokens) for output in plain.decode(TASK)] == [12] * len(SOURCES)
    assert mx.isfinite(model.encode(mx.array([SOURCES[0]]))).all().item()


# --- peers ---


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"model_type": "umt5", "feed_forward_proj": "gated-gelu"},
        {"num_decoder_layers": 1, "eos_token_id": [1, 5]},
    ],
    ids=str,
)
def test_an_exported_folder_loads_back_identical(changes: dict[str, object], tmp_path: Path) -> None:
    model = tiny_model(**changes)
    folder = export(model, tmp_path / "exported")
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
        assert mx.array_equal(value.astype(mx.float32), theirs[path]) and theirs[path].dtype == mx.float32


def test_bfloat16_weights_are_exported_without_loss(tmp_path: Path) -> None:
    model, _ = load_model(BUNDLED / "t5-web-docs-draft", dtype="bfloat16")
    opened = open_model(export(model, tmp_path / "exported"))
    opened.load_weights()
    assert_same(model, opened.model)


def test_an_endless_model_is_exported_as_one(tmp_path: Path) -> None:
    folder = export(tiny_model(eos_token_id=[]), tmp_path / "exported")
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] is None


def test_a_quantised_model_is_not_exported(tmp_path: Path) -> None:
    model = tiny_model(d_model=64, d_kv=32, d_ff=64)
    nn.quantize(model, group_size=64, bits=4)
    with pytest.raises(InputError, match="peers need weights that are not quantised"):
        export(model, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[peers.Peer]:
    started = peers.Peer("fake", FAKE, tmp_path, None, tmp_path)
    yield started
    started.close()


def test_a_peer_answers_in_order(fake: peers.Peer) -> None:
    outputs = fake.decode({"threads": 2}, Task("t", ((1, 2, 3), (4, 5)), 2))
    assert outputs == [Output([2, 1], 0.004), Output([5, 4], 0.004)]
    assert fake.versions == {"fake": "1.0"}


@pytest.mark.parametrize(("name", "processes"), [("hf", [1, 1, 1]), ("ct2", [1, 2, 2])])
def test_only_modes_that_disturb_each_other_have_processes_of_their_own(
    name: str, processes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(0) or popen(*a, **k))
    peer = peers.Peer(name, FAKE, tmp_path, None, tmp_path)
    for threads, count in zip((1, 2, 1), processes, strict=True):
        assert peer.decode({"threads": threads}, TASK)[0].seconds == pytest.approx(1e-3 * threads * len(SOURCES[0]))
        assert len(started) == count
    peer.close()


def test_the_fastest_mode_of_each_row_is_chosen(fake: peers.Peer) -> None:
    rows = {"one": [{"threads": n} for n in (3, 1, 2)], "other": [{"threads": n} for n in (5, 4)]}
    chosen, trials = peers.tune(fake, rows, TASK)
    assert [(mode.label, mode.setting) for mode in chosen] == [("one", "threads 1"), ("other", "threads 4")]
    assert [trial.ms_per_token for trial in trials] == pytest.approx([3, 1, 2, 5, 4])


@pytest.mark.parametrize(("failure", "words"), [("raise", "ValueError: no such mode"), ("exit", "its process ended")])
def test_a_peer_that_fails_is_one_line(fake: peers.Peer, failure: str, words: str) -> None:
    with pytest.raises(InputError, match=f"--peers fake: {words}.*leave this peer out"):
        fake.decode({"fail": failure}, TASK)


def test_a_peer_that_is_not_installed_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--peers missing: its process ended: ModuleNotFoundError: No module named"):
        peers.Worker("missing", FAKE, tmp_path, None, tmp_path)
    with pytest.raises(InputError, match="--peer-python /no/python: cannot be run"):
        peers.Worker("fake", ["/no/python"], tmp_path, None, tmp_path)


def test_the_worker_reports_what_goes_wrong(tmp_path: Path) -> None:
    """The real worker, in this Python, on a folder that holds nothing: an answer, whatever is installed here."""
    with pytest.raises(InputError, match="--peers ct2: [A-Z]"):
        peers.Worker("ct2", peers.worker_command(None), tmp_path / "nothing", None, tmp_path)
    assert worker.PEERS.keys() == peers.PEERS.keys()


# --- what is said ---


def test_a_busy_machine_is_said() -> None:
    assert environment.notes(0.1, 0.01, 5) == []
    busy, used, few = environment.notes(1.5, 0.3, 3)
    assert "load average 1.5" in busy and "used 30% of the processors" in used and "medians of 3 only" in few
    assert environment.notes(0.1, None, 5) == []


def test_the_environment_is_complete() -> None:
    found = environment.environment("float32", 0.5).as_dict()
    assert found["cores"] >= 1 and found["dtype"] == "float32" and found["load_before"] == 0.5
    assert all(found[name] for name in ("chip", "system", "python", "mlx", "device", "blas", "commit", "date"))
    assert "/" not in found["blas"]


def test_work_of_our_own_is_not_counted_as_others() -> None:
    ticks, own = iter([(10.0, 100.0), (14.0, 110.0)]), iter([1.0, 4.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "processor_seconds", lambda: next(ticks))
        patch.setattr(environment, "own_seconds", lambda: next(own))
        assert environment.OtherWork().share() == pytest.approx(0.1)


def test_tables_are_markdown_with_a_cell_for_each_column() -> None:
    row = Row("source 16", "plain", 0.0, 0, "", 32, Spread(2, 1, 3), 1.0, True)
    study = report.Study("random t5-small", [row, row], None, None, {})
    for text in (report.result_tables(study), report.growth_tables([study])):
        lines = [line for line in text.split("\n") if line.startswith("|")]
        assert len(lines) >= 3 and len({line.count("|") for line in lines}) == 1
        assert "2.00 (1.00-3.00)" in lines[2]


# --- the command ---


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = benchmark.main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "SETTLE", 0.0)
    monkeypatch.setattr(benchmark, "measure_bandwidth", lambda: 1e10)
    monkeypatch.setattr(peers, "worker_command", lambda python: FAKE)


def test_a_run_with_a_peer(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("translate English to German: Hello.\n\ngrammar: It were a cod.\n")
    options = [
        "--ways",
        "model",
        "--num-draft",
        "3",
        "--temperature",
        "0",
        "1",
        "-m",
        "8",
        "--repeats",
        "2",
        "--peers",
        "ct2",
    ]
    status, out, _ = command(capsys, str(prompts), *options, "--output", str(tmp_path / "out"), "--plot")
    summary = json.loads(out.strip().split("\n")[-1])
    assert status == 0 and (tmp_path / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary
    assert (tmp_path / "out" / "table.md").read_text().rstrip() == out.rsplit("\n\n", 1)[0]
    (study,) = summary["studies"]
    labels = [(row["label"], row["temperature"]) for row in study["rows"]]
    ours_ = [("plain", 0), ("model 3", 0), ("plain", 1), ("model 3", 1)]
    assert labels == [*ours_, ("ct2 float32", 0), ("ct2 int8", 0)] and study["versions"] == {"fake": "1.0"}
    rows = {(row["label"], row["temperature"]): row for row in study["rows"]}
    assert rows["model 3", 0]["same_ids"] == 1.0 and rows["model 3", 0]["efficiency"] > 0
    assert rows["ct2 int8", 0]["same_outputs"] == 0.0 and rows["ct2 int8", 0]["setting"].endswith("threads 1")
    lines = [json.loads(line) for line in (tmp_path / "out" / "runs.jsonl").read_text().splitlines()]
    assert sum(line["kind"] == "run" for line in lines) == 6 * 2 * 2
    trials = sum(line["kind"] == "trial" for line in lines)
    assert trials == 2 * len(peers.THREADS) and lines[-1]["kind"] == "environment"


def test_parts_are_timed_between_repeats(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the machine as it is then, for it may be faster or slower an hour later."""
    events: list[str] = []

    class Parts:
        def __init__(self, *models: object) -> None:
            pass

        def take(self, budget: float, least: int) -> None:
            events.append("parts")

        def costs(self) -> Costs:
            return Costs((1.0, 1.1, 1.2, 1.3), 0.1, 0.05)

    monkeypatch.setattr(benchmark, "Measurement", Parts)
    monkeypatch.setattr(benchmark, "say", lambda text: events.append(text.partition(": ")[2]))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("grammar: It were a cod.\n")
    assert command(capsys, str(prompts), "--ways", "plain", "-m", "4", "--repeats", "2")[0] == 0
    assert events[-5:] == ["warm-up", "repeat 1 of 2", "parts", "repeat 2 of 2", "parts"]


def test_many_prompts_at_once(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"translate English to German: Open the {word}.\n" for word in ("file", "door", "box")))
    options = ["--slots", "1", "2", "--ways", "auto,model", "--num-draft", "2", "--max-tokens", "6", "--peers", "ct2"]
    options += ["--repeats", "2", "--output", str(tmp_path / "out"), "--plot"]
    status, out, _ = command(capsys, str(prompts), *options)
    assert status == 0 and (tmp_path / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")
    (study,) = json.loads(out.strip().split("\n")[-1])["studies"]
    labels = ["plain", "auto", "model 2", "ct2 float32", "ct2 int8"]
    assert [(row["task"], row["label"]) for row in study["rows"]] == [
        (f"prompts, {slots} slots", label) for slots in (1, 2) for label in labels
    ]
    ours_ = [row for row in study["rows"] if row["is_ours"]]
    assert all(row["same_ids"] == 1.0 and row["tokens"] == ours_[0]["tokens"] for row in ours_)
    assert {row["length"] for row in ours_ if row["label"] == "model 2"} == {"drafts 2 tokens a round"}
    assert "| against ct2 int8 |" in out and "Peak memory of auto, weights included" in out


def test_a_task_decoded_together_is_decoded_as_one_by_one() -> None:
    models = Models(tiny_model(), noisy_copy(tiny_model()))
    for temperature in (0.0, 1.0):
        single = [output.tokens for output in ours(["model"], [3], [temperature], models)[1].decode(TASK)]
        for task in batches.at_slots([TASK], [1, 2, 9]):
            assert task.slots is not None and batches.task_and_slots(task.name) == ("tiny", task.slots)
            (_, way) = batches.together(["model"], [3], [temperature], models, task.slots)
            assert [output.tokens for output in way.decode(task)] == single


def test_memory_that_others_hold_is_not_counted() -> None:
    task = batches.at_slots([Task("t", tuple((i + 2, 5, 1) for i in range(12)), 40)], [3])[0]
    (plain,) = batches.together(["plain"], [], [0.0], Models(tiny_model(), None), 3)

    def peak(others: int) -> int:
        stats, held = None, []
        for output in plain.decode(task):
            held.append(mx.ones((others,), mx.uint8))  # a waiting contender takes some, and keeps it
            mx.eval(held)
            stats = output.stats
        assert stats is not None
        return stats.peak_memory_bytes

    assert peak(10_000_000) == pytest.approx(peak(1), rel=0.1)


class Reversing:
    """Stands in for a peer in the worker: 7 ends an output, 0 pads it."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []

    def decode(self, sources: list[list[int]], max_tokens: int, ends: bool) -> tuple[list[list[int]], float]:
        self.groups.append([len(source) for source in sources])
        width = max(map(len, sources))
        rows = [source[::-1] + [0] * (width - len(source)) for source in sources]
        return [worker.until_end(row, [7]) if ends else row for row in rows], 1.0 * len(sources)


def test_a_peer_gets_groups_of_like_length_and_answers_in_order() -> None:
    sources = [[7, 1, 2, 3], [7], [7, 1, 2], [7, 5], [7, 1, 0, 0, 2]]
    peer = Reversing()
    answer = worker.decode_all(peer, {"sources": sources, "slots": 2, "max_tokens": 9, "ends": True})
    assert peer.groups == [[1, 2], [3, 4], [5]]
    assert answer == {"tokens": [source[::-1] for source in sources], "seconds": [1.0] * 5}
    alone = worker.decode_all(Reversing(), {"sources": sources, "slots": 1, "max_tokens": 9, "ends": True})
    assert alone == answer
    assert worker.until_end([1, 2], [7]) == [1, 2] and worker.until_end([1, 7, 7], [7]) == [1, 7]


def test_growth(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = CONFIG | {"eos_token_id": []}
    monkeypatch.setattr(benchmark, "SHAPES", {"t5-small": tiny, "t5-base": tiny | {"d_ff": 64}})
    monkeypatch.setattr(benchmark, "SOURCE_LENGTHS", (16, 600))
    options = ["--growth", "--output-lengths", "4", "--repeats", "1", "--output", str(tmp_path), "--plot"]
    status, out, _ = command(capsys, *options)
    assert status == 0 and (tmp_path / "plot.png").is_file()
    studies = json.loads(out.strip().split("\n")[-1])["studies"]
    assert [study["model"] for study in studies] == ["random t5-small", "random t5-base"]
    assert [(row["task"], row["tokens"]) for row in studies[0]["rows"]] == [
        ("source 16", 32),
        ("source 600", 32),
        ("output 4", 4),
    ]
    assert "| 600 |" in out and "random t5-base plain" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot"], "--plot: needs --output"),
        (["--peers", "ct2", "--temperature", "1"], "--peers: are compared at temperature 0"),
        (["--peer-python", "python"], "--peer-python: is of no use without --peers"),
        (["--random", "t5-small", "--model", "x"], "--model: does not go with --random"),
        (["--growth", "file.txt"], "prompts file.txt: do not go with --growth"),
        (["--growth", "--limit", "3"], "--limit: does not go with --growth"),
        (["--random", "t5-small", "--ways", "ngram"], "--ways ngram: does not go with --random"),
        (["--random", "t5-small", "--peers", "hf-assisted"], "--peers hf-assisted: does not go with --random"),
        (["--slots", "2", "--growth"], "--slots: does not go with --growth"),
        (["--slots", "2", "--peers", "hf-assisted"], "--peers hf-assisted: does not go with --slots"),
        (["--source-lengths", "16"], "--source-lengths: is of no use without --growth"),
        (["no-such-file.txt"], "no-such-file.txt: not readable"),
        (["--output", "/dev/null/x", "-m", "1"], "--output /dev/null/x: cannot be written"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    quick: None, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = command(capsys, *arguments)
    errors = [line for line in err.split("\n") if "error" in line]
    assert status == 2 and out == "" and len(errors) == 1 and words in errors[0]


@pytest.mark.parametrize("arguments", [["--ways", "plain,nothing"], ["--peers", "llama"], ["--random", "t5-11b"]])
def test_an_unknown_name_is_refused_with_those_known(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(arguments)
    err = capsys.readouterr().err
    assert arguments[0] in err and "known are" in err and err.count("\n") == 1


def test_a_missing_matplotlib_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = command(capsys, "--plot", "--output", str(tmp_path / "out"))
    assert status == 2 and "--plot: needs matplotlib" in err and "pip install matplotlib" in err
    assert not (tmp_path / "out").exists()

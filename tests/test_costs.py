"""What rounds cost: measured on tiny models, kept in a file, never believed when it belongs to something else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import mlx.nn as nn
import pytest

from speculative_decoding.draft_length import costs as module
from speculative_decoding.draft_length.costs import WIDEST, Costs, Measurement, cost_key, costs_of, measure
from speculative_decoding.models.compiled import WIDTHS, pass_width

from .tiny import tiny_model

TARGET, DRAFT = tiny_model(), tiny_model(8, num_layers=1)
SOME = Costs((1.0, 1.5, 1.6, 1.2), draft=0.25, host=0.5, start=0.125)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "speculative-decoding"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Counts measurements, and takes no time for them."""
    calls: list[object] = []
    monkeypatch.setattr(module, "measure", lambda *models: calls.append(models) or SOME)
    return calls


def test_a_round_is_its_pass_its_drafted_tokens_and_the_host() -> None:
    assert [SOME.round_seconds(g) for g in range(4)] == [1.5, 2.375, 2.725, 2.575]
    assert SOME.pass_seconds(7) == pytest.approx(1.2 + 3 * 0.2 / 3)
    assert SOME.with_free_draft().round_seconds(3) == 1.7


def test_beyond_what_was_measured_a_wider_pass_is_never_cheaper() -> None:
    falling = Costs((2.0, 1.0))
    assert falling.pass_seconds(10) == 1.0


@pytest.mark.parametrize(
    ("passes", "draft"), [((1.0,), 0.0), ((1.0, 0.0), 0.0), ((1.0, float("nan")), 0.0), ((1.0, 2.0), -1.0)]
)
def test_impossible_costs_are_refused(passes: tuple[float, ...], draft: float) -> None:
    with pytest.raises(ValueError, match="costs must be"):
        Costs(passes, draft)


class Clock:
    """Time that passes only when a model says so, and jumps now and then as on a busy machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.dice = 0.0, random.Random(0)
        self.last: Timed | None = None
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)

    def work(self, seconds: float) -> None:
        self.now += seconds * (3.0 if self.dice.random() < 0.04 else 1.0)


class Timed:
    """A tiny model whose passes take a known time on such a clock, with a step behind every fourth position, and the
    first of them, if another model's pass was the last, the time to start.
    """

    def __init__(self, clock: Clock, per_pass: float, per_step: float = 0.0, start: float = 0.0) -> None:
        self.model = tiny_model()
        self.config = self.model.config
        self.make_cache = self.model.make_cache
        self.clock, self.per_pass, self.per_step, self.start = clock, per_pass, per_step, start
        self.widths: list[int] = []

    def seconds(self, width: int) -> float:
        return self.per_pass + self.per_step * ((width - 1) // 4)

    def encode(self, tokens):  # type: ignore[no-untyped-def]
        self.clock.work(2 * self.per_pass)
        return self.model.encode(tokens)

    def decode(self, tokens, cache):  # type: ignore[no-untyped-def]
        self.widths.append(tokens.shape[1])
        started = self.start if self.clock.last is not self else 0.0
        self.clock.work(self.seconds(tokens.shape[1]) + started)
        self.clock.last = self
        return self.model.decode(tokens, cache)


def test_measuring_finds_what_passes_and_drafted_tokens_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    target, draft = Timed(clock, 0.004, 0.001), Timed(clock, 0.0005, start=0.0003)
    costs = measure(target, draft)  # type: ignore[arg-type]
    assert costs.passes == pytest.approx([target.seconds(pass_width(count)) for count in range(1, WIDEST + 1)])
    assert (costs.draft, costs.host, costs.start) == pytest.approx((0.0005, 0.0, 0.0003))
    assert costs.reading == pytest.approx(0.001)
    assert 0.5 < clock.now < 1.5


def test_a_measurement_that_goes_on_takes_medians_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three turns, one on a machine that is half as fast."""
    clock, slowness = Clock(monkeypatch), [1.0]

    def work(seconds: float) -> None:
        clock.now += seconds * slowness[0]

    monkeypatch.setattr(clock, "work", work)
    target, draft = Timed(clock, 0.004, 0.001), Timed(clock, 0.0005)
    measurement = Measurement(target, draft)  # type: ignore[arg-type]
    for slowness[0] in (1.0, 2.0, 1.0):
        measurement.take(0.0, least=1)
    costs = measurement.costs()
    assert costs.passes == pytest.approx([target.seconds(pass_width(count)) for count in range(1, WIDEST + 1)])
    assert costs.draft == pytest.approx(0.0005)


def test_a_start_that_would_be_negative_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line then goes through 0: sum of g times seconds over sum of g squared."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(clock, "work", lambda seconds: setattr(clock, "now", clock.now + seconds))
    target, draft = Timed(clock, 0.004), Timed(clock, 0.0005)
    measurement = Measurement(target, draft)  # type: ignore[arg-type]
    measurement.take(0.0, least=1)
    rig = measurement._rig
    measurement._samples[rig.round, 7] = [0.004 + 0.0055]
    costs = measurement.costs()
    assert costs.start == 0.0
    assert costs.draft == pytest.approx((1 * 0.0005 + 3 * 0.0015 + 7 * 0.0055) / (1 + 9 + 49))


def test_a_slow_model_is_measured_three_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Timed(Clock(monkeypatch), 0.5, 0.1)
    costs = measure(target)  # type: ignore[arg-type]
    target.widths.remove(module.OFFSET + WIDEST + 1)  # the tokens that are in the cache beforehand
    widths = {pass_width(count) for count in range(1, WIDEST + 1)}
    assert set(target.widths) == widths < set(WIDTHS)
    once_each = len(widths) + 1  # to warm up; then rounds twice in each turn
    assert len(target.widths) == once_each + module.LEAST_REPEATS * (once_each + 1)
    assert all(costs.pass_seconds(width) == pytest.approx(target.seconds(width)) for width in widths)
    assert costs.draft == 0


def test_measuring_leaves_the_models_as_they_were() -> None:
    before = cost_key(TARGET, DRAFT)
    costs = measure(TARGET, DRAFT, budget=0.0)
    assert min(costs.passes) > 0 and costs.draft >= 0 and costs.host >= 0
    assert cost_key(TARGET, DRAFT) == before


def test_a_second_call_reads_what_the_first_measured(folder: Path, measured: list[object]) -> None:
    assert costs_of(TARGET, DRAFT) == costs_of(TARGET, DRAFT) == SOME
    assert len(measured) == 1
    (path,) = folder.iterdir()  # no scratch is left
    assert json.loads(path.read_text())["key"] == cost_key(TARGET, DRAFT)


def test_another_key_is_measured_again(folder: Path, measured: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    quantised = tiny_model(d_model=64, d_kv=32, d_ff=64)
    half = tiny_model()
    half.update(nn.utils.tree_map(lambda p: p.astype(module.mx.bfloat16), half.parameters()))
    pairs = [(TARGET, DRAFT), (TARGET, None), (DRAFT, TARGET), (half, DRAFT), (quantised, DRAFT)]
    for pair in pairs:
        costs_of(*pair)
    nn.quantize(quantised, group_size=64, bits=4)
    costs_of(quantised, DRAFT)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "77")
    costs_of(TARGET, DRAFT)
    assert len(measured) == len(list(folder.iterdir())) == len(pairs) + 2


def test_other_weights_of_the_same_shape_are_not_measured_again(folder: Path, measured: list[object]) -> None:
    costs_of(TARGET, DRAFT)
    costs_of(tiny_model(99), DRAFT)
    assert len(measured) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[1, 2]",
        lambda text: text.replace("1.5", "-1.5"),
        lambda text: text.replace("1.5", '"fast"'),
        lambda text: text.replace("1.5", "NaN"),
        lambda text: text.replace("0.25", "NaN"),
        lambda text: text.replace("0.25", "Infinity"),
        lambda text: text.replace("passes", "paces"),
        lambda text: text.replace('"version": ', '"version": 1'),
    ],
)
def test_a_damaged_file_is_measured_again_and_replaced(folder: Path, measured: list[object], damage) -> None:  # type: ignore[no-untyped-def]
    costs_of(TARGET, DRAFT)
    (path,) = folder.iterdir()
    whole = path.read_text()
    assert damage(whole) != whole
    path.write_text(damage(whole))
    assert costs_of(TARGET, DRAFT) == SOME
    assert len(measured) == 2 and path.read_text() == whole


def test_a_folder_that_cannot_be_written_is_said_and_costs_nothing_else(folder: Path, measured: list[object]) -> None:
    folder.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="costs are measured anew in every run"):
        assert costs_of(TARGET, DRAFT) == SOME

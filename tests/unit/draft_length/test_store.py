"""Files of measurements: several writers, damaged files, and folders that cannot be written."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.draft_length.costs import Timing
from speculative_decoding.draft_length.store import (
    CALIBRATION_VARIABLE,
    CalibrationStore,
    locked,
    read_measurements,
)
from tests.support.fake_probe import KEY, FakeProbe, calibrated

pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")


def stored(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.json")
    return read_measurements(path)


def test_stores_that_were_opened_together_lose_nothing(folder: Path) -> None:
    stores = [CalibrationStore(KEY) for _ in range(3)]
    for rows, store in enumerate(stores, start=1):
        store.add_pass(rows, 1, [0.001])
        store.add_draft(f"draft {rows}", 1, 0.1, 0.2, 0.3)
        store.same_bits[rows] = {1: True}
        store.save()
    for found in (stored(folder), vars(stores[-1])):
        assert {*found["passes"]} == {*found["same_bits"]} == {1, 2, 3}
        assert {*found["drafts"]} == {"draft 1", "draft 2", "draft 3"}


WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from speculative_decoding.draft_length.store import CalibrationStore

def save_often(rows):
    store = CalibrationStore({"target": "a target", "mlx": "1.2.3"})
    for width in range(1, 13):
        store.add_pass(rows, width, [0.001])
        store.save()

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(2) as threads:
    list(threads.map(save_often, map(int, sys.argv[1:])))
"""


def test_processes_and_threads_that_save_at_the_same_time_lose_nothing(folder: Path) -> None:
    """Each of four writers stores twelve costs, one at a time."""
    command = [sys.executable, "-W", "ignore", "-c", WRITER]
    writers = [
        subprocess.Popen([*command, str(rows), str(rows + 1)], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
        for rows in (1, 3)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("start\n")
        writer.stdin.flush()
    said = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], said
    found = stored(folder)["passes"]
    assert {rows: [*by_width] for rows, by_width in found.items()} == {rows: [*range(1, 13)] for rows in (1, 2, 3, 4)}
    assert [path.suffix for path in folder.iterdir()] == [".json"]  # nothing partial is left


def test_a_writer_waits_for_another(folder: Path) -> None:
    store = CalibrationStore(KEY)
    store.add_pass(1, 1, [0.001])
    with ThreadPoolExecutor(1) as threads:
        with locked(folder):
            saving = threads.submit(store.save)
            assert not wait([saving], 0.3).done
        saving.result()
    assert stored(folder)["passes"] == {1: {1: Timing(0.001, 1)}}


@pytest.mark.filterwarnings("ignore:calibration. .* is damaged")
def test_a_writer_that_found_a_damaged_file_keeps_what_another_has_stored_since(folder: Path) -> None:
    CalibrationStore(KEY).save()
    next(folder.glob("*.json")).write_text("{")
    first, second = CalibrationStore(KEY), CalibrationStore(KEY)
    for rows, store in enumerate((first, second), start=1):
        store.add_pass(rows, 1, [0.001])
        store.save()
    assert {*stored(folder)["passes"]} == {1, 2}


def test_of_two_measurements_the_one_with_more_timings_is_kept(folder: Path) -> None:
    """Merging a file with itself changes nothing, because processes share timings."""
    one, other = CalibrationStore(KEY), CalibrationStore(KEY)
    one.add_pass(1, 1, [3.0])
    one.add_pass(1, 2, [5.0] * 3)
    other.add_pass(1, 1, [2.0, 8.0])
    other.add_pass(1, 2, [6.0])
    one.add_draft("a", 1, 0.1, 0.5, 9.0)
    for costs in ((0.2, 0.2, 8.0), (0.4, 0.4, 4.0)):
        other.add_draft("a", 1, *costs)
    for _ in range(2):
        one.merge(vars(other))
        assert one.passes[1][1] == other.passes[1][1] and one.passes[1][1].cost == pytest.approx(4.0)
        assert one.passes[1][2].cost == pytest.approx(5.0)
        assert one.drafts["a"][1] == pytest.approx((0.3, 0.3, 6.0, 2))


@pytest.mark.parametrize("seed", range(3))
def test_timings_have_the_mean_and_deviation_of_their_logarithms(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    seconds = [rng.lognormvariate(-6.0, 0.5) for _ in range(7)]
    store = CalibrationStore(KEY)
    store.add_pass(1, 1, seconds[:3])
    store.add_pass(1, 1, seconds[3:])
    logs = [math.log(each) for each in seconds]
    expected = math.exp(statistics.mean(logs)), 7, 6 * statistics.variance(logs)
    assert store.passes[1][1] == pytest.approx(expected)
    store.save()
    assert stored(folder)["passes"] == store.passes


def test_discarding_also_discards_what_other_processes_stored(folder: Path) -> None:
    store, other = CalibrationStore(KEY), CalibrationStore(KEY)
    other.add_pass(8, 1, [1.0])
    other.save()
    store.clear()
    store.add_pass(1, 1, [1.0])
    store.save()
    assert stored(folder)["passes"] == {1: {1: Timing(1.0, 1)}}


EMPTY: dict[str, Any] = {
    "format": 2, "passes": {}, "drafts": {}, "same_bits": {}, "capacity_borders": [], "source_borders": []
}  # fmt: skip
INVALID: list[dict[str, Any]] = [
    {"format": 1},
    {"passes": 3},
    {"passes": {"1": {"1": -1}}},
    {"drafts": {"a": {"1": [1]}}},
]
INVALID += [{"passes": {"1": {"1": timing}}} for timing in ([1.0, 0, 0.0], [1.0, 2.5, 0.0], [1.0, 2, -1.0], [1.0, 2])]
INVALID += [{"passes": {"1": {"1": [1.0, 10**20, 0.0]}}}, {"drafts": {"a": {"1": [1.0, 1.0, 1.0, 10**400]}}}]
INVALID += [{"capacity_borders": [math.inf]}]
DEEP = "[" * 200_000


@pytest.mark.parametrize("content", ["{", "[]", DEEP, "\udcff", "{}", *(json.dumps(EMPTY | each) for each in INVALID)])
def test_a_damaged_file_gives_one_note_and_is_replaced(folder: Path, content: str) -> None:
    calibrated(FakeProbe()).measure_fully(1)
    (path,) = folder.glob("*.json")
    whole = path.read_text()
    path.write_text(content, errors="surrogateescape")
    with pytest.warns(UserWarning) as noted:
        calibrated(FakeProbe()).measure_fully(1)
    assert [str(each.message) for each in noted if "measuring" not in str(each.message)] == [
        f"calibration: {path} is damaged; this device is measured again, and the file is replaced"
    ]
    assert path.read_text() == whole


def test_measurements_stay_in_memory_if_they_cannot_be_stored(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "cache").write_text("a file instead of a folder")
    probe = FakeProbe()
    with pytest.warns(match="calibration: cannot be stored .* name another folder for caches") as noted:
        calibration = calibrated(probe, "a head")
        costs = calibration.costs(1)
        calibrated(FakeProbe())
    assert sum("cannot be stored" in str(each.message) for each in noted) == 1
    timed = len(probe.timed)
    assert calibration.costs(1) is costs and len(probe.timed) == timed


def test_a_file_that_cannot_be_replaced_gives_one_note(folder: Path) -> None:
    """A full disk and a read-only folder give an OSError, too."""
    store = CalibrationStore(KEY)
    assert store.path is not None
    store.path.mkdir()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        for width in (1, 2):
            store.add_pass(1, width, [0.001])
            store.save()
    assert sum("calibration: cannot be stored ([Errno 21] Is a directory" in str(each.message) for each in noted) == 1
    assert store.passes == {1: dict.fromkeys((1, 2), Timing(0.001, 1))}


@pytest.mark.filterwarnings("ignore:calibration. cannot be stored .*not a private folder")
def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    calibrated(FakeProbe()).costs(1)
    assert not any(folder.iterdir())


@pytest.mark.parametrize("observed", [False, True])
def test_a_named_file_replaces_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: bool) -> None:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(EMPTY | {"passes": {"1": {"1": 0.5, "4": 1.0}}}))
    monkeypatch.setenv(CALIBRATION_VARIABLE, str(path))
    probe = FakeProbe()
    calibration = calibrated(probe, "a head")
    for rows in (1, 8):
        for _ in range(100 * observed):
            calibration.observe(rows, 4, 3, 9.0)
        assert calibration.costs(rows).passes == {1: 0.5, 4: 1.0} == calibration.costs(rows, exact=True).passes
    calibration.refine(1)
    calibration.forget()
    assert calibration.measure_fully(1).baseline == 0.5 and probe.timed == probe.compared == []
    for content in ("{}", DEEP, json.dumps(EMPTY | {"passes": {"1": {}}})):
        path.write_text(content)
        with pytest.raises(InputError, match=f"{CALIBRATION_VARIABLE}: .*curve.json is not a calibration file"):
            CalibrationStore(KEY)


def test_a_clock_that_does_not_advance_gives_valid_costs(folder: Path) -> None:
    class Still(FakeProbe):
        def pass_seconds(self, rows: int, width: int) -> list[float]:
            return [0.0] * 3

    calibration = calibrated(Still())
    for _ in range(40):
        calibration.observe(1, 1, 0, 0.0)
        costs = [*calibration.costs(1).passes.values()]
        assert all(0.0 < cost < math.inf for cost in costs) and costs == sorted(costs)
    assert stored(folder)["passes"]

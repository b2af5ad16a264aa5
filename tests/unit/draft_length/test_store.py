"""Files of measurements: several writers, damaged files, and folders that cannot be written."""

from __future__ import annotations

import json
import os
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.draft_length import store as module
from speculative_decoding.draft_length.store import (
    CALIBRATION_VARIABLE,
    ENOUGH_TIMINGS,
    CalibrationStore,
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
        store.add_pass(rows, 1, 0.001)
        store.add_draft(f"draft {rows}", 1, [0.1, 0.2, 0.3])
        store.same_bits[rows] = {1: True}
        store.save()
    for found in (stored(folder), vars(stores[-1])):
        assert {*found["passes"]} == {*found["same_bits"]} == {1, 2, 3}
        assert {*found["drafts"]} == {"draft 1", "draft 2", "draft 3"}


def test_writers_that_run_at_the_same_time_lose_nothing(folder: Path) -> None:
    """The lock keeps threads apart as it does processes, because each writer opens the folder itself."""

    def save_often(rows: int) -> None:
        store = CalibrationStore(KEY)
        for width in range(1, 21):
            store.add_pass(rows, width, 0.001)
            store.save()

    with ThreadPoolExecutor(3) as threads:
        for _ in threads.map(save_often, (1, 2, 3)):
            pass
    assert {rows: len(by_width) for rows, by_width in stored(folder)["passes"].items()} == {1: 20, 2: 20, 3: 20}


def test_a_writer_waits_for_another(folder: Path) -> None:
    store = CalibrationStore(KEY)
    store.add_pass(1, 1, 0.001)
    with ThreadPoolExecutor(1) as threads:
        with module.locked(folder):
            saving = threads.submit(store.save)
            assert not wait([saving], 0.3).done
        saving.result()
    assert stored(folder)["passes"] == {1: {1: 0.001}}


def test_merged_measurements_keep_the_fastest_and_the_most_timings(folder: Path) -> None:
    one, other = CalibrationStore(KEY), CalibrationStore(KEY)
    one.add_pass(1, 1, 3.0)
    for seconds in (2.0, 4.0):
        other.add_pass(1, 1, seconds)
    one.add_draft("a", 1, [0.1, 0.5, 9.0])
    other.add_draft("a", 1, [0.2, 0.2, 8.0])
    one.merge(vars(other))
    assert one.passes == {1: {1: 2.0}} and one.rough["pass 1 1"] == 2
    assert one.drafts == {"a": {1: [0.1, 0.5, 8.0]}}  # the faster draft of four tokens, and the faster prefill


def test_a_cost_is_rough_until_a_timing_confirms_it(folder: Path) -> None:
    found = CalibrationStore(KEY)
    for seconds, rough in ((1.0, True), (2.0, True), (2.0, True), (1.05, False)):
        found.add_pass(1, 1, seconds)
        assert ("pass 1 1" in found.rough) == rough
        found.save()
        assert stored(folder)["rough"] == found.rough
    unsteady = CalibrationStore({"target": "another"})
    for i in range(ENOUGH_TIMINGS):  # other programs are always running
        assert unsteady.rough.get("pass 1 1", 0) == i
        unsteady.add_pass(1, 1, 2.0**-i)
    assert unsteady.rough == {}


def test_discarding_also_discards_what_other_processes_stored(folder: Path) -> None:
    store, other = CalibrationStore(KEY), CalibrationStore(KEY)
    other.add_pass(8, 1, 1.0)
    other.save()
    store.clear()
    store.add_pass(1, 1, 1.0)
    store.save()
    assert stored(folder)["passes"] == {1: {1: 1.0}}


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"format": 2}', '{"format": 1}', '{"format": 1, "passes": {"1": {"1": -1}}}',
        '{"format": 1, "passes": {"1": {"1": "NaN"}}, "drafts": {}'
        ', "same_bits": {}, "fixed_capacity": false, "rough": {}}',
        '{"format": 1, "passes": 3, "drafts": {}, "same_bits": {}, "fixed_capacity": false, "rough": {}}',
        '{"format": 1, "passes": {}, "drafts": {"a": {"1": [1]}}'
        ', "same_bits": {}, "fixed_capacity": false, "rough": {}}',
        '{"format": 1, "passes": {}, "drafts": {}, "same_bits": {}, "fixed_capacity": false, "rough": [1]}',
        "\udcff",
    ],
)  # fmt: skip
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


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.filterwarnings("ignore:calibration. .* is damaged")
def test_a_truncated_file_is_replaced(folder: Path, share: float) -> None:
    calibrated(FakeProbe()).measure_fully(1)
    (path,) = folder.glob("*.json")
    whole = path.read_text()
    path.write_text(whole[: int(share * len(whole))])
    assert calibrated(FakeProbe()).measure_fully(1).passes and path.read_text() == whole


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


def test_a_full_disk_gives_one_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(module, "atomic_write", full)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        calibrated(FakeProbe()).measure_fully(1)
    assert sum("cannot be stored ([Errno 28] No space" in str(each.message) for each in noted) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_read_only_folder_gives_one_note(folder: Path) -> None:
    calibrated(FakeProbe()).costs(1)
    folder.chmod(0o500)
    with pytest.warns(match="calibration: cannot be stored"):
        calibrated(FakeProbe()).costs(4)
    folder.chmod(0o700)


@pytest.mark.filterwarnings("ignore:calibration. cannot be stored .*not a private folder")
def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    calibrated(FakeProbe()).costs(1)
    assert not any(folder.iterdir())


def test_a_named_file_replaces_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {
        "format": 1,
        "passes": {"1": {"1": 0.5, "4": 1.0}},
        "drafts": {},
        "same_bits": {},
        "fixed_capacity": False,
        "rough": {},
    }
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(content))
    monkeypatch.setenv(CALIBRATION_VARIABLE, str(path))
    probe = FakeProbe()
    calibration = calibrated(probe, "a head")
    for rows in (1, 8):
        assert calibration.costs(rows).passes == {1: 0.5, 4: 1.0} == calibration.costs(rows, exact=True).passes
    calibration.refine(1)
    calibration.forget()
    assert calibration.measure_fully(1).baseline == 0.5 and probe.timed == probe.compared == []
    path.write_text("{}")
    with pytest.raises(InputError, match=f"{CALIBRATION_VARIABLE}: .*curve.json is not a calibration file"):
        CalibrationStore(KEY)

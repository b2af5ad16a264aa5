"""Two processes train the weights of one, and end together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculative_decoding.loading.load import WEIGHTS
from speculative_decoding.training import batches as batches_module
from speculative_decoding.training import command as train_command
from tests.support import training_process
from tests.support.processes import start
from tests.support.tiny import small_target
from tests.support.training_process import arguments


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[list[int], str]]]:
    """Train with one process and with two. Return the folder, and the statuses and stderr of the two processes."""
    folder = tmp_path_factory.mktemp("processes")
    small_target(folder)
    (folder / "prompts.txt").write_text("".join(f"{'abcdefgh'[i % 8 :]}{'ab' * (i % 3)}\n" for i in range(27)))
    started = start(2, folder, training_process.main, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "LIKELY_CANDIDATES", 4)
        patch.setattr(batches_module, "RANDOM_CANDIDATES", 4)
        patch.setattr(train_command, "plot_curves", lambda *_: None)
        status = train_command.main(arguments(folder, "one"))
    for process in started:
        process.join()
    assert status == 0
    texts = ([(folder / f"{name}-{rank}").read_text() for name in ("out", "said")] for rank in range(2))
    return folder, [(json.loads(out.splitlines()[-1]), said) for out, said in texts]


@pytest.mark.slow
def test_two_processes_give_the_weights_of_one(two_processes: tuple[Path, list[tuple[list[int], str]]]) -> None:
    """25 examples make a batch of 24 and a batch of one, which leaves the second process without examples."""
    folder, said = two_processes
    found = {name: weights_in(folder / name) for name in ("one", "two", "unaveraged")}
    assert [statuses[:2] for statuses, _ in said] == [[0, 0], [0, 0]]
    assert "2 processes" in said[0][1] and "written to" in said[0][1] and "written" not in said[1][1]
    apart = {name: max(np.abs(a - b).max() for a, b in zip(found["one"], found[name], strict=True)) for name in found}
    assert apart["two"] < 1e-5 < 1e-3 < apart["unaveraged"]
    outputs = [(folder / f"{name}.training").glob("outputs*.jsonl") for name in ("one", "two")]
    one, two = (sorted(line for path in paths for line in path.read_text().splitlines()[1:]) for paths in outputs)
    assert one == two and (folder / "two.training" / "outputs-1.jsonl").stat().st_size


@pytest.mark.slow
def test_failing_process_ends_the_others(two_processes: tuple[Path, list[tuple[list[int], str]]]) -> None:
    _, said = two_processes
    assert [statuses[2] for statuses, _ in said] == [2, 2]
    assert "No space left on device" in said[0][1] and "training: another process has ended" in said[1][1]


def weights_in(folder: Path) -> list[Any]:
    return [array for _, array in sorted(np.load(folder / WEIGHTS).items())]

"""One process of a distributed training run. test_training_group.py starts two, with the environment of `mlx.launch`.

It trains three times: normally, without averaging gradients, and with a full disk.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import mlx.core as mx

from speculative_decoding.training import batches
from speculative_decoding.training import command as train_command
from speculative_decoding.training import trainer as trainer_module
from speculative_decoding.training.training_group import TrainingGroup
from tests.support.device import use


def few_candidates() -> None:
    """Use so few candidates that processes with different candidates would train different weights."""
    batches.LIKELY_CANDIDATES = 4
    batches.RANDOM_CANDIDATES = 4


def arguments(folder: Path, output: str) -> list[str]:
    flags = {"model": "target", "prompts": "prompts.txt", "output": output}
    rest = "--steps 8 --learning-rate 0.02 --max-tokens 8 --held-out 4 --frequent 8 --dtype float32 --sampled-share 0.5"
    return [word for name, value in flags.items() for word in (f"--{name}", str(folder / value))] + rest.split()


def wait_for_both(folder: Path) -> None:
    """Wait until both processes have started: MLX tries to connect for 30 s, and slow imports may take longer."""
    (folder / f"started-{os.environ['MLX_RANK']}").touch()
    while len([*folder.glob("started-*")]) < 2:
        time.sleep(0.01)


def main(folder: Path) -> None:
    use(mx.cpu)
    wait_for_both(folder)
    few_candidates()
    train_command.plot_curves = lambda *_: None
    statuses = [train_command.main(arguments(folder, "two"))]

    averaged = TrainingGroup.mean

    def unaveraged_mean(processes: TrainingGroup, tree: Any) -> Any:
        found = averaged(processes, tree)
        return tree if isinstance(tree, tuple) else found  # the loss and its gradients come as one tuple

    TrainingGroup.mean = unaveraged_mean  # type: ignore[method-assign]
    statuses.append(train_command.main(arguments(folder, "unaveraged")))
    TrainingGroup.mean = averaged  # type: ignore[method-assign]

    def fail_with_full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    trainer_module.write_npz = fail_with_full_disk  # type: ignore[assignment]
    trainer_module.REPORT_STEPS = 2
    trainer_module.SAVE_SECONDS = 0.0
    statuses.append(train_command.main(arguments(folder, "full")))
    print(json.dumps(statuses))

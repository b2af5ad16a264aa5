"""One of several processes of a training, as `mlx.launch` would start it: test_training.py runs it as a program, with
MLX_RANK and MLX_HOSTFILE in the environment. Trains as it should; without averaging gradients; with a full disk.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from speculative_decoding.cli import train as train_command
from speculative_decoding.distributed.training_group import TrainingGroup
from speculative_decoding.training import batches
from speculative_decoding.training import trainer as trainer_module


def few_candidates() -> None:
    """So that which they are decides what is trained, and processes that disagree are seen."""
    batches.LIKELY_OTHERS, batches.RANDOM_OTHERS = 4, 4


def arguments(folder: Path, output: str) -> list[str]:
    flags = {"model": "target", "prompts": "prompts.txt", "output": output}
    rest = "--steps 8 --learning-rate 0.02 --max-tokens 8 --held-out 4 --frequent 8 --dtype float32 --sampled-share 0.5"
    return [word for name, value in flags.items() for word in (f"--{name}", str(folder / value))] + rest.split()


def meet(folder: Path) -> None:
    """Wait until both are here: a connection is tried for half a minute only, and imports may take longer."""
    (folder / f"here-{os.environ['MLX_RANK']}").touch()
    while len([*folder.glob("here-*")]) < 2:
        time.sleep(0.01)


def main(folder: Path) -> None:
    meet(folder)
    few_candidates()
    train_command.draw = lambda *_: None
    statuses = [train_command.main(arguments(folder, "two"))]

    averaged = TrainingGroup.mean

    def not_averaged(processes: TrainingGroup, tree: Any) -> Any:
        found = averaged(processes, tree)
        return tree if isinstance(tree, tuple) else found  # loss and gradients are one

    TrainingGroup.mean = not_averaged  # type: ignore[method-assign]
    statuses.append(train_command.main(arguments(folder, "deaf")))
    TrainingGroup.mean = averaged  # type: ignore[method-assign]

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    trainer_module.write_npz = full  # type: ignore[assignment]
    trainer_module.REPORT_STEPS, trainer_module.SAVE_SECONDS = 2, 0.0
    statuses.append(train_command.main(arguments(folder, "full")))
    print(json.dumps(statuses))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

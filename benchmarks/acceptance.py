"""How often drafts were right, token for token: a text file that record.py writes and replay.py reads.

A line is a task, a kind and the task's outputs; an output has a digit (base 36) for each token: how many tokens of a
draft that begins there are right. Kinds: the drafts of a "head" or a "model"; "copy", copies where the drafter auto
makes them; "found", how long these are. The last token of an output is none that a draft gets right: its round adds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from speculative_decoding.cli.common import read_text
from speculative_decoding.errors import InputError, writing
from speculative_decoding.loading.atomic_io import atomic_write

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
PIECE = 16  # tokens that are replayed together
Recorded = Mapping[str, Sequence[Sequence[int]]]  # kind -> outputs


def read(path: Path, kinds: Sequence[str]) -> Mapping[str, Recorded]:
    """By task. Raises `InputError` that names a damaged line, or which of the kinds is missing."""
    tasks: dict[str, dict[str, list[list[int]]]] = {}
    way_out = "write it with python -m benchmarks.record"
    for number, line in enumerate(read_text(path, "--acceptance").splitlines(), 1):
        if line.startswith("#"):
            continue
        try:
            task, kind, *outputs = line.split()
            found = [[DIGITS.index(digit) for digit in output] for output in outputs]
            own = tasks.setdefault(task, {})
            if not found or [*map(len, found)] != [*map(len, next(iter(own.values()), found))]:
                raise ValueError
        except ValueError:
            raise InputError(f"--acceptance {path}: line {number} is no recorded acceptance; {way_out}") from None
        own[kind] = found
    for kind in kinds:
        if not tasks or any(kind not in own for own in tasks.values()):
            raise InputError(f'--acceptance {path}: a task without "{kind}"; {way_out}')
    return tasks


def write(path: Path, tasks: Mapping[str, Recorded], about: str) -> None:
    lines = [f"# {about}"]
    for task, kind, outputs in ((task, *pair) for task, kinds in tasks.items() for pair in kinds.items()):
        lines.append(" ".join([task, kind, *("".join(DIGITS[each] for each in output) for output in outputs)]))
    with writing("file", path):
        atomic_write(path, "\n".join(lines) + "\n")


def excerpt(task: Recorded, size: int) -> dict[str, list[int]]:
    """Of each kind `size` tokens: pieces evenly spread over all outputs, one behind the other."""
    whole = {kind: [*chain.from_iterable(outputs)] for kind, outputs in task.items()}
    total = len(next(iter(whole.values())))
    step = max(PIECE, PIECE * total // size)
    places = [(i // PIECE * step + i % PIECE) % total for i in range(size)]
    return {kind: [runs[place] for place in places] for kind, runs in whole.items()}

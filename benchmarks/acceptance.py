"""Recorded acceptance: the number of correct draft tokens at each position. record.py writes it, replay.py reads it.

Each line of the file holds a task, a kind and the task's outputs. An output has one base-36 digit per token: the number
of correct tokens in a draft that starts there. Kinds:

- "head", "model": drafts of a draft head or draft model
- "copy": copies, at the positions where the drafter `auto` copies
- "found": the lengths of these copies

Drafts never cover the last token of an output, because the target adds a token in each round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from speculative_decoding.cli.common import read_text
from speculative_decoding.errors import InputError, writing
from speculative_decoding.loading.atomic_io import atomic_write

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
PIECE = 16  # length of the consecutive pieces in an excerpt

Recorded = Mapping[str, Sequence[Sequence[int]]]  # kind -> outputs


def read(path: Path, kinds: Sequence[str]) -> Mapping[str, Recorded]:
    """Return the records by task. Raises `InputError` for a damaged line or a missing kind."""
    tasks: dict[str, dict[str, list[list[int]]]] = {}
    way_out = "record it with python -m benchmarks.record"
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
            raise InputError(f"--acceptance {path}: line {number} is not recorded acceptance; {way_out}") from None
        own[kind] = found
    for kind in kinds:
        if not tasks or any(kind not in own for own in tasks.values()):
            raise InputError(f'--acceptance {path}: a task has no "{kind}"; {way_out}')
    return tasks


def write(path: Path, tasks: Mapping[str, Recorded], comment: str) -> None:
    lines = [f"# {comment}"]
    for task, kind, outputs in ((task, *pair) for task, kinds in tasks.items() for pair in kinds.items()):
        lines.append(" ".join([task, kind, *("".join(DIGITS[each] for each in output) for output in outputs)]))
    with writing("file", path):
        atomic_write(path, "\n".join(lines) + "\n")


def excerpt(task: Recorded, size: int) -> dict[str, list[int]]:
    """Return `size` tokens of each kind: pieces from evenly spaced places of all outputs, concatenated."""
    joined = {kind: [*chain.from_iterable(outputs)] for kind, outputs in task.items()}
    total = len(next(iter(joined.values())))
    step = max(PIECE, PIECE * total // size)
    places = [(i // PIECE * step + i % PIECE) % total for i in range(size)]
    return {kind: [runs[place] for place in places] for kind, runs in joined.items()}

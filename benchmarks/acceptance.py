"""How often drafts were right, token for token: a file of text that `benchmarks.record` writes and replays read.

A line is a task, a kind and the task's outputs. An output has a digit (base 36) for each of its tokens: how many tokens
of a draft that begins there are right, `LONGEST` at most. Kinds: the drafts of a "head" or a "model"; "copy", of copies
that the drafter auto is sure of; "found", how long these are.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from speculative_decoding.cli.common import read_text
from speculative_decoding.errors import InputError, writing
from speculative_decoding.loading.safe_folder import write_file

KINDS = ("head", "model", "copy", "found")
LONGEST = 16  # tokens of a draft, as `AdaptiveLength` has them
DIGITS = string.digits + string.ascii_lowercase
Recorded = Mapping[str, Sequence[Sequence[int]]]  # kind -> outputs


def kind_of(draft: str) -> str:
    """Of a draft by its name in --draft."""
    return "head" if draft == "head" else "model"


def read(path: Path, drafts: Sequence[str]) -> dict[str, Recorded]:
    """By task. Raises `InputError` that names the line, or which of the drafts (`kind_of`) is missing."""
    tasks: dict[str, dict[str, Sequence[Sequence[int]]]] = {}
    for number, line in enumerate(read_text(path, "--acceptance").splitlines(), 1):
        if line.startswith("#"):
            continue
        task, kind, *outputs = [*line.split(), "", ""]
        kinds, runs = tasks.setdefault(task, {}), [[DIGITS.find(digit) for digit in each] for each in outputs if each]
        same = next(iter(kinds.values()), runs)
        if not runs or kind not in KINDS or kind in kinds or [*map(len, runs)] != [*map(len, same)]:
            raise damaged(path, f"line {number}")
        for output in runs:
            if any(not 0 <= run <= (LONGEST if kind == "found" else len(output) - i) for i, run in enumerate(output)):
                raise damaged(path, f"line {number}")
        kinds[kind] = runs
    if not tasks or any(("copy" in kinds) != ("found" in kinds) for kinds in tasks.values()):
        raise damaged(path, "it")
    for name in drafts:
        if any(kind_of(name) not in kinds for kinds in tasks.values()):
            raise InputError(f"--draft {name}: --acceptance {path} has no drafts of a {kind_of(name)}; record them too")
    return {**tasks}


def damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"--acceptance {path}: {what} is no recorded acceptance; write it with python -m benchmarks.record"
    )


def write(path: Path, tasks: Mapping[str, Recorded], about: str) -> None:
    lines = [f"# {about}"]
    for task, kinds in tasks.items():
        for kind, outputs in kinds.items():
            lines.append(" ".join([task, kind, *("".join(DIGITS[run] for run in output) for output in outputs)]))
    with writing("FILE", path):
        write_file(path, "\n".join(lines) + "\n")


def stretch(task: Recorded, size: int) -> dict[str, list[int]]:
    """Of each kind, outputs one behind the other, cut behind `size` tokens: the stretch of them, the first behind the
    last, in which drafts are most nearly worth what they are in all.
    """
    count = len(next(iter(task.values())))
    order = [*range(count)] * (1 + size // sum(len(output) for output in next(iter(task.values()))))
    whole = worth(joined(task, range(count)))

    def unlike(start: int) -> float:
        own = worth(cut(start))
        return max(abs(ours / all_of_it - 1.0) for ours, all_of_it in zip(own, whole, strict=True))

    def cut(start: int) -> dict[str, list[int]]:
        return {kind: runs[:size] for kind, runs in joined(task, order[start:] + order[:start]).items()}

    return cut(min(range(count), key=unlike))


def joined(task: Recorded, order: Iterable[int]) -> dict[str, list[int]]:
    """Outputs of these numbers as one. The last token of each counts as none that a draft gets right: the round that
    reaches it adds it. So no round crosses the end of an output, and there are as many rounds as without joining.
    """

    def runs(kind: str, output: Sequence[int]) -> list[int]:
        return [run if kind == "found" else min(run, len(output) - 1 - i) for i, run in enumerate(output)]

    numbers = [*order]
    return {kind: [run for i in numbers for run in runs(kind, outputs[i])] for kind, outputs in task.items()}


def worth(task: Mapping[str, Sequence[int]]) -> list[float]:
    """Tokens per round with drafts of 3 and of 7, of each kind, with copies in their place and without."""
    nothing = [0] * len(next(iter(task.values())))
    copies = task.get("found", nothing), task.get("copy", nothing)
    found = []
    for kind in sorted(task.keys() - {"copy", "found"}):
        for longest in (3, 7):
            for lengths, right in (copies, (nothing, nothing)):
                place = rounds = 0
                while place < len(nothing):
                    place += 1 + min(longest, right[place] if lengths[place] else task[kind][place])
                    rounds += 1
                found.append(len(nothing) / rounds)
    return found

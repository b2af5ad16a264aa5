"""Lessons of all examples: kept in files, from which a killed run goes on, or computed whenever they are needed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..loading.atomic_io import atomic_write
from .outputs import Example
from .teacher import TOGETHER, Lesson, Teacher


class Lessons:
    """Lessons of all examples: computed anew whenever they are asked for, or kept in a folder where it has room."""

    def __init__(self, teacher: Teacher, examples: Sequence[Example]) -> None:
        self.teacher, self.examples = teacher, examples
        self._kept: dict[str, NDArray[Any]] = {}
        sources = np.cumsum([0, *(len(each.source) for each in examples)])
        outputs = np.cumsum([0, *(len(each.output) for each in examples)])
        self._ends = {"hidden": outputs, "ids": outputs, "probs": outputs, "memory": sources}

    @property
    def nbytes(self) -> int:
        """Of all, in files."""
        return sum(self._size(name, len(self.examples)) for name in self._ends)

    def _size(self, name: str, count: int) -> int:
        """Bytes of a part of the first `count` lessons."""
        width, kind = self.teacher.widths()[name]
        return int(self._ends[name][count]) * width * np.dtype(kind).itemsize

    def keep(self, folder: Path, progress: Callable[[int], None] = lambda done: None) -> None:
        """Compute all of them, or those that the folder does not hold yet, and read them from there from now on.

        Raises `InputError` where the disk has no room, or the folder holds those of other examples.
        """
        folder.mkdir(parents=True, exist_ok=True)
        state, facts = folder / "done.json", {"bytes": self.nbytes, "layers": [*self.teacher.layers]}
        done = read_done(state, facts)
        if (free := shutil.disk_usage(folder).free) < self.nbytes - sum(self._size(n, done) for n in self._ends):
            raise InputError(f"{folder}: needs {self.nbytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
        with ExitStack() as stack:
            files = {name: stack.enter_context(open(folder / f"{name}.bin", "ab")) for name in self._ends}
            for name, file in files.items():
                if file.tell() < self._size(name, done):
                    raise InputError(f"{file.name}: is shorter than {state.name} says; delete {folder}")
                file.truncate(self._size(name, done))
            for start in range(done, len(self.examples), TOGETHER):
                for lesson in self.teacher.teach(self.examples[start : start + TOGETHER]):
                    for name, part in lesson._asdict().items():
                        files[name].write(np.ascontiguousarray(part).tobytes())
                done = min(start + TOGETHER, len(self.examples))
                if (start // TOGETHER) % 16 == 15 or done == len(self.examples):
                    for file in files.values():
                        file.flush()
                        os.fsync(file.fileno())  # before it is said to be there
                    atomic_write(state, json.dumps(facts | {"done": done}))
                progress(done)
        for name, (width, kind) in self.teacher.widths().items():
            if width:
                shape = int(self._ends[name][-1]), width
                self._kept[name] = np.memmap(folder / f"{name}.bin", kind, "r", shape=shape)
            else:
                self._kept[name] = np.zeros((int(self._ends[name][-1]), 0), kind)

    def of(self, indices: Sequence[int]) -> list[Lesson]:
        if not self._kept:
            return self.teacher.teach([self.examples[index] for index in indices])
        ends = self._ends
        return [
            Lesson(*(self._kept[name][ends[name][i] : ends[name][i + 1]] for name in Lesson._fields)) for i in indices
        ]


def read_done(state: Path, facts: dict[str, Any]) -> int:
    """How many lessons a folder holds."""
    if not state.exists():
        return 0
    try:
        found = json.loads(state.read_text(encoding="utf-8"))
        done = int(found.pop("done"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{state}: is damaged ({error}); delete its folder to compute it anew") from error
    if found != facts:
        raise InputError(f"{state.parent}: holds features of other outputs; delete it, or name another --output")
    return done

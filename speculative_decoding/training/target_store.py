"""The teacher targets of all examples, stored in files that a resumed run reuses or computed on demand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..runs.log import Log, parse_line
from .outputs import LOG_FORMAT, Example, appended
from .teacher import TEACHER_BATCH, TEACHER_POSITIONS, Teacher, TeacherTargets


class TargetStore:
    """Computes targets on demand until `keep` has written them to a folder."""

    def __init__(self, teacher: Teacher, examples: Sequence[Example]) -> None:
        self.teacher = teacher
        self.examples = examples
        self._arrays: dict[str, NDArray[Any]] = {}  # fields of all examples, concatenated; empty until kept
        output_ends = np.cumsum([0, *(len(each.output) for each in examples)])
        source_ends = np.cumsum([0, *(len(each.source) for each in examples)])
        self._ends = {
            "hidden": output_ends,
            "ids": output_ends,
            "probs": output_ends,
            "encoder_output": source_ends,
        }

    @property
    def nbytes(self) -> int:
        """Size of all targets on disk."""
        return sum(self._field_bytes(name, len(self.examples)) for name in self._ends)

    def _field_bytes(self, name: str, count: int) -> int:
        """Return the size of a field of the first `count` examples."""
        width, dtype = self.teacher.widths()[name]
        return int(self._ends[name][count]) * width * np.dtype(dtype).itemsize

    def keep(self, folder: Path, progress: Callable[[int], None] = lambda done: None) -> None:
        """Compute the targets that the folder lacks. Afterwards, `get` reads from the folder.

        Raises:
            InputError: The disk is too small, or the folder is damaged or belongs to other examples.
        """
        folder.mkdir(parents=True, exist_ok=True)
        log_format = replace(LOG_FORMAT, start_over=f"delete {folder}")
        facts = {"bytes": self.nbytes, "layers": [*self.teacher.layers]}
        with ExitStack() as stack:
            log = stack.enter_context(Log.open(folder / "done.jsonl", log_format, facts))
            done = max(log.records(parse_done), default=0)
            sizes = {name: self._field_bytes(name, done) for name in self._ends}
            missing = self.nbytes - sum(sizes.values())
            free = shutil.disk_usage(folder).free
            if free < missing:
                raise InputError(
                    f"{folder}: not enough disk space (got {free / 1e9:.1f} GB, need {missing / 1e9:.1f} GB)"
                )
            files = {name: stack.enter_context(appended(folder / f"{name}.bin", sizes[name])) for name in sizes}
            for number, end in enumerate(batch_ends(self.examples, done), start=1):
                for targets in self.teacher.compute(self.examples[done:end]):
                    for name, array in targets._asdict().items():
                        files[name].write(np.ascontiguousarray(array).tobytes())
                done = end
                if number % 16 == 0 or done == len(self.examples):
                    for file in files.values():
                        file.flush()
                        os.fsync(file.fileno())  # must be on disk before the log counts it
                    log.append(done, sync=True)
                progress(done)

        for name, (width, dtype) in self.teacher.widths().items():
            shape = (int(self._ends[name][-1]), width)
            if width:
                self._arrays[name] = np.memmap(folder / f"{name}.bin", dtype, "r", shape=shape)
            else:
                self._arrays[name] = np.zeros(shape, dtype)

    def get(self, indices: Sequence[int]) -> list[TeacherTargets]:
        """Return the targets of some examples."""
        if not self._arrays:
            return self.teacher.compute([self.examples[index] for index in indices])
        return [
            TeacherTargets(
                *(self._arrays[name][self._ends[name][i] : self._ends[name][i + 1]] for name in TeacherTargets._fields)
            )
            for i in indices
        ]


def batch_ends(examples: Sequence[Example], start: int) -> Iterator[int]:
    """Yield the end of each batch of examples for the teacher, from `start`."""
    longest = count = 0
    for end in range(start, len(examples)):
        longest = max(longest, len(examples[end].source))
        if count and (count == TEACHER_BATCH or (count + 1) * longest > TEACHER_POSITIONS):
            yield end
            longest, count = len(examples[end].source), 0
        count += 1
    if count:
        yield len(examples)


def parse_done(line: bytes) -> int | None:
    """Return the number of examples whose targets are in the files beside a log, or None for a damaged line."""
    done = parse_line(line)
    return done if type(done) is int else None

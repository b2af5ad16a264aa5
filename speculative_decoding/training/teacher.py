"""Computes a student's training targets: the target's hidden states, most likely next tokens and encoder output.

`TargetStore` reads the targets from files, which a resumed run reuses, or computes them on demand.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..models.backend import replaced_on_cpu
from ..models.base import EncoderDecoder
from ..models.draft_head import normed
from ..runs.log import Log, parse_line
from ..sampling.distribution import BLOCK, in_blocks
from .outputs import LOG_FORMAT, Example, appended

TEACHER_BATCH = 32  # examples in a forward pass
TEACHER_POSITIONS = 1 << 14  # padded source positions in a forward pass over several examples

Halfs = NDArray[np.float16]


class TeacherTargets(NamedTuple):
    """Training targets for one example with L output tokens and S source tokens.

    Args:
        hidden: (L, layers * d) normalized states; row i belongs to the decoder input before output token i.
        ids: (L, 16) the most likely next tokens.
        probs: (L, 16) their probabilities.
        encoder_output: (S, encoder width).
    """

    hidden: Halfs
    ids: NDArray[np.int32]
    probs: Halfs
    encoder_output: Halfs


class Teacher:
    """Computes teacher targets with the target model.

    Args:
        target: The model.
        layers: The decoder layers whose states the student reads; empty for a draft model.
    """

    def __init__(self, target: EncoderDecoder, layers: Sequence[int]) -> None:
        self.target = target
        self.layers = tuple(layers)
        self._label_ids = min(16, target.config.vocab_size)  # number of most likely ids per position

    def widths(self) -> dict[str, tuple[int, str]]:
        """Return the row width and numpy type of each field of `TeacherTargets`."""
        return {
            "hidden": (len(self.layers) * self.target.config.d_model, "<f2"),
            "ids": (self._label_ids, "<i4"),
            "probs": (self._label_ids, "<f2"),
            "encoder_output": (self.target.encoder_width, "<f2"),
        }

    def compute(self, examples: Sequence[Example]) -> list[TeacherTargets]:
        """Compute the targets of several examples in one forward pass."""
        encoder_output, mask = encode_examples(self.target, examples)
        inputs = [example.decoder_input(self.target.config.decoder_start_token_id) for example in examples]
        tokens = mx.array(padded(inputs, self.target.config.pad_token_id))
        hidden = self.target.teacher_forced_hidden(tokens, encoder_output, mask)
        lengths = [len(example.output) for example in examples]
        places = [slice(len(each) - length, len(each)) for each, length in zip(inputs, lengths, strict=True)]
        numbers = np.arange(tokens.size).reshape(tokens.shape)
        rows = np.concatenate([numbers[i, place] for i, place in enumerate(places)])  # inputs that predict the outputs
        final = self.target.final_states(hidden[-1]).flatten(0, 1)[mx.array(rows)]
        ids, probs = most_likely(self.target.logits(final), self._label_ids)
        states = [normed(hidden[layer]) for layer in self.layers]
        joined = mx.concatenate(states, axis=-1) if states else mx.zeros((*tokens.shape, 0))
        numpy_states = np.array(joined.astype(mx.float16))
        numpy_encoder_output = np.array(encoder_output.astype(mx.float16))

        ends = np.cumsum(lengths)
        return [
            TeacherTargets(
                numpy_states[i, places[i]],
                ids[ends[i] - lengths[i] : ends[i]],
                probs[ends[i] - lengths[i] : ends[i]],
                numpy_encoder_output[i, : len(example.source)],
            )
            for i, example in enumerate(examples)
        ]


def most_likely(logits: mx.array, k: int) -> tuple[NDArray[np.int32], Halfs]:
    """Return the k most likely ids, in any order, and their probabilities.

    Shapes: (N, V) -> (N, k), (N, k).
    """
    logits = logits.astype(mx.float32)
    blocks = in_blocks(logits)
    chosen = largest(blocks.max(axis=-1), k)[..., None]  # no other block can contain any of the k ids
    numbers = (chosen * BLOCK + mx.arange(BLOCK)).flatten(1)
    values = mx.take_along_axis(blocks, chosen, axis=1).flatten(1)
    order = largest(values, k)
    ids = mx.take_along_axis(numbers, order, axis=-1)
    kept = mx.take_along_axis(values, order, axis=-1)
    highest = kept.max(axis=-1, keepdims=True)
    sums = np.array(exp_sums(logits - highest))
    return np.array(ids.astype(mx.int32)), (np.exp(np.array(kept - highest)) / sums).astype(np.float16)


@replaced_on_cpu
def exp_sums(x: mx.array) -> mx.array:
    """Return the sum of the exponentials in each row: (N, V) -> (N, 1)."""
    return mx.exp(x).sum(axis=-1, keepdims=True)


def largest(values: mx.array, k: int) -> mx.array:
    """Return the indices of the k largest values in each row, or of all values if there are fewer: (N, M) -> (N, k)."""
    return mx.argpartition(-values, min(k, values.shape[-1]) - 1, axis=-1)[:, :k]


def encode_examples(target: EncoderDecoder, examples: Sequence[Example]) -> tuple[mx.array, mx.array]:
    """Return the examples' encoder outputs, padded with zeros, (B, S, d), and their mask, (B, S)."""
    rows = target.encode_rows([example.read_source() for example in examples])
    longest = max(row.shape[1] for row in rows)
    mask = mx.arange(longest) < mx.array([row.shape[1] for row in rows])[:, None]
    return mx.concatenate([mx.pad(row, [(0, 0), (0, longest - row.shape[1]), (0, 0)]) for row in rows]), mask


def padded(rows: Sequence[Sequence[int]], value: int) -> list[list[int]]:
    longest = max(map(len, rows))
    return [[*row, *[value] * (longest - len(row))] for row in rows]


class TargetStore:
    """Computes targets on demand until `keep` has written them to a folder."""

    def __init__(self, teacher: Teacher, examples: Sequence[Example]) -> None:
        self.teacher = teacher
        self.examples = examples
        self._arrays: dict[str, NDArray[Any]] = {}  # each field for all examples, concatenated; empty before `keep`
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
        """Size of all targets on disk, in bytes."""
        return sum(self._field_bytes(name, len(self.examples)) for name in self._ends)

    def _field_bytes(self, name: str, count: int) -> int:
        """Return the size in bytes of a field for the first `count` examples."""
        width, dtype = self.teacher.widths()[name]
        return int(self._ends[name][count]) * width * np.dtype(dtype).itemsize

    def keep(self, folder: Path, progress: Callable[[int], None] = lambda done: None) -> None:
        """Compute the targets that the folder lacks. Afterwards, `get` reads from the folder.

        Raises:
            InputError: The disk has too little free space, or the folder is damaged or belongs to other examples.
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
                        os.fsync(file.fileno())  # must be on disk before the log records it
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
    """Divide the examples from `start` on into batches for the teacher, and yield the end index of each batch."""
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
    """Return the number of examples whose targets are stored, or None for a damaged line."""
    done = parse_line(line)
    return done if type(done) is int else None

"""What the target makes of examples: hidden states of some layers, its likeliest next tokens, and its memory of the
sources. Computed when it is needed, or once for all examples and kept in files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..loading.safe_folder import write_file
from ..models.base import EncoderDecoder
from ..models.draft_head import normed
from .outputs import Example

LIKELIEST = 16  # of the target's distribution, which suffice as a label
TOGETHER = 32  # examples in a pass
NDFloat = NDArray[np.float16]


class Lesson(NamedTuple):
    """Of one example, with L tokens and S of its source, all float16 but `ids`.

    hidden: (L, layers * d) normed states; position i is what the decoder made of the i-th token it read, the start
    token first. ids, probs: (L, 16), its likeliest next tokens. memory: (S, d).
    """

    hidden: NDFloat
    ids: NDArray[np.int32]
    probs: NDFloat
    memory: NDFloat


class Teacher:
    """layers: whose states are wanted; none for a student that reads none."""

    def __init__(self, target: EncoderDecoder, layers: Sequence[int]) -> None:
        self.target, self.layers = target, tuple(layers)
        self._likeliest = min(LIKELIEST, target.config.vocab_size)

    def widths(self) -> dict[str, tuple[int, str]]:
        """Numbers a row of each part of a lesson has, and their type."""
        d = self.target.config.d_model
        k = self._likeliest
        return {"hidden": (len(self.layers) * d, "<f2"), "ids": (k, "<i4"), "probs": (k, "<f2"), "memory": (d, "<f2")}

    def teach(self, examples: Sequence[Example]) -> list[Lesson]:
        """In one pass."""
        source, mask, tokens = padded_examples(self.target, examples)
        memory = self.target.encode(source, mask)
        hidden = self.target.teacher_forced_hidden(tokens, memory, mask)
        logits = self.target.logits(self.target.final_states(hidden[-1])).astype(mx.float32)
        states = [normed(hidden[layer]) for layer in self.layers]
        together = mx.concatenate(states, axis=-1) if states else mx.zeros((*tokens.shape, 0))
        kept = [np.array(each.astype(mx.float16)) for each in (together, memory)]
        lessons, all_logits = [], np.array(logits)
        for i, each in enumerate(examples):
            length = len(each.output)
            ids, probs = likeliest(all_logits[i, :length], self._likeliest)
            lessons.append(Lesson(kept[0][i, :length], ids, probs, kept[1][i, : len(each.source)]))
        return lessons

    def scale(self, examples: Sequence[Example]) -> float:
        """The size of the states behind the last layer."""
        source, mask, tokens = padded_examples(self.target, examples[:TOGETHER])
        hidden = self.target.teacher_forced_hidden(tokens, self.target.encode(source, mask), mask)[-1]
        real = mx.array([[i < len(each.output) for i in range(tokens.shape[1])] for each in examples[:TOGETHER]])
        sizes = mx.sqrt(mx.square(hidden.astype(mx.float32)).mean(axis=-1))
        return number((sizes * real).sum() / real.sum())


def number(array: mx.array) -> float:
    """Of an array with one."""
    return array.item()  # type: ignore[return-value]


def likeliest(logits: NDArray[np.float32], k: int) -> tuple[NDArray[np.int32], NDFloat]:
    """(L, V) -> the k likeliest ids and their probabilities. In numpy: MLX has no fast exponential on x86-64."""
    ids = np.argpartition(-logits, k - 1, axis=-1)[:, :k]
    found = np.take_along_axis(logits, ids, axis=-1)
    most = found.max(axis=-1, keepdims=True)
    sums = np.exp(logits - most).sum(axis=-1, keepdims=True)
    return ids.astype(np.int32), (np.exp(found - most) / sums).astype(np.float16)


def padded_examples(target: EncoderDecoder, examples: Sequence[Example]) -> tuple[mx.array, mx.array, mx.array]:
    """Source ids and their mask, (B, S); what the decoder reads, (B, L): the start token and all but the last."""
    start, pad = target.config.decoder_start_token_id, target.config.pad_token_id
    longest = max(len(each.source) for each in examples), max(len(each.output) for each in examples)
    sources = [each.source + [pad] * (longest[0] - len(each.source)) for each in examples]
    tokens = [[start, *each.output[:-1]] + [pad] * (longest[1] - len(each.output)) for each in examples]
    mask = mx.arange(longest[0]) < mx.array([len(each.source) for each in examples])[:, None]
    return mx.array(sources), mask, mx.array(tokens)


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
                    write_file(state, json.dumps(facts | {"done": done}))
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

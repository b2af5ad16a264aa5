"""What the target makes of examples: hidden states of some layers, its likeliest next tokens, and its memory of the
sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..models.base import EncoderDecoder
from ..models.draft_head import normed
from .outputs import Example

LIKELIEST = 16  # of the target's distribution, which suffice as a label
TOGETHER = 32  # examples in a pass
NDFloat = NDArray[np.float16]


class Lesson(NamedTuple):
    """Of one example, with L tokens and S of its source, all float16 but `ids`.

    hidden: (L, layers * d) normed states; position i is what the decoder made of the i-th token it read, the start
    token first. ids, probs: (L, 16), its likeliest next tokens. memory: (S, M).
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
        d, m = self.target.config.d_model, self.target.encoder_width
        k = self._likeliest
        return {"hidden": (len(self.layers) * d, "<f2"), "ids": (k, "<i4"), "probs": (k, "<f2"), "memory": (m, "<f2")}

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

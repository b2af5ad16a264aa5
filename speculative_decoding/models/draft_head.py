"""A draft head: a small network that reads the target's hidden states and drafts tokens one by one.

It has no encoder and no KV cache; its state is one vector. A step combines the last token with the state, attends over
the target's cross-attention cache of the last layer, and ends with a feed-forward and a norm. There is no other norm:
the sizes of all inputs are known, and fewer operations make a step faster (docs/LOG.md). The target's output head turns
the state into logits. After a verification, the state is computed from the target's hidden states of several layers
("features"; Li et al. 2024, EAGLE, 2401.15077, which uses one layer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from .attention import attend, split_heads
from .compiled import Compiled
from .config import ACTIVATIONS
from .linear import Linear, finalize_layers

EPSILON = 1e-6


@dataclass(frozen=True)
class Scales:
    """Approximate sizes of a head's inputs and outputs, which let the trained weights have similar sizes.

    state: the target's states. token: the target's embeddings. logits: multiplies the input of the output head.
    All are 1 in a `folded` head.
    """

    state: float = 1.0
    token: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True)
class DraftHeadConfig:
    """The sizes of a draft head, and the tokens that it may propose.

    d_model: the width of the target's decoder.
    heads, head_width: those of the target's cross-attention.
    d_ff: units of the feed-forward.
    layers: the target's decoder layers whose states are the features; the last layer is one of them.
    frequent: ids that it may propose for any source, most frequent first; empty: all ids.
    by_source: for each source id, other ids that it may propose.
    acceptance: the acceptance rate by draft position on held-out text, given that the previous tokens were accepted;
        empty: unknown.
    """

    d_model: int
    heads: int
    head_width: int
    d_ff: int
    layers: Sequence[int]
    activation: str
    is_gated: bool
    frequent: Sequence[int] = ()
    by_source: Mapping[int, Sequence[int]] = field(default_factory=dict)
    scales: Scales = Scales()
    acceptance: Sequence[float] = ()


class DraftHead(nn.Module):
    """Shapes: B rows, L independent positions in each."""

    def __init__(self, config: DraftHeadConfig) -> None:
        super().__init__()
        self.config = config
        width = config.d_model
        query_width = config.heads * config.head_width
        self.start = mx.zeros((width,))
        self.combine = Linear(len(config.layers) * width, width)
        self.join_token = Linear(width, width)
        self.join_state = Linear(width, width)
        self.norm = mx.ones((width,))
        self.q = Linear(width, query_width)
        self.o = Linear(query_width, width)
        self.wi = Linear(width, config.d_ff * (1 + config.is_gated))
        self.wo = Linear(config.d_ff, width)
        self._activation = ACTIVATIONS[config.activation]
        self._compiled: tuple[Compiled, Compiled] | None = None

    @property
    def start_state(self) -> mx.array:
        """The state before any token was verified, (d,)."""
        return normed(self.start)

    def features(self, hidden: mx.array) -> mx.array:
        """The state after a verification.

        hidden: the target's states after each of `config.layers`, concatenated, (B, L, layers * d) -> (B, L, d).
        """
        layers = normed(hidden.reshape(*hidden.shape[:2], len(self.config.layers), -1))
        return normed(self.combine(layers.reshape(hidden.shape)))

    def step(
        self, embedded: mx.array, state: mx.array, keys: mx.array, values: mx.array, source_mask: mx.array
    ) -> mx.array:
        """The state after one more token.

        Args:
            embedded: The target's embedding of the token, (B, L, d) or (B, d).
            state: The previous state, of the same shape.
            keys: Cross-attention keys of the target's last layer, (B, H or fewer, S, D).
            values: Cross-attention values of the target's last layer, (B, H or fewer, S, D).
            source_mask: Additive, (B, 1, 1, S).
        """
        shape = state.shape
        scales = self.config.scales
        rows = (state.size // shape[-1], shape[-1])
        embedded = embedded.reshape(rows)
        state = state.reshape(rows)
        x = mx.addmm(self.join_state(state), embedded, self.join_token.transposed, alpha=1 / scales.token)
        (queries,) = split_heads(self.q(x), len(keys), 1, self.config.heads)
        attended = attend(queries, keys, values, source_mask)
        x = mx.addmm(x, attended, self.o.transposed, alpha=1 / scales.state)
        inner = self.wi(x)
        if self.config.is_gated:
            gate, linear = mx.split(inner, 2, axis=-1)
            inner = self._activation(gate) * linear
        else:
            inner = self._activation(inner)
        x = mx.addmm(x, inner, self.wo.transposed, alpha=1 / scales.state)
        return normed(x).reshape(shape)

    def outputs(self, state: mx.array) -> mx.array:
        """The input of the target's output head, with the shape of the state."""
        scale = self.config.scales.logits
        return state * self.norm if scale == 1 else state * self.norm * scale

    def folded(self) -> DraftHead:
        """The same function with the scales folded into the weights: fewer graph nodes per step."""
        return self.scaled(Scales())

    def scaled(self, scales: Scales) -> DraftHead:
        """The same function with these scales and adjusted weights."""
        previous = self.config.scales
        head = DraftHead(replace(self.config, scales=scales))
        parameters = dict(tree_flatten(self.parameters()))
        parameters["join_token.weight"] = parameters["join_token.weight"] * (scales.token / previous.token)
        for name in ("o.weight", "wo.weight"):
            parameters[name] = parameters[name] * (scales.state / previous.state)
        parameters["norm"] = parameters["norm"] * (previous.logits / scales.logits)
        head.load_weights([*parameters.items()])
        return head

    def with_frequent(self, ids: Sequence[int], by_source: Mapping[int, Sequence[int]] | None = None) -> DraftHead:
        """A copy of the head that may propose other ids. by_source: None keeps the current lists."""
        by_source = self.config.by_source if by_source is None else by_source
        return self._with(replace(self.config, frequent=tuple(ids), by_source=by_source))

    def with_acceptance(self, acceptance: Sequence[float]) -> DraftHead:
        """A copy of the head with measured acceptance rates."""
        return self._with(replace(self.config, acceptance=tuple(acceptance)))

    def _with(self, config: DraftHeadConfig) -> DraftHead:
        head = DraftHead(config)
        head.load_weights([*dict(tree_flatten(self.parameters())).items()])
        return head

    def features_at(self, hidden: Sequence[mx.array], positions: mx.array, is_first: mx.array) -> mx.array:
        """`features` at one position of each row, (B, d), or `start_state` for rows without a verified token. Compiled.

        Args:
            hidden: The states after each of `config.layers`, (B, L, d) each.
            positions: (B, 1, 1), positions in `hidden`.
            is_first: (B, 1), True for rows without a verified token.
        """
        return self._compiled_functions()[0](hidden[0].shape, list(hidden), positions, is_first)

    def _features_at(self, hidden: Sequence[mx.array], positions: mx.array, is_first: mx.array) -> mx.array:
        found = self.features(mx.take_along_axis(mx.concatenate([*hidden], axis=-1), positions, axis=1))
        return mx.where(is_first, self._start_state, found[:, 0])

    def step_and_outputs(self, *arrays: mx.array) -> tuple[mx.array, mx.array]:
        """`step` and its `outputs` for one position of each row, both (B, d). Compiled."""
        return self._compiled_functions()[1]((len(arrays[0]), arrays[2].shape), *arrays)

    def _step_and_outputs(self, *arrays: mx.array) -> tuple[mx.array, mx.array]:
        state = self.step(*arrays)
        return state, self.outputs(state)

    def _compiled_functions(self) -> tuple[Compiled, Compiled]:
        """`_features_at` and `_step_and_outputs`."""
        return self._compiled or self.finalize()

    def finalize(self) -> tuple[Compiled, Compiled]:
        """Compile for the current weights. Call this after changing weights of a head that has drafted."""
        self._start_state = self.start_state
        mx.eval(self._start_state)
        finalize_layers(self)
        self._compiled = Compiled(self._features_at), Compiled(self._step_and_outputs)
        return self._compiled

    @property
    def nbytes(self) -> int:
        parameters: Any = tree_flatten(self.parameters())
        return sum(array.nbytes for _, array in parameters)


def normed(x: mx.array) -> mx.array:
    """RMS norm without a weight."""
    return mx.fast.rms_norm(x, None, EPSILON)


def default_layers(decoder_layers: int) -> tuple[int, ...]:
    """The layers that a head reads, from 0: at a third of the depth, at two thirds, and the last one."""
    return tuple(sorted({max(0, decoder_layers * part // 3 - 1) for part in (1, 2, 3)}))

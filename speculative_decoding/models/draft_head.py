"""Draft head: a small network that reads the target's hidden states and drafts tokens one by one.

It has no encoder and no KV cache; its state is a single vector. A step combines the last token with the state and
attends over the cross-attention cache of the target's last layer. It ends with a feed-forward block and a norm. There
are no other norms, because every additional operation makes a step slower (docs/decisions/draft-head.md). The target's
output head converts the state to logits.

After a verification, the state is computed from the target's hidden states after several layers. They are called
"features" as in EAGLE (Li et al. 2024, arXiv 2401.15077), which uses only one layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from .attention import Softmax, attend, precise_softmax, split_heads
from .base import EncoderDecoder
from .compiled import Compiled, compiled_by_shape, stacked
from .config import ACTIVATIONS
from .layers import Linear, finalize_layers, project

EPSILON = 1e-6


@dataclass(frozen=True)
class DraftHeadConfig:
    """A draft head's sizes, and the tokens that it may propose.

    d_model: the width of the target's decoder.
    heads, head_width: as in the target's cross-attention.
    d_ff: number of feed-forward units.
    layers: the target's decoder layers whose states serve as features, including the last layer.
    frequent: ids that the head may propose for any source, ordered by descending frequency; empty means all ids.
    by_source: for each source id, additional ids that the head may propose.
    acceptance: the acceptance rate by draft position on held-out text, given that the previous tokens were accepted;
        empty means unknown.
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
    acceptance: Sequence[float] = ()


class DraftHead(nn.Module):
    """A draft head for one target. Shapes: B rows, L independent positions in each.

    residual_scale, softmax: the target's `residual_scale` and `source_softmax`, which are not stored with the head.
    """

    def __init__(
        self, config: DraftHeadConfig, residual_scale: float = 1.0, softmax: Softmax = precise_softmax
    ) -> None:
        super().__init__()
        self.config = config
        width = config.d_model
        query_width = config.heads * config.head_width
        self.start = mx.zeros((width,))
        self.combine = Linear(len(config.layers) * width, width, bias=False)
        self.join_token = Linear(width, width, bias=False)
        self.join_state = Linear(width, width, bias=False)
        self.norm = mx.ones((width,))
        self.q = Linear(width, query_width, bias=False)
        self.o = Linear(query_width, width, bias=False)
        self.wi = Linear(width, config.d_ff * (1 + config.is_gated), bias=False)
        self.wo = Linear(config.d_ff, width, bias=False)
        self._activation = ACTIVATIONS[config.activation]
        self.residual_scale = residual_scale
        self._softmax = softmax
        self._compiled: tuple[Compiled, Compiled] | None = None

    @classmethod
    def for_target(cls, target: EncoderDecoder, layers: Sequence[int], seed: int = 0) -> DraftHead:
        """Return an untrained head that reads the states after these decoder layers of the target."""
        width = target.config.d_model
        decoder = target.config.decoder
        config = DraftHeadConfig(
            d_model=width,
            heads=decoder.num_heads,
            head_width=decoder.head_dim,
            d_ff=min(2 * width, decoder.d_ff),
            layers=tuple(layers),
            activation=decoder.activation,
            is_gated=decoder.is_gated,
        )
        head = cls(config, target.residual_scale, target.source_softmax)
        ids = mx.arange(min(1024, target.config.vocab_size))
        probe = 0.01 * mx.random.normal((64, width), key=mx.random.key(seed))
        output_head = target.head_of(ids)
        products = (output_head(probe) - output_head(-probe)) / 0.02  # cancels the bias, and stays below any soft cap
        weights = head.initial_weights(root_mean_square(target.embed(ids[None])), root_mean_square(products), seed)
        weights |= target.head_weights(head.config.d_ff)
        head.load_weights([*weights.items()])
        mx.eval(head.parameters())
        return head

    def initial_weights(self, embedding_size: float, logit_size: float, seed: int) -> dict[str, mx.array]:
        """Return random weights that make a state approximately a weighted sum of its inputs.

        See docs/decisions/draft-head.md.

        Args:
            embedding_size: RMS of the target's embeddings.
            logit_size: RMS of the target's logits for states of RMS 1.
        """
        gains = {"q.weight": self.config.head_width**-0.5, "wi.weight": 1.0, "o.weight": 0.25, "wo.weight": 0.25}
        weights = {}
        parameters: Any = tree_flatten(self.parameters())
        for i, (name, parameter) in enumerate(parameters):
            noise = mx.random.normal(parameter.shape, key=mx.random.key(seed + i))
            gain = gains.get(name, 0.02) * parameter.shape[1] ** -0.5 if parameter.ndim == 2 else 1.0
            weights[name] = gain * noise
        width = self.config.d_model
        count = len(self.config.layers)
        shares = [*[0.0] * (count - 2), 0.3, 0.7][-count:]  # mostly the last layer's states
        weights["combine.weight"] += mx.concatenate([share * mx.eye(width) for share in shares], axis=1)
        weights["join_state.weight"] += 0.7 * mx.eye(width)
        weights["join_token.weight"] = (weights["join_token.weight"] + 0.3 * mx.eye(width)) / embedding_size
        weights["norm"] = mx.full((width,), 2.0 / logit_size)
        return weights

    @property
    def start_state(self) -> mx.array:
        """The initial state (d,), used until a token has been verified."""
        return normed(self.start)

    def features(self, hidden: mx.array, weight: mx.array | None = None) -> mx.array:
        """Return the state after a verification.

        hidden: the target's states after each of `config.layers`, concatenated, (B, L, layers * d) -> (B, L, d).
        weight: (d,), multiplies the state; by default 1.
        """
        layers = hidden.reshape(*hidden.shape[:2], len(self.config.layers), -1)
        layers = normed(layers, EPSILON * self.residual_scale**2)
        return normed(self.combine(layers.reshape(hidden.shape)), weight=weight)

    def step(
        self, embedded: mx.array, state: mx.array, keys: mx.array, values: mx.array, source_mask: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Return the state after one additional token, and its `outputs`.

        Args:
            embedded: The target's embedding of the token, (B, L, d) or (B, d).
            state: The previous state, of the same shape.
            keys: Cross-attention keys of the target's last layer, (B, H or fewer, S, D).
            values: Cross-attention values of the target's last layer, (B, H or fewer, S, D).
            source_mask: Additive, (B, 1, 1, S).
        """
        rows = (state.size // state.shape[-1], state.shape[-1])
        x = project(self.join_token, embedded.reshape(rows), residual=self.join_state(state.reshape(rows)))
        state = normed(self._block(x, keys, values, source_mask)).reshape(state.shape)
        return state, self.outputs(state)

    def _block(self, x: mx.array, keys: mx.array, values: mx.array, source_mask: mx.array) -> mx.array:
        """Apply the attention and the feed-forward block of `step` to joined rows, (B * L, d)."""
        queries = split_heads(self.q(x), len(keys), self.config.heads)
        attended = attend(queries, keys, values, source_mask, softmax=self._softmax)
        x = project(self.o, attended, residual=x)
        inner = self.wi(x)
        if self.config.is_gated:
            gate, linear = mx.split(inner, 2, axis=-1)
            inner = self._activation(gate) * linear
        else:
            inner = self._activation(inner)
        return project(self.wo, inner, residual=x)

    def outputs(self, state: mx.array) -> mx.array:
        """Return the input of the target's output head, which has the same shape as the state."""
        return state * self.norm

    def with_frequent(self, ids: Sequence[int], by_source: Mapping[int, Sequence[int]] | None = None) -> DraftHead:
        """Return a copy of the head with another draft vocabulary. by_source: None keeps the current lists."""
        by_source = self.config.by_source if by_source is None else by_source
        return self._with(replace(self.config, frequent=tuple(ids), by_source=by_source))

    def with_acceptance(self, acceptance: Sequence[float]) -> DraftHead:
        """Return a copy of the head with measured acceptance rates."""
        return self._with(replace(self.config, acceptance=tuple(acceptance)))

    def _with(self, config: DraftHeadConfig) -> DraftHead:
        head = DraftHead(config, self.residual_scale, self._softmax)
        head.load_weights([*dict(tree_flatten(self.parameters())).items()])
        return head

    # While decoding, states are `outputs`, which saves an operation per token: the last norm multiplies by the weight
    # `norm`, and the matrix of `join_state` is divided by it.

    def features_at(self, hidden: Sequence[mx.array], positions: mx.array) -> mx.array:
        """Return the `outputs` of `features` at one position of each row, (B, d).

        Args:
            hidden: The states after each of `config.layers`, (B, L, d) each.
            positions: (B, 1, 1, 1), positions in `hidden`.
        """
        features_at, _ = self._compiled or self.finalize()
        return features_at(hidden[0].shape)(list(hidden), positions)

    def _features_at(self, hidden: Sequence[mx.array], positions: mx.array) -> mx.array:
        layers = mx.take_along_axis(stacked(hidden, axis=2), positions, axis=1)  # (B, 1, layers, d)
        return self.features(layers.flatten(2), self.norm)[:, 0]

    def compiled_step(self, *arrays: mx.array) -> mx.array:
        """Run `step`, compiled, for one position of each row. The state and the result are `outputs`, (B, d)."""
        _, step = self._compiled or self.finalize()
        return step((len(arrays[0]), arrays[2].shape))(*arrays)

    def _step(
        self, embedded: mx.array, state: mx.array, keys: mx.array, values: mx.array, source_mask: mx.array
    ) -> mx.array:
        x = project(self.join_token, embedded.reshape(state.shape), residual=state @ self._join_outputs)
        return normed(self._block(x, keys, values, source_mask), weight=self.norm)

    def finalize(self) -> tuple[Compiled, Compiled]:
        """Compile for the current weights. Call this after changing weights of a head that has drafted."""
        finalize_layers(self)
        least = 1e-3 * mx.abs(self.norm).max()  # smaller weights are not divided by, in case one is zero
        self._join_outputs = (self.join_state.weight / mx.where(mx.abs(self.norm) < least, least, self.norm)).T
        mx.eval(self._join_outputs)
        self._compiled = compiled_by_shape(self._features_at), compiled_by_shape(self._step)
        return self._compiled

    @property
    def nbytes(self) -> int:
        parameters: Any = tree_flatten(self.parameters())
        return sum(array.nbytes for _, array in parameters)


def normed(x: mx.array, epsilon: float = EPSILON, weight: mx.array | None = None) -> mx.array:
    """Apply an RMS norm, by default without a weight."""
    return mx.fast.rms_norm(x, weight, epsilon)


def root_mean_square(x: mx.array) -> float:
    return float(mx.sqrt(mx.square(x.astype(mx.float32)).mean()))


def default_layers(decoder_layers: int) -> tuple[int, ...]:
    """Return the indices of the layers that a head reads: those at one and two thirds of the depth, and the last."""
    return tuple(sorted({max(0, decoder_layers * part // 3 - 1) for part in (1, 2, 3)}))

"""A draft head: a small network that reads what the target has computed and writes the tokens that follow, one by one.

It has no encoder and no cache: its state is one vector. A step joins the last token and the state, attends over the
target's own cross keys and values of its last layer, and ends with a feed-forward and a norm, the only one: what it
reads has a size of its own, and a step of few operations costs little (docs/LOG.md). The target's head turns the new
state into logits. Where the target has verified a token, the state is made of the target's own hidden states
("features", Li et al. 2024, EAGLE, 2401.15077; here of several layers). Knows nothing of drafts, files or training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from .attention import attend, split_heads
from .base import EncoderDecoder
from .compiled import Compiled
from .config import ACTIVATIONS
from .last_layer import LastLayer
from .linear import Linear, finalize_layers

EPSILON = 1e-6
SOME_IDS = 1024  # by whose embeddings their size is judged


@dataclass(frozen=True)
class Scales:
    """About the sizes of what a head reads and writes, so that weights that are trained have a usual size.

    state: of the target's states. token: of its embeddings. logits: what its head's logits are multiplied by.
    All are 1 in a `folded` head.
    """

    state: float = 1.0
    token: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True)
class DraftHeadConfig:
    """layers: of the target's decoder, whose states are the features; the last among them. heads, head_width: of the
    target's cross-attention. d_ff: units of the feed-forward. frequent: the ids it may propose besides those of a
    source, the most frequent first; none: all. by_source: ids that it may propose too where the source has this one.
    acceptance: of each drafted position on held-out text, given that those before it were accepted; empty: not known.
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
    """Shapes: B rows, L independent places of each."""

    def __init__(self, config: DraftHeadConfig) -> None:
        super().__init__()
        self.config = config
        width, inner = config.d_model, config.heads * config.head_width
        self.start = mx.zeros((width,))  # the features where nothing was verified yet
        self.combine = Linear(len(config.layers) * width, width)
        self.join_token, self.join_state = Linear(width, width), Linear(width, width)
        self.norm = mx.ones((width,))
        self.q, self.o = Linear(width, inner), Linear(inner, width)
        self.wi, self.wo = Linear(width, config.d_ff * (1 + config.is_gated)), Linear(config.d_ff, width)
        self._activation = ACTIVATIONS[config.activation]
        self._compiled: tuple[Compiled, Compiled] | None = None

    @classmethod
    def of(cls, target: EncoderDecoder, layers: Sequence[int], scale: float, seed: int = 0) -> DraftHead:
        """An untrained one for this target, which begins as its last layer with the strongest units. scale: about the
        size of its states.
        """
        last, width = target.last_layer(), target.config.d_model
        cross, _ = target.cross_projections(mx.zeros((1, 1, target.encoder_width)))[-1]
        units = min(2 * width, last.wo.shape[1])
        embedded = target.embed(mx.arange(min(SOME_IDS, target.config.vocab_size))[None]).astype(mx.float32)
        token: Any = mx.sqrt(mx.square(embedded).mean()).item()
        config = DraftHeadConfig(
            d_model=width,
            heads=last.q.shape[0] // cross.shape[3],
            head_width=cross.shape[3],
            d_ff=units,
            layers=tuple(layers),
            activation=last.activation,
            is_gated=len(last.wi) > 1,
            scales=Scales(scale, token, last.logit_scale),
        )
        head = cls(config)
        head.load_weights([*beginning(last, config, seed).items()])
        mx.eval(head.parameters())
        return head

    def features(self, hidden: mx.array) -> mx.array:
        """The target's states behind `config.layers`, side by side (B, L, layers * d) -> (B, L, d), normed like every
        state.
        """
        each = normed(hidden.reshape(*hidden.shape[:2], len(self.config.layers), -1))
        return normed(self.combine(each.reshape(hidden.shape)))

    def step(
        self, embedded: mx.array, state: mx.array, keys: mx.array, values: mx.array, source_mask: mx.array
    ) -> mx.array:
        """The target's embedding of a token and the features or state before it, (B, L, d) or (B, d) -> the next state.

        keys, values, source_mask: of the target's last layer, (B, H or fewer, S, D) and (B, 1, 1, S).
        """
        shape, scales = state.shape, self.config.scales
        rows = state.size // shape[-1], shape[-1]  # as matrix products want them
        embedded, state = embedded.reshape(rows), state.reshape(rows)
        x = mx.addmm(self.join_state(state), embedded, self.join_token.transposed, alpha=1 / scales.token)
        (queries,) = split_heads(self.q(x), len(keys), 1, self.config.heads)
        x = mx.addmm(x, attend(queries, keys, values, source_mask), self.o.transposed, alpha=1 / scales.state)
        inside = self.wi(x)
        gate, *others = mx.split(inside, 2, axis=-1) if self.config.is_gated else [inside]
        inside = self._activation(gate) * others[0] if others else self._activation(gate)
        x = mx.addmm(x, inside, self.wo.transposed, alpha=1 / scales.state)
        return normed(x).reshape(shape)

    @property
    def beginning(self) -> mx.array:
        """The state where the target has verified nothing yet, (d,)."""
        return normed(self.start)

    def outputs(self, state: mx.array) -> mx.array:
        """What the target's head reads, of the state's shape."""
        scale = self.config.scales.logits
        return state * self.norm if scale == 1 else state * self.norm * scale

    def folded(self) -> DraftHead:
        """The same head for drafting, with its scales in its weights: fewer nodes in each step."""
        return self.scaled(Scales())

    def scaled(self, scales: Scales) -> DraftHead:
        """The same head with these scales, and weights that fit them."""
        was = self.config.scales
        head = DraftHead(replace(self.config, scales=scales))
        own = dict(tree_flatten(self.parameters()))
        own["join_token.weight"] = own["join_token.weight"] * (scales.token / was.token)
        for name in ("o.weight", "wo.weight"):
            own[name] = own[name] * (scales.state / was.state)
        own["norm"] = own["norm"] * (was.logits / scales.logits)
        head.load_weights([*own.items()])
        return head

    def with_frequent(self, ids: Sequence[int], by_source: Mapping[int, Sequence[int]] | None = None) -> DraftHead:
        """The same head, with other tokens that it may propose. by_source: None: as they are."""
        by_source = self.config.by_source if by_source is None else by_source
        return self._with(replace(self.config, frequent=tuple(ids), by_source=by_source))

    def with_acceptance(self, acceptance: Sequence[float]) -> DraftHead:
        """The same head, with what was measured of it."""
        return self._with(replace(self.config, acceptance=tuple(acceptance)))

    def _with(self, config: DraftHeadConfig) -> DraftHead:
        head = DraftHead(config)
        head.load_weights([*dict(tree_flatten(self.parameters())).items()])
        return head

    def features_at(self, hidden: Sequence[mx.array], places: mx.array, is_first: mx.array) -> mx.array:
        """`features` at one place of each row, (B, d); those of rows in which nothing was verified are `start`.

        places: (B, 1, 1), in `hidden`. is_first: (B, 1). Compiled.
        """
        return self._compiled_functions()[0](hidden[0].shape, list(hidden), places, is_first)

    def _features_at(self, hidden: Sequence[mx.array], places: mx.array, is_first: mx.array) -> mx.array:
        found = self.features(mx.take_along_axis(mx.concatenate([*hidden], axis=-1), places, axis=1))
        return mx.where(is_first, self._beginning, found[:, 0])

    def step_and_outputs(self, *arrays: mx.array) -> tuple[mx.array, mx.array]:
        """`step` and its `outputs`, for one place of each row, all (B, d). Compiled."""
        return self._compiled_functions()[1]((len(arrays[0]), arrays[2].shape), *arrays)

    def _step_and_outputs(self, *arrays: mx.array) -> tuple[mx.array, mx.array]:
        state = self.step(*arrays)
        return state, self.outputs(state)

    def _compiled_functions(self) -> tuple[Compiled, Compiled]:
        """`_features_at` and `_step_and_outputs`."""
        return self._compiled or self.finalize()

    def finalize(self) -> tuple[Compiled, Compiled]:
        """Compile for the current weights. Call this after changing weights of a head that has drafted."""
        self._beginning = self.beginning
        mx.eval(self._beginning)
        finalize_layers(self)
        self._compiled = Compiled(self._features_at), Compiled(self._step_and_outputs)
        return self._compiled

    @property
    def nbytes(self) -> int:
        parameters: Any = tree_flatten(self.parameters())
        return sum(array.nbytes for _, array in parameters)


def normed(x: mx.array) -> mx.array:
    return mx.fast.rms_norm(x, None, EPSILON)


def beginning(last: LastLayer, config: DraftHeadConfig, seed: int) -> Mapping[str, mx.array]:
    """The parameters of an untrained head: the target's last layer, with features mostly of the deepest states."""
    width, count = config.d_model, len(config.layers)
    noise = mx.random.normal((width, (count + 2) * width), key=mx.random.key(seed)) * (0.02 / width**0.5)
    shares = [*[0.0] * (count - 2), 0.3, 0.7][-count:]
    strength = mx.linalg.norm(last.wo.astype(mx.float32), axis=0)
    for matrix in last.wi:
        strength = strength * mx.linalg.norm(matrix.astype(mx.float32), axis=1)
    strongest = mx.sort(mx.argsort(-strength)[: config.d_ff])
    parameters = {
        "start": mx.random.normal((width,), key=mx.random.key(seed + 1)),
        "combine.weight": noise[:, : count * width] + diagonals(width, shares),
        "join_token.weight": noise[:, -2 * width : -width] + 0.3 * mx.eye(width),
        "join_state.weight": noise[:, -width:] + 0.7 * mx.eye(width),
        "q.weight": last.q * last.cross_norm,
        "o.weight": last.o,
        "wi.weight": mx.concatenate([matrix[strongest] for matrix in last.wi]) * last.ff_norm,
        "wo.weight": last.wo[:, strongest],
        "norm": last.norm,
    }
    return {name: array.astype(mx.float32) for name, array in parameters.items()}


def diagonals(width: int, shares: Sequence[float]) -> mx.array:
    """Multiples of the identity side by side."""
    return mx.concatenate([share * mx.eye(width) for share in shares], axis=1)


def usual_layers(decoder_layers: int) -> tuple[int, ...]:
    """The layers that a head reads, from 0: a third of the way, two thirds, and the last."""
    return tuple(sorted({max(0, decoder_layers * part // 3 - 1) for part in (1, 2, 3)}))

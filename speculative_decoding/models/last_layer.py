"""What a draft head is made of at first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx


class LastLayer(NamedTuple):
    """Of the last decoder layer what reads the memory, its feed-forward, and the norm behind it; weights (outputs,
    inputs), not quantised. wi: a unit's rows; two matrices, gate and linear, where it is gated. logit_scale: what
    normed states are multiplied by before the head.
    """

    cross_norm: mx.array
    q: mx.array
    o: mx.array
    ff_norm: mx.array
    wi: Sequence[mx.array]
    wo: mx.array
    norm: mx.array
    activation: str
    logit_scale: float

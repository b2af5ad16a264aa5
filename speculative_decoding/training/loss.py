"""How far a draft's distributions are from the target's: cross-entropy, Kullback-Leibler, total variation.

Zhou et al. 2023, "DistillSpec" (2310.08461). Total variation is 1 - the chance that a drafted token is accepted.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..models.attention import capped
from .batches import Labels

WRITTEN_SHARE = 0.1  # of the loss: the cross-entropy of the token that the target wrote
LEAST = 1e-9

Floats = NDArray[np.float32]


def loss_of(
    states: mx.array,
    matrix: mx.array,
    labels: Labels,
    *,
    total_variation: bool,
    soft_cap: float | None = None,
    is_trained: bool = True,
) -> mx.array:
    """`distance` of logits `states` (N, d) @ `matrix` (d, C), softly capped; differentiable. is_trained: with respect
    to matrix too.

    MLX has no fast exponential on x86-64, and most of a step would be spent in it, so on a CPU numpy computes value and
    gradient, and what is returned has that gradient.
    """
    if mx.default_device() != mx.Device(mx.cpu):
        return distance(capped(states @ matrix, soft_cap), labels, total_variation=total_variation)
    mx.eval(states, matrix)
    own, outer = np.array(states), np.array(matrix)
    value, slopes = numpy_distance(own, outer, labels, total_variation, soft_cap)
    surrogate = (states * mx.array(slopes @ outer.T)).sum()
    if is_trained:
        surrogate = surrogate + (matrix * mx.array(own.T @ slopes)).sum()
    return surrogate + mx.stop_gradient(value - surrogate)


def distance(logits: mx.array, labels: Labels, *, total_variation: bool) -> mx.array:
    """logits: (N, C) over `labels.candidates`. The weighted mean of .1 CE + .9 KL(target, draft), or of .9 TV."""
    places = mx.concatenate([labels.ids, labels.written[:, None]], axis=-1)
    found = mx.take_along_axis(logits, places, axis=-1) - mx.logsumexp(logits, axis=-1, keepdims=True)
    logprobs, written = found[:, :-1], found[:, -1]
    if total_variation:
        apart = 1.0 - mx.minimum(labels.probs, mx.exp(logprobs)).sum(axis=-1)
    else:
        apart = (labels.probs * (mx.log(mx.maximum(labels.probs, LEAST)) - logprobs)).sum(axis=-1)
    return (labels.weights * ((1 - WRITTEN_SHARE) * apart - WRITTEN_SHARE * written)).sum()


def numpy_distance(
    states: Floats, matrix: Floats, labels: Labels, total_variation: bool, soft_cap: float | None = None
) -> tuple[float, Floats]:
    """`distance`, and its gradient with respect to the products of states and matrix."""
    ids, probs, written, weights = (np.array(each) for each in labels[1:])
    places = np.concatenate([ids, written[:, None]], axis=-1)
    logits, bend = states @ matrix, None
    if soft_cap is not None:
        bent = np.tanh(logits / soft_cap)
        logits, bend = soft_cap * bent, 1 - bent * bent
    logits -= logits.max(axis=-1, keepdims=True)
    found = np.take_along_axis(logits, places, axis=-1)
    np.exp(logits, out=logits)
    sums = logits.sum(axis=-1, keepdims=True)
    found -= np.log(sums)
    logprobs = found[:, :-1]
    share = 1 - WRITTEN_SHARE
    if total_variation:
        chances = np.exp(logprobs)
        apart = 1.0 - np.minimum(probs, chances).sum(axis=-1)
        here = -share * np.where(chances < probs, chances, 0.0)
    else:
        apart = (probs * (np.log(np.maximum(probs, LEAST)) - logprobs)).sum(axis=-1)
        here = -share * probs
    # The gradient with respect to logit j is `all` q_j, and what is added where labels are.
    slopes = np.concatenate([here, np.full((len(here), 1), -WRITTEN_SHARE, np.float32)], axis=-1) * weights[:, None]
    logits *= -slopes.sum(axis=-1, keepdims=True) / sums
    np.add.at(logits, (np.arange(len(logits))[:, None], places), slopes)
    if bend is not None:
        logits *= bend
    value = float((weights * (share * apart - WRITTEN_SHARE * found[:, -1])).sum())
    return value, logits

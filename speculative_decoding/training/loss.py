"""The distance between the draft's and the target's distributions.

Cross-entropy (CE), Kullback-Leibler divergence (KL) and total variation (TV): Zhou et al. 2023, "DistillSpec"
(2310.08461). TV equals 1 - P(a draft token is accepted).
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..models.attention import capped
from ..models.device import on_gpu
from .batches import Labels

CE_SHARE = 0.1  # of the loss: the cross-entropy of the target's output
MIN_PROB = 1e-9

Floats = NDArray[np.float32]


def training_loss(
    states: mx.array,
    output_matrix: mx.array,
    labels: Labels,
    *,
    total_variation: bool,
    soft_cap: float | None = None,
    trains_output_matrix: bool = True,
) -> mx.array:
    """Return `distance` for the logits `states @ output_matrix`; differentiable.

    On a CPU, numpy computes the value and its gradient: MLX's exponential is slow there and would double the time of a
    training step (0.90 s instead of 1.83 s for the bundled target on one x86-64 core).

    Args:
        states: (N, d).
        output_matrix: (d, C), for `labels.candidates`.
        labels: The target's distributions.
        total_variation: Use TV instead of KL.
        soft_cap: Of the logits (Gemma).
        trains_output_matrix: Whether the gradient with respect to `output_matrix` is needed.
    """
    if on_gpu():
        return distance(capped(states @ output_matrix, soft_cap), labels, total_variation=total_variation)

    mx.eval(states, output_matrix)
    numpy_states = np.array(states)
    numpy_matrix = np.array(output_matrix)
    value, gradient = numpy_distance(
        numpy_states @ numpy_matrix, labels, total_variation=total_variation, soft_cap=soft_cap
    )
    # A linear function with this gradient, shifted to this value.
    linear = (states * mx.array(gradient @ numpy_matrix.T)).sum()
    if trains_output_matrix:
        linear = linear + (output_matrix * mx.array(numpy_states.T @ gradient)).sum()
    return linear + mx.stop_gradient(value - linear)


def distance(logits: mx.array, labels: Labels, *, total_variation: bool) -> mx.array:
    """Return the weighted mean of 0.1 CE + 0.9 KL(target, draft), or of 0.1 CE + 0.9 TV.

    Args:
        logits: (N, C) over `labels.candidates`.
        labels: The target's distributions.
        total_variation: Use TV instead of KL.
    """
    indices = mx.concatenate([labels.ids, labels.written[:, None]], axis=-1)
    logprobs = mx.take_along_axis(logits, indices, axis=-1) - mx.logsumexp(logits, axis=-1, keepdims=True)
    logprobs, written_logprobs = logprobs[:, :-1], logprobs[:, -1]
    if total_variation:
        divergence = 1.0 - mx.minimum(labels.probs, mx.exp(logprobs)).sum(axis=-1)
    else:
        divergence = (labels.probs * (mx.log(mx.maximum(labels.probs, MIN_PROB)) - logprobs)).sum(axis=-1)
    return (labels.weights * ((1 - CE_SHARE) * divergence - CE_SHARE * written_logprobs)).sum()


def numpy_distance(
    logits: Floats, labels: Labels, *, total_variation: bool, soft_cap: float | None = None
) -> tuple[float, Floats]:
    """Return `distance` and its gradient with respect to `logits`, which are not capped yet. Overwrites `logits`."""
    ids, probs, written, weights = (np.array(each) for each in labels[1:])
    indices = np.concatenate([ids, written[:, None]], axis=-1)
    cap_slope = None
    if soft_cap is not None:
        bounded = np.tanh(logits / soft_cap)
        logits = soft_cap * bounded
        cap_slope = 1 - bounded * bounded

    logits -= logits.max(axis=-1, keepdims=True)
    label_logits = np.take_along_axis(logits, indices, axis=-1)
    exponentials = np.exp(logits, out=logits)
    sums = exponentials.sum(axis=-1, keepdims=True)
    label_logprobs = label_logits - np.log(sums)
    logprobs, written_logprobs = label_logprobs[:, :-1], label_logprobs[:, -1]

    # The gradient with respect to the log-probabilities of the labels.
    if total_variation:
        draft_probs = np.exp(logprobs)
        divergence = 1.0 - np.minimum(probs, draft_probs).sum(axis=-1)
        slopes = (CE_SHARE - 1) * np.where(draft_probs < probs, draft_probs, 0.0)
    else:
        divergence = (probs * (np.log(np.maximum(probs, MIN_PROB)) - logprobs)).sum(axis=-1)
        slopes = (CE_SHARE - 1) * probs
    written_slopes = np.full((len(slopes), 1), -CE_SHARE, np.float32)
    slopes = np.concatenate([slopes, written_slopes], axis=-1) * weights[:, None]

    # Through the log-softmax: every logit j gets -sum(slopes) * softmax_j, and each label gets its own slope.
    gradient = np.multiply(exponentials, -slopes.sum(axis=-1, keepdims=True) / sums, out=exponentials)
    np.add.at(gradient, (np.arange(len(gradient))[:, None], indices), slopes)
    if cap_slope is not None:
        gradient *= cap_slope
    value = float((weights * ((1 - CE_SHARE) * divergence - CE_SHARE * written_logprobs)).sum())
    return value, gradient

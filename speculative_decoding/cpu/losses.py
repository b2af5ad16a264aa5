"""The training loss, computed in NumPy, whose exponentials and sums take half as long as MLX's on a CPU.

On one x86-64 core, a training step for the bundled target takes 0.90 s with this module and 1.83 s with MLX's loss.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

CE_SHARE = 0.1  # as in training/loss.py

Array = NDArray[np.float32]
Labels = tuple[mx.array, ...]  # `training.batches.Labels`: candidates, ids, probs, written, weights


def training_loss(
    states: mx.array,
    output_matrix: mx.array,
    labels: Labels,
    *,
    total_variation: bool,
    soft_cap: float | None = None,
    trains_output_matrix: bool = True,
) -> mx.array:
    """The replacement for `training_loss` in training/loss.py."""
    mx.eval(states, output_matrix)
    numpy_states = np.array(states)
    numpy_matrix = np.array(output_matrix)
    bounded = None
    logits = numpy_states @ numpy_matrix
    if soft_cap is not None:
        bounded = np.tanh(logits / soft_cap)
        logits = soft_cap * bounded
    value, gradient = distance(logits, labels, total_variation=total_variation)
    if bounded is not None:
        gradient *= 1 - bounded * bounded
    # A linear function with this gradient, shifted so that its value equals the loss.
    linear = (states * mx.array(gradient @ numpy_matrix.T)).sum()
    if trains_output_matrix:
        linear = linear + (output_matrix * mx.array(numpy_states.T @ gradient)).sum()
    return linear + mx.stop_gradient(value - linear)


def distance(logits: Array, labels: Labels, *, total_variation: bool) -> tuple[float, Array]:
    """Return the loss for these logits, and its gradient with respect to `logits`, which is overwritten."""
    ids, probs, written, weights = (np.array(each) for each in labels[1:])
    indices = np.concatenate([ids, written[:, None]], axis=-1)
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
        divergence = (probs * (np.log(np.maximum(probs, np.finfo(np.float32).tiny)) - logprobs)).sum(axis=-1)
        slopes = (CE_SHARE - 1) * probs
    written_slopes = np.full((len(slopes), 1), -CE_SHARE, np.float32)
    slopes = np.concatenate([slopes, written_slopes], axis=-1) * weights[:, None]

    # Backpropagate through the log-softmax. Every logit j gets -sum(slopes) * softmax_j, and each label also gets its
    # own slope.
    gradient = np.multiply(exponentials, -slopes.sum(axis=-1, keepdims=True) / sums, out=exponentials)
    np.add.at(gradient, (np.arange(len(gradient))[:, None], indices), slopes)
    value = float((weights * ((1 - CE_SHARE) * divergence - CE_SHARE * written_logprobs)).sum())
    return value, gradient


def exp_sums(x: mx.array) -> mx.array:
    """The replacement for `exp_sums` in training/teacher.py."""
    exponentials = np.array(x)
    return mx.array(np.exp(exponentials, out=exponentials).sum(axis=-1, keepdims=True))

"""The training loss: the distance between the draft's and the target's distributions.

Cross-entropy (CE), Kullback-Leibler divergence (KL) and total variation (TV): Zhou et al. 2023, "DistillSpec"
(2310.08461). TV equals 1 - P(a draft token is accepted).
"""

from __future__ import annotations

import mlx.core as mx

from ..models.attention import capped
from ..models.backend import replaced_on_cpu
from .batches import Labels

CE_SHARE = 0.1  # share of the loss that is the cross-entropy of the target's output
MIN_PROB = 1e-9


@replaced_on_cpu
def training_loss(
    states: mx.array,
    output_matrix: mx.array,
    labels: Labels,
    *,
    total_variation: bool,
    soft_cap: float | None = None,
    trains_output_matrix: bool = True,
) -> mx.array:
    """Return the weighted mean of 0.1 CE + 0.9 KL(target, draft) or 0.1 CE + 0.9 TV. It is differentiable.

    The logits of the draft's distributions are `states @ output_matrix`.

    Args:
        states: (N, d).
        output_matrix: (d, C), for `labels.candidates`.
        labels: The target's distributions.
        total_variation: Whether to use TV instead of KL.
        soft_cap: The logits' soft cap (Gemma).
        trains_output_matrix: Whether to compute the gradient of `output_matrix`. Only the CPU version uses this;
            MLX skips unused gradients.
    """
    logits = states @ output_matrix
    if soft_cap is not None:
        logits = capped(logits, soft_cap)
    indices = mx.concatenate([labels.ids, labels.written[:, None]], axis=-1)
    logprobs = mx.take_along_axis(logits, indices, axis=-1) - mx.logsumexp(logits, axis=-1, keepdims=True)
    logprobs, written_logprobs = logprobs[:, :-1], logprobs[:, -1]
    if total_variation:
        divergence = 1.0 - mx.minimum(labels.probs, mx.exp(logprobs)).sum(axis=-1)
    else:
        divergence = (labels.probs * (mx.log(mx.maximum(labels.probs, MIN_PROB)) - logprobs)).sum(axis=-1)
    return (labels.weights * ((1 - CE_SHARE) * divergence - CE_SHARE * written_logprobs)).sum()

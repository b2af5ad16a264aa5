"""Measures the no-speech probability of a window and the log-probability of its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from ..sampling import token_logprobs


@dataclass(eq=False)
class Evidence:
    """An `Observer` that measures one request.

    Args:
        position: The number of decoder tokens after which the probability of `token` is measured. They are all forced.
        token: The token that means that there is no speech.

    Attributes:
        probability: The probability of `token`, (1,); lazy.
        sum_logprob: The log-probability of the output, with constraints and at temperature 1; 0 with beams.
    """

    position: int
    token: int
    probability: mx.array | None = field(init=False, default=None)
    sum_logprob: float = field(init=False, default=0.0)

    def prefilled(self, logits: mx.array) -> None:
        self.probability = mx.exp(token_logprobs(logits.astype(mx.float32), mx.array(self.token)))

    def committed(self, logits: np.ndarray, tokens: Sequence[int]) -> None:
        """Add the log-probabilities of the committed tokens, on the host, where the list of these tokens is.

        logits: (N, V) float32.
        """
        largest = logits.max(axis=-1)
        logsumexp = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=-1, dtype=np.float64))
        self.sum_logprob += float((logits[np.arange(len(tokens)), tokens] - logsumexp).sum())

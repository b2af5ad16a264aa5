"""Random numbers that are a function of (seed, position, use): no state is carried from round to round or from request
to request, and a row does not depend on the rows beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import IntEnum
from functools import partial

import mlx.core as mx

Draw = tuple[int, int, "Use"]  # a request's seed, a position of its output, a use


class Use(IntEnum):
    """What a random number is for; each use has its own stream."""

    DRAFT = 0
    ACCEPT = 1
    NEXT = 2
    COUPLED = 3


def sample_seed(seed: int, number: int) -> int:
    """Of several samples with one seed; the first, number 0, has it itself. How many there are plays no part."""
    return int.from_bytes(hashlib.sha256(f"sample {number} {seed}".encode()).digest()[:4], "big") if number else seed


def random_keys(places: Sequence[Draw]) -> mx.array:
    """(N, 2): a random key for each place. Rounds begin at different positions, so no two rounds share a key."""
    return mx.array([[seed, position * len(Use) + use] for seed, position, use in places], mx.uint32)


def uniform(each: mx.array) -> mx.array:
    """(N, 2) keys -> (N,) in [0, 1)."""
    return mx.vmap(lambda key: mx.random.uniform(key=key))(each)


def gumbel(each: mx.array, size: int) -> mx.array:
    """(N, 2) keys -> (N, size) Gumbel noise: x + noise has its arg-max at i with probability softmax(x)_i."""
    return mx.vmap(lambda key: mx.random.gumbel((size,), key=key))(each)


def categorical(logprobs: mx.array, each: mx.array) -> mx.array:
    """(N, V) log-probabilities, not necessarily normalised, and (N, 2) keys -> (N,) ids."""
    return mx.argmax(logprobs + gumbel(each, logprobs.shape[-1]), axis=-1)


def split(each: mx.array, count: int) -> mx.array:
    """(N, 2) keys -> (N, count, 2): independent keys out of each. Which they are depends on `count`."""
    return mx.vmap(partial(mx.random.split, num=count))(each)

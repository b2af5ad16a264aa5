"""Random numbers as a function of (seed, position, purpose).

No state is carried between rounds or requests, and a row's numbers do not depend on the other rows of its batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import IntEnum
from functools import partial

import mlx.core as mx

Draw = tuple[int, int, "Purpose"]  # a request's seed, a position in its output, and the number's purpose


class Purpose(IntEnum):
    """The purpose of a random number. Each purpose has a separate random stream."""

    DRAFT = 0
    ACCEPT = 1
    NEXT = 2
    COUPLED = 3


def sample_seed(seed: int, number: int) -> int:
    """Return the seed of sample `number` of a prompt: `seed` itself for sample 0, and a hash for all others."""
    return int.from_bytes(hashlib.sha256(f"sample {number} {seed}".encode()).digest()[:4], "big") if number else seed


def row_seed(seed: int, number: int) -> int:
    """Return the default seed of row `number` of a file. A resumed run computes the same seeds.

    Without the hash, runs with neighbouring seeds would use the same seeds for neighbouring rows.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big")


def random_keys(draws: Sequence[Draw]) -> mx.array:
    """(N, 2): one random key per draw. Rounds start at different positions, so they never share a key."""
    return mx.array([[seed, position * len(Purpose) + purpose] for seed, position, purpose in draws], mx.uint32)


def uniform(keys: mx.array) -> mx.array:
    """(N, 2) keys -> (N,) in [0, 1)."""
    return mx.vmap(lambda key: mx.random.uniform(key=key))(keys)


def gumbel(keys: mx.array, size: int) -> mx.array:
    """(N, 2) keys -> (N, size) Gumbel noise: the arg-max of x + noise is i with probability softmax(x)_i."""
    return mx.vmap(lambda key: mx.random.gumbel((size,), key=key))(keys)


def categorical(logprobs: mx.array, keys: mx.array) -> mx.array:
    """(N, V) log-probabilities, which need not be normalized, and (N, 2) keys -> (N,) ids."""
    return mx.argmax(logprobs + gumbel(keys, logprobs.shape[-1]), axis=-1)


def split(keys: mx.array, count: int) -> mx.array:
    """(N, 2) keys -> (N, count, 2): `count` independent keys derived from each key. Other counts yield other keys."""
    return mx.vmap(partial(mx.random.split, num=count))(keys)

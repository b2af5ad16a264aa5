"""Compares the order in which kernels sum terms, using inputs whose terms cancel.

A position has the same bits in two passes if every matrix product and every attention sums its terms in the same order.
A different order changes the last bits of a float32 sum. Rounding to 16 bits hides the change in all but a few of a
thousand sums, so comparing the logits of some positions proves little. Here, the terms of each sum cancel in pairs, so
that only rounding errors are left. In nearly every output, and in any precision, these errors depend on the order.

MLX chooses kernels by shape and dtype, not by value. Therefore, each distinct shape in the target is compared, with
random numbers in place of the weights (docs/decisions/exactness-class.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import zip_longest

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from ..models.attention import multiplies_transposes
from ..models.base import EncoderDecoder, is_read_by_pass
from ..models.cache import MIN_CAPACITY, capacity_for, source_capacity_for
from ..models.layers import project

Shape = tuple[int, int]  # rows and width of a pass
Bits = list[bytes]
# A kernel, or a sequence of kernels, with fixed inputs. It maps the input index for each position, (B, L), to outputs
# (B * L, N).
Kernel = Callable[[mx.array], mx.array]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]

# The numbers of keys for which attention is compared. MLX's fused attention makes two passes over 1,024 or more keys on
# some devices, and over `GROUPED` or more keys on all devices if query heads share key heads.
CAPACITIES = (64, 1024, 2048)
GROUPED = 4096
FEW_KEYS = 64
SETTINGS = ("bits", "group_size", "mode")  # of quantized layers
INPUTS = 4  # distinct inputs; a pass has each of them at several positions
WEIGHT_ROWS = 64  # distinct rows of a weight matrix; larger matrices repeat them
SIZE = 32.0  # of the numbers, so that rounding errors are normal numbers in float16
SCORE_SIZE = 512.0  # of queries and keys, so that rounding errors in scores change the weights of the values


class KernelBits:
    """The bits that the kernels of a target's decoder pass produce."""

    def __init__(self, model: EncoderDecoder) -> None:
        self._model = model
        self._dtype = model.embed(mx.array([[0]])).dtype

    def of_passes(self, shapes: Sequence[Shape]) -> dict[Shape, Bits]:
        """Return the output bits of each product and each attention in passes of these shapes.

        This requires memory for a copy of the largest weight.
        """
        found: dict[Shape, Bits] = {shape: [] for shape in shapes}
        for kernels in (self._products(), self._attentions()):
            for kernel in kernels:
                for shape in shapes:
                    found[shape].append(bits_of(kernel, *shape))
        return found

    def capacity_borders(self, width: int) -> list[int]:
        """Return each KV-cache capacity at which passes over the same keys have different bits than at half of it."""
        largest = max(own for own, _ in self._capacities())
        return self._borders(width, largest, lambda capacity: (capacity, FEW_KEYS))

    def source_borders(self, width: int) -> list[int]:
        """Return each source capacity at which passes over the same source have different bits than at half of it."""
        if self._model.audio is not None:  # all windows have the same length
            return []
        largest = max(source for _, source in self._capacities())
        return self._borders(width, largest, lambda capacity: (FEW_KEYS, capacity))

    def _borders(self, width: int, largest: int, capacities: Callable[[int], Shape]) -> list[int]:
        found = []
        capacity = MIN_CAPACITY
        while 2 * capacity <= largest:
            keys = capacities(capacity)
            smaller, larger = (self._attention(keys, capacities(each)) for each in (capacity, 2 * capacity))
            capacity *= 2
            if bits_of(smaller, 1, width) != bits_of(larger, 1, width):
                found.append(capacity)
        return found

    def _products(self) -> Iterator[Kernel]:
        """Yield the products with each distinct linear layer of a pass."""
        model = self._model
        has_head = "head" in model
        seen = set()
        for path, layer in model.named_modules():
            is_head = path in ("head", "embedding")
            is_linear = is_head or isinstance(layer, nn.Linear | nn.QuantizedLinear)
            if not is_linear or not is_read_by_pass(path, has_head=has_head):
                continue
            shapes = [(name, array.shape, array.dtype) for name, array in sorted(layer.parameters().items())]
            key = is_head, *(getattr(layer, name, None) for name in SETTINGS), *shapes
            if key not in seen:
                seen.add(key)
                yield from products(layer, self._dtype, is_head=is_head)

    def _attentions(self) -> Iterator[Kernel]:
        for capacities in self._capacities():
            yield self._attention(capacities, capacities)

    def _capacities(self) -> list[Shape]:
        """Return pairs of a cache capacity and a source capacity, up to the lengths that the model supports."""
        limit = self._model.max_positions
        config = self._model.config.decoder
        compared = CAPACITIES if config.num_heads == config.num_kv_heads else (*CAPACITIES, GROUPED)
        largest = compared[-1] if limit is None else min(capacity_for(max(limit, FEW_KEYS)), compared[-1])
        own = sorted({largest, *(each for each in compared if each < largest)})
        sources = own
        if self._model.audio is not None:
            sources = [source_capacity_for(self._model.audio.window_frames // 2)]
        return [(first or own[-1], second or sources[-1]) for first, second in zip_longest(own, sources)]

    def _attention(self, keys: Shape, capacities: Shape) -> Kernel:
        """Return a decoder layer's attention over its own output and over the source.

        Args:
            keys: The number of keys for the output so far, and for the source. Both are even.
            capacities: The capacities of the two buffers; keys beyond `keys` are masked.
        """
        config = self._model.config.decoder.shard(self._model.ranks)
        random = np.random.default_rng(1)
        features = paired(random, config.head_dim)
        queries = spread(random.normal(0, SCORE_SIZE, (INPUTS, config.num_heads, config.head_dim // 2)), features, -1)
        buffers = []
        for count, capacity in zip(keys, capacities, strict=True):
            places = paired(random, count)
            shape = config.num_kv_heads, count // 2, config.head_dim
            own_keys = spread(random.normal(0, SCORE_SIZE, (*shape[:2], shape[2] // 2)), features, 1)
            pair = [
                spread(each.swapaxes(1, 2), places, sign).swapaxes(1, 2)
                for each, sign in ((own_keys, 1), (random.normal(0, SIZE, shape), -1))
            ]
            padded = np.pad(pair, [(0, 0), (0, 0), (0, capacity - count), (0, 0)], constant_values=1)
            mask = np.where(np.arange(capacity) < count, 0, -np.inf)[None, None, None]
            buffers.append((*mx.array(padded[:, None]).astype(self._dtype), mx.array(mask).astype(self._dtype)))
        given = mx.array(queries).astype(self._dtype)

        def attend(chosen: mx.array) -> mx.array:
            rows, width = chosen.shape
            (own_keys, own_values, own_mask), (keys, values, mask) = (
                [mx.repeat(each, rows, axis=0) for each in buffer] for buffer in buffers
            )
            heads = config.num_heads if config.num_heads == config.num_kv_heads else 1
            own_mask = mx.contiguous(mx.broadcast_to(own_mask, (rows, heads, width, own_mask.shape[-1])))
            outputs = self._model.attention_outputs(
                given[chosen].swapaxes(1, 2), (own_keys, own_values, own_mask), (keys, values, mask)
            )
            return mx.concatenate(outputs, axis=1)

        return attend


def bits_of(kernel: Kernel, rows: int, width: int) -> bytes:
    """Return the bits of the output for each input in passes of this shape.

    If the bits depend on the position in the pass, the result differs from that of every other shape.
    """
    positions = rows * width
    found: dict[int, bytes] = {}
    for start in range(0, INPUTS, positions):  # narrow passes must run several times to cover all inputs
        chosen = [(start + position) % INPUTS for position in range(positions)]
        outputs = kernel(mx.array(chosen).reshape(rows, width))
        outputs = mx.view(outputs, mx.uint32 if outputs.dtype == mx.float32 else mx.uint16)
        if not mx.array_equal(outputs, outputs[mx.array([chosen.index(each) for each in chosen])]).item():
            return b"depends on the position in a pass of %d x %d" % (rows, width)
        for each in {*chosen}:
            found[each] = sha256(np.array(outputs[chosen.index(each)]).tobytes()).digest()
    return b"".join(found[each] for each in range(INPUTS))


def products(layer: nn.Module, dtype: mx.Dtype, *, is_head: bool) -> Iterator[Kernel]:
    """Yield the products of a layer with this one's shape, called as in a pass."""
    random = np.random.default_rng(0)
    is_quantized = "scales" in layer
    group = layer.group_size if is_quantized else 1
    columns = layer.scales.shape[1] * group if is_quantized else layer.weight.shape[1]
    pairs = paired(random, columns, group)
    inputs = mx.array(spread(random.normal(0, SIZE, (INPUTS, len(pairs[0]))), pairs, -1, columns)).astype(dtype)
    weight = mx.array(spread(random.normal(size=(WEIGHT_ROWS, len(pairs[0]))), pairs, 1, columns)).astype(dtype)
    parts = {"weight": weight}
    if is_quantized:
        quantized = mx.quantize(weight, group, layer.bits, mode=layer.mode)
        parts = dict(zip(("weight", "scales", "biases"), quantized, strict=False))
    repeated = mx.arange(len(layer.weight)) % WEIGHT_ROWS
    twin = copy.copy(layer)
    twin.update({name: part[repeated] for name, part in parts.items()})
    if "bias" in layer:
        twin.bias = mx.zeros_like(layer.bias)
    if is_head:
        run = getattr(twin, "as_linear", twin)
        yield lambda chosen: run(inputs[chosen]).flatten(0, 1)
        return

    def as_rows(chosen: mx.array) -> mx.array:
        return inputs[chosen.flatten()]

    def as_joined_heads(chosen: mx.array) -> mx.array:
        """Return a transpose for several positions of one row, as `attend` does."""
        x = as_rows(chosen)
        return mx.contiguous(x.T).T if len(chosen) == 1 < chosen.size else x

    residual = mx.zeros((1, len(layer.weight)), dtype)
    for arrange in (as_rows, as_joined_heads) if multiplies_transposes(dtype) else (as_rows,):

        def product(chosen: mx.array, arrange: Kernel = arrange) -> mx.array:
            return twin(arrange(chosen))

        def sum_with_residual(chosen: mx.array, arrange: Kernel = arrange) -> mx.array:
            return project(twin, arrange(chosen), mx.repeat(residual, chosen.size, axis=0))

        yield product
        if not is_quantized and "bias" not in layer:  # otherwise, a residual is added separately
            yield sum_with_residual


def paired(random: np.random.Generator, size: int, group: int = 1) -> Pairs:
    """Pair up the indices below `size`. Returns the first and the second index of each pair.

    Args:
        size: A multiple of `group`.
        group: All partners of a group's indices are in one other group, or in the same group if it is left over. Two
            groups of pairwise equal weights therefore have the same quantization scale.
    """
    groups = random.permutation(random.permuted(np.arange(size).reshape(-1, group), axis=1))
    half = len(groups) // 2
    rest = groups[2 * half :].flatten()
    middle = len(rest) // 2
    first = np.append(groups[:half].flatten(), rest[:middle])
    return first, np.append(groups[half : 2 * half].flatten(), rest[middle : 2 * middle])


def spread(numbers: NDArray[np.floating], pairs: Pairs, sign: int, size: int | None = None) -> NDArray[np.float32]:
    """Put each number of the last axis at the first index of a pair, and `sign` times the number at the second."""
    first, second = pairs
    found = np.zeros((*numbers.shape[:-1], size or 2 * len(first)), np.float32)
    found[..., first] = numbers
    found[..., second] = sign * numbers
    return found

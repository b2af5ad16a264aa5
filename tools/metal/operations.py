"""The operations of a decoder pass whose kernels depend on the pass width, at the shapes of published models.

In a pass over M tokens (of one or more sequences), each operation has M rows. The shapes of weights are those in
speculative_decoding/models: queries, keys and values are fused, matmuls add residuals, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 16, 17, 20, 24, 32)  # pass widths M
DTYPES = ("float32", "float16", "bfloat16")
GROUP_SIZE = 64  # number of weights that share a scale in a quantized matrix
CHIPS = {  # the name that Metal reports for the GPU's architecture
    "M1": "applegpu_g13g",
    "M1-Max": "applegpu_g13s",
    "M3": "applegpu_g15g",
    "M3-Max": "applegpu_g15s",
    "M4-Max": "applegpu_g16s",
    "M5": "applegpu_g17g",
}


class Array(NamedTuple):
    """An argument of an operation. dtype: None means the operation's dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None


@dataclass(frozen=True)
class Operation:
    """An operation with one shape.

    kind and sizes:
        matmul (K, N)                 x (M, K) @ weight (N, K).T
        residual (K, N)               the same plus residual (M, N)
        bias (K, N)                   the same plus bias (N,)
        quantized (K, N)              x (M, K) and a weight of `bits` bits, in groups of 64
        attention (H, G, D, T)        fused; M queries of H heads of width D, T keys of G heads, mask (1, 1, M, T)
        unfused_attention (H, G, D, T)  matmul, softmax, matmul; mask (1, H, M, T) if G = H, else none
        rms_norm (D,), layer_norm (D,)
        rope (B, H, D), rope_scalar (B, H, D)   offsets (B,), or one offset ()
    """

    kind: str
    sizes: tuple[int, ...]
    bits: int = 0

    def __str__(self) -> str:
        bits = f" {self.bits} bits" if self.bits else ""
        return f"{self.kind} {'x'.join(map(str, self.sizes))}{bits}"

    def inputs(self, width: int) -> list[Array]:
        """Return the arguments for a pass of this width, in the order in which traces number them."""
        if self.kind in ("matmul", "residual", "bias"):
            k, n = self.sizes
            added = {"matmul": [], "residual": [Array("residual", (width, n))], "bias": [Array("bias", (n,))]}
            return [Array("x", (width, k)), Array("weight", (n, k)), *added[self.kind]]
        if self.kind == "quantized":
            k, n = self.sizes
            groups = (n, k // GROUP_SIZE)
            codes = Array("codes", (n, k * self.bits // 32), "uint32")
            return [Array("x", (width, k)), codes, Array("scales", groups), Array("offsets", groups)]
        if self.kind in ("attention", "unfused_attention"):
            heads, key_heads, d, keys = self.sizes
            pairs = [Array(name, (1, key_heads, keys, d)) for name in ("keys", "values")]
            arrays = [Array("queries", (width, heads, d)), *pairs]
            if self.kind == "attention":
                return [*arrays, Array("mask", (1, 1, width, keys))]
            return [*arrays, Array("mask", (1, heads, width, keys))] if heads == key_heads else arrays
        if self.kind in ("rms_norm", "layer_norm"):
            names = ("weight", "bias")[: 1 + (self.kind == "layer_norm")]
            return [Array("x", (width, *self.sizes)), *(Array(name, self.sizes) for name in names)]
        batch, heads, d = self.sizes
        offsets = Array("offsets", (batch,) if self.kind == "rope" else (), "int32")
        return [Array("x", (batch, heads, width, d)), offsets]

    def output(self, width: int) -> tuple[int, ...]:
        """Return the result's shape: rows come first for matmuls and norms; otherwise, it is (B, H, M, D)."""
        if "attention" in self.kind:
            return (1, self.sizes[0], width, self.sizes[2])
        if self.kind in ("rms_norm", "layer_norm"):
            return (width, *self.sizes)
        if "rope" in self.kind:
            return (*self.sizes[:2], width, self.sizes[2])
        return (width, self.sizes[1])


def transformer(
    width: int, heads: int, head_width: int, d_ff: int, vocabulary: int, *, has_bias: bool = False
) -> list[Operation]:
    """The operations of a T5, BART or Whisper decoder."""
    inner = heads * head_width
    inward = [(width, 3 * inner), (width, inner), (width, d_ff)]
    outward = [(inner, width), (d_ff, width)]
    output = (width, vocabulary)
    if has_bias:  # a separate kernel adds the residual
        dense = [Operation("bias", shape) for shape in unique([*inward, *outward])]
    else:
        dense = [
            *(Operation("matmul", shape) for shape in inward),
            *(Operation("residual", shape) for shape in outward),
        ]
    kind, keys = ("attention", (128, 1024, 2048)) if head_width in (64, 96, 128) else ("unfused_attention", (128, 1024))
    return [
        *dense,
        Operation("matmul", output),
        *(Operation("quantized", shape, bits) for bits in (4, 8) for shape in unique([*inward, *outward, output])),
        *(Operation(kind, (heads, heads, head_width, each)) for each in keys),
        Operation("layer_norm" if has_bias else "rms_norm", (width,)),
    ]


def gemma(width: int, heads: int, key_heads: int, head_width: int, d_ff: int, vocabulary: int) -> list[Operation]:
    """The operations of a T5Gemma decoder. Other kernels compute the soft cap of its attention."""
    inner, key_inner = heads * head_width, 2 * key_heads * head_width
    shapes = unique([(width, inner), (width, key_inner), (inner, width), (width, 2 * d_ff), (d_ff, width)])
    shapes.append((width, vocabulary))
    return [
        *(Operation("matmul", shape) for shape in shapes),
        *(Operation("quantized", shape, bits) for bits in (4, 8) for shape in shapes),
        *(Operation("unfused_attention", (heads, key_heads, head_width, keys)) for keys in (128, 1024)),
        Operation("rms_norm", (width,)),
        *(Operation(kind, (3, count, head_width)) for kind in ("rope", "rope_scalar") for count in (heads, key_heads)),
    ]


def unique(shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return list(dict.fromkeys(shapes))


MODELS = {
    "t5-web-docs": transformer(256, 8, 32, 1024, 8192),
    "t5-small": transformer(512, 8, 64, 2048, 32128),
    "t5-base": transformer(768, 12, 64, 3072, 32128),
    "nllb-600m": transformer(1024, 16, 64, 4096, 256206, has_bias=True),
    "t5gemma-2b": gemma(2304, 8, 4, 256, 9216, 256000),
    "whisper-base": [
        *transformer(512, 8, 64, 2048, 51865, has_bias=True),
        Operation("attention", (8, 8, 64, 1500)),  # over one window of audio
    ],
    # Not a model: fused attention with numbers of keys around which some chips switch to two passes.
    "attention": [Operation("attention", (2, 2, 64, keys)) for keys in (1000, 1024, 1100, 1500, 2048, 4096)],
}


def operations_of(model: str, bits: int) -> list[Operation]:
    """Return a model's operations if its weights have `bits` bits (0: dense). The output matrix is always dense."""
    matmuls = [each for each in MODELS[model] if len(each.sizes) == 2]
    vocabulary = max((each.sizes[1] for each in matmuls), default=0)  # the largest number of outputs of a matmul

    def belongs(operation: Operation) -> bool:
        if operation not in matmuls:
            return True
        is_output = operation.sizes[1] == vocabulary
        return operation.bits == (0 if is_output else bits)

    return [each for each in MODELS[model] if belongs(each)]

"""Counts the kernels that one decoder pass dispatches on Metal, without a Mac.

`mx.export_function` lists the primitives of a pass; `mx.compile`'s fusion is repeated on that list, and tools/metal.py
gives the dispatches of each primitive. The models have the sizes of published ones in 16 bits, but weights without
memory. Nothing is evaluated, so GPU primitives are recorded as placeholders.

Example:
    python -m tools.dispatches --model t5-base nllb-600m
"""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from speculative_decoding.decoding.acceptance import Greedy
from speculative_decoding.drafters.base import Draft, RequestView
from speculative_decoding.drafters.draft_sampler import OutputHead
from speculative_decoding.models import EncoderDecoder, build
from speculative_decoding.models.draft_head import DraftHead, DraftHeadConfig, default_layers
from speculative_decoding.models.linear import DerivedWeight, Linear, finalize_layers
from speculative_decoding.sampling import GenerationOptions

from .metal import (
    ELEMENTWISE,
    FUSED_ABOVE_8_QUERIES,
    FUSED_UP_TO_8_QUERIES,
    Array,
    Node,
    dispatches,
    output_strides,
    row_major,
)

MAX_FUSED_DEPTH = 11  # compile.cpp, max_compile_depth and max_compile_arrays
MAX_FUSED_INPUTS = 24

SOURCE_TOKENS = 32
DRAFT_VOCABULARY = 4096

T5_IDS = {"model_type": "t5", "vocab_size": 32128, "d_kv": 64}
BART_IDS = {"model_type": "bart", "vocab_size": 50264}


def t5(width: int, d_ff: int, heads: int, layers: int, **fields: Any) -> dict[str, Any]:
    return {**T5_IDS, "d_model": width, "d_ff": d_ff, "num_heads": heads, "num_layers": layers, **fields}


def bart(width: int, d_ff: int, heads: int, layers: int, **fields: Any) -> dict[str, Any]:
    sizes = {
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in (("layers", layers), ("ffn_dim", d_ff), ("attention_heads", heads))
    }
    return {**BART_IDS, "d_model": width, **sizes, **fields}


def whisper(width: int, heads: int, layers: int, decoder_layers: int, **fields: Any) -> dict[str, Any]:
    sizes = bart(width, 4 * width, heads, layers, model_type="whisper", num_mel_bins=80, vocab_size=51_865)
    return {**sizes, "decoder_layers": decoder_layers, **fields}


def gemma_stack(width: int, d_ff: int, heads: int, kv_heads: int, layers: int, **fields: Any) -> dict[str, Any]:
    return {
        "vocab_size": 256_000,
        "hidden_size": width,
        "intermediate_size": d_ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        **fields,
    }


GEMMA_2B = gemma_stack(2304, 9216, 8, 4, 26)
GEMMA_3_270M = gemma_stack(640, 2048, 4, 1, 18, vocab_size=262_144)
GEMMA_3_4B = gemma_stack(2560, 10_240, 8, 4, 34, vocab_size=262_144)
MODELS: dict[str, dict[str, Any]] = {
    "t5-small": t5(512, 2048, 8, 6),
    "t5-base": t5(768, 3072, 12, 12),
    "t5-large": t5(1024, 4096, 16, 24),
    "t5-3b": t5(1024, 16_384, 32, 24, d_kv=128),
    "t5-11b": t5(1024, 65_536, 128, 24, d_kv=128),
    "flan-t5-xl": t5(2048, 5120, 32, 24, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "flan-t5-small": t5(512, 1024, 6, 8, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "bart-base": bart(768, 3072, 12, 6),
    "bart-large": bart(1024, 4096, 16, 12),
    "nllb-600m": bart(1024, 4096, 16, 12, model_type="m2m_100", vocab_size=256_206),
    "nllb-3.3b": bart(2048, 8192, 16, 24, model_type="m2m_100", vocab_size=256_206),
    "whisper-base": whisper(512, 8, 6, 6),
    "whisper-large-v3": whisper(1280, 20, 32, 32, num_mel_bins=128, vocab_size=51_866),
    "distil-large-v3": whisper(1280, 20, 32, 2, num_mel_bins=128, vocab_size=51_866),
    "t5gemma-2b": {"model_type": "t5gemma", "encoder": GEMMA_2B, "decoder": GEMMA_2B},
    "t5gemma2-270m": {"model_type": "t5gemma2", "encoder": {"text_config": GEMMA_3_270M}, "decoder": GEMMA_3_270M},
    "t5gemma2-4b": {"model_type": "t5gemma2", "encoder": {"text_config": GEMMA_3_4B}, "decoder": GEMMA_3_4B},
}


def count(name: str, width: int = 1, rows: int = 1, generation: int = 4, bits: int = 16) -> Counter[str]:
    """Return the dispatches by kind of one greedy pass: from token ids to accepted tokens.

    Args:
        name: A key of `MODELS`.
        width: Positions per row, 1 more than draft tokens.
        rows: Rows of the batch.
        generation: 1 to 4, for M1 to M4.
        bits: 16, or the bits of quantized weights.
    """
    return dispatches_of(pass_nodes(name, width, rows, bits), generation)


@lru_cache(maxsize=8)
def pass_nodes(name: str, width: int, rows: int, bits: int) -> list[Node]:
    """Return the primitives of a greedy pass."""
    with gpu_branches():
        model = weightless(name, bits)
        nodes = nodes_of(*decoder_pass(model, width, rows), fuses=True)

        draft = Draft(tokens_of(rows, width - 1))
        requests = [RequestView(GenerationOptions(), [], [0], slot) for slot in range(rows)]

        def verdict(states: mx.array) -> list[mx.array]:
            logits = model.logits(states)
            result = Greedy().decide(draft, logits, requests)
            return [result.accepted, result.next_token, logits.max(axis=-1)]

        return nodes + nodes_of(verdict, [mx.zeros((rows, width, model.config.d_model), mx.bfloat16)])


def decoder_pass(model: EncoderDecoder, width: int, rows: int) -> tuple[Callable[..., Any], list[Any]]:
    """Return the compiled part of a pass, and its arguments."""
    cache = new_cache(model, rows)
    arguments = [
        tokens_of(rows, width),
        mx.array(cache.offsets),
        model.position_table(cache.capacity),
        cache.write_index(width),
        cache.source_mask,
        [layer.arrays for layer in cache.layers],
    ]
    return partial(model._pass, kept_layers=()), arguments


def count_head_step(name: str, rows: int = 1, generation: int = 4, bits: int = 16) -> Counter[str]:
    """Return the dispatches by kind of one step of a draft head, from a token id to the next one."""
    with gpu_branches():
        model = weightless(name, bits)
        head = head_for(model)
        set_weights(head)
        cache = new_cache(model, rows)
        cross = cache.last_cross_attention

        vector = mx.zeros((rows, model.config.d_model), mx.bfloat16)
        step = [vector, vector, cross.cross_keys, cross.cross_values, cache.source_mask]
        nodes = nodes_of(model.embed, [tokens_of(rows, 1)])
        nodes += nodes_of(head.step, step, fuses=True)
        ids = mx.zeros((DRAFT_VOCABULARY,), mx.uint32)
        matrix = mx.zeros((DRAFT_VOCABULARY, model.config.d_model), mx.bfloat16)

        def choose(outputs: mx.array, matrix: mx.array) -> mx.array:
            trimmed: Any = SimpleNamespace(config=model.config, logits=lambda x: x @ matrix.T)
            output_head = OutputHead(trimmed, model.config.vocab_size)
            output_head.ids = ids
            return output_head.likeliest(output_head(outputs)).astype(mx.uint32)

        return dispatches_of(nodes + nodes_of(choose, [vector, matrix]), generation)


def head_for(model: EncoderDecoder) -> DraftHead:
    """Return a draft head with lazy weights."""
    decoder = model.config.decoder
    config = DraftHeadConfig(
        d_model=model.config.d_model,
        heads=decoder.num_heads,
        head_width=decoder.head_dim,
        d_ff=2 * model.config.d_model,
        layers=default_layers(model.config.decoder_layers),
        activation=decoder.activation,
        is_gated=decoder.is_gated,
    )
    return DraftHead(config)


@lru_cache(maxsize=2)
def weightless(name: str, bits: int) -> EncoderDecoder:
    """Return a model whose weights are one repeated zero. The output matrix and the embedding are not quantized."""
    model = build({"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, **MODELS[name]})
    if bits < 16:
        nn.quantize(
            model,
            bits=bits,
            class_predicate=lambda path, layer: hasattr(layer, "to_quantized") and path not in ("head", "embedding"),
        )
    set_weights(model)
    return model


def set_weights(module: nn.Module) -> None:
    """Replace weights by views of a zero, and evaluate derived ones. A `Linear` keeps its transposition in the graph,
    so that the layout of its weight is known."""

    def zeros(weight: mx.array) -> mx.array:
        dtype = weight.dtype if weight.dtype == mx.uint32 else mx.bfloat16
        return mx.broadcast_to(mx.zeros((), dtype), weight.shape)

    parameters: Any = tree_flatten(module.parameters())
    module.update(tree_unflatten([(path, zeros(weight)) for path, weight in parameters]))
    mx.eval(module.parameters())
    for layer in module.modules():
        if isinstance(layer, DerivedWeight) and not isinstance(layer, Linear):
            finalize_layers(layer)


def new_cache(model: EncoderDecoder, rows: int) -> Any:
    length = SOURCE_TOKENS if model.audio is None else model.audio.window_frames // 2
    encoder_output = mx.broadcast_to(mx.zeros((), mx.bfloat16), (rows, length, model.encoder_width))
    return model.make_cache(encoder_output)


def tokens_of(rows: int, width: int) -> mx.array:
    return mx.zeros((rows, width), mx.uint32)


# Primitives that MLX creates only on a GPU or cannot export. `mx.depends` records one, and the number of axes of an
# empty input names it.
PLACEHOLDERS = ("RMSNorm", "LayerNorm", "RoPE", "ScaledDotProductAttention", "Contiguous")
MARKERS = {name: mx.array(np.zeros((0,) * (i + 1), np.float32)) for i, name in enumerate(PLACEHOLDERS)}


def placeholder(name: str, *inputs: mx.array | None) -> mx.array:
    """Return an array of the shape of the first input."""
    first, *others = [each for each in inputs if each is not None]
    return mx.depends([first], [*others, MARKERS[name]])[0]


def attention_on_gpu(queries: mx.array, keys: mx.array, values: mx.array, *, scale: float, mask: mx.array) -> mx.array:
    """fast.cpp, scaled_dot_product_attention: the fused primitive or the fallback."""
    mask = mx.broadcast_to(mask, (*queries.shape[:3], keys.shape[2]))
    length, width = queries.shape[2:]
    shared = queries.shape[1] // keys.shape[1]
    is_fused = (
        width in FUSED_ABOVE_8_QUERIES if length > 8 else width in FUSED_UP_TO_8_QUERIES and length * shared <= 32
    )
    if is_fused:
        return placeholder("ScaledDotProductAttention", queries, keys, values, mask)
    queries = queries * scale
    if shared > 1:
        queries = mx.unflatten(queries, 1, (-1, shared))
        keys, values = keys[:, :, None], values[:, :, None]
        mask = mx.unflatten(mask, 1, (-1, shared))
    weights = mx.softmax(queries @ keys.swapaxes(-1, -2) + mask, axis=-1, precise=True)
    return mx.flatten(weights @ values, 1, 2) if shared > 1 else weights @ values


@contextlib.contextmanager
def gpu_branches() -> Iterator[None]:
    """Take the branches for a GPU, and record its fused kernels."""
    with contextlib.ExitStack() as stack:
        for name, function in {
            "rms_norm": lambda x, weight, eps: placeholder("RMSNorm", x, weight),
            "layer_norm": lambda x, weight, bias, eps: placeholder("LayerNorm", x, weight, bias),
            "rope": lambda x, dims, *, offset, **others: placeholder("RoPE", x, offset),
            "scaled_dot_product_attention": attention_on_gpu,
        }.items():
            stack.enter_context(mock.patch.object(mx.fast, name, function))
        stack.enter_context(mock.patch.object(mx, "contiguous", lambda x: placeholder("Contiguous", x)))
        stack.enter_context(mock.patch.object(mx, "default_device", lambda: mx.Device(mx.gpu)))
        yield


def dispatches_of(nodes: Sequence[Node], generation: int) -> Counter[str]:
    total = Counter[str]()
    for node in nodes:
        total += dispatches(node, generation)
    return total


def nodes_of(function: Callable[..., Any], arguments: Sequence[Any], *, fuses: bool = False) -> list[Node]:
    """Return the primitives of a function of arrays, with the layouts of their inputs. fuses: as `mx.compile` does."""
    nodes, outputs = trace(function, arguments)
    strides: dict[str, tuple[int, ...]] = {}
    laid_out = []
    for node in fused(nodes, outputs) if fuses else nodes:
        node = node._replace(
            inputs=[each._replace(strides=strides.get(each.name, each.strides)) for each in node.inputs]
        )
        strides |= dict.fromkeys((each.name for each in node.outputs), output_strides(node))
        laid_out.append(node)
    return laid_out


def trace(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[list[Node], set[str]]:
    """Return the primitives of a function in order of evaluation, with row-major strides, and its outputs' names."""
    flat: Any = tree_flatten(list(arguments))
    paths = [path for path, array in flat if array is not None]

    def flat_function(*arrays: mx.array) -> tuple[mx.array, ...]:
        given = dict(zip(paths, arrays, strict=True))
        tree = tree_unflatten([(path, given.get(path)) for path, _ in flat])
        outputs: Any = tree_flatten(function(*tree))
        return tuple(array for _, array in outputs)

    records: list[dict[str, Any]] = []
    mx.export_function(records.append, flat_function, *[array for _, array in flat if array is not None])
    nodes = []
    outputs = set[str]()
    for record in records:
        if record["type"] == "outputs":
            outputs = {name for name, *_ in record["outputs"]}
        elif record["type"] == "primitive":
            inputs, results = (
                [Array(name, tuple(shape), dtype.size, row_major(shape)) for name, shape, dtype in record[key]]
                for key in ("inputs", "outputs")
            )
            name = record["name"]
            if name == "Depends":
                name = PLACEHOLDERS[len(inputs.pop().shape) - 1]
            nodes.append(Node(name, record["arguments"], inputs, results))
    return nodes, outputs


def fused(nodes: Sequence[Node], outputs: Set[str]) -> list[Node]:
    """compile.cpp, compile_fuse: join element-wise primitives that only feed each other."""
    graph = Graph(nodes, outputs)
    done: set[str] = set()  # outputs of primitives within a fused one
    kept: list[Node] = []
    for node in reversed(nodes):
        result = node.outputs[0]
        if result.name in done:
            continue
        members = graph.members(result) if node.name in ELEMENTWISE else {}
        if len(members) <= 1:
            kept.append(node)
            continue
        arrays = {each.name: each for member in members.values() for each in member.inputs}
        sources = [each for name, each in arrays.items() if name not in members]
        results = [member.outputs[0] for name, member in members.items() if name in outputs or name == result.name]
        done |= {name for name, member in members.items() if member.name != "Broadcast"}
        kept.append(Node("Compiled", [], sources, results))
    return kept[::-1]


class Graph:
    """Primitives, and the names of the arrays that the whole graph returns."""

    def __init__(self, nodes: Sequence[Node], outputs: Set[str]) -> None:
        self.outputs = outputs
        self.producers = {each.name: node for node in nodes for each in node.outputs}
        self.consumers: dict[str, list[Node]] = {}
        for node in nodes:
            for each in node.inputs:
                self.consumers.setdefault(each.name, []).append(node)

    def members(self, result: Array) -> dict[str, Node]:
        """Return the primitives that one kernel can compute together with `result`, by their outputs."""
        members: dict[str, Node] = {}
        inputs: set[str] = set()

        def visit(array: Array, depth: int, *, is_shared: bool) -> None:
            """is_shared: whether a primitive outside of the kernel reads the array through a broadcast."""
            if array.name in members:
                return
            producer = self.producers.get(array.name)
            is_output = array.name in self.outputs
            if (
                depth >= MAX_FUSED_DEPTH
                or producer is None
                or producer.name not in ELEMENTWISE | {"Broadcast"}
                or (is_output and array.shape != result.shape)
            ):
                inputs.add(array.name)
                return
            is_shared |= depth > 0 and any(each.outputs[0].name not in members for each in self.consumers[array.name])
            if is_shared and producer.name != "Broadcast":  # a broadcast is repeated
                inputs.add(array.name)
                return
            if is_output:
                inputs.add(array.name)
            else:
                inputs.discard(array.name)
            if len(inputs) < MAX_FUSED_INPUTS:
                members[array.name] = producer
                for each in producer.inputs:
                    visit(each, depth + 1, is_shared=is_shared)

        visit(result, 0, is_shared=False)
        return members


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=[*MODELS], default=[*MODELS], help="models (default: all)")
    parser.add_argument("--bits", type=int, choices=(4, 8, 16), default=16, help="bits of the weights (default: 16)")
    parser.add_argument("--kinds", action="store_true", help="print the dispatches by kind")
    args = parser.parse_args()
    print(f"{'model':12} {'rows':>4} {'plain':>6} {'5 drafted, M3+':>15} {'5 drafted, M1/M2':>17} {'head step':>10}")
    for name in args.model:
        for rows in (1, 8):
            counts = [
                count(name, 1, rows, bits=args.bits),
                count(name, 6, rows, generation=3, bits=args.bits),
                count(name, 6, rows, generation=1, bits=args.bits),
                count_head_step(name, rows, bits=args.bits),
            ]
            plain, new, old, step = (each.total() for each in counts)
            print(f"{name:12} {rows:4} {plain:6} {new:15} {old:17} {step:10}")
            if args.kinds:
                for kind in sorted(set().union(*counts)):
                    print(f"    {kind:24}" + " ".join(f"{each[kind]:5}" for each in counts))


if __name__ == "__main__":
    main()

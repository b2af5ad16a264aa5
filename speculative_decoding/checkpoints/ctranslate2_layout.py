"""Translates CTranslate2's variables and attributes to Hugging Face's tensor names and the sizes in its config.json.

| layout | recognized by | `model_type` |
|---|---|---|
| Whisper | the spec | `whisper` |
| T5 | a relative attention bias | `t5` |
| other Transformers: OpenNMT, Marian, NLLB, BART, Pegasus | | `opennmt`, whose config.json specifies the variants |

An attribute or variable that no layout uses is an error, unless it is zero. Follows the classes in
python/ctranslate2/specs, and their use in src/layers/transformer.cc, at CTranslate2 4.8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import CheckpointError
from .base import Checkpoint
from .ctranslate2 import SCALES, CTranslate2Checkpoint, Header, Rows, Tensor, read_header

ACTIVATIONS = {0: "relu", 1: "gelu_new", 2: "swish", 3: "gelu", 4: "quick_gelu"}
STACKS = ("encoder", "decoder")
ENCODINGS = "position_encodings/encodings"
RELATIVE_BIAS = "layer_0/self_attention/relative_attention_bias"
MAX_DISTANCE = "layer_0/self_attention/relative_attention_max_distance"
POSITIONS_OFFSET = 2  # unused rows at the start of Hugging Face's tables of learned positions
# Attributes of versions before 6 that ctranslate2_config.py reads
TOKEN_ATTRIBUTES = (
    *("unk_token", "bos_token", "eos_token", "with_source_bos", "with_source_eos"),
    *("with_target_bos", "user_decoder_start_tokens"),
)
UNUSED = (
    *("embeddings_merge", "alignment_layer", "alignment_heads", "multi_query_attention"),
    *("alibi_use_positive_positions", "scale_alibi"),  # have no effect without `alibi`
    *("layernorm_embedding", "with_relative_position"),  # flags of revision 4, which repeat what the variables show
)
# Parts of names that show another architecture, whose other variables may be missing; checked first
UNSUPPORTED = {
    *("rotary_dim", "alibi", "sliding_window", "relative_position_keys", "relative_asymmetric_position_keys"),
    *("embeddings_1", "project_in", "project_out", "final_logit_softcapping", "q_norm", "k_norm", "v_norm"),
    *("input_layer_norm", "shared_layer_norm", "weight_zero", "merged_encoder_attention"),
}


Value = TypeVar("Value")


class Layout(NamedTuple):
    """A model's tensors, and the fields of its config.json except those of tokens.

    padding: The number of rows of zeros at the end of the embeddings: 1 if outputs start from a zero embedding, else 0.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    padding: int


class Variables:
    """A model's attributes and variables by name. A layout must read all of them."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.tensors: dict[str, Tensor] = {}
        self._read = {*TOKEN_ATTRIBUTES}

    def error(self, problem: str) -> CheckpointError:
        return self.header.file.error(problem)

    def has(self, name: str) -> bool:
        return name in self.header.variables

    def value(self, name: str, default: float) -> float:
        """Return a number. Up to revision 4, attributes of both stacks have no prefix."""
        for each in (name, name.split("/", 1)[-1]) if self.header.revision < 5 else (name,):
            if each in self.header.attributes:
                self._read |= {name, each}
                found = self.header.attributes[each]
                if isinstance(found, str) or not math.isfinite(found):
                    raise self.error(f"attribute {each!r} is not a number (got {found!r})")
                return found
        return default

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.value(name, default))

    def whole(self, name: str, default: int, minimum: int = 1) -> int:
        found = self.value(name, default)
        if found != int(found) or found < minimum:
            raise self.error(f"attribute {name!r} is not a whole number from {minimum} (got {found})")
        return int(found)

    def require(self, name: str, expected: float, default: float) -> None:
        """Raise `CheckpointError` for an attribute with another value than `expected`. `default`: see `value`."""
        if not math.isclose(found := self.value(name, default), expected, rel_tol=1e-3, abs_tol=1e-6):
            raise self.error(f"attribute {name!r} of {found:g} is not supported for this architecture")

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        if name not in self.header.variables:
            raise self.error(f"variable {name!r} is missing")
        shape = self.header.variables[name].info.shape
        if len(shape) != rank or 0 in shape:
            raise self.error(f"variable {name!r} has the unexpected shape {shape}")
        return shape

    def add(self, ours: str, name: str, rank: int, before: int = 0, after: int = 0) -> tuple[int, ...]:
        """Add a tensor with all rows of a variable, after `before` and before `after` rows of zeros."""
        rows, *rest = shape = self.shape(name, rank)
        self.join(ours, [zeros(before), Rows(name, 0, rows), zeros(after)], (before + rows + after, *rest))
        return shape

    def add_linear(
        self, scope: str, parts: Mapping[str, Sequence[range]], inputs: int, *, has_bias: bool = True
    ) -> None:
        """Add the tensors that a linear layer computes together.

        Args:
            scope: The name of the layer.
            parts: The rows of each tensor, by its Hugging Face name without ".weight" and ".bias".
            inputs: The layer's inputs.
            has_bias: Whether the tensors have biases. They are zero if the layer has none.
        """
        weight, bias = f"{scope}/weight", f"{scope}/bias"
        rows = max(part.stop for ranges in parts.values() for part in ranges)
        has_stored_bias = has_bias and self.has(bias)
        for name, shape in ((weight, (rows, inputs)), *([(bias, (rows,))] if has_stored_bias else [])):
            if self.shape(name, len(shape)) != shape:
                raise self.error(f"variable {name!r} has the shape {self.shape(name, len(shape))}, expected {shape}")
        for ours, ranges in parts.items():
            size = sum(map(len, ranges))
            self.join(f"{ours}.weight", [Rows(weight, part.start, part.stop) for part in ranges], (size, inputs))
            if has_stored_bias:
                self.join(f"{ours}.bias", [Rows(bias, part.start, part.stop) for part in ranges], (size,))
            elif has_bias:
                self.join(f"{ours}.bias", [zeros(size)], (size,))

    @property
    def has_rms_norms(self) -> bool:
        """Whether norms have no biases."""
        return not self.has("decoder/layer_0/self_attention/layer_norm/beta")

    def add_norm(self, ours: str, scope: str) -> None:
        self.add(f"{ours}.weight", f"{scope}/gamma", 1)
        if not self.has_rms_norms:
            self.add(f"{ours}.bias", f"{scope}/beta", 1)

    def join(self, ours: str, parts: Iterable[Rows], shape: tuple[int, ...]) -> None:
        parts = tuple(rows for rows in parts if rows.stop > rows.start)
        names = {rows.variable for rows in parts if rows.variable is not None}
        self._read |= names | {name + SCALES for name in names}
        self.tensors[ours] = Tensor(parts, shape)

    def skip(self, name: str) -> None:
        """Ignore a variable or an attribute."""
        self._read.add(name)

    def count_layers(self, stack: str) -> int:
        layers = 0
        while self.has(f"{stack}/layer_{layers}/self_attention/linear_0/weight"):
            layers += 1
        return layers

    def in_both(self, name: str, read: Callable[[str], Value]) -> Value:
        """Return a property of both stacks. Raises `CheckpointError` if they differ in it, naming `name`."""
        first, second = (read(stack) for stack in STACKS)
        if first != second:
            raise self.error(f"{name!r} is {first} in the encoder and {second} in the decoder, which is not supported")
        return first

    def check_supported(self) -> None:
        """Raise `CheckpointError` for a variable or an attribute of another architecture."""
        self._refuse(name for name in self._active_names() if not UNSUPPORTED.isdisjoint(name.split("/")))

    def check_all_read(self) -> None:
        """Raise `CheckpointError` for a variable or an attribute that no layout uses."""
        self._refuse(name for name in self._active_names() if name not in self._read)

    def _active_names(self) -> list[str]:
        """Return the names of attributes that have an effect, and of variables."""
        attributes = [
            name
            for name, value in self.header.attributes.items()
            if (value not in (0, "") or name.endswith("/rotary_dim"))  # a rotary_dim of 0 means all dimensions
            and name.rsplit("/", 1)[-1] not in UNUSED
        ]
        return sorted(attributes) + sorted(self.header.variables)

    def _refuse(self, names: Iterable[str]) -> None:
        if (first := next(iter(names), None)) is not None:
            raise self.error(f"{first!r} is not supported: no architecture of this program has it")


def zeros(rows: int) -> Rows:
    return Rows(None, 0, rows)


def layout_of(header: Header) -> Layout:
    """Return the layout of a model. Raises `CheckpointError` if its spec, revision or contents are not supported."""
    if header.spec not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise header.file.error(f"unsupported kind of model {header.spec[:80]!r} (expected {known})")
    revisions, layout = LAYOUTS[header.spec]
    if header.revision not in revisions:
        raise header.file.error(
            f"unsupported revision {header.revision} of {header.spec} (expected {revisions[0]} to {revisions[-1]}); "
            "convert the original model again"
        )
    model = Variables(header)
    model.check_supported()
    config = layout(model)
    model.check_all_read()
    return Layout(config, model.tensors, padding_rows(model))


def transformer_layout(model: Variables) -> dict[str, Any]:
    if model.has("encoder/layer_0/self_attention/relative_attention_bias"):
        return t5_layout(model)
    return opennmt_layout(model)


def opennmt_layout(model: Variables) -> dict[str, Any]:
    """Read a Transformer with position vectors and layer norms. Returns the fields of `BartConfig`."""
    padding = padding_rows(model)
    width = add_tables(model, "model.", padding)
    norm_first = model.in_both("pre_norm", lambda stack: model.flag(f"{stack}/pre_norm", True))
    embedding_norm = model.in_both("layernorm_embedding", lambda stack: model.has(f"{stack}/layernorm_embedding/gamma"))
    is_gated = model.in_both("ffn_glu", lambda stack: model.has(f"{stack}/layer_0/ffn/linear_0_noact/weight"))
    sizes: dict[str, Any] = {}
    for stack in STACKS:
        sizes |= add_bart_stack(model, stack, width, is_gated=is_gated)
        if norm_first:
            model.add_norm(f"model.{stack}.layer_norm", f"{stack}/layer_norm")
        if embedding_norm:
            model.add_norm(f"model.{stack}.layernorm_embedding", f"{stack}/layernorm_embedding")
    if model.has(bias := "decoder/projection/bias"):
        (size,) = model.shape(bias, 1)
        model.join("final_logits_bias", [Rows(bias, 0, size), zeros(padding)], (1, size + padding))
    positions: dict[str, Any] = {}
    if has_tables := model.in_both("position_encodings", lambda stack: model.has(f"{stack}/{ENCODINGS}")):
        length = min(model.shape(f"{stack}/{ENCODINGS}", 2)[0] for stack in STACKS)
        positions["max_position_embeddings"] = length
        for stack in STACKS:
            parts = [zeros(POSITIONS_OFFSET), Rows(f"{stack}/{ENCODINGS}", 0, length)]
            model.join(f"model.{stack}.embed_positions.weight", parts, (POSITIONS_OFFSET + length, width))
    return {
        "model_type": "opennmt",
        "d_model": width,
        **sizes,
        **positions,
        "activation_function": activation(model, STACKS),
        "is_gated_act": is_gated,
        "normalize_before": norm_first,
        "normalize_embedding": embedding_norm,
        "rms_norm": model.has_rms_norms,
        "static_position_embeddings": not has_tables,
        "scale_embedding": model.in_both("scale_embeddings", lambda stack: is_scaled(model, stack, width)),
        "alignment_layer": model.whole("decoder/alignment_layer", -1, minimum=-512),
        "alignment_heads": model.whole("decoder/alignment_heads", 1, minimum=0),
    }


def t5_layout(model: Variables) -> dict[str, Any]:
    """Read a T5. Returns the fields of `T5Config`."""
    width = add_tables(model, "")
    if not model.has_rms_norms:
        raise model.error("a relative attention bias with layer norms is not supported (expected RMS norms, as in T5)")
    is_gated = model.in_both("ffn_glu", lambda stack: model.has(f"{stack}/layer_0/ffn/linear_0_noact/weight"))
    heads = model.in_both("num_heads", lambda stack: model.whole(f"{stack}/num_heads", 8))
    buckets = model.in_both("relative_attention_bias", lambda stack: model.shape(f"{stack}/{RELATIVE_BIAS}", 2)[0])
    inner = model.shape("encoder/layer_0/self_attention/linear_0/weight", 2)[0] // 3
    units = model.shape("encoder/layer_0/ffn/linear_0/weight", 2)[0]
    for stack in STACKS:
        model.require(f"{stack}/pre_norm", 1, default=1)
        if is_scaled(model, stack, width):
            raise model.error(f"'{stack}/scale_embeddings' is not supported for T5")
        add_t5_stack(model, stack, Sizes(width, inner, units), is_gated=is_gated)
    has_scale = "decoder/scale_outputs" in model.header.attributes
    if has_scale:
        model.require("decoder/scale_outputs", width**-0.5, default=0)
    return {
        "model_type": "t5",
        "d_model": width,
        "d_kv": inner // heads,
        "d_ff": units,
        "num_layers": model.count_layers("encoder"),
        "num_decoder_layers": model.count_layers("decoder"),
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": model.in_both(
            "relative_attention_max_distance", lambda stack: model.whole(f"{stack}/{MAX_DISTANCE}", 128)
        ),
        "feed_forward_proj": f"{'gated-' if is_gated else ''}{activation(model, STACKS)}",
        "scale_decoder_outputs": has_scale,
    }


def whisper_layout(model: Variables) -> dict[str, Any]:
    """Read a Whisper. Returns the fields of `WhisperConfig`."""
    vocab_size, width = model.add("model.decoder.embed_tokens.weight", "decoder/embeddings/weight", 2)
    model.add("proj_out.weight", "decoder/projection/weight", 2)
    bins = 0
    for index in (2, 1):
        name = f"encoder/conv{index}"
        _, bins, _ = model.add(f"model.encoder.conv{index}.weight", f"{name}/weight", 3)
        model.add(f"model.encoder.conv{index}.bias", f"{name}/bias", 1)
    sizes: dict[str, Any] = {}
    lengths = []
    if model.has_rms_norms:
        raise model.error("RMS norms are not supported for Whisper")
    for stack in STACKS:
        sizes |= add_bart_stack(model, stack, width, is_gated=False)
        model.add_norm(f"model.{stack}.layer_norm", f"{stack}/layer_norm")
        lengths.append(model.add(f"model.{stack}.embed_positions.weight", f"{stack}/{ENCODINGS}", 2)[0])
    model.require("decoder/pre_norm", 1, default=1)
    if is_scaled(model, "decoder", width):
        raise model.error("'decoder/scale_embeddings' is not supported for Whisper")
    if activation(model, ("decoder",)) not in ("gelu", "gelu_new"):  # revision 2 has one number for both
        raise model.error("'decoder/activation' is not supported for Whisper (expected GELU)")
    return {
        "model_type": "whisper",
        "vocab_size": vocab_size,
        "d_model": width,
        **sizes,
        "num_mel_bins": bins,
        "max_source_positions": lengths[0],
        "max_target_positions": lengths[1],
    }


LAYOUTS: Mapping[str, tuple[Sequence[int], Callable[[Variables], dict[str, Any]]]] = {
    "TransformerSpec": ((4, 5, 6, 7), transformer_layout),
    "WhisperSpec": ((2, 3), whisper_layout),
}


def activation(model: Variables, stacks: Sequence[str]) -> str:
    """Return the name of the feed-forward layers' activation."""
    numbers = [model.whole(f"{stack}/activation", 0, minimum=0) for stack in stacks]
    if len({*numbers}) > 1 or numbers[0] not in ACTIVATIONS:
        raise model.error(f"'activation' has unsupported values ({', '.join(map(str, numbers))})")
    return ACTIVATIONS[numbers[0]]


def is_scaled(model: Variables, stack: str, width: int) -> bool:
    """Return whether embeddings are multiplied by the root of their width. Raises `CheckpointError` for other scales.

    The attribute is a flag or the scale.
    """
    scale = model.value(f"{stack}/scale_embeddings", model.value(f"{stack}/embeddings/multiply_by_sqrt_depth", 1))
    if isinstance(scale, int):
        return scale != 0
    if math.isclose(scale, width**0.5, rel_tol=1e-3):
        return True
    model.require(f"{stack}/scale_embeddings", 1.0, default=1)
    return False


def padding_rows(model: Variables) -> int:
    return int(model.flag("decoder/start_from_zero_embedding", False))


def add_tables(model: Variables, prefix: str, padding: int = 0) -> int:
    """Add the embeddings and the output matrix, and return their width.

    Args:
        prefix: The prefix of Hugging Face's names.
        padding: Rows of zeros to append.
    """
    source = "encoder/embeddings_0" if model.has("encoder/embeddings_0/weight") else "encoder/embeddings"
    size, width = model.shape("decoder/embeddings/weight", 2)
    for table in (f"{source}/weight", "decoder/projection/weight"):
        if model.shape(table, 2) != (size, width):
            raise model.error(f"variable {table!r} has the shape {model.shape(table, 2)}, expected {(size, width)}")
    model.add(f"{prefix}encoder.embed_tokens.weight", f"{source}/weight", 2, after=padding)
    model.add(f"{prefix}decoder.embed_tokens.weight", "decoder/embeddings/weight", 2, after=padding)
    model.add("lm_head.weight", "decoder/projection/weight", 2, after=padding)
    return width


def add_bart_stack(model: Variables, stack: str, width: int, *, is_gated: bool) -> dict[str, Any]:
    """Add the layers of a stack with the names of BART, and return their sizes with the names of BART's config."""
    heads = model.whole(f"{stack}/num_heads", 8)
    units = model.shape(f"{stack}/layer_0/ffn/linear_0/weight", 2)[0]
    blocks = {"self_attn": ("self_attention", "self_attn_layer_norm")}
    if stack == "decoder":
        blocks["encoder_attn"] = "attention", "encoder_attn_layer_norm"
    if width % heads:
        raise model.error(f"'{stack}/num_heads' of {heads} does not divide the width {width}")
    for index in range(layers := model.count_layers(stack)):
        ours, theirs = f"model.{stack}.layers.{index}", f"{stack}/layer_{index}"
        for block, (scope, norm) in blocks.items():
            add_attention(model, f"{ours}.{block}", f"{theirs}/{scope}", heads, width, is_cross=scope == "attention")
            model.add_norm(f"{ours}.{norm}", f"{theirs}/{scope}/layer_norm")
        model.add_linear(f"{theirs}/ffn/linear_0", {f"{ours}.fc1": [range(units)]}, width)
        if is_gated:
            model.add_linear(f"{theirs}/ffn/linear_0_noact", {f"{ours}.fc1_linear": [range(units)]}, width)
        model.add_linear(f"{theirs}/ffn/linear_1", {f"{ours}.fc2": [range(width)]}, units)
        model.add_norm(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")
    return {f"{stack}_layers": layers, f"{stack}_attention_heads": heads, f"{stack}_ffn_dim": units}


def add_attention(model: Variables, ours: str, scope: str, heads: int, width: int, *, is_cross: bool) -> None:
    """Add the projections of an attention block with the names of BART.

    If several query heads share a key head, the rows of the key head are repeated for each of them.
    """
    key_heads = 1 if model.flag(f"{scope}/multi_query", False) else model.whole(f"{scope}/num_heads_kv", heads)
    size = width // heads
    model.require(f"{scope}/head_dim", size, default=size)
    model.require(f"{scope}/queries_scale", size**-0.5, default=size**-0.5)
    if heads % key_heads:
        raise model.error(f"'{scope}/num_heads_kv' of {key_heads} does not divide the {heads} heads")

    def shared(start: int) -> list[range]:
        """Return the rows of each query head's key or value head."""
        if key_heads == heads:
            return [range(start, start + width)]
        first = (start + head // (heads // key_heads) * size for head in range(heads))
        return [range(row, row + size) for row in first]

    def keys_values(start: int) -> dict[str, list[range]]:
        return {f"{ours}.k_proj": shared(start), f"{ours}.v_proj": shared(start + key_heads * size)}

    queries = {f"{ours}.q_proj": [range(width)]}
    if is_cross:
        model.add_linear(f"{scope}/linear_0", queries, width)
        model.add_linear(f"{scope}/linear_1", keys_values(0), width)
    else:
        model.add_linear(f"{scope}/linear_0", queries | keys_values(width), width)
    model.add_linear(f"{scope}/linear_{1 + is_cross}", {f"{ours}.out_proj": [range(width)]}, width)


class Sizes(NamedTuple):
    """The width, the columns of all heads, and the feed-forward units of a T5."""

    width: int
    inner: int
    units: int


def add_t5_stack(model: Variables, stack: str, sizes: Sizes, *, is_gated: bool) -> None:
    """Add the layers of a stack, its position bias and its final norm with the names of T5."""
    width, inner, units = sizes
    for index in range(model.count_layers(stack)):
        ours, theirs = f"{stack}.block.{index}.layer", f"{stack}/layer_{index}"
        names = {part: f"{ours}.0.SelfAttention.{part}" for part in "qkvo"}
        parts = {names[part]: [range(i * inner, (i + 1) * inner)] for i, part in enumerate("qkv")}
        scope = f"{theirs}/self_attention"
        model.require(f"{scope}/queries_scale", 1, default=0)
        model.add_linear(f"{scope}/linear_0", parts, width, has_bias=False)
        model.add_linear(f"{scope}/linear_1", {names["o"]: [range(width)]}, inner, has_bias=False)
        model.add_norm(f"{ours}.0.layer_norm", f"{scope}/layer_norm")
        model.skip(f"{scope}/relative_attention_bias")  # the first layer's applies to all layers
        model.skip(f"{scope}/relative_attention_max_distance")
        last = 1
        if stack == "decoder":
            last = 2
            names = {part: f"{ours}.1.EncDecAttention.{part}" for part in "qkvo"}
            scope = f"{theirs}/attention"
            model.require(f"{scope}/queries_scale", 1, default=0)
            model.add_linear(f"{scope}/linear_0", {names["q"]: [range(inner)]}, width, has_bias=False)
            parts = {names["k"]: [range(inner)], names["v"]: [range(inner, 2 * inner)]}
            model.add_linear(f"{scope}/linear_1", parts, width, has_bias=False)
            model.add_linear(f"{scope}/linear_2", {names["o"]: [range(width)]}, inner, has_bias=False)
            model.add_norm(f"{ours}.1.layer_norm", f"{scope}/layer_norm")
        dense = f"{ours}.{last}.DenseReluDense"
        inputs = {"linear_0": "wi_0", "linear_0_noact": "wi_1"} if is_gated else {"linear_0": "wi"}
        for name, part in inputs.items():
            model.add_linear(f"{theirs}/ffn/{name}", {f"{dense}.{part}": [range(units)]}, width, has_bias=False)
        model.add_linear(f"{theirs}/ffn/linear_1", {f"{dense}.wo": [range(width)]}, units, has_bias=False)
        model.add_norm(f"{ours}.{last}.layer_norm", f"{theirs}/ffn/layer_norm")
    model.add(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{stack}/{RELATIVE_BIAS}", 2)
    model.add_norm(f"{stack}.final_layer_norm", f"{stack}/layer_norm")


def read_ctranslate2(path: Path) -> Checkpoint:
    """Open a model.bin with Hugging Face's tensor names. Raises `CheckpointError` if it is damaged or unsupported."""
    header = read_header(path)
    return CTranslate2Checkpoint(header, layout_of(header).tensors)

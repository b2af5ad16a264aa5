"""Translates CTranslate2's variables and attributes to Hugging Face's tensor names and config.json fields.

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
from .argos_metadata import is_package, package_fields
from .base import Checkpoint
from .ctranslate2 import SCALES, CTranslate2Checkpoint, Header, Rows, Tensor, read_header
from .ctranslate2_vocabulary import find_speech_vocabulary, find_vocabulary, read_vocabulary
from .files import read_json_object

ACTIVATIONS = {0: "relu", 1: "gelu_new", 2: "swish", 3: "gelu", 4: "quick_gelu"}
STACKS = ("encoder", "decoder")
ENCODINGS = "position_encodings/encodings"
RELATIVE_BIAS = "layer_0/self_attention/relative_attention_bias"
MAX_DISTANCE = "layer_0/self_attention/relative_attention_max_distance"
POSITIONS_OFFSET = 2  # unused rows at the start of Hugging Face's tables of learned positions
MULTILINGUAL_SIZE = 51865  # ids; the English-only Whisper models have fewer
PADDING = ("<pad>", "<blank>", "[PAD]")
# Fields of CTranslate2's config.json, and the attributes in which versions before 6 store them
TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
FLAGS = {"add_source_bos": "with_source_bos", "add_source_eos": "with_source_eos"}
# Fields of a Whisper's config.json -> fields of generation_config.json
SPEECH_FIELDS = {
    "suppress_ids": "suppress_tokens",
    "suppress_ids_begin": "begin_suppress_tokens",
    "alignment_heads": "alignment_heads",
}
END_OF_TEXT, START_OF_TRANSCRIPT = "<|endoftext|>", "<|startoftranscript|>"
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
    """A model's config.json fields, except those of tokens, and its tensors."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


class Reader:
    """Reads a header's attributes and variables by name, and finds those that have not been read."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.tensors: dict[str, Tensor] = {}
        self._read = {*TOKENS, *FLAGS.values(), "with_target_bos", "user_decoder_start_tokens"}

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
    reader = Reader(header)
    reader.check_supported()
    config = layout(reader)
    reader.check_all_read()
    return Layout(config, reader.tensors)


def transformer_layout(reader: Reader) -> dict[str, Any]:
    if reader.has("encoder/layer_0/self_attention/relative_attention_bias"):
        return t5_layout(reader)
    return opennmt_layout(reader)


def opennmt_layout(reader: Reader) -> dict[str, Any]:
    """Read a Transformer with position vectors and layer norms. Returns the fields of `BartConfig`."""
    starts_from_zero = reader.flag("decoder/start_from_zero_embedding", False)
    width = add_tables(reader, "model.", "model.decoder.embed_tokens", padding=int(starts_from_zero))
    norm_first = reader.in_both("pre_norm", lambda stack: reader.flag(f"{stack}/pre_norm", True))
    embedding_norm = reader.in_both(
        "layernorm_embedding", lambda stack: reader.has(f"{stack}/layernorm_embedding/gamma")
    )
    is_gated = reader.in_both("ffn_glu", lambda stack: reader.has(f"{stack}/layer_0/ffn/linear_0_noact/weight"))
    sizes: dict[str, Any] = {}
    for stack in STACKS:
        sizes |= add_bart_stack(reader, stack, width, is_gated=is_gated)
        if norm_first:
            reader.add_norm(f"model.{stack}.layer_norm", f"{stack}/layer_norm")
        if embedding_norm:
            reader.add_norm(f"model.{stack}.layernorm_embedding", f"{stack}/layernorm_embedding")
    if reader.has(bias := "decoder/projection/bias"):
        (size,) = reader.shape(bias, 1)
        shape = (1, size + starts_from_zero)
        reader.join("final_logits_bias", [Rows(bias, 0, size), zeros(int(starts_from_zero))], shape)
    positions: dict[str, Any] = {}
    if has_tables := reader.in_both("position_encodings", lambda stack: reader.has(f"{stack}/{ENCODINGS}")):
        length = min(reader.shape(f"{stack}/{ENCODINGS}", 2)[0] for stack in STACKS)
        positions["max_position_embeddings"] = length
        for stack in STACKS:
            parts = [zeros(POSITIONS_OFFSET), Rows(f"{stack}/{ENCODINGS}", 0, length)]
            reader.join(f"model.{stack}.embed_positions.weight", parts, (POSITIONS_OFFSET + length, width))
    return {
        "model_type": "opennmt",
        "d_model": width,
        **sizes,
        **positions,
        "activation_function": activation(reader, STACKS),
        "is_gated_act": is_gated,
        "normalize_before": norm_first,
        "normalize_embedding": embedding_norm,
        "rms_norm": reader.has_rms_norms,
        "static_position_embeddings": not has_tables,
        "scale_embedding": reader.in_both("scale_embeddings", lambda stack: is_scaled(reader, stack, width)),
        "alignment_layer": reader.whole("decoder/alignment_layer", -1, minimum=-512),
        "alignment_heads": reader.whole("decoder/alignment_heads", 1, minimum=0),
        "starts_from_zero": starts_from_zero,
    }


def t5_layout(reader: Reader) -> dict[str, Any]:
    """Read a T5. Returns the fields of `T5Config`."""
    width = add_tables(reader, "", "shared")
    if not reader.has_rms_norms:
        raise reader.error("a relative attention bias with layer norms is not supported (expected RMS norms, as in T5)")
    is_gated = reader.in_both("ffn_glu", lambda stack: reader.has(f"{stack}/layer_0/ffn/linear_0_noact/weight"))
    heads = reader.in_both("num_heads", lambda stack: reader.whole(f"{stack}/num_heads", 8))
    buckets = reader.in_both("relative_attention_bias", lambda stack: reader.shape(f"{stack}/{RELATIVE_BIAS}", 2)[0])
    inner = reader.shape("encoder/layer_0/self_attention/linear_0/weight", 2)[0] // 3
    units = reader.shape("encoder/layer_0/ffn/linear_0/weight", 2)[0]
    for stack in STACKS:
        reader.require(f"{stack}/pre_norm", 1, default=1)
        if is_scaled(reader, stack, width):
            raise reader.error(f"'{stack}/scale_embeddings' is not supported for T5")
        add_t5_stack(reader, stack, Sizes(width, inner, units), is_gated=is_gated)
    has_scale = "decoder/scale_outputs" in reader.header.attributes
    if has_scale:
        reader.require("decoder/scale_outputs", width**-0.5, default=0)
    return {
        "model_type": "t5",
        "d_model": width,
        "d_kv": inner // heads,
        "d_ff": units,
        "num_layers": reader.count_layers("encoder"),
        "num_decoder_layers": reader.count_layers("decoder"),
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": reader.in_both(
            "relative_attention_max_distance", lambda stack: reader.whole(f"{stack}/{MAX_DISTANCE}", 128)
        ),
        "feed_forward_proj": "gated-" * is_gated + activation(reader, STACKS),
        "scale_decoder_outputs": has_scale,
    }


def whisper_layout(reader: Reader) -> dict[str, Any]:
    """Read a Whisper. Returns the fields of `WhisperConfig`."""
    vocab_size, width = reader.add("model.decoder.embed_tokens.weight", "decoder/embeddings/weight", 2)
    reader.add("proj_out.weight", "decoder/projection/weight", 2)
    bins = 0
    for index in (2, 1):
        name = f"encoder/conv{index}"
        _, bins, _ = reader.add(f"model.encoder.conv{index}.weight", f"{name}/weight", 3)
        reader.add(f"model.encoder.conv{index}.bias", f"{name}/bias", 1)
    sizes: dict[str, Any] = {}
    lengths = []
    if reader.has_rms_norms:
        raise reader.error("RMS norms are not supported for Whisper")
    for stack in STACKS:
        sizes |= add_bart_stack(reader, stack, width, is_gated=False)
        reader.add_norm(f"model.{stack}.layer_norm", f"{stack}/layer_norm")
        lengths.append(reader.add(f"model.{stack}.embed_positions.weight", f"{stack}/{ENCODINGS}", 2)[0])
    reader.require("decoder/pre_norm", 1, default=1)
    if is_scaled(reader, "decoder", width):
        raise reader.error("'decoder/scale_embeddings' is not supported for Whisper")
    if activation(reader, ("decoder",)) not in ("gelu", "gelu_new"):  # revision 2 has one number for both
        raise reader.error("'decoder/activation' is not supported for Whisper (expected GELU)")
    return {
        "model_type": "whisper",
        "vocab_size": vocab_size,
        "d_model": width,
        **sizes,
        "num_mel_bins": bins,
        "max_source_positions": lengths[0],
        "max_target_positions": lengths[1],
    }


LAYOUTS: Mapping[str, tuple[Sequence[int], Callable[[Reader], dict[str, Any]]]] = {
    "TransformerSpec": ((4, 5, 6, 7), transformer_layout),
    "WhisperSpec": ((2, 3), whisper_layout),
}


def activation(reader: Reader, stacks: Sequence[str]) -> str:
    """Return the name of the feed-forward layers' activation."""
    numbers = [reader.whole(f"{stack}/activation", 0, minimum=0) for stack in stacks]
    if len({*numbers}) > 1 or numbers[0] not in ACTIVATIONS:
        raise reader.error(f"'activation' has unsupported values ({', '.join(map(str, numbers))})")
    return ACTIVATIONS[numbers[0]]


def is_scaled(reader: Reader, stack: str, width: int) -> bool:
    """Return whether embeddings are multiplied by the root of their width. Raises `CheckpointError` for other scales.

    The attribute is a flag or the scale.
    """
    scale = reader.value(f"{stack}/scale_embeddings", reader.value(f"{stack}/embeddings/multiply_by_sqrt_depth", 1))
    if isinstance(scale, int):
        return scale != 0
    if math.isclose(scale, width**0.5, rel_tol=1e-3):
        return True
    reader.require(f"{stack}/scale_embeddings", 1.0, default=1)
    return False


def add_tables(reader: Reader, prefix: str, name: str, padding: int = 0) -> int:
    """Add the embeddings and the output matrix, and return their width.

    Args:
        prefix: The prefix of Hugging Face's names.
        name: The table that stands for equal ones.
        padding: Rows of zeros to append.
    """
    source = "encoder/embeddings_0" if reader.has("encoder/embeddings_0/weight") else "encoder/embeddings"
    size, width = reader.shape("decoder/embeddings/weight", 2)
    for table in (f"{source}/weight", "decoder/projection/weight"):
        if reader.shape(table, 2) != (size, width):
            raise reader.error(f"variable {table!r} has the shape {reader.shape(table, 2)}, expected {(size, width)}")
    reader.add(f"{prefix}encoder.embed_tokens.weight", f"{source}/weight", 2, after=padding)
    reader.add(f"{prefix}decoder.embed_tokens.weight", "decoder/embeddings/weight", 2, after=padding)
    reader.add("lm_head.weight", "decoder/projection/weight", 2, after=padding)
    return width


def add_bart_stack(reader: Reader, stack: str, width: int, *, is_gated: bool) -> dict[str, Any]:
    """Add the layers of a stack with the names of BART, and return their sizes with the names of BART's config."""
    heads = reader.whole(f"{stack}/num_heads", 8)
    units = reader.shape(f"{stack}/layer_0/ffn/linear_0/weight", 2)[0]
    blocks = {"self_attn": ("self_attention", "self_attn_layer_norm")}
    if stack == "decoder":
        blocks["encoder_attn"] = "attention", "encoder_attn_layer_norm"
    if width % heads:
        raise reader.error(f"'{stack}/num_heads' of {heads} does not divide the width {width}")
    for index in range(layers := reader.count_layers(stack)):
        ours, theirs = f"model.{stack}.layers.{index}", f"{stack}/layer_{index}"
        for block, (scope, norm) in blocks.items():
            add_attention(reader, f"{ours}.{block}", f"{theirs}/{scope}", heads, width, is_cross=scope == "attention")
            reader.add_norm(f"{ours}.{norm}", f"{theirs}/{scope}/layer_norm")
        reader.add_linear(f"{theirs}/ffn/linear_0", {f"{ours}.fc1": [range(units)]}, width)
        if is_gated:
            reader.add_linear(f"{theirs}/ffn/linear_0_noact", {f"{ours}.fc1_linear": [range(units)]}, width)
        reader.add_linear(f"{theirs}/ffn/linear_1", {f"{ours}.fc2": [range(width)]}, units)
        reader.add_norm(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")
    return {f"{stack}_layers": layers, f"{stack}_attention_heads": heads, f"{stack}_ffn_dim": units}


def add_attention(reader: Reader, ours: str, scope: str, heads: int, width: int, *, is_cross: bool) -> None:
    """Add the projections of an attention block with the names of BART.

    If several query heads share a key head, the rows of the key head are repeated for each of them.
    """
    key_heads = 1 if reader.flag(f"{scope}/multi_query", False) else reader.whole(f"{scope}/num_heads_kv", heads)
    size = width // heads
    reader.require(f"{scope}/head_dim", size, default=size)
    reader.require(f"{scope}/queries_scale", size**-0.5, default=size**-0.5)
    if heads % key_heads:
        raise reader.error(f"'{scope}/num_heads_kv' of {key_heads} does not divide the {heads} heads")

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
        reader.add_linear(f"{scope}/linear_0", queries, width)
        reader.add_linear(f"{scope}/linear_1", keys_values(0), width)
    else:
        reader.add_linear(f"{scope}/linear_0", queries | keys_values(width), width)
    reader.add_linear(f"{scope}/linear_{1 + is_cross}", {f"{ours}.out_proj": [range(width)]}, width)


class Sizes(NamedTuple):
    """The width, the columns of all heads, and the feed-forward units of a T5."""

    width: int
    inner: int
    units: int


def add_t5_stack(reader: Reader, stack: str, sizes: Sizes, *, is_gated: bool) -> None:
    """Add the layers of a stack, its position bias and its final norm with the names of T5."""
    width, inner, units = sizes
    for index in range(reader.count_layers(stack)):
        ours, theirs = f"{stack}.block.{index}.layer", f"{stack}/layer_{index}"
        names = {part: f"{ours}.0.SelfAttention.{part}" for part in "qkvo"}
        parts = {names[part]: [range(i * inner, (i + 1) * inner)] for i, part in enumerate("qkv")}
        scope = f"{theirs}/self_attention"
        reader.require(f"{scope}/queries_scale", 1, default=0)
        reader.add_linear(f"{scope}/linear_0", parts, width, has_bias=False)
        reader.add_linear(f"{scope}/linear_1", {names["o"]: [range(width)]}, inner, has_bias=False)
        reader.add_norm(f"{ours}.0.layer_norm", f"{scope}/layer_norm")
        reader.skip(f"{scope}/relative_attention_bias")  # the first layer's applies to all layers
        reader.skip(f"{scope}/relative_attention_max_distance")
        last = 1
        if stack == "decoder":
            last = 2
            names = {part: f"{ours}.1.EncDecAttention.{part}" for part in "qkvo"}
            scope = f"{theirs}/attention"
            reader.require(f"{scope}/queries_scale", 1, default=0)
            reader.add_linear(f"{scope}/linear_0", {names["q"]: [range(inner)]}, width, has_bias=False)
            parts = {names["k"]: [range(inner)], names["v"]: [range(inner, 2 * inner)]}
            reader.add_linear(f"{scope}/linear_1", parts, width, has_bias=False)
            reader.add_linear(f"{scope}/linear_2", {names["o"]: [range(width)]}, inner, has_bias=False)
            reader.add_norm(f"{ours}.1.layer_norm", f"{scope}/layer_norm")
        dense = f"{ours}.{last}.DenseReluDense"
        inputs = {"linear_0": "wi_0", "linear_0_noact": "wi_1"} if is_gated else {"linear_0": "wi"}
        for name, part in inputs.items():
            reader.add_linear(f"{theirs}/ffn/{name}", {f"{dense}.{part}": [range(units)]}, width, has_bias=False)
        reader.add_linear(f"{theirs}/ffn/linear_1", {f"{dense}.wo": [range(width)]}, units, has_bias=False)
        reader.add_norm(f"{ours}.{last}.layer_norm", f"{theirs}/ffn/layer_norm")
    reader.add(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{stack}/{RELATIVE_BIAS}", 2)
    reader.add_norm(f"{stack}.final_layer_norm", f"{stack}/layer_norm")


def read_ctranslate2(path: Path) -> Checkpoint:
    """Open a model.bin with Hugging Face's tensor names. Raises `CheckpointError` if it is damaged or unsupported."""
    header = read_header(path)
    return CTranslate2Checkpoint(header, layout_of(header).tensors)


def ctranslate2_config(path: Path) -> dict[str, Any]:
    """Return the fields of Hugging Face's config.json for a model.bin, and those that its tokenizer needs.

    These are `TOKENS`, `FLAGS`, and for Whisper the fields of generation_config.json. See also the file's header.

    Raises `CheckpointError` if a file of the folder is damaged, missing or not supported.
    """
    header = read_header(path)
    layout = layout_of(header)
    given = read_json_object(file) if (file := path.with_name("config.json")).exists() else {}
    if layout.config["model_type"] == "whisper":
        fields = {ours: given[name] for name, ours in SPEECH_FIELDS.items() if given.get(name) is not None}
        return layout.config | speech_ids(layout, path.parent) | fields
    vocabulary = find_vocabulary(path.parent)
    if vocabulary is None:
        raise CheckpointError(f"{path.parent}: has no shared_vocabulary.json or .txt; copy it from the original folder")
    settings = token_settings(header, given, file)
    tokens = read_vocabulary(vocabulary, settings["unk_token"])
    ids = token_ids(layout, settings, tokens, vocabulary)
    package = path.parent.parent
    fields = package_fields(package, tokens) if path.parent.name == "model" and is_package(package) else {}
    return layout.config | settings | epsilon(given, layout, file) | ids | fields


def speech_ids(layout: Layout, folder: Path) -> dict[str, int]:
    """Return the ids of Whisper's special tokens, from its vocabulary, or by OpenAI's layout if there is no file."""
    end, start = 50256 + (layout.config["vocab_size"] >= MULTILINGUAL_SIZE), None
    if (path := find_speech_vocabulary(folder)) is not None:
        tokens = read_vocabulary(path, END_OF_TEXT)
        if START_OF_TRANSCRIPT not in tokens:
            raise CheckpointError(f"{path}: has no {START_OF_TRANSCRIPT}; restore the file")
        end, start = tokens.index(END_OF_TEXT), tokens.index(START_OF_TRANSCRIPT)
    return {"eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": end + 1 if start is None else start}


def token_settings(header: Header, given: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the special tokens, and whether they are added to sources.

    given: the parsed config.json, whose fields are attributes of model.bin before version 6.
    """
    attributes = header.attributes
    settings: dict[str, Any] = {}
    for name, default in TOKENS.items():
        settings[name] = attributes.get(name, default) if header.version < 6 else given.get(name, default)
        if not isinstance(settings[name], str) or not settings[name]:
            raise CheckpointError(f"{file}: {name!r} must be a token, not {settings[name]!r}")
    for name, older in FLAGS.items():
        settings[name] = bool(attributes.get(older, 0) if header.version < 6 else given.get(name, False))
    start: Any = given.get("decoder_start_token", settings["bos_token"])
    if header.version < 6:
        start = settings["bos_token" if attributes.get("with_target_bos", 1) else "eos_token"]
        start = None if attributes.get("user_decoder_start_tokens", 0) else start
    if not isinstance(start, str):
        raise CheckpointError(
            f"{file}: 'decoder_start_token' is missing: each output would have to begin with a language token that the "
            "caller chooses, which is not supported; use the original model"
        )
    return settings | {"decoder_start_token": start}


def epsilon(given: Mapping[str, Any], layout: Layout, file: Path) -> dict[str, Any]:
    """Return T5's `layer_norm_epsilon`. Raises `CheckpointError` if another layout has an unusual one."""
    found = given.get("layer_norm_epsilon")
    if layout.config["model_type"] == "t5":
        return {"layer_norm_epsilon": 1e-6 if found is None else found}
    if found is not None and found != 1e-5:
        raise CheckpointError(f"{file}: 'layer_norm_epsilon' of {found!r} is not supported (expected 1e-05)")
    return {}


def token_ids(layout: Layout, settings: Mapping[str, Any], tokens: Sequence[str], vocabulary: Path) -> dict[str, Any]:
    """Return the size of the vocabulary and the ids of special tokens."""
    starts_from_zero = layout.config.pop("starts_from_zero", False)
    size = next(tensor.shape[0] for name, tensor in layout.tensors.items() if name.endswith("embed_tokens.weight"))
    if len(tokens) > size - starts_from_zero:
        raise CheckpointError(f"{vocabulary}: has {len(tokens)} tokens, but the model has {size - starts_from_zero}")
    ids = {token: index for index, token in reversed([*enumerate(tokens)])}
    for name in ("eos_token", "decoder_start_token"):
        if settings[name] not in ids and not (starts_from_zero and name == "decoder_start_token"):
            raise CheckpointError(f"{vocabulary}: has no {settings[name]!r}, which is the model's {name!r}")
    fields = {"vocab_size": size, "eos_token_id": ids[settings["eos_token"]]}
    if starts_from_zero:  # as in Marian's Hugging Face folders: the last token has an embedding of zeros
        return fields | {
            "pad_token_id": size - 1,
            "decoder_start_token_id": size - 1,
            "bad_words_ids": [[size - 1]],
        }
    padding = next((ids[token] for token in PADDING if token in ids), 0)
    return fields | {"pad_token_id": padding, "decoder_start_token_id": ids[settings["decoder_start_token"]]}

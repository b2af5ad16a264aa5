"""The encoder-decoder interface, decoder passes, and parameter loading.

This module does not depend on speculation or text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from ..checkpoints.base import QUANTIZED_PARTS, Checkpoint, part_name
from ..errors import CheckpointError
from .attention import Softmax, attend, capped_logits, precise_softmax
from .cache import CrossAttentionCache, DecoderCache, LayerCache, padding_mask, source_capacity_for
from .compiled import Compiled, compiled_by_shape
from .config import EncoderDecoderConfig
from .generation_config import GenerationConfig
from .layers import Head, finalize_layers, rows_of
from .source import Source, token_ids
from .tensors import Sources

if TYPE_CHECKING:
    from .whisper_tokens import AudioConfig

Buffers = tuple[mx.array, mx.array, mx.array]  # keys, values and their mask

MAX_COMPILED_WIDTH = 32  # positions per pass; wider passes, such as the prefill of a long prefix, are not compiled
MAX_BATCHED_SOURCE = 1024  # tokens; longer sources are encoded one by one, because attention memory grows quadratically


class EncoderDecoder(nn.Module):
    """An encoder-decoder that holds no decoding state: callers pass a cache, as in `decode(tokens, cache)`.

    All architectures use the same names for these parts: `embedding` (of the decoder's tokens), `decoder.layers`,
    `head` (unless it is tied to the embedding), and `logits_bias` (1, V) if the head has one.

    Shapes: B rows, L tokens per row, S source tokens, V ids, H heads of width D, M = `encoder_width`.
    """

    config: EncoderDecoderConfig
    # The piece of each id, if the model was loaded with a tokenizer. Not a dict, which MLX would treat as parameters.
    pieces: Mapping[int, str] | None = None
    task_prefixes: Mapping[str, str] = MappingProxyType({})  # the prefixes in config.json, keyed by task name
    replaces_unknowns: bool = False  # whether the text shows the source pieces for which outputs contain `<unk>`
    adapter: str | None = None  # the fingerprint of the adapter that was merged into the weights
    generation_config: GenerationConfig = GenerationConfig()
    audio: AudioConfig | None = None  # None if sources are token ids rather than `AudioFrames`
    max_source_tokens: int | None = None  # the longest source in training, if config.json specifies it
    max_positions: int | None = None  # the maximum length of an output, and of a source of token ids. None: unlimited
    image_token: int | None = None  # the token that marks an image in a source; images are not supported
    logit_cap: float | None = None  # the soft cap c: logits are c * tanh(x / c). None: logits are not capped
    residual_scale: float = 1.0  # the factor applied to hidden states; below 1 if weights were rescaled for float16
    value_scale: float = 1.0  # the factor applied to cross-attention values; below 1 in the same case
    source_softmax: Softmax = staticmethod(precise_softmax)  # for cross-attention; Whisper overrides it
    ranks = 1  # the number of processes that share the model
    _compiled: Compiled | None = None

    @property
    def encoder_width(self) -> int:
        """The width of the encoder output."""
        return self.config.d_model

    @abstractmethod
    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        """Token ids (B, S) and a bool mask (B, S), False on padding -> encoder output (B, S, M).

        A speech model takes frames (B, 2 * S, mel bands) instead of token ids.
        """

    def cross_projections(self, encoder_output: mx.array) -> Sequence[tuple[mx.array, mx.array]]:
        """Encoder output (B, S, M) -> the cross keys and values of each decoder layer, both (B, H or fewer, S, D)."""
        return [layer.cross_attention.project(encoder_output) for layer in self.decoder.layers]

    def inference_projections(self, encoder_output: mx.array) -> Sequence[tuple[mx.array, mx.array]]:
        """Return `cross_projections` for a cache. Overrides may be faster and need not be differentiable."""
        return self.cross_projections(encoder_output)

    def position_table(self, capacity: int) -> mx.array | None:
        """Return the position weights for `decoder_hidden` with `capacity` keys, or None if the model has none.

        `states` evaluates these weights once per capacity, rather than in every pass.
        """
        return None

    def positions(self, offsets: Sequence[int], length: int, capacity: int) -> mx.array:
        """Return the positions of `length` tokens after each row's offset, as `decoder_hidden` reads them: (B, L) here.

        They are computed on the host, which saves a device an operation per pass.

        capacity: The number of keys.
        """
        return mx.array(np.add.outer(np.array(offsets, np.int32), np.arange(length, dtype=np.int32)))

    @abstractmethod
    def decoder_hidden(
        self,
        tokens: mx.array,
        positions: mx.array,
        position_table: Any,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        """Token ids (B, L) -> the hidden states after each layer, all (B, L, d_model).

        Implementations must be pure functions of their array arguments, because they are compiled. The number of
        operations must not depend on B, except for `repeat_for_heads`.

        Args:
            tokens: (B, L).
            positions: `self.positions`, with one offset per row, or a single one for all rows. Key j has position j.
            position_table: `self.position_table(layers[0].num_keys(L))`.
            source_mask: Additive, (P, 1, 1, S). Several rows may share one of P prompts; see `CrossAttentionCache`.
            layers: One cache per decoder layer. `append` adds the keys and values of this pass and returns all of them.
        """

    @abstractmethod
    def final_states(self, hidden: mx.array) -> mx.array:
        """Hidden states after the last layer -> the input of the head, both (B, L, d_model)."""

    def embed(self, tokens: mx.array) -> mx.array:
        """Decoder token ids (B, L) -> embeddings (B, L, d_model)."""
        return self.embedding(tokens)

    def attention_outputs(self, queries: mx.array, own: Buffers, source: Buffers) -> list[mx.array]:
        """Return the outputs of a decoder layer's self-attention and of its attention over the source.

        Calibration checks that they are bit-identical in passes of different widths.

        Args:
            queries: (B, H, L, D).
            own: Keys and values (B, H or fewer, T, D), and an additive mask (B, H, L, T).
            source: Keys and values (B, H or fewer, S, D), and an additive mask (B, 1, 1, S).

        Returns:
            Arrays (B * L, H * D).
        """
        config = self.config.decoder
        attention = partial(attend, queries, scale=config.scale, soft_cap=config.attention_cap)
        return [attention(*own), attention(*source, softmax=self.source_softmax)]

    def make_cache(self, encoder_output: mx.array, mask: mx.array | None = None, beams: int = 1) -> DecoderCache:
        """Project the encoder output (P, S, M) to cross keys and values, and make a cache with P * beams rows."""
        mask = mx.ones(encoder_output.shape[:2], mx.bool_) if mask is None else mask
        extra = source_capacity_for(encoder_output.shape[1]) - encoder_output.shape[1]
        encoder_output = mx.pad(encoder_output, [(0, 0), (0, extra), (0, 0)])
        mask = mx.pad(mask, [(0, 0), (0, extra)])
        projections = [
            (mx.contiguous(keys), mx.contiguous(values)) for keys, values in self.inference_projections(encoder_output)
        ]
        return DecoderCache.empty(projections, padding_mask(mask, encoder_output.dtype), beams)

    def states(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
        """Run the decoder on new tokens (B, L), append them to the cache, and return the head's input (B, L, d_model).

        Every row grows by L. Pad shorter rows at the end, and remove the padding with `cache.trim_to`.

        Narrow passes are compiled with the current weights, once per shape if `tokens` is always uint32. Call
        `finalize` after changing weights.
        """
        length = tokens.shape[1]
        cache.reserve(cache.max_offset + length)
        compiled = self._compiled or self.finalize()
        if cache.capacity not in self._position_tables:
            self._position_tables[cache.capacity] = self.position_table(cache.capacity)
            mx.eval(self._position_tables)

        arguments = (
            tokens,
            self.positions(cache.offsets, length, cache.capacity),
            self._position_tables[cache.capacity],
            cache.write_index(length),
            cache.source_mask,
            [layer.arrays for layer in cache.layers],
            cache.recorded_layers,
        )
        if length > MAX_COMPILED_WIDTH:
            states, cache.hidden, buffers = self._pass(*arguments)
        else:
            shapes = (tokens.shape, cache.source_mask.shape, cache.capacity, cache.recorded_layers)
            states, cache.hidden, buffers = compiled(shapes)(*arguments)
        for layer, buffer in zip(cache.layers, buffers, strict=True):
            layer.keys_values = buffer
        cache.advance(length)
        return states

    def _pass(
        self,
        tokens: mx.array,
        positions: mx.array,
        position_table: mx.array | None,
        write_index: mx.array,
        source_mask: mx.array,
        layer_arrays: list[list[mx.array]],
        recorded_layers: tuple[int, ...],
    ) -> tuple[mx.array, list[mx.array], list[mx.array]]:
        """Run a pass as a pure function.

        Returns:
            The states, the hidden states of the recorded layers, and the new keys and values of each layer.
        """
        layers = [
            LayerCache(cross_keys, cross_values, keys_values, write_index)
            for cross_keys, cross_values, keys_values in layer_arrays
        ]
        hidden = self.decoder_hidden(tokens, positions, position_table, source_mask, layers)
        buffers = [layer.keys_values for layer in layers]
        return self.final_states(hidden[-1]), [hidden[layer] for layer in recorded_layers], buffers

    def teacher_forced(self, tokens: mx.array, encoder_output: mx.array, mask: mx.array | None = None) -> mx.array:
        """Run the decoder on complete outputs (B, L), for training and scoring. Returns the same states as `states`.

        This is a pure function of the weights and the encoder output: differentiable, and never compiled.

        Args:
            tokens: (B, L).
            encoder_output: The output of `encode`.
            mask: The mask passed to `encode`.
        """
        return self.final_states(self.teacher_forced_hidden(tokens, encoder_output, mask)[-1])

    def teacher_forced_hidden(
        self, tokens: mx.array, encoder_output: mx.array, mask: mx.array | None = None
    ) -> list[mx.array]:
        """Run the decoder like `teacher_forced`, but return the hidden states after each layer."""
        mask = mx.ones(encoder_output.shape[:2], mx.bool_) if mask is None else mask
        length = tokens.shape[1]
        table = self.position_table(length)
        layers = [CrossAttentionCache(keys, values) for keys, values in self.cross_projections(encoder_output)]
        positions = self.positions([0], length, length)
        return self.decoder_hidden(tokens, positions, table, padding_mask(mask, encoder_output.dtype), layers)

    def aligned_position(
        self, tokens: Sequence[int], projections: Sequence[tuple[mx.array, mx.array]], positions: Sequence[int]
    ) -> int:
        """Return the source position that the output's next token translates. Only models with `replaces_unknowns`.

        Args:
            tokens: The decoder's tokens, beginning with the start token.
            projections: The `cross_projections` of the source.
            positions: The possible source positions.
        """
        raise NotImplementedError

    def keep_full_cross_attention(self) -> None:
        """Make new caches hold all heads' cross keys and values, which a draft head needs. Only shards hold fewer."""

    def head_weights(self, d_ff: int) -> dict[str, mx.array]:
        """Return weights of this target that initialize a draft head with `d_ff` units. Its other weights are random.

        See docs/decisions/draft-head.md.
        """
        return {}

    def finalize(self) -> Compiled:
        """Prepare `states` for the current weights. Call this after changing the weights of a model that has decoded.

        Drops compiled passes and position tables, and evaluates the layers' derived weights. `encode` and
        `teacher_forced` always use the current weights.
        """
        finalize_layers(self)
        self._position_tables: dict[int, mx.array | None] = {}
        self._compiled = compiled_by_shape(self._pass)
        return self._compiled

    def logits(self, states: mx.array) -> mx.array:
        """States (B, L, d_model) -> raw logits (B, L, V). The axis L may be absent."""
        logits = self.head(states) if "head" in self else self.embedding.as_linear(states)
        if "logits_bias" in self:
            logits = logits + self.logits_bias[0]
        return logits if self.logit_cap is None else capped_logits(logits, self.logit_cap)

    def head_of(self, ids: mx.array) -> Head:
        """Return the head for the ids (N,) only: a function from states (B, L, d_model) to raw logits (B, L, N)."""
        products = rows_of(self.head if "head" in self else self.embedding, ids)
        bias = self.logits_bias[0, ids] if "logits_bias" in self else None
        head = products if bias is None else lambda states: products(states) + bias
        cap = self.logit_cap
        return head if cap is None else lambda states: capped_logits(head(states), cap)

    def decode(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
        """Run the decoder on new tokens and return raw logits: `states`, then `logits`."""
        return self.logits(self.states(tokens, cache))

    def encode_rows(self, sources: Sequence[Source]) -> list[mx.array]:
        """Encode sources as one padded batch. Returns for each source an encoder output (1, S, M) without padding."""
        lengths = [len(source) for source in sources]
        longest = max(lengths)
        if longest > MAX_BATCHED_SOURCE and len(sources) > 1:
            return [self.encode_rows([source])[0] for source in sources]

        last_id = self.config.vocab_size - 1  # a draft model's vocabulary may be smaller than the target's
        rows = [token_ids(source) for source in sources]
        padded = [[*row, *[self.config.pad_token_id] * (longest - len(row))] for row in rows]
        tokens = mx.array([[min(token, last_id) for token in row] for row in padded])
        is_ragged = min(lengths) < longest
        encoder_output = self.encode(tokens, mx.arange(longest) < mx.array(lengths)[:, None] if is_ragged else None)
        return [encoder_output[i : i + 1, :length] for i, length in enumerate(lengths)]

    def assign_slot(
        self,
        cache: DecoderCache | None,
        slot: int,
        slots: int,
        encoder_output: mx.array,
        beams: int = 1,
        prefill: Callable[[DecoderCache], None] | None = None,
    ) -> DecoderCache:
        """Assign a new request with this encoder output (1, S, M) to a cache slot.

        Args:
            cache: The cache to update in place. None creates a new cache.
            slot: The request's index.
            slots: The number of requests in a new cache.
            encoder_output: (1, S, M).
            beams: Rows per request.
            prefill: Decodes the request's forced prefix, given a cache that holds only this request.
        """
        fresh = self.make_cache(encoder_output, beams=beams)
        if prefill is not None:
            prefill(fresh)
        if cache is None:
            if slots == 1:
                return fresh
            empty = mx.zeros((slots, *encoder_output.shape[1:]), encoder_output.dtype)
            cache = self.make_cache(empty, beams=beams)
        cache.assign([slot], fresh)
        return cache

    @classmethod
    @abstractmethod
    def parameter_sources(cls, config: Any, names: Set[str]) -> Sources:
        """Return the names of the Hugging Face tensors that are joined along their first axis to form each parameter.

        This is the only place where tensor names are translated.

        Args:
            config: The model's configuration.
            names: The checkpoint's tensor names. Some families store the same table under several names.
        """

    def load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Load every parameter, in the checkpoint's dtype, and call `finalize`.

        Layers become quantized layers if their tensors are quantized.

        Raises:
            CheckpointError: A tensor is missing or has the wrong shape. This is detected before any data is read.
        """
        for path, names in checked_sources(self, checkpoint).items():
            arrays = [checkpoint[name] for name in names]
            value = arrays[0] if len(arrays) == 1 else mx.concatenate(arrays)
            mx.eval(value)  # evaluate one parameter at a time, so that the model is never in memory twice
            self.load_weights([(path, value)], strict=False)
        self.finalize()


def checked_sources(model: EncoderDecoder, checkpoint: Checkpoint) -> Sources:
    """Return `parameter_sources` after checking every name, shape and dtype. Reads no data.

    Layers of the model become quantized layers if their tensors are quantized.

    Raises:
        CheckpointError: A tensor does not fit config.json.
    """
    sources = model.parameter_sources(model.config, checkpoint.keys())
    if any(name.endswith(".scales") for name in checkpoint):
        sources = with_quantized(model, sources, checkpoint)
    expected: Mapping[str, mx.array] = dict(tree_flatten(model.parameters()))
    if sources.keys() != expected.keys():
        raise AssertionError(f"sources and parameters differ: {sorted(sources.keys() ^ expected.keys())}")
    for path, names in sources.items():
        rows, *rest = expected[path].shape
        shape = (rows // len(names), *rest)
        for name in names:
            if name not in checkpoint:
                raise CheckpointError(f"{checkpoint}: tensor {name!r} is missing")
            found = checkpoint.info(name)
            if found.shape != shape:
                raise CheckpointError(
                    f"{checkpoint}: tensor {name!r} has shape {found.shape}, but config.json requires {shape}"
                )
            is_packed = expected[path].dtype == mx.uint32
            if not (found.dtype == mx.uint32 if is_packed else mx.issubdtype(found.dtype, mx.floating)):
                expected_dtype = "uint32" if is_packed else "a floating-point dtype"
                raise CheckpointError(
                    f"{checkpoint}: tensor {name!r} has dtype {found.dtype} (expected {expected_dtype})"
                )
    return sources


def with_quantized(model: EncoderDecoder, sources: Sources, checkpoint: Checkpoint) -> Sources:
    """Quantize the layers for which the checkpoint contains scales, and add the sources of their scales and biases.

    Bits and group size are derived from the shapes, so the folder need not store them.
    """
    settings: dict[str, dict[str, int]] = {}
    expanded: Sources = {}
    shapes = dict(tree_flatten(model.parameters()))
    try:
        for path, names in sources.items():
            if part_name(names[0], "scales") not in checkpoint or names[0] not in checkpoint:
                expanded[path] = names
                continue
            columns = shapes[path].shape[1]
            packed, groups = (checkpoint.info(part_name(names[0], part)).shape[-1] for part in ("weight", "scales"))
            settings[path.removesuffix(".weight")] = {"bits": 32 * packed // columns, "group_size": columns // groups}
            expanded |= {
                part_name(path, part): tuple(part_name(name, part) for name in names) for part in QUANTIZED_PARTS
            }
        if settings:
            nn.quantize(  # skips layers that are already quantized
                model,
                class_predicate=lambda path, module: hasattr(module, "to_quantized") and settings.get(path, False),
            )
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"{checkpoint}: quantized in a format that MLX does not support ({error})") from error
    return expanded


def is_read_by_pass(path: str, *, has_head: bool) -> bool:
    """Return whether a decoder pass reads this parameter. Cross keys and values are computed once per source."""
    part = path.split(".")[0]
    return part == ("head" if has_head else "embedding") or (part == "decoder" and "cross_attention.kv" not in path)


def quantizable(model: EncoderDecoder, sources: Mapping[str, tuple[str, ...]], group_size: int) -> dict[str, set[str]]:
    """Return the tensor names of each layer whose columns divide evenly into groups, keyed by the layer's path."""
    shapes = dict(tree_flatten(model.parameters()))
    layers = {path for path, module in model.named_modules() if hasattr(module, "to_quantized")}
    return {
        layer: set(names)
        for path, names in sources.items()
        if (layer := path.removesuffix(".weight")) in layers and shapes[path].shape[1] % group_size == 0
    }

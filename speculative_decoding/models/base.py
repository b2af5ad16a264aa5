"""The contract of an encoder-decoder, and how its parameters come out of a checkpoint.

Knows nothing of speculation and nothing of text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..checkpoints.base import QUANTIZED_PARTS, Checkpoint, part_name
from ..errors import CheckpointError
from .attention import capped
from .cache import SOURCE_STEP, CrossAttentionCache, DecoderCache, LayerCache, additive
from .compiled import Compiled
from .config import EncoderDecoderConfig
from .generation_config import GenerationConfig
from .linear import Head, finalize_layers, rows_of
from .tensors import Sources

MAX_COMPILED_WIDTH = 32  # positions per pass; wider passes, as over a forced prefix, are rare
LONGEST_TOGETHER = 1024  # tokens: longer sources are encoded one at a time, for attention grows with the square


class EncoderDecoder(nn.Module):
    """An encoder-decoder whose state is passed, not hidden: `decode(tokens, cache)`.

    Its parts have the same names in all architectures: `embedding`, of the decoder's tokens; `decoder.layers`; `head`,
    where the embedding is not the head too; `logits_bias` (1, V), where the head adds one.
    """

    config: EncoderDecoderConfig
    # Which piece of text each id stands for, where the model was loaded with text: a draft that numbers its tokens
    # otherwise must be refused. Read-only (no dict, of which MLX would make parameters).
    pieces: Mapping[int, str] | None = None
    generation_config: GenerationConfig = GenerationConfig()
    _compiled: Compiled | None = None

    @property
    def most_positions(self) -> int | None:
        """How many positions there are, for a source and for an output each; None: no end of them."""
        return None

    @property
    def image_token(self) -> int | None:
        """What stands in a source in front of an image, which no model here reads."""
        return None

    @property
    def has_logits_bias(self) -> bool:
        """Whether the head adds something to its product."""
        return "logits_bias" in self

    @property
    def encoder_width(self) -> int:
        """M: of the encoder's states; as wide as the decoder's, where an architecture does not say otherwise."""
        return self.config.d_model

    @property
    def logit_cap(self) -> float | None:
        """c: logits are c * tanh(x / c) of the head's products x; None: the products themselves."""
        return None

    @abstractmethod
    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        """(B, S) token ids, (B, S) bool mask (True = a token, False = padding) -> encoder output (B, S, M)."""

    def cross_projections(self, encoder_output: mx.array) -> Sequence[tuple[mx.array, mx.array]]:
        """Memory (B, S, M) -> the cross keys and values of each decoder layer, both (B, H or fewer, S, D)."""
        return [layer.cross_attention.project(encoder_output) for layer in self.decoder.layers]

    def position_table(self, capacity: int) -> mx.array | None:
        """What passes over `capacity` positions need from the weights that encode positions; None: nothing.

        It depends on no pass, so `states` evaluates it once per capacity.
        """
        return None

    @abstractmethod
    def decoder_hidden(
        self,
        tokens: mx.array,
        offsets: mx.array,
        position_table: Any,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        """The decoder without what stands behind its layers: (B, L) token ids -> the states behind each layer, all
        (B, L, d_model).

        offsets: (B,), or (1,) for all rows: token i of a row stands at position offset + i, key j at j <
            `layers[0].reach(L)`. What positions mean, which keys each token sees, how scores are scaled: all of that is
            decided here.
        source_mask: additive, (P, 1, 1, S); there may be fewer prompts than rows, see `CrossAttentionCache.prompts`.
        layers: append the keys and values of the pass, and have all there are.

        A function of arrays alone, for it is compiled: what is no array in it must follow from the configuration and
        from shapes. As many operations for one row as for many.
        """

    @abstractmethod
    def final_states(self, hidden: mx.array) -> mx.array:
        """The states behind the last layer -> what the head reads, both (B, L, d_model)."""

    @abstractmethod
    def embed(self, tokens: mx.array) -> mx.array:
        """Token ids of the decoder, (B, L) -> (B, L, d_model)."""

    def make_cache(self, encoder_output: mx.array, mask: mx.array | None = None, beams: int = 1) -> DecoderCache:
        """A cache with `beams` rows for each row of the encoder output (P, S, M)."""
        mask = mx.ones(encoder_output.shape[:2], mx.bool_) if mask is None else mask
        room = -encoder_output.shape[1] % SOURCE_STEP
        encoder_output, mask = mx.pad(encoder_output, [(0, 0), (0, room), (0, 0)]), mx.pad(mask, [(0, 0), (0, room)])
        projected = [(mx.contiguous(k), mx.contiguous(v)) for k, v in self.cross_projections(encoder_output)]
        layers = [LayerCache.of(*each, beams) for each in projected]
        return DecoderCache(layers, additive(mask, encoder_output.dtype), beams=beams)

    def states(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
        """(B, L) token ids that follow what each row of the cache holds -> what the head reads, (B, L, d_model).

        Every row grows by L. Where a row has fewer tokens, padding follows them, and `cache.trim_to` forgets it.
        Narrow passes are compiled, once per shape, with the current weights. Call `finalize` after changing weights.
        """
        length = tokens.shape[1]
        cache.reserve(cache.offset + length)
        compiled = self._compiled or self.finalize()
        if cache.capacity not in self._position_tables:
            self._position_tables[cache.capacity] = self.position_table(cache.capacity)
            mx.eval(self._position_tables)
        table = self._position_tables[cache.capacity]
        arrays = [layer.arrays for layer in cache.layers]
        arguments = tokens, mx.array(cache.offsets), table, cache.places(length), cache.source_mask, arrays
        kept = cache.kept_layers
        if length > MAX_COMPILED_WIDTH:
            states, cache.hidden, own = self._pass(*arguments, kept)
        else:
            shape = *tokens.shape, cache.beams, cache.capacity, cache.source_capacity, kept
            states, cache.hidden, own = compiled(shape, *arguments, kept)
        for layer, (keys, values) in zip(cache.layers, own, strict=True):
            layer.keys, layer.values = keys, values
        cache.advance(length)
        return states

    def _pass(
        self,
        tokens: mx.array,
        offsets: mx.array,
        position_table: mx.array | None,
        places: mx.array,
        source_mask: mx.array,
        arrays: list[list[mx.array]],
        kept: tuple[int, ...],
    ) -> tuple[mx.array, list[mx.array], list[tuple[mx.array, mx.array]]]:
        """Changes nothing: the states, those behind the layers in `kept`, and the keys and values of each layer."""
        layers = [LayerCache(k_cross, v_cross, keys, values, places) for k_cross, v_cross, keys, values in arrays]
        hidden = self.decoder_hidden(tokens, offsets, position_table, source_mask, layers)
        own = [(layer.keys, layer.values) for layer in layers]
        return self.final_states(hidden[-1]), [hidden[layer] for layer in kept], own

    def teacher_forced(self, tokens: mx.array, encoder_output: mx.array, mask: mx.array | None = None) -> mx.array:
        """Whole outputs at once, for training and scoring: (B, L) token ids -> states (B, L, d_model), those of
        `states` without its cache. encoder_output, mask: `encode`'s.

        A pure function of the weights and the encoder output: differentiable, never compiled.
        """
        return self.final_states(self.teacher_forced_hidden(tokens, encoder_output, mask)[-1])

    def teacher_forced_hidden(
        self, tokens: mx.array, encoder_output: mx.array, mask: mx.array | None = None
    ) -> list[mx.array]:
        """`teacher_forced`, but the states behind each layer."""
        mask = mx.ones(encoder_output.shape[:2], mx.bool_) if mask is None else mask
        table = self.position_table(tokens.shape[1])
        layers = [CrossAttentionCache(keys, values) for keys, values in self.cross_projections(encoder_output)]
        return self.decoder_hidden(tokens, mx.array([0]), table, additive(mask, encoder_output.dtype), layers)

    def finalize(self) -> Compiled:
        """Use the current weights from now on. Call this after changing weights of a model that has decoded.

        Drops compiled passes and position tables, and evaluates what layers derive from their weights. Only cached
        passes (`states`) depend on it: `encode` and `teacher_forced` always use the current weights.
        """
        finalize_layers(self)
        self._position_tables: dict[int, mx.array | None] = {}
        self._compiled = Compiled(self._pass)
        return self._compiled

    def logits(self, states: mx.array) -> mx.array:
        """(B, L, d_model) -> raw logits (B, L, V); also without L."""
        products = self.head(states) if "head" in self else self.embedding.as_linear(states)
        return capped(products + self.logits_bias[0] if self.has_logits_bias else products, self.logit_cap)

    def head_of(self, ids: mx.array) -> Head:
        """The head for these ids alone, (N,): states (B, L, d_model) -> raw logits (B, L, N); also without L."""
        head = rows_of(self.head if "head" in self else self.embedding, ids)
        if not self.has_logits_bias:
            return lambda states: capped(head(states), self.logit_cap)
        bias = self.logits_bias[0, ids]
        return lambda states: capped(head(states) + bias, self.logit_cap)

    def decode(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
        """`states`, then `logits`."""
        return self.logits(self.states(tokens, cache))

    def encode_rows(self, sources: Sequence[Sequence[int]]) -> list[mx.array]:
        """Encode sources together, padded; an encoder output (1, S, M) of its own length for each."""
        lengths = [len(source) for source in sources]
        longest, padding, known = max(lengths), self.config.pad_token_id, self.config.vocab_size - 1
        if longest > LONGEST_TOGETHER and len(sources) > 1:
            return [encoder_output for source in sources for encoder_output in self.encode_rows([source])]
        padded = ([*source, *[padding] * (longest - len(source))] for source in sources)
        tokens = mx.array([[min(token, known) for token in row] for row in padded])  # a draft may know fewer
        is_ragged = min(lengths) < longest
        encoder_output = self.encode(tokens, mx.arange(longest) < mx.array(lengths)[:, None] if is_ragged else None)
        return [encoder_output[i : i + 1, :length] for i, length in enumerate(lengths)]

    def assign_slot(
        self, cache: DecoderCache | None, slot: int, slots: int, encoder_output: mx.array, beams: int = 1
    ) -> DecoderCache:
        """The cache, or a new one for `slots` requests, with a new one in `slot`; its encoder output is (1, S, M)."""
        fresh = self.make_cache(encoder_output, beams=beams)
        if cache is None and slots == 1:
            return fresh
        cache = cache or self.make_cache(
            mx.zeros((slots, *encoder_output.shape[1:]), encoder_output.dtype), beams=beams
        )
        cache.assign([slot], fresh)
        return cache

    @classmethod
    @abstractmethod
    def parameter_sources(cls, config: Any, names: Set[str]) -> Sources:
        """For each parameter the Hugging Face tensors it is made of, joined along their first axis.

        This is the only place where names are translated. `names` are those that the checkpoint offers: some
        families store the same table under another name.
        """

    def load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Take every parameter from the checkpoint, in the type it has there.

        Layers whose tensors are quantised there become quantised layers. Raises `CheckpointError` that names the
        tensor if one is missing or has another shape; names and shapes are checked before any data is read.
        """
        for path, names in checked_sources(self, checkpoint).items():
            arrays = [checkpoint[name] for name in names]
            value = arrays[0] if len(arrays) == 1 else mx.concatenate(arrays)
            mx.eval(value)  # one parameter at a time, so that no second copy of the model is ever alive
            self.load_weights([(path, value)], strict=False)
        self.finalize()


def checked_sources(model: EncoderDecoder, checkpoint: Checkpoint) -> Sources:
    """`parameter_sources`, with every name, shape and kind of number checked against the checkpoint without reading
    data, and without the model's own parameters, which MLX computes only where they are used.
    """
    sources = with_quantized(model, model.parameter_sources(model.config, checkpoint.keys()), checkpoint)
    expected: Mapping[str, mx.array] = dict(tree_flatten(model.parameters()))
    if sources.keys() != expected.keys():
        raise AssertionError(f"sources and parameters differ: {sorted(sources.keys() ^ expected.keys())}")
    for path, names in sources.items():
        rows, *rest = expected[path].shape
        wanted = (rows // len(names), *rest)
        for name in names:
            if name not in checkpoint:
                raise CheckpointError(f"{checkpoint}: tensor {name!r} is missing")
            if (found := checkpoint.info(name)).shape != wanted:
                raise CheckpointError(
                    f"{checkpoint}: tensor {name!r} has shape {found.shape}, but config.json asks for {wanted}"
                )
            is_packed = expected[path].dtype == mx.uint32
            if not (found.dtype == mx.uint32 if is_packed else mx.issubdtype(found.dtype, mx.floating)):
                raise CheckpointError(f"{checkpoint}: tensor {name!r} has numbers of type {found.dtype}, no weights")
    return sources


def with_quantized(model: EncoderDecoder, sources: Sources, checkpoint: Checkpoint) -> Sources:
    """Turn layers into quantised ones where the checkpoint has scales for them; their parameters have three parts.

    Bits and group size are read off the shapes, so a folder needs to say nothing about how it was quantised.
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
            packed, groups = (checkpoint.info(part_name(names[0], kind)).shape[-1] for kind in ("weight", "scales"))
            settings[path.removesuffix(".weight")] = {"bits": 32 * packed // columns, "group_size": columns // groups}
            expanded |= {
                part_name(path, kind): tuple(part_name(name, kind) for name in names) for kind in QUANTIZED_PARTS
            }
        nn.quantize(model, class_predicate=lambda path, module: settings.get(path, False))
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"{checkpoint}: quantised in a way that MLX does not know ({error})") from error
    return expanded


def quantizable(model: EncoderDecoder, sources: Mapping[str, tuple[str, ...]], group_size: int) -> dict[str, set[str]]:
    """Path of each layer that can be quantised, because its rows divide into groups -> its tensors."""
    shapes = dict(tree_flatten(model.parameters()))
    layers = {path for path, module in model.named_modules() if hasattr(module, "to_quantized")}
    return {
        layer: set(names)
        for path, names in sources.items()
        if (layer := path.removesuffix(".weight")) in layers and shapes[path].shape[1] % group_size == 0
    }

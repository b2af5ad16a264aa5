"""The contract of an encoder-decoder, and how its parameters come out of a checkpoint.

Knows nothing of speculation and nothing of text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..checkpoints.base import Checkpoint
from ..errors import CheckpointError
from .cache import DecoderCache

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer


class EncoderDecoderConfig(Protocol):
    """What every part of the package may ask of a model, whatever its architecture."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def decoder_start_token_id(self) -> int: ...

    @property
    def pad_token_id(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def max_source_tokens(self) -> int | None:
        """The longest source that the model was trained on, where its configuration says so."""


class EncoderDecoder(nn.Module):
    """An encoder-decoder whose state is passed, not hidden: `decode(tokens, cache)`."""

    config: EncoderDecoderConfig
    # The tokenizer that it was loaded with: a draft that numbers its tokens otherwise must be refused.
    tokenizer: Tokenizer | None = None

    @abstractmethod
    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        """(B, S) token ids, (B, S) bool mask (True = a token, False = padding) -> memory (B, S, d_model)."""

    @abstractmethod
    def make_cache(self, memory: mx.array, mask: mx.array | None = None) -> DecoderCache:
        """A cache for one request; projects the memory's cross keys and values, once."""

    @abstractmethod
    def decode(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
        """(B, L) token ids that follow what the cache holds -> raw logits (B, L, V). The cache grows by L."""

    @classmethod
    @abstractmethod
    def parameter_sources(cls, config: Any, names: Set[str]) -> dict[str, tuple[str, ...]]:
        """For each parameter the Hugging Face tensors it is made of, joined along their first axis.

        This is the only place where names are translated. `names` are those that the checkpoint offers: some
        families store the same table under another name.
        """

    def load_checkpoint(self, checkpoint: Checkpoint, dtype: mx.Dtype | None = None) -> None:
        """Take every parameter from the checkpoint, cast to `dtype` (None: as stored).

        Raises `CheckpointError` that names the tensor if one is missing or has another shape. All names and shapes
        are checked before any data is read.
        """
        sources = checked_sources(self, checkpoint)

        def parameter(names: tuple[str, ...]) -> mx.array:
            arrays = [checkpoint[name] for name in names]
            joined = arrays[0] if len(arrays) == 1 else mx.concatenate(arrays)
            return joined if dtype is None else joined.astype(dtype)

        for path, names in sources.items():
            value = parameter(names)
            mx.eval(value)  # one parameter at a time, so that no second copy of the model is ever alive
            self.load_weights([(path, value)], strict=False)


def checked_sources(model: EncoderDecoder, checkpoint: Checkpoint) -> dict[str, tuple[str, ...]]:
    """`parameter_sources`, after checking every name and shape against the checkpoint without reading data."""
    sources = model.parameter_sources(model.config, checkpoint.keys())
    expected: Mapping[str, mx.array] = dict(tree_flatten(model.parameters()))
    if sources.keys() != expected.keys():
        raise AssertionError(f"sources and parameters differ: {sorted(sources.keys() ^ expected.keys())}")
    for path, names in sources.items():
        rows, *rest = expected[path].shape
        wanted = (rows // len(names), *rest)
        for name in names:
            if name not in checkpoint:
                raise CheckpointError(f"{checkpoint}: tensor {name!r} is missing")
            if (found := checkpoint.info(name).shape) != wanted:
                raise CheckpointError(
                    f"{checkpoint}: tensor {name!r} has shape {found}, but config.json asks for {wanted}"
                )
    return sources

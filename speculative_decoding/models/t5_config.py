"""What T5's config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from ..checkpoints import Checkpoint
from ..sampling.values import Bool, Int, Number, Text
from .config import ACTIVATIONS, LayerConfig, RawConfig, checked_fields, checked_ids, require, with_defaults
from .tensors import HEAD, embedding_table, is_same_table

# What Hugging Face assumes where config.json is silent, for T5 and for its relatives; besides the defaults below.
IDS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
FAMILY_DEFAULTS: Mapping[str, dict[str, Any]] = {
    "mt5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "umt5": {"feed_forward_proj": "gated-gelu"},
}
MOST_DISTANCE = 1 << 24
FEED_FORWARDS = [prefix + name for prefix in ("", "gated-") for name in ACTIVATIONS]


@dataclass(frozen=True)
class T5Config:
    """The fields of config.json that matter here, under their Hugging Face names, with what each may be.

    No T5 comes near the most, and a model without weights of that size costs little; whether the tensors are of the
    size that a field says is checked before any is read (`checked_sources`).
    """

    vocab_size: Annotated[int, Int(2, 1 << 24)]
    d_model: Annotated[int, Int(1, 1 << 18)]
    d_kv: Annotated[int, Int(1, 1 << 14)]
    d_ff: Annotated[int, Int(1, 1 << 22)]
    num_layers: Annotated[int, Int(1, 512)]
    num_heads: Annotated[int, Int(1, 1 << 12)]
    pad_token_id: int
    eos_token_ids: tuple[int, ...]
    decoder_start_token_id: int
    num_decoder_layers: Annotated[int | None, Int(1, 512)] = None
    relative_attention_num_buckets: Annotated[int, Int(4, 1 << 14)] = 32
    relative_attention_max_distance: Annotated[int, Int(2, MOST_DISTANCE)] = 128
    layer_norm_epsilon: Annotated[float, Number(1e-35, 1)] = 1e-6  # smaller ones are zero in float32
    feed_forward_proj: Annotated[str, Text(FEED_FORWARDS)] = "relu"
    tie_word_embeddings: Annotated[bool, Bool("true or false")] = True
    # transformers 5 writes this, and forces the flag above to true
    scale_decoder_outputs: Annotated[bool | None, Bool("true or false")] = None
    model_type: Annotated[str, Text()] = "t5"
    n_positions: Annotated[int | None, Int(1, (1 << 31) - 1)] = None

    @classmethod
    def from_dict(cls, raw: RawConfig, checkpoint: Checkpoint | None = None) -> T5Config:
        """From a parsed config.json. Unknown keys are ignored; a missing or impossible one is named."""
        given = with_defaults(raw, IDS | FAMILY_DEFAULTS.get(raw.get("model_type", ""), {}))
        config = cls(**checked_fields(cls, given), **checked_ids(given, given["vocab_size"]))
        far = Int(config.relative_attention_num_buckets // 2 + 1, MOST_DISTANCE)
        require("relative_attention_max_distance", far, config.relative_attention_max_distance)
        return config if checkpoint is None else config.resolved(checkpoint)

    def resolved(self, checkpoint: Checkpoint) -> T5Config:
        """The config with `tie_word_embeddings` true if, and only if, the head is the embedding.

        transformers 5 saves the flag as true for every T5, and torch files keep the head also where it is tied. So
        where the flag says tied and there is a head, the weights decide: it is an own head if it differs.
        """
        if not self.tie_word_embeddings or HEAD not in checkpoint:
            return self
        return replace(self, tie_word_embeddings=is_same_table(checkpoint, embedding_table(checkpoint.keys()), HEAD))

    @property
    def divided(self) -> dict[str, int]:
        return {"num_heads": self.num_heads, "d_ff": self.d_ff}

    @property
    def is_gated(self) -> bool:
        return self.feed_forward_proj.startswith("gated-")

    @property
    def head_is_scaled(self) -> bool:
        """Whether decoder outputs are multiplied by d_model^-0.5 before the head: with tied tables only."""
        return self.tie_word_embeddings if self.scale_decoder_outputs is None else self.scale_decoder_outputs

    @property
    def decoder_layers(self) -> int:
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def encoder(self) -> LayerConfig:
        name = self.feed_forward_proj.removeprefix("gated-")
        return LayerConfig(
            d_model=self.d_model,
            d_ff=self.d_ff,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.d_kv,
            activation="gelu_new" if self.feed_forward_proj == "gated-gelu" else name,
            is_gated=self.is_gated,
        )

    decoder = encoder

    @property
    def bias_per_layer(self) -> bool:
        """umT5 has a position bias in every layer; all others share the first layer's."""
        return self.model_type == "umt5"

    @property
    def max_source_tokens(self) -> int | None:
        return self.n_positions

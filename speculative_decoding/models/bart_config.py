"""What config.json says of a BART-like model, and what its family adds."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Annotated

import mlx.core as mx

from ..checkpoints import Checkpoint
from ..errors import CheckpointError
from ..sampling.values import Bool, Int, Text
from .config import ACTIVATIONS, LayerConfig, RawConfig, checked_fields, checked_ids, with_defaults
from .tensors import HEAD, embedding_table, is_same_table

LOGITS_BIAS = "final_logits_bias"
LEARNED_OFFSET = 2  # rows in front of a learned table of positions that belong to no position
STACKS = ("encoder", "decoder")


@dataclass(frozen=True)
class Family:
    """The properties of a family that config.json does not state.

    norm_first: whether norms precede blocks, with one more at the end of each stack; otherwise they follow blocks.
    embedding_norm: whether a norm follows the embedding.
    learned_positions: otherwise positions are sinusoidal.
    defaults: Hugging Face's defaults for fields that config.json omits.
    fairseq_sinusoids: whether sinusoids include the longest wavelength, and position 0 has the number pad id + 1.
    """

    norm_first: bool
    embedding_norm: bool
    learned_positions: bool
    defaults: RawConfig
    fairseq_sinusoids: bool = False


BART_IDS = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
M2M_DEFAULTS = BART_IDS | {"activation_function": "relu", "scale_embedding": True}
PEGASUS_IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
MARIAN_IDS = {"pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100}
FAMILIES: Mapping[str, Family] = {
    "bart": Family(norm_first=False, embedding_norm=True, learned_positions=True, defaults=BART_IDS),
    "mbart": Family(
        norm_first=True,
        embedding_norm=True,
        learned_positions=True,
        defaults={"pad_token_id": 1, "eos_token_id": 2},  # the start is a language, or the end: no default
    ),
    "pegasus": Family(norm_first=True, embedding_norm=False, learned_positions=False, defaults=PEGASUS_IDS),
    "m2m_100": Family(
        norm_first=True, embedding_norm=False, learned_positions=False, defaults=M2M_DEFAULTS, fairseq_sinusoids=True
    ),
    "marian": Family(norm_first=False, embedding_norm=False, learned_positions=False, defaults=MARIAN_IDS),
}


@dataclass(frozen=True)
class BartConfig:
    """The fields of config.json that matter here, under their Hugging Face names, with what each may be.
    has_logits_bias: the checkpoint holds a `final_logits_bias`, and it is not zero everywhere.
    """

    model_type: Annotated[str, Text()]
    vocab_size: Annotated[int, Int(2, 1 << 24)]
    d_model: Annotated[int, Int(4, 1 << 18)]
    encoder_layers: Annotated[int, Int(1, 512)]
    decoder_layers: Annotated[int, Int(1, 512)]
    encoder_attention_heads: Annotated[int, Int(1, 1 << 12)]
    decoder_attention_heads: Annotated[int, Int(1, 1 << 12)]
    encoder_ffn_dim: Annotated[int, Int(1, 1 << 22)]
    decoder_ffn_dim: Annotated[int, Int(1, 1 << 22)]
    pad_token_id: int
    eos_token_ids: tuple[int, ...]
    decoder_start_token_id: int
    max_position_embeddings: Annotated[int, Int(1, 1 << 24)] = 1024
    activation_function: Annotated[str, Text([*ACTIVATIONS])] = "gelu"
    scale_embedding: Annotated[bool, Bool("true or false")] = False
    tie_word_embeddings: Annotated[bool, Bool("true or false")] = True
    share_encoder_decoder_embeddings: Annotated[bool, Bool("true or false")] = True
    has_logits_bias: bool = False

    @classmethod
    def from_dict(cls, raw: RawConfig, checkpoint: Checkpoint | None = None) -> BartConfig:
        """From a parsed config.json. Unknown keys are ignored; a missing or impossible one is named."""
        given = with_defaults(raw, FAMILIES[raw["model_type"]].defaults)
        config = cls(**checked_fields(cls, given), **checked_ids(given, given["vocab_size"]))
        config._check()
        return config if checkpoint is None else config.resolved(checkpoint)

    def _check(self) -> None:
        """Raise `CheckpointError` for what does not go together."""
        for name, heads in (
            ("encoder_attention_heads", self.encoder_attention_heads),
            ("decoder_attention_heads", self.decoder_attention_heads),
        ):
            if self.d_model % heads:
                raise CheckpointError(f"config.json: {name!r} must divide 'd_model', {self.d_model}; {heads} does not")
        if self.d_model % 2:
            raise CheckpointError(f"config.json: 'd_model' must be even, not {self.d_model}")
        if not self.share_encoder_decoder_embeddings:
            raise CheckpointError(
                "config.json: 'share_encoder_decoder_embeddings' is false: source and output have vocabularies of "
                "their own, which is not supported; take a model where they share one"
            )

    def resolved(self, checkpoint: Checkpoint) -> BartConfig:
        """The config with what only the tensors say: a head that differs from the embedding is not tied, whatever the
        flag says, and a bias of the logits is often zero.
        """
        names = checkpoint.keys()
        tied = self.tie_word_embeddings and (
            HEAD not in checkpoint or is_same_table(checkpoint, embedding_table(names, prefix_of(names)), HEAD)
        )
        biased = LOGITS_BIAS in checkpoint and (
            checkpoint.info(LOGITS_BIAS).shape != (1, self.vocab_size) or mx.any(checkpoint[LOGITS_BIAS]).item()
        )
        return replace(self, tie_word_embeddings=tied, has_logits_bias=bool(biased))

    @property
    def divided(self) -> dict[str, int]:
        names = ("attention_heads", "ffn_dim")
        return {each: getattr(self, each) for each in (f"{stack}_{name}" for stack in STACKS for name in names)}

    @property
    def encoder(self) -> LayerConfig:
        return self._stack("encoder")

    @property
    def decoder(self) -> LayerConfig:
        return self._stack("decoder")

    def _stack(self, stack: str) -> LayerConfig:
        heads = getattr(self, f"{stack}_attention_heads")
        return LayerConfig(
            d_model=self.d_model,
            d_ff=getattr(self, f"{stack}_ffn_dim"),
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=self.d_model // heads,
            activation=self.activation_function,
            scale=(self.d_model // heads) ** -0.5,
            has_bias=True,
            norm_first=self.family.norm_first,
        )

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def embedding_scale(self) -> float:
        return self.d_model**0.5 if self.scale_embedding else 1.0

    @property
    def max_source_tokens(self) -> int | None:
        return self.max_position_embeddings


def prefix_of(names: Set[str]) -> str:
    """Files of the model without its head, as facebook/bart-base, have none."""
    return "" if "decoder.layers.0.fc1.weight" in names else "model."

"""What config.json says of a BART-like model, and what its family adds."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, fields, replace
from typing import Any

import mlx.core as mx

from ..checkpoints import ID_FIELDS, Checkpoint
from ..errors import CheckpointError
from ..sampling.values import Switch, Text, Value, Whole
from .config import ACTIVATIONS, HEAD, EndIds, checked_ids, embedding_table, is_same_table, require, shares

LOGITS_BIAS = "final_logits_bias"
LEARNED_OFFSET = 2  # rows in front of a learned table of positions that belong to no position
STACKS = ("encoder", "decoder")
SHORT_NAMES = {"swish": "silu"}


@dataclass(frozen=True)
class Family:
    """What no config.json says. norm_first: norms stand in front of blocks, and one at the end of each stack; else
    behind the blocks. embedding_norm: also behind the embedding. learned_positions: else sines and cosines. spread: see
    `SinusoidalPositions`; then position 0 is also the first number behind the padding id. defaults: what Hugging Face
    assumes where config.json is silent.
    """

    norm_first: bool
    embedding_norm: bool
    learned_positions: bool
    defaults: Mapping[str, Any]
    spread: bool = False


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
        norm_first=True, embedding_norm=False, learned_positions=False, defaults=M2M_DEFAULTS, spread=True
    ),
    "marian": Family(norm_first=False, embedding_norm=False, learned_positions=False, defaults=MARIAN_IDS),
}
CHECKS: Mapping[str, Value] = {
    "vocab_size": Whole(2, 1 << 24),
    "d_model": Whole(4, 1 << 18),
    "encoder_layers": Whole(1, 512),
    "decoder_layers": Whole(1, 512),
    "encoder_attention_heads": Whole(1, 1 << 12),
    "decoder_attention_heads": Whole(1, 1 << 12),
    "encoder_ffn_dim": Whole(1, 1 << 22),
    "decoder_ffn_dim": Whole(1, 1 << 22),
    "max_position_embeddings": Whole(1, 1 << 24),
    "activation_function": Text([*ACTIVATIONS, *SHORT_NAMES]),
    "scale_embedding": Switch("true or false"),
    "tie_word_embeddings": Switch("true or false"),
    "share_encoder_decoder_embeddings": Switch("true or false"),
}


@dataclass(frozen=True)
class BartConfig(EndIds):
    """The fields of config.json that matter here, under their Hugging Face names. has_logits_bias: the checkpoint holds
    a `final_logits_bias`, and it is not zero everywhere.
    """

    model_type: str
    vocab_size: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    pad_token_id: int
    eos_token_id: int | tuple[int, ...]
    decoder_start_token_id: int
    max_position_embeddings: int = 1024
    activation_function: str = "gelu"
    scale_embedding: bool = False
    tie_word_embeddings: bool = True
    share_encoder_decoder_embeddings: bool = True
    has_logits_bias: bool = False

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> BartConfig:
        """From a parsed config.json. Unknown keys are ignored; a missing or impossible one is named."""
        names = {f.name for f in fields(cls)} - {"has_logits_bias"}
        given = {name: raw[name] for name in names if raw.get(name) is not None}
        known: dict[str, Any] = {**FAMILIES[raw["model_type"]].defaults, **given}
        for name, check in CHECKS.items():
            if name in known or not hasattr(cls, name):
                require(name, check, known.get(name))
        known |= checked_ids({name: known.get(name) for name in ID_FIELDS}, known["vocab_size"])
        config = cls(**known)
        config._check()
        return config if checkpoint is None else config.settled(checkpoint)

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

    def settled(self, checkpoint: Checkpoint) -> BartConfig:
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
    def memory_heads(self) -> int:
        return self.decoder_attention_heads

    @property
    def divided(self) -> dict[str, int]:
        names = ("attention_heads", "ffn_dim")
        return {each: getattr(self, each) for each in (f"{stack}_{name}" for stack in STACKS for name in names)}

    def share(self, processes: int) -> BartConfig:
        """The sizes of one of them; its heads are as wide as they were."""
        return replace(self, **shares(self.divided, processes))

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def activation_name(self) -> str:
        return SHORT_NAMES.get(self.activation_function, self.activation_function)

    @property
    def embedding_scale(self) -> float:
        return self.d_model**0.5 if self.scale_embedding else 1.0

    @property
    def num_heads(self) -> int:
        """Of the decoder."""
        return self.decoder_attention_heads

    @property
    def max_source_tokens(self) -> int | None:
        return self.max_position_embeddings


def prefix_of(names: Set[str]) -> str:
    """Files of the model without its head, as facebook/bart-base, have none."""
    return "" if "decoder.layers.0.fc1.weight" in names else "model."

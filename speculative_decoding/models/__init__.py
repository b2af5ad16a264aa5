"""Registry of supported architectures, by `model_type`. A new architecture needs a module and an entry below."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, NamedTuple

from ..checkpoints import Checkpoint
from ..errors import CheckpointError, Float16Error
from ..sampling.options import short_repr
from . import bart, t5, t5_float16, t5gemma, t5gemma2, whisper
from .bart import BART, FAMILIES, BartConfig
from .base import EncoderDecoder
from .config import RawConfig
from .t5 import T5, T5Config
from .t5gemma import T5Gemma, t5gemma_config
from .t5gemma2 import T5Gemma2, t5gemma2_config
from .tensors import TokenTables
from .whisper import Whisper, WhisperConfig


def unchanged(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """Return both as they are, for models that do not overflow.

    In BART and Marian, a norm after each residual sum keeps values from growing. OpenAI publishes Whisper in float16.
    """
    return raw, checkpoint


class Architecture(NamedTuple):
    """Constructors of an architecture.

    model: builds the model from the config and the number of tensor-parallel ranks.
    config: parses config.json; some fields also depend on the tensors of the checkpoint.
    adapt: see `adapt`.
    tables: see `token_tables`.
    for_float16: see `for_float16`. None if the residual stream grows from layer to layer and may overflow.
    """

    model: Callable[[Any, int], EncoderDecoder]
    config: Callable[[RawConfig, Checkpoint | None], Any]
    adapt: Callable[[RawConfig, Checkpoint], tuple[RawConfig, Checkpoint]]
    tables: Callable[[Set[str]], TokenTables]
    for_float16: Callable[[RawConfig, Checkpoint], tuple[RawConfig, Checkpoint]] | None = None


ARCHITECTURES = {
    **dict.fromkeys(
        ("t5", "mt5", "umt5"),
        Architecture(T5, T5Config.from_dict, t5.adapted, lambda _: t5.TABLES, t5_float16.for_float16),
    ),
    **{
        name: Architecture(
            BART, BartConfig.from_dict, bart.adapted, bart.token_tables, None if family.norm_first else unchanged
        )
        for name, family in FAMILIES.items()
    },
    "whisper": Architecture(Whisper, WhisperConfig.from_dict, whisper.adapted, lambda _: whisper.TABLES, unchanged),
    "t5gemma": Architecture(T5Gemma, t5gemma_config, t5gemma.adapted, lambda _: t5gemma.TABLES),
    "t5gemma2": Architecture(T5Gemma2, t5gemma2_config, t5gemma2.adapted, t5gemma2.token_tables),
}
UNSUPPORTED = {"longt5": "local attention is not supported; use T5 or FLAN-T5, which also accept long sources"}


def build(raw: RawConfig, checkpoint: Checkpoint | None = None, ranks: int = 1) -> EncoderDecoder:
    """Return a model without loaded parameters, for a parsed config.json.

    Args:
        checkpoint: Supplies fields that config.json may omit or misstate.
        ranks: The number of tensor-parallel ranks; the model has the size of one shard (distributed/sharding.py).
    """
    architecture = find(raw)
    return architecture.model(architecture.config(raw, checkpoint), ranks)


def check_config(raw: RawConfig) -> None:
    """Raise `CheckpointError` for a config.json that is unsupported or invalid."""
    find(raw).config(raw, None)


def hugging_face_config(raw: RawConfig) -> dict[str, Any]:
    """Return config.json with Hugging Face's fields, which mlx-whisper names differently."""
    return whisper.hugging_face_config(raw) if "n_mels" in raw else dict(raw)


def default_tokenizer(raw: RawConfig) -> str | None:
    """Return the model on the Hub whose tokenizer fits a folder without one, as mlx-whisper's folders are."""
    return whisper.TOKENIZERS.get(raw["vocab_size"]) if raw["model_type"] == "whisper" else None


def adapt(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """Return config.json, and a checkpoint with every tensor that the model reads, under its Hugging Face name.

    Tables that equal another one are left out. All other functions take checkpoints that this one returned.
    """
    return find(raw).adapt(raw, checkpoint)


def token_tables(raw: RawConfig, names: Set[str]) -> TokenTables:
    """Return the names of the tables with a row per token in a checkpoint that `adapt` returned."""
    return find(raw).tables(names)


def with_vocab_size(raw: RawConfig, size: int) -> dict[str, Any]:
    """Return config.json for tables with this number of rows."""
    changed = {**raw, "vocab_size": size} if "vocab_size" in raw else {**raw}
    for section in ("encoder", "decoder", "text_config"):  # T5Gemma's
        if isinstance(changed.get(section), dict):
            changed[section] = with_vocab_size(changed[section], size)
    return changed


def for_float16(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """Return config.json and weights of an equivalent model that cannot overflow in float16.

    Raises:
        Float16Error: There is none, or it is less precise than in bfloat16.
    """
    rescale = find(raw).for_float16
    if rescale is None:
        raise Float16Error(f"{checkpoint}: {raw['model_type']} models may overflow in float16; use bfloat16")
    return rescale(raw, checkpoint)


def find(raw: RawConfig) -> Architecture:
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        if isinstance(model_type, str) and model_type in UNSUPPORTED:
            raise CheckpointError(f"config.json: model_type {model_type!r}: {UNSUPPORTED[model_type]}")
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(f"config.json: unsupported model_type {short_repr(model_type)}; supported: {known}")
    return ARCHITECTURES[model_type]


__all__ = [
    "EncoderDecoder",
    "adapt",
    "build",
    "check_config",
    "default_tokenizer",
    "for_float16",
    "hugging_face_config",
    "token_tables",
    "with_vocab_size",
]

"""The supported architectures, keyed by `model_type`. Each module is imported when it is first needed.

To add an architecture, add a module that exports an `ARCHITECTURE`, and a line in `MODULES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..checkpoints import Checkpoint
from ..errors import CheckpointError, Float16Error
from ..sampling.options import short_repr
from .architecture import Architecture
from .base import EncoderDecoder
from .config import RawConfig

MODULES = {
    **dict.fromkeys(("t5", "mt5", "umt5"), "t5"),
    **dict.fromkeys(("bart", "mbart", "pegasus", "m2m_100", "marian", "opennmt"), "bart"),
    "whisper": "whisper",
    "t5gemma": "t5gemma",
    "t5gemma2": "t5gemma2",
}
RESCALING = {"t5": "t5_float16"}  # the module whose `for_float16` rescales an architecture that may overflow
UNSUPPORTED = {"longt5": "local attention is not supported; use T5 or FLAN-T5, which also accept long sources"}


def find(raw: RawConfig) -> Architecture:
    """Return the architecture for a parsed config.json. Raises `CheckpointError` if it is not supported."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODULES:
        if isinstance(model_type, str) and model_type in UNSUPPORTED:
            raise CheckpointError(f"config.json: model_type {model_type!r}: {UNSUPPORTED[model_type]}")
        if model_type is None:
            raise CheckpointError("config.json: has no 'model_type'; a CTranslate2 folder must also contain model.bin")
        known = ", ".join(MODULES)
        raise CheckpointError(f"config.json: unsupported model_type {short_repr(model_type)}; supported: {known}")
    architecture: Architecture = import_module(f".{MODULES[model_type]}", __name__).ARCHITECTURE
    return architecture


def build(raw: RawConfig, checkpoint: Checkpoint | None = None, ranks: int = 1) -> EncoderDecoder:
    """Build the model for a parsed config.json, without loading its parameters.

    Args:
        checkpoint: Supplies the values of fields that config.json may omit or misstate.
        ranks: The number of tensor-parallel ranks. The model is built in the size of one shard.
    """
    architecture = find(raw)
    return architecture.model(architecture.config(raw, checkpoint), ranks)


def hugging_face_config(raw: RawConfig) -> dict[str, Any]:
    """Return config.json with Hugging Face's field names; mlx-whisper uses different names."""
    if "n_mels" not in raw:
        return dict(raw)
    from .whisper import hugging_face_config

    return hugging_face_config(raw)


def default_tokenizer(raw: RawConfig) -> str | None:
    """Return a Hub model whose tokenizer suits a folder that has none, such as an mlx-whisper folder."""
    if raw["model_type"] != "whisper":
        return None
    from .whisper import TOKENIZERS

    return TOKENIZERS.get(raw["vocab_size"])


def with_vocab_size(raw: RawConfig, size: int) -> dict[str, Any]:
    """Return config.json with its vocabulary size changed to `size`, the number of rows of the embedding tables."""
    changed = {**raw, "vocab_size": size} if "vocab_size" in raw else {**raw}
    for section in ("encoder", "decoder", "text_config"):  # each section of T5Gemma's config has its own size
        if isinstance(changed.get(section), dict):
            changed[section] = with_vocab_size(changed[section], size)
    return changed


def for_float16(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """Return the config.json and weights of an equivalent model that cannot overflow in float16.

    Raises:
        Float16Error: There is no such model, or it would be less precise in float16 than the original in bfloat16.
    """
    model_type = raw["model_type"]
    if find(raw).fits_float16(raw):
        return raw, checkpoint
    if (module := RESCALING.get(MODULES[model_type])) is None:
        raise Float16Error(f"{checkpoint}: {model_type} models may overflow in float16; use bfloat16")
    rescaled: tuple[RawConfig, Checkpoint] = import_module(f".{module}", __name__).for_float16(raw, checkpoint)
    return rescaled


__all__ = [
    "EncoderDecoder",
    "build",
    "default_tokenizer",
    "find",
    "for_float16",
    "hugging_face_config",
    "with_vocab_size",
]

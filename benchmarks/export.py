"""A model in memory -> a Hugging Face folder in float32, the other way from conversion: peers get the same weights.

Peers are given ids, not text, so the folder's tokenizer is a formality: token i is written "t<i>".
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative_decoding.errors import InputError
from speculative_decoding.models.base import EncoderDecoder

CLASSES = {
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}


def export(model: EncoderDecoder, folder: Path) -> Path:
    """Write config.json, model.safetensors (float32) and a tokenizer into `folder`, which is made.

    Raises `InputError` for a quantised model: there is no float32 model that peers could be given.
    """
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    if any(path.endswith(".scales") for path in parameters):
        raise InputError("peers need weights that are not quantised; convert the model without --quantize")
    tensors = {}
    for path, names in model.parameter_sources(model.config, set()).items():
        for name, share in zip(names, mx.split(parameters[path].astype(mx.float32), len(names)), strict=True):
            tensors[name] = mx.contiguous(share)
    config = config_json(model)
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tokenizer, settings = tokenizer_json(config)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def config_json(model: EncoderDecoder) -> dict[str, Any]:
    settings: Any = model.config  # its fields carry Hugging Face's names
    eos = list(settings.eos_token_ids)
    return asdict(settings) | {
        "architectures": [CLASSES[settings.model_type]],
        "num_decoder_layers": settings.decoder_layers,
        "scale_decoder_outputs": settings.head_is_scaled,
        "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else eos,
        "is_encoder_decoder": True,
        "torch_dtype": "float32",
    }


def tokenizer_json(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json: as many words as the model has ids."""
    eos = config["eos_token_id"]
    pad, end = config["pad_token_id"], eos[0] if isinstance(eos, list) else 1 if eos is None else eos
    unknown = next(i for i in range(config["vocab_size"]) if i not in (pad, end))
    vocabulary = {f"t{i}": i for i in range(config["vocab_size"])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": f"t{unknown}"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {f"{role}_token": f"t{i}" for role, i in (("pad", pad), ("eos", end), ("unk", unknown))}
    return {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": {"type": "Whitespace"}}, settings

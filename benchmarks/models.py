"""Models to measure: builds models of published shapes with random weights, exports them, and counts bytes per pass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from speculative_decoding.errors import InputError
from speculative_decoding.models import build
from speculative_decoding.models.base import EncoderDecoder, is_read_by_pass, quantizable
from speculative_decoding.models.draft_head import DraftHead, default_layers

COMMON = {"model_type": "t5", "vocab_size": 32128, "d_kv": 64, "eos_token_id": []}  # no output ends early
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "t5-small": COMMON | {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "t5-base": COMMON | {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    "t5-large": COMMON | {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
}  # Raffel et al. 2020, section 3.1.1 and appendix; v1.0
HEAD = "head"  # denotes a draft head where a shape is expected
GROUP_SIZE = 64  # of quantization


@dataclass(frozen=True)
class Models:
    """A target with its draft, and a draft model for peers, because peers do not support draft heads."""

    target: EncoderDecoder
    draft: EncoderDecoder | DraftHead | None
    assistant: EncoderDecoder | None = None


def parameters_of(model: EncoderDecoder) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def dtype_of(model: EncoderDecoder) -> mx.Dtype:
    return model.embed(mx.array([[0]])).dtype


def head_of(sources: Mapping[str, Any]) -> str:
    """Return the path of the output layer."""
    return "head" if "head.weight" in sources else "embedding"


def bytes_per_pass(model: EncoderDecoder) -> int:
    """Return the bytes of weights that one decoder pass reads: the decoder's layers and the output matrix.

    This excludes the encoder and the cross-attention's key and value projections, which run once per request. It also
    excludes the embedding, because a pass reads only one of its rows, unless the embedding is tied to the output
    matrix.
    """
    has_head = "head" in model
    return sum(value.nbytes for path, value in parameters_of(model).items() if is_read_by_pass(path, has_head=has_head))


def random_model(
    shape: Mapping[str, Any], dtype: mx.Dtype = mx.float32, bits: int | None = None, seed: int = 0
) -> EncoderDecoder:
    """Return a model whose scales are 1 and whose matrices are drawn from N(0, 1 / columns).

    With these weights, activations stay in range.

    Args:
        shape: Fields of config.json.
        dtype: Data type of the weights.
        bits: If given, all matrices except the output matrix are quantized, as in `load`.
        seed: Random seed of the weights.
    """
    model = build(shape)
    parameters = parameters_of(model)
    for (path, old), key in zip(parameters.items(), mx.random.split(mx.random.key(seed), len(parameters)), strict=True):
        new = mx.ones(old.shape) if old.ndim == 1 else mx.random.normal(old.shape, key=key) * old.shape[-1] ** -0.5
        mx.eval(new := new.astype(dtype))  # evaluate one at a time, to avoid a second copy of a large model
        model.load_weights([(path, new)], strict=False)
    if bits is not None:
        sources = model.parameter_sources(model.config, set())
        layers = quantizable(model, sources, GROUP_SIZE).keys() - {head_of(sources)}
        nn.quantize(model, GROUP_SIZE, bits, class_predicate=lambda path, module: path in layers)
        mx.eval(model.parameters())
    return model


def random_draft(name: str, target: EncoderDecoder) -> EncoderDecoder | DraftHead:
    """Return an untrained head, or a model of this shape, in the target's dtype."""
    if name != HEAD:
        return random_model(SHAPES[name], dtype_of(target), seed=1)
    head = DraftHead.for_target(target, default_layers(target.config.decoder_layers))
    head.set_dtype(dtype_of(target))
    return head.with_frequent(range(min(1024, target.config.vocab_size)))


def exported(model: EncoderDecoder, folder: Path) -> Path:
    """Write config.json, model.safetensors (float32) and a tokenizer, unless the folder exists. Returns the folder.

    Peers receive ids instead of text, so the tokenizer represents token i as "t<i>".

    Raises:
        InputError: The model is quantized or rescaled for float16; peers support neither.
    """
    if folder.exists():
        return folder
    parameters = parameters_of(model)
    if any(path.endswith(".scales") for path in parameters):
        raise InputError("--peers: peers need unquantized weights; convert the model without --quantize")
    if model.residual_scale != 1.0:
        raise InputError("--peers: peers need weights that are not rescaled for float16; use --dtype bfloat16")
    tensors = {}
    for path, names in model.parameter_sources(model.config, set()).items():
        for name, part in zip(names, mx.split(parameters[path].astype(mx.float32), len(names)), strict=True):
            tensors[name] = mx.contiguous(part)
    settings: Any = model.config  # its fields have the same names as in Hugging Face
    eos = list(settings.eos_token_ids)
    config = asdict(settings) | {
        "num_decoder_layers": settings.decoder_layers,
        "scale_decoder_outputs": settings.scale_decoder_outputs,
        "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else eos,
    }
    size = settings.vocab_size
    pad = settings.pad_token_id
    end = eos[0] if eos else 1
    special = {"pad": pad, "eos": end, "unk": next(i for i in range(size) if i not in (pad, end))}
    words = {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(size)}, "unk_token": f"t{special['unk']}"}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": words, "pre_tokenizer": {"type": "Whitespace"}}
    roles = {f"{role}_token": f"t{i}" for role, i in special.items()} | {"tokenizer_class": "PreTrainedTokenizerFast"}
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "pt"})
    for name, content in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", roles)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder

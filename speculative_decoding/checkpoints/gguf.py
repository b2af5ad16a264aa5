"""Reader for GGUF files of T5 models, in llama.cpp's tensor names. Quantised types come out as float32.

The `gguf` package dequantises; the header is read by gguf_header.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .base import Checkpoint
from .gguf_header import GgufTensor, Header, read_header

CHUNK_ELEMENTS = 1 << 20  # dequantised at a time


def attention(prefix: str, layer: int, name: str) -> dict[str, str]:
    """llama.cpp's names of one attention layer's tensors -> Hugging Face's, within a block."""
    matrices = {f"{prefix}_{part}": f"layer.{layer}.{name}.{part}" for part in "qkvo"}
    bias = {f"{prefix}_rel_b": f"layer.{layer}.{name}.relative_attention_bias"}
    return {f"{prefix}_norm": f"layer.{layer}.layer_norm"} | matrices | bias


def feed_forward(layer: int) -> dict[str, str]:
    matrices = {"ffn_gate": "wi_0", "ffn_up": "wi_1", "ffn_down": "wo"}
    return {"ffn_norm": f"layer.{layer}.layer_norm"} | {
        theirs: f"layer.{layer}.DenseReluDense.{ours}" for theirs, ours in matrices.items()
    }


SELF_ATTENTION = attention("attn", 0, "SelfAttention")
BLOCK_NAMES = {
    "enc": SELF_ATTENTION | feed_forward(1),
    "dec": SELF_ATTENTION | attention("cross_attn", 1, "EncDecAttention") | feed_forward(2),
}
NAMES = {
    "token_embd": "shared",
    "output": "lm_head",
    "enc.output_norm": "encoder.final_layer_norm",
    "dec.output_norm": "decoder.final_layer_norm",
}
CONFIG_SIZES = {
    "d_model": "embedding_length",
    "d_kv": "attention.key_length",
    "d_ff": "feed_forward_length",
    "num_layers": "block_count",
    "num_heads": "attention.head_count",
    "relative_attention_num_buckets": "attention.relative_buckets_count",
}
BLOCK = re.compile(r"(enc|dec)\.blk\.(\d{1,4})\.(\w+)", re.ASCII)


def t5_header(path: Path) -> Header:
    header = read_header(path)
    if (architecture := header.metadata.get("general.architecture")) != "t5":
        raise header.file.error(f"a model of architecture {architecture!r}; only 't5' can be read")
    if header.metadata.get("split.count", 1) != 1:
        raise header.file.error("one part of a split model; join the parts with llama-gguf-split --merge")
    return header


def is_gated(header: Header) -> bool:
    return "enc.blk.0.ffn_gate.weight" in header.tensors


def hugging_face_name(name: str, gated: bool) -> str | None:
    """llama.cpp's name of a T5 tensor -> Hugging Face's; None if it is neither."""
    stem = name.removesuffix(".weight")
    if stem == name:
        return None
    if match := BLOCK.fullmatch(stem):
        side, index, part = match.groups()
        inner = BLOCK_NAMES[side].get(part)
        if part == "ffn_up" and not gated:
            inner = BLOCK_NAMES[side]["ffn_gate"].removesuffix("_0")
        return f"{side}oder.block.{int(index)}.{inner}.weight" if inner else None
    return f"{NAMES[stem]}.weight" if stem in NAMES else None


class GgufCheckpoint(Checkpoint):
    """F32, F16 and BF16 tensors in their own type; quantised ones as float32, `TensorInfo` included."""

    def __init__(self, header: Header) -> None:
        self._file = header.file
        self._tensors: dict[str, GgufTensor] = {}
        for name, tensor in header.tensors.items():
            known = hugging_face_name(name, is_gated(header))
            if known is None or known in self._tensors:
                raise self._file.error(f"tensor {name!r} is not one of T5's, or appears twice")
            self._tensors[known] = tensor
        super().__init__(self._file.path, {name: tensor.info for name, tensor in self._tensors.items()})

    def __getitem__(self, name: str) -> mx.array:
        tensor = self._tensors[name]
        if tensor.type.block == 1:
            return self._file.array(tensor.info, tensor.extent)
        raw = np.frombuffer(self._file.data, np.uint8, tensor.extent.nbytes, tensor.extent.start)
        array = mx.array(dequantised(raw, tensor))
        self._file.release(tensor.extent)
        return array


def dequantised(raw: NDArray[np.uint8], tensor: GgufTensor) -> NDArray[np.float32]:
    """Some rows at a time: dequantising needs several times the memory of what it gives."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType[tensor.type.name]
    columns = tensor.info.shape[-1]
    rows = raw.reshape(-1, columns // tensor.type.block * tensor.type.nbytes)
    out = np.empty((len(rows), columns), np.float32)
    step = max(1, CHUNK_ELEMENTS // columns)
    with np.errstate(all="ignore"):  # a scale may be infinite; the file says so
        for start in range(0, len(rows), step):
            out[start : start + step] = dequantize(rows[start : start + step], kind)
    return out.reshape(tensor.info.shape)


def read_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of a T5 model. Raises `CheckpointError` if it is damaged or another model's."""
    return GgufCheckpoint(t5_header(path))


def gguf_config(path: Path) -> dict[str, Any]:
    """config.json's fields, as Hugging Face names them, from the metadata and from which tensors there are.

    llama.cpp keeps neither the activation nor the largest distance; it computes with gated GELU or ReLU, and 128.
    """
    header = t5_header(path)
    metadata = header.metadata
    pad = metadata.get("tokenizer.ggml.padding_token_id", 0)
    config = {field: metadata.get(f"t5.{key}") for field, key in CONFIG_SIZES.items()}
    config["num_decoder_layers"] = metadata.get("t5.decoder_block_count", config["num_layers"])
    ids = {
        "pad_token_id": pad,
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id", 1),
        "decoder_start_token_id": metadata.get("t5.decoder_start_token_id", pad),
    }
    for field, value in (config | ids).items():
        if type(value) is not int or value < (field in config):
            raise header.file.error(f"no {field} in the metadata, or an impossible one ({value!r})")
    epsilon = metadata.get("t5.attention.layer_norm_rms_epsilon")
    if type(epsilon) is not float or not 0 < epsilon < 1 or "token_embd.weight" not in header.tensors:
        raise header.file.error(f"no token embedding, or an impossible layer_norm_epsilon ({epsilon!r})")
    return {
        "model_type": "umt5" if "enc.blk.1.attn_rel_b.weight" in header.tensors else "t5",
        "vocab_size": header.tensors["token_embd.weight"].info.shape[0],
        **config,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": float(str(np.float32(epsilon))),  # 1e-06, not what float32 made of it
        "feed_forward_proj": "gated-gelu" if is_gated(header) else "relu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **ids,
    }

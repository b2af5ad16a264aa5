"""Reader for GGUF files of T5 models, in llama.cpp's tensor names. Quantised types come out as float32.

The `gguf` package dequantises; the header is read by gguf_header.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError
from .base import Checkpoint, TensorInfo, array_from_bytes
from .gguf_header import Cursor, GgufTensor, Header, read_header
from .mapped import Extent, release

CHUNK_ELEMENTS = 1 << 20  # dequantised at a time

NAMES = {
    "token_embd": "shared",
    "output": "lm_head",
    "enc.output_norm": "encoder.final_layer_norm",
    "dec.output_norm": "decoder.final_layer_norm",
}
SELF_ATTENTION = {
    "attn_norm": "layer.0.layer_norm",
    "attn_q": "layer.0.SelfAttention.q",
    "attn_k": "layer.0.SelfAttention.k",
    "attn_v": "layer.0.SelfAttention.v",
    "attn_o": "layer.0.SelfAttention.o",
    "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias",
}
BLOCK_NAMES = {
    "enc": SELF_ATTENTION
    | {
        "ffn_norm": "layer.1.layer_norm",
        "ffn_gate": "layer.1.DenseReluDense.wi_0",
        "ffn_up": "layer.1.DenseReluDense.wi_1",
        "ffn_down": "layer.1.DenseReluDense.wo",
    },
    "dec": SELF_ATTENTION
    | {
        "cross_attn_norm": "layer.1.layer_norm",
        "cross_attn_q": "layer.1.EncDecAttention.q",
        "cross_attn_k": "layer.1.EncDecAttention.k",
        "cross_attn_v": "layer.1.EncDecAttention.v",
        "cross_attn_o": "layer.1.EncDecAttention.o",
        "cross_attn_rel_b": "layer.1.EncDecAttention.relative_attention_bias",
        "ffn_norm": "layer.2.layer_norm",
        "ffn_gate": "layer.2.DenseReluDense.wi_0",
        "ffn_up": "layer.2.DenseReluDense.wi_1",
        "ffn_down": "layer.2.DenseReluDense.wo",
    },
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


def t5_header(cursor: Cursor) -> Header:
    header = read_header(cursor)
    if (architecture := header.metadata.get("general.architecture")) != "t5":
        raise CheckpointError(f"{cursor.path}: a model of architecture {architecture!r}; only 't5' can be read")
    if header.metadata.get("split.count", 1) != 1:
        raise CheckpointError(f"{cursor.path}: one part of a split model; join the parts with llama-gguf-split --merge")
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

    def __init__(self, cursor: Cursor) -> None:
        self.path = cursor.path
        self._data = cursor.data
        header = t5_header(cursor)
        self._tensors: dict[str, GgufTensor] = {}
        for name, tensor in header.tensors.items():
            known = hugging_face_name(name, is_gated(header))
            if known is None or known in self._tensors:
                raise CheckpointError(f"{self.path}: tensor {name!r} is none of T5's, or stands in it twice")
            self._tensors[known] = tensor

    def info(self, name: str) -> TensorInfo:
        return TensorInfo(self._tensors[name].shape, self._tensors[name].type.dtype)

    def __getitem__(self, name: str) -> mx.array:
        tensor = self._tensors[name]
        raw = np.frombuffer(self._data, np.uint8, tensor.nbytes, tensor.start)
        if tensor.type.block > 1:
            array = mx.array(self._dequantised(raw, tensor))
        else:
            array = array_from_bytes(raw, self.info(name))
        release(self._data, Extent(tensor.start, tensor.nbytes))
        return array

    def _dequantised(self, raw: NDArray[np.uint8], tensor: GgufTensor) -> NDArray[np.float32]:
        """Some rows at a time: dequantising needs several times the memory of what it gives."""
        try:
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError as error:
            raise CheckpointError(f"{self.path}: quantised tensors need the gguf package (pip install gguf)") from error
        kind = GGMLQuantizationType[tensor.type.name]
        columns = tensor.shape[-1]
        rows = raw.reshape(-1, columns // tensor.type.block * tensor.type.nbytes)
        out = np.empty((len(rows), columns), np.float32)
        step = max(1, CHUNK_ELEMENTS // columns)
        with np.errstate(all="ignore"):  # a scale may be infinite; the file says so
            for start in range(0, len(rows), step):
                out[start : start + step] = dequantize(rows[start : start + step], kind)
        return out.reshape(tensor.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __str__(self) -> str:
        return str(self.path)


def read_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of a T5 model. Raises `CheckpointError` if it is damaged or another model's."""
    return GgufCheckpoint(Cursor(path))


def gguf_config(path: Path) -> dict[str, Any]:
    """config.json's fields, as Hugging Face names them, from the metadata and from which tensors there are.

    llama.cpp keeps neither the activation nor the largest distance; it computes with gated GELU or ReLU, and 128.
    """
    header = t5_header(Cursor(path))
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
            raise CheckpointError(f"{path}: no {field} in the metadata, or an impossible one ({value!r})")
    epsilon = metadata.get("t5.attention.layer_norm_rms_epsilon")
    if type(epsilon) is not float or not 0 < epsilon < 1 or "token_embd.weight" not in header.tensors:
        raise CheckpointError(f"{path}: no token embedding, or an impossible layer_norm_epsilon ({epsilon!r})")
    return {
        "model_type": "umt5" if "enc.blk.1.attn_rel_b.weight" in header.tensors else "t5",
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        **config,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": float(str(np.float32(epsilon))),  # 1e-06, not what float32 made of it
        "feed_forward_proj": "gated-gelu" if is_gated(header) else "relu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **ids,
    }

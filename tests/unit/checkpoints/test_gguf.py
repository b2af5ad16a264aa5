"""The GGUF reader: its arrays equal the gguf package's, under Hugging Face's names."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from speculative_decoding import load
from speculative_decoding.checkpoints.base import Checkpoint, TensorInfo
from speculative_decoding.checkpoints.gguf import (
    dequantize_tensor,
    ggml_types,
    gguf_config,
    hugging_face_name,
    read_gguf,
    read_header,
)
from speculative_decoding.checkpoints.safetensors import read_safetensors
from speculative_decoding.checkpoints.torch_bin import read_torch
from speculative_decoding.errors import CheckpointError, InputError
from tests.support.checkpoint_files import GGUF_METADATA, GgufArray, gguf_bytes, gguf_file, t5_arrays, torch_file
from tests.support.tiny import CONFIG, save_hugging_face, tiny_model

gguf = pytest.importorskip("gguf")
TYPES = ggml_types()
QUANTIZED = {number: kind for number, kind in TYPES.items() if kind.block_size > 1}
Q = "enc.blk.0.attn_q.weight"
HF_Q = "encoder.block.0.layer.0.SelfAttention.q.weight"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def with_metadata(**changes: Any) -> dict[str, tuple[str, Any]]:
    """Return the metadata of a tiny T5 with some keys changed, or removed if None. Write __ for a dot in a key."""
    changed = GGUF_METADATA | {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not None}


def random_blocks(number: int, rows: int, blocks: int) -> np.ndarray:
    """Return random bytes with finite half-precision scales."""
    raw = np.random.default_rng(number).integers(0, 256, (rows, blocks, TYPES[number].block_bytes), np.uint8)
    # Scales are at one end of a block. Clearing the top bit of their exponents keeps them finite.
    for at in (1, 3, -1, -3):
        raw[..., at] &= 0xBF
    return raw.reshape(rows, -1)


def test_all_formats_give_bit_equal_arrays(tmp_path: Path) -> None:
    from safetensors.numpy import save

    arrays = t5_arrays()
    checkpoints: Mapping[str, Checkpoint] = {
        "gguf": read_gguf(written(tmp_path / "model.gguf", gguf_file(arrays))),
        "zip": read_torch(written(tmp_path / "zip.bin", torch_file("zip", arrays))),
        "legacy": read_torch(written(tmp_path / "legacy.bin", torch_file("legacy", arrays))),
        "safetensors": read_safetensors(written(tmp_path / "model.safetensors", save(arrays))),
    }
    for form, checkpoint in checkpoints.items():
        assert set(checkpoint) == set(arrays), form
        for name, array in arrays.items():
            assert checkpoint[name].dtype == mx.float32
            assert np.array(checkpoint[name]).tobytes() == array.tobytes(), (form, name)


@pytest.mark.parametrize("gated", [True, False])
def test_all_t5_tensor_names_of_llama_cpp_are_translated(gated: bool) -> None:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5, 3)
    found = set()
    for hugging_face, (kind, theirs) in names.mapping.items():
        is_t5 = hugging_face.startswith(("encoder.block.", "decoder.block.")) or hugging_face in T5_OUTER
        if is_t5 and (not hugging_face.endswith((".wi_0", ".wi_1", ".wi")) or hugging_face.endswith(".wi") != gated):
            assert hugging_face_name(f"{theirs}.weight", gated) == f"{hugging_face}.weight"
            found.add(kind)
    missing = set(gguf.MODEL_TENSORS[gguf.MODEL_ARCH.T5]) - found
    assert missing <= {gguf.MODEL_TENSOR.ENC_FFN_GATE, gguf.MODEL_TENSOR.DEC_FFN_GATE} and not (gated and missing)


T5_OUTER = {"shared", "lm_head", "encoder.final_layer_norm", "decoder.final_layer_norm"}


@pytest.mark.parametrize("number", QUANTIZED, ids=lambda number: TYPES[number].name)
def test_quantized_types_equal_the_packages_dequantization(tmp_path: Path, number: int) -> None:
    raw = random_blocks(number, rows=37, blocks=2)
    tensor = GgufArray(number, (37, 2 * TYPES[number].block_size), raw.tobytes())
    path = written(tmp_path / "model.gguf", gguf_bytes(GGUF_METADATA, {Q: tensor}))
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(number))
    array = read_gguf(path)[HF_Q]
    assert np.isfinite(expected).all() and read_gguf(path).info(HF_Q) == TensorInfo(tensor.shape, mx.float32)
    assert np.array(array).tobytes() == expected.tobytes() and array.shape == tensor.shape
    in_steps = dequantize_tensor(raw, read_header(path).tensors[Q], chunk_elements=1000)
    assert in_steps.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("kind", "dtype"), [("F16", mx.float16), ("BF16", mx.bfloat16), ("F32", mx.float32)])
def test_float_types_keep_their_dtype_and_bits(tmp_path: Path, kind: str, dtype: mx.Dtype) -> None:
    arrays = t5_arrays()
    path = written(tmp_path / "model.gguf", gguf_file(arrays, {HF_Q: kind}))
    array = read_gguf(path)[HF_Q]
    assert array.dtype == read_gguf(path).info(HF_Q).dtype == dtype
    assert np.array_equal(
        np.array(array.astype(mx.float32)), np.array(mx.array(arrays[HF_Q]).astype(dtype).astype(mx.float32))
    )


def test_the_gguf_package_reads_our_test_files(tmp_path: Path) -> None:
    kinds = {HF_Q: "Q8_0", "shared.weight": "BF16"}
    path = written(tmp_path / "model.gguf", gguf_file(t5_arrays(), kinds))
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    ours = read_gguf(path)
    assert len(theirs) == len(ours)
    for name, tensor in theirs.items():
        array = ours[hugging_face_name(name, is_gated=True) or ""].astype(mx.float32)
        assert np.array_equal(np.array(array), gguf.quants.dequantize(tensor.data, tensor.tensor_type))


def test_config_equals_hugging_faces(tmp_path: Path) -> None:
    assert gguf_config(written(tmp_path / "model.gguf", gguf_file(t5_arrays()))) == {
        "model_type": "t5",
        "vocab_size": 48,
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 2,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def test_config_depends_on_the_tensors(tmp_path: Path) -> None:
    def arrays(kind: str) -> dict[str, GgufArray]:
        number = 0
        numbers = np.zeros((4, 32), np.float32)
        return {name: GgufArray(number, numbers.shape, numbers.tobytes()) for name in ("token_embd.weight", kind)}

    def config(kind: str, **changes: Any) -> dict[str, Any]:
        return gguf_config(written(tmp_path / "model.gguf", gguf_bytes(with_metadata(**changes), arrays(kind))))

    assert config("enc.blk.0.ffn_up.weight")["feed_forward_proj"] == "relu"
    assert config("enc.blk.0.ffn_gate.weight")["feed_forward_proj"] == "gated-gelu"
    assert config("enc.blk.0.ffn_up.weight")["tie_word_embeddings"] is True
    assert config("output.weight")["tie_word_embeddings"] is False
    assert config("enc.blk.1.attn_rel_b.weight")["model_type"] == "umt5"
    assert config("output.weight", t5__decoder_block_count=None)["num_decoder_layers"] == 2
    assert config("output.weight", t5__decoder_block_count=("u32", 5))["num_decoder_layers"] == 5
    assert config("output.weight", tokenizer__ggml__padding_token_id=("u32", 7))["pad_token_id"] == 7


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"t5__attention__key_length": ("u32", 0)}, "d_kv"),
        ({"t5__block_count": ("str", "2")}, "num_layers"),
        ({"t5__attention__layer_norm_rms_epsilon": ("f32", float("nan"))}, "layer_norm_epsilon"),
        ({"tokenizer__ggml__eos_token_id": ("i32", -1)}, "eos_token_id"),
        ({"general__architecture": ("str", "llama")}, "llama"),
        ({"split__count": ("u32", 3)}, "split"),
        ({"general__alignment": ("u32", 24)}, "alignment"),
        ({"general__alignment": ("u32", 0)}, "alignment"),
        ({"general__alignment": ("str", "32")}, "alignment"),
        ({}, "the token embedding is missing"),
    ],
)
def test_invalid_metadata_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    numbers = np.zeros((4, 32), np.float32)
    tensors = {"token_embd.weight" if change else Q: GgufArray(0, numbers.shape, numbers.tobytes())}
    path = written(tmp_path / "model.gguf", gguf_bytes(with_metadata(**change), tensors))
    with pytest.raises(CheckpointError, match=rf"model\.gguf.*{named}"):
        gguf_config(path)


def tensor(kind: int = 0, shape: tuple[int, ...] = (4, 32), size: int | None = None) -> GgufArray:
    return GgufArray(kind, shape, bytes(4 * 4 * 32 if size is None else size))


@pytest.mark.parametrize(
    "tensors",
    [
        {"enc.blk.0.attn_z.weight": tensor()},
        {"enc.blk.0.attn_q.bias": tensor()},
        {Q: tensor(), "enc.blk.00.attn_q.weight": tensor()},
        {Q: tensor(kind=99)},
        {Q: tensor(kind=2, shape=(4, 31))},
        {Q: tensor(shape=(1, 1, 1, 4, 32))},
        {Q: tensor(shape=(0, 32))},
        {Q: tensor(shape=(4, 33))},
        {Q: tensor(shape=(1 << 31, 4))},
        {Q: tensor(shape=((1 << 31) - 1, (1 << 31) - 1, (1 << 31) - 1, (1 << 31) - 1))},
        {Q: tensor(shape=(4, 64)), "enc.blk.0.attn_k.weight": tensor()},
    ],
)
def test_invalid_tensors_are_refused(tmp_path: Path, tensors: dict[str, GgufArray]) -> None:
    path = written(tmp_path / "model.gguf", gguf_bytes(GGUF_METADATA, tensors))
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        read_gguf(path)


def header(num_tensors: int, num_fields: int, rest: bytes = b"", magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_fields) + rest + bytes(64)


ARCHITECTURE = struct.pack("<Q20sIQ2s", 20, b"general.architecture", 8, 2, b"t5")
TENSOR = ("<Q1sIQIQ", 1, b"a", 1, 4, 0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"GGUF", "the file is truncated"),
        (header(0, 0, magic=b"GGML"), "it starts with b'GGML'"),
        (header(0, 0, version=1), "version 1 "),
        (header(0, 1, struct.pack("<Q1sI", 1, b"a", 13)), "unknown value type 13"),
        (header(0, 2, struct.pack("<Q1sIB", 1, b"a", 0, 0) * 2), "field 'a' appears twice"),
        (header(2, 1, ARCHITECTURE + struct.pack(*TENSOR, 0) * 2), "tensor 'a' appears twice"),
        (header(1, 1, ARCHITECTURE + struct.pack(*TENSOR, 1 << 63)), "tensor 'a' .*reaches past the end"),
        (header(1, 1, ARCHITECTURE + struct.pack(*TENSOR, 4)), "tensor 'a' .*is not aligned"),
    ],
    ids=range(8),
)
def test_invalid_headers_are_refused_with_the_problem(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError, match=rf"model\.gguf.*{problem}"):
        read_gguf(written(tmp_path / "model.gguf", content))


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    whole = gguf_bytes(GGUF_METADATA, {Q: tensor()})
    for size in range(0, len(whole), 31):
        with pytest.raises(CheckpointError, match=r"model\.gguf"):
            read_gguf(written(tmp_path / "model.gguf", whole[:size]))


def test_a_vocabulary_is_skipped_without_using_memory(tmp_path: Path) -> None:
    def peak(key: str, value: tuple[str, Any]) -> int:
        content = gguf_bytes(GGUF_METADATA | {key: value}, {Q: tensor()})
        path = written(tmp_path / "model.gguf", content)
        tracemalloc.start()
        assert list(read_gguf(path)) == [HF_Q]
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak("tokenizer.ggml.tokens", ("strs", [str(index) for index in range(20_000)])) < 100_000
    assert peak("tokenizer.chat_template", ("str", "x" * 200_000)) < 100_000


def test_a_named_gguf_file_has_precedence_over_other_weights(tmp_path: Path) -> None:
    """It is given by its name in the folder or by a path, for the target and for a draft made from it."""
    folder = save_hugging_face(tiny_model(), tmp_path / "model", CONFIG)
    (folder / "config.json").unlink()
    (tmp_path / "elsewhere.gguf").write_bytes(gguf_file(t5_arrays(seed=2)))
    for seed in (0, 1):
        (folder / f"{seed}.gguf").write_bytes(gguf_file(t5_arrays(seed=seed)))
    for seed, name in enumerate(("0.gguf", "1.gguf", str(tmp_path / "elsewhere.gguf"))):
        session = load(folder, gguf_file=name, draft="self-8bit", group_size=32)
        model = session.model
        (tensor,) = (value for path, value in tree_flatten(model.parameters()) if path == "embedding.weight")
        assert np.array_equal(np.array(tensor), t5_arrays(seed=seed)["shared.weight"])
        assert session.draft_model is not None and model.config.vocab_size == 48
    with pytest.raises(InputError, match=r"gguf_file 'none\.gguf': no such file, here or in"):
        load(folder, gguf_file="none.gguf")

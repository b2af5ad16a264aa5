"""Quantized weights: the tensors of a folder determine the format, and quantizing on load equals converting."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest

from speculative_decoding import CheckpointError, InputError, checkpoints, load
from speculative_decoding.checkpoints import Checkpoint, TensorInfo
from speculative_decoding.checkpoints.quantized import QuantizedCheckpoint
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import BUNDLED, Storage
from speculative_decoding.models.base import EncoderDecoder
from tests.support.tiny import CONFIG, save_hugging_face, tiny_model

DRAFT = BUNDLED / "t5-web-docs-draft"


def quantized_layers(model: EncoderDecoder) -> dict[str, tuple[int, int]]:
    return {
        path: (module.bits, module.group_size)
        for path, module in model.named_modules()
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding)
    }


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 64)])
def test_the_quantization_of_a_folder_follows_from_its_tensors(bits: int, group_size: int, tmp_path: Path) -> None:
    output = convert(str(DRAFT), tmp_path / "out", Storage("bfloat16", bits, group_size))
    from_file, _ = load(output, dtype="float32")
    layers = quantized_layers(from_file)
    assert set(layers.values()) == {(bits, group_size)} and "decoder.layers.0.ff.wo" in layers
    original = checkpoints.read(DRAFT)["shared.weight"].astype(mx.bfloat16)
    assert "embedding" not in layers and mx.array_equal(from_file.embedding.weight, original)  # the tied head
    in_memory, _ = load(DRAFT, dtype="bfloat16", quantize=bits, group_size=group_size)
    in_memory.set_dtype(mx.float32)
    tokens = mx.array([[3, 4, 1]])
    logits = [m.decode(tokens, m.make_cache(m.encode(tokens))) for m in (from_file, in_memory)]
    assert mx.array_equal(*logits)


def test_the_embedding_is_quantized_unless_it_is_the_head(tmp_path: Path) -> None:
    config = CONFIG | {"d_model": 64, "d_ff": 64, "d_kv": 32}
    for is_tied in (True, False):
        changes = {"d_model": 64, "d_ff": 64, "d_kv": 32, "tie_word_embeddings": is_tied}
        folder = save_hugging_face(tiny_model(**changes), tmp_path / str(is_tied), config | changes)
        layers = quantized_layers(load(folder, quantize=8).model)
        assert ("embedding" in layers) == (not is_tied) and "head" not in layers


@pytest.mark.usefixtures("device")
def test_quantized_parts_equal_those_of_mlx(tmp_path: Path) -> None:
    inner = checkpoints.read(DRAFT)
    name = "encoder.block.0.layer.0.SelfAttention.q.weight"
    outer = QuantizedCheckpoint(inner, {name}, 4, 64)
    assert len(list(outer)) == len(outer) == len(inner) + 2
    for ours, theirs, part in zip(
        (outer[name], outer[name[:-6] + "scales"], outer[name[:-6] + "biases"]),
        mx.quantize(inner[name], group_size=64, bits=4),
        (name, name[:-6] + "scales", name[:-6] + "biases"),
        strict=True,
    ):
        assert mx.array_equal(ours, theirs)
        assert outer.info(part).shape == theirs.shape and outer.info(part).dtype == theirs.dtype


def test_an_error_names_why_a_model_cannot_be_quantized(tmp_path: Path) -> None:
    folder = save_hugging_face(tiny_model(), tmp_path / "hf", CONFIG)  # 16 and 32 columns
    with pytest.raises(InputError, match="groups of 64"):
        load(folder, quantize=4)
    for options in ({"quantize": 3}, {"quantize": 4, "group_size": 48}):
        with pytest.raises(InputError, match="must be one of"):
            load(DRAFT, **options)
    output = convert(str(DRAFT), tmp_path / "out", Storage("bfloat16", 4))
    with pytest.raises(InputError, match="quantized already"):
        load(output, quantize=8)


def test_an_error_names_a_missing_part(tmp_path: Path) -> None:
    quantized = QuantizedCheckpoint(checkpoints.read(DRAFT), {"encoder.block.0.layer.0.SelfAttention.q.weight"}, 4, 64)
    model, _ = load(DRAFT)  # q, k and v form one layer, so all must be quantized
    with pytest.raises(CheckpointError, match=r"SelfAttention\.k\."):
        type(model)(model.config).load_checkpoint(quantized)


class Unreadable(Checkpoint):
    def __getitem__(self, name: str) -> mx.array:
        raise AssertionError(f"{name} was read")


def test_looking_up_a_name_reads_nothing() -> None:
    checkpoint = Unreadable("memory", {"shared.weight": TensorInfo((64, 64), mx.float32)})
    quantized = QuantizedCheckpoint(checkpoint, {"shared.weight"}, 4, 64)
    assert "shared.scales" in quantized and "shared.weight" in quantized and "other.scales" not in quantized

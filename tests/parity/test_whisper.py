"""Whisper: cross-attention scores, positions, storage and folders. test_t5.py checks the goldens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, load
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage, tokenizer_folder
from speculative_decoding.models.absolute_positions import sinusoids
from speculative_decoding.models.whisper import TOKENIZERS, Whisper
from tests.parity.test_t5 import load_golden
from tests.support.device import within
from tests.support.paths import GOLDENS
from tests.support.tiny import (
    WHISPER,
    audio_frames,
    head_drafter,
    run,
    save_whisper,
    tiny_whisper,
    tokens_of,
)

NAMES = ("whisper", "whisper-en", "whisper-v3", "whisper-distilled")


def opened(name: str) -> tuple[Whisper, dict[str, Any]]:
    model, golden = load_golden(GOLDENS / name)
    assert isinstance(model, Whisper)
    return model, golden


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", NAMES)
def test_cross_attention_scores_match_hugging_face(name: str) -> None:
    model, golden = opened(name)
    layers, rows, count = golden["cross_attentions"].shape[:3]
    heads = [(layer, head) for layer in reversed(range(layers)) for head in range(count)]
    for row in range(rows):
        encoder_output = model.encode(mx.array(golden["input_ids"][row : row + 1]))
        tokens = mx.array(golden["decoder_input_ids"][row : row + 1])
        scores, states = model.cross_attention_weights(tokens, encoder_output, heads)
        found = mx.softmax(scores, axis=-1)
        assert mx.allclose(states, model.teacher_forced(tokens, encoder_output), atol=within(1e-5))
        expected = np.stack([golden["cross_attentions"][layer, row, head] for layer, head in heads])
        assert np.abs(np.array(found) - expected).max() < within(5e-5)
    assert golden["cross_attentions"].max() > 0.2


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("storage", [Storage("float16"), Storage("bfloat16", 4, 32)], ids=str)
def test_converted_weights_approximate_the_model(storage: Storage, tmp_path: Path) -> None:
    config = WHISPER | {"d_model": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    model = tiny_whisper(scale=0.12, **{name: value for name, value in config.items() if name != "model_type"})
    folder = save_whisper(model, tmp_path / "hf", config)
    expected, found = (
        load(path, dtype="float32").model for path in (folder, convert(str(folder), tmp_path / "out", storage))
    )
    logits = []
    for each in (expected, found):
        tokens = mx.array([[41, 5, 9, 33]])
        logits.append(np.array(each.decode(tokens, each.make_cache(each.encode_rows([audio_frames()])[0]))))
    scale = {4: 0.8, None: 0.04}[storage.quantize]
    difference = np.abs(logits[0] - logits[1]).max() / logits[0].std()
    assert 0 < difference < scale
    assert expected.audio == found.audio and expected.audio.languages == {"en": 42, "de": 43}
    if storage.quantize:
        assert "scales" in found.decoder.layers[1].ff.wo and "scales" in found.encoder.layers[0].self_attention.qkv
        baseline = tokens_of(run(found, audio_frames(), max_tokens=12))
        assert tokens_of(run(found, audio_frames(), head_drafter(found), max_tokens=12)) == baseline


# Folders of mlx-whisper.


def mlx_names(stack: str, layers: int) -> dict[str, str]:
    """Return the tensors of an encoder or decoder in mlx-whisper, and their Hugging Face names."""
    found = {}
    attentions = {"attn": "self_attn"} | ({"cross_attn": "encoder_attn"} if stack == "decoder" else {})
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    for i in range(layers):
        names = {"mlp1": "fc1", "mlp2": "fc2", "mlp_ln": "final_layer_norm"}
        for ours, theirs in attentions.items():
            names |= {f"{ours}.{part}": f"{theirs}.{each}" for part, each in parts.items()}
            names[f"{ours}_ln"] = f"{theirs}_layer_norm"
        for ours, theirs in names.items():
            for kind in ("weight",) if ours.endswith("key") else ("weight", "bias"):
                found[f"{stack}.blocks.{i}.{ours}.{kind}"] = f"model.{stack}.layers.{i}.{theirs}.{kind}"
    return found


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Whisper, Path, Path]:
    """Write a model as Hugging Face does, and as mlx-whisper does: without tokenizer and encoder positions."""
    config = WHISPER | {"d_model": 32, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    model = tiny_whisper(scale=0.2, **config)
    model.encoder.positions.weight = mx.array(sinusoids(0, 30, 32, includes_longest=True))
    source, folder = save_whisper(model, tmp_path / "hf", config), tmp_path / "mlx"
    raw = json.loads((source / "config.json").read_text())
    tensors: Any = mx.load(str(source / "model.safetensors"))
    names = mlx_names("encoder", raw["encoder_layers"]) | mlx_names("decoder", raw["decoder_layers"])
    norms = {"encoder.ln_post": "encoder.layer_norm", "decoder.ln": "decoder.layer_norm"}
    for ours, theirs in (norms | {f"encoder.conv{i}": f"encoder.conv{i}" for i in (1, 2)}).items():
        names |= {f"{ours}.{kind}": f"model.{theirs}.{kind}" for kind in ("weight", "bias")}
    names["decoder.token_embedding.weight"] = "model.decoder.embed_tokens.weight"
    names["decoder.positional_embedding"] = "model.decoder.embed_positions.weight"
    arrays = {ours: tensors[theirs] for ours, theirs in names.items()}
    for each in ("encoder.conv1.weight", "encoder.conv2.weight"):
        arrays[each] = arrays[each].swapaxes(1, 2)
    arrays["alignment_heads"] = mx.array([[0, 1], [1, 0]], mx.int64)
    folder.mkdir()
    mx.savez(str(folder / "weights.npz"), **arrays)
    sizes = {
        "n_mels": raw["num_mel_bins"], "n_audio_ctx": 30, "n_audio_state": 32, "n_audio_head": 2, "n_audio_layer": 2,
        "n_vocab": raw["vocab_size"], "n_text_ctx": 70, "n_text_state": 32, "n_text_head": 2, "n_text_layer": 2,
    }  # fmt: skip
    ids = {name: raw[name] for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id")}
    (folder / "config.json").write_text(json.dumps(sizes | ids))
    return model, source, folder


def test_an_adapter_fits_a_folder_of_mlx_whisper(folders: tuple[Whisper, Path, Path], tmp_path: Path) -> None:
    """Its names are Hugging Face's."""
    model, source, folder = folders
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    module = "base_model.model.model.decoder.layers.0.encoder_attn.k_proj"
    (tmp_path / "adapter").mkdir()
    matrices = {f"{module}.lora_{letter}.weight": mx.random.normal((4, 32)) for letter in "AB"}
    matrices[f"{module}.lora_B.weight"] = matrices[f"{module}.lora_B.weight"].T
    mx.save_safetensors(str(tmp_path / "adapter" / "adapter_model.safetensors"), matrices)
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    opened = [load(each, adapter=tmp_path / "adapter").model for each in (source, folder)]
    weights = [each.decoder.layers[0].cross_attention.kv.weight for each in (*opened, model)]
    assert mx.array_equal(weights[0], weights[1]).item() and not mx.array_equal(weights[0], weights[2]).item()


@pytest.mark.usefixtures("device")
def test_a_folder_of_mlx_whisper_holds_the_same_model(folders: tuple[Whisper, Path, Path], tmp_path: Path) -> None:
    """It loads with the tokenizer of another folder; converted, it keeps the alignment heads."""
    _, source, folder = folders
    output = convert(str(folder), tmp_path / "out", Storage("float32"), tokenizer=str(source))
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    opened = [load(each).model for each in (source, folder, output)]
    tokens = mx.array([[41, 5, 9, 33]])
    logits = [np.array(each.decode(tokens, each.make_cache(each.encode_rows([audio_frames()])[0]))) for each in opened]
    assert np.abs(logits[1] - logits[0]).max() < within(1e-5)
    assert np.array_equal(logits[1], logits[2])
    assert [each.audio.alignment_heads for each in opened[1:]] == [[(0, 1), (1, 0)]] * 2
    assert opened[1].audio.languages == {} and not opened[1].audio.is_multilingual  # by the size of the vocabulary


def test_sinusoids_are_those_of_hugging_face() -> None:
    """Hugging Face initializes the encoder's positions with OpenAI's sinusoids, which the goldens keep."""
    for name in NAMES:
        model, _ = opened(name)
        expected = sinusoids(0, 30, 16, includes_longest=True)
        assert np.abs(np.array(model.encoder.positions.weight) - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("size", "asked", "name"),
    [
        (51864, None, "openai/whisper-tiny.en"),
        (51865, None, "openai/whisper-tiny"),
        (51866, None, "openai/whisper-large-v3"),
        (51866, "someone/other", "someone/other"),
    ],
)
def test_the_tokenizer_of_a_folder_without_one_follows_from_its_vocabulary(
    size: int, asked: str | None, name: str, tmp_path: Path
) -> None:
    """Tests have no network, so a tokenizer to download is one that the error names."""
    raw = {"model_type": "whisper", "vocab_size": size}
    with pytest.raises(InputError, match=f"{name}[^-.a-z0-9]"):
        tokenizer_folder(tmp_path, raw, asked)
    assert name in TOKENIZERS.values() or asked
    assert tokenizer_folder(tmp_path, raw | {"vocab_size": 99}) == tmp_path
    (tmp_path / "tokenizer.json").touch()
    assert tokenizer_folder(tmp_path, raw) == tmp_path

"""Writes tiny models in the layouts of published models, fine-tunes and mlx-community's Whispers (make_layouts.py)."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from layout_models import GRID, Files, openai_name, quantized, random_model, whisper_config, whisper_generation
from layout_tokenizers import whisper, whisper_special, write
from safetensors.torch import load_file, save_file, save_model
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

VERSION = int(transformers.__version__.split(".")[0])
Maker = Callable[[Path, Path, int], None]  # the folder to write, the folder with all layouts, the seed for the weights


def published(
    tokenizer: Callable[[Path], None] | None,
    config: Mapping[str, Any],
    files: Files,
    *,
    rows: int = 0,
    generation: Mapping[str, Any] | None = None,
    used: Sequence[int] = (),
    extra: Mapping[str, Sequence[int]] | None = None,
) -> Maker:
    """Return a function that writes a published model's folder.

    rows: the number of embedding rows beyond the tokenizer's ids.
    extra: the shapes of additional tensors in the file, which the model ignores.
    """

    def make(folder: Path, work: Path, seed: int) -> None:
        full, known = dict(config), used
        if tokenizer is not None and seed == 0:
            tokenizer(folder)
        if "vocab_size" not in full:
            write(folder / "config.json", full)
            size = vocabulary_size(folder)
            full["vocab_size"], known = size + rows, range(size)
            if full["model_type"] == "marian":
                pad = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1, "bad_words_ids": [[size - 1]]}
                full |= pad
        model = random_model(full, seed, known)
        write(folder / "config.json", full)
        if generation is not None:
            final = dict(generation)
            if full["model_type"] == "marian":
                final |= {key: full[key] for key in ("pad_token_id", "decoder_start_token_id", "bad_words_ids")}
            write(folder / "generation_config.json", final)
        rng = np.random.default_rng(1)
        strays = {name: torch.from_numpy(np.round(rng.standard_normal(shape) * GRID) / GRID)
                  for name, shape in (extra or {}).items()}  # fmt: skip
        files.save(folder, model, strays)

    return make


def vocabulary_size(folder: Path) -> int:
    """Return the number of ids in the folder's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=(folder / "tokenizer.json").exists())
    return max(len(tokenizer), max(tokenizer.get_vocab().values()) + 1)


def resaved(base: str, *, words: Sequence[str] = (), special: Sequence[str] = (), multiple: int | None = None,
            files: Sequence[str] = (), whole: bool = False, slow: bool = False) -> Maker:  # fmt: skip
    """Return a function that writes a fine-tune of the layout `base`, as saved by this version of transformers.

    words, special: tokens to add, with new rows in the tables.
    multiple: the tables' number of rows is rounded up to a multiple of this.
    files: files to copy from the base.
    whole: whether to write the weights with `safetensors.torch.save_model`.
    slow: whether to use the tokenizer class in Python, which writes no tokenizer.json.
    """

    def make(folder: Path, work: Path, seed: int) -> None:
        source = work / base
        tokenizer = AutoTokenizer.from_pretrained(source, use_fast=not slow)
        is_whisper = json.loads((source / "config.json").read_text())["model_type"] == "whisper"
        kind = transformers.WhisperForConditionalGeneration if is_whisper else AutoModelForSeq2SeqLM
        model = kind.from_pretrained(source).eval()
        if words:
            tokenizer.add_tokens(list(words))
        if special:
            key = "additional_special_tokens" if VERSION < 5 else "extra_special_tokens"
            tokenizer.add_special_tokens({key: [*getattr(tokenizer, key), *special]})
        before = model.get_input_embeddings().num_embeddings
        if words or special or multiple:
            size = max(len(tokenizer), before if is_whisper or not multiple else 0)
            model.resize_token_embeddings(size, pad_to_multiple_of=multiple)
            rng = np.random.default_rng(5)
            with torch.no_grad():
                for table in {id(each): each for each in (model.get_input_embeddings().weight,
                                                          model.get_output_embeddings().weight)}.values():  # fmt: skip
                    more = rng.standard_normal((table.shape[0] - before, table.shape[1])) * 0.3
                    if table.shape[0] > before:
                        table[before:] = torch.from_numpy(np.round(more * GRID) / GRID)
        if whole:
            write(folder / "config.json", json.loads(model.config.to_json_string()))
            if not is_whisper:
                model.generation_config.save_pretrained(folder)
            save_model(model, str(folder / "model.safetensors"), {"format": "pt"})
        else:
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for name in files:
            shutil.copyfile(source / name, folder / name)

    return make


def t5gemma(name: str, *, shards: int = 1) -> Maker:
    """Return a function that writes T5Gemma's folder, with the tokenizer that transformers 4 wrote to parts/NAME."""

    def make(folder: Path, work: Path, seed: int) -> None:
        from make_gemma_goldens import CONFIGS

        for path in (work / "parts" / name).iterdir():
            shutil.copyfile(path, folder / path.name)
        content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        size = len(content["model"]["vocab"])
        ids = {each["content"]: each["id"] for each in content["added_tokens"]}
        text = json.dumps(CONFIGS[name]).replace('"vocab_size": 80', f'"vocab_size": {size}')
        config = json.loads(text)
        if name == "t5gemma2":
            config["encoder"]["eoi_token_index"] = ids["<end_of_image>"]
            config["eoi_token_index"], config["image_token_index"] = ids["<end_of_image>"], ids["<image_soft_token>"]
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**json.loads(json.dumps(config))))
        rng = np.random.default_rng(seed)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                weight = gemma_weight(path, tuple(parameter.shape), rng)
                parameter.copy_(torch.from_numpy(np.round(weight * GRID) / GRID))
        model.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=1, bos_token_id=2)
        model.save_pretrained(folder)
        if name == "t5gemma":
            write(folder / "config.json", config)
        if shards > 1:
            tensors = load_file(folder / "model.safetensors")
            (folder / "model.safetensors").unlink()
            Files(shards=shards).save_format(folder, tensors, "safetensors")
        if name == "t5gemma2":
            for file in ("processor_config.json", "preprocessor_config.json"):
                write(folder / file, {"processor_class": "Gemma3Processor"})

    return make


def gemma_weight(name: str, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(shape)
    if "eoi_embedding" in name:
        return noise
    if name.endswith(("embed_tokens.weight", "lm_head.out_proj.weight")):
        return 0.2 * noise
    if "norm" in name:
        return (2.3 if "decoder.norm" in name else 0.5) + 0.3 * noise
    return (2.0 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.3) * noise / shape[-1] ** 0.5


def mlx_whisper(base: str, file: str, bits: int | None) -> Maker:
    """Return a function that writes a Whisper like mlx-community: weights and config.json with OpenAI's names."""

    def make(folder: Path, work: Path, seed: int) -> None:
        raw = json.loads((work / base / "config.json").read_text())
        model = transformers.WhisperForConditionalGeneration.from_pretrained(work / base)
        tensors = {}
        for name, tensor in model.state_dict().items():
            name = openai_name(name)
            if name in ("proj_out.weight", "encoder.positional_embedding"):
                continue
            array = tensor.numpy()
            tensors[name] = np.ascontiguousarray(
                array.swapaxes(1, 2) if ".conv" in f".{name}" and array.ndim == 3 else array
            )
        if bits is not None:
            for name in [name for name in tensors if tensors[name].ndim == 2 and name.endswith(".weight")]:
                packed, scales, biases = quantized(tensors[name], bits)
                layer = name.removesuffix("weight")
                tensors |= {name: packed, f"{layer}scales": scales, f"{layer}biases": biases}
        tensors["alignment_heads"] = np.array([[0, 1], [1, 0]])
        sizes = {"n_mels": raw["num_mel_bins"], "n_audio_ctx": 1500, "n_audio_state": raw["d_model"]}
        sizes |= {"n_audio_head": 2, "n_audio_layer": raw["encoder_layers"], "n_vocab": raw["vocab_size"]}
        sizes |= {"n_text_ctx": 448, "n_text_state": raw["d_model"], "n_text_head": 2, "n_text_layer": 2}
        config: dict[str, Any] = sizes | {"model_type": "whisper"}
        if bits is not None:
            config["quantization"] = {"group_size": 32, "bits": bits}
        write(folder / "config.json", config)
        kept = {
            name: array.astype(np.float16) if array.dtype == np.float32 else array for name, array in tensors.items()
        }
        if file.endswith(".npz"):
            np.savez(folder / file, **kept)
        else:
            save_file({name: torch.from_numpy(array.copy()) for name, array in kept.items()}, folder / file)

    return make


OPENAI_FILES = Files(("safetensors", "bin"), drop=("proj_out",))


def whisper_folder(size: int = 51865, *, files: Files = OPENAI_FILES,
                   config: Mapping[str, Any] = {}, generation: Mapping[str, Any] = {}, new: bool = True, **options: Any
                   ) -> Maker:  # fmt: skip
    """Return a function that writes a Whisper.

    Only the embeddings of the small vocabulary and of the first special tokens are nonzero.
    """
    end = size - len(whisper_special(size))
    return published(
        partial(whisper, size=size, **options),
        whisper_config(size, **config),
        files,
        generation=whisper_generation(size, new=new) | dict(generation),
        used=[*range(500), *range(end, end + 112)],
    )

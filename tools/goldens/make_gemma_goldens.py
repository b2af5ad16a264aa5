"""Write tiny random checkpoints for T5Gemma (with equal and unequal widths) and T5Gemma 2, with Hugging Face's outputs.

    pip install torch==2.13.0 transformers==5.23.0 safetensors numpy
    python make_gemma_goldens.py [NAME ...]

Folders and arrays are as in make_goldens.py, plus generation_config.json; outputs have 40 tokens. transformers 5.23
saves the files for "t5gemma-unequal" and "t5gemma2"; those of "t5gemma2" include a vision tower. The config.json of
"t5gemma" is in the format of transformers 4.54. Windows, soft caps, scaled positions and the end-of-image embedding all
affect the outputs.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_goldens import (
    FIRST_PLAIN_TOKEN,
    HERE,
    TARGET_LENGTH,
    Family,
    check_every_weight_matters,
    check_health,
    padded,
    top_two_gap,
    write_all,
)
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel

NEW_TOKENS = 40
PAD = 0
EOS = 1
BOS = 2
END_OF_IMAGE = 50
VOCAB = 80
LENGTHS = (30, 21, 10)  # of the sources
IDS = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS}
STACK = IDS | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 32,
    "intermediate_size": 32,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "query_pre_attn_scalar": 6,
    "rms_norm_eps": 1e-06,
    "sliding_window": 6,
    "vocab_size": VOCAB,
}
LAYER_TYPES = ["sliding_attention", "full_attention"]
FLAT_ROPE = {"rope_theta": 500.0, "layer_types": LAYER_TYPES, "model_type": "t5_gemma_module"}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 12.0}
ROPE = {
    "rope_parameters": {
        "full_attention": {"factor": 4.0, "rope_theta": 1000.0, "rope_type": "linear"},
        "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
    },
    "layer_types": LAYER_TYPES,
}
TOWER = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
TOWER |= {"image_size": 8, "patch_size": 4}
COMMON = IDS | {"is_encoder_decoder": True, "tie_word_embeddings": True}
DEEP = {"sliding_window": 9, "num_hidden_layers": 3, "layer_types": ["full_attention", *LAYER_TYPES]}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "t5gemma": COMMON
    | {
        "architectures": ["T5GemmaForConditionalGeneration"],
        "decoder": STACK | CAPS | FLAT_ROPE | {"cross_attention_hidden_size": 32, "is_decoder": True},
        "encoder": STACK | CAPS | FLAT_ROPE,
        "model_type": "t5gemma",
        "torch_dtype": "float32",
        "transformers_version": "4.54.0",
        "vocab_size": VOCAB,
    },
    "t5gemma-unequal": COMMON
    | {
        "decoder": STACK | CAPS | FLAT_ROPE | DEEP,
        "encoder": STACK | CAPS | FLAT_ROPE | {"hidden_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1},
        "model_type": "t5gemma",
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    },
    "t5gemma2": COMMON
    | {
        "decoder": STACK | ROPE | {"num_key_value_heads": 1, "attn_logit_softcapping": 5.0},
        "encoder": {
            "text_config": STACK | ROPE | {"attn_logit_softcapping": 5.0},
            "vision_config": TOWER | {"model_type": "siglip_vision_model"},
            "mm_tokens_per_image": 4,
            "eoi_token_index": END_OF_IMAGE,
        },
        "model_type": "t5gemma2",
    },
}  # fmt: skip
# The means of norm weights, where they differ from 0.5. The model adds 1 to each weight.
NORM_MEANS = {"post_feedforward": 1.5, "post_cross": -0.3, "q_norm": 0.8, "k_norm": 0.8, "decoder.norm": 2.3}
SEEDS = {"t5gemma": 63, "t5gemma-unequal": 8, "t5gemma2": 13}  # chosen so that `check_health` passes


def is_tower(name: str) -> bool:
    return "vision_tower" in name or "multi_modal_projector" in name


def draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    """Return random weights that differ from those of any initializer.

    The current token has more influence than the source, and attention is sharp; otherwise, outputs would repeat a
    single token. The embedding of EOS has a large norm; otherwise, EOS would rarely be predicted.
    """
    noise = rng.standard_normal(shape)
    if name.endswith(("embed_tokens.weight", "lm_head.out_proj.weight")):
        weight = 0.15 * noise
        weight[EOS] *= 1.6
        weight[PAD] *= 0.1
    elif name.endswith("eoi_embedding"):
        weight = 2 * noise
    elif "norm" in name:
        mean = next((mean for part, mean in NORM_MEANS.items() if part in name), 0.5)
        weight = mean + 0.3 * noise
    else:
        gain = 2.0 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.3
        weight = gain * noise / shape[-1] ** 0.5
    return torch.from_numpy(weight.astype(np.float32))


def make_folder(name: str, folder: Path, seed: int) -> PreTrainedModel:
    """Write the folder, load it with Hugging Face, and check that the model contains every tensor in the file."""
    rng = np.random.default_rng(seed)
    config = AutoConfig.for_model(**json.loads(json.dumps(CONFIGS[name])))
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    for path, parameter in model.named_parameters():
        parameter.copy_(draw(path, tuple(parameter.shape), rng))
    model.generation_config = GenerationConfig(**IDS)
    model.save_pretrained(folder)
    if name == "t5gemma":
        text = json.dumps(CONFIGS[name], indent=2, sort_keys=True)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    read, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not any(info.values()), info
    ours, theirs = model.state_dict(), read.eval().state_dict()
    assert all(torch.equal(ours[path], theirs[path]) for path in ours)
    assert len(load_file(folder / "model.safetensors")) >= len(list(model.named_parameters()))
    return read


def make_golden(model: PreTrainedModel, seed: int) -> dict[str, np.ndarray]:
    rng, rows = np.random.default_rng(seed), len(LENGTHS)
    input_ids = np.full((rows, max(LENGTHS)), PAD)
    for row, length in zip(input_ids, LENGTHS, strict=True):
        row[: length - 1] = rng.integers(FIRST_PLAIN_TOKEN, VOCAB, length - 1)
        row[length // 2], row[length - 1] = END_OF_IMAGE, EOS
    attention_mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    decoder_input_ids = np.random.default_rng([seed, 1]).integers(FIRST_PLAIN_TOKEN, VOCAB, (rows, TARGET_LENGTH))
    decoder_input_ids[:, 0], decoder_input_ids[:, 5] = BOS, END_OF_IMAGE
    source, mask, target = map(torch.tensor, (input_ids, attention_mask.astype(np.int64), decoder_input_ids))
    out = model(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    outputs = [greedy(model, source[i : i + 1, :length]) for i, length in enumerate(LENGTHS)]
    greedy_ids, greedy_lengths = padded(outputs, PAD)
    ids = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "decoder_input_ids": decoder_input_ids,
        "greedy_ids": greedy_ids,
        "greedy_lengths": greedy_lengths,
    }
    return {name: array.astype(np.int32) for name, array in ids.items()} | {
        "encoder_last_hidden_state": out.encoder_last_hidden_state.numpy(),
        "logits": out.logits.numpy(),
    }


def greedy(model: PreTrainedModel, source: torch.Tensor) -> list[int]:
    mask = torch.ones_like(source)
    tokens = model.generate(source, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=NEW_TOKENS)
    assert tokens[0, 0] == BOS
    return tokens[0, 1:].tolist()


def write(name: str) -> None:
    folder, seed = HERE / name, SEEDS[name]
    folder.mkdir(exist_ok=True)
    model = make_folder(name, folder, seed)
    golden = make_golden(model, seed)
    family = Family(IDS | {"decoder_start_token_id": BOS}, seed, lengths=LENGTHS)
    gap = top_two_gap(model, family, golden)
    check_health(family, golden, gap)
    check_every_weight_matters(model, golden, noise=0.2, least=0.005, is_idle=is_tower)
    np.savez(folder / "golden.npz", **golden)
    size = sum(path.stat().st_size for path in folder.iterdir())
    lengths = golden["greedy_lengths"].tolist()
    print(f"{name:18} gap {gap:.4f}  logits' std {golden['logits'].std():.2f}  greedy {lengths}  {size / 1000:.0f} kB")


if __name__ == "__main__":
    write_all(write, CONFIGS)

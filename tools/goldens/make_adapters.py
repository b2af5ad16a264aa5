"""Write adapters/: adapters that PEFT saved for tiny models, and the weights that PEFT merged.

Requires torch, transformers and peft: `python tools/goldens/make_adapters.py`

adapters/bases/FAMILY/   config.json, model.safetensors
adapters/CASE/           adapter_config.json, which names the base, and adapter_model.safetensors or .bin
  merged.npz             every tensor of `merge_and_unload`, in float32
"""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from make_ties import BART, T5, WHISPER
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

OUTPUT = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens" / "adapters"
VOCAB = 11
STACK = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}
STACK |= {"num_key_value_heads": 1, "vocab_size": VOCAB, "sliding_window": 8, "max_position_embeddings": 32}
STACK |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
BASES: dict[str, dict[str, Any]] = {
    "t5": T5 | {"model_type": "t5", "vocab_size": VOCAB, "num_layers": 2},
    "t5-untied": T5 | {"model_type": "t5", "vocab_size": VOCAB, "feed_forward_proj": "gated-gelu"},
    "bart": BART | {"model_type": "bart", "vocab_size": VOCAB},
    "whisper": WHISPER | {"model_type": "whisper", "vocab_size": 20, "begin_suppress_tokens": None},
    "t5gemma": {"model_type": "t5gemma", "encoder": STACK, "decoder": STACK, "vocab_size": VOCAB},
}
RANKS = {"SelfAttention.q": 4, r"decoder\.block\.1\..*\.wo": 2}
ALPHAS = {"encoder.block.0.layer.0.SelfAttention.q": 3, "^decoder.*EncDecAttention.v": 5.5, "q": 7}
# case -> base, number of rows of the resized embedding or None, file format, fields of the configuration
CASES: dict[str, tuple[str, int | None, str, dict[str, Any]]] = {
    "patterns": (
        "t5",
        None,
        "safetensors",
        {"target_modules": ["q", "v", "wo"], "rank_pattern": RANKS, "alpha_pattern": ALPHAS, "lora_alpha": 12},
    ),
    "rank-stabilized": (
        "t5",
        None,
        "bin",
        {"target_modules": ".*SelfAttention.(k|o)", "use_rslora": True, "r": 4, "fan_in_fan_out": True},
    ),
    "tied-embedding": ("t5", None, "safetensors", {"target_modules": ["shared", "v"], "r": 2}),
    "each-embedding": ("t5", None, "safetensors", {"target_modules": ["embed_tokens", "lm_head"], "r": 2}),
    "tokens": ("t5", None, "safetensors", {"target_modules": ["q"], "trainable_token_indices": [3, 7]}),
    "own-head": ("t5", None, "safetensors", {"target_modules": ["q"], "modules_to_save": ["lm_head", "layer_norm"]}),
    "untied": ("t5-untied", None, "safetensors", {"target_modules": "all-linear", "modules_to_save": ["lm_head"]}),
    "untied-head": ("t5-untied", None, "safetensors", {"target_modules": ["lm_head", "wi_1"], "r": 3}),
    "resized": ("bart", 14, "safetensors", {"target_modules": ["q_proj", "fc1"]}),
    "resized-saved": ("bart", 14, "bin", {"target_modules": ["q_proj"], "modules_to_save": ["shared", "lm_head"]}),
    "new-tables": ("bart", None, "safetensors", {"target_modules": ["fc2"], "modules_to_save": ["embed_tokens"]}),
    "convolution": ("whisper", None, "safetensors", {"target_modules": ["conv1", "conv2", "k_proj", "embed_tokens"]}),
    "proj-out": ("whisper", None, "bin", {"target_modules": ["out_proj"], "modules_to_save": ["proj_out"]}),
    "gemma": ("t5gemma", None, "safetensors", {"target_modules": ["o_proj", "up_proj", "out_proj"], "r": 1}),
}


def model_class(base: str) -> Any:
    return AutoModelForSpeechSeq2Seq if base == "whisper" else AutoModelForSeq2SeqLM


def write_base(name: str, folder: Path) -> None:
    fields = dict(BASES[name])
    model = model_class(name).from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
    if name == "t5-untied":
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    generator = torch.Generator().manual_seed(len(name))
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    if name == "bart":
        model.final_logits_bias.normal_(generator=generator)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def write_case(name: str) -> None:
    base, rows, file, fields = CASES[name]
    folder = OUTPUT / name
    model = load_base(base, rows)
    adapted = get_peft_model(model, LoraConfig(**fields))
    generator = torch.Generator().manual_seed(len(name))
    trained = ("lora_", "modules_to_save", "trainable_tokens_delta")
    for parameter_name, parameter in adapted.named_parameters():
        if any(part in parameter_name for part in trained):
            parameter.data.normal_(std=0.5, generator=generator)
    adapted.save_pretrained(folder, safe_serialization=file == "safetensors")
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"bases/{base}"
    config["fan_in_fan_out"] = fields.get("fan_in_fan_out", False)  # PEFT changes it for modules other than Conv1D
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    merged = PeftModel.from_pretrained(load_base(base, rows), folder).merge_and_unload()
    arrays = {key: value.float().numpy() for key, value in merged.state_dict().items()}
    np.savez_compressed(folder / "merged.npz", **arrays)


def load_base(name: str, rows: int | None) -> Any:
    model = model_class(name).from_pretrained(OUTPUT / "bases" / name)
    if rows is not None:
        torch.manual_seed(0)
        model.resize_token_embeddings(rows)
    return model


def main() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    for name in BASES:
        write_base(name, OUTPUT / "bases" / name)
    for name in CASES:
        write_case(name)


if __name__ == "__main__":
    main()

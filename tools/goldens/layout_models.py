"""Tiny configurations of published models, and weight files in each format; see make_layouts.py."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from layout_tokenizers import whisper_special, write
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel

T5_IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
T5 = T5_IDS | {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 32,
    "d_kv": 8,
    "d_model": 16,
    "dropout_rate": 0.1,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "num_heads": 2,
    "num_layers": 1,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8,
}
T5_TASKS = {
    "n_positions": 512,
    "output_past": True,
    "task_specific_params": {
        "summarization": {"early_stopping": True, "max_length": 200, "min_length": 30, "num_beams": 4,
                          "no_repeat_ngram_size": 3, "length_penalty": 2.0, "prefix": "summarize: "},
        "translation_en_to_de": {"early_stopping": True, "max_length": 300, "num_beams": 4,
                                 "prefix": "translate English to German: "},
    },
}  # fmt: skip
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
UMT5 = {"architectures": ["UMT5ForConditionalGeneration"], "model_type": "umt5", "dense_act_fn": "gelu_new"}
UMT5 |= {"is_gated_act": True, "scalable_attention": True}
T5_GENERATION = T5_IDS | {"_from_model_config": True, "transformers_version": "4.27.0.dev0"}

TRANSFORMER = {
    "d_model": 16,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 32,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "encoder_layers": 1,
    "is_encoder_decoder": True,
    "max_position_embeddings": 512,
    "num_hidden_layers": 1,
    "use_cache": True,
}
BART_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
BART = TRANSFORMER | BART_IDS | {"activation_function": "gelu", "model_type": "bart", "scale_embedding": False}
BART |= {"architectures": ["BartForConditionalGeneration"], "normalize_before": False}
SUMMARIES = {"early_stopping": True, "forced_bos_token_id": 0, "forced_eos_token_id": 2, "length_penalty": 2.0}
SUMMARIES |= {"max_length": 142, "min_length": 12, "no_repeat_ngram_size": 3, "num_beams": 4}
MBART = TRANSFORMER | BART_IDS | {"activation_function": "gelu", "model_type": "mbart", "scale_embedding": True}
MBART |= {"architectures": ["MBartForConditionalGeneration"], "normalize_before": True, "add_final_layer_norm": True}
M2M = TRANSFORMER | BART_IDS | {"activation_function": "relu", "model_type": "m2m_100", "scale_embedding": True}
M2M |= {"architectures": ["M2M100ForConditionalGeneration"]}
PEGASUS = TRANSFORMER | {"bos_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
PEGASUS |= {"activation_function": "relu", "architectures": ["PegasusForConditionalGeneration"]}
PEGASUS |= {"model_type": "pegasus", "scale_embedding": True, "static_position_embeddings": True}
PEGASUS |= {"forced_eos_token_id": 1, "length_penalty": 0.8, "max_length": 128, "num_beams": 8}
MARIAN = TRANSFORMER | {"activation_function": "swish", "architectures": ["MarianMTModel"], "model_type": "marian"}
MARIAN |= {"bos_token_id": 0, "eos_token_id": 0, "scale_embedding": True, "static_position_embeddings": True}


def whisper_config(size: int, **more: Any) -> dict[str, Any]:
    end = size - len(whisper_special(size))
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end) | {"decoder_start_token_id": end + 1}
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {"max_source_positions": 1500, "max_target_positions": 448, "num_mel_bins": 80, "vocab_size": size}
    other = {"activation_function": "gelu", "architectures": ["WhisperForConditionalGeneration"]}
    other |= {"is_encoder_decoder": True, "model_type": "whisper", "scale_embedding": False, "torch_dtype": "float32"}
    config = sizes | ids | other | more
    return config | {"num_hidden_layers": config["encoder_layers"]}


SUPPRESSED = [*range(1, 500, 3)]  # enough ids to change the outputs


def whisper_generation(size: int, *, new: bool = True, **more: Any) -> dict[str, Any]:
    """Return generation_config.json as in OpenAI's repositories. new: the version published since 2023."""
    end, special = size - len(whisper_special(size)), whisper_special(size)
    ids = {piece: end + i for i, piece in enumerate(special)}
    content: dict[str, Any] = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "max_length": 448}
    content |= {"begin_suppress_tokens": [220, end], "decoder_start_token_id": end + 1}
    tasks = ("startoftranscript", "translate", "transcribe", "startoflm")
    content["suppress_tokens"] = [*SUPPRESSED, *(ids[f"<|{name}|>"] for name in tasks)]
    if new:
        content |= {"max_initial_timestamp_index": 50, "no_timestamps_token_id": ids["<|notimestamps|>"]}
        content |= {"prev_sot_token_id": ids["<|startofprev|>"], "return_timestamps": False}
        content |= {"alignment_heads": [[0, 1], [1, 0]], "is_multilingual": size > 51864}
    if new and size > 51864:
        codes = special[2 : 101 + (size == 51866)]
        content["lang_to_id"] = {code: ids[code] for code in codes}
        content["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
        content["forced_decoder_ids"] = [[1, None], [2, ids["<|transcribe|>"]]]
    elif size > 51864:
        content["forced_decoder_ids"] = [[1, ids["<|en|>"]], [2, ids["<|transcribe|>"]], [3, ids["<|notimestamps|>"]]]
    else:
        content["forced_decoder_ids"] = [[1, ids["<|notimestamps|>"]]]
    return content | more


TABLES = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
    "proj_out.weight",
)
GRID = 64


def draw(name: str, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Return random weights. Tables are small and outputs large; otherwise, a tied head would predict its input."""
    noise = rng.standard_normal(shape)
    if name.endswith(TABLES):
        return 0.3 * noise
    if name.endswith("final_logits_bias"):
        return 0.5 * noise
    if "embed_positions" in name or "relative_attention_bias" in name:
        return 0.8 * noise
    if "norm" in name:
        return (1 if name.endswith("weight") else 0) + 0.2 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    if ".wo." in name:
        noise -= noise.mean(-1, keepdims=True)
    large = (".o.", ".wo.", "out_proj", "fc2", "o_proj", "down_proj")
    gain = 4.0 if any(part in name for part in large) else 1.5
    return gain * noise / float(np.prod(shape[1:])) ** 0.5


def last_norm(names: Iterable[str]) -> str:
    """Return the name of the decoder's last norm weight."""
    names = list(names)
    for name in ("decoder.final_layer_norm.weight", "model.decoder.layer_norm.weight", "model.decoder.norm.weight"):
        if name in names:
            return name
    return max(name for name in names if name.startswith("model.decoder.layers.") and "final_layer_norm.weight" in name)


def random_model(config: Mapping[str, Any], seed: int, used: Sequence[int] = ()) -> PreTrainedModel:
    """Return a model whose logits have a standard deviation of about 3.

    used: the ids whose embeddings are nonzero; empty for all.
    """
    rng = np.random.default_rng(seed)
    kind = transformers.WhisperForConditionalGeneration if config["model_type"] == "whisper" else AutoModelForSeq2SeqLM
    with torch.no_grad():
        settings = AutoConfig.for_model(**json.loads(json.dumps(dict(config))))
        model = (kind if config["model_type"] == "whisper" else kind.from_config)(settings).eval()
        kept = model.state_dict()
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if name not in kept or (name.endswith("embed_positions.weight") and is_fixed(name, config)):
                continue
            weight = draw(name, tuple(parameter.shape), rng)
            if len(used) and parameter.shape[0] == config["vocab_size"]:
                chosen = np.zeros_like(weight)
                chosen[list(used)] = weight[list(used)]
                weight = chosen
            parameter.copy_(torch.from_numpy(np.round(weight * GRID) / GRID))
        norm = model.state_dict()[last_norm(kept)]
        d_model = settings.d_model if hasattr(settings, "d_model") else settings.decoder.hidden_size
        scale = 2.5 / (0.3 * d_model**0.5)
        if config["model_type"] in ("t5", "mt5", "umt5") and config.get("tie_word_embeddings", True):
            scale *= d_model**0.5
        norm.copy_(torch.round(norm * scale * GRID) / GRID)
    return model


def is_fixed(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a position table contains sinusoids."""
    return config["model_type"] in ("pegasus", "marian") or (config["model_type"] == "whisper" and "encoder" in name)


@dataclass(frozen=True)
class Files:
    """How weights are stored: formats, the number of shards, and the names under which tied tables are stored.

    tables: the names under which tied tables are stored; None for all names.
    prefix: a prefix to remove from each name (facebook/bart-base was saved without a head).
    drop: tensors whose names contain one of these parts are not stored.
    legacy: whether to use torch's format from before 2020.
    """

    formats: Sequence[str] = ("bin",)
    shards: int = 1
    tables: Sequence[str] | None = None
    prefix: str = ""
    drop: Sequence[str] = ()
    legacy: bool = False
    dtype: torch.dtype = torch.float32

    def save(self, folder: Path, model: PreTrainedModel, extra: Mapping[str, torch.Tensor]) -> None:
        tensors = {**model.state_dict(), **extra}
        is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        tied = [name for name in TABLES if is_tied or name not in ("lm_head.weight", "proj_out.weight")]
        tensors = {
            name.removeprefix(self.prefix): tensor.detach().to(self.dtype).clone().contiguous()
            for name, tensor in tensors.items()
            if not any(part in name for part in self.drop)
            and (self.tables is None or name not in tied or name in self.tables)
        }
        if self.tables is None:  # several names share one storage, as in torch's files
            table = model.get_input_embeddings().weight
            shared = tensors[next(name for name in tensors if name in tied)]
            for name in tensors:
                if name in tied and torch.equal(tensors[name], table.to(self.dtype)):
                    tensors[name] = shared
        for kind in self.formats:
            self.save_format(folder, tensors, kind)

    def save_format(self, folder: Path, tensors: Mapping[str, torch.Tensor], kind: str) -> None:
        stem, end = ("model", "safetensors") if kind == "safetensors" else ("pytorch_model", "bin")
        names = sorted(tensors)
        parts = [names[i * len(names) // self.shards : (i + 1) * len(names) // self.shards] for i in range(self.shards)]
        index = {}
        for i, part in enumerate(parts):
            file = f"{stem}.{end}" if self.shards == 1 else f"{stem}-{i + 1:05}-of-{self.shards:05}.{end}"
            index |= dict.fromkeys(part, file)
            chosen = {name: tensors[name] for name in part}
            if kind == "safetensors":
                save_file({name: each.clone() for name, each in chosen.items()}, folder / file, {"format": "pt"})
            else:
                torch.save(chosen, folder / file, _use_new_zipfile_serialization=not self.legacy)
        if self.shards > 1:
            size = sum(tensor.nbytes for tensor in tensors.values())
            write(folder / f"{stem}.{end}.index.json", {"metadata": {"total_size": size}, "weight_map": index})


def quantized(weight: np.ndarray, bits: int, group: int = 32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantize a matrix as MLX does. Returns packed integers, scales and biases."""
    rows = weight.reshape(weight.shape[0], -1, group)
    low, high = rows.min(-1, keepdims=True), rows.max(-1, keepdims=True)
    scales = np.float16(np.maximum((high - low) / (2**bits - 1), 1e-4)).astype(np.float32)
    biases = np.float16(low).astype(np.float32)
    integers = np.clip(np.round((rows - biases) / scales), 0, 2**bits - 1).astype(np.uint32).reshape(len(weight), -1)
    count = 32 // bits
    packed = (integers.reshape(len(weight), -1, count) << (np.arange(count, dtype=np.uint32) * bits)).sum(-1)
    return packed.astype(np.uint32), scales[..., 0], biases[..., 0]


def dequantized(packed: np.ndarray, scales: np.ndarray, biases: np.ndarray, bits: int, group: int = 32) -> np.ndarray:
    count = 32 // bits
    integers = (packed[..., None] >> (np.arange(count, dtype=np.uint32) * bits)) & (2**bits - 1)
    values = integers.reshape(len(packed), -1, group) * scales[..., None].astype(np.float32)
    return (values + biases[..., None].astype(np.float32)).reshape(len(packed), -1).astype(np.float32)


OPENAI = {
    "model.": "",
    "embed_tokens": "token_embedding",
    "embed_positions.weight": "positional_embedding",
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln",
    ".layers.": ".blocks.",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "self_attn_layer_norm": "attn_ln",
    "final_layer_norm": "mlp_ln",
    "encoder_attn": "cross_attn",
    "self_attn": "attn",
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "out",
    "fc1": "mlp1",
    "fc2": "mlp2",
}


def openai_name(name: str) -> str:
    for theirs, ours in OPENAI.items():
        name = name.replace(theirs, ours)
    return name

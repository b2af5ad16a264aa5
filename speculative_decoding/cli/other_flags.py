"""Flags of other programs, and their counterparts here. This module is imported only when a flag is unknown.

The programs are openai-whisper, faster-whisper, CTranslate2, LibreTranslate, transformers and its example scripts,
mlx-lm and llama.cpp. Flags are written without dashes and with underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

OPTIONS: Mapping[str, str] = {  # flags -> fields; a command suggests only those that it supports
    "language lang languages": "src_lang tgt_lang language",
    "source src source_lang src_language input_language from from_lang from_code": "src_lang language",
    "target tgt target_lang target_language tgt_lang tgt_language to to_lang to_code": "tgt_lang task",
    "fp16 bf16 half torch_dtype precision data_type": "dtype",
    "compute_type quantization int8 q q_bits bits load_in_8bit load_in_4bit": "quantize",
    "batch_size batched max_batch_size per_device_eval_batch_size": "slots",
    "f format output_format": "output_format format input_format",
    "o out output output_dir output_file mlx_path": "output output_dir",
    "source_prefix instruction": "prefix",
    "m model_name model_name_or_path model_id model_path model_size hf_path": "model",
    "assistant_model draft speculative_model": "draft_model",
    "hotwords": "initial_prompt",
    "glossary terms terminology": "keep",
    "tm translation_memory": "memory",
    "n n_predict max_target_length max_decoding_length": "max_tokens",
    "lora lora_path adapter_path": "adapter",
    "tokenizer_name tokenizer_path tokenizer_dir tokenizer_name_or_path": "tokenizer",
    "epochs num_train_epochs iters max_steps": "steps minutes",
    "lr": "learning_rate",
    "data dataset train_file": "prompts",
    "valid validation_file": "held_out",
    "api_key api_keys": "token_file",
    "temperature_increment_on_fallback": "temperature",
    "overwrite overwrite_output_dir": "force",
    "continue resume_from_checkpoint": "resume",
}
TEXTS: Mapping[str, str] = {  # flags -> what to do instead
    "device device_map device_index gpu cuda cpu mps no_cuda": (
        "MLX computes on the GPU of a Mac and on the CPU of other machines; leave it out"
    ),
    "threads num_threads cpu_threads inter_threads intra_threads": "MLX chooses the number of threads; leave it out",
    "quantize quantization compute_type int8 q q_bits bits load_in_8bit load_in_4bit": (
        "name a model that `speculative-decoding convert --quantize` wrote"
    ),
    "verbose v quiet print_progress": "progress and notes go to standard error, which 2>/dev/null hides; leave it out",
    "model_dir model_directory cache_dir cache_directory download_root": (
        "name a model's folder with --model, or set HF_HOME to the folder for downloads"
    ),
    "local_files_only offline": "set HF_HUB_OFFLINE=1",
    "hf_token use_auth_token": "set HF_TOKEN",
    "trust_remote_code": "code from the Hub is never run; leave it out",
    "stream": "the text is printed while it is decoded; leave it out",
}


def hint(name: str, flag_of: Callable[[str], str | None]) -> str:
    """Return what to use instead of another program's flag, or "" if the flag is unknown.

    flag_of: Returns the flag for a field, or None if the command does not have it.
    """
    flags = [own for field in found(name, OPTIONS).split() if (own := flag_of(field)) is not None]
    return f"did you mean {' or '.join(flags)}?" if flags else found(name, TEXTS)


def found(name: str, table: Mapping[str, str]) -> str:
    return next((value for names, value in table.items() if name in names.split()), "")

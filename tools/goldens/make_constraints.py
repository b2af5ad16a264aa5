"""Write constraints.json: outputs of Hugging Face's logits processors for small distributions, in `generate`'s order.

Requires torch and transformers: `python tools/goldens/make_constraints.py`
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"

VOCAB = 8
EOS = 1
MAX_NEW_TOKENS = 9
SETTINGS: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 1},
    {"suppress_tokens": [4, 1]},
    {"begin_suppress_tokens": [2, 3]},
    {"begin_suppress_tokens": [2, 3], "forced_bos_token_id": 5},
    {"bad_words_ids": [[6], [1], [2, 5], [5, 2, 5]]},
    {"min_length": 4},
    {"min_new_tokens": 4},
    {"forced_eos_token_id": 1},
    {"forced_eos_token_id": [1, 3], "min_length": 40},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.4, "bad_words_ids": [[0]], "min_length": 6},
    {"no_repeat_ngram_size": 3, "min_length": 5, "forced_bos_token_id": 0, "forced_eos_token_id": 1},
]
HISTORIES = [[0], [0, 5], [0, 5, 2, 5], [0, 2, 5, 2], [0, 5, 2, 5, 2, 3, 5, 2], [0, 3, 3, 5, 2, 5, 6, 2, 5]]


def cases() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    logits = (2.5 * torch.randn(1, VOCAB, generator=generator)).round(decimals=3)
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=VOCAB, d_model=4, d_kv=2, d_ff=4, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )
    found = []
    for settings in SETTINGS:
        config = GenerationConfig(
            **settings, max_new_tokens=MAX_NEW_TOKENS, eos_token_id=EOS, pad_token_id=0, max_length=None
        )
        config, _ = model._prepare_generation_config(config)
        model._prepare_special_tokens(config, device="cpu")
        config = model._prepare_generated_length(config, True, "min_length" not in settings, "input_ids", 1, None)
        processors = model._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
        for history in HISTORIES:
            scores = processors(torch.tensor([history]), logits.clone())[0].tolist()
            scores = [None if score == -float("inf") else score for score in scores]
            found.append({"settings": settings, "history": history, "logits": logits[0].tolist(), "scores": scores})
    return found


if __name__ == "__main__":
    content: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    content |= {"vocab_size": VOCAB, "eos_token_id": EOS, "max_new_tokens": MAX_NEW_TOKENS}
    lines = ",\n".join(json.dumps(case) for case in cases())  # one case per line
    head = json.dumps(content)[:-1]
    (GOLDENS / "constraints.json").write_text(f'{head}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")

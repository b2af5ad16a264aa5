"""Write processors.json: outputs of Hugging Face's logits processors for small distributions.

Requires torch and transformers: `python tools/goldens/make_processors.py`
"""

import json
from pathlib import Path

import torch
import transformers
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"

SETTINGS = [
    {"repetition_penalty": 1.2},
    {"repetition_penalty": 0.8},
    {"temperature": 0.7},
    {"top_k": 2},
    {"top_k": 50},
    {"top_p": 0.45},
    {"min_p": 0.4},
    {"min_p": 1.0},
    {"repetition_penalty": 1.3, "temperature": 0.7, "top_k": 3, "top_p": 0.8, "min_p": 0.2},
    {"repetition_penalty": 1.2, "temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
]
LOGITS = [
    [1.3, -0.4, 0.2, 2.1],
    [-1.0, -2.5, -0.3, -4.0],
    [0.5, 0.5, 0.5, 0.5],  # all are tied
    [1.0, 2.0, 2.0, -1.0],  # the best two are tied
    [0.0, 0.0, 3.0, 0.0],  # all except the best are tied
]
HISTORY = [0, 2, 2]


def processors(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0
) -> LogitsProcessorList:
    """Return the processors in the order of `GenerationMixin._get_logits_processor`."""
    chosen = LogitsProcessorList()
    if repetition_penalty != 1:
        chosen.append(RepetitionPenaltyLogitsProcessor(repetition_penalty))
    if temperature != 1:
        chosen.append(TemperatureLogitsWarper(temperature))
    if top_k:
        chosen.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        chosen.append(TopPLogitsWarper(top_p))
    if min_p:
        chosen.append(MinPLogitsWarper(min_p))
    return chosen


def cases() -> list[dict[str, object]]:
    generator = torch.Generator().manual_seed(0)
    wide = (2.5 * torch.randn(40, generator=generator)).tolist()
    found: list[dict[str, object]] = []
    for settings in SETTINGS:
        for logits, history in [*((row, HISTORY) for row in LOGITS), (wide, [3, 17, 3, 39, 0])]:
            scores = processors(**settings)(torch.tensor([history]), torch.tensor([logits]))
            probs = torch.softmax(scores.double(), dim=-1)[0].tolist()
            found.append({"settings": settings, "logits": logits, "history": history, "probs": probs})
    return found


if __name__ == "__main__":
    content = {"torch": torch.__version__, "transformers": transformers.__version__, "cases": cases()}
    lines = ",\n".join(json.dumps(case) for case in content.pop("cases"))  # one case per line
    head = json.dumps(content)[:-1]
    (GOLDENS / "processors.json").write_text(f'{head}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")

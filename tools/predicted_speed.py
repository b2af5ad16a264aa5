"""Prints the predicted speed of published models on Macs, without a Mac: `python -m tools.predicted_speed`.

The formula is speculative_decoding/doctor/predicted_costs.py. Bytes come from the models' configurations, kernels
from tools/dispatches.py, and draft lengths from `recommend_length`. Drafts come from a draft head of the target, or
from a small model of the family. Encoders, the attention's keys and values, and text are not counted, except for the
cross-attention's keys and values of a speech model's window.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from benchmarks.models import bytes_per_pass
from benchmarks.simulated_devices import CURVES
from speculative_decoding.doctor.predicted_costs import CHIPS, Chip, Work, predicted_costs, relative_costs
from speculative_decoding.doctor.recommendation import recommend_length
from speculative_decoding.draft_length.passes import RoundCosts
from speculative_decoding.models import EncoderDecoder

from . import dispatches

ACCEPTANCE_RATES = (0.5, 0.7, 0.9)
HEAD_START_DISPATCHES = 13  # joining hidden states, their norm and projection, and joining the draft's ids
TARGETS = (  # name, bits, draft model
    ("t5-small", 16, None),
    ("t5-base", 16, "t5-small"),
    ("t5-large", 16, "t5-small"),
    ("t5-3b", 16, "t5-small"),
    ("t5-3b", 4, "t5-small"),
    ("t5-11b", 16, "t5-small"),
    ("t5-11b", 4, "t5-small"),
    ("flan-t5-xl", 16, "flan-t5-small"),
    ("flan-t5-xl", 4, "flan-t5-small"),
    ("nllb-3.3b", 16, "nllb-600m"),
    ("nllb-3.3b", 4, "nllb-600m"),
    ("whisper-base", 16, None),
    ("whisper-large-v3", 16, "distil-large-v3"),
    ("whisper-large-v3", 4, "distil-large-v3"),
    ("t5gemma2-4b", 16, "t5gemma2-270m"),
    ("t5gemma2-4b", 4, "t5gemma2-270m"),
)


@lru_cache
def work_of_pass(name: str, bits: int, width: int, generation: int) -> Work:
    model = dispatches.weightless(name, bits)
    return Work(
        bytes_per_pass(model) + model.config.decoder_layers * window_bytes(model),
        dispatches.count(name, width, generation=generation, bits=bits).total(),
    )


def window_bytes(model: EncoderDecoder) -> int:
    """Return the size of one layer's cross keys and values for a whole window, or 0 for a model that reads text."""
    decoder = model.config.decoder
    positions = 0 if model.audio is None else model.audio.window_frames // 2
    return 2 * 2 * positions * decoder.num_kv_heads * decoder.head_dim


def work_of_head(name: str, bits: int, generation: int) -> tuple[Work, Work]:
    """Return the work of a step of a draft head in 16 bits, with 4,096 output ids, and of starting a draft."""
    model = dispatches.weightless(name, bits)
    head = dispatches.head_for(model)
    output = dispatches.DRAFT_VOCABULARY * head.config.d_model
    combine = head.combine.weight.size
    weights = head.nbytes // 4  # lazy weights are float32
    step = dispatches.count_head_step(name, generation=generation, bits=bits).total()
    return Work(2 * (weights - combine + output) + window_bytes(model), step), Work(2 * combine, HEAD_START_DISPATCHES)


def costs_on(chip: Chip, name: str, bits: int, draft: str | None) -> RoundCosts:
    """Predict the costs of rounds with a draft model, or with a draft head. Draft models have 16 bits."""
    narrow, wide = (work_of_pass(name, bits, width, chip.generation) for width in (1, 6))
    if draft is None:
        return predicted_costs(chip, bits, narrow, wide, *work_of_head(name, bits, chip.generation))
    return predicted_costs(chip, bits, narrow, wide, work_of_pass(draft, 16, 1, chip.generation))


def speeds(costs: RoundCosts) -> list[float]:
    """Return the tokens per second of the baseline and at each acceptance rate."""
    baseline = costs.baseline
    found = [recommend_length(costs, [rate], baseline=baseline, has_steps=True) for rate in ACCEPTANCE_RATES]
    return [speedup / baseline for speedup in (1.0, *(speedup for _, speedup in found))]


def lines(chips: Sequence[str], draft_models: bool) -> Iterator[str]:
    """Yield a table of all targets: `baseline: at each acceptance rate` in tokens per second for each chip."""
    yield "| | " + ("draft model | " if draft_models else "") + " | ".join(chips) + " |"
    yield "|---|" + "---|" * (len(chips) + draft_models)
    for name, bits, draft in TARGETS:
        if draft_models and draft is None:
            continue
        cells = [f"{name}, {bits} bits", *([draft] if draft_models and draft else [])]
        for chip_name in chips:
            baseline, *drafted = speeds(costs_on(CHIPS[chip_name], name, bits, draft if draft_models else None))
            cells.append(f"{rounded(baseline)}: {' / '.join(map(rounded, drafted))}")
        yield f"| {' | '.join(cells)} |"


def compared() -> Iterator[str]:
    """Yield a line for each published curve that is not older than the kernels of the prediction."""
    for curve in json.loads(CURVES.read_text())["curves"]:
        generation = re.match(r"M(\d)", curve["device"])
        if generation is None or "stock" in curve["mlx"] or "as reported" in curve["mlx"]:
            continue
        costs = relative_costs(Chip(0.0, int(generation[1])), 4 if "4 bits" in curve["weights"] else 16)
        errors = {
            rows: costs[rows] / cost - 1.0
            for rows, cost in zip(curve["rows"], curve["cost"], strict=True)
            if rows in costs
        }
        widest = max(errors, key=lambda rows: abs(errors[rows]))
        mean = sum(map(abs, errors.values())) / len(errors)
        yield (
            f"{curve['device']}, {curve['weights']}, {curve['shape']}: off by {mean:.0%} in the mean, "
            f"by {errors[widest]:+.0%} at {widest} rows"
        )


def rounded(speed: float) -> str:
    """Two significant digits, because the prediction has no more."""
    return f"{float(f'{speed:.2g}'):,.0f}" if speed >= 10 else f"{speed:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chip", nargs="+", choices=[*CHIPS], default=[*CHIPS], help="Macs (default: all)")
    chips = parser.parse_args().chip
    print(f"Predicted tokens/s: baseline, then with drafts at acceptance rates of {ACCEPTANCE_RATES}")
    for title, draft_models in (("Draft head", False), ("Draft model", True)):
        print("", title, "", *lines(chips, draft_models), sep="\n")
    print("", "Predicted cost of wide passes compared with published ones", "", *compared(), sep="\n")


if __name__ == "__main__":
    main()

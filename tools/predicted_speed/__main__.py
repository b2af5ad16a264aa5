"""Prints the predicted speed of published models on Macs, without a Mac: `python -m tools.predicted_speed`.

Drafts come from the target's draft head, or from a small model of the same family. The prediction ignores encoders,
text processing, and the keys and values of attention, except for a speech model's cross-attention over one window.

With --traces FILE ..., it instead counts the dispatches, command buffers and host syncs in recorded rounds (traces.py).

With --doctor FILE, the tool reads a report written by `doctor --json FILE`. It prints the best draft lengths for the
costs in the report, and predicted times of passes next to the measured times.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.simulated_devices import CURVES
from speculative_decoding.draft_length.passes import RoundCosts

from .costs import (
    CHIPS,
    DISPATCHES_PER_LAYER,
    Chip,
    Work,
    chip_named,
    pass_seconds,
    predicted_costs,
    recommend_length,
    relative_costs,
)
from .traces import traced_lines

ACCEPTANCE_RATES = (0.5, 0.7, 0.9)
HEAD_START_DISPATCHES = (
    8  # joining and selecting hidden states, their norms and projection; joining ids and their lookup
)
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


class Size(NamedTuple):
    """The weights and kernels of a model with a published size.

    The kernels are counted in docs/decisions/metal-source.md, without those that metal-dispatches.md saves.

    nbytes: the bytes of weights that a pass reads, including a speech model's cross-attention keys and values.
    new, old: the numbers of kernels in passes over one and over six positions, on M3 and later (new), and on M1 and M2
        (old).
    head_nbytes, head: the bytes read and the number of kernels in a step of a 16-bit draft head with 4,096 output ids.
    start_nbytes: the bytes that the head reads to start a draft.
    """

    nbytes: int
    new: tuple[int, int]
    old: tuple[int, int]
    head_nbytes: int
    head: int
    start_nbytes: int

    def passes(self, chip: Chip) -> tuple[Work, Work]:
        narrow, wide = self.new if chip.generation >= 3 else self.old
        return Work(self.nbytes, narrow), Work(self.nbytes, wide)


SIZES = {  # keyed by name and bits
    ("t5-small", 16): Size(76_959_232, (86, 104), (86, 128), 8_390_656, 13, 1_572_864),
    ("t5-base", 16): Size(247_587_072, (164, 200), (164, 248), 15_731_712, 13, 3_538_944),
    ("t5-large", 16): Size(770_591_744, (319, 391), (320, 488), 25_169_920, 13, 6_291_456),
    ("t5-3b", 16): Size(2_884_521_984, (319, 391), (320, 464), 37_752_832, 13, 6_291_456),
    ("t5-3b", 4): Size(858_673_152, (391, 463), (392, 488), 37_752_832, 13, 6_291_456),
    ("t5-11b", 16): Size(11_340_244_992, (319, 391), (320, 464), 88_084_480, 13, 6_291_456),
    ("t5-11b", 4): Size(3_236_849_664, (391, 463), (392, 536), 88_084_480, 13, 6_291_456),
    ("flan-t5-xl", 16): Size(2_849_806_336, (319, 391), (319, 487), 100_671_488, 13, 25_165_824),
    ("flan-t5-small", 16): Size(76_965_248, (111, 135), (111, 151), 9_177_088, 13, 1_572_864),
    ("flan-t5-xl", 4): Size(896_309_248, (391, 463), (391, 511), 100_671_488, 13, 25_165_824),
    ("nllb-3.3b", 16): Size(3_869_671_424, (393, 465), (393, 561), 83_894_272, 14, 25_165_824),
    ("nllb-600m", 16): Size(877_453_312, (201, 237), (201, 285), 25_169_920, 14, 6_291_456),
    ("nllb-3.3b", 4): Size(1_843_822_592, (441, 513), (441, 585), 83_894_272, 14, 25_165_824),
    ("whisper-base", 16): Size(116_147_200, (105, 123), (105, 147), 11_462_656, 13, 1_572_864),
    ("whisper-large-v3", 16): Size(1_849_088_000, (521, 617), (521, 745), 44_385_280, 13, 9_830_400),
    ("distil-large-v3", 16): Size(241_126_400, (41, 47), (41, 55), 44_385_280, 13, 6_553_600),
    ("whisper-large-v3", 4): Size(793_958_400, (585, 681), (585, 745), 44_385_280, 13, 9_830_400),
    ("t5gemma2-4b", 16): Size(7_760_198_656, (1000, 1102), (1000, 1204), 146_810_880, 16, 39_321_600),
    ("t5gemma2-270m", 16): Size(536_196_352, (536, 626), (572, 680), 14_420_480, 16, 2_457_600),
    ("t5gemma2-4b", 4): Size(3_147_774_976, (1000, 1102), (1000, 1136), 146_810_880, 16, 39_321_600),
}


def costs_on(chip: Chip, name: str, bits: int, draft: str | None) -> RoundCosts:
    """Predict the costs of rounds with a draft model, or with a draft head if `draft` is None. Drafts have 16 bits."""
    size = SIZES[name, bits]
    if draft is not None:
        return predicted_costs(chip, bits, *size.passes(chip), SIZES[draft, 16].passes(chip)[0])
    step, start = Work(size.head_nbytes, size.head), Work(size.start_nbytes, HEAD_START_DISPATCHES)
    return predicted_costs(chip, bits, *size.passes(chip), step, start)


def speeds(costs: RoundCosts) -> list[float]:
    """Return the tokens per second for the baseline and for each acceptance rate."""
    baseline = costs.baseline
    found = [recommend_length(costs, rate, baseline) for rate in ACCEPTANCE_RATES]
    return [speedup / baseline for speedup in (1.0, *(speedup for _, speedup in found))]


def lines(chips: Sequence[str], draft_models: bool) -> Iterator[str]:
    """Yield a table of all targets. A cell has a chip's tokens per second: `baseline: at each acceptance rate`."""
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
    """Yield a line for each published curve, except curves that are older than the kernels used for the prediction."""
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


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield predictions for the device and the models in a report from `doctor`."""
    own = report["precisions"][0]
    if "passes" in own:
        yield f"Predicted best draft length and speedup over the baseline in {own['precision']}"
        costs = measured_costs(own)
        best = {
            (rate, name): recommend_length(each, rate, own["pass_seconds"])
            for rate in ACCEPTANCE_RATES
            for name, each in costs.items()
        }
        for (rate, name), (length, speedup) in best.items():
            yield f"acceptance rate {rate:.0%}, {name} passes: {length} draft tokens, {speedup:.2f}x"
        if "exact" in costs:
            fast, exact = (best[ACCEPTANCE_RATES[1], name][1] for name in ("fast", "exact"))
            yield f"Exact passes cost {max(0.0, 1 - exact / fast):.1%} of the speed at {ACCEPTANCE_RATES[1]:.0%}"
        yield ""
    yield "Time of a pass over one position in ms: measured, predicted"
    for entry in report["precisions"]:
        measured = entry.get("pass_seconds")
        predicted = predicted_pass(report["device"], report["target"], entry["pass_bytes"])
        times = ("-" if seconds is None else f"{1000 * seconds:.3f}" for seconds in (measured, predicted))
        yield f"{entry['precision']}: {', '.join(times)}"


def measured_costs(own: Mapping[str, Any]) -> dict[str, RoundCosts]:
    """Return the costs of rounds, both with all passes and with exact passes only."""
    draft = own["draft_seconds"] or dict.fromkeys(("step", "start", "source"), 0.0)
    passes = {
        "fast": {row["width"]: row["seconds"] for row in own["passes"]},
        "exact": {row["width"]: row["seconds"] for row in own["passes"] if row["exact"]},
    }
    return {
        name: RoundCosts(each, draft["step"], draft["start"], draft["source"]) for name, each in passes.items() if each
    }


def predicted_pass(device: Mapping[str, Any], target: Mapping[str, Any], pass_bytes: int | None) -> float | None:
    """Predict the seconds for a pass over one position. Returns None if the device or architecture has no figures."""
    chip = chip_named(device["name"]) if device["kind"] == "GPU" else None
    if chip is None or pass_bytes is None or target["architecture"] not in DISPATCHES_PER_LAYER:
        return None
    return pass_seconds(chip, target["architecture"], pass_bytes, target["decoder_layers"])


def rounded(speed: float) -> str:
    """Round to two significant digits, the precision of the prediction."""
    return f"{float(f'{speed:.2g}'):,.0f}" if speed >= 10 else f"{speed:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chip", nargs="+", choices=[*CHIPS], default=[*CHIPS], help="Macs (default: all)")
    parser.add_argument("--doctor", type=Path, metavar="FILE", help="predict for a report that doctor wrote as JSON")
    traces = "count the dispatches of rounds in these files"
    parser.add_argument("--traces", nargs="+", type=Path, metavar="FILE", help=traces)
    chosen = parser.parse_args()
    if chosen.traces is not None:
        print(*traced_lines(chosen.traces), sep="\n")
        return
    if chosen.doctor is not None:
        print(*report_lines(json.loads(chosen.doctor.read_text(encoding="utf-8"))), sep="\n")
        return
    chips = chosen.chip
    print(f"Predicted tokens/s: baseline, then with drafts at acceptance rates of {ACCEPTANCE_RATES}")
    for title, draft_models in (("Draft head", False), ("Draft model", True)):
        print("", title, "", *lines(chips, draft_models), sep="\n")
    print("", "Predicted cost of wide passes compared with published ones", "", *compared(), sep="\n")


if __name__ == "__main__":
    main()

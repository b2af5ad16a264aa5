"""`doctor`: prints the diagnosis as a report, and writes it as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A
from typing import Any, TextIO

from rich.console import Console

from ..cli.common import printing, require_one_process, say, start_alone
from ..cli.divergence import Divergence
from ..cli.flags import all_but
from ..cli.parser import Parser, add_flags, flags_from
from ..cli.run_config import DRAFT_PROMPT, DraftFlags, ModelFlags, run_config_from
from ..draft_length.store import CALIBRATION_VARIABLE
from ..errors import Name, writing
from ..runs.places import atomic_write, require_writable
from ..sampling import GenerationOptions
from ..sampling.values import Flag, Text
from .device import ARCHITECTURE_VARIABLE
from .diagnosis import diagnose

Diagnosis = Mapping[str, Any]
JSON = "also write the report as JSON, without paths, names or prompts; - writes to standard output"
STYLES = {"pass": "green", "FAIL": "bold red"}


@dataclass(frozen=True)
class DoctorFlags:
    """The flags of `doctor`, in addition to the model flags."""

    json: A[str | None, Text(), JSON, Flag(metavar="FILE")] = None


def doctor_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s [options]",
        description="Measure this device with these models, test kernels and drafts, and print a report. The exit "
        "status is 1 if a test fails.",
    )
    add_flags(parser, "report", DoctorFlags)
    add_flags(parser, "models", ModelFlags)
    add_flags(parser, "languages", GenerationOptions, without=all_but(GenerationOptions, "src_lang", "tgt_lang"))
    add_flags(
        parser,
        "draft models, calibration",
        DraftFlags,
        without=all_but(DraftFlags, "recalibrate", *DRAFT_PROMPT),
    )
    return parser


def main(argv: Sequence[str] | None = None, program: str = "speculative-decoding doctor") -> int:
    return start_alone(doctor_parser(program), argv, examine)


def examine(chosen: argparse.Namespace) -> int:
    """Print the report and return the exit status: 1 if a check failed."""
    require_one_process()
    json_file = flags_from(DoctorFlags, chosen).json
    to_stdout = json_file == "-"
    path = None if json_file is None or to_stdout else Path(json_file)
    require_writable(path, "json")
    found = diagnose(run_config_from(chosen))
    with printing():
        print_report(found, sys.stderr if to_stdout else sys.stdout)
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    if to_stdout:
        with printing():
            print(text, end="", flush=True)
    elif path is not None:
        with writing(Name("json"), path):
            if path.is_symlink() or (path.exists() and not path.is_file()):  # such as /dev/stdout: do not replace it
                path.write_text(text, encoding="utf-8")
            else:
                atomic_write(path, text)
        say(f"wrote {path}: facts about the device and the models, costs of passes and drafts, and results of checks.")
        say("It contains no paths, user names, host names, prompts or outputs.")
    return 0 if found["passed"] else 1


def print_report(found: Diagnosis, file: TextIO) -> None:
    console = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)
    bar = "█" if "utf" in (file.encoding or "").lower() else "#"
    for heading, lines in sections(found, bar):
        console.print(f"\n{heading}", style="bold")
        for line in lines:
            console.print(f"  {line}", style=next((style for word, style in STYLES.items() if line.endswith(word)), ""))
    console.print()


def sections(found: Diagnosis, bar: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each heading with its lines, which are at most 78 characters long."""
    own = found["precisions"][0]
    yield "Device", device_lines(found)
    yield "Models", model_lines(found)
    if "passes" in own:
        is_given = found["calibration"] == "given"
        yield f"Target passes in {own['precision']}, 1 row", pass_lines(own, bar, is_given=is_given)
        yield "Draft", draft_lines(own)
    yield "Precisions", precision_lines(found)
    yield "Fused kernels, compared with float32 arithmetic on the CPU", kernel_lines(found)
    yield "Self-test: drafts compared with the baseline, greedy, in exact passes", self_test_lines(found)
    yield "Result", [result_line(found)]


def device_lines(found: Diagnosis) -> list[str]:
    device = found["device"]
    versions = found["versions"]
    architecture = f" ({device['architecture']})" if device["architecture"] else ""
    limit = "available" if device["recommended_working_set"] is None else "recommended maximum for the GPU"
    lines = [
        f"{device['name']}{architecture}, {device['kind']}; {device['cores']} cores, "
        f"{device['system']} {device['machine']}",
        f"memory: {format_size(device['memory'])}, {format_size(device['memory_limit'])} {limit}",
        f"MLX {versions['mlx']}, speculative-decoding {versions['package']}, Python {versions['python']}",
    ]
    if device["forced_architecture"]:
        lines.append(
            f"{ARCHITECTURE_VARIABLE}={device['forced_architecture']} replaces the architecture that Metal reports"
        )
    if found["tf32"] is not None:
        state = "on; MLX_ENABLE_TF32=0 turns it off" if found["tf32"] else "off"
        lines.append(f"float32 matmuls in TF32: {state}")
    return [part for line in [*lines, *found["notes"]] for part in wrap(line)]


def model_lines(found: Diagnosis) -> list[str]:
    target = found["target"]
    draft = found["draft"]
    target_line = (
        f"target: {target['name'] or 'a local folder'}, {target['architecture']}, decoder layers: "
        f"{target['decoder_layers']}, d_model {target['d_model']}, d_ff {target['d_ff']}, {target['heads']} heads "
        f"of width {target['head_width']}, {target['vocab_size']} tokens, {target['precision']}, "
        f"{format_size(target['bytes'])}"
    )
    draft_line = "draft: no model; drafts are n-grams copied from the text"
    if draft is not None:
        draft_line = f"draft: {draft['name'] or 'a local folder'}, a {draft['kind']}, {format_size(draft['bytes'])}"
    return [*wrap(target_line), draft_line]


def pass_lines(own: Diagnosis, bar: str, *, is_given: bool) -> list[str]:
    """Draw a chart of a pass's cost by width. is_given: whether the costs come from a file."""
    rows = own["passes"]
    bar_columns = 36
    longest = max(row["relative"] for row in rows)
    lines = [f"{'width':>5} {'ms':>9} {'relative':>9}"]
    for row in rows:
        bars = bar * max(1, round(bar_columns * row["relative"] / longest))
        exact = "  exact" if row["exact"] else ""
        lines.append(
            f"{row['width']:5} {1000 * row['seconds']:9.3f} {row['relative']:8.2f}x  {bars:{bar_columns}}{exact}"
        )
    lines += wrap("A pass of width w verifies w - 1 draft tokens. Other passes are padded to a listed width.")
    widths = ", ".join(map(str, own["exact_widths"]))
    default = "They are the default here." if own["exactness"]["default"] else "They are off by default here."
    lines += wrap(f"Exact passes give every position bit-identical scores. They have the widths {widths}. {default}")
    if is_given:
        lines += wrap(f"Not measured: the times come from the file in {CALIBRATION_VARIABLE}.")
    return lines


def draft_lines(own: Diagnosis) -> list[str]:
    costs = own["draft_seconds"]
    if costs is None:
        return ["no draft model or draft head; copying drafts takes no time on the device"]
    names = {
        "step": ("each draft token", ""),
        "start": ("starting a draft", ""),
        "source": ("encoding a source", ", once"),
    }
    return [
        f"{name:20}{1000 * costs[key]:9.3f} ms {costs[key] / own['pass_seconds']:8.2f} passes over one position{when}"
        for key, (name, when) in names.items()
    ]


def precision_lines(found: Diagnosis) -> list[str]:
    lines = [f"{'':10} {'weights':>9}  {'fits':4} {'read per pass':>13} {'pass time':>10}"]
    is_measured = found["calibration"] == "measured"
    for entry in found["precisions"]:
        if entry["bytes"] is None:
            lines.append(f"{entry['precision']:10} {entry['skipped']}")
            continue
        fits = "yes" if entry["fits"] else "no"
        time = f"{1000 * entry['pass_seconds']:7.3f} ms" if is_measured and "pass_seconds" in entry else ""
        sizes = f"{format_size(entry['bytes']):>9}  {fits:4} {format_size(entry['pass_bytes']):>13}"
        lines.append(f"{entry['precision']:10} {sizes} {time:>10}".rstrip())
    fastest = found["fastest"]
    if fastest["by_bytes"] is None:
        return [*lines, "no precision fits into memory"]
    measured = f"; as measured: {fastest['measured']}." if fastest["measured"] else "."
    return [*lines, *wrap(f"Fastest by bytes read per pass: {fastest['by_bytes']}{measured}")]


def kernel_lines(found: Diagnosis) -> list[str]:
    lines = [f"{'':30} {'precision':10} {'checks':>6} {'deviation':>10} {'tolerance':>10}"]
    for entry in found["precisions"]:
        for kernel in entry.get("kernels", ()):
            worst = "not finite" if kernel["worst_deviation"] is None else f"{kernel['worst_deviation']:.1e}"
            verdict = "FAIL" if kernel["failed"] else "pass"
            lines.append(
                f"{kernel['kernel']:30} {entry['precision']:10} {kernel['checks']:6} {worst:>10} "
                f"{kernel['tolerance']:10.1e} {verdict:>6}"
            )
            lines += [part for shape in kernel["failed"] for part in wrap(f"  {shape}: FAIL")]
    if len(lines) == 1:
        return ["no model was loaded"]
    return lines


def self_test_lines(found: Diagnosis) -> list[str]:
    lines = []
    for entry in found["precisions"]:
        test = entry.get("self_test")
        skipped = entry["skipped"] if test is None else test["skipped"]
        if test is None or skipped is not None:
            if skipped is not None:
                lines.append(f"{entry['precision']:10} skipped: {skipped}")
            continue
        verdict = "FAIL" if test["differences"] else "pass"
        identical = f"{test['identical']} of {test['prompts']} identical"
        accepted = f"{test['tokens']} tokens, {test['accepted']} of {test['drafted']} draft tokens accepted"
        lines.append(f"{entry['precision']:10} {identical}; {accepted:43} {verdict}")
        for difference in test["differences"]:
            token, gap = difference["token"], difference["logit_gap"]
            where = "no output" if token is None else Divergence(token, None, None, gap)
            lines.append(f"  prompt {difference['prompt']}: {where}")
    return lines


def result_line(found: Diagnosis) -> str:
    if not any("kernels" in entry for entry in found["precisions"]):
        return "nothing was checked: the weights do not fit into memory"
    return "all checks: pass" if found["passed"] else "a check failed, see above: FAIL"


def wrap(text: str) -> list[str]:
    return textwrap.wrap(text, 78, subsequent_indent="  ", break_long_words=False) or [""]


def format_size(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"

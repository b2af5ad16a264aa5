"""main.py --doctor: prints what diagnosis.py found out, and writes it as JSON."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from ..draft_length.calibration import CALIBRATION_VARIABLE
from ..errors import writing
from ..loading.atomic_io import atomic_write
from .common import printing, say
from .diagnosis import diagnose
from .drafting import Plan
from .parser import require_writable

Found = Mapping[str, Any]
COLUMNS, BAR = 80, 36
STYLES = {"pass": "green", "FAIL": "bold red"}
GB, MB = 1e9, 1e6


def examine(plan: Plan, file: str | None) -> int:
    """The exit status: 1 if a check failed. file: for the JSON; - is standard output."""
    to_output = file == "-"
    path = None if file is None or to_output else Path(file)
    require_writable("json", path)
    found = diagnose(plan)
    with printing():
        show(found, sys.stderr if to_output else sys.stdout)
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    if to_output:
        with printing():
            print(text, end="", flush=True)
    elif path is not None:
        with writing("--json", path):
            if path.is_symlink() or (path.exists() and not path.is_file()):  # as /dev/stdout: must stay what it is
                path.write_text(text, encoding="utf-8")
            else:
                atomic_write(path, text)
        say(f"wrote {path}")
    return 0 if found["passed"] else 1


def show(found: Found, file: TextIO) -> None:
    """Headings in bold and verdicts in colour, where there is colour."""
    console = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)
    bar = "█" if "utf" in (file.encoding or "").lower() else "#"
    for heading, lines in sections(found, bar):
        console.print(f"\n{heading}", style="bold")
        for line in lines:
            console.print(f"  {line}", style=next((style for word, style in STYLES.items() if line.endswith(word)), ""))
    console.print()


def sections(found: Found, bar: str) -> Iterator[tuple[str, Sequence[str]]]:
    """A heading, and lines of at most 78 characters."""
    own, *_ = found["precisions"]
    yield "Device", device(found)
    yield "Models", models(found)
    if "passes" in own:
        yield f"Target passes in {own['precision']}, 1 row", passes(own, bar, is_given=found["calibration"] == "given")
        yield "Draft", draft(own)
        yield "Predicted best draft length and speedup over decoding without a draft", predictions(own)
    yield "Precisions", precisions(found)
    yield "Fused kernels, compared with float32 arithmetic on the CPU", kernels(found)
    yield "Self-test: greedy decoding with and without a draft, in exact passes", self_tests(found)
    yield "Result", [result(found)]


def device(found: Found) -> list[str]:
    facts, versions = found["device"], found["versions"]
    architecture = f" ({facts['architecture']})" if facts["architecture"] else ""
    lines = [
        f"{facts['name']}{architecture}, {facts['kind']}; {facts['cores']} cores, {facts['system']} {facts['machine']}"
    ]
    working_set = facts["recommended_working_set"]
    limit = "available" if working_set is None else "recommended as the most for the GPU"
    lines.append(f"memory: {size(facts['memory'])}, {size(facts['memory_limit'])} {limit}")
    lines.append(f"MLX {versions['mlx']}, speculative-decoding {versions['package']}, Python {versions['python']}")
    if found["tf32"] is not None:
        how = "on; MLX_ENABLE_TF32=0 turns it off" if found["tf32"] else "off"
        lines.append(f"float32 products in TF32: {how}")
    return [part for line in [*lines, *found["notes"]] for part in wrapped(line)]


def models(found: Found) -> list[str]:
    target, draft = found["target"], found["draft"]
    line = (
        f"target: {target['name'] or 'a local folder'}, {target['architecture']}, decoder layers: "
        f"{target['decoder_layers']}, d_model {target['d_model']}, d_ff {target['d_ff']}, {target['heads']} heads "
        f"of width {target['head_width']}, {target['vocab_size']} tokens, {target['precision']}, "
        f"{size(target['bytes'])}"
    )
    other = "none; drafts are copies of the text"
    if draft is not None:
        other = f"{draft['name'] or 'a local folder'}, a {draft['kind']}, {size(draft['bytes'])}"
    return [*wrapped(line), f"draft: {other}"]


def passes(own: Found, bar: str, *, is_given: bool) -> list[str]:
    rows = own["passes"]
    longest = max(row["relative"] for row in rows)
    lines = [f"{'width':>5} {'ms':>9} {'relative':>9}"]
    for row in rows:
        drawn = bar * max(1, round(BAR * row["relative"] / longest))
        exact = "  exact" if row["exact"] else ""
        lines.append(f"{row['width']:5} {1000 * row['seconds']:9.3f} {row['relative']:8.2f}x  {drawn:{BAR}}{exact}")
    lines += wrapped(
        "A pass over w positions verifies w - 1 drafted tokens. A width that is not listed is padded to the next one "
        "that is."
    )
    exactness, widths = own["exactness"], ", ".join(map(str, own["exact_widths"]))
    said = f"Exact passes give every position bit-identical scores, as found for the widths {widths}."
    if exactness["possible"]:
        choice = "It is the default here." if exactness["default"] else "It is off by default here."
        said += f" Decoding with exact passes alone (--strict) costs {exactness['price']:.1%} of the speed. {choice}"
    lines += wrapped(said)
    return (
        [*lines, *wrapped(f"Not measured: the figures are those of the file in {CALIBRATION_VARIABLE}.")]
        if is_given
        else lines
    )


def draft(own: Found) -> list[str]:
    costs, baseline = own["draft_seconds"], own["pass_seconds"]
    if costs is None:
        return ["no draft model or head; copies take no time on the device"]
    names = {"step": ("each drafted token", ""), "start": ("starting a draft", "")}
    names |= {"source": ("encoding a source", ", once")}
    return [
        f"{name:20}{1000 * costs[each]:9.3f} ms {costs[each] / baseline:8.2f} passes over one position{when}"
        for each, (name, when) in names.items()
    ]


def predictions(own: Found) -> list[str]:
    """Both kinds of passes in one table, or one where they agree."""
    by_kind: dict[str, dict[float, str]] = {}
    for row in own["recommended"]:
        length = f"{row['draft_length']} tokens" if row["draft_length"] else "no draft"
        by_kind.setdefault(row["passes"], {})[row["acceptance"]] = f"{length}, {row['speedup']:.2f}x"
    is_same = len({tuple(each.values()) for each in by_kind.values()}) == 1 and len(by_kind) > 1
    kinds = {"all passes": by_kind["fast"]} if is_same else {f"{kind} passes": each for kind, each in by_kind.items()}
    lines = [f"{'acceptance per token':22}" + "".join(f"{kind:22}" for kind in kinds)]
    for rate in by_kind["fast"]:
        lines.append(f"{rate:<22.0%}" + "".join(f"{each[rate]:22}" for each in kinds.values()))
    return [line.rstrip() for line in lines]


def precisions(found: Found) -> list[str]:
    lines = [f"{'':10} {'weights':>9}  {'fits':4} {'a pass reads':>13} {'and takes':>10}"]
    is_measured = found["calibration"] == "measured"
    for entry in found["precisions"]:
        if entry["bytes"] is None:
            lines.append(f"{entry['precision']:10} {entry['skipped']}")
            continue
        fits, read = "yes" if entry["fits"] else "no", size(entry["pass_bytes"])
        taken = f"{1000 * entry['pass_seconds']:7.3f} ms" if is_measured and "pass_seconds" in entry else ""
        line = f"{entry['precision']:10} {size(entry['bytes']):>9}  {fits:4} {read:>13} {taken:>10}"
        lines.append(line.rstrip())
    best = found["fastest"]
    if best["by_bytes"] is None:
        return [*lines, "none fits into memory"]
    said = f"Fastest by the bytes that a pass reads: {best['by_bytes']}"
    return [*lines, *wrapped(said + (f"; as measured: {best['measured']}." if best["measured"] else "."))]


def kernels(found: Found) -> list[str]:
    lines = [f"{'':30} {'precision':10} {'checks':>6} {'deviation':>10} {'tolerance':>10}"]
    for entry in found["precisions"]:
        for each in entry.get("kernels", ()):
            worst = "not finite" if each["worst_deviation"] is None else f"{each['worst_deviation']:.1e}"
            verdict = "FAIL" if each["failed"] else "pass"
            lines.append(
                f"{each['kernel']:30} {entry['precision']:10} {each['checks']:6} {worst:>10} "
                f"{each['tolerance']:10.1e} {verdict:>6}"
            )
            lines += [part for shape in each["failed"] for part in wrapped(f"  {shape}: FAIL")]
    if len(lines) == 1:
        return ["nothing was loaded"]
    if found["device"]["kind"] == "CPU":
        lines += wrapped("On a CPU, decoding does without scaled_dot_product_attention.")
    return lines


def self_tests(found: Found) -> list[str]:
    lines = []
    for entry in found["precisions"]:
        test = entry.get("self_test")
        if test is None or test["skipped"] is not None:
            if reason := entry["skipped"] if test is None else test["skipped"]:
                lines.append(f"{entry['precision']:10} skipped: {reason}")
            continue
        verdict = "FAIL" if test["differences"] else "pass"
        counts = f"{test['identical']} of {test['prompts']} identical"
        drafted = f"{test['tokens']} tokens, {test['accepted']} of {test['drafted']} drafted accepted"
        lines.append(f"{entry['precision']:10} {counts}; {drafted:43} {verdict}")
        for each in test["differences"]:
            gap = "" if each["logit_gap"] is None else f", logit gap {each['logit_gap']:.4g}"
            where = "no output" if each["token"] is None else f"differs at token {each['token']}{gap}"
            lines.append(f"  prompt {each['prompt']}: {where}")
    return lines


def result(found: Found) -> str:
    if not any("kernels" in each for each in found["precisions"]):
        return "nothing was checked: the weights do not fit into memory"
    return "all checks: pass" if found["passed"] else "a check failed, see above: FAIL"


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS - 2, subsequent_indent="  ", break_long_words=False) or [""]


def size(nbytes: float) -> str:
    return f"{nbytes / GB:.1f} GB" if nbytes >= GB else f"{nbytes / MB:.1f} MB"

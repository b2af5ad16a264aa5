"""Which drafter is fastest on this machine, and with how many drafted tokens? Measures, prints, keeps the best.

`python -m benchmarks.tune --model ... --draft-model ...`; main.py then takes the best where it is told
neither --drafter nor --num-draft. Knows nothing of how drafts are made and verified.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from speculative_decoding.cli import common, drafting
from speculative_decoding.cli.tool_options import tune_parser
from speculative_decoding.cli.tuned import Tuned, require_writable, write_tuned
from speculative_decoding.decoding.request import check_token_ids, choose_length, encode_prompt
from speculative_decoding.draft_length.costs import costs_of
from speculative_decoding.drafters import DRAFTERS
from speculative_decoding.errors import InputError
from speculative_decoding.verify import PROMPTS, is_comparable, read_prompt_files

from .prediction import Watched, predicted_speedups
from .sweep import PLAIN, Row, Setting, fastest, measured, sweep


def table(rows: Sequence[Row]) -> str:
    """A line for each row, in aligned columns."""
    names = (
        "drafter",
        "num-draft",
        "acceptance",
        "tokens/call",
        "tokens/s",
        "speed-up",
        "first token",
        "memory",
        "same",
    )
    cells = [names] + [
        (
            row.choice.drafter,
            "-" if row.choice == PLAIN else str(row.choice.num_draft),
            "-" if row.choice == PLAIN else f"{row.acceptance:.1%}",
            f"{row.tokens_per_call:.2f}",
            f"{row.tokens_per_second:.1f}",
            f"{row.speed_up:.2f}x",
            f"{row.first_token * 1e3:.1f} ms",
            f"{row.peak_memory_bytes / 1e9:.2f} GB",
            "-" if row.same is None else f"{row.same}/{row.cases}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def open_settings(
    each_drafter: Sequence[argparse.Namespace], lengths: Sequence[int | str], pair: common.Pair, sessions: ExitStack
) -> list[Setting]:
    """Plain decoding, and every drafter with every length. None has any experience that another one gathered."""
    found: list[Setting] = []
    for one in each_drafter:
        session = sessions.enter_context(drafting.session(one, pair))
        if not found:
            found.append(Setting(PLAIN, session, Watched(choose_length(0, session.model))))
        for count in lengths:
            length = Watched(choose_length(count, session.model, session.draft_model))
            found.append(Setting(Tuned(one.drafter, count), session, length, drafting.ngram_drafter(one, pair)))
    return found


def plot(path: Path, rows: Sequence[Row], predicted: Mapping[str, Sequence[float]]) -> None:
    """Speed-up over the number of drafted tokens: dots are measured, lines are `predicted`, by drafter, from 0 on;
    dashed: lengths that change.
    """
    figure = require_matplotlib(path).Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1.0, color="gray", linewidth=1)
    drafters = dict.fromkeys(row.choice.drafter for row in rows if row.choice != PLAIN)
    for colour, drafter in enumerate(drafters):
        style = {"color": f"C{colour}"}
        ours = [row for row in rows if row.choice.drafter == drafter]
        fixed = {row.choice.num_draft: row.speed_up for row in ours if isinstance(row.choice.num_draft, int)}
        if fixed:
            axes.plot(list(fixed), list(fixed.values()), "o", label=f"{drafter}, measured", **style)
        if curve := predicted.get(drafter):
            axes.plot(range(1, len(curve)), curve[1:], "-", label=f"{drafter}, S(g)", **style)
        for row in ours:
            if isinstance(row.choice.num_draft, str):
                axes.axhline(row.speed_up, linestyle="--", label=f"{drafter}, {row.choice.num_draft}", **style)
    axes.set(xlabel="g, tokens drafted per round (--num-draft)", ylabel="speed-up over plain decoding", ylim=(0, None))
    figure.legend(fontsize="small", loc="outside lower center", ncols=max(1, len(drafters)))
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise InputError(f"--plot {path}: cannot be written ({error})") from error


def require_matplotlib(path: Path) -> Any:
    """`matplotlib.figure`. Raises `InputError` where it is missing, or where the file cannot be written."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise InputError(f"--plot {path}: cannot be written; name a file in a folder that exists")
    try:
        from matplotlib import figure
    except ImportError as error:
        raise InputError(
            f"--plot {path}: needs matplotlib ({error}); pip install matplotlib, or leave --plot out"
        ) from error
    return figure


def predictions(settings: Sequence[Setting], pair: common.Pair) -> dict[str, list[float]]:
    """By drafter, from the cycles of its longest fixed length."""
    longest: dict[str, Setting] = {}
    for setting in settings[1:]:
        if isinstance(setting.choice.num_draft, int):
            longest[setting.choice.drafter] = max(
                setting, longest.get(setting.choice.drafter, setting), key=lambda each: each.length.most
            )
    costs = costs_of(pair.target, pair.draft)
    return {drafter: predicted_speedups(setting.length.cycles, costs) for drafter, setting in longest.items()}


def read_cases(
    chosen: argparse.Namespace, pair: common.Pair, request: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any]]]:
    """The first prompts of each file, with each seed. Raises `InputError` for one that cannot be decoded."""
    cases: list[tuple[str, Mapping[str, Any]]] = []
    for path in getattr(chosen, "prompts", None) or sorted(PROMPTS.glob("*.txt")):
        prompts = (prompt for prompt in read_prompt_files([path]) if prompt.strip())
        for number, prompt in enumerate(islice(prompts, chosen.limit), start=1):
            try:
                encode_prompt(pair.target, pair.tokenizer, prompt, chosen.allow_long_prompt)
            except InputError as error:
                raise InputError(f"{path}, prompt {number}: {error}") from error
            cases += [
                (prompt, {**request, "sampling": replace(request["sampling"], seed=seed)}) for seed in chosen.seed
            ]
    if not cases:
        raise InputError("--prompts: there is no text in them; give a prompt a line")
    return cases


def tune(chosen: argparse.Namespace) -> int:
    """Everything that can be wrong is found before anything is measured."""
    picture: Path | None = getattr(chosen, "plot", None)
    if picture is not None:
        require_matplotlib(picture)
    request = common.decoding_options(chosen)
    folders = common.choose(chosen)
    possible = DRAFTERS if folders.draft is not None else ("ngram",)
    drafters = [name for name in dict.fromkeys(getattr(chosen, "drafter", possible)) if name != "none"]
    lengths = [count for count in dict.fromkeys(chosen.num_draft) if count != 0]
    if not drafters or not lengths:
        raise InputError("--drafter none and --num-draft 0 are measured in any case; name others to compare with")
    each_drafter = drafting.each_drafter(chosen, drafters, folders)
    key = drafting.tuned_key(chosen, folders)
    if not chosen.dry_run:
        require_writable(folders.target)
    pair = common.open_pair(folders, chosen, use_draft=any(map(drafting.needs_draft, each_drafter)))
    check_token_ids(chosen.eos_token_id, pair.target.config.vocab_size)
    cases = read_cases(chosen, pair, request)

    with ExitStack() as sessions:
        settings = open_settings(each_drafter, lengths, pair, sessions)
        common.say(f"{len(settings)} settings on {len(cases)} prompts, {chosen.repeats} times, and once to warm up")
        for repeat in sweep(settings, cases, chosen.repeats):
            common.say(f"repeat {repeat} of {chosen.repeats} done")
    comparable = is_comparable(request)
    rows = [measured(each.choice, each.runs, settings[0].runs, comparable=comparable) for each in settings]
    best = fastest(rows)
    print(table(rows), verdict(best), sep="\n", flush=True)
    if not chosen.dry_run:
        evidence = {
            "speed_up": round(best.speed_up, 3),
            "tokens_per_call": round(best.tokens_per_call, 3),
            "temperature": chosen.temperature,
            "prompts": len(cases),
        }
        common.say(
            f"kept in {write_tuned(folders.target, key, best.choice, evidence)}: later runs take it by themselves"
        )
    if picture is not None:
        plot(picture, rows, predictions(settings, pair))
        common.say(f"plot: {picture}")
    return 0


def verdict(best: Row) -> str:
    if best.choice == PLAIN:
        return "fastest: --drafter none; plain decoding beats every draft here"
    choice = f"--drafter {best.choice.drafter} --num-draft {best.choice.num_draft}"
    return f"fastest: {choice}, {best.speed_up:.2f}x the speed of plain decoding"


def main(argv: Sequence[str] | None = None) -> int:
    chosen = tune_parser().parse_args(argv)
    return common.run("tune", lambda: tune(chosen))


if __name__ == "__main__":
    sys.exit(main())

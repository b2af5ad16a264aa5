"""`python -m benchmarks`: compares drafts with baseline decoding, other programs, and the memory bandwidth limit.

docs/benchmarks.md explains the output. This file ties the other modules together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.modes import BASELINE, combine_modes
from speculative_decoding.cli.parser import flags_from
from speculative_decoding.cli.run_config import ModelFlags, find
from speculative_decoding.errors import InputError, Name, writing
from speculative_decoding.loading.load import DTYPES, ModelHandle, open_model
from speculative_decoding.loading.pair import ModelPair, require_same_tokens
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.device import on_gpu
from speculative_decoding.runs.places import atomic_write
from speculative_decoding.subpackages import has_subpackage

from .interleave import Contender, Run, take_turns
from .machine import environment, measure_bandwidth, notes, used_by_others
from .models import SHAPES, Models, bytes_per_pass, dtype_of, random_model
from .options import benchmark_parser, check, json_path
from .ours import Ours, ours
from .peers import ASSISTED, fastest_peers
from .replay import replays
from .report import fastest_lines, report
from .summary import SummaryRow, summarize
from .tasks import Task, at_slots, random_task, tasks_from_files

FILE_LIMIT = 25  # prompts per file
RANDOM_LIMIT = 2  # random sources
DRAFT_LENGTHS = (1, 3, 5, 7, "auto")


def main(argv: Sequence[str] | None = None) -> int:
    chosen = benchmark_parser().parse_args(argv)
    return run("benchmark", lambda: benchmark(chosen))


def benchmark(chosen: argparse.Namespace) -> int:
    """Measure, print tables and the fastest flags, and write the file of --json."""
    check(chosen)
    where = environment()
    others = used_by_others()
    bandwidth = measure_bandwidth()
    where["bandwidth"] = f"{bandwidth / 1e9:.1f} GB/s"
    rows: list[SummaryRow] = []
    for name, models, tasks in subjects(chosen):
        tasks = [replace(task, num_beams=chosen.num_beams) for task in tasks]
        runs = measure(name, models, tasks, chosen, where)
        dtype = str(dtype_of(models.target)).removeprefix("mlx.core.")
        rows += summarize(f"{name}, {dtype}", runs, bytes_per_pass(models.target), bandwidth)
    warnings = notes(where, others, used_by_others(), chosen.repeats)
    fastest = [] if "replay" in chosen else fastest_lines(rows)
    to_stdout = getattr(chosen, "json", None) == "-"
    parts = [report(rows, where, warnings), "\n".join(fastest)]
    print(*filter(None, parts), sep="\n\n", file=sys.stderr if to_stdout else sys.stdout)
    figures = {"environment": where, "notes": warnings, "fastest": fastest, "rows": [asdict(row) for row in rows]}
    if to_stdout:
        print(json.dumps(figures))
    elif path := json_path(chosen):
        with writing(Name("json"), path):
            atomic_write(path, json.dumps(figures) + "\n")
        say(f"wrote {path}")
    return 0


def subjects(chosen: argparse.Namespace) -> Iterator[tuple[str, Models, list[Task]]]:
    """Yield (name, models, tasks), one at a time because large models may not fit into memory together."""
    given = vars(chosen)
    if "random" not in given:
        folders = flags_from(ModelFlags, chosen).find()
        if folders.draft_model is None and "model" in given.get("drafter", ()):
            raise InputError("--drafter model: needs a --draft-model; add one, or omit model")
        pair = folders.open()
        if isinstance(pair.draft, ModelHandle):  # tasks contain only ids, so such a draft would have no text
            require_same_tokens(pair.target.model, pair.draft.model)
        assistant = open_assistant(given.get("assistant"), pair) if ASSISTED in chosen.peers else None
        say(f"target {folders.model}, " + ("no draft" if pair.draft is None else f"draft {folders.draft_model}"))
        limit = given.get("limit", FILE_LIMIT)
        tasks = tasks_from_files(chosen.prompts, limit, chosen.max_tokens, pair.target.model, pair.target.tokenizer)
        pair.load_weights()
        yield (
            Path(folders.model).name,
            Models(pair.target.model, None if pair.draft is None else pair.draft.model, assistant),
            at_slots(tasks, given.get("slots", ())),
        )
        return
    if sys.platform.startswith("linux") and has_subpackage("cpu"):
        from speculative_decoding import cpu

        cpu.check()
    dtype = DTYPES[given.get("dtype", "bfloat16" if on_gpu() else "float32")]
    for name, bits in product(chosen.random, chosen.bits):
        target = random_model(SHAPES[name], dtype, bits)
        task = random_task(target.config.vocab_size, given.get("limit", RANDOM_LIMIT), chosen.max_tokens)
        task = replace(task, name=task.name + ", replayed acceptance" * ("replay" in given))
        title = f"random {name}" + f", {bits} bits" * (bits is not None)
        yield title, Models(target, None), at_slots([task], given.get("slots", ()))


def open_assistant(name: str | None, pair: ModelPair) -> EncoderDecoder:
    """Return the draft model for --peers hf-assisted. Raises `InputError`."""
    if name is not None:
        opened = open_model(find(name, "assistant"))
        require_same_tokens(pair.target.model, opened.model)
        opened.load_weights()
        return opened.model
    if not isinstance(pair.draft, EncoderDecoder):
        raise InputError(f"--peers {ASSISTED}: needs a draft model; add --assistant, or omit {ASSISTED}")
    return pair.draft


def measure(
    name: str, models: Models, tasks: Sequence[Task], chosen: argparse.Namespace, where: dict[str, Any]
) -> list[Run]:
    """Run all contenders on all tasks of a model or pair. Adds the versions of the peers' libraries to `where`."""
    contenders: list[tuple[Task, list[Contender]]] = [(task, [*ours_of(chosen, models, task)]) for task in tasks]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speculative-decoding-")))
        for peer in chosen.peers:
            say(f"{name}: finding the best settings of {peer}")
            found = fastest_peers(peer, getattr(chosen, "peer_python", None), models, tasks, scratch, stack)
            for (_, of_task), modes in zip(contenders, found, strict=True):
                of_task += modes
                for mode in modes:
                    where |= mode.worker.versions
        return [*take_turns(contenders, chosen.repeats, chosen.warm_ups, lambda turn: say(f"{name}: {turn}"))]


def ours_of(chosen: argparse.Namespace, models: Models, task: Task) -> list[Ours]:
    """Return our contenders, starting with the baseline.

    Without --drafter and --num-draft, the contenders are all modes that the models support or, with --slots, only the
    baseline and `auto`. With recorded acceptance, they are the baseline and the replayed drafts; otherwise, for random
    weights or beam search, only the baseline.
    """
    if "replay" in chosen:
        return replays(task, models.target, chosen.draft, chosen.replay)
    if not task.ends or task.num_beams > 1:
        return ours(task, [BASELINE], chosen.temperature, models)
    all_drafters = ("ngram",) if models.draft is None else ("model", "ngram", "auto")
    drafters = getattr(chosen, "drafter", all_drafters if task.slots is None else all_drafters[-1:])
    lengths = getattr(chosen, "num_draft", DRAFT_LENGTHS if task.slots is None else DRAFT_LENGTHS[-1:])
    modes = list(dict.fromkeys([BASELINE, *combine_modes(drafters, lengths)]))
    return ours(task, modes, chosen.temperature, models, chosen.acceptance)


if __name__ == "__main__":
    sys.exit(main())

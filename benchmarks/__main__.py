"""How fast is it? Ours against plain decoding, against other people's programs, and against what the machine can do.

`python -m benchmarks`; docs/benchmarks.md says how to read what comes out. Here the parts are put together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.models import ModelNames
from speculative_decoding.cli.parser import chosen_as
from speculative_decoding.decoding.ways import PLAIN, ways
from speculative_decoding.errors import InputError, writing
from speculative_decoding.kernels import check as check_kernels
from speculative_decoding.loading.load import DTYPES

from .acceptance import read
from .interleave import SETTLE, Contender, Run, take_turns
from .machine import environment, measure_bandwidth, notes, used_by_others
from .models import SHAPES, Models, bytes_per_pass, dtype_of, random_model
from .options import benchmark_parser, check
from .ours import Ours, ours
from .peers import ASSISTED, fastest_peers
from .replay import replays
from .report import fastest_lines, report
from .summary import Row, summarise
from .tasks import Task, at_slots, growth_tasks, random_task, tasks_from_files

FILE_LIMIT, RANDOM_LIMIT = 25, 2  # prompts
NUM_DRAFT = (1, 3, 5, 7, "auto")

Record = Callable[[dict[str, Any]], None]


def main(argv: Sequence[str] | None = None) -> int:
    chosen = benchmark_parser().parse_args(argv)
    return run("benchmark", lambda: benchmark(chosen))


def benchmark(chosen: argparse.Namespace) -> int:
    """Measure, then print tables, the summary as a line of JSON, and last the fastest flags."""
    check(chosen)
    output: Path | None = getattr(chosen, "output", None)
    where, others = environment(), used_by_others()
    rows: list[Row] = []
    with ExitStack() as stack:
        record = recorder(output, stack)
        bandwidth = measure_bandwidth()
        where["bandwidth"] = f"{bandwidth / 1e9:.1f} GB/s"
        for name, models, tasks in subjects(chosen):
            runs, versions = measure(name, models, tasks, chosen, record)
            where |= versions
            rows += summarise(f"{name}, {dtype_of(models.target)}", runs, bytes_per_pass(models.target), bandwidth)
        said = notes(where, others, used_by_others(), chosen.repeats)
        record({"kind": "environment", **where, "notes": said})
    fastest, text = [] if "acceptance" in chosen else fastest_lines(rows), report(rows, where, said)
    found = {"environment": where, "notes": said, "fastest": fastest, "rows": [asdict(row) for row in rows]}
    if output is not None:
        (output / "table.md").write_text("\n\n".join([text, *fastest]) + "\n", encoding="utf-8")
        (output / "summary.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(*filter(None, (text, json.dumps(found), "\n".join(fastest))), sep="\n\n")
    return 0


def recorder(output: Path | None, stack: ExitStack) -> Record:
    """What appends a line of JSON to runs.jsonl at once: an interrupted benchmark leaves its runs."""
    if output is None:
        return lambda line: None
    with writing("--output", output, "name another folder"):
        output.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context((output / "runs.jsonl").open("w", encoding="utf-8", buffering=1))
    return lambda line: print(json.dumps(line), file=file)


def subjects(chosen: argparse.Namespace) -> Iterator[tuple[str, Models, list[Task]]]:
    """What there is to measure: a name, models, tasks; made one by one, since large models may not fit side by side."""
    given = vars(chosen)
    if "random" not in given and not chosen.growth:
        folders = chosen_as(ModelNames, chosen).find()
        for flag, name, names in (("drafter", "model", given.get("drafter", ())), ("peers", ASSISTED, chosen.peers)):
            if folders.draft is None and name in names:
                raise InputError(f"--{flag} {name}: needs a --draft-model; name one, or leave {name} out")
        pair = folders.open()
        say(f"target {folders.target}, " + ("no draft" if pair.draft is None else f"draft {folders.draft}"))
        limit = given.get("limit", FILE_LIMIT)
        tasks = tasks_from_files(chosen.prompts, limit, chosen.max_tokens, pair.target, pair.tokenizer)
        pair.load_weights()
        yield folders.target.name, Models(pair.target, pair.draft), at_slots(tasks, given.get("slots", ()))
        return
    check_kernels()
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    dtype = DTYPES[given.get("dtype", "float32" if on_cpu else "bfloat16")]
    for name in given.get("random", SHAPES):
        models = Models(random_model(SHAPES[name], dtype), None)
        size, count = models.target.config.vocab_size, given.get("limit", RANDOM_LIMIT)
        tasks = growth_tasks(size) if chosen.growth else [random_task(size, count, chosen.max_tokens)]
        if "acceptance" in given:
            tasks = [replace(task, name=f"{task.name}, replayed acceptance") for task in tasks]
        yield f"random {name}", models, at_slots(tasks, given.get("slots", ()))


def measure(
    name: str, models: Models, tasks: Sequence[Task], chosen: argparse.Namespace, record: Record
) -> tuple[list[Run], dict[str, str]]:
    """The runs of everybody on all tasks of a model or pair, and the versions of the peers' libraries."""
    who: list[tuple[Task, list[Contender]]] = [(task, [*ours_of(chosen, models, task)]) for task in tasks]
    versions: dict[str, str] = {}
    runs: list[Run] = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speculative-decoding-")))
        for peer in chosen.peers:
            say(f"{name}: finding the best settings of {peer}")
            python, keep = getattr(chosen, "peer_python", None), lambda trial: record({"model": name, **trial})
            found = fastest_peers(peer, python, models, tasks, keep, scratch, stack)
            for (_, contenders), modes in zip(who, found, strict=True):
                contenders += modes
                versions |= {library: version for mode in modes for library, version in mode.worker.versions.items()}
        for each in take_turns(who, chosen.repeats, chosen.warm_ups, SETTLE, lambda turn: say(f"{name}: {turn}")):
            runs.append(each)
            record({"model": name, **each.as_dict()})
    return runs, versions


def ours_of(chosen: argparse.Namespace, models: Models, task: Task) -> list[Ours]:
    """Plain decoding, with which all others are compared, first, whether named or not. Without --drafter and
    --num-draft all that the models allow; in batches, and where acceptance is replayed, `auto` alone. Random weights:
    plain decoding, for no draft fits, unless its acceptance is replayed.
    """
    if "acceptance" in chosen:
        own = ways(getattr(chosen, "drafter", ("auto",)), getattr(chosen, "num_draft", ("auto",)))
        return replays(task, models.target, chosen.draft, chosen.bits, own, read(chosen.acceptance, chosen.draft))
    if not task.ends:
        return ours(task, [PLAIN], chosen.temperature, models)
    all_drafters = ("ngram",) if models.draft is None else ("model", "ngram", "auto")
    drafters = getattr(chosen, "drafter", all_drafters if task.slots is None else all_drafters[-1:])
    lengths = getattr(chosen, "num_draft", NUM_DRAFT if task.slots is None else NUM_DRAFT[-1:])
    return ours(task, list(dict.fromkeys([PLAIN, *ways(drafters, lengths)])), chosen.temperature, models)


if __name__ == "__main__":
    sys.exit(main())

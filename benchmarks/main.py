"""How fast is it? Ours against plain decoding, against other people's programs, and against what the machine can do.

`python -m benchmarks.main`; docs/benchmarks.md says how to read what comes out. What is measured, and
how, is in bench/; here the options choose and the parts are put together.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative_decoding.blas import warn_if_slow
from speculative_decoding.cli import common
from speculative_decoding.cli.common import say
from speculative_decoding.draft_length.costs import Measurement
from speculative_decoding.errors import InputError
from speculative_decoding.loading.load import DTYPES

from . import peers, report
from .batches import at_slots, batch_tables, plot_batches, together
from .environment import OtherWork, environment, notes
from .export import export
from .interleave import SETTLE, Contender, Run, take_turns
from .limits import bytes_per_pass, measure_bandwidth
from .options import benchmark_parser
from .plot import plot_growth, plot_results, require_matplotlib
from .random_weights import SHAPES, random_model
from .report import Study
from .summary import Weights, summarise
from .tasks import RANDOM_SOURCE, Task, growth_tasks, random_task, tasks_from_files
from .ways import WAYS, Models, ours

SOURCE_LENGTHS = (16, 64, 256, 1024, 2048)
OUTPUT_LENGTHS = (16, 64, 256, 1024)
FILE_LIMIT, RANDOM_LIMIT = 25, 2  # prompts
PARTS_SECONDS = 1.0  # before each repeat

Record = Callable[[dict[str, Any]], None]


def main(argv: Sequence[str] | None = None) -> int:
    chosen = benchmark_parser().parse_args(argv)
    return common.run("benchmark", lambda: benchmark(chosen))


def benchmark(chosen: argparse.Namespace) -> int:
    check(chosen)
    output: Path | None = getattr(chosen, "output", None)
    load_before = os.getloadavg()[0]
    others = OtherWork()
    with recording(output) as record:
        bandwidth = measure_bandwidth()
        studies: list[Study] = []
        dtypes: dict[str, None] = {}
        for name, models, tasks in subjects(chosen):
            dtypes[dtype_of(models)] = None
            studies.append(study(name, models, tasks, chosen, bandwidth, record))
        where = environment(", ".join(dtypes), load_before)
        said = notes(load_before, others.share(), chosen.repeats)
        record({"kind": "environment", **where.as_dict(), "notes": list(said)})
    versions = {name: version for each in studies for name, version in each.versions.items()}
    tables, plot = [report.result_tables(each) for each in studies], plot_results
    if chosen.growth:
        tables, plot = [report.growth_tables(studies)], plot_growth
    elif "slots" in vars(chosen):
        tables, plot = [batch_tables(each) for each in studies], plot_batches
    text = "\n\n".join([report.environment_text(where, versions, said), *tables])
    summary = json.dumps(
        {"environment": where.as_dict(), "notes": list(said), "studies": [each.as_dict() for each in studies]}
    )
    if output is not None:
        (output / "table.md").write_text(text + "\n", encoding="utf-8")
        (output / "summary.json").write_text(summary + "\n", encoding="utf-8")
        if chosen.plot:
            plot(studies, output / "plot.png")
    print(f"{text}\n\n{summary}")
    return 0


def check(chosen: argparse.Namespace) -> None:
    """Refuse what does not go together, before anything takes time."""
    given = vars(chosen)
    if chosen.plot:
        if "output" not in given:
            raise InputError("--plot: needs --output DIR, where the plot is to be written")
        require_matplotlib()
    if chosen.peers and 0 not in chosen.temperature:
        raise InputError("--peers: are compared at temperature 0; add 0 to --temperature, or leave them out")
    if "peer_python" in given and not chosen.peers:
        raise InputError("--peer-python: is of no use without --peers")
    for option in ("source_lengths", "output_lengths"):
        if option in given and not chosen.growth:
            raise InputError(f"--{option.replace('_', '-')}: is of no use without --growth")
    if "slots" in given:
        if chosen.growth:
            raise InputError("--slots: does not go with --growth, which decodes one source at a time")
        if "hf-assisted" in chosen.peers:
            raise InputError("--peers hf-assisted: does not go with --slots: it decodes no batches")
    if "random" in given or chosen.growth:
        why = "--growth" if chosen.growth else "--random"
        for option in ("model", "draft_model"):
            if option in given:
                raise InputError(f"--{option.replace('_', '-')}: does not go with {why}, which makes its own models")
        if chosen.prompts:
            raise InputError(f"prompts {chosen.prompts[0]}: do not go with {why}, which makes its own sources")
        if chosen.growth and "limit" in given:
            raise InputError("--limit: does not go with --growth, which decodes one source of each length")
        for way in given.get("ways", ()):
            if way != "plain":
                raise InputError(f"--ways {way}: does not go with {why}: no draft is like random weights")
        if "hf-assisted" in chosen.peers:
            raise InputError(f"--peers hf-assisted: does not go with {why}: no draft is like random weights")


@contextmanager
def recording(output: Path | None) -> Iterator[Record]:
    """A function that appends a line of JSON to runs.jsonl at once: an interrupted benchmark leaves its runs."""
    if output is None:
        yield lambda line: None
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = (output / "runs.jsonl").open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        raise InputError(f"--output {output}: cannot be written ({error.strerror})") from error
    with file:
        yield lambda line: print(json.dumps(line), file=file)


def subjects(chosen: argparse.Namespace) -> Iterator[tuple[str, Models, list[Task]]]:
    """What there is to measure: a name, models, tasks; made one by one, since large models may not fit side by side."""
    given = vars(chosen)
    if "random" not in given and not chosen.growth:
        folders = common.choose(chosen)
        pair = common.open_pair(folders, chosen)
        say(f"target {folders.target}, " + ("no draft" if pair.draft is None else f"draft {folders.draft}"))
        tasks = tasks_from_files(
            chosen.prompts, given.get("limit", FILE_LIMIT), chosen.max_tokens, pair.target, pair.tokenizer
        )
        pair.load_weights()
        yield folders.target.name, Models(pair.target, pair.draft), tasks
        return
    warn_if_slow()
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    dtype = DTYPES[given.get("dtype", "float32" if on_cpu else "bfloat16")]
    for name in given.get("random", SHAPES):
        models = Models(random_model(SHAPES[name], dtype), None)
        size = models.target.config.vocab_size
        if chosen.growth:
            lengths = given.get("source_lengths", SOURCE_LENGTHS), given.get("output_lengths", OUTPUT_LENGTHS)
            yield f"random {name}", models, growth_tasks(size, *lengths)
        else:
            count = given.get("limit", RANDOM_LIMIT)
            task = f"{RANDOM_SOURCE} tokens to {chosen.max_tokens}"
            yield f"random {name}", models, [random_task(task, size, count, RANDOM_SOURCE, chosen.max_tokens)]


def study(
    name: str, models: Models, tasks: Sequence[Task], chosen: argparse.Namespace, bandwidth: float, record: Record
) -> Study:
    """Measure everybody on all tasks of a model or pair, and between repeats what its parts cost."""
    slots: list[int] = getattr(chosen, "slots", [])
    if slots:
        tasks = at_slots(tasks, slots)
    names = getattr(chosen, "ways", ways_for(models, in_batches=bool(slots)) if tasks[0].ends else ["plain"])
    contenders: dict[str, list[Contender]] = {}
    for task in tasks:
        make = ours if task.slots is None else partial(together, slots=task.slots)
        contenders[task.name] = [*make(names, chosen.num_draft, chosen.temperature, models)]
    settings: dict[tuple[str, str], str] = {}
    versions: dict[str, str] = {}
    runs: list[Run] = []
    with ExitStack() as stack:
        for peer in chosen_peers(models, chosen, stack):
            for task in tasks:
                say(f"{name}, {task.name}: finding the best settings of {peer.name}")
                modes, trials = peers.tune(peer, peers.PEERS[peer.name], task)
                contenders[task.name] += modes
                settings |= {(task.name, mode.label): mode.setting for mode in modes}
                for trial in trials:
                    record({"kind": "trial", "model": name, **asdict(trial)})
            versions |= peer.versions

        in_parts = 0 in chosen.temperature and not chosen.growth and not slots
        parts = Measurement(models.target, models.draft) if in_parts else None

        def progress(repeat: int) -> None:
            """Before each repeat; what rounds are made of is timed between them, on the same machine as they."""
            say(f"{name}: " + ("warm-up" if repeat < 0 else f"repeat {repeat + 1} of {chosen.repeats}"))
            if parts is not None and repeat >= 0:
                parts.take(PARTS_SECONDS, least=1)

        turns = {"warm_ups": chosen.warm_ups, "settle": SETTLE, "progress": progress}
        for run in take_turns(contenders, tasks, chosen.repeats, **turns):
            runs.append(run)
            record({"model": name, **run.as_dict()})
    weights = Weights(
        bytes_per_pass(models.target), 0 if models.draft is None else bytes_per_pass(models.draft), bandwidth
    )
    costs = None if parts is None else parts.costs()
    return Study(name, summarise(runs, settings, costs, weights), costs, weights, versions)


def ways_for(models: Models, *, in_batches: bool) -> list[str]:
    """Those that are measured unless --ways says otherwise: all, in batches the one that adapts."""
    if in_batches:
        return ["ngram-auto" if models.draft is None else "auto"]
    return [name for name, way in WAYS.items() if models.draft is not None or not way.needs_draft]


def chosen_peers(models: Models, chosen: argparse.Namespace, stack: ExitStack) -> Iterator[peers.Peer]:
    """With the weights in a folder that is gone, as the peers' processes are, when `stack` ends."""
    if not chosen.peers:
        return
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speculative-decoding-")))
    target = export(models.target, scratch / "target")
    draft = None if models.draft is None else export(models.draft, scratch / "draft")
    for name in chosen.peers:
        needs_draft = name in peers.NEEDS_DRAFT
        if needs_draft and draft is None:
            raise InputError(f"--peers {name}: needs a --draft-model; name one or leave this peer out")
        command = peers.worker_command(getattr(chosen, "peer_python", None))
        peer = peers.Peer(name, command, target, draft if needs_draft else None, scratch)
        stack.callback(peer.close)
        yield peer


def dtype_of(models: Models) -> str:
    """What the target's matrices are stored in."""
    parameters: dict[str, mx.array] = dict(tree_flatten(models.target.parameters()))
    largest = max(parameters.values(), key=lambda value: value.nbytes)
    return str(largest.dtype).removeprefix("mlx.core.")

"""Train a draft for a target and a kind of text: flags, what was reached so far, curves."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ..distributed.training_group import TrainingGroup
from ..drafters.draft_model import require_same_tokens
from ..errors import InputError
from ..loading import conversion
from ..loading.draft_head import OpenedHead, open_draft
from ..loading.load import Opened, open_model
from ..sampling.values import Number, Switch, Text, Whole
from ..session import Session
from ..training.trainer import HISTORY, Report, Schedule
from ..training.training_run import TrainingOptions, TrainingRun
from . import common
from .common import say
from .models import find
from .parser import File, Parser, add_flags, chosen_as
from .progress import progress

RATES = {"head": 1e-3, "model": 3e-4}
PICTURE = "curves.png"


@dataclass(frozen=True)
class TrainFlags(TrainingOptions):
    """Raises `InputError` for what does not go together."""

    model: A[str | None, Text(), "the target: a folder, or one under models/"] = None
    output: A[Path | None, File(), "the folder to write; unfinished work lies in <it>.training"] = None
    kind: A[str, Text(tuple(RATES)), "a draft head, or a model: distils the --draft-model"] = "head"
    draft_model: A[
        str | None, Text(), "the draft to go on from: a head of this target; with --kind model a small model"
    ] = None
    minutes: A[float | None, Number(0, above=True), "train so long, when outputs and features are there"] = None
    steps: A[int | None, Whole(1), "train so many steps; the same seed gives the same weights"] = None
    resume: A[bool, Switch(), "go on with an unfinished training, with the same options"] = False
    force: A[bool, Switch(), "replace an existing output folder"] = False
    learning_rate: A[float | None, Number(0, above=True), "the highest (default: 0.001, for a model 0.0003)"] = None

    def __post_init__(self) -> None:
        if self.model is None or self.output is None:
            raise InputError("--model and --output are needed: the target, and the folder to write")
        if (self.minutes is None) == (self.steps is None):
            raise InputError("say how long to train: give --minutes or --steps, one of them")
        if self.kind == "model" and self.draft_model is None:
            raise InputError("--kind model needs --draft-model: the small model to begin with")

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.learning_rate or RATES[self.kind], self.steps, self.minutes)

    def settings(self, prompts: Sequence[Path]) -> dict[str, Any]:
        """What a training that goes on must have been begun with."""
        free = ("minutes", "resume", "force", "max_disk_gb", "frequent")
        own = {name: str(value) for name, value in asdict(self).items() if name not in free}
        return own | {"prompts": [f"{path}: {path.stat().st_size} bytes" for path in prompts]}


def train_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        description="Train a draft head for a target, or distil a small model, on the target's own outputs.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--prompts", nargs="+", type=Path, required=True, metavar="FILE", help="a prompt a line")
    add_flags(parser, "training", TrainFlags)
    return parser


def train(chosen: argparse.Namespace) -> int:
    flags, files = chosen_as(TrainFlags, chosen), chosen.prompts
    assert flags.model is not None and flags.output is not None
    folder = find(flags.model, "--model")
    conversion.require_replaceable(flags.output, folder, flags.force)
    prompts = {str(path): common.read_prompts(path, "--prompts") for path in files}
    target = open_model(folder, dtype="float32")
    draft = opened_draft(flags, target)
    work = flags.output.with_name(flags.output.name + ".training")
    session, processes = Session(target.model, target.tokenizer), TrainingGroup.join()
    run = TrainingRun(session, prompts, work, flags.schedule, flags, draft, processes)
    run.begin(flags.settings(files), resume=flags.resume)
    for each in (target, draft):
        if each is not None:
            each.load_weights()
    is_first = processes.is_first

    def say_if_first(text: str) -> None:
        if is_first:
            say(text)

    held = sum(map(len, run.held_out.values()))
    total = len(run.training_prompts)
    with_others = f"{processes.size} processes; " if processes.size > 1 else ""
    say_if_first(
        f"{total} prompts to train on, {held} held out; about {run.memory_needed / 1e9:.1f} GB of memory; "
        f"{with_others}work in {work}"
    )
    with progress(is_shown=is_first) as show:
        run.write_outputs(lambda done: show(done, total, f"{done} outputs"))
    kept, size = run.keeps_targets, run.store.nbytes / 1e9
    positions = sum(len(each.output) for each in run.examples)
    where = "kept on the disk" if kept else "computed when needed: more than --max-disk-gb, or half of what is free"
    say_if_first(f"{positions} positions; features of {size:.2f} GB, {where}")
    if kept:
        with progress(is_shown=is_first) as show:
            run.keep_targets(lambda done: show(done, len(run.examples), f"features of {done} outputs"))
    if run.trainer.step:
        say_if_first(f"going on behind step {run.trainer.step}")
    reached = ""
    with progress(is_shown=is_first) as show:
        for report in run.train():
            if (tokens := report.tokens_per_call) is not None:
                reached = f", {tokens:.2f} tokens per call (about {run.expected_speedup(tokens):.2f}x)"
            show(report.progress, 1.0, described(report) + reached)
    if is_first:
        finish(run, flags.output, folder.name)
    return 0


def finish(run: TrainingRun, output: Path, made_for: str) -> None:
    """Measure the draft, and write its folder."""
    measured = {name: stats.tokens_per_target_call for name, stats in run.held_out_stats.items()}
    for name, tokens in measured.items():
        promise = run.expected_speedup(tokens)
        say(f"{name}: {tokens:.2f} tokens per target call with drafts of 7, about {promise:.2f}x baseline decoding")
    facts = {"made_for": made_for, "steps": run.trainer.step, "positions": run.trainer.positions}
    by_file = {Path(name).name: tokens for name, tokens in measured.items()}  # no folders: a draft is passed on
    facts |= {"minutes": round(run.trainer.seconds / 60, 1), "tokens_per_call": by_file}
    run.finish(output, lambda partial: draw(partial / PICTURE, run.trainer.history), **facts)
    say(f"written to {output}; {run.work} may be deleted, or trained on with --resume and more --minutes")


def opened_draft(flags: TrainFlags, target: Opened) -> Opened | OpenedHead | None:
    """What the training begins with, without its weights."""
    if flags.draft_model is None:
        return None
    opened = open_draft(find(flags.draft_model, "--draft-model"), target, dtype="float32")
    if isinstance(opened, OpenedHead) != (flags.kind == "head"):
        found = "a draft head" if isinstance(opened, OpenedHead) else "a model"
        raise InputError(f"--draft-model {flags.draft_model} is {found}; name another, or choose the other --kind")
    if any(name.endswith(".scales") for name in opened.checkpoint):
        raise InputError(f"--draft-model {flags.draft_model} is quantised; take the original to train it")
    if isinstance(opened, Opened):
        require_same_tokens(target.model, opened.model)
    return opened


def described(report: Report) -> str:
    text = f"step {report.step}, loss {report.loss:.3f}, agreement {report.agreement:.3f}"
    return f"{text}, {report.positions / max(report.seconds, 1e-9):.0f} positions/s"


def draw(path: Path, history: Sequence[Sequence[float]]) -> None:
    """Loss, agreement and tokens per call over the steps; nothing where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        say("no matplotlib, so no picture of the curves; pip install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
    for axis, name in zip(axes, HISTORY[2:], strict=True):
        column = HISTORY.index(name)
        points = [(row[0], row[column]) for row in history if row[column] == row[column]]
        axis.plot(*zip(*points, strict=True), marker="o" if name == HISTORY[-1] else None) if points else None
        axis.set(title=name.replace("_", " "), xlabel="step")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None, program: str = "python -m speculative_decoding.train") -> int:
    chosen = train_parser(program).parse_args(argv)
    return common.run("train", lambda: train(chosen))

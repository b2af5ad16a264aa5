"""Trains a draft for a target and a particular type of text, shows progress, and plots the training curves."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ..cli.common import read_prompts, say, start_alone
from ..cli.parser import File, Parser, add_flags, argument_type, flags_from
from ..cli.progress import progress
from ..cli.run_config import TOKENIZER, find
from ..errors import InputError, Message, Name
from ..loading import conversion
from ..loading.draft_head import DraftHeadHandle, open_draft
from ..loading.load import ModelHandle, open_model
from ..loading.pair import require_same_tokens
from ..sampling.values import Bool, Flag, Int, Number, Text
from ..session import Session
from ..subpackages import require_subpackage
from .options import TrainingOptions
from .recordings import Prompt, read_manifest
from .trainer import HISTORY, NUM_DRAFT_TOKENS, Report, Schedule
from .training_group import TrainingGroup
from .training_run import TrainingRun

LEARNING_RATES = {"head": 1e-3, "model": 3e-4}


@dataclass(frozen=True)
class TrainFlags(TrainingOptions):
    """The flags of `train`. Raises `InputError` if they contradict each other."""

    model: A[str | None, Text(), "the target: a folder, or a name under models/", Flag(metavar="NAME")] = None
    output: A[Path | None, File(), "the folder to write; unfinished work is kept in OUTPUT.training"] = None
    kind: A[str, Text(tuple(LEARNING_RATES)), "train a draft head, or distill the --draft-model"] = "head"
    draft_model: A[
        str | None,
        Text(),
        "the draft to start from: a head of this target, or with --kind model a small model",
        Flag(metavar="NAME"),
    ] = None
    adapter: A[
        str | None,
        Text(),
        "LoRA adapter of the target, which PEFT saved: a folder, or a name on the Hub",
        Flag(metavar="NAME"),
    ] = None
    tokenizer: A[str | None, Text(), TOKENIZER, Flag(metavar="NAME")] = None
    minutes: A[float | None, Number(0, exclusive=True), "training time, without preparing outputs and features"] = None
    steps: A[int | None, Int(1), "number of training steps; the same seed gives the same weights"] = None
    resume: A[bool, Bool(), "continue an unfinished training run with the same options"] = False
    force: A[bool, Bool(), "replace an existing output folder"] = False
    learning_rate: A[
        float | None, Number(0, exclusive=True), "highest learning rate (default: 0.001, with --kind model 0.0003)"
    ] = None

    def __post_init__(self) -> None:
        if self.model is None or self.output is None:
            raise InputError(Message("{model} and {output}: both are required (the target, and the folder to write)"))
        if (self.minutes is None) == (self.steps is None):
            raise InputError(Message("{minutes} and {steps}: give exactly one of them, to say how long to train"))
        if self.kind == "model" and self.draft_model is None:
            raise InputError("model needs a small model to start from", "kind", Message("name it with {draft_model}"))

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.learning_rate or LEARNING_RATES[self.kind], self.steps, self.minutes)

    def settings(self, prompts: Sequence[Path]) -> dict[str, Any]:
        """Return the settings that a resumed run must share with the original run."""
        may_change = ("minutes", "resume", "force", "max_disk_gb", "frequent")
        settings = {name: str(value) for name, value in asdict(self).items() if name not in may_change}
        return settings | {"prompts": [f"{path}: {sha256(path.read_bytes()).hexdigest()[:16]}" for path in prompts]}


def train_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s --model NAME --prompts FILE [FILE ...] --output FOLDER [options]",
        description="Train a draft head for a target, or distill a small model, on the target's own outputs.",
        argument_default=argparse.SUPPRESS,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--prompts",
        nargs="+",
        type=argument_type(File()),
        default=[],
        metavar="FILE",
        help="files with one prompt per line",
    )
    source.add_argument(
        "--audio-manifest",
        nargs="+",
        type=argument_type(File()),
        default=[],
        metavar="FILE",
        help="for a speech model: files with one transcribed recording per line, in JSON (docs/training.md)",
    )
    add_flags(parser, "training", TrainFlags)
    return parser


def train(chosen: argparse.Namespace) -> int:
    """Train a draft and return the exit status."""
    flags = flags_from(TrainFlags, chosen)
    assert flags.model is not None and flags.output is not None
    if chosen.audio_manifest:
        require_subpackage("speech", "audio_manifest")
    folder = find(flags.model, "model")
    conversion.require_replaceable(flags.output, folder, flags.force)
    prompts: dict[str, Sequence[Prompt]] = {}
    prompts |= {str(path): read_prompts(path, Name("prompts")) for path in chosen.prompts}
    prompts |= {str(path): read_manifest(path) for path in chosen.audio_manifest}
    target = open_model(folder, dtype="float32", adapter=flags.adapter, tokenizer=flags.tokenizer)
    require_readable(target, flags, bool(chosen.audio_manifest))
    draft = open_initial_draft(flags, target)
    work = flags.output.with_name(flags.output.name + ".training")
    processes = TrainingGroup.join()
    session = Session(target.model, target.tokenizer)
    run = TrainingRun(session, prompts, work, flags.schedule, flags, draft, processes)
    require_enough(run, "audio_manifest" if chosen.audio_manifest else "prompts")
    run.begin(flags.settings([*chosen.prompts, *chosen.audio_manifest]), resume=flags.resume)
    target.load_weights()
    if draft is not None:
        draft.load_weights()

    is_first = processes.is_first

    def say_once(text: str) -> None:
        if is_first:
            say(text)

    num_held_out = sum(map(len, run.held_out.values()))
    num_prompts = len(run.training_prompts)
    process_count = f"{processes.size} processes; " if processes.size > 1 else ""
    what = "recordings" if chosen.audio_manifest else "prompts"
    say_once(
        f"{num_prompts} training {what}, {num_held_out} held out; about {run.memory_needed / 1e9:.1f} GB of memory; "
        f"{process_count}work in {work}"
    )
    with progress(is_shown=is_first) as show:
        run.write_outputs(lambda done: show(done, num_prompts, f"{done} outputs"))

    positions = sum(len(example.output) for example in run.examples)
    where = "computed when needed: more than --max-disk-gb, or half of the free disk space"
    if run.keeps_targets:
        where = "stored on disk"
    say_once(f"{positions} positions; features of {run.store.nbytes / 1e9:.2f} GB, {where}")
    if run.keeps_targets:
        with progress(is_shown=is_first) as show:
            run.keep_targets(lambda done: show(done, len(run.examples), f"features of {done} outputs"))

    if run.trainer.step:
        say_once(f"resuming after step {run.trainer.step}")
    measured = ""
    with progress(is_shown=is_first) as show:
        for report in run.train():
            if (tokens := report.tokens_per_call) is not None:
                measured = f", {tokens:.2f} tokens per call (about {run.expected_speedup(tokens):.2f}x)"
            show(report.progress, 1.0, describe_report(report) + measured)
    if is_first:
        finish(run, flags.output, folder.name)
    return 0


def require_readable(target: ModelHandle, flags: TrainFlags, has_recordings: bool) -> None:
    """Raise `InputError` if the target cannot read the prompts, or its draft cannot be trained on them."""
    if has_recordings and target.model.audio is None:
        raise InputError(
            f"{flags.model} reads text", "audio_manifest", Message("give it {prompts}, or name a speech model")
        )
    if not has_recordings and target.model.audio is not None:
        raise InputError(f"{flags.model} transcribes speech", "prompts", Message("give it an {audio_manifest}"))
    if has_recordings and flags.kind == "model":
        raise InputError("only a draft head can be trained on recordings", "kind", "leave it out")


def require_enough(run: TrainingRun, name: str) -> None:
    """Raise `InputError` if a file has no prompts or recordings, or if there are too few prompts for a training step.

    name: The option that names the files.
    """
    if empty := next((path for path, found in run.prompts.items() if not found), None):
        raise InputError(f"{empty} is empty or blank", name, "name another file, or leave it out")
    total, needed = len(run.training_prompts), run.options.batch_size
    if name == "prompts" and total < needed:
        way_out = Message("add more, or lower {batch_size}")
        raise InputError(f"too few to train on (got {total}, need {needed})", name, way_out)


def finish(run: TrainingRun, output: Path, made_for: str) -> None:
    """Measure the draft on the held-out prompts, and write its folder."""
    tokens_per_call = {name: stats.tokens_per_target_call for name, stats in run.held_out_stats.items()}
    for name, tokens in tokens_per_call.items():
        say(
            f"{name}: {tokens:.2f} tokens per target call with {NUM_DRAFT_TOKENS} draft tokens, "
            f"about {run.expected_speedup(tokens):.2f}x the baseline"
        )
    if slow := [name for name, tokens in tokens_per_call.items() if run.expected_speedup(tokens) < 1]:
        say(
            f"note: for {', '.join(slow)}, this draft is slower than no draft on this device; train it longer, or on "
            "more text of this type"
        )
    facts = {
        "made_for": made_for,
        "steps": run.trainer.step,
        "positions": run.trainer.positions,
        "minutes": round(run.trainer.seconds / 60, 1),
        "tokens_per_call": {Path(name).name: tokens for name, tokens in tokens_per_call.items()},  # omit private paths
    }
    run.finish(output, lambda partial: plot_curves(partial / "curves.png", run.trainer.history), **facts)
    say(f"written to {output}; train longer with --resume and more --minutes, or delete {run.work}")


def open_initial_draft(flags: TrainFlags, target: ModelHandle) -> ModelHandle | DraftHeadHandle | None:
    """Open the draft to start from, without loading its weights."""
    if flags.draft_model is None:
        return None
    handle = open_draft(find(flags.draft_model, "draft_model"), target, dtype="float32")
    if isinstance(handle, DraftHeadHandle) != (flags.kind == "head"):
        found, expected = ("draft head", "model") if isinstance(handle, DraftHeadHandle) else ("model", "draft head")
        raise InputError(
            f"{flags.draft_model} is the wrong kind of draft (got a {found}, expected a {expected})",
            "draft_model",
            Message("name another, or change {kind}"),
        )
    if any(name.endswith(".scales") for name in handle.checkpoint):
        raise InputError(
            f"{flags.draft_model} has quantized weights, which cannot be trained", "draft_model", "name the original"
        )
    if isinstance(handle, ModelHandle):
        require_same_tokens(target.model, handle.model)
    return handle


def describe_report(report: Report) -> str:
    speed = report.positions / max(report.seconds, 1e-9)
    return f"step {report.step}, loss {report.loss:.3f}, agreement {report.agreement:.3f}, {speed:.0f} positions/s"


def plot_curves(path: Path, history: Sequence[Sequence[float]]) -> None:
    """Plot loss, agreement and tokens per call against the step, if matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        say("curves.png: not written, because matplotlib is not installed; pip install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
    for axis, name in zip(axes, HISTORY[2:], strict=True):
        column = HISTORY.index(name)
        points = [(row[0], row[column]) for row in history if row[column] == row[column]]  # skip NaN
        if points:
            axis.plot(*zip(*points, strict=True), marker="o" if name == HISTORY[-1] else None)
        axis.set(title=name.replace("_", " "), xlabel="step")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None, program: str = "python -m speculative_decoding.train") -> int:
    when_interrupted = "; run the same command with --resume to continue"
    return start_alone(train_parser(program), argv, train, when_interrupted)

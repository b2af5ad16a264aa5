"""A training from prompts to a folder: outputs, features, steps, the draft. Its unfinished work lies in a folder beside
the one to come, from which a killed run goes on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated as A
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..checkpoints.npz import write_npz
from ..decoding.stats import GenerationStats
from ..distributed.training_group import SINGLE_PROCESS, TrainingGroup
from ..draft_length.costs import RoundCosts
from ..drafters.draft_model import DraftVocabulary
from ..errors import InputError, writing
from ..loading import manifest
from ..loading.atomic_io import atomic_directory, atomic_write
from ..loading.draft_head import OpenedHead, write_draft_head
from ..loading.load import DTYPES, WEIGHTS, Opened
from ..loading.tokenizer import TOKENIZER_FILES
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead, usual_layers
from ..sampling.values import Number, Text, Whole
from ..session import Session
from .batches import CHAIN, EXAMPLES, FREQUENT, LIKELY_OTHERS, RANDOM_OTHERS, Sampler
from .lessons import Lessons
from .outputs import Example, Wanted, write_outputs
from .students import HeadStudent, ModelStudent, Student
from .teacher import Teacher
from .trainer import NUM_DRAFT, Report, Schedule, Trainer, held_out_stats

FEATURES = "features"
WAY_OUT = "make room there, or name another --output"
ON_THE_WAY = 60  # held-out prompts that are decoded while it trains
Progress = Callable[[int], None]


@dataclass(frozen=True)
class CourseOptions:
    """Their flags are made from these fields."""

    seed: A[int, Whole(0), "of everything that is random"] = 0
    max_tokens: A[int, Whole(1), "of an output"] = 128
    slots: A[int, Whole(1), "prompts that are decoded together"] = 32
    frequent: A[int, Whole(1), "ids that a head may propose with every prompt, besides its own"] = 512
    held_out: A[int, Whole(0), "prompts that are measured on and not trained on"] = 150
    max_disk_gb: A[float, Number(0), "features that need more are computed when needed"] = 10.0
    dtype: A[str, Text(tuple(DTYPES)), "that the draft's weights are stored in"] = "bfloat16"
    sampled_share: A[
        float, Number(0, 1), "of the target's outputs, drawn at temperature 1: for a draft that serves samples"
    ] = 0.0


@dataclass
class Course:
    """prompts: of each file. draft: a small model that is to be trained, or a head; without one a head is made.

    work: the folder for what is unfinished.
    """

    session: Session
    prompts: Mapping[str, Sequence[str]]
    work: Path
    schedule: Schedule
    options: CourseOptions = field(default_factory=CourseOptions)
    draft: Opened | OpenedHead | None = None
    processes: TrainingGroup = SINGLE_PROCESS

    def begin(self, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Make the work folder, or go on in it if its settings are these."""
        with self.processes.first_before_others():
            self._begin(settings, resume=resume or not self.processes.is_first)

    def _begin(self, settings: Mapping[str, Any], *, resume: bool) -> None:
        wanted, path = json.dumps(dict(settings), indent=2) + "\n", self.work / "settings.json"
        if path.exists():
            if not resume:
                raise InputError(f"{self.work}: holds an unfinished training; go on with --resume, or delete it")
            if (found := path.read_text(encoding="utf-8", errors="replace")) != wanted:
                pairs = zip(found.splitlines(), wanted.splitlines(), strict=False)
                differs = next((f"{a.strip(' ,')}, not {b.strip(' ,')}" for a, b in pairs if a != b), "more options")
                raise InputError(f"{path}: this training was begun with {differs}; --resume needs the same options")
            return
        if not self.processes.is_first:
            raise InputError(f"{path}: is not here; all processes of a training need one --output on a disk they share")
        with writing("training", self.work, WAY_OUT):
            self.work.mkdir(parents=True, exist_ok=True)
            atomic_write(path, wanted)

    @cached_property
    def _split(self) -> tuple[list[str], dict[str, list[str]]]:
        """Prompts to train on, and for each file those that are held out."""
        dice, rest = np.random.default_rng(self.options.seed), list[str]()
        held: dict[str, list[str]] = {}
        total = sum(map(len, self.prompts.values()))
        for name, prompts in self.prompts.items():
            count = min(round(self.options.held_out * len(prompts) / total), len(prompts) // 10)
            out = {int(index) for index in dice.permutation(len(prompts))[:count]}
            held[name] = [prompt for i, prompt in enumerate(prompts) if i in out]
            rest += [prompt for i, prompt in enumerate(prompts) if i not in out]
        return rest, held

    @property
    def training_prompts(self) -> list[str]:
        return self._split[0]

    @property
    def held_out(self) -> dict[str, list[str]]:
        return self._split[1]

    def write_outputs(self, progress: Progress) -> None:
        options = self.options
        wanted = Wanted(options.slots, options.max_tokens, options.sampled_share, options.seed)
        session = replace(self.session, options=replace(self.session.options, drafter="ngram"))
        with writing("training", self.work, WAY_OUT):
            found = write_outputs(
                session, self.training_prompts, self.work, wanted, processes=self.processes, progress=progress
            )
        if len(found) < EXAMPLES:
            raise InputError(
                f"{len(found)} prompts could be decoded, at least {EXAMPLES} are needed; name more --prompts"
            )
        self.examples = sorted(found.values(), key=lambda each: len(each.output) + len(each.source))

    examples: list[Example] = field(init=False, default_factory=list)

    @cached_property
    def lessons(self) -> Lessons:
        return Lessons(Teacher(self.session.model, self.layers), self.examples)

    @property
    def layers(self) -> tuple[int, ...]:
        """Whose states the draft reads."""
        if isinstance(self.draft, Opened):
            return ()
        begun = self.draft and tuple(self.draft.model.config.layers)
        return begun or usual_layers(self.session.model.config.decoder_layers)

    @cached_property
    def keeps_features(self) -> bool:
        """Whether they are computed once: they fit into half of what the disk has free, or were begun before."""
        begun = (self.work / FEATURES).exists()
        fits = begun or self.lessons.nbytes <= shutil.disk_usage(self.work).free / 2
        return bool(self.processes.from_first(fits and self.lessons.nbytes <= self.options.max_disk_gb * 1e9))

    def keep_features(self, progress: Progress) -> None:
        with writing("training", self.work, WAY_OUT), self.processes.first_before_others():
            self.lessons.keep(self.work / FEATURES, progress)

    @cached_property
    def student(self) -> Student:
        target = self.session.model
        eos = target.config.eos_token_ids
        pairs = [(each.source, each.output) for each in self.examples]
        frequent = np.array(DraftVocabulary.most_frequent(FREQUENT, (out for _, out in pairs), eos).ids, np.int32)
        if isinstance(self.draft, Opened):
            return ModelStudent(target, self.draft.model, frequent)
        scale = self.processes.from_first(self.lessons.teacher.scale(self.examples))
        head = DraftHead.of(target, self.layers, scale, self.options.seed)
        if self.draft is not None:
            head = self.draft.model.scaled(head.config.scales)
        return HeadStudent(target, head, frequent, DraftVocabulary.learned(self.options.frequent, pairs, eos))

    @cached_property
    def trainer(self) -> Trainer:
        some = [prompts[: max(1, ON_THE_WAY // len(self.held_out))] for prompts in self.held_out.values() if prompts]
        trainer = Trainer(
            self.student,
            self.lessons,
            Sampler(self.examples, self.options.seed),
            self.schedule,
            self.session,
            [prompt for prompts in some for prompt in prompts],
            self.work / "checkpoint.npz",
            self.processes,
        )
        trainer.resume()
        return trainer

    def train(self) -> Iterator[Report]:
        return self.trainer.run()

    @cached_property
    def held_out_stats(self) -> dict[str, GenerationStats]:
        """Of the trained draft on the held-out prompts of each file."""
        held = {name: prompts for name, prompts in self.held_out.items() if prompts}
        return {name: held_out_stats(self.session, self.student, prompts) for name, prompts in held.items()}

    def promised(self, tokens: float) -> float:
        """The speedup that so many tokens a call promise on this machine, by the measured costs."""
        return tokens * self._costs.baseline / self._costs.round_seconds(NUM_DRAFT, NUM_DRAFT)

    @cached_property
    def _costs(self) -> RoundCosts:
        drafting = Session(self.session.model, self.session.tokenizer, self.student.draft())
        return drafting.planner.calibration(drafting.options_with({"drafter": "model"})).costs(1)

    @property
    def memory(self) -> int:
        """Bytes, about: the target's weights, the student's with gradients and two moments, a step's logits."""
        width, size = self.session.model.config.d_model, FREQUENT + LIKELY_OTHERS + RANDOM_OTHERS
        own = nbytes(self.draft.model) if isinstance(self.draft, Opened) else 12 * width * width * 4
        return nbytes(self.session.model) + 4 * own + 4 * EXAMPLES * 16 * CHAIN * size * 4

    def finish(self, output: Path, draw: Callable[[Path], None], **facts: Any) -> None:
        """Write the folder, whole or not at all. draw: adds files to it."""
        student, dtype = self.student, DTYPES[self.options.dtype]
        with writing("--output", output, WAY_OUT):
            if isinstance(student, HeadStudent):
                stats = GenerationStats()
                for each in self.held_out_stats.values():
                    stats.add(each)
                head = student.draft().with_acceptance(stats.acceptance_by_position)
                write_draft_head(output, head, student.target, dtype, also=draw, **facts)
            elif isinstance(self.draft, Opened):
                write_model(output, self.draft, dtype, also=draw, **facts)


def write_model(output: Path, opened: Opened, dtype: mx.Dtype, *, also: Callable[[Path], None], **facts: Any) -> None:
    """A trained model, in a folder as conversion writes it. opened: what it was before."""
    model = opened.model
    parameters: Any = dict(tree_flatten(model.parameters()))
    arrays: list[tuple[str, mx.array]] = []
    for path, names in model.parameter_sources(model.config, opened.checkpoint.keys()).items():
        shares = mx.split(parameters[path], len(names))
        arrays += [(name, mx.contiguous(share).astype(dtype)) for name, share in zip(names, shares, strict=True)]
    with atomic_directory(output) as partial:
        write_npz(partial / WEIGHTS, arrays)
        for name in ("config.json", "generation_config.json", *TOKENIZER_FILES):
            if (opened.folder / name).is_file():
                shutil.copyfile(opened.folder / name, partial / name)
        also(partial)
        stored = next(name for name, each in DTYPES.items() if each == dtype)
        manifest.write(partial, source=opened.folder.name, dtype=stored, quantization=None, **facts)


def nbytes(model: EncoderDecoder) -> int:
    parameters: Any = tree_flatten(model.parameters())
    return sum(array.nbytes for _, array in parameters)

"""A training run, from prompts to a draft's folder: outputs, teacher targets, steps, measurements.

Unfinished work is kept in a folder next to the output folder. A killed run resumes from that folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..checkpoints.npz import write_npz
from ..decoding.results import GenerationStats
from ..draft_length.passes import RoundCosts
from ..drafters.draft_model import DraftVocabulary
from ..errors import InputError, Message, Name, writing
from ..loading import manifest
from ..loading.canonical_tokenizer import copy_tokenizer
from ..loading.draft_head import DraftHeadHandle, write_draft_head
from ..loading.load import DTYPES, WEIGHTS, ModelHandle
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead, default_layers
from ..models.source import token_ids
from ..runs.log import Log
from ..runs.places import atomic_directory
from ..session import Session
from .batches import (
    DRAFT_STEPS,
    FREQUENT_CANDIDATES,
    LIKELY_CANDIDATES,
    RANDOM_CANDIDATES,
    Sampler,
)
from .options import TrainingOptions
from .outputs import LOG_FORMAT, Example, write_outputs
from .recordings import Prompt, Recording
from .students import HeadStudent, ModelStudent, Student
from .teacher import TargetStore, Teacher
from .trainer import NUM_DRAFT_TOKENS, Report, Schedule, Trainer, total_stats
from .training_group import SINGLE_PROCESS, TrainingGroup

WAY_OUT = Message("free disk space, or name another {output}")
FREQUENT = 512  # ids that a head may propose for any source
FREQUENT_SPEECH = 3072  # more than for text, where a head may also propose ids of the source
Progress = Callable[[int], None]


@dataclass
class TrainingRun:
    """Trains a draft. Call `begin`, `write_outputs`, `keep_targets`, `train` and `finish` in this order.

    Args:
        session: A session with the target.
        prompts: Texts, or transcribed recordings for a speech model, keyed by file name.
        work: The folder for unfinished work.
        schedule: Learning rate and length.
        options: See `TrainingOptions`.
        draft: The head or small model to continue from; None creates a head.
        processes: The ranks of this run.

    Attributes:
        training_prompts: The prompts to train on.
        held_out: The prompts to measure on, keyed by file name.
        examples: The decoded outputs, shortest first.
    """

    session: Session
    prompts: Mapping[str, Sequence[Prompt]]
    work: Path
    schedule: Schedule
    options: TrainingOptions = field(default_factory=TrainingOptions)
    draft: ModelHandle | DraftHeadHandle | None = None
    processes: TrainingGroup = SINGLE_PROCESS
    training_prompts: list[Prompt] = field(init=False, default_factory=list)
    held_out: dict[str, list[Prompt]] = field(init=False, default_factory=dict)
    examples: list[Example] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.options.seed)
        total = sum(map(len, self.prompts.values()))
        for name, prompts in self.prompts.items():
            count = min(round(self.options.held_out * len(prompts) / max(total, 1)), len(prompts) // 10)
            chosen = {int(index) for index in rng.permutation(len(prompts))[:count]}
            self.held_out[name] = [prompt for i, prompt in enumerate(prompts) if i in chosen]
            self.training_prompts += [prompt for i, prompt in enumerate(prompts) if i not in chosen]

    def begin(self, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Create the work folder, or check that an existing one was created with the same settings."""
        path = self.work / "settings.jsonl"  # a log that contains no records
        log_format = replace(LOG_FORMAT, start_over=f"delete {self.work}")
        with self.processes.in_turn():
            if (self.work / "settings.json").exists():  # an earlier version wrote it
                raise log_format.refusal(
                    f"{self.work} was written by another version", "finish the run with that version"
                )
            if self.processes.is_first:
                with writing("training", self.work, WAY_OUT):
                    self.work.mkdir(parents=True, exist_ok=True)
            elif not path.exists():
                problem = f"{path}: not found; all processes of a training need the same"
                raise InputError(Message("{problem} {output} on a shared disk", problem=problem))
            with Log.open(path, log_format, settings) as log:
                if self.processes.is_first and not (log.is_new or resume):
                    way_out = Message("continue with {resume}, or delete it")
                    raise InputError(f"{self.work}: holds an unfinished training", way_out=way_out)
                log.begin()

    def write_outputs(self, progress: Progress) -> None:
        """Decode the training prompts with the target, or cut the training recordings into windows."""
        texts = [prompt for prompt in self.training_prompts if isinstance(prompt, str)]
        recordings = [prompt for prompt in self.training_prompts if isinstance(prompt, Recording)]
        session = replace(self.session, options=replace(self.session.options, drafter="ngram"))
        with writing("training", self.work, WAY_OUT):
            if recordings:
                from .windows import write_windows  # needs speech/

                with self.processes.in_turn():
                    outputs = write_windows(session, recordings, self.work, self.options.seed, progress)
            else:
                decoded = write_outputs(
                    session, texts, self.work, self.options, processes=self.processes, progress=progress
                )
                outputs = [*decoded.values()]
        if len(outputs) < self.options.batch_size:
            name, what = (
                ("audio_manifest", "too few windows") if recordings else ("prompts", "too few prompts could be decoded")
            )
            way_out = Message("add more, or lower {batch_size}")
            raise InputError(f"{what} (got {len(outputs)}, need {self.options.batch_size})", name, way_out)
        self.examples = sorted(outputs, key=lambda each: len(each.output) + len(each.source))

    @cached_property
    def store(self) -> TargetStore:
        return TargetStore(Teacher(self.session.model, self.layers), self.examples)

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's decoder layers from which the draft reads states."""
        if isinstance(self.draft, ModelHandle):
            return ()
        if self.draft is not None:
            return tuple(self.draft.model.config.layers)
        return default_layers(self.session.model.config.decoder_layers)

    @cached_property
    def keeps_targets(self) -> bool:
        """Whether to store teacher targets: they fit in `max_disk_gb` and, if none are stored, half the free space."""
        has_begun = (self.work / "features").exists()
        fits = has_begun or self.store.nbytes <= shutil.disk_usage(self.work).free / 2
        return bool(self.processes.from_first(fits and self.store.nbytes <= self.options.max_disk_gb * 1e9))

    def keep_targets(self, progress: Progress) -> None:
        """Compute and store the teacher targets."""
        with writing("training", self.work, WAY_OUT), self.processes.in_turn():
            self.store.keep(self.work / "features", progress)

    @cached_property
    def student(self) -> Student:
        target = self.session.model
        eos = target.config.eos_token_ids
        outputs = [each.output for each in self.examples]
        frequent = np.array(DraftVocabulary.most_frequent(FREQUENT_CANDIDATES, outputs, eos).ids, np.int32)
        if isinstance(self.draft, ModelHandle):
            return ModelStudent(target, self.draft.model, frequent)
        if target.audio is None:
            pairs = [(token_ids(each.read_source()), each.output) for each in self.examples]
            vocabulary = DraftVocabulary.learned(self.frequent, pairs, eos)
        else:
            common = DraftVocabulary.most_frequent(self.frequent, outputs, eos).ids
            timestamps = range(target.audio.timestamp_begin, target.audio.timestamp_end)
            vocabulary = DraftVocabulary((*common, *sorted(set(timestamps).difference(common))))
        if self.draft is not None:
            return HeadStudent(target, self.draft.model, frequent, vocabulary)
        head = DraftHead.for_target(target, self.layers, self.options.seed)
        return HeadStudent(target, head, frequent, vocabulary)

    @property
    def frequent(self) -> int:
        """The number of frequent ids that a head may propose for any source."""
        default = FREQUENT if self.session.model.audio is None else FREQUENT_SPEECH
        return default if self.options.frequent is None else self.options.frequent

    @cached_property
    def trainer(self) -> Trainer:
        trainer = Trainer(
            self.student,
            self.store,
            Sampler(self.examples, self.options.seed, self.options.batch_size),
            self.schedule,
            self.session,
            self.held_out,
            self.work / "checkpoint.npz",
            self.processes,
        )
        trainer.resume()
        return trainer

    def train(self) -> Iterator[Report]:
        return self.trainer.run()

    @cached_property
    def held_out_stats(self) -> dict[str, GenerationStats]:
        """The trained draft's decoding statistics on the held-out prompts of each file."""
        return self.trainer.final_stats or self.trainer.measure()

    def expected_speedup(self, tokens_per_call: float) -> float:
        """Return the speedup over baseline decoding, predicted from costs measured on this machine."""
        round_cost = self._costs.round_cost(NUM_DRAFT_TOKENS, NUM_DRAFT_TOKENS)
        return tokens_per_call * self._costs.baseline / round_cost

    @cached_property
    def _costs(self) -> RoundCosts:
        drafting = Session(self.session.model, self.session.tokenizer, self.student.draft())
        return drafting.planner.calibration(drafting.options_with({"drafter": "model"})).measure_fully(1)

    @property
    def memory_needed(self) -> int:
        """The estimated bytes for the target, the student with gradients and two moments, and the logits of a step."""
        width = self.session.model.config.d_model
        candidates = FREQUENT_CANDIDATES + LIKELY_CANDIDATES + RANDOM_CANDIDATES
        student = nbytes(self.draft.model) if isinstance(self.draft, ModelHandle) else 12 * width * width * 4
        return (
            nbytes(self.session.model) + 4 * student + 4 * self.options.batch_size * 16 * DRAFT_STEPS * candidates * 4
        )

    def finish(self, output: Path, draw: Callable[[Path], None], **facts: Any) -> None:
        """Write the output folder, completely or not at all.

        Args:
            output: The folder.
            draw: Adds files, such as plots, to the folder.
            facts: Entries of the folder's manifest.
        """
        student = self.student
        dtype = DTYPES[self.options.dtype]
        with writing(Name("output"), output, WAY_OUT):
            if isinstance(student, HeadStudent):
                acceptance = total_stats(self.held_out_stats).acceptance_by_position
                head = student.draft().with_acceptance(acceptance)
                write_draft_head(output, head, student.target, dtype, also=draw, **facts)
            elif isinstance(self.draft, ModelHandle):
                write_model(output, self.draft, dtype, also=draw, **facts)


def write_model(
    output: Path, opened: ModelHandle, dtype: mx.Dtype, *, also: Callable[[Path], None], **facts: Any
) -> None:
    """Write a trained model to a folder in the format of a conversion.

    Args:
        output: The folder.
        opened: The model, with the folder and the checkpoint from which it was loaded.
        dtype: The dtype of the stored weights.
        also: Adds further files to the folder.
        facts: Entries of the folder's manifest.
    """
    model = opened.model
    parameters: Any = dict(tree_flatten(model.parameters()))
    arrays: list[tuple[str, mx.array]] = []
    for path, names in model.parameter_sources(model.config, opened.checkpoint.keys()).items():
        parts = mx.split(parameters[path], len(names))
        arrays += [(name, mx.contiguous(part).astype(dtype)) for name, part in zip(names, parts, strict=True)]
    with atomic_directory(output) as partial:
        write_npz(partial / WEIGHTS, arrays)
        for name in ("config.json", "generation_config.json"):
            if (opened.folder / name).is_file():
                shutil.copyfile(opened.folder / name, partial / name)
        facts |= {"tokenizer": copy_tokenizer(opened.folder, partial)}
        also(partial)
        dtype_name = next(name for name, each in DTYPES.items() if each == dtype)
        manifest.write(partial, source=opened.name, dtype=dtype_name, quantization=None, **facts)


def nbytes(model: EncoderDecoder) -> int:
    parameters: Any = tree_flatten(model.parameters())
    return sum(array.nbytes for _, array in parameters)

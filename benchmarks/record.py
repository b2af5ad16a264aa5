"""Recorded acceptance: the number of correct draft tokens at each position. `python -m benchmarks.record FILE`.

The command records the bundled drafts on the bundled prompts. `--replay` (replay.py) and simulated_devices.py read the
file. Each line holds a task, a kind and the task's outputs. An output has one base-36 digit per token: the number of
correct tokens in a draft that starts there. Kinds:

- "head", "model": drafts of a draft head or draft model
- "copy": copies, at the positions where the drafter `auto` copies
- "found": the lengths of these copies

Drafts never cover the last token of an output, because the target adds a token in each round.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import mlx.core as mx

from speculative_decoding import Session, load
from speculative_decoding.cli.common import read_text, run, say
from speculative_decoding.cli.parser import Parser, require_writable
from speculative_decoding.drafters import AutoDrafter, Draft, DraftHead, RequestView
from speculative_decoding.drafters.base import COPY, MODEL
from speculative_decoding.drafters.model import num_shared
from speculative_decoding.errors import InputError, writing
from speculative_decoding.loading.atomic_io import atomic_write

from .ours import Ids, auto_parts
from .tasks import Task, tasks_from_files

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
PIECE = 16  # length of the consecutive pieces in an excerpt
PROMPTS = 40  # per task
MAX_TOKENS = 100  # per output
MAX_DRAFT_TOKENS = 16
TARGET = "t5-web-docs"
DRAFTS = ("t5-web-docs-draft", "t5-web-docs-head")

Recorded = Mapping[str, Sequence[Sequence[int]]]  # kind -> outputs


def read(path: Path, kinds: Sequence[str]) -> Mapping[str, Recorded]:
    """Return the records by task. Raises `InputError` for a damaged line or a missing kind."""
    tasks: dict[str, dict[str, list[list[int]]]] = {}
    way_out = "record it with python -m benchmarks.record"
    for number, line in enumerate(read_text(path, "--replay").splitlines(), 1):
        if line.startswith("#"):
            continue
        try:
            task, kind, *outputs = line.split()
            found = [[DIGITS.index(digit) for digit in output] for output in outputs]
            own = tasks.setdefault(task, {})
            if not found or [*map(len, found)] != [*map(len, next(iter(own.values()), found))]:
                raise ValueError
        except ValueError:
            raise InputError(f"--replay {path}: line {number} is not recorded acceptance; {way_out}") from None
        own[kind] = found
    for kind in kinds:
        if not tasks or any(kind not in own for own in tasks.values()):
            raise InputError(f'--replay {path}: a task has no "{kind}"; {way_out}')
    return tasks


def write(path: Path, tasks: Mapping[str, Recorded], comment: str) -> None:
    lines = [f"# {comment}"]
    for task, kind, outputs in ((task, *pair) for task, kinds in tasks.items() for pair in kinds.items()):
        lines.append(" ".join([task, kind, *("".join(DIGITS[each] for each in output) for output in outputs)]))
    with writing("file", path):
        atomic_write(path, "\n".join(lines) + "\n")


def excerpt(task: Recorded, size: int) -> dict[str, list[int]]:
    """Return `size` tokens of each kind: pieces from evenly spaced places of all outputs, concatenated."""
    joined = {kind: [*chain.from_iterable(outputs)] for kind, outputs in task.items()}
    total = len(next(iter(joined.values())))
    step = max(PIECE, PIECE * total // size)
    places = [(i // PIECE * step + i % PIECE) % total for i in range(size)]
    return {kind: [runs[place] for place in places] for kind, runs in joined.items()}


class Recorder(AutoDrafter):
    """Records a draft before each token, from the model and, where `auto` would copy, from a copy. Proposes no tokens.

    Supports a single row. `drafts` holds the draft tokens before each token of the last request, by kind.
    """

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        super().begin(request, encoder_output)
        self.drafts: dict[str, list[list[int]]] = {MODEL: [], COPY: []}

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        return super().kind_and_limit(request)[0], sys.maxsize  # a copy's length must not limit the model's draft

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        (request,) = counts
        copied = super().propose(counts, slots) if self._copying else Draft.empty()
        self._copying.clear()
        place = len(request.decoder_tokens) - 1  # a position may be drafted more than once
        for kind, draft in {MODEL: super().propose(counts, slots), COPY: copied}.items():
            self.drafts[kind][place:] = draft.ids()
        return Draft.empty()


def record(pair: Session, task: Task) -> Recorded:
    """Count the correct tokens of the pair's drafts and of copies, before each token of the task's outputs."""
    recorder = Recorder(*auto_parts(pair.model, pair.draft_model))
    session = Session(pair.model, Ids(task.sources))
    model = "head" if isinstance(pair.draft_model, DraftHead) else "model"
    found: dict[str, list[list[int]]] = {model: [], "copy": [], "found": []}
    for number in range(len(task.sources)):
        output = session.generate(
            str(number), drafter=recorder, num_draft_tokens=MAX_DRAFT_TOKENS, max_tokens=task.max_tokens
        ).tokens
        for kind, name in ((MODEL, model), (COPY, "copy")):
            found[name].append([num_shared(ids, output[i:-1]) for i, ids in enumerate(recorder.drafts[kind])])
        found["found"].append([*map(len, recorder.drafts[COPY])])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.record", description=__doc__)
    parser.add_argument("file", type=Path, help="the file to write")
    file: Path = parser.parse_args(argv).file
    return run("benchmarks.record", lambda: record_all(file))


def record_all(file: Path) -> int:
    """Record the bundled models on the bundled prompts. Copies are recorded with the last draft."""
    require_writable("file", file)
    tasks: dict[str, dict[str, Sequence[Sequence[int]]]] = {}
    for draft in DRAFTS:
        pair = load(TARGET, draft=draft)
        for task in tasks_from_files((), PROMPTS, MAX_TOKENS, pair.model, pair.tokenizer):
            say(f"{draft}: {task.name}")
            tasks.setdefault(task.name, {}).update(record(pair, task))
    write(file, tasks, f"{TARGET} with {', '.join(DRAFTS)}: number of correct draft tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())

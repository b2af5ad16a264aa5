"""Recorded acceptance: the number of correct draft tokens at each position. `python -m benchmarks.record FILE`.

The command records the acceptance of the bundled drafts on the bundled prompts. `--replay` (replay.py) and
simulated_devices.py read the file. Each line contains a task, a kind and the task's outputs. An output is written as
one base-64 digit per token: the number of correct tokens in a draft that starts at that token. The kinds are:

- "head", "model": drafts of a draft head or draft model
- "copy": copies, at the positions where the drafter `auto` copies
- "found": the lengths of these copies
- "text": drafts from a given text, at the positions where `auto` follows it. The text is the output, with some words
  replaced
- "followed": the lengths of these drafts

Drafts never cover the last token of an output, because the target adds a token in each round.
"""

from __future__ import annotations

import random
import string
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import mlx.core as mx

from speculative_decoding import Session, load
from speculative_decoding.cli.common import read_text, run, say
from speculative_decoding.cli.parser import Parser
from speculative_decoding.decoding.prompt import draft_text_of
from speculative_decoding.draft_length.adaptive import LONGEST, LONGEST_COPY
from speculative_decoding.drafters import AutoDrafter, Draft, DraftHead, NgramDrafter, RequestView
from speculative_decoding.drafters.base import COPY, MODEL, num_shared
from speculative_decoding.drafters.draft_text import DraftText
from speculative_decoding.errors import InputError, writing
from speculative_decoding.runs.places import atomic_write, require_writable

from .ours import Ids, auto_parts
from .tasks import Task, tasks_from_files

DIGITS = string.digits + string.ascii_letters + "-_"
PIECE = 16  # length of the consecutive pieces in an excerpt
PROMPTS = 40  # per task
MAX_TOKENS = 100  # per output
REPLACED = 0.1  # share of the words in a given text
TARGET = "t5-web-docs"
DRAFTS = ("t5-web-docs-draft", "t5-web-docs-head")

Recorded = Mapping[str, Sequence[Sequence[int]]]  # kind -> outputs


def read(path: Path, kinds: Sequence[str]) -> Mapping[str, Recorded]:
    """Return the records, keyed by task. Raises `InputError` for a damaged line or a missing kind."""
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


def with_other_words(texts: Sequence[str], seed: int = 0) -> list[str]:
    """Replace each word, with probability `REPLACED`, by a word drawn from all texts."""
    rng = random.Random(seed)
    words = [word for text in texts for word in text.split()]
    return [" ".join(rng.choice(words) if rng.random() < REPLACED else word for word in text.split()) for text in texts]


class Recorder(AutoDrafter):
    """Records a draft before each token, from the model and, where `auto` would copy, from a copy. Proposes no tokens.

    Supports a single row. `drafts` contains the drafts before each token of the last request, by kind. `texts` contains
    the given text for each source, if there are any; drafts from these texts are recorded as copies.
    """

    texts: Mapping[tuple[int, ...], DraftText] = MappingProxyType({})

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        if self.texts:
            request.draft_texts = [self.texts[tuple(request.source_tokens)]]
        super().begin(request, encoder_output)
        self.drafts: dict[str, list[list[int]]] = {MODEL: [], COPY: []}

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        return super().kind_and_limit(request)[0], sys.maxsize  # a copy's length must not limit the model's draft

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        ((request, count),) = counts.items()
        copied = super().propose(counts, slots) if self._copying else Draft.empty()
        self._copying.clear()
        place = len(request.decoder_tokens) - 1  # drafts for a position may be requested more than once
        modelled = super().propose({request: min(count, LONGEST)}, slots)
        for kind, draft in {MODEL: modelled, COPY: copied}.items():
            self.drafts[kind][place:] = draft.to_lists()
        return Draft.empty()


def record(pair: Session, task: Task) -> Recorded:
    """At each token of the outputs, count the correct tokens in the pair's draft, in a copy and in a given text."""
    name = "head" if isinstance(pair.draft_model, DraftHead) else "model"
    ngram, model, vocab_size = auto_parts(pair.model, pair.draft_model)
    outputs, drafts = decode(pair, task, Recorder(ngram, model, vocab_size), LONGEST)
    found = {name: num_right(drafts[MODEL], outputs), "copy": num_right(drafts[COPY], outputs)}
    found["found"] = [[*map(len, own)] for own in drafts[COPY]]

    texts = with_other_words([pair.tokenizer.decode(output) for output in outputs])
    only_texts = NgramDrafter(pieces=pair.model.pieces, search_input=False, search_output=False)
    follower = Recorder(only_texts, model, vocab_size)
    follower.texts = {
        source: draft_text_of(pair.model, pair.tokenizer, text)
        for source, text in zip(task.sources, texts, strict=True)
    }
    _, drafts = decode(pair, task, follower, LONGEST_COPY)
    return found | {
        "text": num_right(drafts[COPY], outputs),
        "followed": [[*map(len, own)] for own in drafts[COPY]],
    }


def decode(
    pair: Session, task: Task, recorder: Recorder, num_draft_tokens: int
) -> tuple[list[list[int]], dict[str, list[list[list[int]]]]]:
    """Return the outputs, and for each kind, the drafts before each token of the outputs."""
    session = Session(pair.model, Ids(task.sources))
    outputs = []
    drafts: dict[str, list[list[list[int]]]] = {MODEL: [], COPY: []}
    for number in range(len(task.sources)):
        result = session.generate(
            str(number), drafter=recorder, num_draft_tokens=num_draft_tokens, max_tokens=task.max_tokens
        )
        outputs.append(result.tokens)
        for kind, own in recorder.drafts.items():
            drafts[kind].append(own)
    return outputs, drafts


def num_right(drafts: Sequence[Sequence[Sequence[int]]], outputs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the number of correct tokens of each draft."""
    return [
        [num_shared(ids, output[i:-1]) for i, ids in enumerate(own)]
        for own, output in zip(drafts, outputs, strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.record", description=__doc__)
    parser.add_argument("file", type=Path, help="the file to write")
    file: Path = parser.parse_args(argv).file
    return run("benchmarks.record", lambda: record_all(file))


def record_all(file: Path) -> int:
    """Record the bundled drafts on the bundled prompts. Copies and given texts are recorded with the last draft."""
    require_writable(file, "file")
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

"""Rounds of any size with the acceptance of another pair: what is drafted is computed, but which of it is right was
recorded. So random weights, which no draft is like, can be measured as if they had one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from speculative_decoding.decoding.ways import PLAIN, Way
from speculative_decoding.drafters import BatchDrafter, Draft, NgramDrafter, Row, Wanted, choose_drafter, new_ngram
from speculative_decoding.drafters.base import COPY, MODEL, Verified, token_rows
from speculative_decoding.drafters.draft_model import DraftModel
from speculative_decoding.errors import InputError
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.session import Session

from .acceptance import Recorded, kind_of, stretch
from .models import Models, quantized, random_draft
from .ours import Ids, Ours, ours
from .tasks import Task


@dataclass(frozen=True)
class Script:
    """Of a source. output: what the target writes. right, found, copied: as recorded, for each of its tokens: how many
    tokens of a draft of the model or head are right, how long a copy is (0: there is none), how many of it are right.
    """

    output: Sequence[int]
    right: Sequence[int]
    found: Sequence[int]
    copied: Sequence[int]


class ReplayDrafter(BatchDrafter):
    """Drafts with a model or head and looks for copies, for the time that takes; hands on what a script says. One row.

    make: gives the drafter of a request. ngram: None leaves copies out. scripts: by source.
    """

    def __init__(
        self, make: Callable[[], BatchDrafter], ngram: NgramDrafter | None, scripts: Mapping[tuple[int, ...], Script]
    ) -> None:
        self._make, self._ngram, self._scripts = make, ngram, scripts

    def share(self, cache: DecoderCache) -> None:
        """A new request."""
        self._drafter = self._make()
        self._drafter.share(cache)

    def begin(self, row: Row) -> None:
        self._script = self._scripts[tuple(row.source)]
        # What the drafter sees: where its tokens were accepted, they were its own.
        self._seen = Row(row.options, row.source, [*row.tokens], row.slot)
        self._own = mx.zeros((1, 0), mx.uint32)
        self._drafter.begin(self._seen)
        if self._ngram is not None:
            self._ngram.begin(row.source)

    def kind(self, row: Row) -> str:
        if self._ngram is None:
            return MODEL
        self._ngram.match(row.tokens)
        return COPY if self._script.found[len(row.tokens) - 1] else MODEL

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        (one,) = wanted
        script, place = self._script, len(one.row.tokens) - 1
        if one.kind == COPY:
            return Draft.certain([self._scripted(place, min(one.count, script.found[place]), script.copied[place])])
        draft = self._drafter.propose([replace(one, row=self._seen)], slots)
        self._own = draft.tokens
        ids = mx.array([self._scripted(place, draft.num_tokens, script.right[place])], mx.uint32)
        return Draft(ids + 0 * draft.tokens, lengths=draft.lengths)  # waits for them, as any draft

    def _scripted(self, place: int, count: int, right: int) -> list[int]:
        ids = list(self._script.output[place : place + count])
        if right < count:
            ids[right] = abs(ids[right] - 1)  # another one
        return ids

    def observe(self, rows: Sequence[Row], verified: Verified) -> None:
        (row,) = rows
        *accepted, last = row.tokens[len(self._seen.tokens) :]
        own = token_rows(self._own)[0][: len(accepted)]
        self._seen.tokens += [*own, *accepted[len(own) :], last]
        self._own = mx.zeros((1, 0), mx.uint32)
        self._drafter.observe([self._seen], verified)

    def end(self, row: Row) -> None:
        """Raises `InputError` where the target writes other tokens than without drafts: the script is none of its."""
        self._drafter.end(self._seen)
        if row.tokens[1:] != self._script.output:
            raise InputError(
                "--acceptance: this target's arg-max is another one in wide passes than in narrow ones, so what was "
                "recorded cannot be replayed; take --dtype float32"
            )

    def select(self, slots: Sequence[int]) -> None:
        raise NotImplementedError("for one row")


def replays(
    task: Task,
    target: EncoderDecoder,
    names: Sequence[str],
    bits: Sequence[int],
    ways: Sequence[Way],
    acceptance: Mapping[str, Recorded],
) -> list[Ours]:
    """Plain decoding, then each way with each draft (`random_draft`) on each task that was recorded; and all of it with
    the target's matrices in so many bits.
    """
    drafts = [(name, random_draft(name, target)) for name in names]
    found = []
    for each in (None, *bits):
        own, where = (target, "") if each is None else (quantized(target, each), f"{each} bits, ")
        (plain,) = ours(task, [PLAIN], [0.0], Models(own, None))
        found.append(replace(plain, label=where + plain.label, draft_bytes=0 if each is None else None))
        outputs = [output.tokens for output in plain.decode(task)]
        for title, recorded in acceptance.items():
            for name, draft in drafts:
                scripts = scripts_of(task, outputs, stretch(recorded, len(outputs) * task.max_tokens), name)
                for way in ways:
                    label = f"{where}{title}: {'copies and ' * (way.drafter == 'auto')}{name}, {way.num_draft}"
                    session = session_of(task, Models(own, draft), way, scripts)
                    found.append(Ours(label, way.flags, 0.0, None, session))
    return found


def scripts_of(
    task: Task, outputs: Sequence[Sequence[int]], runs: Mapping[str, Sequence[int]], name: str
) -> dict[tuple[int, ...], Script]:
    """By source. runs: `stretch`. name: of the draft."""
    nothing = [0] * (len(outputs) * task.max_tokens)
    scripts, end = {}, 0
    for source, output in zip(task.sources, outputs, strict=True):
        start, end = end, end + task.max_tokens
        parts = (list(runs.get(each, nothing))[start:end] for each in (kind_of(name), "found", "copy"))
        scripts[source] = Script(output, *parts)
    return scripts


def session_of(task: Task, models: Models, way: Way, scripts: Mapping[tuple[int, ...], Script]) -> Session:
    target, draft = models.target, models.draft
    usual = GenerationOptions(drafter="model")
    own = DraftModel(draft) if isinstance(draft, EncoderDecoder) else draft
    ngram = new_ngram(target, usual.max_ngram_size, usual.min_ngram_size) if way.drafter == "auto" else None
    drafter = ReplayDrafter(lambda: choose_drafter(usual, target, own), ngram, scripts)
    options = GenerationOptions(
        drafter=drafter, num_draft=way.num_draft, max_tokens=task.max_tokens, allow_long_prompt=True
    )
    return Session(target, Ids(task.sources), draft, options)

"""Drafts for random weights, which no draft is like: they are computed, but how many of them are right was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import mlx.core as mx

from speculative_decoding.decoding.ways import PLAIN, Way
from speculative_decoding.drafters import AutoDrafter, Draft, Row, Wanted
from speculative_decoding.drafters.base import COPY, MODEL, Verified, token_rows
from speculative_decoding.errors import InputError
from speculative_decoding.models.base import EncoderDecoder

from .acceptance import Recorded, excerpt
from .models import HEAD, Models, random_draft
from .ours import Ours, auto_parts, ours
from .tasks import Task


class Script(NamedTuple):
    """output: what the target writes for a source. The others for each of its tokens, as recorded: how many tokens of a
    model's draft are right, how long a copy is (0: there is none), how many of it are right.
    """

    output: list[int]
    right: Sequence[int]
    found: Sequence[int]
    copied: Sequence[int]


class ReplayDrafter(AutoDrafter):
    """Drafts and looks for copies, for the time that takes; hands on what a script says, by source. One row."""

    scripts: Mapping[tuple[int, ...], Script]

    def begin(self, row: Row) -> None:
        super().begin(row)
        self._script = self.scripts[tuple(row.source)]
        self._seen = replace(
            row, tokens=[*row.tokens]
        )  # by the model: where its tokens were accepted, they were its own

    def kind(self, row: Row) -> str:
        super().kind(row)
        return COPY if self._script.found[len(row.tokens) - 1] else MODEL

    def longest(self, row: Row, kind: str) -> int:
        return self._script.found[len(row.tokens) - 1] if kind == COPY else super().longest(row, kind)

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        (one,) = wanted
        place = len(one.row.tokens) - 1
        if one.kind == COPY:
            return Draft.certain([self._ids(place, min(one.count, self._script.found[place]), self._script.copied)])
        draft = super().propose([replace(one, row=self._seen)], slots)
        ids = mx.array([self._ids(place, draft.num_tokens, self._script.right)], mx.uint32)
        return Draft(ids + 0 * draft.tokens, lengths=draft.lengths)  # waits for the draft, as any target's pass

    def _ids(self, place: int, count: int, right: Sequence[int]) -> list[int]:
        ids = self._script.output[place : place + count]
        if right[place] < count:
            ids[right[place]] = abs(ids[right[place]] - 1)  # another one
        return ids

    def observe(self, rows: Sequence[Row], verified: Verified) -> None:
        new = rows[0].tokens[len(self._seen.tokens) :]
        own = token_rows(self._proposed.tokens)[0][: len(new) - 1] if self._proposed else []
        self._seen.tokens += [*own, *new[len(own) :]]
        super().observe([self._seen], verified)

    def end(self, row: Row) -> None:
        """Raises `InputError` where the target writes other tokens than without drafts: the script is none of its."""
        super().end(row)
        if row.tokens[1:] != self._script.output:
            raise InputError("--acceptance: this target's arg-max is another in wide passes; take --dtype float32")


def replays(task: Task, target: EncoderDecoder, drafts: Sequence[str], tasks: Mapping[str, Recorded]) -> list[Ours]:
    """Plain decoding; then, for each of the recorded tasks, copies and each draft (`random_draft`)."""
    (plain,) = ours(task, [PLAIN], [0.0], Models(target, None))
    outputs, size = [output.tokens for _, output in plain.decode(task)], task.max_tokens
    made = [(name, random_draft(name, target)) for name in drafts]
    found = [plain]
    for (title, recorded), (name, draft) in product(tasks.items(), made):
        model, scripts = "head" if name == HEAD else "model", {}
        runs = excerpt(recorded, size * len(outputs))
        for i, (source, output) in enumerate(zip(task.sources, outputs, strict=True)):
            parts = (runs[kind][i * size : (i + 1) * size] for kind in (model, "found", "copy"))
            scripts[source] = Script(output, *parts)
        drafter = ReplayDrafter(*auto_parts(target, draft))
        drafter.scripts = scripts
        (auto,) = ours(task, [Way(f"{title}: copies and {name}, auto", "auto", "auto")], [0.0], Models(target, draft))
        found.append(
            replace(auto, session=replace(auto.session, options=replace(auto.session.options, drafter=drafter)))
        )
    return found

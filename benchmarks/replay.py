"""Replays recorded acceptance with random weights: computes drafts, then replaces their tokens to match the record."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import mlx.core as mx

from speculative_decoding.cli.modes import BASELINE, DecodingMode
from speculative_decoding.drafters import AutoDrafter, Draft, RequestView
from speculative_decoding.drafters.base import COPY, MODEL
from speculative_decoding.errors import InputError
from speculative_decoding.models.base import EncoderDecoder

from .models import HEAD, Models, random_draft
from .ours import Ours, auto_parts, ours
from .record import Recorded, excerpt
from .tasks import Task


class Script(NamedTuple):
    """The target's output for a source, with the recorded acceptance at each token.

    Args:
        output: The target's tokens.
        right: At each token, the number of correct tokens in the model's draft.
        found: At each token, the length of the copy, or 0 if there is none.
        copied: At each token, the number of correct tokens in the copy.
    """

    output: list[int]
    right: Sequence[int]
    found: Sequence[int]
    copied: Sequence[int]


class ReplayDrafter(AutoDrafter):
    """Computes drafts and searches for copies, then proposes tokens from the source's script. Supports one row."""

    scripts: Mapping[tuple[int, ...], Script]

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        super().begin(request, encoder_output)
        self._script = self.scripts[tuple(request.source_tokens)]
        # The request, with the model's own draft tokens in place of the accepted replacements.
        self._seen = RequestView(request.options, request.source_tokens, [*request.decoder_tokens], request.slot)

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        super().kind_and_limit(request)
        found = self._script.found[len(request.decoder_tokens) - 1]
        return (COPY, found) if found else (MODEL, sys.maxsize)

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        ((request, count),) = counts.items()
        place = len(request.decoder_tokens) - 1
        if found := self._script.found[place]:
            return Draft.from_lists([self._ids(place, min(count, found), self._script.copied)])
        self._copying.clear()
        draft = super().propose({self._seen: count}, slots)
        ids = mx.array([self._ids(place, draft.num_tokens, self._script.right)], mx.uint32)
        return Draft(
            ids + 0 * draft.tokens, lengths=draft.lengths
        )  # keeps the target pass dependent on the draft, as in real decoding

    def _ids(self, place: int, count: int, right: Sequence[int]) -> list[int]:
        ids = self._script.output[place : place + count]
        if right[place] < count:
            ids[right[place]] = abs(ids[right[place]] - 1)  # a wrong id
        return ids

    def observe(self, requests: Sequence[RequestView], counts: Sequence[int]) -> None:
        new = requests[0].decoder_tokens[len(self._seen.decoder_tokens) :]
        own = self._proposed.to_lists()[0][: len(new) - 1] if self._proposed else []
        self._seen.decoder_tokens += [*own, *new[len(own) :]]
        super().observe([self._seen], counts)

    def end(self, request: RequestView) -> None:
        """Check that the output equals the script. Raises `InputError` if it differs from baseline decoding."""
        super().end(request)
        if request.decoder_tokens[1:] != self._script.output:
            raise InputError("--replay: the target's output depends on the width of a pass; use --dtype float32")


def replays(task: Task, target: EncoderDecoder, drafts: Sequence[str], tasks: Mapping[str, Recorded]) -> list[Ours]:
    """Return the baseline, followed by a contender for each recorded task and draft (`random_draft`), with copies."""
    (baseline,) = ours(task, [BASELINE], [0.0], Models(target, None))
    outputs = [output.tokens for _, output in baseline.decode(task)]
    size = task.max_tokens
    made = [(name, random_draft(name, target)) for name in drafts]
    found = [baseline]
    for (title, recorded), (name, draft) in product(tasks.items(), made):
        model = "head" if name == HEAD else "model"
        scripts = {}
        runs = excerpt(recorded, size * len(outputs))
        for i, (source, output) in enumerate(zip(task.sources, outputs, strict=True)):
            parts = (runs[kind][i * size : (i + 1) * size] for kind in (model, "found", "copy"))
            scripts[source] = Script(output, *parts)
        drafter = ReplayDrafter(*auto_parts(target, draft))
        drafter.scripts = scripts
        (auto,) = ours(
            task, [DecodingMode(f"{title}: copies and {name}, auto", "auto", "auto")], [0.0], Models(target, draft)
        )
        found.append(
            replace(auto, session=replace(auto.session, options=replace(auto.session.options, drafter=drafter)))
        )
    return found

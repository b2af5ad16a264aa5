"""Drafts from a model with another vocabulary: the model writes its own output, whose text is the draft.

Universal assisted generation (Timor et al. 2025, 2502.05202) re-encodes each draft of a decoder-only model. Here the
draft model decodes the whole output by itself, greedily and independently of the target, but only as far ahead as the
next draft needs. The text is followed like any draft text (draft_text.py), so a difference requires no draft-model
step. If the target's output has permanently diverged from the text, the draft model starts again from the committed
tokens.

This module is independent of models and tokenizers, which a `DraftWriter` encapsulates.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

import mlx.core as mx

from .base import MODEL, BatchDrafter, Draft, Followable, Follower, RequestView
from .draft_text import Place

PATIENCE = 1  # number of committed tokens without a place in the text after which the draft model starts again
MAX_SKIPPED = 8  # maximum ids written to reach the end of a skipped word, which may be an endless repetition
MAX_SILENT = 128  # number of tokens in a row that add no id, such as special tokens, after which an output is abandoned
FAR_BEHIND = 16  # if more ids than this are missing, reading committed tokens as a prefix is faster than writing them


class Written(Followable, Protocol):
    """An output that a draft model writes for a request of the target. Its text, in target ids, can be followed.

    The text contains the tokens that were committed when the output was started, and the end token if the output is
    finished. It omits whatever further tokens may change, such as an incomplete word.

    num_skipped: The number of committed tokens, such as a prompt, that are not part of the text and are not followed.
    """

    num_skipped: int

    @property
    def num_tokens(self) -> int:
        """The number of tokens written so far."""

    @property
    def is_complete(self) -> bool:
        """Whether the output has ended: it is finished, too long, cancelled, or failed."""

    @property
    def size(self) -> int:
        """The number of ids in the text. Positions refer to these ids."""

    def update(self) -> None:
        """Update the text with the tokens written since the last update."""

    def cancel(self) -> None:
        """Stop writing. A complete output does not change."""


class DraftWriter(Protocol):
    """Writes outputs with a draft model."""

    def start(self, request: RequestView) -> Written | None:
        """Start an output for a request of the target, after the tokens committed so far.

        The text of those tokens is the draft model's forced prefix. Returns None, after one note to the user, if the
        draft model cannot read this request.
        """

    def step(self) -> None:
        """Write one more token of every output that is not complete."""

    def rehearse(self, slot: int) -> Written:
        """Start an output for a typical source that continues for many steps, so that calibration can time it."""


class Row:
    """A request of the target, and the output that the draft model writes for it."""

    def __init__(self, request: RequestView) -> None:
        self.request = request
        self.written: Written | None = None  # None before the first draft
        self.is_possible = True  # whether the draft model can read this request
        self._patience = PATIENCE
        self._is_useful = True  # whether a committed token has matched the text since the last start

    def start(self, writer: DraftWriter) -> None:
        """Start a new output from the committed tokens."""
        self.cancel()
        self._patience = PATIENCE if self._is_useful else 2 * self._patience
        self._is_useful = False
        written = self.written = writer.start(self.request)
        if written is None:
            self.is_possible = False
            return
        self._num_read = -1  # number of written tokens already included in the text
        self._num_useful = 0  # number of these up to the last token that made the text longer
        self._follower: Follower = written.follow()
        self._limit = 0  # maximum number of ids in the text for the next draft
        self._followed = 1 + written.num_skipped  # number of decoder tokens that the follower has or does not need
        self._lost = 0  # number of committed tokens in a row without a place in the text
        self._read_from = len(self.request.decoder_tokens)  # the tokens before this index are the draft model's prefix

    def cancel(self) -> None:
        if self.written is not None:
            self.written.cancel()
            self.written = None

    @property
    def needs_start(self) -> bool:
        """Whether there is no text that is worth following."""
        if self.written is None:
            return self.is_possible
        if self._lost >= self._patience:
            return True
        return self._followed >= self._read_from and self._lacking(self._read(), 0) > FAR_BEHIND

    def _read(self) -> Written:
        """Update the text with what has been written."""
        assert self.written is not None
        if self.written.num_tokens != self._num_read:
            self._num_read = self.written.num_tokens
            size = self.written.size
            self.written.update()
            if self.written.size > size:
                self._num_useful = self._num_read
            elif self._num_read - self._num_useful >= MAX_SILENT:
                self.written.cancel()
        return self.written

    def _lacking(self, written: Written, count: int) -> int:
        """Return the number of ids that the text lacks to follow all committed tokens and then draft `count` tokens."""
        place = self._follower.find()
        if place is None or written.is_complete:
            return 0
        return place.position + len(self.request.decoder_tokens) - self._followed + count - written.size

    def prepare(self, writer: DraftWriter, count: int) -> None:
        """Start an output if there is none worth following. count: the number of tokens to draft."""
        if self.needs_start:
            self.start(writer)
        if self.written is not None:
            lacking = self._lacking(self._read(), count)
            self._limit = self.written.size + max(0, lacking) + MAX_SKIPPED

    def follow(self, count: int) -> int:
        """Follow the committed tokens as far as the text has been written, in order to draft `count` tokens.

        Returns the minimum number of ids that must be written before such a draft is possible; 0 if there is no place
        for a draft.
        """
        if self.written is None:
            return 0
        written = self._read()
        tokens, size = self.request.decoder_tokens, written.size
        while self._followed < len(tokens):
            place = self._follower.find()
            if place is not None and place.position >= size and not written.is_complete:
                break
            self._append(tokens[self._followed], place)
        return max(0, min(self._lacking(written, count), self._limit - size))

    def _append(self, token: int, place: Place | None) -> None:
        is_new = self._followed >= self._read_from
        self._followed += 1
        self._follower.append(token)
        if not is_new:
            return
        self._lost = 0 if self._follower.find() is not None else self._lost + 1
        if place is not None and self._follower.continuation(place, 1) == [token]:
            self._is_useful = True

    def draft(self, count: int) -> Sequence[int]:
        if self.written is None or self._followed < len(self.request.decoder_tokens):
            return ()
        place = self._follower.find()
        return () if place is None else self._follower.continuation(place, count)


class BatchWritingDrafter(BatchDrafter):
    """Drafts text written by a draft model with another vocabulary. The draft is greedy even if the output is sampled.

    The outputs of all rows grow together, by one token per step, because a draft-model pass computes all rows. A row's
    output may therefore be written further than needed, but never beyond its end.

    writer: Writes the outputs; no other drafter may use it.
    """

    def __init__(self, writer: DraftWriter) -> None:
        self._writer = writer
        self._rows: dict[int, Row] = {}  # by slot

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        self._drop(request.slot)
        self._rows[request.slot] = Row(request)

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        return MODEL, sys.maxsize if self._rows[request.slot].is_possible else 0

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        rows = {self._rows[request.slot]: count for request, count in counts.items()}
        self._write(rows)
        if any(row.needs_start for row in rows):  # following the last tokens revealed that the output has diverged
            self._write(rows)
        ids: list[Sequence[int]] = [()] * slots
        for row, count in rows.items():
            ids[row.request.slot] = row.draft(count)
        return Draft.from_lists(ids)

    def _write(self, rows: Mapping[Row, int]) -> None:
        """Write until each row has a draft of this many tokens, or no place for a draft."""
        for row, count in rows.items():
            row.prepare(self._writer, count)
        while lacking := [lack for row, count in rows.items() if (lack := row.follow(count))]:
            for _ in range(min(lacking)):
                self._writer.step()

    def observe(self, requests: Sequence[RequestView], counts: Sequence[int]) -> None:
        """Stop writing for requests that no longer grow, because they were cancelled or are being retried."""
        for row in self._rows.values():
            if row.request not in requests:
                row.cancel()

    def end(self, request: RequestView) -> None:
        self._drop(request.slot)

    def select(self, slots: Sequence[int]) -> None:
        kept = {slots.index(slot): row for slot, row in self._rows.items() if slot in slots}  # the other slots are free
        for slot in self._rows.keys() - set(slots):
            self._rows[slot].cancel()
        self._rows = kept

    def _drop(self, slot: int) -> None:
        if slot in self._rows:
            self._rows.pop(slot).cancel()


class TimedWriting(BatchDrafter):
    """Writes as many tokens as requested, so that calibration can time it. It drafts nothing."""

    def __init__(self, writer: DraftWriter) -> None:
        self._writer = writer
        self._written: dict[int, Written] = {}  # by slot

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        if request.slot in self._written:
            self._written[request.slot].cancel()
        self._written[request.slot] = self._writer.rehearse(request.slot)

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        for _ in range(max(counts.values())):
            self._writer.step()
        return Draft.empty(slots)

    def select(self, slots: Sequence[int]) -> None:
        raise NotImplementedError  # a probe never changes its rows

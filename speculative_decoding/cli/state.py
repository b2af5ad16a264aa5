"""What a console has open and how it is set: models, options, ways of decoding, what was spent. Prints nothing."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ..decoding.stats import GenerationStats
from ..drafters import NgramDrafter, Store
from ..drafters.ngram_store import make_store
from ..errors import InputError
from ..session import Session
from . import common, drafting
from .watching import Run, Watcher
from .ways import SPECULATIVE, TARGET, WAYS, available, has_drafts

STORAGES = {"basic": "multilevel", "onelevel": "onelevel", "texts": "texts"}  # by the names of their commands


@dataclass
class Copies:
    """What `/ngram` remembers of earlier prompts."""

    storage: str = "basic"
    max_ngram_size: int = 3
    filler_top_k: int = 1

    def store(self, session: Session) -> Store:
        fingerprint = session.tokenizer.vocabulary.fingerprint
        return make_store(STORAGES[self.storage], self.max_ngram_size, fingerprint, self.filler_top_k, True)


@dataclass
class State:
    """chosen: the options as given, before anything was settled. request: those of `stream_generate`, as set by now."""

    chosen: argparse.Namespace
    request: dict[str, Any]
    traces: list[Watcher] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    show_draft: str | None = None
    prefix: str = ""
    copies: Copies = field(default_factory=Copies)
    reset_in_between: bool = True
    totals: dict[str, GenerationStats] = field(default_factory=dict)
    session: Session = field(init=False)
    description: str = field(init=False)
    _opened: ExitStack = field(init=False, default_factory=ExitStack)
    _store: Store | None = field(init=False, default=None)

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def keeps_store(self) -> bool:
        """Whether the store is a file's, and so not the console's to change."""
        return hasattr(self.chosen, "ngram_store")

    def open(self, chosen: argparse.Namespace) -> None:
        """Load the models that the options name, in the place of those that are open. If it fails those stay."""
        settled = argparse.Namespace(**vars(chosen))
        folders = common.choose(settled)
        drafting.settle(settled, folders)
        pair = common.open_pair(folders, settled, use_draft=drafting.needs_draft(settled))
        self._opened.close()  # first, so that two targets are never in memory
        is_first = not hasattr(self, "session")
        if not is_first:
            del self.session
        try:
            session = self._opened.enter_context(drafting.session(settled, pair))
        except BaseException:
            if not is_first:
                self.open(self.chosen)
            raise
        self.chosen, self.description = chosen, drafting.describe(settled, folders)
        self.session = session
        if session.ngram is None:
            self.renew_copies()
        possible = available(session)
        self.ways = [way for way in self.ways if way in possible] or [SPECULATIVE if has_drafts(session) else TARGET]

    def renew_copies(self) -> None:
        """An empty store and a drafter without experience."""
        self._store = self.copies.store(self.session)
        pieces = self.session.tokenizer.vocabulary.pieces
        ngram = NgramDrafter(pieces=pieces, store=self._store)
        self.session = replace(self.session, ngram=ngram)

    def set_copies(self, **changes: Any) -> None:
        if self.keeps_store:
            raise InputError(f"the store is that of --ngram-store {self.chosen.ngram_store}; start without it")
        self.copies = replace(self.copies, **changes)
        self.renew_copies()

    def set_num_draft(self, num_draft: int | str) -> None:
        self.session = replace(self.session, num_draft=num_draft)

    def toggle(self, way: str) -> bool:
        """Whether that way is on now. The last one cannot be turned off."""
        if way not in available(self.session):
            raise InputError(f"there is no draft for {way}; name one: /model TARGET DRAFT")
        if way in self.ways and len(self.ways) == 1:
            raise InputError(f"{way} is the only way that is on; turn another one on first")
        wanted = set(self.ways) ^ {way}
        self.ways = [each for each in WAYS if each in wanted]
        return way in wanted

    def prepare_prompt(self, text: str) -> str:
        """The prompt with what is pinned in front of it; forgets earlier ones if it is to."""
        if self.reset_in_between and self._store is not None:
            self._store.reset()
        gap = "" if not self.prefix or self.prefix[-1].isspace() else " "
        return f"{self.prefix}{gap}{text}"

    def recover(self) -> None:
        """After an interruption at any moment: what learns from request to request may be half-way through it."""
        self.set_num_draft(self.session.num_draft)  # type: ignore[arg-type]
        if self._store is not None:
            self.renew_copies()

    def spend(self, runs: Mapping[str, Run]) -> None:
        for way, run in runs.items():
            self.totals.setdefault(way, GenerationStats()).add(run.stats)

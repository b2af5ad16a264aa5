"""What a console has open and how it is set: models, options, ways of decoding, what was spent. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ..decoding.stats import GenerationStats
from ..drafters import NgramDrafter, Store
from ..drafters.ngram_store import make_store
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.options import default
from ..session import Session
from .drafting import Plan, make_plan
from .models import ModelNames
from .watching import Run, Watcher
from .ways import ORDER, available

STORAGES = {"basic": "multilevel", "onelevel": "onelevel", "texts": "texts"}  # by the names of their commands
SHAPES_DRAFTS = ("confidence_threshold", "max_ngram_size", "min_ngram_size")


@dataclass(frozen=True)
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
    """plan: of the models that are open. ways: those that are on. prefix: in front of every prompt."""

    plan: Plan
    traces: Sequence[Watcher] = ()
    ways: list[str] = field(default_factory=list)
    show_draft: str | None = None
    prefix: str = ""
    copies: Copies = Copies()
    reset_in_between: bool = True
    totals: dict[str, GenerationStats] = field(default_factory=dict)
    session: Session = field(init=False)
    _opened: ExitStack = field(init=False, default_factory=ExitStack)
    _store: Store | None = field(init=False, default=None)

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def options(self) -> GenerationOptions:
        return self.session.options

    def change(self, **changes: Any) -> None:
        """Only to what fits together."""
        self.session.options = self.session.options.changed(changes)

    def open(self, plan: Plan) -> None:
        """Load the models of the plan, in the place of those that are open. If it fails those stay."""
        pair = plan.open()
        before = replace(self.plan, options=self.options) if hasattr(self, "session") else None
        self._opened.close()  # first, so that two targets are never in memory
        if before is not None:
            del self.session
        try:
            session = self._opened.enter_context(plan.session(pair))
        except BaseException:
            if before is not None:
                self.open(before)
            raise
        self.plan, self.session = plan, session
        if session.ngram is None:
            self.renew_copies()
        possible = available(session)
        self.ways = [way for way in self.ways if way in possible] or [next(way for way in possible if way != "ngram")]

    def exchange(self, model: str, draft_model: str | None = None) -> None:
        """Open other models, with the options as they are but for the draft."""
        folders = ModelNames(model, draft_model, self.plan.folders.dtype).find()
        own = {name: getattr(self.options, name) for name in SHAPES_DRAFTS}
        made = make_plan(
            folders, {name: value for name, value in own.items() if value != default(name)}, self.plan.flags
        )
        options = replace(self.options, drafter=None, num_draft=default("num_draft"))
        self.open(replace(made, options=options))

    def renew_copies(self) -> None:
        """An empty store and a drafter without experience."""
        self._store = self.copies.store(self.session)
        pieces = self.session.tokenizer.vocabulary.pieces
        self.session = replace(self.session, ngram=NgramDrafter(pieces=pieces, store=self._store))

    def set_copies(self, storage: str, max_ngram_size: int, filler_top_k: int) -> None:
        self.require_own_store()
        self.copies = Copies(storage, max_ngram_size, filler_top_k)
        self.renew_copies()

    def require_own_store(self) -> None:
        if (path := self.plan.flags.ngram_store) is not None:
            raise InputError(f"the store is that of --ngram-store {path}; start without it")

    def toggle(self, way: str) -> bool:
        """Whether that way is on now. The last one cannot be turned off."""
        if way not in available(self.session):
            raise InputError(f"there is no draft for {way}; name one: /model TARGET DRAFT")
        if self.ways == [way]:
            raise InputError(f"{way} is the only way that is on; turn another one on first")
        wanted = set(self.ways) ^ {way}
        self.ways = [each for each in ORDER if each in wanted]
        return way in wanted

    def prepare_prompt(self, text: str) -> str:
        """The prompt with what is put in front of it; forgets earlier ones if it is to."""
        if self.reset_in_between and self._store is not None:
            self._store.reset()
        gap = "" if not self.prefix or self.prefix[-1].isspace() else " "
        return f"{self.prefix}{gap}{text}"

    def recover(self) -> None:
        """After an interruption at any moment: what learns from request to request may be half-way through it."""
        self.session = replace(self.session)
        if self._store is not None:
            self.renew_copies()

    def spend(self, runs: Mapping[str, Run]) -> None:
        for way, run in runs.items():
            self.totals.setdefault(way, GenerationStats()).add(run.stats)

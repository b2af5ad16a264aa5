"""What a console has open and how it is set: models, options, ways of decoding, what was decoded so far."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from ..drafters import NgramDrafter, TextStore
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.options import default
from ..session import Session
from .compare import Runner
from .drafting import Plan, make_plan
from .models import ModelNames, Pair
from .views import make_console
from .ways import ORDER, available, usual

SHAPES_DRAFTS = ("confidence_threshold", "max_ngram_size", "min_ngram_size")


@dataclass
class State:
    """plan: of the models that are open. ways: those that are on. prefix: in front of every prompt."""

    plan: Plan
    runner: Runner = field(default_factory=lambda: Runner(make_console()))
    ways: list[str] = field(default_factory=list)
    prefix: str = ""
    reset_in_between: bool = True
    session: Session = field(init=False)
    _opened: ExitStack = field(init=False, default_factory=ExitStack)
    _store: TextStore | None = field(init=False, default=None)

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def console(self) -> Console:
        return self.runner.console

    @property
    def options(self) -> GenerationOptions:
        return self.session.options

    def change(self, changes: Mapping[str, Any]) -> None:
        """Only to what fits together."""
        self.session.options = self.options.changed(changes)

    def open(self, plan: Plan, pair: Pair | None = None) -> None:
        """Load the models of the plan. pair: those models, where they were found already."""
        self.session = self._opened.enter_context(plan.session(pair or plan.open()))
        self.plan = plan
        if self.session.ngram is None:
            self.renew_copies()
        self.ways = [way for way in self.ways if way in available(self.session)] or usual(self.session)[:1]

    def exchange(self, model: str, draft_model: str | None = None) -> None:
        """Open other models, with the options as they are but for the draft. If that fails the old ones come back."""
        folders = ModelNames(model, draft_model, self.plan.folders.dtype).find()
        own = {name: value for name in SHAPES_DRAFTS if (value := getattr(self.options, name)) != default(name)}
        options = replace(self.options, drafter=None, num_draft=default("num_draft"))
        plan = replace(make_plan(folders, own, self.plan.flags), options=options)
        pair, before = plan.open(), replace(self.plan, options=self.options)
        self._opened.close()
        del self.session  # so that two targets are never in memory
        try:
            self.open(plan, pair)
        except BaseException:
            self.open(before)
            raise

    def renew_copies(self) -> None:
        """An empty store and a drafter without experience."""
        vocabulary = self.session.tokenizer.vocabulary
        self._store = TextStore(vocabulary=vocabulary.fingerprint)
        self.session = replace(self.session, ngram=NgramDrafter(pieces=vocabulary.pieces, store=self._store))

    def require_own_store(self) -> None:
        if (path := self.plan.flags.ngram_store) is not None:
            raise InputError(f"the store is that of --ngram-store {path}; start without it")

    def toggle(self, way: str) -> None:
        """Turn that way on or off. The last one cannot be turned off."""
        if way not in available(self.session):
            raise InputError(f"there is no draft for {way}; name one: /model TARGET DRAFT")
        if self.ways == [way]:
            raise InputError(f"{way} is the only way that is on; turn another one on first")
        wanted = set(self.ways) ^ {way}
        self.ways = [each for each in ORDER if each in wanted]

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

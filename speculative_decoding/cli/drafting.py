"""Models, options and drafts of a run, refused where they do not fit, before anything is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..decoding.prompt import check_token_ids
from ..drafters import DraftHead, DraftModel, NgramDrafter, TextStore, usual_drafter
from ..drafters.draft_model import DraftVocabulary
from ..errors import InputError
from ..loading.hub import suggested_draft
from ..loading.pair import Pair
from ..sampling import GenerationOptions
from ..sampling.options import default
from ..session import Session
from .common import read_text
from .flags import DraftFlags
from .models import Folders, ModelNames
from .parser import flag, flags_from, given_options, naming_flags, require_writable

USES_MODEL, COPIES = ("model", "auto"), ("ngram", "auto")  # drafters that ask a draft model, or look things up
NEEDS = {"draft_vocab": USES_MODEL, "draft_vocab_text": USES_MODEL, "ngram_store": COPIES}


@dataclass(frozen=True)
class Plan:
    """What is decoded with. options.drafter is None where nobody chose one."""

    folders: Folders
    options: GenerationOptions
    flags: DraftFlags

    @property
    def drafter(self) -> str:
        """By its name."""
        return drafter_of(self.folders, vars(self.options))

    @property
    def is_plain(self) -> bool:
        return self.drafter == "none"

    def describe(self) -> str:
        """Which models are used, and where drafts come from."""
        folders = self.folders
        draft = f"draft {folders.draft}" + ("" if folders.bits is None else f" in {folders.bits} bits")
        if self.drafter == "ngram" or folders.draft is None:
            draft = "copies of the text as a draft"
        elif self.drafter == "auto":
            draft += " and copies of the text"
        if (beams := self.options.num_beams) > 1:
            return f"target {folders.target}, {beams} beams, for which nothing is drafted"
        better = suggested_draft(folders.target) if folders.draft is None and self.options.drafter is None else None
        hint = "" if better is None else f"; a draft model for it: --draft-model {better}"
        return f"target {folders.target}, {'no draft: regular decoding' if self.is_plain else draft}{hint}"

    def open(self, *, use_draft: bool | None = None) -> Pair:
        """The models without their weights. use_draft: by default where the drafter does."""
        pair = self.folders.open(use_draft=self.drafter in USES_MODEL if use_draft is None else use_draft)
        check_token_ids(self.options.eos_token_ids, pair.target.config.vocab_size)
        return pair

    @contextmanager
    def session(self, pair: Pair, *, copies: bool | None = None) -> Iterator[Session]:
        """Loads the weights. A store is read before and written behind, also when the run is interrupted.

        copies: whether anything is to be looked up; by default where the drafter does.
        """
        ngram = store = None
        if self.drafter in COPIES if copies is None else copies:
            store = self._open_store(pair)
            pieces = pair.tokenizer.vocabulary.pieces
            ngram = NgramDrafter(pieces=pieces, store=store, max_ngram_size=self.options.max_ngram_size)
        vocabulary = self._draft_vocabulary(pair)
        pair.load_weights()
        draft: DraftModel | DraftHead | None = None
        if isinstance(pair.draft, DraftHead):
            draft = pair.draft if vocabulary is None else pair.draft.with_frequent(vocabulary.ids)
        elif pair.draft is not None:
            draft = DraftModel(pair.draft, vocabulary)
        session = Session(pair.target, pair.tokenizer, draft, options=self.options, ngram=ngram)
        if self.flags.recalibrate:
            session.calibrate(again=True)
        try:
            yield session
        finally:
            if self.flags.ngram_store is not None and store is not None:
                store.save(self.flags.ngram_store)

    def _open_store(self, pair: Pair) -> TextStore | None:
        """The store in the file, or an empty one for it."""
        path, fingerprint = self.flags.ngram_store, pair.tokenizer.vocabulary.fingerprint
        if path is None:
            return None
        if path.exists():
            return TextStore.load(path, fingerprint)
        require_writable("ngram_store", path)
        return TextStore(self.options.max_ngram_size, vocabulary=fingerprint)

    def _draft_vocabulary(self, pair: Pair) -> DraftVocabulary | None:
        """Of the tokens that the draft model may propose; None: all."""
        path, size = self.flags.draft_vocab_text, self.flags.draft_vocab
        if path is None or size is None:
            return None
        lines = read_text(path, "--draft-vocab-text").split("\n")
        return DraftVocabulary.from_lines(size, lines, pair.tokenizer, pair.target.config.eos_token_ids)


def drafter_of(folders: Folders, given: Mapping[str, Any]) -> str:
    """By its name, also where nobody chose one. given: options."""
    is_plain = given.get("num_draft_tokens") == 0 or given.get("num_beams", 1) > 1
    return given.get("drafter") or ("none" if is_plain else usual_drafter(folders.draft))


def plan_of(chosen: argparse.Namespace) -> Plan:
    """From the flags of any command. Raises `InputError` for what is missing or would have no effect."""
    folders, flags, given = flags_from(ModelNames, chosen).find(), flags_from(DraftFlags, chosen), given_options(chosen)
    if "draft_model" in chosen and (beams := given.get("num_beams", 1)) > 1:
        raise InputError(
            f"--draft-model {chosen.draft_model}: nothing is drafted for --num-beams {beams}; leave one out"
        )
    return make_plan(folders, given, flags)


def make_plan(folders: Folders, given: Mapping[str, Any], flags: DraftFlags) -> Plan:
    """given: options by their names. What options say of one another they check themselves; here, what only the
    models and the flags know.
    """
    name = drafter_of(folders, given)
    named = {each for each, value in given.items() if value not in (default(each), 0)}  # 0 drafts nothing anyway
    named |= {each for each in NEEDS if getattr(flags, each) is not None}
    if folders.draft is None:
        for each in ("drafter",) if name == "model" else ("draft_vocab",) if name != "none" else ():
            if each in named:
                raise InputError(
                    f"{flag(each)} {given.get(each, '')}".rstrip() + " has no effect without a draft model; "
                    "name one with --draft-model, choose another --drafter, or leave it out"
                )
    for each, drafters in NEEDS.items():
        if each in named and name not in drafters:
            raise InputError(f"{flag(each)} belongs to --drafter {' or '.join(drafters)}, not {name}; leave it out")
    with naming_flags():
        options = GenerationOptions().override({**given, "drafter": name})
        options.require_effect([*given, "drafter"])
    return Plan(folders, replace(options, drafter=given.get("drafter")), flags)

"""Models, options and drafts of a run, refused where they do not fit, before anything is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..decoding.request import check_token_ids
from ..drafters import DraftHead, DraftModel, NgramDrafter
from ..drafters import usual_drafter as usual
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.options import default
from ..session import Session
from .draft_flags import DraftFlags
from .models import Folders, ModelNames, Pair
from .parser import chosen_as, flag, given_options, in_words_of_flags

USES_MODEL, COPIES = ("model", "auto"), ("ngram", "auto")  # drafters that ask a draft model, or look things up
NEEDS = {"draft_vocab": USES_MODEL, "draft_vocab_text": USES_MODEL, "ngram_store": COPIES}
OF_A_DRAFT_MODEL = ("draft_vocab", "confidence_threshold")
OF_A_DRAFT = ("num_draft", "delta", *OF_A_DRAFT_MODEL)


@dataclass(frozen=True)
class Plan:
    """What is decoded with. options.drafter is None where nobody chose one."""

    folders: Folders
    options: GenerationOptions
    flags: DraftFlags

    @property
    def drafter(self) -> str:
        """By its name."""
        return self.options.drafter or usual_drafter(self.folders, self.options.num_draft)

    @property
    def is_plain(self) -> bool:
        return self.drafter == "none"

    def describe(self) -> str:
        """Which models are used, and where drafts come from."""
        folders, copies = self.folders, "n-grams as a draft"
        draft = f"draft {folders.draft}" + ("" if folders.bits is None else f" in {folders.bits} bits")
        sources = {"model": draft, "auto": copies if folders.draft is None else f"{draft} and n-grams", "ngram": copies}
        return f"target {folders.target}, " + sources.get(self.drafter, "no draft: regular decoding")

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
            most, least = self.options.max_ngram_size, self.options.min_ngram_size
            store = self.flags.open_store(pair, most)
            pieces = pair.tokenizer.vocabulary.pieces
            ngram = NgramDrafter(pieces=pieces, store=store, max_ngram_size=most, min_ngram_size=least)
        vocabulary = self.flags.vocabulary(pair)
        pair.load_weights()
        draft: DraftModel | DraftHead | None = None
        if isinstance(pair.draft, DraftHead):
            draft = pair.draft if vocabulary is None else pair.draft.with_frequent(vocabulary.ids)
        elif pair.draft is not None:
            draft = DraftModel(pair.draft, vocabulary)
        try:
            yield Session(pair.target, pair.tokenizer, draft, options=self.options, ngram=ngram)
        finally:
            if self.flags.ngram_store is not None and store is not None:
                store.save(self.flags.ngram_store)


def usual_drafter(folders: Folders, num_draft: int | str | None = None) -> str:
    """Where nobody chose one."""
    return "none" if num_draft == 0 else usual(folders.draft)


def plan_of(chosen: argparse.Namespace) -> Plan:
    """From the flags of any command. Raises `InputError` for what is missing or would have no effect."""
    folders, flags = chosen_as(ModelNames, chosen).find(), chosen_as(DraftFlags, chosen)
    return make_plan(folders, given_options(chosen), flags)


def make_plan(folders: Folders, given: Mapping[str, Any], flags: DraftFlags) -> Plan:
    """given: options by their names. What options say of one another they check themselves; here, what only the
    models and the flags know.
    """
    name = given.get("drafter") or usual_drafter(folders, given.get("num_draft"))
    named = {each for each, value in given.items() if value not in (default(each), 0)}  # 0 drafts nothing anyway
    named |= {each for each in NEEDS if getattr(flags, each) is not None}
    if folders.draft is None:
        of_none = () if "drafter" in given else OF_A_DRAFT
        for each in {"model": ("drafter",), "auto": OF_A_DRAFT_MODEL, "none": of_none}.get(name, ()):
            if each in named:
                raise InputError(
                    f"{flag(each)} {given.get(each, '')}".rstrip() + " has no effect without a draft model; "
                    "name one with --draft-model, choose another --drafter, or leave it out"
                )
    for each, drafters in NEEDS.items():
        if each in named and name not in drafters:
            raise InputError(f"{flag(each)} belongs to --drafter {' or '.join(drafters)}, not {name}; leave it out")
    with in_words_of_flags():
        options = GenerationOptions().changed({**given, "drafter": name})
    return Plan(folders, replace(options, drafter=given.get("drafter")), flags)

"""What the options say about drafts, and the models -> a session for the whole run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..drafters import DraftModel, NgramDrafter, Store
from ..drafters.ngram_store import make_store
from ..drafters.vocabulary import DraftVocabulary
from ..errors import InputError
from ..session import Session
from .common import Folders, Pair, say
from .tuned import key, read_tuned

SPEAKS, COPIES = ("model", "auto"), ("ngram", "auto")  # drafters that ask a draft model, or look things up
NEEDS = {  # options that would be ignored with other drafters
    "draft_vocab": SPEAKS,
    "draft_vocab_text": SPEAKS,
    "confidence_threshold": SPEAKS,
    "max_ngram_size": COPIES,
    "min_ngram_size": COPIES,
    "ngram_store": COPIES,
}
MAX_NGRAM_SIZE, MIN_NGRAM_SIZE, NUM_DRAFT = 16, 1, 5  # where nothing is given


def settle(chosen: argparse.Namespace, folders: Folders) -> None:
    """Put the drafter and the length where nothing is given; refuse what does not fit, before anything is loaded."""
    has_draft = folders.draft is not None
    drafter, num_draft = getattr(chosen, "drafter", None), getattr(chosen, "num_draft", None)
    if getattr(chosen, "regular_decode", False) or num_draft == 0:
        if drafter not in (None, "none"):
            raise InputError(f"--drafter {drafter}: --regular-decode and --num-draft 0 use none; leave one of them out")
        drafter = "none"
    if drafter is None and num_draft is None:
        tuned = read_tuned(folders.target, tuned_key(chosen, folders))
        if tuned is not None and not misfits(chosen, tuned.drafter):
            drafter, num_draft = tuned.drafter, tuned.num_draft
            say(f"as tuned for this machine: --drafter {drafter} --num-draft {num_draft}")
    chosen.drafter = drafter or ("model" if has_draft else "none")
    chosen.num_draft = NUM_DRAFT if num_draft is None else num_draft
    if chosen.drafter == "model" and not has_draft:
        raise InputError(
            "--drafter model: there is no draft model; name one with --draft-model, or take --drafter ngram"
        )
    for option in misfits(chosen, chosen.drafter):
        drafters = " or ".join(NEEDS[option])
        raise InputError(f"{flag(option)} belongs to --drafter {drafters}, not {chosen.drafter}; leave it out")
    for option in NEEDS:
        if NEEDS[option] == SPEAKS and hasattr(chosen, option) and not has_draft:
            raise InputError(
                f"{flag(option)} shapes a draft model's drafts; name one with --draft-model, or leave it out"
            )
    if hasattr(chosen, "draft_vocab") != hasattr(chosen, "draft_vocab_text"):
        raise InputError("--draft-vocab N and --draft-vocab-text FILE belong together: give both, or neither")
    if not hasattr(chosen, "ngram_store"):
        for option in ("ngram_storage", "filler_top_k", "guess_unknown"):
            if hasattr(chosen, option):
                raise InputError(f"{flag(option)} describes a store; name one with --ngram-store FILE")
    if getattr(chosen, "ngram_storage", "texts") == "texts" and (
        hasattr(chosen, "filler_top_k") or hasattr(chosen, "guess_unknown")
    ):
        raise InputError("--filler-top-k and --guess-unknown need --ngram-storage multilevel or onelevel")


def each_drafter(chosen: argparse.Namespace, drafters: Sequence[str], folders: Folders) -> list[argparse.Namespace]:
    """The options once for each drafter, settled: with those that it can use. Each must be of use to one of them."""
    settled = []
    for drafter in drafters:
        one = argparse.Namespace(**vars(chosen) | {"drafter": drafter, "num_draft": 1})
        for option in misfits(one, drafter):
            if set(NEEDS[option]) & set(drafters):
                delattr(one, option)
        settle(one, folders)
        settled.append(one)
    return settled


def flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def misfits(chosen: argparse.Namespace, drafter: str) -> list[str]:
    """The options that were given and say nothing to this drafter."""
    return [option for option, drafters in NEEDS.items() if hasattr(chosen, option) and drafter not in drafters]


def tuned_key(chosen: argparse.Namespace, folders: Folders) -> dict[str, Any]:
    """What a best setting belongs to. What a store knows is another matter."""
    options = {name: getattr(chosen, name) for name in NEEDS if name != "ngram_store" and hasattr(chosen, name)}
    return key(folders.draft, getattr(chosen, "dtype", None), bits=folders.bits, options=options)


def describe(chosen: argparse.Namespace, folders: Folders) -> str:
    """Which models are used, and where drafts come from."""
    draft = f"draft {folders.draft}" + ("" if folders.bits is None else f" in {folders.bits} bits")
    copies = "n-grams as a draft"
    sources = {"model": draft, "auto": copies if folders.draft is None else f"{draft} and n-grams", "ngram": copies}
    return f"target {folders.target}, " + sources.get(chosen.drafter, "no draft: regular decoding")


def needs_draft(chosen: argparse.Namespace) -> bool:
    return chosen.drafter in SPEAKS


@contextmanager
def session(chosen: argparse.Namespace, pair: Pair) -> Iterator[Session]:
    """Loads the weights. A store is read before and written behind, also when the run is interrupted."""
    path: Path | None = getattr(chosen, "ngram_store", None)
    store = None if path is None else open_store(path, chosen, pair)
    ngram = ngram_drafter(chosen, pair, store)
    vocabulary = draft_vocabulary(chosen, pair)
    pair.load_weights()
    draft_model = None
    if pair.draft is not None:
        draft_model = DraftModel(pair.draft, vocabulary, getattr(chosen, "confidence_threshold", 0.0))
    try:
        yield Session(pair.target, pair.tokenizer, draft_model, chosen.drafter, ngram, chosen.num_draft)
    finally:
        if path is not None and store is not None:
            store.save(path)


def ngram_drafter(chosen: argparse.Namespace, pair: Pair, store: Store | None = None) -> NgramDrafter | None:
    """A new one, that has no experience yet; None where nothing is to be looked up."""
    if chosen.drafter not in COPIES:
        return None
    return NgramDrafter(
        pieces=pair.tokenizer.vocabulary.pieces,
        store=store,
        max_ngram_size=getattr(chosen, "max_ngram_size", MAX_NGRAM_SIZE),
        min_ngram_size=getattr(chosen, "min_ngram_size", MIN_NGRAM_SIZE),
    )


def open_store(path: Path, chosen: argparse.Namespace, pair: Pair) -> Store:
    """The store in that file, or an empty one for it."""
    fingerprint = pair.tokenizer.vocabulary.fingerprint
    if path.exists():
        for option in ("ngram_storage", "filler_top_k", "guess_unknown"):
            if hasattr(chosen, option):
                raise InputError(f"{flag(option)}: {path} exists and was made with its own; leave it out or delete it")
        return Store.load(path, fingerprint)
    if not path.resolve().parent.is_dir():
        raise InputError(f"--ngram-store {path}: cannot be written; name a file in a folder that exists")
    return make_store(
        getattr(chosen, "ngram_storage", "texts"),
        getattr(chosen, "max_ngram_size", MAX_NGRAM_SIZE),
        fingerprint,
        getattr(chosen, "filler_top_k", 1),
        not getattr(chosen, "guess_unknown", False),
    )


def draft_vocabulary(chosen: argparse.Namespace, pair: Pair) -> DraftVocabulary | None:
    path: Path | None = getattr(chosen, "draft_vocab_text", None)
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--draft-vocab-text {path}: not readable as UTF-8 text ({error})") from error
    eos = pair.target.config.eos_token_ids
    return DraftVocabulary.from_lines(chosen.draft_vocab, lines, pair.tokenizer, eos)

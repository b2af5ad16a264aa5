"""Flags that shape drafts and are no options of decoding: a smaller vocabulary, and a store of n-grams."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

from ..drafters.draft_model import DraftVocabulary
from ..drafters.ngram_store import STORAGES, Store, make_store
from ..errors import InputError
from ..sampling.values import Switch, Text, Whole
from .common import read_text
from .models import Pair
from .parser import File, flag, require_writable

VOCABULARY = "the draft model proposes only the N most frequent tokens of --draft-vocab-text and those of the prompt"
STORE = "what was read and written before is searched too, and kept there for the next time"
STORAGE = (
    "what such a store keeps: whole texts, counts of all n-grams from --min- to --max-ngram-size, or of the longest "
    "alone (default: texts)"
)
FILLER = "a store of n-grams also counts the target's K likeliest tokens at each place"
GUESS = "a store of n-grams goes on behind an unknown one with its most frequent token"


@dataclass(frozen=True)
class DraftFlags:
    """Raises `InputError` for what does not go together."""

    draft_vocab: A[int | None, Whole(1), VOCABULARY] = None
    draft_vocab_text: A[Path | None, File(), "text like the outputs to come"] = None
    ngram_store: A[Path | None, File(), STORE] = None
    ngram_storage: A[str | None, Text(STORAGES), STORAGE] = None
    filler_top_k: A[int | None, Whole(2, 64), FILLER] = None
    guess_unknown: A[bool, Switch(), GUESS] = False

    def __post_init__(self) -> None:
        if (self.draft_vocab is None) != (self.draft_vocab_text is None):
            raise InputError("--draft-vocab N and --draft-vocab-text FILE belong together: give both, or neither")
        if self.ngram_store is None and self._of_the_store:
            raise InputError(f"{self._of_the_store[0]} describes a store; name one with --ngram-store FILE")
        if self.ngram_storage in (None, "texts") and (self.filler_top_k or self.guess_unknown):
            raise InputError("--filler-top-k and --guess-unknown need --ngram-storage multilevel or onelevel")

    @property
    def _of_the_store(self) -> list[str]:
        return [flag(name) for name in ("ngram_storage", "filler_top_k", "guess_unknown") if getattr(self, name)]

    def open_store(self, pair: Pair, max_ngram_size: int) -> Store | None:
        """The store in the file, or an empty one for it."""
        path, fingerprint = self.ngram_store, pair.tokenizer.vocabulary.fingerprint
        if path is None:
            return None
        if path.exists():
            if given := self._of_the_store:
                raise InputError(f"{given[0]}: {path} exists and was made with its own; leave it out or delete it")
            return Store.load(path, fingerprint)
        require_writable("ngram_store", path)
        storage = self.ngram_storage or "texts"
        return make_store(storage, max_ngram_size, fingerprint, self.filler_top_k or 1, not self.guess_unknown)

    def vocabulary(self, pair: Pair) -> DraftVocabulary | None:
        """Of the tokens that the draft model may propose; None: all."""
        path, size = self.draft_vocab_text, self.draft_vocab
        if path is None or size is None:
            return None
        lines = read_text(path, "--draft-vocab-text").split("\n")
        return DraftVocabulary.from_lines(size, lines, pair.tokenizer, pair.target.config.eos_token_ids)

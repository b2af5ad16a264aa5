"""Flags that shape drafts and are no options of decoding: a smaller vocabulary, and a store of texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

from ..drafters.draft_model import DraftVocabulary
from ..drafters.text_store import TextStore
from ..errors import InputError
from ..sampling.values import Whole
from .common import read_text
from .models import Pair
from .parser import File, require_writable

VOCABULARY = "the draft model proposes only the N most frequent tokens of --draft-vocab-text and those of the prompt"
STORE = "what was read and written before is searched too, and kept there for the next time"


@dataclass(frozen=True)
class DraftFlags:
    """Raises `InputError` for what does not go together."""

    draft_vocab: A[int | None, Whole(1), VOCABULARY] = None
    draft_vocab_text: A[Path | None, File(), "text like the outputs to come"] = None
    ngram_store: A[Path | None, File(), STORE] = None

    def __post_init__(self) -> None:
        if (self.draft_vocab is None) != (self.draft_vocab_text is None):
            raise InputError("--draft-vocab N and --draft-vocab-text FILE belong together: give both, or neither")

    def open_store(self, pair: Pair, max_ngram_size: int) -> TextStore | None:
        """The store in the file, or an empty one for it."""
        path, fingerprint = self.ngram_store, pair.tokenizer.vocabulary.fingerprint
        if path is None:
            return None
        if path.exists():
            return TextStore.load(path, fingerprint)
        require_writable("ngram_store", path)
        return TextStore(max_ngram_size, vocabulary=fingerprint)

    def vocabulary(self, pair: Pair) -> DraftVocabulary | None:
        """Of the tokens that the draft model may propose; None: all."""
        path, size = self.draft_vocab_text, self.draft_vocab
        if path is None or size is None:
            return None
        lines = read_text(path, "--draft-vocab-text").split("\n")
        return DraftVocabulary.from_lines(size, lines, pair.tokenizer, pair.target.config.eos_token_ids)

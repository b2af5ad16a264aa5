"""The tokens a draft model may propose: the frequent ones, for a head over all of them is most of a small draft.

Zhao et al. 2025, "FR-Spec" (2502.14856), section 3.2: the draft's logits over a frequency-ranked part of the
vocabulary, q = 0 elsewhere. Which tokens these are changes how often a draft is right, never what is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..loading.tokenizer import Tokenizer


@dataclass(frozen=True)
class DraftVocabulary:
    """`ids`, the most frequent first, always with the end-of-sequence ids; those of a request's source join them."""

    ids: tuple[int, ...]

    @classmethod
    def most_frequent(
        cls, size: int, outputs: Iterable[Sequence[int]], eos_token_ids: Sequence[int]
    ) -> DraftVocabulary:
        """The `size` ids that occur most often in `outputs`, token ids of a target or of a text like them."""
        if size < 1:
            raise InputError(f"draft_vocab must be >= 1, not {size}")
        counts = Counter(token for tokens in outputs for token in tokens)
        ranked = [token for token, _ in counts.most_common() if token not in eos_token_ids]
        if not ranked:
            raise InputError("draft_vocab: there is no text to count tokens in; give it some")
        return cls((*eos_token_ids, *ranked)[: max(size, len(eos_token_ids))])

    @classmethod
    def from_lines(
        cls, size: int, lines: Iterable[str], tokenizer: Tokenizer, eos_token_ids: Sequence[int]
    ) -> DraftVocabulary:
        return cls.most_frequent(size, (tokenizer.encode(line) for line in lines if line.strip()), eos_token_ids)

"""A draft model, and the part of the vocabulary that it may propose."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens that a draft may propose. Logits for all tokens would take most of a small draft model's time.

    Zhao et al. 2025, "FR-Spec" (2502.14856), section 3.2, compute the draft's logits only for the most frequent part of
    the vocabulary, with q = 0 elsewhere. Jean et al. 2015 (1412.2007), section 3.3, add likely ids for each word of a
    source. The choice of tokens affects the acceptance rate, but not the output.

    Args:
        ids: The end-of-sequence ids, then the most frequent ids. The ids of a request's source are added to them.
        by_source: Source id -> additional ids for requests whose source contains it.
    """

    ids: tuple[int, ...]
    by_source: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def most_frequent(
        cls, size: int, outputs: Iterable[Sequence[int]], eos_token_ids: Sequence[int]
    ) -> DraftVocabulary:
        """Take the `size` most frequent ids in `outputs`: token ids of the target's outputs or of similar text."""
        if size < 1:
            raise InputError(f"must be >= 1, not {size}", "draft_vocab")
        counts = Counter(token for tokens in outputs for token in tokens)
        ranked = [token for token, _ in counts.most_common() if token not in eos_token_ids]
        if not ranked:
            raise InputError("contains no tokens", "draft_vocab_text", "give it some text")
        return cls((*eos_token_ids, *ranked)[: max(size, len(eos_token_ids))])

    @classmethod
    def learned(
        cls, size: int, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], eos_token_ids: Sequence[int]
    ) -> DraftVocabulary:
        """Learn a vocabulary from pairs of source and output ids.

        For each output id that is neither frequent nor in its pair's source, the source id with the strongest
        co-occurrence is determined in each pair. The output id is assigned to a source id that is the strongest in at
        least two pairs.
        """
        least_pairs = 2
        frequent = cls.most_frequent(size, (output for _, output in pairs), eos_token_ids).ids
        sources_of = defaultdict[int, list[list[int]]](list)  # output id -> one list of source ids per pair
        source_counts = Counter[int]()
        for source, output in pairs:
            distinct = sorted(set(source))
            source_counts.update(distinct)
            for token in {*output}.difference(source, frequent):
                sources_of[token].append(distinct)

        by_source = defaultdict[int, list[int]](list)
        for token, sources in sorted(sources_of.items()):
            pair_counts = Counter(each for source in sources for each in source)
            strength = {each: count**2 / source_counts[each] for each, count in pair_counts.items()}
            for each, count in Counter(max(source, key=strength.__getitem__) for source in sources).items():
                if count >= least_pairs:
                    by_source[each].append(token)
        return cls(frequent, dict(by_source))

    @classmethod
    def from_lines(
        cls, size: int, lines: Iterable[str], tokenizer: Tokenizer, eos_token_ids: Sequence[int]
    ) -> DraftVocabulary:
        return cls.most_frequent(size, (tokenizer.encode_output(line) for line in lines if line.strip()), eos_token_ids)


@dataclass(frozen=True)
class DraftModel:
    """A draft model and how it is used.

    Args:
        model: The model.
        vocabulary: The tokens that it may propose; None means all tokens.
        shares: What it reads from the target; see `models.shared_encoder.shared_part`.
    """

    model: EncoderDecoder
    vocabulary: DraftVocabulary | None = None
    shares: str = ""

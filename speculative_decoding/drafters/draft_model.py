"""A draft model with the tokens that it may propose, and the check that they are the target's tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import mlx.core as mx

from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..models.linear import Head


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens that a draft may propose. A head over the whole vocabulary takes most of a small draft's time.

    Zhao et al. 2025, "FR-Spec" (2502.14856), section 3.2: the draft's logits over a frequency-ranked part of the
    vocabulary, q = 0 elsewhere. Jean et al. 2015 (1412.2007), section 3.3: likely ids for each word of a source. The
    choice of tokens changes the acceptance rate, not the output.

    Args:
        ids: The most frequent first, with the end-of-sequence ids. The ids of a request's source are added to them.
        by_source: Additional ids for requests whose source contains an id.
    """

    ids: tuple[int, ...]
    by_source: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def most_frequent(
        cls, size: int, outputs: Iterable[Sequence[int]], eos_token_ids: Sequence[int]
    ) -> DraftVocabulary:
        """The `size` most frequent ids of `outputs`, which are token ids of a target's outputs or of similar text."""
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

        An output id that is neither frequent nor in its source is assigned to the source id with the strongest
        co-occurrence, if that happens in at least two pairs.
        """
        least_pairs = 2
        frequent = cls.most_frequent(size, (output for _, output in pairs), eos_token_ids).ids
        sources_of = defaultdict[int, list[list[int]]](list)  # by output id: the ids of its sources
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

    def ids_for(self, source: Sequence[int]) -> set[int]:
        """The ids that a source adds: its ids and the ids assigned to them."""
        return {*source}.union(*(self.by_source.get(token, ()) for token in source))

    @classmethod
    def from_lines(
        cls, size: int, lines: Iterable[str], tokenizer: Tokenizer, eos_token_ids: Sequence[int]
    ) -> DraftVocabulary:
        return cls.most_frequent(size, (tokenizer.encode_output(line) for line in lines if line.strip()), eos_token_ids)


@dataclass(frozen=True)
class DraftModel:
    """A model, and the tokens that it may propose; None means all."""

    model: EncoderDecoder
    vocabulary: DraftVocabulary | None = None

    def head(self, sources: Sequence[Sequence[int]], vocab_size: int) -> OutputHead:
        """The output head over `vocabulary` and the ids that the sources add, or over all ids.

        Frequent and added ids share one matrix: copying the frequent rows once costs less than a second matmul for
        each token.

        Args:
            sources: Of all rows.
            vocab_size: The target's.
        """
        if self.vocabulary is None:
            return OutputHead(self.model.logits, None, vocab_size)
        frequent = self._frequent
        own = [set(self._known(self.vocabulary.ids_for(source))).difference(frequent) for source in sources]
        others = sorted(set().union(*own))
        ids = mx.array(frequent + others, mx.uint32)
        mask = None
        if any(each != own[0] for each in own):
            mask = mx.array([[True] * len(frequent) + [token in each for token in others] for each in own])
        return OutputHead(self.model.head_of(ids), ids, vocab_size, mask)

    @cached_property
    def _frequent(self) -> list[int]:
        """The ids of `vocabulary` that the model knows, ascending."""
        assert self.vocabulary is not None
        return sorted(self._known(self.vocabulary.ids))

    def _known(self, ids: Iterable[int]) -> list[int]:
        size = self.model.config.vocab_size
        return [token for token in ids if 0 <= token < size]


@dataclass(frozen=True)
class OutputHead:
    """(B, d) -> logits (B, N) of some ids, or of the draft's whole vocabulary.

    Args:
        head: The matmul.
        ids: (N,), or None for all ids. Ascending; the ids added by text sources follow.
        vocab_size: V of the target; padding may make it larger or smaller than the draft's.
        allowed: (B, N), if the rows have different ids; the others get -inf, so that rows do not depend on each other.
    """

    head: Head
    ids: mx.array | None
    vocab_size: int
    allowed: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        logits = self.head(x)
        return logits if self.allowed is None else mx.where(self.allowed, logits, -mx.inf)

    def spread(self, logits: mx.array) -> mx.array:
        """(B, N) -> (B, V), with -inf for all other ids."""
        if self.ids is None:
            missing = self.vocab_size - logits.shape[-1]
            known = logits[:, : self.vocab_size]
            return mx.pad(known, [(0, 0), (0, missing)], constant_values=-mx.inf) if missing > 0 else known
        whole = mx.full((len(logits), self.vocab_size), -mx.inf, logits.dtype)
        whole[:, self.ids] = logits
        return whole

    def likeliest(self, logits: mx.array) -> mx.array:
        """(B, N) -> the most likely id, (B, 1)."""
        if self.ids is None:
            return mx.argmax(logits[:, : self.vocab_size], axis=-1, keepdims=True)
        return self.ids[mx.argmax(logits, axis=-1, keepdims=True)]


class OutputHeads:
    """Keeps the output head of a batch until the sources change. Windows of audio share one head."""

    def __init__(self, draft_model: DraftModel, vocab_size: int) -> None:
        self._draft_model = draft_model
        self._vocab_size = vocab_size
        self._sources: Sequence[Sequence[int]] = ()
        self._head: OutputHead | None = None

    def head(self, sources: Sequence[Sequence[int]]) -> OutputHead:
        """Return the head for these sources, one for each row."""
        if self._head is None or sources != self._sources:
            self._head = self._draft_model.head(sources, self._vocab_size)
            self._sources = sources
        return self._head

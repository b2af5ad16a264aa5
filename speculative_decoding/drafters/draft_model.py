"""A draft model with the tokens that it may propose, and the check that they are the target's tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

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
    """Makes the output head of a batch, and keeps it until the sources change. Windows of audio share one head.

    Frequent and added ids share one matrix: copying the frequent rows once costs less than a second matmul for each
    token.

    Args:
        model: The model whose output matrix is used.
        vocab_size: V of the target.
        ids: As in `DraftVocabulary`; none: all ids may be proposed.
        by_source: As in `DraftVocabulary`.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        vocab_size: int,
        ids: Iterable[int] = (),
        by_source: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._by_source = by_source
        self._known = range(model.config.vocab_size)  # the target's vocabulary may be padded further
        self._frequent = sorted(token for token in ids if token in self._known)
        self._sources: Sequence[Sequence[int]] = ()
        self._head = None if self._frequent else OutputHead(model.logits, None, vocab_size)

    def head(self, sources: Sequence[Sequence[int]]) -> OutputHead:
        """Return the head for these sources, one for each row."""
        frequent = self._frequent
        if self._head is not None and (not frequent or sources == self._sources):
            return self._head
        own = []
        for source in sources:
            ids = {*source}.union(*(self._by_source.get(token, ()) for token in source))
            own.append({token for token in ids.difference(frequent) if token in self._known})
        others = sorted(set().union(*own))
        ids_array = mx.array(frequent + others, mx.uint32)
        allowed = None
        if any(each != own[0] for each in own):
            allowed = mx.array([[True] * len(frequent) + [token in each for token in others] for each in own])
        self._head = OutputHead(self._model.head_of(ids_array), ids_array, self._vocab_size, allowed)
        self._sources = sources
        return self._head

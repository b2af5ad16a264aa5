"""A draft model as it is given: which tokens it may propose, and whether they are the target's tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..models.linear import Head

LEAST_PAIRS = 2  # times that an id of an output must have gone with one of a source


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens a draft may propose: the frequent ones, for a head over all of them is most of a small draft.

    ids: the most frequent first, always with the end-of-sequence ids; those of a request's source join them.
    by_source: and those that outputs have where their source has this id.

    Zhao et al. 2025, "FR-Spec" (2502.14856), section 3.2: the draft's logits over a frequency-ranked part of the
    vocabulary, q = 0 elsewhere. Jean et al. 2015 (1412.2007), section 3.3: likely ids for each word of a source. Which
    tokens these are changes how often a draft is right, never what is written.
    """

    ids: tuple[int, ...]
    by_source: Mapping[int, Sequence[int]] = field(default_factory=dict)

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
    def learned(
        cls, size: int, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], eos_token_ids: Sequence[int]
    ) -> DraftVocabulary:
        """From pairs of a source and an output, token ids: the frequent ids; any other that an output has and its
        source has not goes with that id of the source with which it occurs most distinctly, if it does so twice.
        """
        frequent = cls.most_frequent(size, (output for _, output in pairs), eos_token_ids).ids
        having = defaultdict[int, list[list[int]]](list)  # the sources of the outputs that have an id
        alone = Counter[int]()
        for source, output in pairs:
            alone.update(own := sorted(set(source)))
            for token in {*output}.difference(source, frequent):
                having[token].append(own)
        by_source = defaultdict[int, list[int]](list)
        for token, sources in sorted(having.items()):
            together = Counter(each for source in sources for each in source)
            strength = {each: count**2 / alone[each] for each, count in together.items()}
            for each, count in Counter(max(source, key=strength.__getitem__) for source in sources).items():
                if count >= LEAST_PAIRS:
                    by_source[each].append(token)
        return cls(frequent, dict(by_source))

    def ids_for(self, source: Sequence[int]) -> set[int]:
        """Those that a source adds: its own, and what goes with them."""
        return {*source}.union(*(self.by_source.get(token, ()) for token in source))

    @classmethod
    def from_lines(
        cls, size: int, lines: Iterable[str], tokenizer: Tokenizer, eos_token_ids: Sequence[int]
    ) -> DraftVocabulary:
        return cls.most_frequent(size, (tokenizer.encode_output(line) for line in lines if line.strip()), eos_token_ids)


@dataclass(frozen=True)
class DraftModel:
    """vocabulary: the only tokens it may propose; None: all."""

    model: EncoderDecoder
    vocabulary: DraftVocabulary | None = None

    def head(self, sources: Sequence[Sequence[int]], vocab_size: int) -> OutputHead:
        """Over `vocabulary` and the ids that each row's source adds; without one, over all. vocab_size: the target's.

        One matrix for both: to copy the frequent rows for a source takes less than a second product for each token.
        """
        if self.vocabulary is None:
            return OutputHead(self.model.logits, None, vocab_size)
        frequent = self._known(self.vocabulary.ids)
        own = [set(self._known(self.vocabulary.ids_for(source))).difference(frequent) for source in sources]
        others = sorted(set().union(*own))
        ids = mx.array(frequent + others, mx.uint32)
        mask = None
        if any(each != own[0] for each in own):
            mask = mx.array([[True] * len(frequent) + [token in each for token in others] for each in own])
        return OutputHead(self.model.head_of(ids), ids, vocab_size, mask)

    def _known(self, ids: Iterable[int]) -> list[int]:
        size = self.model.config.vocab_size
        return [token for token in ids if 0 <= token < size]


@dataclass(frozen=True)
class OutputHead:
    """`head` over some ids, or all: (B, d) -> logits (B, N) of `ids` (N,), or of the draft's vocabulary.

    vocab_size: V of the target, which may be padded further than the draft's, or less far.
    allowed: (B, N), where rows have ids of their own: the others get -inf, so that a row's drafts do not depend on the
    rows beside it.
    """

    head: Head
    ids: mx.array | None
    vocab_size: int
    allowed: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        logits = self.head(x)
        return logits if self.allowed is None else mx.where(self.allowed, logits, -mx.inf)

    def spread(self, logits: mx.array) -> mx.array:
        """(B, N) -> (B, V), -inf for all other ids."""
        if self.ids is None:
            missing = self.vocab_size - logits.shape[-1]
            known = logits[:, : self.vocab_size]
            return mx.pad(known, [(0, 0), (0, missing)], constant_values=-mx.inf) if missing > 0 else known
        whole = mx.full((len(logits), self.vocab_size), -mx.inf, logits.dtype)
        whole[:, self.ids] = logits
        return whole

    def likeliest(self, logits: mx.array) -> mx.array:
        """(B, N) -> (B, 1), among `ids`."""
        if self.ids is None:
            return mx.argmax(logits[:, : self.vocab_size], axis=-1, keepdims=True)
        return self.ids[mx.argmax(logits, axis=-1, keepdims=True)]


def require_same_tokens(target: EncoderDecoder, draft: EncoderDecoder) -> None:
    """Compare piece by piece and id by id; equal sizes prove nothing. Raises `InputError` that names a difference."""
    for name in ("decoder_start_token_id", "eos_token_ids", "pad_token_id"):
        ours, theirs = getattr(target.config, name), getattr(draft.config, name)
        if ours != theirs:
            raise InputError(
                f"draft model: its {name} is {theirs}, the target's is {ours}; choose a draft of the same family"
            )
    if target.pieces is None or draft.pieces is None:  # built in Python, without text: ids are all there is
        return
    if target.pieces == draft.pieces:
        return
    for index in sorted(target.pieces.keys() | draft.pieces.keys()):
        ours, theirs = target.pieces.get(index), draft.pieces.get(index)
        if ours != theirs:
            raise InputError(
                f"draft model: token {index} is {theirs!r}, in the target it is {ours!r}; "
                "choose a draft of the same family"
            )

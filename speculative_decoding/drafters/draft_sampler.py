"""Chooses draft tokens, with an output head over the ids that a draft may propose, and a sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import mlx.core as mx

from ..models.base import EncoderDecoder
from ..models.compiled import joined_columns
from ..models.device import on_gpu
from ..models.layers import Head
from ..sampling import GenerationOptions, Purpose, leaves_logits_unchanged, processed_logits, shifted_logprobs
from ..sampling.options import MAX_DRAFT_TOKENS
from ..sampling.random import gumbel, random_keys, split
from .base import Draft, RequestView, token_history

EARLY_STEPS = MAX_DRAFT_TOKENS  # the number of a draft's steps that start before the next is built; see benchmarks/


class OutputHead:
    """(B, d) -> logits (B, N) of the ids that a draft may propose for the sources of a batch.

    Frequent ids and source ids share one matrix, because copying the frequent ids' rows once is cheaper than a second
    matmul for each token.

    Args:
        model: The model whose output matrix is used.
        vocab_size: The target's V; padding may make it larger or smaller than the draft's.
        frequent: As in `DraftVocabulary.ids`. If empty, all ids may be proposed.
        by_source: See `DraftVocabulary`.

    Attributes:
        ids: (N,), the frequent ids in ascending order, then the source ids; None for all ids.
        embeddings: (N, d), a copy of their embeddings on a GPU, which saves the lookup of each draft token's id. On a
            CPU, the copy would take longer than these lookups.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        vocab_size: int,
        frequent: Iterable[int] = (),
        by_source: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self._by_source = by_source
        self._known = range(model.config.vocab_size)  # the target's vocabulary may be padded to a larger size
        self._frequent = sorted(token for token in frequent if token in self._known)
        self._sources: Sequence[Sequence[int]] | None = None
        self.ids: mx.array | None = None
        self.embeddings: mx.array | None = None
        self._head: Head = model.logits
        self._allowed: mx.array | None = None  # (B, N), if rows may propose different ids

    def use_sources(self, sources: Sequence[Sequence[int]]) -> None:
        """Add the ids of these sources, one per row, unless the last call had the same sources. Audio adds no ids."""
        frequent = self._frequent
        if not frequent or sources == self._sources:
            return
        own = []
        for source in sources:
            ids = {*source}.union(*(self._by_source.get(token, ()) for token in source))
            own.append({token for token in ids.difference(frequent) if token in self._known})
        others = sorted(set().union(*own))
        self.ids = mx.array(frequent + others, mx.uint32)
        self._head = self.model.head_of(self.ids)
        self.embeddings = self.model.embed(self.ids[None])[0] if on_gpu() else None
        self._allowed = None
        if any(each != own[0] for each in own):
            self._allowed = mx.array([[True] * len(frequent) + [token in each for token in others] for each in own])
        self._sources = sources

    def __call__(self, x: mx.array) -> mx.array:
        """(B, d) -> (B, N), with -inf for ids that only other rows may propose, so that rows stay independent."""
        logits = self._head(x)
        return logits if self._allowed is None else mx.where(self._allowed, logits, -mx.inf)

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
        """(B, N) -> the index of the most likely of `ids`, (B, 1)."""
        if self.ids is None:
            logits = logits[:, : self.vocab_size]
        return mx.argmax(logits, axis=-1, keepdims=True)


class DraftSampler:
    """Chooses a draft's tokens, one position at a time for all rows, using each row's options and noise.

    Above temperature 0, tokens are sampled from the draft model's distribution. With the acceptance rule "coupled", the
    noise is the same that the target uses at that position, and the draft is a point mass. Other rules use independent
    noise.

    Args:
        counts: As in `BatchDrafter.propose`.
        slots: B.
        head: The output head, on which `use_sources` has been called for this batch.

    Attributes:
        longest: The number of `choose` calls needed for the whole draft.
    """

    def __init__(self, counts: Mapping[RequestView, int], slots: int, head: OutputHead) -> None:
        self._head = head
        by_slot = {request.slot: request for request in counts}
        any_request = next(iter(counts))  # its options are also used for idle rows
        self._requests = [by_slot.get(slot, any_request) for slot in range(slots)]
        self._options: list[GenerationOptions] = [request.options for request in self._requests]
        self._lengths = [counts[by_slot[slot]] if slot in by_slot else 0 for slot in range(slots)]
        self.longest = max(self._lengths)
        self._chosen: list[mx.array] = []  # each (B, 1)
        self._probs: list[mx.array] = []  # each (B, 1, V)
        self._is_point_mass = [options.is_comparable for options in self._options]

        is_greedy = all(options.is_greedy for options in self._options)
        if not all(self._is_point_mass):
            places = [(request.options.seed, len(request.decoder_tokens), Purpose.DRAFT) for request in self._requests]
            self._keys = split(random_keys(places), MAX_DRAFT_TOKENS)  # new keys in every round
        whole_draft = token_history(self._requests, mx.zeros((slots, self.longest - 1)))  # only its length is read
        self._choice: Callable[[mx.array], mx.array] | None = None
        processors = [each.processor for each in whole_draft.constraints]
        if is_greedy and head.ids is not None and all(processors) and (first := processors[0]) is not None:
            self._choice = first.draft_choice(head.ids, whole_draft.tokens)
        if self._choice is not None:
            whole_draft = whole_draft._replace(constraints=())
        self._takes_likeliest = is_greedy and leaves_logits_unchanged(self._options, whole_draft, self.longest)
        # Likeliest tokens are indices in these ids, which are looked up once for the whole draft.
        self._ids = head.ids if self._takes_likeliest and self._choice is None else None

    def draft(self) -> Draft:
        """Return the chosen tokens."""
        probs = mx.concatenate(self._probs, axis=1) if self._probs else None
        return Draft(self.ids(joined_columns(self._chosen)), probs, self._lengths)

    def choose(self, states: mx.array) -> mx.array:
        """(B, d) states -> the next token of each row, (B, 1), for `ids` and `embedded`."""
        head = self._head
        logits = head(states)
        if not self._takes_likeliest:
            new = self._choose_by_options(head.spread(logits)[:, None])
        else:
            new = (self._choice or head.likeliest)(logits)
        self._chosen.append(new.astype(mx.uint32))
        if len(self._chosen) <= EARLY_STEPS:
            mx.async_eval(self._chosen[-1])  # type: ignore[no-untyped-call]  # runs while the host builds the next step
        return self._chosen[-1]

    def ids(self, chosen: mx.array) -> mx.array:
        """Return the ids of tokens from `choose`."""
        return chosen if self._ids is None else self._ids[chosen]

    def embedded(self, chosen: mx.array) -> mx.array:
        """Return the embeddings of tokens from `choose`, (B, 1, d)."""
        embeddings = None if self._ids is None else self._head.embeddings
        return self._head.model.embed(self.ids(chosen)) if embeddings is None else embeddings[chosen]

    def _choose_by_options(self, logits: mx.array) -> mx.array:
        """(B, 1, V) -> (B, 1)."""
        options = self._options
        history = token_history(self._requests, mx.concatenate(self._chosen, axis=1) if self._chosen else None)
        is_greedy = [own.is_greedy for own in options]
        if all(is_greedy):
            return mx.argmax(processed_logits(logits, options, history), axis=-1)

        log_q = shifted_logprobs(logits, options, history)
        noisy = log_q + self._noise()[:, None]
        if any(is_greedy):
            likeliest = processed_logits(logits, options, history)
            noisy = mx.where(mx.array(is_greedy)[:, None, None], likeliest, noisy)
        new = mx.argmax(noisy, axis=-1)
        if not all(self._is_point_mass):
            is_point_mass = mx.array(self._is_point_mass)[:, None, None]
            point_mass = mx.arange(logits.shape[-1]) == new[..., None]
            self._probs.append(mx.where(is_point_mass, point_mass.astype(mx.float32), mx.softmax(log_q, axis=-1)))
        return new

    def _noise(self) -> mx.array:
        """(B, V) Gumbel noise for the next draft token."""
        count = len(self._chosen)
        places = [
            (request.options.seed, len(request.decoder_tokens) + count, Purpose.COUPLED) for request in self._requests
        ]
        keys = random_keys(places)
        if not all(self._is_point_mass):
            keys = mx.where(mx.array(self._is_point_mass)[:, None], keys, self._keys[:, count])
        return gumbel(keys, self._head.vocab_size)

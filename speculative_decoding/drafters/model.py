"""Drafts from a smaller encoder-decoder (Leviathan et al. 2023; Chen et al. 2023), for all rows in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from ..models.audio import Source, token_ids
from ..models.cache import DecoderCache
from ..sampling import GenerationOptions, Purpose, leaves_logits_unchanged, scores, shifted_logprobs
from ..sampling.options import MAX_DRAFT_TOKENS
from ..sampling.random import gumbel, random_keys, split
from .base import MODEL, BatchDrafter, Draft, DraftRequest, RequestView, history_of, renumbered, token_rows
from .draft_model import DraftModel, OutputHead, OutputHeads


class BatchModelDrafter(BatchDrafter):
    """Decodes ahead with a draft model, sampling each row with its own options. Lazy: it never waits for the device.

    Args:
        draft_model: The model, perhaps with a reduced vocabulary.
        vocab_size: The target's; it may be padded further than the draft model's.
        shares_encoder: The draft model's encoder is the target's, so the target's encoder output is reused.
    """

    def __init__(self, draft_model: DraftModel, vocab_size: int, *, shares_encoder: bool = False) -> None:
        self._model = draft_model.model
        vocabulary = draft_model.vocabulary
        if vocabulary is None:
            self._output_heads = OutputHeads(self._model, vocab_size)
        else:
            self._output_heads = OutputHeads(self._model, vocab_size, vocabulary.ids, vocabulary.by_source)
        self._shares_encoder = shares_encoder
        self._cache: DecoderCache | None = None
        # By slot:
        self._sources: dict[int, Source] = {}
        self._encoder_outputs: dict[int, mx.array] = {}  # the target's, until the cache is filled from them
        self._held: dict[int, list[int]] = {}  # the ids in the cache, once the source has been encoded
        self._drafted: tuple[list[int], mx.array] | None = None  # slots and (B, K) ids of the last draft

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        self._read_drafted()
        slot = request.slot
        self._sources[slot] = request.source
        self._encoder_outputs.pop(slot, None)
        if self._shares_encoder and encoder_output is not None:
            self._encoder_outputs[slot] = encoder_output
        self._held.pop(slot, None)

    def kind(self, request: RequestView) -> str:
        return MODEL

    def select(self, slots: Sequence[int]) -> None:
        self._read_drafted()
        self._sources = renumbered(self._sources, slots)
        self._encoder_outputs = renumbered(self._encoder_outputs, slots)
        self._held = renumbered(self._held, slots)
        if self._cache is not None:
            self._cache.select(slots)

    def propose(self, draft_requests: Sequence[DraftRequest], slots: int) -> Draft:
        self._read_drafted()
        self._read_sources([each.request.slot for each in draft_requests], slots)
        cache = self._cache
        assert cache is not None
        requests = {each.request.slot: each.request for each in draft_requests}
        before = cache.offsets
        states = self._catch_up(cache, requests)
        output_head = self._output_heads.head([token_ids(self._sources.get(slot, [])) for slot in range(slots)])
        sampler = DraftSampler(draft_requests, slots, output_head)
        while True:
            new = sampler.choose(states[:, 0])
            if sampler.is_done:
                break
            states = self._model.states(new, cache)

        cache.trim_to([cache.offsets[slot] if slot in requests else before[slot] for slot in range(slots)])
        draft = sampler.draft()
        self._drafted = [*requests], draft.tokens
        for slot, request in requests.items():
            self._held[slot] = list(request.decoder_tokens)
        return draft

    def _read_drafted(self) -> None:
        """Append the last draft to `_held`. No host sync: the draft was evaluated with its round."""
        if self._drafted is not None:
            slots, tokens = self._drafted
            ids = token_rows(tokens)
            for slot in slots:
                self._held[slot] += ids[slot][:-1]  # the last draft token was not fed
            self._drafted = None

    def _read_sources(self, drafting: Sequence[int], slots: int) -> None:
        """Encode the sources of slots that draft for the first time, in one batch."""
        new = [slot for slot in drafting if slot not in self._held]
        unread = [slot for slot in new if slot not in self._encoder_outputs]
        encoder_outputs = self._model.encode_rows([self._sources[slot] for slot in unread]) if unread else []
        self._encoder_outputs |= dict(zip(unread, encoder_outputs, strict=True))
        for slot in new:
            encoder_output = self._encoder_outputs.pop(slot)
            self._cache = self._model.assign_slot(self._cache, slot, slots, encoder_output)
            self._held[slot] = []

    def _catch_up(self, cache: DecoderCache, requests: dict[int, RequestView]) -> mx.array:
        """Feed the committed tokens that the cache lacks, and return the states of each row's last one, (B, 1, d).

        The cache keeps the longest prefix that it shares with the committed tokens, except for the last token, which is
        always fed again. Rows without a draft request get padding.
        """
        largest_id = self._model.config.vocab_size - 1  # the target's vocabulary may be padded further
        padding = self._model.config.pad_token_id
        kept = {
            slot: min(num_shared(self._held[slot], request.decoder_tokens), len(request.decoder_tokens) - 1)
            for slot, request in requests.items()
        }
        cache.trim_to([kept.get(slot, offset) for slot, offset in enumerate(cache.offsets)])
        missing = [
            [min(token, largest_id) for token in requests[slot].decoder_tokens[kept[slot] :]]
            if slot in requests
            else [padding]
            for slot in range(cache.rows)
        ]
        longest = max(map(len, missing))
        width = 1 << (longest - 1).bit_length()  # a power of two: tracing a new width costs several passes
        before = cache.offsets
        states = self._model.states(mx.array([ids + [padding] * (width - len(ids)) for ids in missing]), cache)
        cache.trim_to(
            [len(requests[slot].decoder_tokens) if slot in requests else before[slot] for slot in range(cache.rows)]
        )
        if width == 1:
            return states
        last = mx.array([len(ids) - 1 for ids in missing])
        return mx.take_along_axis(states, last[:, None, None], axis=1)


class DraftSampler:
    """Chooses the tokens of one draft, one position at a time for all rows, with each row's options and noise.

    Above temperature 0, tokens are sampled from the draft's own distribution, with the noise that the target uses at
    the same position; such a token has probability 1. With another acceptance rule, the noise is independent.
    """

    def __init__(self, draft_requests: Sequence[DraftRequest], slots: int, head: OutputHead) -> None:
        self._head = head
        by_slot = {each.request.slot: each for each in draft_requests}
        each_slot = [by_slot.get(slot, draft_requests[0]) for slot in range(slots)]  # idle rows repeat the first one
        self._requests = [each.request for each in each_slot]
        self._options: list[GenerationOptions] = [request.options for request in self._requests]
        self._lengths = [by_slot[slot].count if slot in by_slot else 0 for slot in range(slots)]
        self._longest = max(self._lengths)
        self._ids: list[mx.array] = []  # each (B, 1)
        self._probs: list[mx.array] = []  # each (B, 1, V)
        self._is_point_mass = [options.is_comparable for options in self._options]

        is_greedy = all(options.is_greedy for options in self._options)
        if not all(self._is_point_mass):
            places = [(request.options.seed, len(request.decoder_tokens), Purpose.DRAFT) for request in self._requests]
            self._keys = split(random_keys(places), MAX_DRAFT_TOKENS)  # new keys in every round
        whole_draft = history_of(self._requests, mx.zeros((slots, self._longest - 1)))  # only its length is read
        self._choice: Callable[[mx.array], mx.array] | None = None
        processors = [each.processor for each in whole_draft.constraints]
        if is_greedy and head.ids is not None and all(processors) and (first := processors[0]) is not None:
            self._choice = first.draft_choice(head.ids, whole_draft.tokens)
        if self._choice is not None:
            whole_draft = whole_draft._replace(constraints=())
        self._takes_likeliest = is_greedy and leaves_logits_unchanged(self._options, whole_draft, self._longest)

    @property
    def is_done(self) -> bool:
        return len(self._ids) == self._longest

    def draft(self) -> Draft:
        probs = mx.concatenate(self._probs, axis=1) if self._probs else None
        return Draft(mx.concatenate(self._ids, axis=1), probs, self._lengths)

    def choose(self, states: mx.array) -> mx.array:
        """(B, d) states -> the next token of each row, (B, 1)."""
        head = self._head
        logits = head(states)
        if not self._takes_likeliest:
            new = self._choose_by_options(head.spread(logits)[:, None])
        else:
            new = (self._choice or head.likeliest)(logits)
        self._ids.append(new.astype(mx.uint32))
        mx.async_eval(self._ids[-1])  # type: ignore[no-untyped-call]  # runs while the host prepares the next step
        return self._ids[-1]

    def _choose_by_options(self, logits: mx.array) -> mx.array:
        """(B, 1, V) -> (B, 1)."""
        options = self._options
        history = history_of(self._requests, mx.concatenate(self._ids, axis=1) if self._ids else None)
        is_greedy = [own.is_greedy for own in options]
        if all(is_greedy):
            return mx.argmax(scores(logits, options, history), axis=-1)

        log_q = shifted_logprobs(logits, options, history)
        noisy = log_q + self._noise()[:, None]
        if any(is_greedy):
            noisy = mx.where(mx.array(is_greedy)[:, None, None], scores(logits, options, history), noisy)
        new = mx.argmax(noisy, axis=-1)
        if not all(self._is_point_mass):
            is_point_mass = mx.array(self._is_point_mass)[:, None, None]
            point_mass = mx.arange(logits.shape[-1]) == new[..., None]
            self._probs.append(mx.where(is_point_mass, point_mass.astype(mx.float32), mx.softmax(log_q, axis=-1)))
        return new

    def _noise(self) -> mx.array:
        """(B, V) Gumbel noise for the next draft token."""
        count = len(self._ids)
        places = [
            (request.options.seed, len(request.decoder_tokens) + count, Purpose.COUPLED) for request in self._requests
        ]
        keys = random_keys(places)
        if not all(self._is_point_mass):
            keys = mx.where(mx.array(self._is_point_mass)[:, None], keys, self._keys[:, count])
        return gumbel(keys, self._head.vocab_size)


def num_shared(held: Sequence[int], tokens: Sequence[int]) -> int:
    """The length of the common prefix."""
    shortest = min(len(held), len(tokens))
    return next((i for i in range(shortest) if held[i] != tokens[i]), shortest)


def build(ngram: object, model: BatchDrafter | None, vocab_size: int) -> BatchDrafter:
    assert model is not None  # see `drafters.check_drafter`
    return model

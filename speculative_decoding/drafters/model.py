"""Drafts from a smaller encoder-decoder (Leviathan et al. 2023; Chen et al. 2023), for all rows in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..models.cache import DecoderCache
from ..sampling import GenerationOptions, Use, leaves_logits_unchanged, logprobs, scores
from ..sampling.options import MAX_DRAFT_TOKENS
from ..sampling.random import gumbel, random_keys, split
from .base import MODEL, BatchDrafter, Draft, Row, Wanted, history_of, token_rows
from .draft_model import DraftModel, OutputHead


class BatchModelDrafter(BatchDrafter):
    """Decodes ahead with a model, each row sampling as the target will, and stays lazy: nothing here waits for the
    device.
    """

    def __init__(self, draft_model: DraftModel, vocab_size: int, *, shares_encoder: bool = False) -> None:
        """vocab_size: the target's, which may be padded further than the model's. shares_encoder: the model's encoder
        is the target's, so a source is not encoded again.
        """
        self._draft_model, self._model = draft_model, draft_model.model
        self._vocab_size = vocab_size
        self._cache: DecoderCache | None = None
        self._sources: dict[int, list[int]] = {}  # by slot
        self._shares_encoder = shares_encoder
        self._encoder_outputs: dict[int, mx.array] = {}  # by slot: the target's, until they are needed
        self._held: dict[int, list[int]] = {}  # by slot: the ids that the cache holds, once the source was encoded
        self._drafted: tuple[list[int], mx.array] | None = None  # of the last draft: its slots, (B, K) ids
        self._head: OutputHead | None = None

    def begin(self, row: Row) -> None:
        self._read_drafted()
        self._sources[row.slot] = row.source
        self._encoder_outputs.pop(row.slot, None)
        if self._shares_encoder and row.encoder_output is not None:
            self._encoder_outputs[row.slot] = row.encoder_output
        self._held.pop(row.slot, None)
        self._head = None

    def kind(self, row: Row) -> str:
        return MODEL

    def select(self, slots: Sequence[int]) -> None:
        self._read_drafted()
        self._sources = {i: self._sources[slot] for i, slot in enumerate(slots) if slot in self._sources}
        self._encoder_outputs = {
            i: self._encoder_outputs[slot] for i, slot in enumerate(slots) if slot in self._encoder_outputs
        }
        self._held = {i: self._held[slot] for i, slot in enumerate(slots) if slot in self._held}
        self._head = None
        if self._cache is not None:
            self._cache.select(slots)

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        self._read_drafted()
        self._read_sources([each.row.slot for each in wanted], slots)
        cache = self._cache
        assert cache is not None
        rows = {each.row.slot: each.row for each in wanted}
        before = cache.offsets
        states = self._catch_up(cache, rows)
        if self._head is None:
            sources = [self._sources.get(slot, []) for slot in range(slots)]
            self._head = self._draft_model.head(sources, self._vocab_size)
        chain = Chain(wanted, slots, self._head)
        while True:
            new = chain.choose(states[:, 0])
            if chain.is_done:
                break
            states = self._model.states(new, cache)
        cache.trim_to([cache.offsets[slot] if slot in rows else before[slot] for slot in range(slots)])
        draft = chain.draft()
        self._drafted = [*rows], draft.tokens
        for slot, row in rows.items():
            self._held[slot] = list(row.tokens)
        return draft

    def _read_drafted(self) -> None:
        """The last draft was evaluated with the round that verified it, so this costs no wait."""
        if self._drafted is not None:
            slots, tokens = self._drafted
            ids = token_rows(tokens)
            for slot in slots:
                self._held[slot] += ids[slot][:-1]  # the last was never fed
            self._drafted = None

    def _read_sources(self, wanted: Sequence[int], slots: int) -> None:
        """Encode, together, those of the rows that have not been: a row that never has a draft costs no encoder."""
        new = [slot for slot in wanted if slot not in self._held]
        unread = [slot for slot in new if slot not in self._encoder_outputs]
        encoder_outputs = self._model.encode_rows([self._sources[slot] for slot in unread]) if unread else []
        self._encoder_outputs |= dict(zip(unread, encoder_outputs, strict=True))
        for slot in new:
            encoder_output = self._encoder_outputs.pop(slot)
            self._cache = self._model.assign_slot(self._cache, slot, slots, encoder_output)
            self._held[slot] = []

    def _catch_up(self, cache: DecoderCache, rows: dict[int, Row]) -> mx.array:
        """Feed the committed tokens that the cache does not hold; the states behind each row's last, (B, 1, d).

        The longest prefix that the cache shares with them stays, but for the last token, which is always fed anew.
        Other rows are fed padding.
        """
        known, padding = self._model.config.vocab_size - 1, self._model.config.pad_token_id
        kept = {slot: min(shared(self._held[slot], row.tokens), len(row.tokens) - 1) for slot, row in rows.items()}
        cache.trim_to([kept.get(slot, offset) for slot, offset in enumerate(cache.offsets)])
        missing = [
            [min(token, known) for token in rows[slot].tokens[kept[slot] :]] if slot in rows else [padding]
            for slot in range(cache.rows)
        ]  # min: the target's table may be padded beyond the draft's
        longest = max(map(len, missing))
        width = 1 << (longest - 1).bit_length()  # a power of two: each width is traced, which costs several passes
        before = cache.offsets
        states = self._model.states(mx.array([ids + [padding] * (width - len(ids)) for ids in missing]), cache)
        cache.trim_to([len(rows[slot].tokens) if slot in rows else before[slot] for slot in range(cache.rows)])
        last = [len(ids) - 1 for ids in missing]
        if width == 1:
            return states
        return mx.take_along_axis(states, mx.array(last)[:, None, None], axis=1)


class Chain:
    """The tokens of one draft, chosen one after the other for all rows, with the options and the noise of each.

    At a temperature above 0 rows are sampled from the draft's own distribution, or with acceptance "coupled" with the
    noise of each position, which the target uses too; then a token counts as certain.
    """

    def __init__(self, wanted: Sequence[Wanted], slots: int, head: OutputHead) -> None:
        self._head = head
        by_slot = {each.row.slot: each for each in wanted}
        each_slot = [by_slot.get(slot, wanted[0]) for slot in range(slots)]  # others repeat the first, for nothing
        self._rows = [each.row for each in each_slot]
        self._options: list[GenerationOptions] = [row.options for row in self._rows]
        self._lengths = [by_slot[slot].count if slot in by_slot else 0 for slot in range(slots)]
        self._ids: list[mx.array] = []  # each (B, 1)
        self._probs: list[mx.array] = []  # each (B, 1, V)
        self._is_certain = [row.is_comparable for row in self._options]
        is_greedy, most = all(row.is_greedy for row in self._options), max(self._lengths)
        if not is_greedy:
            starts = random_keys([(row.options.seed, len(row.tokens), Use.DRAFT) for row in self._rows])
            self._keys = split(starts, MAX_DRAFT_TOKENS)  # a round's own: its draft is judged as a whole
        ahead = history_of(self._rows, mx.zeros((slots, most - 1)))  # of the whole draft; only its length is asked
        self._takes_likeliest = is_greedy and leaves_logits_unchanged(self._options, ahead, most)

    @property
    def is_done(self) -> bool:
        return len(self._ids) == max(self._lengths)

    def draft(self) -> Draft:
        probs = mx.concatenate(self._probs, axis=1) if self._probs else None
        return Draft(mx.concatenate(self._ids, axis=1), probs, self._lengths)

    def choose(self, states: mx.array) -> mx.array:
        """(B, d) states -> the next token of each row, (B, 1)."""
        logits, head = self._head(states), self._head
        new = head.likeliest(logits) if self._takes_likeliest else self._choose_by_options(head.spread(logits)[:, None])
        self._ids.append(new.astype(mx.uint32))
        # The device computes it while the host prepares what follows it.
        mx.async_eval(self._ids[-1])  # type: ignore[no-untyped-call]
        return self._ids[-1]

    def _choose_by_options(self, logits: mx.array) -> mx.array:
        """(B, 1, V) -> (B, 1)."""
        options, count = self._options, len(self._ids)
        history = history_of(self._rows, mx.concatenate(self._ids, axis=1) if self._ids else None)
        decisive = scores(logits, options, history)
        if all(row.is_greedy for row in options):
            new = mx.argmax(decisive, axis=-1)
        else:
            chances = logprobs(logits, options, history)
            noisy = chances + self._noise(count)[:, None]
            greedy = mx.array([row.is_greedy for row in options])[:, None, None]
            new = mx.argmax(mx.where(greedy, decisive, noisy), axis=-1)
            if not all(self._is_certain):
                certain = mx.array(self._is_certain)[:, None, None]
                point = mx.arange(logits.shape[-1]) == new[..., None]
                self._probs.append(mx.where(certain, point.astype(mx.float32), mx.exp(chances)))
        return new

    def _noise(self, count: int) -> mx.array:
        """(B, V) Gumbel noise for the token behind `count` drafted ones."""
        coupled = random_keys([(row.options.seed, len(row.tokens) + count, Use.COUPLED) for row in self._rows])
        is_coupled = mx.array([row.acceptance == "coupled" for row in self._options])[:, None]
        return gumbel(mx.where(is_coupled, coupled, self._keys[:, count]), self._head.vocab_size)


def shared(held: Sequence[int], tokens: Sequence[int]) -> int:
    """How many ids two sequences begin with alike."""
    shortest = min(len(held), len(tokens))
    return next((i for i in range(shortest) if held[i] != tokens[i]), shortest)

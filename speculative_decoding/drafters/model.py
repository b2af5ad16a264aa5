"""Drafts from a smaller encoder-decoder (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

import mlx.core as mx

from ..errors import InputError
from ..models.base import EncoderDecoder, Head
from ..models.cache import DecoderCache
from ..models.compiled import pass_width
from ..sampling import SamplingParams, Use, key
from .base import MODEL, Draft, Drafter, token_ids
from .batch import Asked, BatchDrafter
from .vocabulary import DraftVocabulary


@dataclass(frozen=True)
class DraftModel:
    """A draft model and how it is to speak.

    vocabulary: the only tokens it may propose, besides those of the source; None: all.
    confidence_threshold: it stops behind a token that it gave a probability below this, as Hugging Face's
        `assistant_confidence_threshold` does. That needs one wait for the device per drafted token; 0 needs none.

    Raises `InputError` that names the field.
    """

    model: EncoderDecoder
    vocabulary: DraftVocabulary | None = None
    confidence_threshold: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.confidence_threshold <= 1:
            raise InputError(f"confidence_threshold must be between 0 (off) and 1, not {self.confidence_threshold}")

    @cached_property
    def _head(self) -> Head:
        assert self.vocabulary is not None
        return self.model.head_of(mx.array(self._known(self.vocabulary.ids)))

    def head_for(self, source: Sequence[int], vocab_size: int) -> PartialHead | None:
        """The head over `vocabulary` and the ids of this source, of the target's `vocab_size`; None: the whole head."""
        if self.vocabulary is None:
            return None
        frequent = self._known(self.vocabulary.ids)
        others = sorted(set(self._known(source)) - set(frequent))
        heads = [self._head, self.model.head_of(mx.array(others))] if others else [self._head]
        return PartialHead(heads, mx.array(frequent + others), vocab_size)

    def _known(self, ids: Sequence[int]) -> list[int]:
        return [token for token in ids if token < self.model.config.vocab_size]


@dataclass(frozen=True)
class PartialHead:
    """A head over some ids only: (B, L, d_model) -> logits (B, L, N) of `ids` (N,)."""

    heads: Sequence[Head]
    ids: mx.array
    vocab_size: int

    def __call__(self, x: mx.array) -> mx.array:
        logits = [head(x) for head in self.heads]
        return logits[0] if len(logits) == 1 else mx.concatenate(logits, axis=-1)

    def spread(self, logits: mx.array) -> mx.array:
        """(B, L, N) -> (B, L, V), -inf for all other ids."""
        whole = mx.full((*logits.shape[:-1], self.vocab_size), -mx.inf, logits.dtype)
        whole[..., self.ids] = logits
        return whole

    def likeliest(self, logits: mx.array) -> mx.array:
        """(B, L, N) -> (B, L), among `ids`."""
        return self.ids[mx.argmax(logits, axis=-1)]


class BatchModelDrafter(BatchDrafter):
    """Decodes ahead with a model, all rows in one pass, each sampling as the target will, and stays lazy: nothing here
    waits for the device, unless a confidence threshold makes it.

    Raises `InputError` if the model numbers its tokens differently from the target.
    """

    def __init__(self, draft_model: EncoderDecoder | DraftModel, target: EncoderDecoder, slots: int = 1) -> None:
        self._speaker = draft_model if isinstance(draft_model, DraftModel) else DraftModel(draft_model)
        self._model = self._speaker.model
        require_same_tokens(target, self._model)
        self._vocab_size = target.config.vocab_size
        self._rows: list[Speech | None] = [None] * slots
        self._unread: dict[int, Callable[[], mx.array]] = {}  # a row that is never asked to speak costs no encoder
        self._cache: DecoderCache | None = None

    def read(self, sources: Sequence[Sequence[int]]) -> list[Callable[[], mx.array]]:
        """Memories, for which all sources are encoded together once the first of them is asked for."""
        found: list[mx.array] = []

        def memory_of(index: int) -> mx.array:
            if not found:
                found.extend(self._model.encode_rows(sources))
            return found[index]

        return [partial(memory_of, index) for index in range(len(sources))]

    def begin(
        self,
        slot: int,
        source: Sequence[int],
        reading: Callable[[], mx.array],
        sampling: SamplingParams,
        *,
        coupled: bool,
    ) -> None:
        head = self._speaker.head_for(source, self._vocab_size)
        self._rows[slot] = Speech(sampling, coupled, head, self._vocab_size, self._speaker.confidence_threshold)
        self._unread[slot] = reading

    def select(self, slots: Sequence[int]) -> None:
        self._rows = [self._rows[slot] for slot in slots]
        self._unread = {i: self._unread[slot] for i, slot in enumerate(slots) if slot in self._unread}
        if self._cache is not None:
            self._cache.select(slots)

    def kinds(self, slot: int, tokens: Sequence[int]) -> Sequence[str]:
        return (MODEL,)

    def propose(self, asked: Sequence[Asked]) -> list[Draft]:
        speaking = {each.slot: cast(Speech, self._rows[each.slot]) for each in asked}
        for each in asked:
            speaking[each.slot].ask(each.tokens, each.num_draft_tokens)
        if speaking:
            self._speak(speaking)
        return [row.draft for row in speaking.values()]

    def _speak(self, rows: Mapping[int, Speech]) -> None:
        """Chain the passes of a draft. Rows that do not speak are fed padding, and put back where they were."""
        for slot in rows.keys() & self._unread.keys():
            self._cache = self._model.assign_slot(self._cache, slot, len(self._rows), self._unread.pop(slot)())
        cache, slots = self._cache, range(len(self._rows))
        assert cache is not None
        before = cache.offsets
        cache.trim_to([rows[slot].kept if slot in rows else before[slot] for slot in slots])
        states = self._catch_up(cache, rows)
        cache.trim_to([len(rows[slot].tokens) if slot in rows else before[slot] for slot in slots])
        while True:
            new = self._next(states, rows)
            # The device computes it while the host prepares what follows it.
            mx.async_eval(new)  # type: ignore[no-untyped-call]
            if all(row.is_done for row in rows.values()):
                break
            states = self._model.states(new, cache)
        cache.trim_to([cache.offsets[slot] if slot in rows else before[slot] for slot in slots])

    def _catch_up(self, cache: DecoderCache, rows: Mapping[int, Speech]) -> mx.array:
        """Feed the committed tokens that the cache does not hold; the states behind each row's last, (B, 1, d)."""
        known, padding = self._model.config.vocab_size - 1, self._model.config.pad_token_id
        missing = [
            [min(token, known) for token in rows[slot].tokens[rows[slot].kept :]] if slot in rows else [padding]
            for slot in range(len(self._rows))
        ]  # min: the target's table may be padded beyond the draft's
        width = pass_width(max(map(len, missing)))
        states = self._model.states(mx.array([ids + [padding] * (width - len(ids)) for ids in missing]), cache)
        if all(len(ids) == width for slot, ids in enumerate(missing) if slot in rows):
            return states[:, -1:]
        last = mx.array([len(ids) - 1 for ids in missing])[:, None, None]
        return mx.take_along_axis(states, last, axis=1)

    def _next(self, states: mx.array, rows: Mapping[int, Speech]) -> mx.array:
        """(B, 1, d) -> the next token of each row, (B, 1)."""
        speaking = [row for row in rows.values() if not row.is_done]
        if all(row.is_plain and row.head is None for row in speaking):  # one arg-max for all
            logits = self._model.logits(states)[..., : self._vocab_size]
            best = mx.argmax(logits, axis=-1).astype(mx.uint32)
            for slot, row in rows.items():
                if not row.is_done:
                    row.say(best[slot : slot + 1])
            return best
        logits = self._model.logits(states) if any(row.head is None for row in speaking) else None
        new = [mx.zeros((1, 1), mx.uint32)] * len(self._rows)
        for slot, row in rows.items():
            if row.is_done:
                continue
            if row.head is not None:
                new[slot] = row.choose(row.head(states[slot : slot + 1]))
            else:
                assert logits is not None
                new[slot] = row.choose(logits[slot : slot + 1])
        return mx.concatenate(new)


class Speech:
    """What a draft model says in one row. The distributions it samples from are the target's kind: same settings.

    coupled: sample with the noise that belongs to each position, as the target then does; the tokens count as certain.
    kept: how many of the committed `tokens` its cache may keep. The last is always fed anew.
    """

    def __init__(
        self, sampling: SamplingParams, coupled: bool, head: PartialHead | None, vocab_size: int, threshold: float
    ) -> None:
        self.head = head
        self.tokens: Sequence[int] = []
        self.kept = 0
        self.draft = Draft.empty()
        self._sampling, self._coupled = sampling, coupled and not sampling.is_greedy
        self._vocab_size, self._threshold = vocab_size, threshold

    @property
    def is_plain(self) -> bool:
        """Whether it says whatever is likeliest, without looking back."""
        return self._sampling.is_greedy and not self._sampling.needs_history and not self._threshold

    @property
    def is_done(self) -> bool:
        return self._count == len(self._said)

    def ask(self, tokens: Sequence[int], count: int) -> None:
        """The draft before this one was evaluated with the round that verified it, so reading it costs no wait."""
        held = [*self.tokens, *token_ids(self.draft.tokens)[:-1]]
        shared = next(
            (i for i, (ours, theirs) in enumerate(zip(held, tokens, strict=False)) if ours != theirs),
            min(len(held), len(tokens)),
        )
        self.kept = min(shared, len(tokens) - 1)
        self.tokens, self._count = list(tokens), count
        self._said: list[mx.array] = []
        self._probs: list[mx.array] = []
        self._preceding = mx.array([self.tokens]) if self._sampling.needs_history else None
        if not (self._sampling.is_greedy or self._coupled):
            self._dice = mx.random.split(key(self._sampling.seed, len(tokens), Use.DRAFT), count)

    def say(self, new: mx.array, probs: mx.array | None = None) -> mx.array:
        self._said.append(new)
        if probs is not None:
            self._probs.append(probs)
        if self._preceding is not None:
            self._preceding = mx.concatenate([self._preceding, new.astype(self._preceding.dtype)], axis=1)
        if self.is_done:
            drawn = mx.concatenate(self._probs, axis=1) if self._probs else None
            self.draft = Draft(mx.concatenate(self._said, axis=1), drawn)
        return new

    def choose(self, logits: mx.array) -> mx.array:
        """(1, 1, ids of the head) -> the next token, (1, 1)."""
        if self.is_plain and self.head is not None:
            return self.say(self.head.likeliest(logits).astype(mx.uint32))
        sampling = self._sampling
        position, said = len(self.tokens) + len(self._said), len(self._said)
        whole = logits[..., : self._vocab_size] if self.head is None else self.head.spread(logits)
        whole = padded(whole, self._vocab_size)
        probs = None
        if sampling.is_greedy:
            new = mx.argmax(sampling.scores(whole, self._preceding), axis=-1)
        elif self._coupled:
            new = mx.argmax(sampling.perturbed(whole, self._preceding, position), axis=-1)
        else:
            logprobs = sampling.logprobs(whole, self._preceding)
            new, probs = mx.random.categorical(logprobs, key=self._dice[said]), mx.exp(logprobs)
        new = new.astype(mx.uint32)
        if self._threshold and self._is_unsure(new, whole, probs):
            self._count = said + 1  # it is kept: to stop in front of it would bias the output
        return self.say(new, probs)

    def _is_unsure(self, new: mx.array, logits: mx.array, probs: mx.array | None) -> bool:
        if probs is None:
            probs = mx.softmax(logits.astype(mx.float32), axis=-1)
        chance = mx.take_along_axis(probs, new[..., None], axis=-1)
        return cast(float, chance.item()) < self._threshold  # waits


def padded(logits: mx.array, vocab_size: int) -> mx.array:
    """(B, L, V of the draft) -> (B, L, V of the target), which may be padded further."""
    missing = vocab_size - logits.shape[-1]
    return mx.pad(logits, [(0, 0), (0, 0), (0, missing)], constant_values=-mx.inf) if missing > 0 else logits


class ModelDrafter(Drafter):
    """A draft model for one row: `BatchModelDrafter` with one slot."""

    def __init__(
        self,
        model: EncoderDecoder | DraftModel,
        target: EncoderDecoder,
        sampling: SamplingParams,
        *,
        coupled: bool = False,
    ) -> None:
        self._batch = BatchModelDrafter(model, target)
        self._sampling, self._coupled = sampling, coupled

    def begin(self, input_tokens: Sequence[int]) -> None:
        (reading,) = self._batch.read([input_tokens])
        self._batch.begin(0, input_tokens, reading, self._sampling, coupled=self._coupled)

    def kind(self, tokens: Sequence[int]) -> str:
        return MODEL

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        return self._batch.propose([Asked(0, tokens, num_draft_tokens)])[0] if num_draft_tokens else Draft.empty()


def require_same_tokens(target: EncoderDecoder, draft: EncoderDecoder) -> None:
    """Compare piece by piece and id by id; equal sizes prove nothing."""
    for name in ("decoder_start_token_id", "eos_token_ids", "pad_token_id"):
        ours, theirs = getattr(target.config, name), getattr(draft.config, name)
        if ours != theirs:
            raise InputError(
                f"draft model: its {name} is {theirs}, the target's is {ours}; choose a draft of the same family"
            )
    if target.pieces is None or draft.pieces is None:  # built in Python, without text: ids are all there is
        return
    if target.pieces != draft.pieces:
        ids = sorted(target.pieces.keys() | draft.pieces.keys())
        index = next(i for i in ids if target.pieces.get(i) != draft.pieces.get(i))
        ours, theirs = target.pieces.get(index), draft.pieces.get(index)
        raise InputError(
            f"draft model: token {index} is {theirs!r}, in the target it is {ours!r}; choose a draft of the same family"
        )

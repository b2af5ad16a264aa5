"""Drafts from a smaller encoder-decoder (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from ..errors import InputError
from ..models.base import EncoderDecoder, Head
from ..models.cache import DecoderCache
from ..sampling import SamplingParams, Use, key
from .base import MODEL, Draft, Drafter, token_ids
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

    def head_for(self, source: Sequence[int]) -> PartialHead | None:
        """The head over `vocabulary` and the ids of this source; None for the whole head."""
        if self.vocabulary is None:
            return None
        frequent = self._known(self.vocabulary.ids)
        others = sorted(set(self._known(source)) - set(frequent))
        heads = [self._head, self.model.head_of(mx.array(others))] if others else [self._head]
        return PartialHead(heads, mx.array(frequent + others), self.model.config.vocab_size)

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


class ModelDrafter(Drafter):
    """Decodes ahead with a model, sampling as the target will, and stays lazy: nothing here waits for the device,
    unless a confidence threshold makes it.

    coupled: sample with the noise that belongs to each position, as the target then does; the tokens count as certain.

    Raises `InputError` if the model numbers its tokens differently from the target.
    """

    def __init__(
        self,
        model: EncoderDecoder | DraftModel,
        target: EncoderDecoder,
        sampling: SamplingParams,
        *,
        coupled: bool = False,
    ) -> None:
        self._speaker = model if isinstance(model, DraftModel) else DraftModel(model)
        self._model = self._speaker.model
        require_same_tokens(target, self._model)
        self._vocab_size = target.config.vocab_size
        self._sampling = sampling
        self._coupled = coupled and not sampling.is_greedy

    def begin(self, input_tokens: Sequence[int]) -> None:
        memory = self._model.encode(mx.array([input_tokens]))
        self._cache: DecoderCache = self._model.make_cache(memory)
        self._head = self._speaker.head_for(input_tokens)
        self._fed: list[int] = []  # the committed tokens in the cache
        self._draft = Draft.empty()  # behind them, all of the last draft but its last token

    def kind(self, tokens: Sequence[int]) -> str:
        return MODEL

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        if num_draft_tokens < 1:
            return Draft.empty()
        self._rewind(tokens)
        known = self._model.config.vocab_size - 1  # the target's table may be padded beyond the draft's
        new = mx.array([[min(token, known) for token in tokens[self._cache.offset :]]])
        drafted: list[mx.array] = []
        probs: list[mx.array] = []
        preceding = mx.array([list(tokens)]) if self._sampling.needs_history else None
        dice = mx.random.split(key(self._sampling.seed, len(tokens), Use.DRAFT), num_draft_tokens)
        for i in range(num_draft_tokens):
            logits = self._model.decode(new, self._cache, self._head)[:, -1:]
            new, q = self._choose(logits, preceding, len(tokens) + i, dice[i])
            drafted.append(new)
            if q is not None:
                probs.append(q)
            if preceding is not None:
                preceding = mx.concatenate([preceding, new.astype(preceding.dtype)], axis=1)
            if self._is_unsure(new, logits, q):
                break
        self._fed = list(tokens)
        self._draft = Draft(mx.concatenate(drafted, axis=1), mx.concatenate(probs, axis=1) if probs else None)
        return self._draft

    def _choose(
        self, logits: mx.array, preceding: mx.array | None, position: int, dice: mx.array
    ) -> tuple[mx.array, mx.array | None]:
        """(1, 1, ids of the head) -> the token drafted for a position, (1, 1), and the distribution (1, 1, V) that it
        was drawn from, if it was drawn.
        """
        sampling = self._sampling
        if sampling.is_greedy and not sampling.needs_history:
            best = mx.argmax(logits, axis=-1)
            return best if self._head is None else self._head.ids[best], None
        logits = self._fit(logits if self._head is None else self._head.spread(logits))
        if sampling.is_greedy:
            return mx.argmax(sampling.scores(logits, preceding), axis=-1), None
        if self._coupled:
            return mx.argmax(sampling.perturbed(logits, preceding, position), axis=-1), None
        logprobs = sampling.logprobs(logits, preceding)
        return mx.random.categorical(logprobs, key=dice), mx.exp(logprobs)

    def _is_unsure(self, new: mx.array, logits: mx.array, q: mx.array | None) -> bool:
        """Whether to stop behind `new`, which is kept: stopping in front of it would bias the output."""
        if not self._speaker.confidence_threshold:
            return False
        if q is None:
            likeliest = mx.softmax(logits.astype(mx.float32), axis=-1).max()
        else:
            likeliest = mx.take_along_axis(q, new[..., None], axis=-1)
        return likeliest.item() < self._speaker.confidence_threshold  # type: ignore[operator]  # waits

    def _rewind(self, tokens: Sequence[int]) -> None:
        """Keep what the cache and the committed tokens share, but for the last token, which is always fed anew.

        The draft was evaluated with the round that verified it, so reading it here costs no wait.
        """
        held = self._fed + token_ids(self._draft.tokens)[:-1]
        shared = next(
            (i for i, (ours, theirs) in enumerate(zip(held, tokens, strict=False)) if ours != theirs),
            min(len(held), len(tokens)),
        )
        self._cache.trim_to(min(shared, len(tokens) - 1))

    def _fit(self, logits: mx.array) -> mx.array:
        """(B, L, V of the draft) -> (B, L, V of the target): tables are padded to different sizes in some families."""
        missing = self._vocab_size - logits.shape[-1]
        if missing > 0:
            return mx.pad(logits, [(0, 0), (0, 0), (0, missing)], constant_values=-mx.inf)
        return logits[..., : self._vocab_size]


def require_same_tokens(target: EncoderDecoder, draft: EncoderDecoder) -> None:
    """Compare piece by piece and id by id; equal sizes prove nothing."""
    for name in ("decoder_start_token_id", "eos_token_ids", "pad_token_id"):
        ours, theirs = getattr(target.config, name), getattr(draft.config, name)
        if ours != theirs:
            raise InputError(
                f"draft model: its {name} is {theirs}, the target's is {ours}; choose a draft of the same family"
            )
    if target.tokenizer is None or draft.tokenizer is None:  # built in Python, without text: ids are all there is
        return
    if difference := target.tokenizer.vocabulary.first_difference(draft.tokenizer.vocabulary):
        index, ours, theirs = difference
        raise InputError(
            f"draft model: token {index} is {theirs!r}, in the target it is {ours!r}; choose a draft of the same family"
        )

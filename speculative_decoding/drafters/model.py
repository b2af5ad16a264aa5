"""Drafts from a smaller encoder-decoder (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..errors import InputError
from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..sampling import SamplingParams, Use, key
from .base import Draft, Drafter, token_ids


class ModelDrafter(Drafter):
    """Decodes ahead with `model`, sampling as the target will, and stays lazy: nothing here waits for the device.

    coupled: sample with the noise that belongs to each position, as the target then does; the tokens count as certain.

    Raises `InputError` if the model numbers its tokens differently from the target.
    """

    def __init__(
        self, model: EncoderDecoder, target: EncoderDecoder, sampling: SamplingParams, *, coupled: bool = False
    ) -> None:
        require_same_tokens(target, model)
        self._model = model
        self._vocab_size = target.config.vocab_size
        self._sampling = sampling
        self._coupled = coupled and not sampling.is_greedy

    def begin(self, input_tokens: Sequence[int]) -> None:
        memory = self._model.encode(mx.array([input_tokens]))
        self._cache: DecoderCache = self._model.make_cache(memory)
        self._fed: list[int] = []  # the committed tokens in the cache
        self._draft = Draft.empty()  # behind them, all of the last draft but its last token

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        if num_draft_tokens < 1:
            return Draft.empty()
        self._rewind(tokens)
        sampling, draws = self._sampling, not (self._sampling.is_greedy or self._coupled)
        if draws:
            keys = mx.random.split(key(sampling.seed, len(tokens), Use.DRAFT), num_draft_tokens)
        known = self._model.config.vocab_size - 1  # the target's table may be padded beyond the draft's
        new = mx.array([[min(token, known) for token in tokens[self._cache.offset :]]])
        drafted, probs = [], []
        preceding = mx.array([list(tokens)]) if sampling.needs_history else None
        for i in range(num_draft_tokens):
            logits = self._fit(self._model.decode(new, self._cache)[:, -1:])  # (1, 1, V)
            if draws:
                logprobs = sampling.logprobs(logits, preceding)
                new = mx.random.categorical(logprobs, key=keys[i])
                probs.append(mx.exp(logprobs))
            elif self._coupled:
                new = mx.argmax(sampling.perturbed(logits, preceding, len(tokens) + i), axis=-1)
            else:
                new = mx.argmax(sampling.scores(logits, preceding), axis=-1)
            drafted.append(new)
            if preceding is not None:
                preceding = mx.concatenate([preceding, new.astype(preceding.dtype)], axis=1)
        self._fed = list(tokens)
        self._draft = Draft(mx.concatenate(drafted, axis=1), mx.concatenate(probs, axis=1) if probs else None)
        return self._draft

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

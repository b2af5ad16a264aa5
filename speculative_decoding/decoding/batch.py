"""The requests that are decoded together, their cache, and the target's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from ..draft_length.passes import UNPADDED, PassWidths
from ..drafters.base import BatchDrafter, Draft
from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..sampling import token_logprobs
from .request import Request

if TYPE_CHECKING:
    from .ahead import PassAhead


@dataclass
class Batch:
    """Between rounds, the cache holds every committed token of each request but the last.

    Args:
        model: The target.
        drafter: Has begun every request.
        cache: The target's cache, with a row for each slot (with beams, a row for each beam).
        requests: One for each slot, None where the slot is free.
        widths: The widths that target passes may have; shorter inputs are padded.
        runs_ahead: Whether a round may start the pass of the next one; see `run_ahead`.
        ahead: That pass.
    """

    model: EncoderDecoder
    drafter: BatchDrafter
    cache: DecoderCache
    requests: list[Request | None]
    widths: PassWidths = UNPADDED
    runs_ahead: bool = False
    ahead: PassAhead | None = None

    def __post_init__(self) -> None:
        self.drafter.share(self.cache)

    @property
    def rows(self) -> list[Request | None]:
        """The active request of each slot."""
        return [None if request is None or request.finish_reason else request for request in self.requests]

    @property
    def active(self) -> list[Request]:
        return [request for request in self.rows if request is not None]

    @property
    def max_draft_tokens(self) -> int:
        """The longest draft that a pass can verify."""
        return self.widths.max_width(len(self.requests)) - 1

    def target_inputs(self, draft: Draft, last: mx.array | None = None) -> mx.array:
        """(B, L) ids, L >= K + 1: each row's last token, its draft tokens, then padding.

        last: (B, 1); by default the last committed tokens.
        """
        padding = self.model.config.pad_token_id
        if last is None:
            ids = [[padding if request is None else request.decoder_tokens[-1]] for request in self.requests]
            last = mx.array(ids, mx.uint32)
        width = self.widths.width(len(self.requests), 1 + draft.num_tokens)
        if width == 1:
            return last
        parts = [last, draft.tokens]
        if num_padding := width - 1 - draft.num_tokens:
            parts.append(mx.full((len(self.requests), num_padding), padding, mx.uint32))
        return mx.concatenate(parts, axis=1)

    def rewind(self, ahead: int = 0) -> None:
        """Keep every committed token but the last in the cache. Rejected tokens need no bookkeeping.

        ahead: the number of tokens after them that are kept too.
        """
        kept = [0 if request is None else request.num_cached + ahead for request in self.requests]
        self.cache.trim_to([each for each in kept for _ in range(self.cache.beams)])


def prefill_prefix(model: EncoderDecoder, cache: DecoderCache, request: Request, widths: PassWidths) -> None:
    """Feed a forced prefix except its last token, which the first round feeds. Lazy.

    cache: of this request alone, so that other rows are not computed.
    """
    evidence = request.evidence
    prefix = request.decoder_tokens[: max(request.num_cached, 0 if evidence is None else evidence.position)]
    for start, count, width in widths.chunks(1, len(prefix)):
        ids = prefix[start : start + count] + [model.config.pad_token_id] * (width - count)
        states = model.states(mx.array([ids] * cache.rows), cache)
        cache.trim_to([start + count] * cache.rows)
        if evidence is not None and start < evidence.position <= start + count:
            logits = model.logits(states[0, evidence.position - 1 - start]).astype(mx.float32)  # (V,)
            evidence.probability = mx.exp(token_logprobs(logits, mx.array(evidence.token)))
    cache.trim_to([request.num_cached] * cache.rows)

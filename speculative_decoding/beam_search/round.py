"""One round of beam search for all requests of a batch; takes the place of `speculate`.

A request's tokens are committed when its search is finished, because until then none of them is certain.
"""

from __future__ import annotations

import mlx.core as mx

from ..decoding.batch import Batch
from ..decoding.request import Request
from ..decoding.stats import Round
from ..sampling import History, scores
from ..sampling.distribution import logsumexp
from .search import BeamSearch, Continuation, TranscriptBeamSearch, best_continuations


def beam_search_step(batch: Batch) -> dict[int, Round]:
    """Run one round for all active requests; returns their rounds by slot."""
    rounds = {}
    order = list(range(batch.cache.rows))
    vocab_size = batch.model.config.vocab_size
    scores, numbers, is_finite = (array.tolist() for array in continuations(batch))
    for request in batch.active:
        search = require_search(request)
        rows = batch.cache.rows_of(request.slot)
        if all(is_finite[row] for row in rows):  # type: ignore[index]
            found = zip(scores[request.slot], numbers[request.slot], strict=True)  # type: ignore[index, arg-type]
            best = [Continuation(score, *divmod(number, vocab_size)) for score, number in found]
            parents = search.step(best[: search.num_continuations])
            order[rows.start : rows.stop] = [rows.start + parent for parent in parents]
        else:
            request.finish_reason = "error"
            for row in rows:
                batch.cache.zero_after(row, 0)
        tokens = request.commit(search.best(1)[0].tokens) if search.is_over else []
        if tokens and request.evidence is not None and isinstance(search, TranscriptBeamSearch):
            winner = search.best(1)[0]
            request.evidence.sum_logprob = winner.score * search.length_of(winner.tokens)
        rounds[request.slot] = Round(tokens, [], 0, finish_reason=request.finish_reason)
    batch.cache.reorder(order)
    batch.rewind()
    return rounds


def continuations(batch: Batch) -> list[mx.array]:
    """Run the target over the last token of every beam.

    Returns:
        Evaluated arrays for P slots with N beams each: the scores and the numbers of the best continuations (see
        `best_continuations`), both (P, C), and whether the logits of each beam are finite, (P * N,).
    """
    slots = len(batch.requests)
    beams = batch.cache.beams
    placeholder = batch.active[0]  # for slots without a request; its results are discarded
    requests = [placeholder if request is None or request.finish_reason else request for request in batch.requests]
    tokens = [ids for request in requests for ids in require_search(request).beams]
    options = [request.options for request in requests for _ in range(beams)]
    history = History(tokens, None, [request.constraints for request in requests for _ in range(beams)])
    states = batch.model.states(mx.array([ids[-1:] for ids in tokens], mx.uint32), batch.cache)  # (P * N, 1, d)
    logits = batch.model.logits(states).astype(mx.float32)
    logprobs = scores(logits - logsumexp(logits)[..., None], options, history)
    if isinstance(placeholder.search, TranscriptBeamSearch):
        logprobs = logprobs - logsumexp(logprobs)[..., None]
    beam_scores = mx.array([require_search(request).scores for request in requests])
    count = max(require_search(request).num_continuations for request in requests)
    found = best_continuations(logprobs.reshape(slots, beams, -1), beam_scores, count)
    arrays = [*found, mx.isfinite(logits.max(axis=-1)).flatten()]
    mx.eval(arrays)  # the only host sync of a round
    return arrays


def require_search(request: Request) -> BeamSearch:
    assert request.search is not None
    return request.search

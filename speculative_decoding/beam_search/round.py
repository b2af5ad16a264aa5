"""One round of beam search for all requests in a batch, used instead of `speculate`.

A request's tokens are committed only when its search is finished, because until then any beam may become the best.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from ..decoding.request import Request
from ..decoding.results import GenerationResult, Round
from ..decoding.round import Batch
from ..sampling import History, processed_logits
from ..sampling.distribution import logsumexp
from .search import BeamSearch, Continuation, best_continuations


def beam_search_step(batch: Batch, on_phase_end: Callable[[], None] | None = None) -> dict[Request, Round]:
    """Run one round for all requests.

    on_phase_end: Not called, because nothing is drafted.
    """
    rounds = {}
    order = list(range(batch.cache.rows))
    offsets = [0] * batch.cache.rows
    vocab_size = batch.model.config.vocab_size
    scores, numbers, is_finite = (array.tolist() for array in continuations(batch))
    for request in batch.requests:
        search = search_of(request)
        rows = batch.cache.rows_of(request.slot)
        if all(is_finite[row] for row in rows):  # type: ignore[index]
            found = zip(scores[request.slot], numbers[request.slot], strict=True)  # type: ignore[index, arg-type]
            best = [Continuation(score, *divmod(number, vocab_size)) for score, number in found]
            parents = search.step(best[: search.num_continuations])
            order[rows.start : rows.stop] = [rows.start + parent for parent in parents]
            offsets[rows.start : rows.stop] = [len(search.beams[0]) - 1] * len(rows)
        else:
            request.fail()
            for row in rows:
                batch.cache.zero_after(row, 0)
        tokens = finish(request, search) if search.is_over else []
        rounds[request] = Round(tokens, [], 0, finish_reason=request.finish_reason)
    batch.cache.reorder(order)
    batch.cache.trim_to(offsets)
    return rounds


def search_of(request: Request) -> BeamSearch:
    """Return the request's beam search, creating it if there is none yet."""
    if request.search is None:
        options = request.options
        assert options.length_penalty is not None and options.early_stopping is not None  # filled in by with_defaults
        request.search = BeamSearch(
            options.num_beams,
            options.length_penalty,
            options.early_stopping,
            options.max_tokens,
            request.streamer.eos_token_ids,
            [*request.decoder_tokens],
        )
    search: BeamSearch = request.search
    return search


def finish(request: Request, search: BeamSearch) -> list[int]:
    """Commit the best output, and return its tokens. All requested outputs become the request's results."""
    outputs = []
    for each in search.best(request.options.num_return_sequences):
        reason = request.reason_of_end(len(each.tokens)) if each.tokens[-1] in search.ends else "length"
        text = request.streamer.text_of(each.tokens)
        outputs.append(GenerationResult(text, each.tokens, reason, request.stats, score=each.score))
    request.outputs = outputs
    return request.commit(outputs[0].tokens)


def continuations(batch: Batch) -> list[mx.array]:
    """Run the target over the last token of every beam.

    Returns:
        Evaluated arrays for P slots with N beams each: the scores and numbers of the best continuations, both (P, C),
        as in `best_continuations`, and whether the logits of each beam are finite, (P * N,).
    """
    beams = batch.cache.beams
    first = batch.requests[0]
    requests = [request or first for request in batch.slots]  # the results of free slots are discarded
    searches = [search_of(request) for request in requests]
    tokens = [ids for search in searches for ids in search.beams]
    options = [request.options for request in requests for _ in range(beams)]
    history = History(tokens, None, [request.constraints for request in requests for _ in range(beams)])
    logits = batch.model.decode(mx.array([ids[-1:] for ids in tokens], mx.uint32), batch.cache)  # (P * N, 1, V)
    logits = logits.astype(mx.float32)
    logprobs = processed_logits(logits - logsumexp(logits)[..., None], options, history)
    if searches[0].normalizes_after_constraints:
        logprobs = logprobs - logsumexp(logprobs)[..., None]
    beam_scores = mx.array([search.scores for search in searches])
    count = max(search.num_continuations for search in searches)
    found = best_continuations(logprobs.reshape(len(requests), beams, -1), beam_scores, count)
    arrays = [*found, mx.isfinite(logits.max(axis=-1)).flatten()]
    mx.eval(arrays)  # the only host sync of a round
    return arrays

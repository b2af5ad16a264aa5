"""A round of beam search: one pass of the target over the last tokens of all beams, by which each search moves on. Its
tokens come when it is over, for until then none is certain.
"""

from __future__ import annotations

import mlx.core as mx

from ..sampling import History, scores
from ..sampling.distribution import logsumexp
from .batch import Batch, DecodedRow
from .beam import BeamSearch, Continuation, best_continuations
from .judge import Outcome, as_lists
from .loop import round_of
from .stats import Round


def follow_beams(batch: Batch) -> dict[int, Round]:
    """One round for all rows that are not finished; what came of it, by slot."""
    rounds, moved = {}, list(range(batch.cache.rows))
    values, numbers, is_finite = map(as_lists, verify(batch))
    size = batch.model.config.vocab_size
    for row in batch.active:
        search, own = searched(row), batch.cache.rows_of(row.slot)
        if all(is_finite[i] for i in own):
            found = zip(values[row.slot], numbers[row.slot], strict=True)
            best = [Continuation(score, *divmod(number, size)) for score, number in found]
            moved[own.start : own.stop] = [own.start + beam for beam in search.step(best[: search.num_continuations])]
        else:
            row.finish_reason = "error"
            for i in own:
                batch.cache.zero_after(i, 0)
        tokens = row.commit(search.best(1)[0].tokens) if search.is_over else []
        rounds[row.slot] = round_of(row, [], Outcome(tokens, 0, 0.0, None), "")
    batch.cache.reorder(moved)
    batch.rewind()
    return rounds


def verify(batch: Batch) -> list[mx.array]:
    """Of each slot the scores and numbers of its best continuations (see `best_continuations`), (P, C); of each beam
    whether its logits are finite, (P * N,). Evaluated.
    """
    prompts, beams = len(batch.rows), batch.cache.beams
    stand_in = batch.active[0]
    rows = [row if row is not None and not row.finish_reason else stand_in for row in batch.rows]
    tokens = [ids for row in rows for ids in searched(row).beams]
    options = [row.options for row in rows for _ in range(beams)]
    history = History(tokens, None, [row.constraints for row in rows for _ in range(beams)])
    states = batch.model.states(mx.array([ids[-1:] for ids in tokens], mx.uint32), batch.cache)  # (P * N, 1, d)
    logits = batch.model.logits(states).astype(mx.float32)
    logprobs = scores(logits - logsumexp(logits)[..., None], options, history)
    own = mx.array([searched(row).scores for row in rows])
    count = max(searched(row).num_continuations for row in rows)
    found = best_continuations(logprobs.reshape(prompts, beams, -1), own, count)
    arrays = [*found, mx.isfinite(logits.max(axis=-1)).flatten()]
    mx.eval(arrays)  # the round's only wait
    return arrays


def searched(row: DecodedRow) -> BeamSearch:
    assert row.search is not None
    return row.search

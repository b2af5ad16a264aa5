"""The loop: drafts propose, the target verifies them in one pass, a rule decides. Token ids only, no text.

A batch has a slot for each row, and a single request is a batch of one: there is no other loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import cast

import mlx.core as mx

from ..draft_length.schedules import Drafted, DraftLength, FixedLength
from ..drafters.base import Draft, token_ids
from ..drafters.batch import Asked, BatchDrafter
from ..errors import InputError
from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..models.compiled import Compiled, pass_width
from ..sampling import SamplingParams, token_logprobs
from .acceptance import AcceptanceRule, Greedy, Verdict
from .stats import Round

SPLIT_EVERY = 8  # every eighth round waits for its drafts as well, to learn what share of the time that takes

STRICT_TILE = 8  # rows


@dataclass(frozen=True)
class Settings:
    """How a request is decoded, whatever its models and prompt. See `stream_generate` for the fields.

    length: how many tokens to draft; requests may share one, which then learns from them all.
    logprobs: report the log-probability of every token.
    timed: measure in every round, not in every eighth, how its time is spent; costs a wait per round.

    Raises `InputError` that names the field.
    """

    length: DraftLength = field(default_factory=lambda: FixedLength(5))
    max_tokens: int = 100
    sampling: SamplingParams = field(default_factory=SamplingParams)
    rule: AcceptanceRule = field(default_factory=Greedy)
    strict: bool = False
    logprobs: bool = False
    timed: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InputError(f"max_tokens must be >= 1, not {self.max_tokens}")


@dataclass
class Row:
    """One request while it is decoded.

    tokens: the committed decoder ids; `given` of them (the start token, a forced prefix) were not generated.
    ends: is shown every new token and says whether it is the last; the `max_tokens`-th is in any case.
    finish_reason: why it ended, None while there is more to come.
    """

    settings: Settings
    ends: Callable[[int], bool]
    tokens: list[int]
    given: int = field(init=False)
    finish_reason: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.given = len(self.tokens)

    @property
    def room(self) -> int:
        """How many tokens may yet come."""
        return self.settings.max_tokens - (len(self.tokens) - self.given)

    def judge(self, draft: Draft, logits: mx.array) -> Verdict:
        """logits (1, L >= K + 1, V), raw."""
        settings, logits = self.settings, logits[:, : draft.num_tokens + 1]
        verdict = settings.rule.verdict(draft, logits, settings.sampling, self.tokens)
        return replace(verdict, logprobs=logprobs_of(draft, verdict, logits)) if settings.logprobs else verdict

    def take(self, verdict: Verdict, draft: Draft) -> Outcome:
        """Commit the new tokens up to the one that ends the output, which stays."""
        new, accepted, prices = verdict.read(draft)
        self.finish_reason = "length" if len(new) == self.room else None
        for i, token in enumerate(new):
            if self.ends(token):
                new, self.finish_reason = new[: i + 1], "stop"
                break
        self.tokens += new
        logprobs = verdict.read_logprobs(accepted)
        return Outcome(
            new, token_ids(draft.tokens), accepted, sum(prices[: len(new)]), logprobs and logprobs[: len(new)]
        )

    def report(self, asked: Asked, outcome: Outcome, times: Times) -> Round:
        """The cycle as others see it."""
        return Round(
            outcome.tokens,
            len(outcome.proposed),
            min(outcome.accepted, len(outcome.tokens)),
            times.seconds,
            times.draft,
            self.finish_reason,
            outcome.price,
            asked.kind,
            outcome.proposed,
            times.verify,
            outcome.logprobs,
        )


@dataclass(frozen=True)
class Outcome:
    """A row's part of a cycle: its new tokens, what was drafted and how many of that the rule accepted."""

    tokens: list[int]
    proposed: list[int]
    accepted: int
    price: float
    logprobs: list[float] | None


@dataclass(frozen=True)
class Times:
    """Of a cycle, in seconds; of its two parts only if it measured them."""

    seconds: float
    draft: float | None
    verify: float | None


def speculate(
    model: EncoderDecoder,
    cache: DecoderCache,
    drafter: BatchDrafter,
    rows: Sequence[Row | None],
    width: int | None = None,
) -> Iterator[dict[int, Round]]:
    """Yield one propose-verify-accept cycle after another: for each slot whose row took part, its `Round`.

    The cache holds all tokens of each row but the last, and the drafter has begun it. Between two cycles the caller
    may give the slot of a finished row to a new one. Ends when every row is finished, or None: an empty slot.
    width: of every pass of the target, from `strict_width`; None makes it wide enough for the longest draft.
    """
    for index in count():
        active = {slot: row for slot, row in enumerate(rows) if row is not None and not row.finish_reason}
        if not active:
            return
        started, traced = time.perf_counter(), Compiled.traced
        asked = ask(active, drafter)
        drafts = propose(asked, drafter)
        is_split = index % SPLIT_EVERY == 0 or any(row.settings.timed for row in active.values())
        draft_seconds = time_of(drafts.values(), started) if is_split else None

        logits = verify_pass(model, cache, rows, drafts, width)  # (B, K + 1, V)
        verdicts = {slot: row.judge(drafts[slot], logits[slot : slot + 1]) for slot, row in active.items()}
        likeliest = {slot: top_ids(logits[slot], k) for slot in active if (k := drafter.top_k(slot))}
        asking = time.perf_counter()
        mx.eval([[verdicts[slot].arrays, drafts[slot].tokens] for slot in active], likeliest)  # the only wait
        verify_seconds = time.perf_counter() - asking if is_split else None

        outcomes = {slot: row.take(verdicts[slot], drafts[slot]) for slot, row in active.items()}
        cache.trim_to([0 if row is None else len(row.tokens) - 1 for row in rows])  # every committed token but the last
        for slot, ids in likeliest.items():
            drafter.learn(slot, active[slot].tokens, id_rows(ids)[: len(outcomes[slot].tokens)])
        for slot, row in active.items():
            if row.finish_reason:
                drafter.end(slot, row.tokens)
        times = Times(time.perf_counter() - started, draft_seconds, verify_seconds)
        learn(active, asked, outcomes, times.seconds if Compiled.traced == traced else 0.0)
        yield {each.slot: active[each.slot].report(each, outcomes[each.slot], times) for each in asked}


def ask(active: Mapping[int, Row], drafter: BatchDrafter) -> list[Asked]:
    """For as many tokens as are worth drafting. The last that may come is never drafted."""
    asked: dict[int, Asked] = {}
    for length, slots in by_length(active):
        if length.rests():
            asked |= {slot: Asked(slot, active[slot].tokens, 0) for slot in slots}
            continue
        chosen = length.choose([(active[slot].room - 1, drafter.kinds(slot, active[slot].tokens)) for slot in slots])
        parts = zip(slots, chosen, strict=True)
        asked |= {slot: Asked(slot, active[slot].tokens, count, kind) for slot, (kind, count) in parts}
    return [asked[slot] for slot in active]


def propose(asked: Sequence[Asked], drafter: BatchDrafter) -> dict[int, Draft]:
    """A draft for each slot; the drafter hears only of those that are to have one."""
    drafts = dict.fromkeys((each.slot for each in asked), Draft.empty())
    wanted = [each for each in asked if each.num_draft_tokens]
    if wanted:
        drafts |= {each.slot: draft for each, draft in zip(wanted, drafter.propose(wanted), strict=True)}
    return drafts


def learn(active: Mapping[int, Row], asked: Sequence[Asked], outcomes: Mapping[int, Outcome], seconds: float) -> None:
    """Show the lengths what came of them. seconds: 0 if they say nothing."""
    parts = {
        each.slot: Drafted(each.num_draft_tokens, len(outcome.proposed), outcome.accepted, each.kind)
        for each in asked
        for outcome in [outcomes[each.slot]]
    }
    for length, slots in by_length(active):
        length.observe_rows([parts[slot] for slot in slots], seconds)


def by_length(active: Mapping[int, Row]) -> list[tuple[DraftLength, list[int]]]:
    """Each length with the slots of the rows that share it."""
    groups: dict[int, tuple[DraftLength, list[int]]] = {}
    for slot, row in active.items():
        groups.setdefault(id(row.settings.length), (row.settings.length, []))[1].append(slot)
    return list(groups.values())


def read_prefix(model: EncoderDecoder, cache: DecoderCache, row: Row, slot: int = 0) -> None:
    """Feed a forced prefix, all but its last token, with which `speculate` begins; the other rows stay. Lazy."""
    if row.given > 1:
        prefix, before = row.tokens[:-1], cache.offsets
        padding = [model.config.pad_token_id] * len(prefix)
        model.states(mx.array([prefix if i == slot else padding for i in range(cache.rows)]), cache)
        cache.trim_to([len(prefix) if i == slot else offset for i, offset in enumerate(before)])


def verify_pass(
    model: EncoderDecoder,
    cache: DecoderCache,
    rows: Sequence[Row | None],
    drafts: Mapping[int, Draft],
    width: int | None = None,
) -> mx.array:
    """Raw logits (B, L, V) behind each row's last token and its draft. L is `width`, or enough for the longest draft;
    behind a row's own draft stands padding, which the next rewind forgets.
    """
    width = width or pass_width(1 + max(draft.num_tokens for draft in drafts.values()))
    fed = []
    for slot, row in enumerate(rows):
        draft = drafts.get(slot) or Draft.empty()
        last = model.config.pad_token_id if row is None else row.tokens[-1]
        fed.append(draft.after(last, width, model.config.pad_token_id))
    return model.decode(fed[0] if len(fed) == 1 else mx.concatenate(fed), cache)


def strict_width(cache: DecoderCache, settings: Settings, given: int = 1) -> int:
    """Strict mode: all passes have one shape, in queries and in keys, so that no kernel and no order of additions can
    differ between decoding with and without a draft. Reserves all of the cache, returns the width of a pass.

    Whole tiles only: matrix kernels add up the rows of a tile that is cut short in another order, and then a
    token's bits would depend on where in the pass it stands (docs/LOG.md, "Strict mode"). given: how many tokens stand
    at the beginning (`Row.given`).
    """
    width = -(-(settings.length.most + 1) // STRICT_TILE) * STRICT_TILE
    cache.reserve(given - 1 + settings.max_tokens + width)
    return width


def logprobs_of(draft: Draft, verdict: Verdict, logits: mx.array) -> mx.array:
    """(K + 1,): of the drafted tokens, and behind them of the verdict's next token. Lazy."""
    next_logits = mx.take_along_axis(logits, verdict.accepted[:, None, None], axis=1)[:, 0]  # (1, V)
    following = token_logprobs(next_logits, verdict.next_token)
    if not draft.num_tokens:
        return following
    return mx.concatenate([token_logprobs(logits[:, : draft.num_tokens], draft.tokens)[0], following])


def top_ids(logits: mx.array, count: int) -> mx.array:
    """(L, V) -> (L, count): the likeliest ids, the likeliest first."""
    return mx.argsort(-logits, axis=-1)[..., :count]


def id_rows(ids: mx.array) -> list[list[int]]:
    return cast(list[list[int]], ids.tolist())


def time_of(drafts: Iterable[Draft], started: float) -> float:
    mx.eval([draft.tokens for draft in drafts])
    return time.perf_counter() - started

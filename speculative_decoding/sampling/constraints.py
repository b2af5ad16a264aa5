"""Constraints on the next token, given the tokens before it. The module `masking`, imported on first use, applies them.

They correspond to those Hugging Face logits processors that set logits to -inf: `NoRepeatNGram`, `NoBadWords`,
`SuppressTokens`, `SuppressTokensAtBegin`, `MinLength`, `MinNewTokensLength`, `ForcedBOSToken` and `ForcedEOSToken`
(transformers 5, `generation/logits_process.py`, where each name ends with `LogitsProcessor`). At a position after draft
tokens, these also count as preceding tokens, although they are still on the device. A position's number is the number
of preceding tokens, including the start token and the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import mlx.core as mx


class LogitsProcessor(Protocol):
    """A constraint that other fields of `Constraints` cannot express. All processors in a batch are of one type."""

    def process(self, logits: mx.array, history: History) -> tuple[mx.array, mx.array]:
        """Set the logits of forbidden ids to -inf in rows that have a processor.

        Args:
            logits: (B, L, V), with all other constraints applied.
            history: The tokens before each position.

        Returns:
            The logits, and each position's largest logit, (B, L), which saves `constrain` a pass over V.
        """

    def draft_choice(self, ids: mx.array, tokens: Sequence[Sequence[int]]) -> Callable[[mx.array], mx.array] | None:
        """Return a shortcut that chooses greedy draft tokens without applying all constraints, or None.

        Args:
            ids: (N,), the ids that may be proposed, sorted.
            tokens: Each row's committed tokens.

        Returns:
            A function from (B, N) logits to each row's next id, (B, 1). It is called once for each draft token.
        """


@dataclass(frozen=True)
class Constraints:
    """The constraints on one output.

    Args:
        no_repeat_ngram_size: No n-gram of this size occurs twice. 0 means no limit.
        banned: Sequences of one or more ids that never occur.
        not_before: Pairs (id, position): the id does not occur before this position.
        forced: Pairs (position, ids): one of the ids occurs at this position, regardless of all other constraints. If a
            position is listed twice, the last pair applies.
        processor: A processor that is applied after all other constraints except `forced`.
    """

    no_repeat_ngram_size: int = 0
    banned: tuple[tuple[int, ...], ...] = ()
    not_before: tuple[tuple[int, int], ...] = ()
    forced: tuple[tuple[int, tuple[int, ...]], ...] = ()
    processor: LogitsProcessor | None = None

    @cached_property
    def never(self) -> tuple[int, ...]:
        """Ids that never occur."""
        return tuple(ids[0] for ids in self.banned if len(ids) == 1)

    @cached_property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """Banned sequences of several ids."""
        return tuple(ids for ids in self.banned if len(ids) > 1)

    def forces(self, position: int) -> bool:
        return any(position == forced for forced, _ in self.forced)


class History(NamedTuple):
    """The tokens before each position, for penalties and constraints.

    Args:
        tokens: Each row's committed ids.
        drafted: (B, N), lazily computed draft ids that follow them, or None. All of them precede the last position, all
            but the last precede the position before it, and so on.
        constraints: Each row's constraints, or () if no row has any.
    """

    tokens: Sequence[Sequence[int]]
    drafted: mx.array | None = None
    constraints: Sequence[Constraints] = ()

    def positions(self, num_positions: int) -> list[range]:
        """The numbers of the last `num_positions` positions in each row."""
        first = 1 - num_positions + (0 if self.drafted is None else self.drafted.shape[1])
        return [range(count + first, count + first + num_positions) for count in map(len, self.tokens)]


def is_constrained(history: History, num_positions: int) -> bool:
    """Whether a constraint applies at any of the last `num_positions` positions."""
    if any(own.no_repeat_ngram_size or own.banned or own.processor for own in history.constraints):
        return True
    if not any(own.not_before or own.forced for own in history.constraints):  # the usual case
        return False
    return any(
        any(positions.start < position for _, position in own.not_before)
        or any(position in positions for position, _ in own.forced)
        for own, positions in zip(history.constraints, history.positions(num_positions), strict=False)
    )

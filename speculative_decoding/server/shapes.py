"""What OpenAI's clients expect: completions, their chunks, log-probabilities and usage."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

from .device import Step
from .service import Row


class Asked(Protocol):
    """What of a request decides the shape of its answer."""

    @property
    def include_usage(self) -> bool: ...

    @property
    def rounds(self) -> bool: ...

    @property
    def n(self) -> int: ...


class Shape:
    """Of one answer, whose parts have its id and time in common."""

    def __init__(self, model: str, asked: Asked) -> None:
        self._asked = asked
        self._base = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def answer(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**self._base, "choices": choices}

    def choice(self, row: Row, text: str, finish_reason: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        """seed: where the text was sampled, what gives it again."""
        made = {"text": text, "index": row.index, "logprobs": logprobs, "finish_reason": finish_reason}
        return made if row.options.is_greedy or finish_reason is None else made | {"seed": row.options.seed}

    def chunk(self, row: Row, step: Step) -> dict[str, Any] | None:
        """Of a round; None where it has nothing to say."""
        text, round = "".join(step.texts), step.round
        if not (text or round.finish_reason or row.options.logprobs or self._asked.rounds):
            return None
        choice = self.choice(row, text, round.finish_reason, self.logprobs(row, len(row.pieces) - len(step.texts)))
        if self._asked.rounds:
            choice["round"] = {"texts": step.texts, "accepted": round.accepted, "rejected": step.rejected}
        return self.answer([choice]) | ({"usage": None} if self._asked.include_usage else {})

    def logprobs(self, row: Row, first: int) -> dict[str, Any] | None:
        """Of the tokens from `first` on. A token that adds nothing to the text, as the one that ends it, has none."""
        if not row.options.logprobs:
            return None
        offsets = [0, *accumulate(map(len, row.pieces))]
        return {
            "tokens": row.pieces[first:],
            "token_logprobs": row.logprobs[first:],
            "top_logprobs": None,
            "text_offset": offsets[first:-1],
        }

    def usage(self, rows: Sequence[Row]) -> dict[str, Any]:
        """target_calls: passes of the target's decoder, an addition of ours."""
        stats = [row.stats for row in rows if row.stats is not None]
        read = sum(row.prompt_tokens for row in rows[:: self._asked.n])
        written, drafted = sum(each.generated_tokens for each in stats), sum(each.drafted_tokens for each in stats)
        accepted = sum(each.accepted_tokens for each in stats)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
            "target_calls": sum(each.target_calls for each in stats),
        }

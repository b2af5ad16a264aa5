"""Completions as OpenAI's clients have them. What may be asked, with the options of `GenerationOptions` as further
fields; and what is answered: choices, chunks, log-probabilities and usage.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.options import MAX_SEED, current_names, option_specs, validate
from ..sampling.random import sample_seed
from ..sampling.values import Bool, Int, ListOf, Text, Union
from .decoding_thread import PromptUpdate, ServedPrompt
from .errors import ServerError
from .service import Service

NEUTRAL: Mapping[str, tuple[Any, str]] = {  # OpenAI's fields that change nothing with this value: why no other is taken
    "echo": (False, "the prompt is another text than the output, and no part of it"),
    "best_of": (1, "ask for n, and choose"),
    "frequency_penalty": (0, "there is repetition_penalty"),
    "presence_penalty": (0, "there is repetition_penalty"),
    "logit_bias": ({}, "there is nothing like it here"),
    "suffix": ("", "an encoder-decoder writes no middle"),
}
PROMPT = Union((Text(may_be_empty=True), ListOf(Text(may_be_empty=True))))


@dataclass(frozen=True)
class CompletionRequest:
    """A request, understood. prompts: each with the options of one choice, in the order of the choices. rounds: our own
    field: chunks tell what was drafted.
    """

    prompts: Sequence[tuple[str, GenerationOptions]]
    stream: bool
    include_usage: bool
    rounds: bool
    n: int

    @classmethod
    def of(cls, fields: Mapping[str, Any], service: Service, model: str) -> CompletionRequest:
        """Raises `ServerError` that names the field."""
        given = dict(fields)
        if (named := given.pop("model", model)) != model:
            raise ServerError(
                404, f"there is no model {str(named)[:80]!r} here, only {model!r}", "model", "model_not_found"
            )
        for name, (value, reason) in NEUTRAL.items():
            if (found := given.pop(name, value)) != value or isinstance(found, bool) != isinstance(value, bool):
                raise ServerError(400, f"{name} must be {value!r}: {reason}", name, "unsupported_value")
        own = {"stream": False, "stream_options": {}, "rounds": False, "n": 1}
        stream, stream_options, rounds, n = (given.pop(name, usual) for name, usual in own.items())
        try:
            stream, rounds = validate("stream", Bool(), stream), validate("rounds", Bool(), rounds)
            n = validate("n", Int(1), n)
            prompt = validate("prompt", PROMPT, given.pop("prompt", ""))
            prompts = [prompt] if isinstance(prompt, str) else list(prompt)
            options = options_of(given, service.options)
        except InputError as error:
            raise ServerError.of(error) from None
        if not prompts or len(prompts) * n > service.limits.max_prompts:
            most = service.limits.max_prompts
            raise ServerError(400, f"prompt and n must ask for 1 to {most} texts, not {len(prompts) * n}", "prompt")
        if n > 1 and options.is_greedy:
            raise ServerError(400, "n must be 1 at temperature 0, where a prompt has one text", "n")
        if rounds and not stream:
            raise ServerError(400, "rounds has no effect without stream; leave it out", "rounds")
        include_usage = usage_wanted(stream_options, stream)
        seeds = [sample_seed(options.seed, number) for number in range(n)]
        rows = [(prompt, replace(options, seed=seed)) for prompt in prompts for seed in seeds]
        return cls(rows, stream, include_usage, rounds, n)


def usage_wanted(stream_options: Any, stream: bool) -> bool:
    if not isinstance(stream_options, dict) or not stream_options.keys() <= {"include_usage"}:
        raise ServerError(400, 'stream_options must be an object with "include_usage" alone', "stream_options")
    if stream_options and not stream:
        raise ServerError(400, "stream_options has no effect without stream; leave it out", "stream_options")
    wanted = stream_options.get("include_usage", False)
    if not isinstance(wanted, bool):
        raise ServerError(400, "stream_options.include_usage must be true or false", "stream_options")
    return wanted


def options_of(given: dict[str, Any], usual: GenerationOptions) -> GenerationOptions:
    """The server's options with those of a request. Raises `InputError`, or `ServerError`."""
    given = current_names(given)
    if "num_return_sequences" in given:
        raise ServerError(400, "num_return_sequences is called n here", "num_return_sequences", "unsupported_value")
    for name in given:
        if name in option_specs() and not option_specs()[name].per_row:
            raise ServerError(400, f"{name} is chosen when the server starts; leave it out", name, "unsupported_value")
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    if "logprobs" in given and not isinstance(given["logprobs"], bool):
        if validate("logprobs", Int(0), given["logprobs"]) > 0:
            message = "logprobs must be 0: of each token its own log-probability is known, those of others are not kept"
            raise ServerError(400, message, "logprobs", "unsupported_value")
        given["logprobs"] = True
    given.setdefault("seed", secrets.randbelow(MAX_SEED + 1))
    options = usual.override_for_row(given)
    options.require_effect(given)
    return options


class CompletionResponse:
    """Of one answer, whose parts have its id and time in common."""

    def __init__(self, model: str, asked: CompletionRequest) -> None:
        self._asked = asked
        self._base = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def answer(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**self._base, "choices": choices}

    def choice(
        self, row: ServedPrompt, text: str, finish_reason: str | None, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        """seed: where the text was sampled, what gives it again."""
        made = {"text": text, "index": row.index, "logprobs": logprobs, "finish_reason": finish_reason}
        return made if row.options.is_greedy or finish_reason is None else made | {"seed": row.options.seed}

    def chunk(self, row: ServedPrompt, step: PromptUpdate) -> dict[str, Any] | None:
        """Of a round; None where it has nothing to say."""
        text, round = "".join(step.texts), step.round
        if not (text or round.finish_reason or row.options.logprobs or self._asked.rounds):
            return None
        choice = self.choice(row, text, round.finish_reason, self.logprobs(row, len(row.pieces) - len(step.texts)))
        if self._asked.rounds:
            choice["round"] = {"texts": step.texts, "accepted": round.accepted, "rejected": step.rejected}
        return self.answer([choice]) | ({"usage": None} if self._asked.include_usage else {})

    def logprobs(self, row: ServedPrompt, first: int) -> dict[str, Any] | None:
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

    def usage(self, rows: Sequence[ServedPrompt]) -> dict[str, Any]:
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

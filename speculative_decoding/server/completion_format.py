"""OpenAI's format of completions: parses requests, and builds responses, stream chunks, logprobs and usage.

All options of `GenerationOptions` that may differ between prompts are additional fields.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..decoding.results import Round
from ..drafters.base import COPY, MEMORY, TEXT
from ..engine import Event
from ..errors import InputError, UnknownOption
from ..loading.tokenizer import continuation_text
from ..sampling import GenerationOptions
from ..sampling.options import MAX_SEED, OTHER_NAMES, option_specs, short_repr, validate
from ..sampling.values import Bool, Int, ListOf, Text, Union
from ..session import Session
from .errors import ServerError
from .model_names import ModelNames
from .prompts import ClientPrompt
from .service import Service

# OpenAI's fields that are accepted only with the value that has no effect: this value, and the reason
UNSUPPORTED: Mapping[str, tuple[Any, str]] = {
    "echo": (False, "the output of an encoder-decoder does not continue the prompt"),
    "best_of": (1, "use n and choose one"),
    "frequency_penalty": (0, "use repetition_penalty"),
    "presence_penalty": (0, "use repetition_penalty"),
    "logit_bias": ({}, "not supported"),
    "suffix": ("", "an encoder-decoder does not fill in text"),
}
# OpenAI's fields that are ignored, because they concern accounts, billing, caches and stored answers
IGNORED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)


EMPTY_IS_MISSING = ("model", "stop", "src_lang", "tgt_lang")  # an empty string counts as a missing field
FIELDS = (
    *("prompt", "model", "n", "stream", "stream_options", "rounds", "prediction"),
    *(name for name, spec in option_specs().items() if spec.per_row and name != "num_return_sequences"),
)


@dataclass(frozen=True)
class CompletionRequest:
    """The fields of a request."""

    prompts: Sequence[tuple[str, GenerationOptions]]  # each has n choices
    n: int
    stream: bool
    include_usage: bool
    rounds: bool  # not an OpenAI field: chunks describe the draft of their round


def parse_completion_request(fields: Mapping[str, Any], service: Service, names: ModelNames) -> CompletionRequest:
    """Parse a request. Raises a `ServerError` that names the field."""
    is_empty = {name for name in EMPTY_IS_MISSING if fields.get(name) == ""}
    fields = {name: value for name, value in fields.items() if name not in IGNORED and name not in is_empty}
    names.require(fields.pop("model", names.id))
    for name, (neutral, reason) in UNSUPPORTED.items():
        value = fields.pop(name, neutral)
        if value != neutral or isinstance(value, bool) != isinstance(neutral, bool):
            raise ServerError(400, f"{name}: must be {json.dumps(neutral)}: {reason}", name, "unsupported_value")

    stream_options = fields.pop("stream_options", {})
    draft_field = "draft_text"
    if "prediction" in fields:
        if "draft_text" in fields:
            raise ServerError(400, "prediction: cannot be combined with draft_text; leave one out", "prediction")
        draft_field = "prediction"
        fields["draft_text"] = parse_prediction(fields.pop("prediction"))
    try:
        stream = validate("stream", Bool(), fields.pop("stream", False))
        rounds = validate("rounds", Bool(), fields.pop("rounds", False))
        n = validate("n", Int(1), fields.pop("n", 1))
        text = Text(may_be_empty=True)
        prompt = validate("prompt", Union((text, ListOf(text))), fields.pop("prompt", ""))
        if "max_tokens" in fields:
            validate("max_tokens", Int(1, service.limits.max_output_tokens), fields["max_tokens"])
        options = parse_options(fields, service.options)
        if "draft_text" in fields:
            service.limits.check_draft_texts(draft_field, options.draft_text)
    except UnknownOption as error:
        name = str(error.field)
        if name in OTHER_NAMES:
            raise ServerError.of(error) from None
        raise ServerError.unknown_field(name, FIELDS) from None
    except InputError as error:
        raise ServerError.of(error, lambda name: draft_field if name == "draft_text" else name) from None

    if isinstance(prompt, str) and not prompt.strip():
        raise ServerError(400, "prompt: is empty; give it some text", "prompt", "invalid_value")
    texts = [prompt] if isinstance(prompt, str) else list(prompt)
    max_prompts = service.limits.max_prompts
    if not 1 <= len(texts) * n <= max_prompts:
        message = f"prompt: prompt and n must ask for 1 to {max_prompts} texts, not {len(texts) * n}"
        raise ServerError(400, message, "prompt")
    if n > 1 and options.is_greedy:
        raise ServerError(400, "n: must be 1 at temperature 0, where all choices are the same", "n")
    if rounds and not stream:
        raise ServerError(400, "rounds: has no effect without stream; leave it out", "rounds")

    include_usage = parse_include_usage(stream_options, stream)
    options = options.with_values(num_return_sequences=n)
    return CompletionRequest([(text, options) for text in texts], n, stream, include_usage, rounds)


def parse_prediction(value: Any) -> str:
    """Return the text of OpenAI's `prediction`. Its parts follow each other. Raises a `ServerError`."""
    if not isinstance(value, dict) or value.keys() != {"type", "content"} or value["type"] != "content":
        problem = f'must be {{"type": "content", "content": ...}}, not {short_repr(value)}'
        raise ServerError(400, f"prediction: {problem}", "prediction", "invalid_value")
    content = value["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(map(is_text_part, parts)):
        problem = f'must be a text, or a list of {{"type": "text", "text": ...}}, not {short_repr(content)}'
        raise ServerError(400, f"prediction.content: {problem}", "prediction", "invalid_value")
    return "".join(part["text"] for part in parts)


def is_text_part(part: Any) -> bool:
    is_part = isinstance(part, dict) and part.keys() == {"type", "text"}
    return is_part and part["type"] == "text" and isinstance(part["text"], str)


def parse_include_usage(stream_options: Any, stream: bool) -> bool:
    if not isinstance(stream_options, dict) or not stream_options.keys() <= {"include_usage"}:
        raise ServerError(400, 'stream_options: must be an object with only "include_usage"', "stream_options")
    if stream_options and not stream:
        raise ServerError(400, "stream_options: has no effect without stream; leave it out", "stream_options")
    include_usage = stream_options.get("include_usage", False)
    if not isinstance(include_usage, bool):
        raise ServerError(400, "stream_options.include_usage: must be true or false", "stream_options")
    return include_usage


def parse_options(fields: Mapping[str, Any], defaults: GenerationOptions) -> GenerationOptions:
    """Return the server's options, overridden by the fields of a request. Raises `InputError` or `ServerError`."""
    fields = dict(fields)
    if "num_return_sequences" in fields:
        message = "num_return_sequences: is not a field of this API; use n"
        raise ServerError(400, message, "num_return_sequences", "unsupported_value")
    for name, spec in option_specs().items():
        if name in fields and not spec.per_row:
            message = f"{name}: is set when the server starts; leave it out"
            raise ServerError(400, message, name, "unsupported_value")
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    if "logprobs" in fields and not isinstance(fields["logprobs"], bool):
        if validate("logprobs", Int(0), fields["logprobs"]) > 0:
            message = "logprobs: must be 0: only the logprobs of the generated tokens are available"
            raise ServerError(400, message, "logprobs", "unsupported_value")
        fields["logprobs"] = True
    fields.setdefault("seed", secrets.randbelow(MAX_SEED + 1))
    options = defaults.override_for_row(fields)
    options.require_effect(fields)
    return options


class CompletionResponse:
    """Builds the JSON of one response. All its chunks have the same id and time."""

    def __init__(self, model: str, request: CompletionRequest, session: Session) -> None:
        self._request = request
        self._session = session
        self._base = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def complete(self, prompts: Sequence[ClientPrompt]) -> dict[str, Any]:
        """Return the whole response, for requests without `stream`."""
        choices = [choice(prompt, prompt.text, prompt.finish_reason, first_token=0) for prompt in prompts]
        return {**self._base, "choices": choices, "usage": self._usage(prompts)}

    def chunk(self, prompt: ClientPrompt, event: Event | None) -> dict[str, Any] | None:
        """Return the stream chunk of a round, or None if it would be empty. event: None for a blank prompt."""
        round = Round([], [], 0, finish_reason=prompt.finish_reason) if event is None else event.round
        texts = [] if event is None else event.texts
        text = "".join(texts)
        finish_reason = round.finish_reason
        if not (text or finish_reason or prompt.options.logprobs or self._request.rounds):
            return None
        first_token = len(prompt.token_texts) - len(texts)
        fields = choice(prompt, text, finish_reason, first_token)
        if self._request.rounds:
            rejected = rejected_text(self._session, prompt, round)
            fields["round"] = {"texts": texts, "accepted": round.accepted, "rejected": rejected}
        usage = {"usage": None} if self._request.include_usage else {}
        return {**self._base, "choices": [fields], **usage}

    def usage_chunks(self, prompts: Sequence[ClientPrompt]) -> list[dict[str, Any]]:
        """Return the chunk with the usage if the request has `include_usage`, otherwise nothing."""
        last = {**self._base, "choices": [], "usage": self._usage(prompts)}
        return [last] if self._request.include_usage else []

    def _usage(self, prompts: Sequence[ClientPrompt]) -> dict[str, Any]:
        """Add up the counts. The prediction tokens are those of the request's own draft texts, as in OpenAI's API.

        OpenAI has no fields for all drafts (`drafted_tokens`, `accepted_tokens`) and the target's passes.
        """
        stats = [prompt.stats for prompt in prompts if prompt.stats is not None]
        prompt_tokens = sum(each.prompt_tokens for each in stats[:: self._request.n])
        completion_tokens = sum(each.generated_tokens for each in stats)
        own = [each.stats for each in prompts if each.stats is not None and has_own_texts(each, self._session)]
        predicted = sum(each.drafted_by_kind[TEXT] for each in own)
        accepted = sum(each.accepted_by_kind[TEXT] for each in own)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": predicted - accepted,
            },
            "drafted_tokens": sum(each.drafted_tokens for each in stats),
            "accepted_tokens": sum(each.accepted_tokens for each in stats),
            "target_calls": sum(each.target_calls for each in stats),
        }


def has_own_texts(prompt: ClientPrompt, session: Session) -> bool:
    """Whether the draft texts of a prompt, if there are any, are its client's and not the server's default."""
    return prompt.options.draft_text != session.options.draft_text


def rejected_text(session: Session, prompt: ClientPrompt, round: Round) -> str:
    """Return the text of the draft tokens that the last round of a prompt rejected.

    Text that is not the client's own is not shown: copies from the n-gram store, which another client may have sent,
    and the texts and the translation memory that the server was started with.
    """
    is_hidden = {
        COPY: session.ngram is not None and session.ngram.store is not None,
        TEXT: not has_own_texts(prompt, session),
        MEMORY: True,
    }
    # If a round ends the text with an accepted token, the tokens after it were not verified
    if is_hidden.get(round.kind) or round.accepted >= len(round.tokens):
        return ""
    before = prompt.tokens[: len(prompt.tokens) - len(round.tokens) + round.accepted]
    return continuation_text(session.tokenizer, before, round.rejected)


def choice(prompt: ClientPrompt, text: str, finish_reason: str | None, first_token: int) -> dict[str, Any]:
    """Return a choice, or the part of it that a chunk contains. A finished sample has a `seed`, which reproduces it."""
    fields: dict[str, Any] = {
        "text": text,
        "index": prompt.index,
        "logprobs": logprobs(prompt, first_token) if prompt.options.logprobs else None,
        "finish_reason": finish_reason,
    }
    if finish_reason is not None and not prompt.options.is_greedy:
        fields["seed"] = prompt.options.seed
    return fields


def logprobs(prompt: ClientPrompt, first_token: int) -> dict[str, Any]:
    """Return the logprobs from `first_token` on. A token without text, such as end-of-sequence, has the text ""."""
    offsets = [0, *accumulate(map(len, prompt.token_texts))]
    return {
        "tokens": prompt.token_texts[first_token:],
        "token_logprobs": prompt.logprobs[first_token:],
        "top_logprobs": None,
        "text_offset": offsets[first_token:-1],
    }

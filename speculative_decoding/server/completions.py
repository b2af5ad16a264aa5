"""POST /v1/completions: parses requests in OpenAI's format, and builds responses, stream chunks, logprobs and usage.

All `GenerationOptions` that may differ between the prompts of a batch are accepted as additional fields.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..decoding.results import GenerationStats, Round
from ..drafters.base import COPY, MEMORY, TEXT
from ..engine import Event
from ..errors import InputError
from ..loading.tokenizer import continuation_text
from ..sampling import GenerationOptions
from ..sampling.options import MAX_SEED
from ..sampling.values import Bool, Int, ListOf, OneOrMore, Text, Union, Value
from ..session import Session
from .bodies import EventStream, cancel_on_disconnect, event_line
from .errors import ServerError
from .fields import ANY_TEXT, JSON, Anything, Field, option_fields, option_names, parse_fields, read_fields
from .model_names import ModelNames, served_names
from .prompts import ClientPrompt, client_prompts
from .service import Service
from .streams import stream


class Prediction(Value):
    """OpenAI's `prediction` field. The accepted value is its text, with all parts joined."""

    expected = '{"type": "content", "content": ...} with a text, or a list of {"type": "text", "text": ...}'
    metavar = "TEXT"

    def accept(self, value: Any) -> str:
        if not isinstance(value, dict) or value.keys() != {"type", "content"} or value["type"] != "content":
            raise TypeError
        content = value["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list) or not all(map(is_text_part, parts)):
            raise TypeError
        return "".join(part["text"] for part in parts)


def is_text_part(part: Any) -> bool:
    is_part = isinstance(part, dict) and part.keys() == {"type", "text"}
    return is_part and part["type"] == "text" and isinstance(part["text"], str)


OBFUSCATED_BYTES = 64  # the size of each padded line is a multiple of this

# OpenAI's fields for accounts, billing, caches and stored answers
IGNORED = (
    *("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
    *("service_tier", "store", "user"),
)
FIELDS: Mapping[str, Field] = {
    "prompt": Field(Union((ANY_TEXT, ListOf(ANY_TEXT)))),
    "model": Field(Anything(), blank=True),
    "n": Field(Int(1)),
    "stream": Field(Bool()),
    "stream_options": Field({"include_usage": Field(Bool()), "include_obfuscation": Field(Bool())}),
    "rounds": Field(Bool()),
    "prediction": Field(Prediction(), option="draft_text"),
    **option_fields(),
    "stop": Field(OneOrMore(Text()), blank=True),
    "src_lang": Field(Text(), blank=True),
    "tgt_lang": Field(Text(), blank=True),
    "logprobs": Field(Union((Bool(), Int(0)))),
    "num_return_sequences": Field(refused="is not a field of this API; use n"),
    "echo": Field(only=False, refused="the output of an encoder-decoder does not continue the prompt"),
    "best_of": Field(only=1, refused="use n and choose one"),
    "frequency_penalty": Field(only=0, refused="use repetition_penalty"),
    "presence_penalty": Field(only=0, refused="use repetition_penalty"),
    "logit_bias": Field(only={}, refused="logit biases are not supported"),
    "suffix": Field(only="", refused="an encoder-decoder does not fill in text"),
    **dict.fromkeys(IGNORED, Field(Anything(), ignored=True)),
}


def parse_completion(fields: Mapping[str, Any], service: Service, names: ModelNames) -> Completion:
    """Parse a request. Raises a `ServerError` that names the field."""
    limits = service.limits
    is_predicted = fields.get("prediction") is not None
    if is_predicted and fields.get("draft_text") is not None:
        raise ServerError.of_field("prediction", "cannot be combined with draft_text; leave one out")
    own = parse_fields(fields, {**FIELDS, "max_tokens": Field(Int(1, limits.max_output_tokens))})
    model = names.find(own.pop("model", None))
    prompt, n = own.pop("prompt", ""), own.pop("n", 1)
    stream, rounds = own.pop("stream", False), own.pop("rounds", False)
    include_usage, include_obfuscation = (own.pop(f"include_{each}", None) for each in ("usage", "obfuscation"))
    field_names = option_names(FIELDS) if is_predicted else {}
    try:
        options = options_of(own, service.options)
    except InputError as error:
        raise ServerError.of(error, field_names) from None
    if "draft_text" in own:
        limits.check_draft_texts(field_names.get("draft_text", "draft_text"), options.draft_text)

    if isinstance(prompt, str) and not prompt.strip():
        raise ServerError.of_field("prompt", "is empty; give it some text", "invalid_value")
    texts = [prompt] if isinstance(prompt, str) else list(prompt)
    if not 1 <= len(texts) * n <= limits.max_prompts:
        problem = f"prompt and n must request 1 to {limits.max_prompts} texts, not {len(texts) * n}"
        raise ServerError.of_field("prompt", problem)
    if n > 1 and options.is_greedy:
        raise ServerError.of_field("n", "must be 1 at temperature 0, where all choices are the same")
    for name, given in (("rounds", rounds), ("stream_options", (include_usage, include_obfuscation) != (None, None))):
        if given and not stream:
            raise ServerError.of_field(name, "has no effect without stream; leave it out")

    options = options.with_values(num_return_sequences=n)
    prompts = client_prompts([(text, options) for text in texts])
    return Completion(
        model, prompts, service.session, n, stream, include_usage or False, include_obfuscation or False, rounds
    )


def options_of(fields: Mapping[str, Any], defaults: GenerationOptions) -> GenerationOptions:
    """Return the server's options, with those that a request sets replaced. Raises `InputError` or `ServerError`."""
    fields = {"seed": secrets.randbelow(MAX_SEED + 1), **fields}
    if not isinstance(fields.get("logprobs", False), bool):
        if fields["logprobs"] > 0:
            problem = "must be 0: only the logprobs of the generated tokens are available"
            raise ServerError.of_field("logprobs", problem, "unsupported_value")
        fields["logprobs"] = True
    options = defaults.override_for_row(fields)
    options.require_effect(fields)
    return options


@dataclass
class Completion:
    """A parsed request, which also builds its response. All chunks of a response have the same id and creation time."""

    model: str  # name of the model in the response
    prompts: Sequence[ClientPrompt]  # for each prompt of the request, the `n` samples that become its choices
    session: Session
    n: int
    stream: bool
    include_usage: bool
    include_obfuscation: bool  # whether to pad chunks; false by default, unlike in OpenAI's API
    rounds: bool  # whether chunks describe the draft of their round; not an OpenAI field

    def __post_init__(self) -> None:
        self._base = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.model,
        }

    def response(self) -> dict[str, Any]:
        """Return the complete response, for requests without `stream`."""
        choices = [choice(prompt, prompt.text, prompt.finish_reason, first_token=0) for prompt in self.prompts]
        return {**self._base, "choices": choices, "usage": self._usage()}

    def chunk(self, prompt: ClientPrompt, event: Event | None) -> dict[str, Any] | None:
        """Return the stream chunk for a round, or None if the chunk would be empty. event: None for a blank prompt."""
        round = Round([], [], 0, finish_reason=prompt.finish_reason) if event is None else event.round
        texts = [] if event is None else event.texts
        text = "".join(texts)
        finish_reason = round.finish_reason
        if not (text or finish_reason or prompt.options.logprobs or self.rounds):
            return None
        first_token = len(prompt.token_texts) - len(texts)
        fields = choice(prompt, text, finish_reason, first_token)
        if self.rounds:
            rejected = rejected_text(self.session, prompt, round)
            fields["round"] = {"texts": texts, "accepted": round.accepted, "rejected": rejected}
        usage = {"usage": None} if self.include_usage else {}
        chunk = {**self._base, "choices": [fields], **usage}
        return obfuscated(chunk) if self.include_obfuscation else chunk

    def usage_chunks(self) -> list[dict[str, Any]]:
        """Return a list with the usage chunk if the request sets `include_usage`, otherwise an empty list."""
        return [{**self._base, "choices": [], "usage": self._usage()}] if self.include_usage else []

    def _usage(self) -> dict[str, Any]:
        """Return the total counts. As in OpenAI's API, prediction tokens are drafts from the request's own draft texts.

        The counts of all drafts (`drafted_tokens`, `accepted_tokens`) and of target passes are not OpenAI fields.
        """
        total, own = GenerationStats(), GenerationStats()
        for prompt in self.prompts:
            if prompt.stats is not None:
                total.add(prompt.stats)
                if has_own_texts(prompt, self.session):
                    own.add(prompt.stats)
        prompt_tokens = sum(each.stats.prompt_tokens for each in self.prompts[:: self.n] if each.stats is not None)
        accepted = own.accepted_by_kind[TEXT]
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + total.generated_tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": own.drafted_by_kind[TEXT] - accepted,
            },
            **draft_usage(total),
        }


def obfuscated(chunk: dict[str, Any]) -> dict[str, Any]:
    """Pad a chunk with random characters, so that its size on the network reveals little about the text."""
    missing = -len(event_line({**chunk, "obfuscation": ""}).encode()) % OBFUSCATED_BYTES
    return {**chunk, "obfuscation": secrets.token_urlsafe(missing)[:missing]}


def draft_usage(stats: GenerationStats) -> dict[str, int]:
    """Return the counts that are reported as usage in every API."""
    return {
        "completion_tokens": stats.generated_tokens,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "target_calls": stats.target_calls,
    }


def has_own_texts(prompt: ClientPrompt, session: Session) -> bool:
    """Return whether a prompt's draft texts, if any, come from the client rather than from the server's defaults."""
    return prompt.options.draft_text != session.options.draft_text


def rejected_text(session: Session, prompt: ClientPrompt, round: Round) -> str:
    """Return the text of the draft tokens that were rejected in a prompt's last round, or "" if it is secret.

    Drafts from sources other than the client's own texts are secret: copies from the n-gram store, which may contain
    other clients' texts, and drafts from the draft texts and translation memory with which the server was started.
    """
    is_hidden = {
        COPY: session.ngram is not None and session.ngram.store is not None,
        TEXT: not has_own_texts(prompt, session),
        MEMORY: True,
    }
    # If an accepted token ended the output, the draft tokens after it were not verified
    if is_hidden.get(round.kind) or round.accepted >= len(round.tokens):
        return ""
    before = prompt.tokens[: len(prompt.tokens) - len(round.tokens) + round.accepted]
    return continuation_text(session.tokenizer, before, round.rejected)


def choice(prompt: ClientPrompt, text: str, finish_reason: str | None, first_token: int) -> dict[str, Any]:
    """Return a choice, or a chunk's part of one. A finished sample's choice contains the `seed` that reproduces it."""
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
    """Return the logprobs from `first_token` on. The text of a special token, such as end-of-sequence, is ""."""
    offsets = [0, *accumulate(map(len, prompt.token_texts))]
    return {
        "tokens": prompt.token_texts[first_token:],
        "token_logprobs": prompt.logprobs[first_token:],
        "top_logprobs": None,
        "text_offset": offsets[first_token:-1],
    }


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    service.require_text()
    fields = await read_fields(request, service.limits.max_body, JSON)
    assert isinstance(fields, dict)
    completion = parse_completion(fields, service, served_names(request.app.state))
    request.scope["prompts"] = [item.prompt for item in completion.prompts[:: completion.n]]
    if not completion.stream:
        await cancel_on_disconnect(request.receive, service.decode(completion.prompts))
        return JSONResponse(completion.response())

    events = stream(service, completion.prompts, completion.chunk, completion.usage_chunks)
    await cancel_on_disconnect(request.receive, anext(events))  # an error before the first event sets the HTTP status
    return EventStream(events, service.limits.max_seconds)

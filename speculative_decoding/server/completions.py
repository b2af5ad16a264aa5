"""POST /v1/completions, in OpenAI's shape, with the options of `GenerationOptions` as further fields."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.options import MAX_SEED, abouts, accepted
from ..sampling.random import seed_of_sample
from ..sampling.values import Either, Several, Switch, Text, Whole
from .bodies import EventStream, JSONAnswer, read_object, unless_gone
from .errors import ServerError
from .service import Service
from .shapes import Shape

KEEP_ALIVE_SECONDS = 15.0  # between comments in a stream to which nothing else is to be said
NEUTRAL: Mapping[str, tuple[Any, str]] = {  # OpenAI's fields that change nothing with this value: why no other is taken
    "echo": (False, "the prompt is another text than the output, and no part of it"),
    "best_of": (1, "ask for n, and choose"),
    "frequency_penalty": (0, "there is repetition_penalty"),
    "presence_penalty": (0, "there is repetition_penalty"),
    "logit_bias": ({}, "there is nothing like it here"),
    "suffix": ("", "an encoder-decoder writes no middle"),
}
PROMPT = Either((Text(may_be_empty=True), Several(Text(may_be_empty=True))))


@dataclass(frozen=True)
class Completion:
    """A request, understood. prompts: each with the options of one choice, in the order of the choices. rounds: our own
    field: chunks tell what was drafted.
    """

    prompts: Sequence[tuple[str, GenerationOptions]]
    stream: bool
    include_usage: bool
    rounds: bool
    n: int

    @classmethod
    def of(cls, fields: Mapping[str, Any], service: Service, model: str) -> Completion:
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
            stream, rounds = accepted("stream", Switch(), stream), accepted("rounds", Switch(), rounds)
            n = accepted("n", Whole(1), n)
            prompt = accepted("prompt", PROMPT, given.pop("prompt", ""))
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
        seeds = [seed_of_sample(options.seed, number) for number in range(n)]
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
    if "num_return_sequences" in given:
        raise ServerError(400, "num_return_sequences is called n here", "num_return_sequences", "unsupported_value")
    for name in given:
        if name in abouts() and not abouts()[name].per_row:
            raise ServerError(400, f"{name} is chosen when the server starts; leave it out", name, "unsupported_value")
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    if "logprobs" in given and not isinstance(given["logprobs"], bool):
        if accepted("logprobs", Whole(0), given["logprobs"]) > 0:
            message = "logprobs must be 0: of each token its own log-probability is known, those of others are not kept"
            raise ServerError(400, message, "logprobs", "unsupported_value")
        given["logprobs"] = True
    given.setdefault("seed", secrets.randbelow(MAX_SEED + 1))
    return usual.for_row(given)


async def completions(request: HTTPRequest) -> Response:
    service: Service = request.app.state.service
    service.require_ready()
    asked = Completion.of(
        await read_object(request, service.limits.max_body), service, request.app.state.settings.model
    )
    request.scope["prompts"] = [prompt for prompt, _ in asked.prompts]
    shape = Shape(request.app.state.settings.model, asked)
    if not asked.stream:
        return JSONAnswer(await unless_gone(request.receive, whole(service, asked, shape)))
    events = chunks(service, asked, shape)
    await unless_gone(request.receive, anext(events))  # until it is known that the stream will begin
    return EventStream(events, service.limits.max_seconds)


async def whole(service: Service, asked: Completion, shape: Shape) -> dict[str, Any]:
    with service.request(asked.prompts) as decoding:
        await decoding.started()
        async for _ in decoding.steps():
            pass
        choices = [shape.choice(row, row.text, row.finish_reason, shape.logprobs(row, 0)) for row in decoding.rows]
        return shape.answer(choices) | {"usage": shape.usage(decoding.rows)}


async def chunks(service: Service, asked: Completion, shape: Shape) -> AsyncIterator[dict[str, Any] | str | None]:
    """The first is None, as soon as all prompts are known to be fit; before it `ServerError` is raised for one that is
    not, and behind it given out.
    """
    with service.request(asked.prompts, wants_rejected=asked.rounds) as decoding:
        await decoding.started()
        yield None
        try:
            async for found in decoding.steps(KEEP_ALIVE_SECONDS):
                chunk = None if found is None else shape.chunk(*found)
                if found is None or chunk is not None:
                    yield chunk
        except ServerError as error:
            service.metrics.error(error.code or str(error.status))
            yield error.content
            return
        if asked.include_usage:
            yield shape.answer([]) | {"usage": shape.usage(decoding.rows)}
        yield "[DONE]"

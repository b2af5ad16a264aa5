"""POST /translate and GET /languages, in LibreTranslate's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..decoding.prompt import language_token
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.options import validate
from ..sampling.values import ListOf, Text, Union
from ..session import Session
from .bodies import FORM, cancel_on_disconnect, media_type, read_fields
from .errors import ServerError
from .guard import require_token
from .prompts import client_prompts
from .service import Service

FIELDS = ("q", "source", "target", "format", "alternatives", "api_key")


Prefixes = Mapping[tuple[str, str], str]  # (source, target) -> the text before a prompt, for models such as T5


def translation_prefixes(config: Mapping[str, Any], flags: list[str]) -> Prefixes:
    """Collect the language pairs of a model without language tokens. Raises `InputError` for a malformed flag.

    Args:
        config: The model's config.json. T5 models list pairs in `task_specific_params`.
        flags: Values of --translate, such as "en:de=translate English to German: ".
    """
    prefixes: dict[tuple[str, str], str] = {}
    tasks = config.get("task_specific_params")
    for name, task in tasks.items() if isinstance(tasks, dict) else ():
        match = re.fullmatch(r"translation_(\w+)_to_(\w+)", name)
        prefix = task.get("prefix") if isinstance(task, dict) else None
        if match and isinstance(prefix, str):
            prefixes[match[1], match[2]] = prefix
    for flag in flags:
        match = re.fullmatch(r"([\w-]+):([\w-]+)=(.*)", flag, re.DOTALL)
        if match is None:
            raise InputError(
                f"must be SOURCE:TARGET=PREFIX, such as en:de='translate English to German: ', not {flag!r}",
                "translate",
            )
        prefixes[match[1], match[2]] = match[3]
    return prefixes


def translation_languages(session: Session, prefixes: Prefixes) -> list[dict[str, Any]]:
    """Return the supported languages in LibreTranslate's format: pairs of language tokens, and pairs with a prefix."""
    codes = sorted(session.tokenizer.languages)
    targets = {code: [other for other in codes if other != code] for code in codes}
    for source, target in sorted(prefixes):
        targets.setdefault(source, []).append(target)
    return [{"code": code, "name": code, "targets": found} for code, found in targets.items()]


def translation_prompt(
    session: Session, prefixes: Prefixes, text: str, source: str, target: str
) -> tuple[str, dict[str, Any]]:
    """Return the prompt for a text, and the options that it needs. Raises `InputError` for an unsupported pair."""
    if (source, target) in prefixes:
        return prefixes[source, target] + text, {}
    if not session.tokenizer.languages:
        pairs = ", ".join(":".join(pair) for pair in sorted(prefixes)) or "none"
        raise InputError(f"source and target must be a supported pair ({pairs}), not {source}:{target}", "target")
    for name, code in (("source", source), ("target", target)):
        language_token(session.tokenizer, name, code)
    return text, {"src_lang": source, "tgt_lang": target}


async def translate(request: Request) -> Response:
    service: Service = request.app.state.service
    service.require_text()
    fields = await read_fields(request, service.limits.max_body, accept_form=True)
    require_token(request.scope, str(fields.get("api_key", "")))
    is_form = media_type(request) == FORM
    texts, prompts = parse_translation_request(fields, service, request.app.state.settings.prefixes, is_form=is_form)
    request.scope["prompts"] = [prompt for prompt, _ in prompts]
    try:
        translating = translate_all(service, prompts)
        lines = iter(await cancel_on_disconnect(request.receive, translating, service.limits.max_seconds))
    except TimeoutError:
        raise service.timeout() from None
    found = ["".join(next(lines) if line.strip() else line for line in text) for text in texts]
    return JSONResponse({"translatedText": found[0] if isinstance(fields["q"], str) else found})


def parse_translation_request(
    fields: Mapping[str, Any], service: Service, prefixes: Prefixes, *, is_form: bool
) -> tuple[list[list[str]], list[tuple[str, GenerationOptions]]]:
    """Return the lines of each text of a request, and a prompt with options for each line that is not blank.

    Raises a `ServerError` that names the field.
    """
    for name in fields:
        if name not in FIELDS:
            raise ServerError.unknown_field(name, FIELDS)
    fields = {name: value for name, value in fields.items() if value != "" or name not in ("format", "alternatives")}
    if fields.get("format", "text") != "text":
        raise ServerError(400, "format: must be text: markup is not supported", "format")
    if fields.get("alternatives", 0) not in (0, "0" if is_form else 0):
        raise ServerError(400, "alternatives: must be 0: only one translation is made", "alternatives")
    try:
        q = validate("q", Union((Text(), ListOf(Text(may_be_empty=True)))), fields.get("q", ""))
        source = validate("source", Text(), fields.get("source", ""))
        target = validate("target", Text(), fields.get("target", ""))
        texts = [q] if isinstance(q, str) else list(q)
        max_prompts = service.limits.max_prompts
        if not 1 <= len(texts) <= max_prompts:
            raise InputError(f"must have 1 to {max_prompts} texts, not {len(texts)}", "q")
        if source == "auto":
            raise InputError("must be a language: automatic detection is not supported", "source")
        defaults = replace(service.options, max_tokens=service.limits.max_output_tokens)
        _, options = translation_prompt(service.session, prefixes, "", source, target)
        row = defaults.override_for_row(options)
        split = [re.split("(\r\n|\r|\n)", text) for text in texts]  # keeps each line break as a separate, blank entry
        lines = [line for text in split for line in text if line.strip()]
        return split, [(translation_prompt(service.session, prefixes, line, source, target)[0], row) for line in lines]
    except InputError as error:
        raise ServerError.of(error) from None


async def translate_all(service: Service, prompts: list[tuple[str, GenerationOptions]]) -> list[str]:
    """Translate lines, with at most `max_prompts` of them in the queue at once.

    Raises `ServerError` for a translation that was cut off, which this format cannot express.
    """
    found: list[str] = []
    size = service.limits.max_prompts
    for start in range(0, len(prompts), size):
        with service.request(client_prompts(prompts[start : start + size], prompt_field="q")) as client:
            await client.wait_until_finished()
            for prompt in client.items:
                if prompt.finish_reason == "length":
                    limit = prompt.options.max_tokens
                    message = f"q: line {len(found) + 1} has a translation of over {limit} tokens; split it"
                    raise ServerError(400, message, "q")
                found.append(" ".join(prompt.text.splitlines()))  # keeps a translation on one line
    return found


async def languages(request: Request) -> Response:
    service: Service = request.app.state.service
    service.require_text()
    return JSONResponse(translation_languages(service.session, request.app.state.settings.prefixes))

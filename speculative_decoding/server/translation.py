"""POST /translate and GET /languages, in LibreTranslate's shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..decoding.prompt import language_token
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.options import validate
from ..sampling.values import ListOf, Text, Union
from ..session import Session
from .bodies import FORM, read_object, unless_gone
from .errors import ServerError
from .guard import require_token
from .service import Service

FIELDS = ("q", "source", "target", "format", "alternatives", "api_key")
Q = Union((Text(), ListOf(Text())))
PAIR = re.compile(r"([\w-]+):([\w-]+)=(.*)", re.DOTALL)
TASK = re.compile(r"translation_(\w+)_to_(\w+)")


@dataclass(frozen=True)
class TranslationPrompts:
    """Between which languages a model translates. prefixes: (source, target) -> what stands in front of a text, for
    models that are told so; those with tokens for languages have these as well.
    """

    prefixes: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, config: Mapping[str, Any], given: list[str]) -> TranslationPrompts:
        """config: a config.json, whose `task_specific_params` T5's have. given: "en:de=prefix". Raises `InputError`."""
        found: dict[tuple[str, str], str] = {}
        tasks = config.get("task_specific_params")
        for name, task in tasks.items() if isinstance(tasks, dict) else ():
            match, prefix = TASK.fullmatch(name), task.get("prefix") if isinstance(task, dict) else None
            if match and isinstance(prefix, str):
                found[match[1], match[2]] = prefix
        for each in given:
            if (pair := PAIR.fullmatch(each)) is None:
                raise InputError(
                    f"--translate {each!r}: must be SOURCE:TARGET=PREFIX, as en:de='translate English to German: '"
                )
            found[pair[1], pair[2]] = pair[3]
        return cls(found)

    def languages(self, session: Session) -> list[dict[str, Any]]:
        codes = sorted(session.tokenizer.languages)
        targets = {code: [each for each in codes if each != code] for code in codes}
        for source, target in sorted(self.prefixes):
            targets.setdefault(source, []).append(target)
        return [{"code": code, "name": code, "targets": found} for code, found in targets.items()]

    def prompt(self, session: Session, text: str, source: str, target: str) -> tuple[str, dict[str, Any]]:
        """What the model reads, and options. Raises `InputError`."""
        if (source, target) in self.prefixes:
            return self.prefixes[source, target] + text, {}
        if not session.tokenizer.languages:
            pairs = ", ".join(":".join(pair) for pair in sorted(self.prefixes)) or "none"
            raise InputError(f"source and target must be a pair that this model translates, which are {pairs}")
        for name, code in (("source", source), ("target", target)):
            language_token(session.tokenizer, name, code)
        return text, {"src_lang": source, "tgt_lang": target}


async def translate(request: Request) -> Response:
    service: Service = request.app.state.service
    service.require_ready()
    fields = await read_object(request, service.limits.max_body, takes_form=True)
    require_token(request.scope, str(fields.get("api_key", "")))
    texts, options = understood(fields, request)
    request.scope["prompts"] = [text for text, _ in options]
    found = await unless_gone(request.receive, translated(service, options))
    return JSONResponse({"translatedText": found[0] if isinstance(texts, str) else found})


def understood(fields: Mapping[str, Any], request: Request) -> tuple[Any, list[tuple[str, GenerationOptions]]]:
    """q as it was given, and the prompts. Raises `ServerError`."""
    service: Service = request.app.state.service
    limits, session = service.limits, service.session
    is_form = request.headers["content-type"].startswith(FORM)
    for name in fields:
        if name not in FIELDS:
            raise ServerError(400, f"there is no field {name[:80]!r}; there are {', '.join(FIELDS)}", name)
    if fields.get("format", "text") != "text":
        raise ServerError(400, "format must be text: markup is no language of this model", "format")
    if fields.get("alternatives", 0) not in (0, "0" if is_form else 0):
        raise ServerError(400, "alternatives must be 0: one translation is written", "alternatives")
    try:
        texts = validate("q", Q, fields.get("q", ""))
        source, target = (validate(name, Text(), fields.get(name, "")) for name in ("source", "target"))
        many = [texts] if isinstance(texts, str) else list(texts)
        if not 1 <= len(many) <= limits.max_prompts:
            raise InputError(f"q must have 1 to {limits.max_prompts} texts, not {len(many)}")
        if source == "auto":
            raise InputError("source must be a language: none is recognised here")
        translation: TranslationPrompts = request.app.state.settings.translation
        base = replace(service.options, max_tokens=limits.max_output_tokens)
        prompts = [translation.prompt(session, text, source, target) for text in many]
        return texts, [(prompt, base.override_for_row(own)) for prompt, own in prompts]
    except InputError as error:
        raise ServerError.of(error) from None


async def translated(service: Service, prompts: list[tuple[str, GenerationOptions]]) -> list[str]:
    """Raises `ServerError`, also for a translation that is cut: nothing in this shape could say so."""
    with service.request(prompts) as decoding:
        await decoding.started()
        async for _ in decoding.steps():
            pass
        for row in decoding.rows:
            if row.finish_reason == "length":
                most = row.options.max_tokens
                raise ServerError(
                    400, f"text {row.index + 1} of q has a translation of over {most} tokens; split it", "q"
                )
        return [row.text for row in decoding.rows]


async def languages(request: Request) -> Response:
    service: Service = request.app.state.service
    translation: TranslationPrompts = request.app.state.settings.translation
    return JSONResponse(translation.languages(service.session))

"""Parses a job's input lines. Independent of models and of the output."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import PurePath
from typing import Any

from ..checkpoints.json_text import parse_json_object
from ..checkpoints.text_stream import as_utf8
from ..cli.lines import InputLine, decode_line
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.random import row_seed
from ..subpackages import require_subpackage
from .fields import PROMPT, PROMPT_FIELDS

INPUT_FORMATS = ("text", "jsonl")


def choose_format(name: str, start: bytes) -> str:
    """Choose one of `INPUT_FORMATS` by suffix or, for an unknown suffix, by whether the first line starts with {.

    start: The first bytes of the input.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix == ".txt":
        return "text"
    if suffix in (".jsonl", ".ndjson", ".json"):
        return "jsonl"
    first_line = as_utf8(BytesIO(start)).readline().removeprefix(BOM_UTF8)
    is_object = first_line.lstrip().startswith(b"{")
    return "jsonl" if is_object else "text"


@dataclass(frozen=True)
class ParsedLine:
    """A parsed line. It has `fields` or an `error`; a blank line has neither."""

    line: InputLine
    fields: Mapping[str, Any] | None = None  # the prompt or recording, and its options
    prompt: str | None = None  # without the job's prefix; None for an error, a blank prompt, or a recording
    seed: int | None = None  # None if the line is decoded greedily
    carried: Mapping[str, Any] = field(default_factory=dict)  # the user's fields, copied to the record
    error: str | None = None


def parse_line(line: InputLine, format: str, options: GenerationOptions = GenerationOptions()) -> ParsedLine:  # noqa: B008
    """Parse a line.

    Args:
        line: The line.
        format: One of `INPUT_FORMATS`.
        options: The job's options, which a line may override.
    """
    given: dict[str, Any] = {}
    names = PROMPT
    try:
        text = decode_line(line)
        given |= parse_json_object(text) if format == "jsonl" else {"prompt": text}
        if "audio" in given and "prompt" not in given:
            require_subpackage("speech", "audio")
            from .recordings import RECORDING, check_recording

            names = RECORDING
            return ParsedLine(line, check_recording(given), carried=names.carried(given))
        if "prompt" not in given:
            raise missing_prompt(given)
        fields = names.check(given)
        check_prompt(fields, options)
    except InputError as error:
        return ParsedLine(line, carried=names.carried(given), error=str(error))
    if not fields["prompt"].strip():
        return ParsedLine(line, carried=names.carried(given))
    seed = fields.setdefault("seed", row_seed(options.seed, line.number))
    is_sampled = fields.get("temperature", options.temperature) > 0
    return ParsedLine(line, fields, fields["prompt"], seed if is_sampled else None, names.carried(given))


def missing_prompt(given: Mapping[str, Any]) -> InputError:
    """Return the error for a line without a prompt. If the line has a single string field, suggest renaming it."""
    texts = [name for name, value in given.items() if isinstance(value, str) and name not in PROMPT_FIELDS]
    way_out = 'give the line a "prompt", or an "audio" for a speech model'
    if len(texts) == 1:
        name = json.dumps(texts[0], ensure_ascii=False)
        way_out = f'rename the field {name} to "prompt", or to "audio" if it names a recording'
    return InputError("is missing", "prompt", way_out)


def check_prompt(fields: Mapping[str, Any], options: GenerationOptions) -> None:
    """Raise `InputError` for a prompt that is not a string, or an option that has an invalid value or no effect."""
    for name, value in fields.items():
        try:
            PROMPT_FIELDS[name].accept(value)
        except (ValueError, TypeError, OverflowError):
            raise InputError(f"must be {PROMPT_FIELDS[name].expected}, not {json.dumps(value)[:80]}", name) from None
    own = {name: value for name, value in fields.items() if name != "prompt"}
    options.override_for_row(own).require_effect(own)

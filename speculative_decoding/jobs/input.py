"""Reads and parses the input lines of a job. Knows nothing of models and output."""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from io import BytesIO
from itertools import count
from pathlib import PurePath
from typing import Any, BinaryIO

from ..checkpoints.files import MAX_JSON_DEPTH, is_shallow
from ..checkpoints.text import WAY_OUT, as_utf8, require_no_nul
from ..errors import InputError, Name, UnknownOption
from ..sampling import GenerationOptions
from ..sampling.options import (
    MAX_DRAFT_TOKENS,
    OTHER_NAMES,
    listed,
    meant_options,
    option_specs,
    short_repr,
    validate,
)
from ..sampling.values import Int, Text, Value
from ..speech.keywords import DECODING, split_options
from ..speech.options import transcription_specs

MAX_LINE_BYTES = 2**24  # so that a file without line ends does not fill the memory
INPUT_FORMATS = ("text", "jsonl")

# Options that a line may set. All prompts of a job share the decoder prefix, and records have no logprobs. An adaptive
# draft length would make a record depend on the lines before it, so a line may only set a number.
LINE_OPTIONS: dict[str, Value] = {
    name: spec.type
    for name, spec in option_specs().items()
    if spec.per_row and name not in ("decoder_prefix", "logprobs")
}
LINE_OPTIONS["num_draft_tokens"] = Int(0, MAX_DRAFT_TOKENS)
JOB_OPTIONS = (*(name for name in option_specs() if name not in LINE_OPTIONS), "slots", "draft_model", "dtype")
LINE_FIELDS = {"prompt": Text(may_be_empty=True), **LINE_OPTIONS}
AUDIO_FIELDS = (  # of a line with a recording
    "audio",
    *transcription_specs(),
    *(name for name in DECODING if name in LINE_OPTIONS),
)

DRAFT_COUNTS = ("target_calls", "drafted_tokens", "accepted_tokens")
RECORD_FIELDS = {
    "line",
    "text",
    "finish_reason",
    "prompt_tokens",
    "generated_tokens",
    "seed",
    "error",
    "score",
    "sequences",
    *DRAFT_COUNTS,
}


AUDIO_RECORD_FIELDS = {*RECORD_FIELDS, "language", "seconds", "segments"}


@dataclass(frozen=True)
class InputLine:
    """A line of the input, without its line end."""

    number: int  # from 1
    content: bytes | None  # None if it is longer than MAX_LINE_BYTES
    digest: bytes  # of this line and all lines before it
    end: int  # position of the next line in the input, in bytes of UTF-8


def read_lines(file: BinaryIO) -> Iterator[InputLine]:
    """Yield one line at a time, in UTF-8. Only the current line is in memory."""
    file = as_utf8(file)
    digest = b""
    end = 0
    for number in count(1):
        chunk = file.readline(MAX_LINE_BYTES)
        if not chunk:
            return
        is_complete = chunk.endswith(b"\n") or len(chunk) < MAX_LINE_BYTES
        content = chunk.rstrip(b"\r\n")
        line_hash = hashlib.sha256(digest + content)
        end += len(chunk)
        while len(chunk) == MAX_LINE_BYTES and not chunk.endswith(b"\n"):
            chunk = file.readline(MAX_LINE_BYTES)
            line_hash.update(chunk)
            end += len(chunk)
        digest = line_hash.digest()
        yield InputLine(number, content if is_complete else None, digest, end)


def choose_format(name: str, start: bytes) -> str:
    """Return one of `INPUT_FORMATS`, based on the suffix, or else on whether the first line starts with a brace.

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
    """A parsed line. It has fields, or an error, or neither if it is blank."""

    line: InputLine
    fields: Mapping[str, Any] | None = None  # the prompt or the recording, and its options
    seed: int | None = None  # if the line samples
    carried: Mapping[str, Any] = field(default_factory=dict)  # fields of the user, copied to the record
    error: str | None = None


def parse_line(line: InputLine, format: str, options: GenerationOptions = GenerationOptions()) -> ParsedLine:  # noqa: B008
    """Parse a line.

    Args:
        line: The line.
        format: One of `INPUT_FORMATS`.
        options: Options of the job. A line may override them.
    """
    given: dict[str, Any] = {}
    try:
        text = decode_line(line)
        if format == "text":
            if not text.strip():
                return ParsedLine(line)
            given["prompt"] = text
        else:
            given |= parse_json_object(text)
            if "audio" in given and "prompt" not in given:
                return parse_recording(line, given)
            check_fields(given)
            own = {name: value for name, value in given.items() if name in LINE_OPTIONS}
            options.override_for_row(own).require_effect(own)
            if not given["prompt"].strip():
                return ParsedLine(line, carried=carried_fields(given))
    except InputError as error:
        return ParsedLine(line, carried=carried_fields(given), error=str(error))
    fields = {name: value for name, value in given.items() if name in LINE_FIELDS}
    seed = fields.setdefault("seed", line_seed(options.seed, line.number))
    is_sampled = fields.get("temperature", options.temperature) > 0
    if is_sampled and options.acceptance is not None:
        fields.setdefault("acceptance", options.acceptance)  # other ranks do not know the rule of a resumed job
    return ParsedLine(line, fields, seed if is_sampled else None, carried_fields(given))


def parse_recording(line: InputLine, given: Mapping[str, Any]) -> ParsedLine:
    """Parse the fields of a line with a recording, which has the options of `Session.transcribe`."""
    reserved = {*AUDIO_FIELDS, *AUDIO_RECORD_FIELDS}
    carried = {name: value for name, value in given.items() if name not in reserved and is_json_value([name, value])}
    fields = {name: value for name, value in given.items() if name in AUDIO_FIELDS}
    try:
        validate("audio", Text(), fields["audio"])
        for name, value in given.items():
            if not is_json_value([name, value]):
                raise InputError("is not valid JSON (a lone surrogate, NaN or Infinity)", ascii(name))
            if name in AUDIO_FIELDS:
                continue
            if name in AUDIO_RECORD_FIELDS:
                raise InputError("is also a field of the output", name, "rename it")
            refuse_similar(name, SIMILAR_AUDIO_OPTIONS)
        GenerationOptions().override(
            split_options({name: value for name, value in fields.items() if name != "audio"})[1]
        )
    except InputError as error:
        return ParsedLine(line, carried=carried, error=str(error))
    return ParsedLine(line, fields, carried=carried)


def decode_line(line: InputLine) -> str:
    """Decode a line of UTF-8. Raises `InputError` for other encodings, binary files, and lines that are too long."""
    if line.content is None:
        raise InputError(f"longer than {MAX_LINE_BYTES} bytes; split it")
    try:
        text = line.content.decode("utf-8-sig" if line.number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 ({error.reason}, byte {error.start + 1})", way_out=WAY_OUT) from error
    require_no_nul(text)
    return text


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object without duplicate names, of bounded depth. Raises `InputError`."""
    if not text.strip():
        raise InputError("empty (expected a JSON object)")
    try:
        value = json.loads(text, object_pairs_hook=unique_fields)
        if not is_shallow(value):
            raise ValueError(f"more than {MAX_JSON_DEPTH} levels")
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg.removesuffix(' at')}, column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"unsupported JSON ({str(error).partition(': value has')[0]})") from error
    if not isinstance(value, dict):
        raise InputError(f"must be a JSON object, not {short_repr(value)}")
    return value


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"field {name!r} is given twice")
    return dict(pairs)


def is_json_value(value: Any) -> bool:
    """Whether a value can be written as JSON. Python's parser also accepts NaN, infinity and lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


def carried_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that neither lines nor records define, for the record."""
    reserved = LINE_FIELDS.keys() | RECORD_FIELDS
    return {name: value for name, value in given.items() if name not in reserved and is_json_value([name, value])}


def similarity_key(name: str) -> str:
    """Return one key for names that differ only in case, separators or a plural: maxTokens, max-token, max_tokens."""
    return name.lower().replace("-", "").replace("_", "").removesuffix("s")


SIMILAR_OPTIONS: dict[str, tuple[str, ...]] = {  # `Words` that name the options to use instead
    **{similarity_key(name): listed(meant_options(name, option_specs())) for name in OTHER_NAMES},
    **{similarity_key(name): (Name(name),) for name in (*LINE_FIELDS, *JOB_OPTIONS)},
}
SIMILAR_AUDIO_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(map(similarity_key, LINE_OPTIONS.keys() - set(AUDIO_FIELDS)), ()),
    **{similarity_key(name): listed(meant) for name in OTHER_NAMES if (meant := meant_options(name, AUDIO_FIELDS))},
    **{similarity_key(name): (Name(name),) for name in (*AUDIO_FIELDS, *JOB_OPTIONS)},
}
MISSPELT = 0.87  # similarity of names: two letters of eight are swapped; "drafted" and "drafter" have 0.86


def meant_option(name: str, options: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the options to use instead of a name that looks like one, with a letter wrong if it is long."""
    key = similarity_key(name)
    if key in options:
        return options[key]
    close = get_close_matches(key, [each for each in options if len(each) > 6 and each not in key], 1, MISSPELT)
    return options[close[0]] if close else None


def refuse_similar(name: str, options: Mapping[str, tuple[str, ...]]) -> None:
    """Raise `InputError` if the name of a user's field looks like that of an option."""
    option = meant_option(name, options)
    if option in [(each,) for each in JOB_OPTIONS]:
        raise InputError("is an option of all lines", name, "give it on the command line, or rename the field")
    if option is not None:
        way_out = ("use ", *option) if option else ("leave it out",)
        raise UnknownOption("unknown option", name, (*way_out, ", or rename the field if it is not an option"))


def check_fields(given: Mapping[str, Any]) -> None:
    """Raise `InputError` for a missing prompt, a wrong type, or a field that looks like an option but is not one."""
    for name, value in given.items():
        if not is_json_value([name, value]):
            raise InputError("is not valid JSON (a lone surrogate, NaN or Infinity)", ascii(name))
        if name in LINE_FIELDS:
            try:
                LINE_FIELDS[name].accept(value)
            except (ValueError, TypeError, OverflowError):
                raise InputError(f"must be {LINE_FIELDS[name].expected}, not {json.dumps(value)[:80]}", name) from None
        elif name in RECORD_FIELDS:
            raise InputError("is also a field of the output", name, "rename it")
        else:
            refuse_similar(name, SIMILAR_OPTIONS)
    if "prompt" not in given:
        raise InputError("is missing", "prompt", 'give the line a "prompt"')


def line_seed(seed: int, number: int) -> int:
    """Return the seed of a line that has none, from --seed and the line's number, so that resuming changes nothing.

    It is hashed, so that neighbouring seeds do not give the same seeds to neighbouring lines.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big")

"""Lines of input -> rows: what the engine is asked, or why it cannot be. Knows nothing of models and of output."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import PurePath
from typing import Any, BinaryIO

from ..checkpoints.files import MAX_JSON_DEPTH, is_shallow
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.options import ALIASES, MOST_DRAFTED, OTHER_NAMES, REMOVED, abouts, current_names
from ..sampling.values import Text, Value, Whole

MAX_LINE = 2**24  # bytes: a file without line ends must not fill the memory
INPUT_FORMATS = ("text", "jsonl")
SUFFIXES = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


@dataclass(frozen=True)
class InputLine:
    """A line as it stands in the input, without its end.

    content: None if it is longer than `MAX_LINE`. digest: of this line and of all before it. end: how many bytes of the
    input it ends behind.
    """

    number: int  # from 1
    content: bytes | None
    digest: bytes
    end: int


def read_lines(file: BinaryIO) -> Iterator[InputLine]:
    """One line at a time; nothing is kept."""
    digest, end = b"", 0
    for number in count(1):
        part = file.readline(MAX_LINE)
        if not part:
            return
        whole = part.endswith(b"\n") or len(part) < MAX_LINE
        content = part.rstrip(b"\r\n")
        chain = hashlib.sha256(digest + content)
        end += len(part)
        while len(part) == MAX_LINE and not part.endswith(b"\n"):
            part = file.readline(MAX_LINE)
            chain.update(part)
            end += len(part)
        digest = chain.digest()
        yield InputLine(number, content if whole else None, digest, end)


def choose_format(name: str, first_line: bytes) -> str:
    """ "jsonl" or "text": by the end of the file's name; where that says nothing, objects if the first line begins with
    a brace.
    """
    by_name = SUFFIXES.get(PurePath(name).suffix.lower())
    return by_name or ("jsonl" if first_line.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{") else "text")


# What a row may set for itself. Prompts of a file share an output's beginning, and records have no log-probabilities.
LINE_OPTIONS: Mapping[str, Value] = {
    name: about.value
    for name, about in abouts().items()
    if about.per_row and name not in ("decoder_prefix", "logprobs")
} | {
    "num_draft_tokens": Whole(0, MOST_DRAFTED)
}  # a length that adapts would make a record depend on the rows before it
FOR_ALL_ROWS = (*(name for name in abouts() if name not in LINE_OPTIONS), "slots", "draft_model", "dtype")
FIELDS = {"prompt": Text(may_be_empty=True), **LINE_OPTIONS}

DRAFT_COUNTS = (
    "target_calls",
    "drafted_tokens",
    "accepted_tokens",
)  # in a record, where they are the same in every run
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


def plain(name: str) -> str:
    """What is left of a field's name when it is not looked at closely."""
    return name.lower().replace("-", "").replace("_", "").removesuffix("s")


OUR_NAMES = OTHER_NAMES | ALIASES | REMOVED | {name: name for name in (*FIELDS, *FOR_ALL_ROWS)}
LOOKS_LIKE = {plain(name): ours for name, ours in OUR_NAMES.items()}


@dataclass(frozen=True)
class ParsedLine:
    """A line, understood. It has a request for the engine, or an error, or neither: a blank line of text.

    seed: where the row samples, what its random numbers derive from.
    carried: fields that are not ours, for the output.
    """

    line: InputLine
    request: Mapping[str, Any] | None = None
    seed: int | None = None
    carried: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class LineParser:
    """format: of `INPUT_FORMATS`. options: of the rows, where they do not say."""

    format: str
    options: GenerationOptions = GenerationOptions()  # noqa: RUF009

    def __call__(self, line: InputLine) -> ParsedLine:
        given: dict[str, Any] = {}
        try:
            text = decode_line(line)
            if self.format == "text":
                if not text.strip():
                    return ParsedLine(line)
                given["prompt"] = text
            else:
                given |= current_names(parse_json_object(text))
                check_fields(given)
        except InputError as error:
            return ParsedLine(line, carried=carried(given), error=str(error))
        request = {name: value for name, value in given.items() if name in FIELDS}
        seed = request.setdefault("seed", row_seed(self.options.seed, line.number))
        samples = request.get("temperature", self.options.temperature) > 0
        return ParsedLine(line, request, seed if samples else None, carried(given))


def decode_line(line: InputLine) -> str:
    """Raises `InputError`, like all that reads a line."""
    if line.content is None:
        raise InputError(f"longer than {MAX_LINE} bytes; split it")
    try:
        return line.content.decode("utf-8-sig" if line.number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 ({error.reason}, byte {error.start + 1}); convert it to UTF-8") from error


def parse_json_object(text: str) -> dict[str, Any]:
    if not text.strip():
        raise InputError('is empty; each line must be a JSON object with a "prompt"')
    try:
        value = json.loads(text, object_pairs_hook=no_duplicates)
        if not is_shallow(value):
            raise ValueError(f"more than {MAX_JSON_DEPTH} levels")
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg}, column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON that can be read ({str(error).partition(': value has')[0]})") from error
    if not isinstance(value, dict):
        raise InputError('must be a JSON object with a "prompt"')
    return value


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"field {name!r} is given twice")
    return dict(pairs)


def is_json_value(value: Any) -> bool:
    """As JSON; Python also reads NaN, infinity and halves of characters (lone surrogates)."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


def carried(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not ours."""
    ours = FIELDS.keys() | RECORD_FIELDS
    return {name: value for name, value in given.items() if name not in ours and is_json_value([name, value])}


def check_fields(given: Mapping[str, Any]) -> None:
    """Raise `InputError` for what is missing, of another type, or would be ignored."""
    for name, value in given.items():
        meant = LOOKS_LIKE.get(plain(name))
        if not is_json_value([name, value]):
            raise InputError(f"{name!a} is not JSON: half a character (a lone surrogate), or NaN or Infinity")
        if name in FIELDS:
            try:
                FIELDS[name].accept(value)
            except (ValueError, TypeError, OverflowError):
                raise InputError(f"{name} must be {FIELDS[name].wanted}, not {json.dumps(value)[:80]}") from None
        elif name in RECORD_FIELDS:
            raise InputError(f"field {name!r} is one that the output has already; rename it")
        elif meant in FOR_ALL_ROWS:
            raise InputError(f"option {name!r} holds for all rows; give it on the command line, or rename the field")
        elif meant is not None:
            instead = (
                f"use {meant}"
                if name in REMOVED
                else f"write {meant}"
                if meant
                else "there is nothing like it here: leave it out"
            )
            raise InputError(f"unknown option {name!r}; {instead}, or rename the field if it is none")
    if not given.get("prompt", "").strip():
        raise InputError("prompt is empty; give it some text" if "prompt" in given else 'has no "prompt"')


def row_seed(seed: int, number: int) -> int:
    """The seed of a line that gives none. It depends on nothing but --seed and the line's number, so that resuming
    shifts nothing; hashed, so that neighbouring seeds do not share their rows' seeds.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big")

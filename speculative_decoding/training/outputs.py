"""What a draft is trained on: the target's own outputs for some prompts, written by the engine, in a file that a killed
run goes on from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..decoding.request import encode_prompt
from ..errors import InputError
from ..session import Session


@dataclass(frozen=True)
class Example:
    """A prompt as the encoder reads it, and the target's output, without the start token."""

    source: list[int]
    output: list[int]


def write_outputs(
    session: Session,
    prompts: Sequence[str],
    path: Path,
    *,
    slots: int,
    max_tokens: int,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[int, Example]:
    """The target's greedy output for each prompt, by the prompt's index; those that the file has are not decoded again.

    A prompt that cannot be decoded, as a blank or too long one, has none. progress: is called with how many are done.
    """
    known = read_outputs(path)
    missing = [index for index in range(len(prompts)) if index not in known]
    with path.open("a", encoding="utf-8") as file:
        texts = [prompts[index] for index in missing]
        for result in session.batch(texts, slots=slots, max_tokens=max_tokens):
            index = missing[result.index]
            example = None
            if result.result is not None:
                language = session.options.source_language
                source = encode_prompt(session.model, session.tokenizer, prompts[index], language=language)
                example = Example(source, list(result.result.tokens))
            known[index] = example
            record = [index] if example is None else [index, example.source, example.output]
            file.write(json.dumps(record) + "\n")
            file.flush()
            progress(len(known))
    return {index: known[index] for index in sorted(known) if known[index] is not None}  # type: ignore[misc]


def read_outputs(path: Path) -> dict[int, Example | None]:
    """What the file holds; a last line that was not written whole is cut off. Raises `InputError` for a damaged one."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    known: dict[int, Example | None] = {}
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            index, *parts = json.loads(line)
            known[int(index)] = Example(*map(ids_of, parts)) if parts else None
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: is damaged ({error}); delete the file to write it anew"
            ) from error
    return known


def ids_of(value: object) -> list[int]:
    if not isinstance(value, list) or not value or not all(type(token) is int and token >= 0 for token in value):
        raise ValueError("not a list of ids")
    return value

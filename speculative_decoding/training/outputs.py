"""What a draft is trained on: the target's own outputs for some prompts, written by the engine, in files that a killed
run goes on from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..decoding.request import encode_prompt
from ..distributed.training_group import SINGLE_PROCESS, TrainingGroup
from ..errors import InputError
from ..sampling.options import MAX_SEED
from ..session import Session


@dataclass(frozen=True)
class Example:
    """A prompt as the encoder reads it, and the target's output, without the start token."""

    source: list[int]
    output: list[int]


@dataclass(frozen=True)
class Wanted:
    """How outputs are written. sampled_share: of the prompts, whose output is drawn at temperature 1; the others are
    greedy. Which, and what is drawn, are a function of the seed and the prompt's index.
    """

    slots: int
    max_tokens: int
    sampled_share: float = 0.0
    seed: int = 0

    def request(self, index: int, prompt: str) -> dict[str, Any]:
        dice = np.random.default_rng([self.seed, 2, index])
        if dice.random() >= self.sampled_share:
            return {"prompt": prompt}
        # Coupled: a sample depends on its seed alone, not on what copies have been worth so far.
        seed = int(dice.integers(MAX_SEED, endpoint=True))
        return {"prompt": prompt, "temperature": 1.0, "acceptance": "coupled", "seed": seed}


def write_outputs(
    session: Session,
    prompts: Sequence[str],
    folder: Path,
    wanted: Wanted,
    *,
    processes: TrainingGroup = SINGLE_PROCESS,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[int, Example]:
    """The target's output for each prompt, by the prompt's index; those that the folder has are not decoded again.

    A prompt that cannot be decoded, as a blank or too long one, has none. Each process decodes its share into a file of
    its own. progress: is called with how many are done.
    """
    size = session.model.config.vocab_size
    with processes.first_before_others():  # it mends files that a killed run left
        known = read_all(folder, size)
    processes.barrier()  # nobody writes while another reads
    missing = processes.share([index for index in range(len(prompts)) if index not in known])
    requests = [wanted.request(index, prompts[index]) for index in missing]
    path = folder / ("outputs.jsonl" if processes.is_first else f"outputs-{processes.rank}.jsonl")
    with path.open("a", encoding="utf-8") as file:
        found = session.batch(requests, slots=wanted.slots, max_tokens=wanted.max_tokens)
        for done, result in enumerate(found, start=1):
            record: list[Any] = [missing[result.index]]
            if result.result is not None:
                prompt, language = requests[result.index]["prompt"], session.options.src_lang
                source = encode_prompt(session.model, session.tokenizer, prompt, language=language)
                record += source, list(result.result.tokens)
            file.write(json.dumps(record) + "\n")
            file.flush()
            progress(len(prompts) - (len(missing) - done) * processes.size)
    processes.barrier()
    known = read_all(folder, size)
    return {index: known[index] for index in sorted(known) if known[index] is not None}  # type: ignore[misc]


def read_all(folder: Path, vocab_size: int) -> dict[int, Example | None]:
    known: dict[int, Example | None] = {}
    for path in sorted(folder.glob("outputs*.jsonl")):
        known |= read_outputs(path, vocab_size)
    return known


def read_outputs(path: Path, vocab_size: int) -> dict[int, Example | None]:
    """What the file holds; a last line that was not written whole is cut off. Raises `InputError` for a damaged one."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    known: dict[int, Example | None] = {}
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            index, *parts = json.loads(line)
            known[int(index)] = Example(*(ids_of(part, vocab_size) for part in parts)) if parts else None
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: is damaged ({error}); delete the file to write it anew"
            ) from error
    return known


def ids_of(value: object, vocab_size: int) -> list[int]:
    in_range = range(vocab_size)
    if not isinstance(value, list) or not value or not all(type(id) is int and id in in_range for id in value):
        raise ValueError("not a list of ids")
    return value

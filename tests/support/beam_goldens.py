"""Reads the goldens of beam search, and decodes their prompts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from speculative_decoding import Session
from speculative_decoding.decoding.results import GenerationResult
from tests.support.paths import GOLDENS

FILE = GOLDENS / "beams.jsonl.gz"
STOPPING = {"False": False, "True": True, "never": "never"}


def records(file: Path = FILE) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (max_tokens, the record of a prompt)."""
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        max_tokens = json.loads(next(lines))["max_tokens"]
        for line in lines:
            yield max_tokens, json.loads(line)


def options_of(setting: str) -> dict[str, Any]:
    beams, penalty, stopping = setting.split()
    return {"num_beams": int(beams), "length_penalty": float(penalty), "early_stopping": STOPPING[stopping]}


def expected(record: Mapping[str, Any], setting: str) -> tuple[list[list[int]], list[float]]:
    numbers, scores = record["found"][setting]
    return [record["sequences"][number] for number in numbers], scores


def sequences_of(result: GenerationResult) -> list[GenerationResult]:
    return list(result.sequences or [result])


def decoded(
    session: Session, prompts: Sequence[str | Mapping[str, Any]], **options: Any
) -> list[list[GenerationResult]]:
    """Return all sequences of each prompt, one per beam."""
    own = {"num_return_sequences": options["num_beams"], **options}
    found = {each.index: each.result for each in session.batch(prompts, **own)}
    assert all(each is not None for each in found.values())
    return [sequences_of(found[index]) for index in range(len(prompts))]  # type: ignore[arg-type]

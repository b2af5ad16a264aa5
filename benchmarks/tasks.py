"""Tasks: named lists of sources to decode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import mlx.core as mx

from speculative_decoding.cli.common import read_prompts
from speculative_decoding.cli.verify import bundled_prompts
from speculative_decoding.decoding.prompt import encode_prompt
from speculative_decoding.errors import InputError
from speculative_decoding.loading.tokenizer import Tokenizer
from speculative_decoding.models.base import EncoderDecoder

RANDOM_LENGTH = 40  # tokens of a random source


@dataclass(frozen=True)
class Task:
    """Sources to decode, with settings.

    Args:
        name: Name of the prompt file.
        sources: Token ids for the encoder.
        max_tokens: Maximum number of tokens per output.
        ends: Whether an end-of-sequence token ends an output.
        slots: Batch size; None decodes one prompt at a time.
        num_beams: Number of beams; 1 disables beam search.
    """

    name: str
    sources: tuple[tuple[int, ...], ...]
    max_tokens: int
    ends: bool = True
    slots: int | None = None
    num_beams: int = 1


def prompts_from_files(paths: Sequence[Path], limit: int) -> dict[str, list[str]]:
    """Return the first `limit` prompts of each file, keyed by task name. Without paths, use the bundled files."""
    found = {}
    for path in paths or reversed(bundled_prompts()):
        prompts = read_prompts(path)[:limit]
        if not prompts:
            raise InputError(f"prompts {path}: no prompts found; write one per line")
        found[str(path) if sum(path.stem == other.stem for other in paths) > 1 else path.stem] = prompts
    return found


def task_of(name: str, prompts: Iterable[str], max_tokens: int, model: EncoderDecoder, tokenizer: Tokenizer) -> Task:
    return Task(name, tuple(tuple(encode_prompt(model, tokenizer, prompt)) for prompt in prompts), max_tokens)


def tasks_from_files(
    paths: Sequence[Path], limit: int, max_tokens: int, model: EncoderDecoder, tokenizer: Tokenizer
) -> list[Task]:
    """Return a task for each file, with its first `limit` prompts. Without paths, use the bundled files."""
    found = prompts_from_files(paths, limit)
    return [task_of(name, prompts, max_tokens, model, tokenizer) for name, prompts in found.items()]


def at_slots(tasks: list[Task], slots: Sequence[int]) -> list[Task]:
    """Return a copy of each task for each batch size. Without batch sizes, return the tasks unchanged."""
    return [replace(task, slots=count) for task in tasks for count in slots] or tasks


def random_task(vocab_size: int, count: int, max_tokens: int) -> Task:
    """Return a task with `count` sources of random ids, determined by the arguments. All outputs reach `max_tokens`."""
    ids = mx.random.randint(2, vocab_size, (count, RANDOM_LENGTH), key=mx.random.key(RANDOM_LENGTH))
    sources = cast(list[list[int]], ids.tolist())
    return Task(f"{RANDOM_LENGTH} tokens to {max_tokens}", tuple(map(tuple, sources)), max_tokens, ends=False)

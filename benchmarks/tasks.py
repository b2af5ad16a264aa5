"""What is decoded: lists of source ids with a name. Knows nothing of who decodes them."""

from __future__ import annotations

from collections.abc import Sequence
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

RANDOM_SOURCE = 40  # tokens


@dataclass(frozen=True)
class Task:
    """sources: ids that the encoder reads. ends: whether an end-of-sequence token ends an output. slots: how many are
    decoded together; None: each by itself. num_beams: with which.
    """

    name: str
    sources: tuple[tuple[int, ...], ...]
    max_tokens: int
    ends: bool = True
    slots: int | None = None
    num_beams: int = 1


def tasks_from_files(
    paths: Sequence[Path], limit: int, max_tokens: int, model: EncoderDecoder, tokenizer: Tokenizer
) -> list[Task]:
    """A task for each file, of its first `limit` prompts; without paths the bundled files."""
    tasks = []
    for path in paths or reversed(bundled_prompts()):
        prompts = read_prompts(path)[:limit]
        if not prompts:
            raise InputError(f"prompts {path}: holds none; give it a prompt a line")
        name = str(path) if sum(path.stem == other.stem for other in paths) > 1 else path.stem
        tasks.append(Task(name, tuple(tuple(encode_prompt(model, tokenizer, p)) for p in prompts), max_tokens))
    return tasks


def at_slots(tasks: list[Task], slots: Sequence[int]) -> list[Task]:
    """Each task at each number of slots; without numbers as they are."""
    return [replace(task, slots=count) for task in tasks for count in slots] or tasks


def random_task(vocab_size: int, count: int, max_tokens: int) -> Task:
    """`count` sources of random ids, the same for the same arguments; outputs have exactly `max_tokens` tokens."""
    ids = mx.random.randint(2, vocab_size, (count, RANDOM_SOURCE), key=mx.random.key(RANDOM_SOURCE))
    sources = cast(list[list[int]], ids.tolist())
    return Task(f"{RANDOM_SOURCE} tokens to {max_tokens}", tuple(map(tuple, sources)), max_tokens, ends=False)

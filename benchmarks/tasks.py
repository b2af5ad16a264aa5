"""What is decoded: lists of source ids with a name. Knows nothing of who decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import mlx.core as mx

from speculative_decoding.cli.verify import PROMPTS, read_prompt_files
from speculative_decoding.decoding.request import encode_prompt
from speculative_decoding.errors import InputError
from speculative_decoding.loading.tokenizer import Tokenizer
from speculative_decoding.models.base import EncoderDecoder

SLOTS = "slots"
RANDOM_SOURCE, GROWTH_OUTPUT = 40, 32  # tokens, where the other one is chosen or grows
SOURCE_LENGTHS, OUTPUT_LENGTHS = (16, 64, 256, 1024, 2048), (16, 64, 256, 1024)  # of growth


@dataclass(frozen=True)
class Task:
    """sources: ids that the encoder reads. ends: whether an end-of-sequence token ends an output.

    axis, at: where the task stands in a series of tasks of the same name, for example "slots" and 4.
    """

    name: str
    sources: tuple[tuple[int, ...], ...]
    max_tokens: int
    ends: bool = True
    axis: str = ""
    at: int = 0

    @property
    def slots(self) -> int | None:
        """How many are decoded together; None: each by itself."""
        return self.at if self.axis == SLOTS else None

    @property
    def title(self) -> str:
        return f"{self.name}, {self.at} {self.axis}" if self.axis else self.name


def tasks_from_files(
    paths: Sequence[Path], limit: int, max_tokens: int, model: EncoderDecoder, tokenizer: Tokenizer
) -> list[Task]:
    """A task for each file, of its first `limit` prompts; without paths the bundled files."""
    tasks = []
    for path in paths or sorted(PROMPTS.glob("*.txt"), reverse=True):
        prompts = [prompt for prompt in read_prompt_files([path]) if prompt.strip()][:limit]
        if not prompts:
            raise InputError(f"prompts {path}: holds none; give it a prompt a line")
        name = str(path) if sum(path.stem == other.stem for other in paths) > 1 else path.stem
        tasks.append(Task(name, tuple(tuple(encode_prompt(model, tokenizer, p)) for p in prompts), max_tokens))
    return tasks


def at_slots(tasks: list[Task], slots: Sequence[int]) -> list[Task]:
    """Each task at each number of slots; without numbers as they are."""
    return [replace(task, axis=SLOTS, at=count) for task in tasks for count in slots] or tasks


def random_task(vocab_size: int, count: int, max_tokens: int, length: int = RANDOM_SOURCE) -> Task:
    """`count` sources of random ids, the same for the same arguments; outputs have exactly `max_tokens` tokens."""
    ids = mx.random.randint(2, vocab_size, (count, length), key=mx.random.key(length))
    sources = cast(list[list[int]], ids.tolist())
    return Task(f"{length} tokens to {max_tokens}", tuple(map(tuple, sources)), max_tokens, ends=False)


def growth_tasks(vocab_size: int) -> list[Task]:
    """One source each: it grows while the output is kept at 32 tokens; then the output grows behind a source of 40."""
    source = {n: random_task(vocab_size, 1, GROWTH_OUTPUT, n) for n in SOURCE_LENGTHS}
    output = {n: random_task(vocab_size, 1, n) for n in OUTPUT_LENGTHS}
    both = (("growing source", "source tokens", source), ("growing output", "output tokens", output))
    return [replace(task, name=name, axis=axis, at=n) for name, axis, made in both for n, task in made.items()]

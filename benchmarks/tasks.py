"""What is decoded: lists of source ids with a name. Knows nothing of who decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import mlx.core as mx

from speculative_decoding.decoding.request import encode_prompt
from speculative_decoding.errors import InputError
from speculative_decoding.loading.tokenizer import Tokenizer
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.verify import PROMPTS, read_prompt_files


@dataclass(frozen=True)
class Task:
    """sources: ids that the encoder reads. ends: whether an end-of-sequence token ends an output. slots: how many are
    decoded together; None: each by itself.
    """

    name: str
    sources: tuple[tuple[int, ...], ...]
    max_tokens: int
    ends: bool = True
    slots: int | None = None


def tasks_from_files(
    paths: Sequence[Path], limit: int, max_tokens: int, model: EncoderDecoder, tokenizer: Tokenizer
) -> list[Task]:
    """A task for each file, of its first `limit` prompts; without paths the bundled files."""
    tasks = []
    for path in paths or sorted(PROMPTS.glob("*.txt"), key=lambda path: ORDER.get(path.stem, len(ORDER))):
        prompts = [prompt for prompt in read_prompt_files([path]) if prompt.strip()][:limit]
        if not prompts:
            raise InputError(f"prompts {path}: holds none; give it a prompt a line")
        name = str(path) if sum(path.stem == other.stem for other in paths) > 1 else path.stem
        tasks.append(Task(name, tuple(tuple(encode_prompt(model, tokenizer, p)) for p in prompts), max_tokens))
    return tasks


ORDER = {"translation": 0, "grammar": 1, "describe": 2}


def random_task(name: str, vocab_size: int, count: int, source_length: int, max_tokens: int) -> Task:
    """`count` sources of random ids, the same for the same arguments; outputs have exactly `max_tokens` tokens."""
    ids = mx.random.randint(2, vocab_size, (count, source_length), key=mx.random.key(source_length))
    sources = cast(list[list[int]], ids.tolist())
    return Task(name, tuple(tuple(source) for source in sources), max_tokens, ends=False)


def growth_tasks(vocab_size: int, sources: Sequence[int], outputs: Sequence[int]) -> list[Task]:
    """One source each: it grows while the output is kept at 32 tokens; then the output grows behind a source of 40."""
    return [
        *(random_task(f"source {length}", vocab_size, 1, length, GROWTH_OUTPUT) for length in sources),
        *(random_task(f"output {length}", vocab_size, 1, RANDOM_SOURCE, length) for length in outputs),
    ]


GROWTH_OUTPUT = 32
RANDOM_SOURCE = 40

"""Draft texts: outputs with wrong words, outputs for changed sources, texts written by people, and useless texts."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from speculative_decoding.cli.common import read_text
from speculative_decoding.decoding.results import GenerationResult
from speculative_decoding.errors import InputError

from .tasks import Task

if TYPE_CHECKING:
    from speculative_decoding.memory import TranslationMemory

NOISE = 0.1  # the probability that a word is replaced
CHANGED = 10  # one of this many prompts has a changed clause
BETWEEN_CLAUSES = re.compile(r"(; | // |, )")
KINDS = {
    "none": "none",
    "noise": "its own output with wrong words",
    "person": "a person's output",
    "memory": "a memory of similar sources",
    "prompt": "another prompt's output",
    "task": "another task's output",
    "speech": "",  # covers several types of text; see speech_texts.py
}
USELESS = ("prompt", "task")

Texts = Sequence[Sequence[str]]  # the given texts of each prompt


@dataclass(frozen=True)
class Decoded:
    """A task with its prompts and the baseline's outputs."""

    task: Task
    prompts: Sequence[str]
    outputs: Sequence[GenerationResult]


@dataclass(frozen=True)
class GivenTexts:
    """Texts of one kind for a task.

    Args:
        kind: A key of `KINDS`.
        decoded: The task.
        by_seed: The texts, once for each seed.
        memory: A translation memory, whose texts are also used.
    """

    kind: str
    decoded: Decoded
    by_seed: Sequence[Texts]
    memory: TranslationMemory | None = None


def noisy(texts: Sequence[str], words: Sequence[str], seed: int) -> list[str]:
    """Replace each word of the texts, with probability `NOISE`, by a word drawn from `words`."""
    rng = random.Random(seed)
    return [" ".join(word if rng.random() > NOISE else rng.choice(words) for word in text.split()) for text in texts]


def with_changed_clauses(prompts: Sequence[str]) -> list[str]:
    """In every block of `CHANGED` consecutive prompts, change the first prompt with several clauses, if there is one.

    Its last clause is replaced by the last clause of the next prompt with several clauses, in cyclic order. Equal
    clauses are skipped.
    """
    clauses = [BETWEEN_CLAUSES.split(prompt) for prompt in prompts]  # with the separators between them
    blocks = [range(start, min(start + CHANGED, len(prompts))) for start in range(0, len(prompts), CHANGED)]
    places = [place for block in blocks for place in [i for i in block if len(clauses[i]) > 1][:1]]
    changed = list(prompts)
    for number, place in enumerate(places):
        *before, last = clauses[place]
        following = (clauses[each][-1] for each in [*places[number + 1 :], *places[:number]])
        changed[place] = "".join([*before, next((each for each in following if each != last), last)])
    return changed


def read_references(paths: Sequence[Path]) -> dict[str, str]:
    """Map sources to outputs written by people. Each line is a source, a tab and an output. Raises `InputError`."""
    found: dict[str, str] = {}
    for path in paths:
        for number, line in enumerate(read_text(path, "--references").splitlines(), 1):
            source, tab, text = line.partition("\t")
            if not tab:
                raise InputError(f"--references {path}: line {number} has no tab; write source, tab, output")
            found.setdefault(source, text)
    return found


def split_prefix(prompt: str) -> tuple[str, str]:
    """Split a prompt into its task prefix, which ends at the first colon, and its source."""
    before, colon, source = prompt.partition(": ")
    return (before + colon, source) if source else ("", prompt)


def reference_of(prompt: str, references: Mapping[str, str]) -> str:
    """Return the reference of a prompt or of its source. Raises `InputError`."""
    for source in (prompt, split_prefix(prompt)[1]):
        if source in references:
            return references[source]
    raise InputError(f'--references: no line for "{prompt}"; add one, or omit the option')


def given_texts(
    decoded: Decoded, changed: Decoded | None, other: Decoded, references: Mapping[str, str], seeds: int
) -> Iterator[GivenTexts]:
    """Yield each kind of texts for a task.

    Args:
        decoded: The task.
        changed: The task after `with_changed_clauses`; None for no memory.
        other: Another task.
        references: From `read_references`. If empty, no texts written by people are yielded.
        seeds: The number of random seeds for the noise.
    """
    texts = [result.text for result in decoded.outputs]
    yield GivenTexts("none", decoded, [[()] * len(texts)])
    words = [word for text in texts for word in text.split()]
    yield GivenTexts("noise", decoded, [[[text] for text in noisy(texts, words, seed)] for seed in range(seeds)])
    if references:
        yield GivenTexts("person", decoded, [[[reference_of(prompt, references)] for prompt in decoded.prompts]])
    if changed is not None:
        from speculative_decoding.memory import TranslationMemory

        sources = [split_prefix(prompt)[1] for prompt in decoded.prompts]
        memory = TranslationMemory.from_pairs(zip(sources, texts, strict=True))
        yield GivenTexts("memory", changed, [[()] * len(texts)], memory)
    yield GivenTexts("prompt", decoded, [[[text] for text in [*texts[1:], texts[0]]]])
    others = [result.text for result in other.outputs]
    yield GivenTexts("task", decoded, [[[others[i % len(others)]] for i in range(len(texts))]])

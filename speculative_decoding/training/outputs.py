"""The target's outputs for the training prompts. The engine decodes them, and logs keep them for resumed runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedWriter
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..decoding.prompt import encode_prompt
from ..errors import InputError, Message
from ..models.source import AudioFrames, Source
from ..runs.log import Log, LogFormat, parse_line
from ..sampling.options import MAX_SEED
from ..session import Session
from .options import TrainingOptions
from .training_group import SINGLE_PROCESS, TrainingGroup

# The logs in a work folder; one of them contains the run's settings. Increase the version to reject old folders.
LOG_FORMAT = LogFormat(
    "output",
    version=5,
    continue_with=Message("continue with {resume}"),
    start_over="delete the folder of the run",
)


@dataclass(frozen=True, eq=False)
class SpeechWindow:
    """The source of a speech model's training example.

    frames: Log-mel frames (T, mel bands), where T is even.
    """

    frames: NDArray[np.float16]

    def __len__(self) -> int:
        """Return the number of encoder positions."""
        return len(self.frames) // 2


@dataclass(frozen=True)
class Example:
    """A source with the target's output for it.

    Args:
        source: Token ids, or a window of a recording.
        output: The ids of the output, without the start token or prefix.
        prefix: The decoder ids before the output; empty means only the start token.
    """

    source: Sequence[int] | SpeechWindow
    output: Sequence[int]
    prefix: Sequence[int] = ()

    def read_source(self) -> Source:
        """Return the source for the model. Each call creates `AudioFrames`, because these keep their encoder output."""
        if isinstance(self.source, SpeechWindow):
            return AudioFrames(mx.array(self.source.frames.astype(np.float32)))
        return self.source

    def decoder_input(self, start_token: int) -> list[int]:
        """Return the decoder input for predicting the output: the prefix and all output ids except the last."""
        return [*(self.prefix or [start_token]), *self.output[:-1]]


def output_request(options: TrainingOptions, index: int, prompt: str) -> dict[str, Any]:
    """Return the request that decodes a prompt. Whether its output is sampled depends on the seed and the index."""
    rng = np.random.default_rng([options.seed, 2, index])
    if rng.random() >= options.sampled_share:
        return {"prompt": prompt}
    # Coupled sampling depends only on the seed; other acceptance rules also depend on the drafts, which change over
    # time.
    seed = int(rng.integers(MAX_SEED, endpoint=True))
    return {"prompt": prompt, "temperature": 1.0, "acceptance": "coupled", "seed": seed}


def write_outputs(
    session: Session,
    prompts: Sequence[str],
    folder: Path,
    options: TrainingOptions,
    *,
    processes: TrainingGroup = SINGLE_PROCESS,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[int, Example]:
    """Decode the prompts whose outputs the folder lacks. Returns all outputs, keyed by prompt index.

    Prompts that cannot be decoded (blank or too long) are left out. Each process decodes its share, and appends the
    outputs to its own log. `progress` receives the number of finished prompts.
    """
    vocab_size = session.model.config.vocab_size
    with processes.in_turn():
        known = read_outputs(folder, vocab_size)

    missing = [index for index in range(len(prompts)) if index not in known][processes.rank :: processes.size]
    requests = [output_request(options, index, prompts[index]) for index in missing]
    path = folder / ("outputs.jsonl" if processes.is_first else f"outputs-{processes.rank}.jsonl")
    with Log.open(path, LOG_FORMAT, {}) as log:
        deque(log.records(partial(parse_output, vocab_size=vocab_size)), maxlen=0)  # they are kept
        results = session.batch_as_completed(requests, slots=options.slots, max_tokens=options.max_tokens)
        for done, result in enumerate(results, start=1):
            record: list[Any] = [missing[result.index]]
            if result.result is not None:
                prompt = requests[result.index]["prompt"]
                languages = session.options.src_lang, session.options.tgt_lang
                source = encode_prompt(session.model, session.tokenizer, prompt, False, *languages)
                record += [source, list(result.result.tokens)]
            log.append(record)
            progress(len(prompts) - (len(missing) - done) * processes.size)

    with processes.in_turn():
        known = read_outputs(folder, vocab_size)
    return {index: known[index] for index in sorted(known) if known[index] is not None}  # type: ignore[misc]


def read_outputs(folder: Path, vocab_size: int) -> dict[int, Example | None]:
    """Return the outputs in all processes' logs, keyed by prompt index."""
    known: dict[int, Example | None] = {}
    for path in sorted(folder.glob("outputs*.jsonl")):
        with Log.open(path, LOG_FORMAT, {}) as log:
            known |= log.records(partial(parse_output, vocab_size=vocab_size))
    return known


def parse_output(line: bytes, vocab_size: int) -> tuple[int, Example | None] | None:
    """Return a prompt's index and output (None if the prompt cannot be decoded). Returns None for a damaged line."""
    try:
        index, *parts = parse_line(line)
        return int(index), Example(*(checked_ids(part, vocab_size) for part in parts)) if parts else None
    except (OverflowError, TypeError, ValueError):
        return None


@contextmanager
def appended(path: Path, size: int) -> Iterator[BufferedWriter]:
    """Open a file of arrays for appending after its first `size` bytes, the size recorded in the folder's log.

    Raises `InputError` if the file is shorter. New bytes must be on disk before they are recorded in the log.
    """
    with path.open("ab") as file:
        if file.tell() < size:
            raise InputError(f"{path}: shorter than the log beside it says; delete {path.parent}")
        file.truncate(size)
        yield file


def checked_ids(value: object, vocab_size: int) -> list[int]:
    valid = range(vocab_size)
    if not isinstance(value, list) or not value or not all(type(id) is int and id in valid for id in value):
        raise ValueError("not a list of token ids")
    return value

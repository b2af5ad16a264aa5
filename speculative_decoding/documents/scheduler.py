"""Decodes the pieces of documents with a session: many together, but in order and with bounded memory."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Unpack

from ..decoding.prompt import build_decoder_prompt, check_languages, require_characters, usual_max_tokens
from ..decoding.results import GenerationResult, GenerationStats
from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..rows import BatchResult, drive, in_order
from ..sampling import GenerationOptions
from ..sampling.keywords import OptionKeywords
from ..sampling.options import option_specs
from ..sampling.random import row_seed
from ..session import Session
from .decoding import Rules, Steps, decode_piece
from .outputs import DecodedPiece, Output
from .pieces import Piece
from .tokens import Literal

WINDOW_CHARACTERS = 1 << 22  # characters of parts that wait for an earlier part

Decoded = tuple[Literal | Piece, DecodedPiece | None]


@dataclass
class Task:
    """A piece that is being decoded.

    number: The number of the piece among all parts.
    seed: The seed of its prompts.
    outputs: The outputs of its current prompts, or None for each that is not known yet.
    """

    number: int
    piece: Piece
    steps: Steps
    seed: int
    outputs: list[Output | None] = field(default_factory=list)


class PieceScheduler:
    """Decodes numbered parts; a `rows.Scheduler`. Literals are returned unchanged.

    Args:
        session: The models.
        rules: How pieces are decoded.
        prefix: Text to put before every prompt.
        slots: How many prompts are decoded together (default: the session's).
        recorded: Returns the output for a piece and its number if an earlier run has decoded it.
        finished: Called with each piece, its number and its output as soon as it is decoded. The order may differ.
        options: See `GenerationOptions`. The default of `max_tokens` depends on each prompt.

    Attributes:
        stats: The sum over all prompts.
        prompts: The number of decoded prompts.
        pieces: The number of finished pieces.

    Raises:
        InputError: The model or an option cannot be used for documents.
    """

    def __init__(
        self,
        session: Session,
        rules: Rules,
        *,
        prefix: str = "",
        slots: int | None = None,
        recorded: Callable[[int, Piece], DecodedPiece | None] = lambda number, piece: None,
        finished: Callable[[int, Piece, DecodedPiece], None] = lambda number, piece, decoded: None,
        **options: Unpack[OptionKeywords],
    ) -> None:
        chosen = session.options_with(options)
        forced = require_usable(session.model, session.tokenizer, chosen)
        require_characters(prefix, "prefix")
        self.stats = GenerationStats()
        self.prompts = self.pieces = self._submitted = 0
        self._scheduler = session.prompt_scheduler(slots, **options)
        self._rules = rules
        self._prefix = prefix
        self._options = chosen
        self._session = session
        most = session.model.max_positions
        self._most_tokens = sys.maxsize if most is None else most - forced
        self._has_limit = "max_tokens" in options or chosen.max_tokens != option_specs()["max_tokens"].default
        self._recorded = recorded
        self._finished = finished
        self._window = max(256, 64 * (slots or session.slots))  # parts
        self._held: deque[int] = deque()  # the sizes in characters of parts that were not yet returned in order
        self._held_characters = 0
        self._tasks: dict[int, tuple[Task, int]] = {}  # the number of a prompt -> its task and index there

    @property
    def wants_more(self) -> bool:
        has_space = len(self._held) < self._window and self._held_characters < WINDOW_CHARACTERS
        return has_space and self._scheduler.wants_more

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle

    def submit(self, item: tuple[int, Literal | Piece]) -> Iterator[tuple[int, Decoded]]:
        number, part = item
        self._held.append(len(part.raw))
        self._held_characters += len(part.raw)
        if isinstance(part, Literal):
            yield number, (part, None)
            return
        self._submitted += 1
        if (recorded := self._recorded(number, part)) is not None:
            self.pieces += 1
            yield number, (part, recorded)
            return
        steps = decode_piece(part, self._rules)
        yield from self._advance(Task(number, part, steps, row_seed(self._options.seed, self._submitted)), None)

    def step(self) -> Iterator[tuple[int, Decoded]]:
        for result in self._scheduler.step():
            yield from self._receive(result)

    def release(self) -> None:
        """Release the memory of the next part in order. To be called after it was returned."""
        self._held_characters -= self._held.popleft()

    def _advance(self, task: Task, outputs: list[Output] | None) -> Iterator[tuple[int, Decoded]]:
        """Submit the next prompts of a piece, or finish it. outputs: the outputs of its last prompts."""
        try:
            texts = next(task.steps) if outputs is None else task.steps.send(outputs)
        except StopIteration as end:
            self.pieces += 1
            self._finished(task.number, task.piece, end.value)
            yield task.number, (task.piece, end.value)
            return
        task.outputs = [None] * len(texts)
        for index, text in enumerate(texts):
            self._tasks[self.prompts] = task, index
            results = self._scheduler.submit((self.prompts, self._prompt(text, task.seed)))
            self.prompts += 1
            for result in results:
                yield from self._receive(result)

    def _prompt(self, text: str, seed: int) -> dict[str, Any]:
        """Return a prompt with its options."""
        prompt: dict[str, Any] = {"prompt": self._prefix + text, "seed": seed}
        if not self._has_limit:
            source = self._session.tokenizer.encode(prompt["prompt"], self._options.src_lang)
            prompt["max_tokens"] = min(usual_max_tokens(len(source)), self._most_tokens)
        return prompt

    def _receive(self, result: BatchResult[GenerationResult]) -> Iterator[tuple[int, Decoded]]:
        task, place = self._tasks.pop(result.index)
        if result.result is None:
            task.outputs[place] = Output("", "error", result.error)
        else:
            self.stats.add(result.result.stats)
            task.outputs[place] = Output(result.result.text, result.result.finish_reason)
        outputs = [output for output in task.outputs if output is not None]
        if len(outputs) == len(task.outputs):
            yield from self._advance(task, outputs)


def require_usable(model: EncoderDecoder, tokenizer: Tokenizer, options: GenerationOptions) -> int:
    """Return the number of tokens with which each output is forced to begin.

    Raises `InputError` for a model or options that cannot be used for documents.
    """
    if options.num_return_sequences > 1:
        raise InputError("must be 1 for documents", "num_return_sequences", "leave it out")
    if model.audio is not None:
        raise InputError("this model transcribes speech and cannot decode documents", "model", "name another")
    check_languages(tokenizer, options)
    return len(build_decoder_prompt(model, tokenizer, options).tokens) - 1


def decode_parts(scheduler: PieceScheduler, parts: Iterable[Literal | Piece]) -> Iterator[Decoded]:
    """Yield each part with its output, in order, as soon as it is known. Reads only as many parts ahead as needed."""
    for _, decoded in in_order(drive(scheduler, enumerate(parts)), lambda each: each[0]):
        scheduler.release()
        yield decoded

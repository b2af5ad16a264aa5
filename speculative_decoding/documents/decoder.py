"""Decodes the parts of documents with a session: in batches, in document order, and with bounded memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Unpack

from ..decoding.prompt import build_decoder_prompt, check_languages, require_characters, usual_max_tokens
from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..rows.parts import PartScheduler, Task, Window, decode_in_order
from ..rows.scheduling import BatchResult
from ..rows.session_like import SessionLike
from ..sampling import GenerationOptions
from ..sampling.keywords import OptionKeywords
from ..sampling.options import option_specs
from ..sampling.random import row_seed
from .decoding import Rules, Steps, decode_piece
from .pieces import Piece
from .results import DecodedPiece
from .tokens import Literal

WINDOW_CHARACTERS = 1 << 22  # maximum characters in the parts that wait for an earlier part

Decoded = tuple[Literal | Piece, DecodedPiece | None]


class DocumentDecoder:
    """Decodes the parts of documents. Literals are returned unchanged.

    Args:
        session: The session that decodes the prompts.
        rules: How pieces are decoded.
        prefix: Text to prepend to every prompt.
        slots: The number of prompts to decode together (default: the session's).
        steps: Returns the decoding steps for a piece, given its number among all parts (default: `decode_piece`).
        options: See `GenerationOptions`. The default of `max_tokens` depends on each prompt.

    Attributes:
        scheduler: The scheduler that decodes the pieces, and counts them.

    Raises:
        InputError: The model or an option cannot be used for documents.
    """

    def __init__(
        self,
        session: SessionLike,
        rules: Rules,
        *,
        prefix: str = "",
        slots: int | None = None,
        steps: Callable[[int, Piece], Steps] | None = None,
        **options: Unpack[OptionKeywords],
    ) -> None:
        chosen = session.options_with(options)
        forced = require_usable(session.model, session.tokenizer, chosen, prefix)
        require_characters(prefix, "prefix")
        self.scheduler = PartScheduler(session.prompt_scheduler(slots, **options))
        self._steps = steps or (lambda number, piece: decode_piece(piece, rules))
        self._prefix = prefix
        self._options = chosen
        self._tokenizer = session.tokenizer
        self._src_lang = chosen.src_lang if session.tokenizer.languages else None
        most = session.model.max_positions
        self._most_tokens = sys.maxsize if most is None else most - forced
        self._has_limit = "max_tokens" in options or chosen.max_tokens != option_specs()["max_tokens"].default
        self._slots = slots or session.slots
        self._pieces = 0  # submitted so far

    def decode(self, parts: Iterable[Literal | Piece]) -> Iterator[Decoded]:
        """Yield each part with its output, in order, as soon as the output is known. Reads ahead only if needed."""
        window = Window[Literal | Piece](self._slots, lambda part: len(part.raw), WINDOW_CHARACTERS)
        for part, result in decode_in_order(self.scheduler, parts, self._submit, window):
            yield part, result.result

    def _submit(self, number: int, part: Literal | Piece) -> Iterable[BatchResult[DecodedPiece]]:
        if isinstance(part, Literal):
            return [BatchResult(number, None)]
        self._pieces += 1
        prompt = partial(self._prompt, row_seed(self._options.seed, self._pieces))
        return self.scheduler.submit((number, Task(self._steps(number, part), prompt)))

    def _prompt(self, seed: int, text: str) -> dict[str, Any]:
        """Return a prompt with its options."""
        prompt: dict[str, Any] = {"prompt": self._prefix + text, "seed": seed}
        if not self._has_limit:
            source = self._tokenizer.encode(prompt["prompt"], self._src_lang)
            prompt["max_tokens"] = min(usual_max_tokens(len(source)), self._most_tokens)
        return prompt


def require_usable(model: EncoderDecoder, tokenizer: Tokenizer, options: GenerationOptions, prefix: str) -> int:
    """Return the number of forced tokens at the start of each output. prefix: the text before each prompt.

    Raises `InputError` for a model or options that cannot be used for documents.
    """
    if options.num_return_sequences > 1:
        raise InputError("must be 1 for documents", "num_return_sequences", "leave it out")
    if model.audio is not None:
        raise InputError("this model transcribes speech and cannot decode documents", "model", "name another")
    check_languages(model, tokenizer, options, prefix)
    return len(build_decoder_prompt(model, tokenizer, options).tokens) - 1

"""Decodes many prompts in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..decoding.request import Request
from ..decoding.results import GenerationResult, GenerationStats
from ..draft_length.base import DraftLength
from ..engine import Engine, Event, result_of
from ..errors import InputError
from ..sampling import GenerationOptions


class PromptProgress(NamedTuple):
    """A prompt's progress: a round of one of its samples, the result of all its samples, or both.

    number: The prompt's number.
    sample: The index of the sample.
    error: The reason why the prompt cannot be decoded: an `InputError`, or an `ArithmeticError` for non-finite logits.
    """

    number: Any
    sample: int = 0
    event: Event | None = None
    result: GenerationResult | None = None
    error: Exception | None = None

    @property
    def is_last(self) -> bool:
        return self.result is not None or self.error is not None


class PromptScheduler:
    """A `Scheduler` that decodes numbered prompts with one engine.

    A prompt is a string, audio frames, or a mapping that contains "prompt" and options.

    Args:
        options_of: Returns a prompt's complete options, given the options in its mapping.
        new_engine: Creates the engine. Not called until a prompt is submitted, because it may run benchmarks.
        draft_length: Returns the draft-length policy for a prompt with the given options.
        reads_text: Whether the model reads text. If so, the output for a blank text is blank. Speech models reject
            text.
    """

    def __init__(
        self,
        options_of: Callable[[Mapping[str, Any]], GenerationOptions],
        new_engine: Callable[[], Engine],
        draft_length: Callable[[GenerationOptions], DraftLength],
        *,
        reads_text: bool,
    ) -> None:
        self._options_of = options_of
        self._new_engine = new_engine
        self._draft_length = draft_length
        self._reads_text = reads_text
        self._engine: Engine | None = None
        self._numbers: dict[Request, Any] = {}  # unfinished request -> its prompt's number
        self._requests: dict[Any, list[Request]] = {}  # unfinished prompt's number -> its samples

    @property
    def running(self) -> int:
        return 0 if self._engine is None else self._engine.decoding

    @property
    def waiting(self) -> int:
        return 0 if self._engine is None else self._engine.waiting

    @property
    def wants_more(self) -> bool:
        return self._engine is None or self._engine.wants_more

    @property
    def is_idle(self) -> bool:
        return not self._requests

    def requests(self, number: Any) -> Sequence[Request]:
        """Return an unfinished prompt's requests, one for each sample."""
        return self._requests[number]

    def submit(self, item: tuple[Any, Any]) -> list[PromptProgress]:
        number, prompt = item
        if self._engine is None:
            self._engine = self._new_engine()
        try:
            own = dict(prompt) if isinstance(prompt, Mapping) else {"prompt": prompt}
            if "audio" in own:
                raise InputError("this model reads text and cannot transcribe", "audio", "give a prompt")
            if "prompt" not in own:
                raise InputError("is missing", "prompt", "give each row a prompt")
            text = own.pop("prompt")
            options = self._options_of(own)
            if self._reads_text and isinstance(text, str) and not text.strip():
                return [PromptProgress(number, result=blank_result(options))]
            requests = self._engine.submit_samples(text, options, self._draft_length(options))
        except InputError as error:
            return [PromptProgress(number, error=error)]
        self._requests[number] = requests
        self._numbers |= dict.fromkeys(requests, number)
        return []

    def step(self) -> Iterator[PromptProgress]:
        """Run a round. If one sample of a prompt fails, the whole prompt fails."""
        assert self._engine is not None
        for event in self._engine.step():
            request = event.request
            if request not in self._numbers:
                continue  # the prompt was cancelled, or another of its samples failed
            number = self._numbers[request]
            requests = self._requests[number]
            if request.error:
                self.cancel(number)
                yield PromptProgress(number, error=ArithmeticError(request.error))
                continue
            result = None
            if event.is_last:
                del self._numbers[request]
                if not any(each in self._numbers for each in requests):  # several samples may finish in the same round
                    del self._requests[number]
                    result = result_of(requests)
            yield PromptProgress(number, requests.index(request), event, result)

    def cancel(self, number: Any) -> None:
        for request in self._requests.pop(number, ()):
            self._numbers.pop(request, None)
            assert self._engine is not None
            self._engine.cancel(request)

    def free(self) -> None:
        """Free the engine, because its caches stay as large as the longest prompts. All prompts must have finished."""
        self._engine = None


def blank_result(options: GenerationOptions) -> GenerationResult:
    """Return the result for a blank text in a batch. Blank texts are not decoded, so the result has no tokens."""
    result = GenerationResult("", [], "blank", GenerationStats(), [] if options.logprobs else None)
    count = options.num_return_sequences
    return result if count == 1 else replace(result, sequences=(result,) * count)

"""Decodes texts: divides each into parts, decodes parts of all of them together, and joins the outputs in order.

What the parts of a text are is defined elsewhere: lines in this module, pieces of documents in documents.py.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from ..decoding.prompt import usual_max_tokens
from ..loading.tokenizer import Tokenizer
from ..sampling import GenerationOptions
from .prompts import client_prompts
from .service import Service
from .uploads import Upload

CHUNK = 64  # parts that are read at a time
Result = TypeVar("Result")
Steps = Generator[list[str], Any, Any]  # yields prompts, is sent their outputs, and returns the result of a part


@dataclass(frozen=True)
class Prompting:
    """How the prompts of a text are decoded.

    Args:
        prefix: The text before each of them.
        options: Their options. `max_tokens` is the largest limit; most sources have a lower one.
        tokenizer: The target's tokenizer, which counts the tokens of the sources.
    """

    prefix: str
    options: GenerationOptions
    tokenizer: Tokenizer

    def prompt(self, text: str) -> tuple[str, GenerationOptions]:
        """Return the prompt for a text, and its options."""
        prompt, options = self.prefix + text, self.options
        usual = usual_max_tokens(len(self.tokenizer.encode(prompt, options.src_lang)))
        return prompt, options.with_values(max_tokens=min(usual, options.max_tokens))


class DividedText(Protocol):
    """A text as parts. Its methods run in several threads, one at a time.

    prompting: How its prompts are decoded.
    parts: The parts, in order, read as needed.
    """

    prompting: Prompting
    parts: Iterator[Any]

    def steps(self, part: Any) -> Steps | None:
        """Return how a part is decoded; None for one that is copied."""

    def output(self, text: str, finish_reason: str) -> Any:
        """Return what the steps are sent for a prompt."""

    def add(self, part: Any, result: Any) -> str:
        """Return what to write for the next part. result: that of its steps, or None."""

    def findings(self) -> list[dict[str, Any]]:
        """Return what a reader should check in the output."""


class Lines:
    """A text whose lines are the parts. It is used if the package was installed without documents/."""

    def __init__(self, text: str, prompting: Prompting) -> None:
        self.prompting = prompting
        self.parts = iter(re.split("(\r\n|\r|\n)", text))
        self._line = 1
        self._findings: list[dict[str, Any]] = []

    def steps(self, part: str) -> Steps | None:
        return decode_line(part) if part.strip() else None

    def output(self, text: str, finish_reason: str) -> tuple[str, str]:
        return " ".join(text.splitlines()), finish_reason

    def add(self, part: str, result: tuple[str, str] | None) -> str:
        if result is None:
            self._line += part.endswith(("\r", "\n"))
            return part
        text, finish_reason = result
        if finish_reason == "length":
            self._findings.append({"line": self._line, "kind": "cut", "what": "the output reached the token limit"})
        return text

    def findings(self) -> list[dict[str, Any]]:
        return self._findings


def decode_line(line: str) -> Steps:
    (output,) = yield [line]
    return output


@dataclass
class TextDecoder:
    """Decodes the texts of a request, with at most `max_prompts` of its prompts in the queue.

    Args:
        service: The service.
        upload: The request, which is being opened: it has been admitted, so its prompts wait for room in the queue.
        client: The client's address. Clients take turns in the threads that read texts.
    """

    service: Service
    upload: Upload
    client: str

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.service.limits.max_prompts)
        self._queued = 0

    async def decode(self, texts: Sequence[DividedText]) -> list[str]:
        """Return the text to write for each. Raises `ServerError` if a prompt fails."""
        written = [list[str]() for _ in texts]
        waiting: deque[tuple[int, Any, asyncio.Task[Any] | None]] = deque()

        async def write(most: int) -> None:
            """Write the first parts as soon as they are decoded, until at most this many wait."""
            while len(waiting) > most:
                number, part, task = waiting.popleft()
                written[number].append(texts[number].add(part, None if task is None else await task))

        parts = ((number, part) for number, text in enumerate(texts) for part in text.parts)

        def read() -> list[tuple[int, Any, tuple[Steps, list[str]] | None]]:
            return [(number, part, begun(texts[number], part)) for number, part in islice(parts, CHUNK)]

        async with task_group() as group:
            is_last = False
            while not is_last:
                chunk = await in_thread(self.service, self.client, read)
                for number, part, first in chunk:
                    task = None if first is None else group.create_task(self._decode(texts[number], *first))
                    waiting.append((number, part, task))
                is_last = len(chunk) < CHUNK
                await write(0 if is_last else 2 * self.service.limits.max_prompts)
        return ["".join(each) for each in written]

    async def _decode(self, text: DividedText, steps: Steps, prompts: Sequence[str]) -> Any:
        while True:
            async with task_group() as group:
                tasks = [group.create_task(self._output(text, prompt)) for prompt in prompts]
            outputs = [task.result() for task in tasks]
            following, result = await in_thread(self.service, self.client, partial(advanced, steps, outputs))
            if following is None:
                return result
            prompts = following

    async def _output(self, text: DividedText, prompt: str) -> Any:
        (item,) = client_prompts([text.prompting.prompt(prompt)], prompt_field="q")
        async with self._free:
            await self.service.wait_for_room(self.upload)
            self._queued += 1
            self.upload.is_opening = False
            try:
                with self.service.request([item], self.upload) as request:
                    await request.wait_until_finished()
            finally:
                self._queued -= 1
                self.upload.is_opening = self._queued == 0  # a request counts as one prompt, or as those in the queue
        return text.output(item.text, item.finish_reason or "")


async def in_thread(service: Service, client: str, work: Callable[[], Result]) -> Result:
    """Run work that may take long, such as reading a text of a megabyte, in the reading threads.

    client: its address. Clients take turns.
    """

    def steps() -> Generator[None, None, Result]:
        yield from ()
        return work()

    return await asyncio.wrap_future(service.reading.run(client, steps()))


def begun(text: DividedText, part: Any) -> tuple[Steps, list[str]] | None:
    """Return the steps of a part and their first prompts, or None for a part that is copied."""
    steps = text.steps(part)
    return None if steps is None else (steps, next(steps))


def advanced(steps: Steps, outputs: Sequence[Any]) -> tuple[list[str] | None, Any]:
    """Return the next prompts, or None and the result."""
    try:
        return steps.send(outputs), None
    except StopIteration as end:
        return None, end.value


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Run tasks until all have ended. The first error cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None

"""Items for clients' texts, and their scheduler. A text's prompts take turns with the prompts of other clients."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ..decoding.results import GenerationStats
from ..rows.parts import PartScheduler, Task, Window
from ..rows.prompts import PromptProgress, PromptScheduler
from ..rows.scheduling import BatchResult, Progress
from ..session import Session
from .client_request import ClientItem
from .errors import ServerError
from .limits import Limits

if TYPE_CHECKING:
    from ..documents.pieces import Piece
    from ..documents.tokens import Literal
    from .documents import Document

ENCODED = 512  # number of unencoded tokens in the engine from which on no prompts are added
READ_AHEAD = 64  # number of parts that a reading thread reads ahead
TURNS_PER_SLOT = 2  # number of texts' prompts in the engine per slot, as the engine encodes several together
MAX_COPIED = 64  # maximum number of parts to copy in one turn

ReadPart: TypeAlias = "tuple[Document, Literal | Piece] | Exception | None"


@dataclass(eq=False)
class ClientText(ClientItem):
    """The texts of a request, which are decoded one after another.

    Until the texts are finished, only the decoding thread uses them. Other threads may read `written`, to which parts
    are only appended.

    Args:
        texts: The texts. `begin` has been called for each of them.
        run: Runs steps in a reading thread, because parsing a part may take seconds.
        wake: Wakes the decoding thread.

    Attributes:
        ahead: The parts that a reading thread has read, followed by None at the end, or by the error that ended the
            reading.
        reading: The `Future` for the steps that run in a reading thread.
        window: The parts that have been taken from `ahead` but not written yet.
        written: The output of each text, in parts.
        waiting: Number of a prompt that is waiting for a turn -> the prompt.
        in_engine: Number of a prompt in an engine -> the engine.
        is_read: Whether all parts have been taken from `ahead`.
        has_news: Whether the client's next notification is due once there is any output: no notification has been sent,
            or parts have been written since the last one.
        total: The statistics of all prompts.
    """

    takes_turns = True

    texts: Sequence[Document]
    run: Callable[[Generator[None, None, None]], Future[None]]
    wake: Callable[[], None]
    address: str = ""

    def __post_init__(self) -> None:
        self._parts = ((text, part) for text in self.texts for part in text.parts)
        self._has_more = True
        self.ahead: deque[ReadPart] = deque()
        self.window: Window[tuple[Document, Literal | Piece]] = Window()
        self.written: dict[Document, list[str]] = {text: [] for text in self.texts}
        self.waiting: dict[Any, Mapping[str, Any]] = {}
        self.in_engine: dict[Any, PromptScheduler] = {}
        self.is_read = False
        self.has_news = True
        self.total = GenerationStats()

    @property
    def is_ready(self) -> bool:
        """Whether the text can use a turn now, before any more of its prompts are finished."""
        return bool(self.waiting) or (self.window.has_capacity and (bool(self.ahead) or self.may_read))

    @property
    def may_read(self) -> bool:
        """Whether there are more parts to read and no thread is reading them."""
        return self._has_more and self.reading.done()

    def read_ahead(self) -> Future[None]:
        """Read the next parts in a reading thread."""
        self.reading = self.run(self._read())
        self.reading.add_done_callback(lambda _: self.wake())
        return self.reading

    def _read(self) -> Generator[None, None, None]:
        for _ in range(READ_AHEAD):
            try:
                found: ReadPart = next(self._parts, None)
            except Exception as error:
                found = error
            self._has_more = isinstance(found, tuple)
            self.ahead.append(found)
            self.wake()
            if not self._has_more:
                return
            yield

    def check(self, limits: Limits) -> None:
        """Check nothing here, because each prompt is checked in its turn."""

    def start(self, scheduler: TextScheduler, number: int) -> Iterable[Progress]:
        scheduler.texts[number] = self
        return ()

    def add(self, progress: Progress) -> None:
        if progress.is_last:
            self.finish_reason, self.stats = "stop", self.total

    def error_of(self, error: Exception) -> ServerError:
        return ServerError.of(error, {"prompt": "q"}, "q")


class TextScheduler(PartScheduler):
    """Decodes clients' own prompts and the prompts of their texts in two engines.

    A client's own prompt is numbered with an integer, and a text's prompt with ((text, part), prompt). Texts' prompts
    wait for turns (see `Lane`), and each text has at most `max_prompts` prompts in the engines.

    The second engine, `others`, decodes the prompts that do not wait for a slot: clients' own prompts, and a text's
    prompt if its client has no other text prompt in an engine. Both engines get the same share of time, because rounds
    of `prompts` may be slow.

    Args:
        prompts: Decodes the prompts of texts. Their options are complete.
        others: Decodes the prompts that do not wait for a slot.
        limits: The limits of the server.
        clock: Returns the time in seconds.

    Attributes:
        texts: Number -> text, for all texts that are being decoded.
    """

    prompts: PromptScheduler

    def __init__(
        self,
        prompts: PromptScheduler,
        others: PromptScheduler,
        limits: Limits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(prompts, raises_errors=True)
        self.others = others
        self.texts: dict[int, ClientText] = {}
        self._limits = limits
        self._clock = clock
        self._seconds = 0.0  # duration of the last round of `prompts`

    @property
    def running(self) -> int:
        return self.prompts.running + self.others.running

    @property
    def waiting(self) -> int:
        return self.prompts.waiting + self.others.waiting

    @property
    def paused(self) -> list[int]:
        most = self._limits.max_prompts
        return [number for number, text in self.texts.items() if text.is_ready and len(text.in_engine) < most]

    @property
    def free_turns(self) -> int:
        return self._free + 1  # a client whose texts have no prompt in an engine can always have a turn

    def held_clients(self) -> Collection[str]:
        """Return the clients whose texts must wait, because the engine is full and decodes a prompt of theirs."""
        return () if self._free > 0 else self._clients()

    @property
    def _free(self) -> int:
        """The number of prompts that `prompts` can still take; 0 while `ENCODED` or more tokens wait to be encoded."""
        numbers = [
            each for text in self.texts.values() for each in text.in_engine if text.in_engine[each] is self.prompts
        ]
        requests = [self.prompts.requests(number)[0] for number in numbers]
        to_encode = sum(each.stats.prompt_tokens for each in requests if not each.started)
        return max(0, TURNS_PER_SLOT * self._limits.slots - len(requests)) if to_encode < ENCODED else 0

    def _clients(self) -> Collection[str]:
        return {text.address for text in self.texts.values() if text.in_engine}

    @property
    def is_idle(self) -> bool:
        return self.prompts.is_idle and self.others.is_idle and not self.paused

    def stats_of(self, number: Any) -> GenerationStats:
        (text, _), _ = number
        return self.texts[text].total

    def submit_prompt(self, item: tuple[Any, Mapping[str, Any]]) -> Iterable[Progress]:
        """Make a text's prompt wait for a turn."""
        number, prompt = item
        (text, _), _ = number
        self.texts[text].waiting[number] = prompt
        return ()

    def check(self, engine: PromptScheduler, number: Any, prompt_field: str) -> None:
        """Raise `ServerError` if a prompt in an engine has too many tokens. prompt_field: The field's name."""
        request = engine.requests(number)[0]
        self._limits.check_tokens(prompt_field, request.stats.prompt_tokens)
        self._limits.check_tokens("decoder_prefix", request.prefix_length - 1)

    def resume(self, number: int) -> Iterator[Progress]:
        """Pass the next prompt of a text to an engine."""
        return self._guarded(number, self._take_turn)

    def decode_round(self) -> Iterator[Any]:
        started = self._clock()
        while not self.others.is_idle:
            yield from self._round(self.others)
            if self._clock() - started >= self._seconds:
                break
        started = self._clock()
        if not self.prompts.is_idle:
            yield from self._round(self.prompts)
        self._seconds = self._clock() - started
        for engine in (self.prompts, self.others):
            if engine.is_idle:  # all its prompts have finished or been cancelled
                engine.free()

    def _round(self, engine: PromptScheduler) -> Iterator[Any]:
        for progress in engine.step():
            if not isinstance(progress.number, tuple):
                yield progress
            elif progress.is_last:
                (text, _), _ = progress.number
                yield from self._guarded(text, partial(self._receive, progress))

    def cancel(self, number: Any) -> None:
        """Drop a prompt or a text."""
        text = self.texts.pop(number, None)
        if text is None:
            self.others.cancel(number)
        else:
            text.reading.cancel()
            for prompt, engine in text.in_engine.items():
                engine.cancel(prompt)
            for part in {part for part, _ in (*text.waiting, *text.in_engine)}:
                super().cancel(part)

    def _guarded(self, number: int, work: Callable[[int, ClientText], None]) -> Iterator[Progress]:
        """Call `work` for a text. If it raises an error, only this text fails."""
        text = self.texts[number]
        try:
            work(number, text)
        except Exception as error:
            self.cancel(number)
            yield PromptProgress(number, error=error)
        else:
            if text.is_read and not text.window:
                del self.texts[number]
                yield BatchResult(number, None)
            elif text.total.generated_tokens and text.has_news:
                text.has_news = False
                yield PromptProgress(number)

    def _take_turn(self, number: int, text: ClientText) -> None:
        for _ in range(MAX_COPIED):
            if len(text.waiting) > 1 or not text.ahead:  # read two, to find out whether a prompt is the last one
                break
            self._read(number, text)
        if text.may_read and len(text.ahead) < READ_AHEAD // 2:
            text.read_ahead()
        if text.waiting:
            first = next(iter(text.waiting))
            is_first = text.address not in self._clients() and not self.prompts.is_idle
            engine = text.in_engine[first] = self.others if is_first else self.prompts
            for progress in engine.submit((first, text.waiting.pop(first))):
                return self._receive(progress, number, text)
            self.check(engine, first, "q")

    def _read(self, number: int, text: ClientText) -> None:
        """Read the next part of a text."""
        found = text.ahead.popleft()
        if isinstance(found, Exception):
            raise found
        if found is None:
            text.is_read = True
            return
        own, part = found
        place: Any = (number, text.window.add(found))
        steps = own.steps(part)
        if steps is None:
            self._write(text, [BatchResult(place, None)])
        else:
            self._write(text, self.submit((place, Task(steps, own.prompting.prompt))))

    def _receive(self, progress: PromptProgress, number: int, text: ClientText) -> None:
        del text.in_engine[progress.number]
        self._write(text, self.receive(progress))

    def _write(self, text: ClientText, results: Iterable[BatchResult[Any]]) -> None:
        """Write all finished parts before the first unfinished one."""
        for each in results:
            _, place = each.number
            for (own, part), found in text.window.receive(BatchResult(place, each.result)):
                text.written[own].append(own.add(part, found.result))
                text.has_news = True


def text_scheduler(session: Session, limits: Limits) -> TextScheduler:
    """Return a scheduler for prompts and texts. The session's target must be a text model."""
    prompts, others = (
        PromptScheduler(
            lambda own: own["options"],
            partial(session.engine, session.options_with({}), limits.slots),
            lambda options: session.planner.draft_length(options, limits.slots),
            reads_text=True,
        )
        for _ in range(2)
    )
    return TextScheduler(prompts, others, limits)

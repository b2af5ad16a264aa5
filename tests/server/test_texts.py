"""Tests the scheduling of texts: which prompts are in the engine, which texts fail, and their outputs."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from speculative_decoding import GenerationOptions, InputError
from speculative_decoding.decoding.results import GenerationResult, GenerationStats
from speculative_decoding.rows.prompts import PromptProgress
from speculative_decoding.server.client_request import ClientRequest
from speculative_decoding.server.documents import Prompting
from speculative_decoding.server.lane import Lane
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.prompts import ClientPrompt
from speculative_decoding.server.reading_threads import ReadingThreads
from speculative_decoding.server.texts import ENCODED, MAX_COPIED, READ_AHEAD, TURNS_PER_SLOT, ClientText, TextScheduler

LIMITS = Limits(slots=3, queue=2, max_prompts=4, max_prompt_tokens=30)
LETTERS: Any = SimpleNamespace(encode=lambda text, language: [*text])  # a tokenizer


def prompting(prefix: str = "", **options: Any) -> Prompting:
    return Prompting(prefix, GenerationOptions(**options), cast(Any, SimpleNamespace(tokenizer=LETTERS)), LIMITS)


class Lines:
    """Replaces `Document` with a text whose parts are its lines."""

    prompting = prompting()

    def __init__(self, text: str) -> None:
        self.parts = iter(re.split("(\r\n|\r|\n)", text))

    def steps(self, part: str) -> Any:
        def decoded() -> Any:
            (output,) = yield [part]
            return output.text

        return decoded() if part.strip() else None

    def add(self, part: str, result: str | None) -> str:
        if result == "BUG":
            raise ValueError("planted")
        return part if result is None else result


class Engine:
    """Simulates a scheduler of prompts. `finish` ends prompts; their outputs are in capital letters."""

    def __init__(self) -> None:
        self.prompts: dict[Any, str] = {}
        self.most = 0  # maximum number of prompts at a time
        self.begun: set[Any] = set()  # the encoded prompts
        self.is_free = True
        self._ended: list[PromptProgress] = []

    @property
    def running(self) -> int:
        return len(self.prompts)

    waiting = 0

    @property
    def is_idle(self) -> bool:
        return not self.prompts and not self._ended

    def requests(self, number: Any) -> list[Any]:
        stats = GenerationStats(prompt_tokens=len(self.prompts[number]))
        return [SimpleNamespace(stats=stats, prefix_length=1, started=number in self.begun)]

    def submit(self, item: tuple[Any, Mapping[str, Any]]) -> list[PromptProgress]:
        number, prompt = item
        self.is_free = False
        if "\0" in prompt["prompt"]:
            return [PromptProgress(number, error=InputError("contains a NUL character", "prompt"))]
        self.prompts[number] = prompt["prompt"]
        return []

    def step(self) -> list[PromptProgress]:
        self.most = max(self.most, len(self.prompts))
        self.begun.update(self.prompts)
        found, self._ended = self._ended, []
        return [each for each in found if self.prompts.pop(each.number, None) is not None]

    def cancel(self, number: Any) -> None:
        self.prompts.pop(number, None)

    def free(self) -> None:
        assert self.is_idle
        self.is_free = True

    def finish(self, *texts: str, error: Exception | None = None) -> None:
        for number, prompt in [*self.prompts.items()]:
            if prompt in texts:
                result = GenerationResult(prompt.upper(), [], "stop", GenerationStats(generated_tokens=1))
                self._ended.append(PromptProgress(number, result=None if error else result, error=error))


def now(steps: Iterator[None]) -> Future[None]:
    """Run the steps of a reading thread immediately."""
    done: Future[None] = Future()
    for _ in steps:
        pass
    done.set_result(None)
    return done


def client_text(*texts: Lines, client: str, run: Any = now) -> ClientText:
    item = ClientText(cast(Any, texts), run, lambda: None, client)
    item.read_ahead()
    return item


class World:
    """A lane, and the texts of clients."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.engine = Engine()
        self.others = Engine()
        scheduler = TextScheduler(cast(Any, self.engine), cast(Any, self.others), limits)
        self.lane = Lane(scheduler, held_clients=scheduler.held_clients)

    def send(self, *texts: str, client: str = "a") -> ClientText:
        item = client_text(*map(Lines, texts), client=client)
        ClientRequest([item])
        self.lane.submit(item)
        self.run()
        return item

    def run(self) -> None:
        """Run rounds until all prompts are in the engine or finished."""
        for _ in range(4 * MAX_COPIED):
            self.lane.step()
            calls, self.lane.calls = self.lane.calls, []
            for call in calls:
                call()

    @property
    def items(self) -> list[ClientText]:
        return [cast(ClientText, item) for item in self.lane.active]

    def finish(self, *texts: str) -> None:
        for engine in (self.engine, self.others):
            engine.finish(*texts)
        self.run()

    @property
    def in_engine(self) -> list[str]:
        return [*self.engine.prompts.values(), *self.others.prompts.values()]


def ended(item: ClientText) -> bool:
    """Return whether the client was notified that its text is finished."""
    return item.client.unfinished == 0 and item.client.error is None


def outputs(item: ClientText) -> list[str]:
    return ["".join(parts) for parts in item.written.values()]


def test_texts_of_a_request_share_the_prompts_that_it_may_have_in_the_engine() -> None:
    world = World()
    item = world.send("a\n\nb\r\nc", "d\re\nf\ng")
    assert world.in_engine == [*"abcd"]
    world.finish("c", "b")
    assert world.in_engine == [*"adef"]
    world.finish("a", "d", "e", "f")
    world.finish("g")
    assert ended(item) and outputs(item) == ["A\n\nB\r\nC", "D\rE\nF\nG"] and world.lane.is_idle


def test_a_client_is_notified_of_the_first_output_and_whenever_parts_are_written() -> None:
    world = World()
    item = world.send("a\nb\nc\nd\ne")
    found = []
    for line in "bcade":
        world.finish(line)
        found.append((item.client._progress.qsize(), *outputs(item)))
    assert found == [(1, ""), (1, ""), (2, "A\nB\nC\n"), (3, "A\nB\nC\nD\n"), (4, "A\nB\nC\nD\nE")]


@pytest.mark.parametrize("seed", range(5))
def test_texts_come_out_line_by_line_in_whatever_order_prompts_finish(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    texts = [
        "\n".join(rng.choice(["", " ", "ab", "c d"]) for _ in range(rng.randrange(3 * MAX_COPIED))) for _ in range(6)
    ]
    items = [world.send(*texts[2 * i : 2 * i + 2], client=str(i)) for i in range(3)]
    while world.in_engine:
        world.finish(rng.choice(world.in_engine))
    assert all(map(ended, items)) and world.engine.most <= TURNS_PER_SLOT * LIMITS.slots
    assert [written for item in items for written in outputs(item)] == [text.upper() for text in texts]


def test_clients_take_turns_and_a_new_one_has_the_next() -> None:
    """This holds for any number of requests of the first client, and for any prompts in its queue."""
    world = World()
    for _ in range(3):
        world.send("\n".join("a" * 99), client="busy")
    assert world.in_engine == ["a"] * TURNS_PER_SLOT * LIMITS.slots
    world.send("b\nc\nd\ne\nf\ng", client="new")
    (first, *_) = world.engine.prompts
    world.engine._ended.append(PromptProgress(first, result=GenerationResult("A", [], "stop", GenerationStats())))
    world.run()
    assert world.in_engine.count("b") == 1
    served = []
    for _ in range(8):
        oldest = next(iter(world.engine.prompts))
        served.append(world.engine.prompts[oldest])
        world.engine._ended.append(PromptProgress(oldest, result=GenerationResult("", [], "stop", GenerationStats())))
        world.run()
    assert 3 <= world.in_engine.count("a") <= 4  # the new client has half of the engine
    assert {"b", "c", "d"} & {*served, *world.in_engine} == {"b", "c", "d"}


def test_prompts_of_another_client_are_behind_none_of_a_client_with_a_long_text() -> None:
    """Neither a prompt nor the first prompt of a text waits, even if the first client has many in the engine."""
    world = World()
    busy = [world.send("\n".join("a" * 20), client="busy") for _ in range(3)]
    assert world.in_engine == ["a"] * TURNS_PER_SLOT * LIMITS.slots
    text, other = world.send("b\nc\nd", client="new"), world.send("e", client="newer")
    prompt = ClientPrompt("f", GenerationOptions())
    ClientRequest([prompt])
    world.lane.submit(prompt)
    assert [*world.others.prompts.values()] == [*"bef"]
    for line in "bcd":
        assert line in world.others.prompts.values()
        world.finish(line)
    world.finish("e")
    assert [*map(outputs, (text, other))] == [["B\nC\nD"], ["E"]] and ended(text) and ended(other)
    while world.in_engine:
        world.finish("a", "f")
    assert all(map(ended, busy)) and world.lane.is_idle


def test_rounds_of_other_prompts_take_as_much_time_as_those_of_texts() -> None:
    rounds: list[str] = []

    class Timed(Engine):
        def __init__(self, name: str, seconds: int) -> None:
            super().__init__()
            self.name, self.seconds, self.prompts = name, seconds, {0: name}

        def step(self) -> list[PromptProgress]:
            rounds.extend(self.name * self.seconds)
            return []

    texts, others = Timed("t", 5), Timed("o", 1)
    scheduler = TextScheduler(cast(Any, texts), cast(Any, others), LIMITS, clock=lambda: len(rounds))
    for _ in range(3):
        [*scheduler.decode_round()]
    assert "".join(rounds) == "o" + "ttttt" + "ooooo" + "ttttt" + "ooooo" + "ttttt"
    texts.prompts.clear()
    for _ in range(3):
        [*scheduler.decode_round()]
    assert "".join(rounds[26:]) == "ooooo" + "o" + "o"  # each prompt is decoded immediately


def test_few_tokens_of_texts_wait_to_be_encoded_together() -> None:
    world = World(Limits(slots=8, max_prompt_tokens=ENCODED))
    item = client_text(Lines("\n".join(["a" * (ENCODED // 2)] * 8)), client="a")
    ClientRequest([item])
    world.lane.submit(item)
    for count in (2, 4, 6, 8):
        world.lane.step()
        assert len(world.in_engine) == count


def test_only_reading_threads_parse() -> None:
    started: list[Iterator[None]] = []

    def later(steps: Iterator[None]) -> Future[None]:
        started.append(steps)
        return futures[len(started) - 1]

    futures: list[Future[None]] = [Future() for _ in range(9)]
    world = World()
    item = client_text(Lines("\n".join("abc")), client="a", run=later)
    ClientRequest([item])
    world.lane.submit(item)
    for expected in ("", "a", "a", "ab"):
        world.run()
        assert world.in_engine == [*expected] and len(started) == 1 and not world.lane._turns.waiting
        next(started[0])
    world.lane.cancel(item)
    assert futures[0].cancelled()


def test_a_text_is_read_on_when_the_parts_that_were_read_are_used_up() -> None:
    threads = ReadingThreads()
    threads.start()
    try:
        world = World()
        text = "\n".join("a" * 2 * READ_AHEAD)
        item = client_text(Lines(text), client="a", run=partial(threads.run, "a"))
        ClientRequest([item])
        world.lane.submit(item)
        for _ in range(2 * READ_AHEAD):
            world.finish("a")
            item.reading.result()
        assert ended(item) and outputs(item) == [text.upper()]
    finally:
        threads.stop()


def test_a_failed_prompt_ends_its_text_only() -> None:
    world = World()
    broken, good = world.send("a\nb\nc\nd\ne", client="x"), world.send("f\ng", client="y")
    world.engine.finish("a", error=ArithmeticError("planted"))
    world.run()
    error = broken.client.error
    assert error is not None and (error.status, error.code) == (500, "not_finite")
    assert sorted(world.in_engine) == ["f", "g"] and world.items == [good]
    world.finish("f", "g")
    assert ended(good) and outputs(good) == ["F\nG"]


@pytest.mark.parametrize(
    ("line", "message"),
    [("x\0", "q: contains a NUL character"), ("x" * 31, "q: has 31 tokens (at most 30 on this server)")],
)
def test_a_line_that_cannot_be_decoded_ends_its_text_and_is_named(line: str, message: str) -> None:
    world = World()
    good, bad = world.send("a\nb"), world.send(f"c\n{line}\nd")
    world.finish("a")
    error = bad.client.error
    assert error is not None and (error.status, error.param) == (400, "q") and error.message.startswith(message)
    assert world.in_engine == ["b"] and world.items == [good]


def test_a_text_that_cannot_be_written_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Even an unexpected exception fails only this text. Otherwise, it would end the round of all clients."""
    world = World()
    broken, good = world.send("a\nbug\nc", client="x"), world.send("f", client="y")
    world.finish("bug", "a")
    error = broken.client.error
    assert error is not None and error.status == 500 and "planted" not in error.message and "planted" in caplog.text
    assert world.in_engine == ["f"] and world.items == [good]


def test_a_cancelled_text_leaves_nothing_in_the_engine() -> None:
    world = World()
    gone, good = world.send("a\nb\nc\nd\ne", client="x"), world.send("f", client="y")
    also_gone = world.send("g", client="z")
    assert [*world.others.prompts.values()] == ["f", "g"]
    world.lane.cancel(gone)
    world.lane.cancel(also_gone)
    assert world.in_engine == ["f"] and world.items == [good]
    world.run()
    assert world.engine.is_free and not world.others.is_free
    world.finish("f")
    assert ended(good) and world.lane.is_idle and world.others.is_free


def test_a_text_without_words_needs_no_prompt() -> None:
    world = World()
    items = [world.send(text) for text in ("", "\n" * 3 * MAX_COPIED, "\n" * (2 * MAX_COPIED - 1))]
    assert all(map(ended, items)) and world.engine.most == 0
    assert [outputs(item)[0] for item in items] == ["", "\n" * 3 * MAX_COPIED, "\n" * (2 * MAX_COPIED - 1)]


def test_the_statistics_of_a_text_are_the_sum_over_its_prompts() -> None:
    world = World()
    item = world.send("a\nb\nc")
    world.finish("a", "b", "c")
    while (news := item.client._progress).qsize():
        (_, progress) = news.get_nowait()  # type: ignore[misc]
        item.add(progress)
    assert item.finish_reason == "stop" and item.stats is not None and item.stats.generated_tokens == 3


def test_an_output_has_the_usual_limit_of_its_source_and_at_most_the_largest() -> None:
    found = [prompting("ab", max_tokens=50).prompt(text) for text in ("c", "c" * 100)]
    assert [(each["prompt"][:3], each["options"].max_tokens) for each in found] == [("abc", 32 + 3 * 3), ("abc", 50)]


def test_copying_a_text_delays_no_round() -> None:
    """A turn that copies parts uses no slot, but at most as many turns as there are slots precede a round."""
    world = World()
    world.send("a")
    item = client_text(Lines("\n" * 100_000), client="b")
    ClientRequest([item])
    world.lane.submit(item)
    world.engine.finish("a")
    world.lane.step()
    assert not world.in_engine and not ended(item)
    assert sum(map(len, item.written.values())) <= MAX_COPIED * (TURNS_PER_SLOT * LIMITS.slots + 1)


def test_a_client_learns_of_the_first_output_of_its_text() -> None:
    world = World()
    item = world.send("a\nb\nc")
    assert item.client._progress.empty()
    world.finish("b")
    (_, progress) = item.client._progress.get_nowait()  # type: ignore[misc]
    item.add(progress)
    assert item.finish_reason is None and item.client._progress.empty()

"""The engine: the output of a request does not depend on other requests, their arrival or their cancellation."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.decoding.request import Request
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.draft_length.passes import UNPADDED
from speculative_decoding.drafters import AutoDrafter, BatchDrafter, NgramDrafter, SeparateDrafters
from speculative_decoding.drafters.base import MEMORY, TEXT
from speculative_decoding.drafters.draft_text import DraftText
from speculative_decoding.engine import QUEUE_PER_SLOT, Engine, Event, FindDrafts
from speculative_decoding.errors import InputError
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.models.source import TextTokens
from speculative_decoding.sampling import GenerationOptions
from tests.support.tiny import EXACT, VOCAB, model_drafter, noisy_copy, run, tiny_model, tokens_of
from tests.support.together import Letters, options_of

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
PROMPTS = ["abc", "b", "hgfedcba", "aa", "cabbage", "fed", "deadbeef", "g", "abcdefghijkl", "cc", "hij", "ecb", "iii"]
BY_NAME: dict[str, Callable[[], BatchDrafter]] = {
    "model": lambda: model_drafter(TARGET, DRAFT),
    "ngram": lambda: SeparateDrafters(NgramDrafter(min_chance=0.0).fresh, VOCAB),
    "text": lambda: AutoDrafter(NgramDrafter(search_input=False, search_output=False, min_chance=0.0), None, VOCAB),
    "auto": lambda: AutoDrafter(NgramDrafter(min_chance=0.0), model_drafter(TARGET, DRAFT), VOCAB),
}
COUPLED = {"temperature": 1.0}


@cache
def alone(prompt: str, options: GenerationOptions) -> list[int]:
    """Decode without an engine and without a draft."""
    chosen = {name: getattr(options, name) for name in ("temperature", "acceptance", "seed", "max_tokens")}
    return tokens_of(run(TARGET, Letters().encode(prompt), **chosen))


def text_of_output(prompt: str) -> str:
    """Return the greedy output of a prompt, as a text that the same or another prompt may give."""
    return Letters().decode(alone(prompt, options_of(max_tokens=20)))


class Client:
    """Submits requests, steps the engine, and records its events."""

    def __init__(
        self,
        drafter: str | BatchDrafter = "model",
        slots: int = 8,
        target: EncoderDecoder = TARGET,
        find_drafts: FindDrafts | None = None,
        **options: Any,
    ) -> None:
        self.drafter = BY_NAME[drafter]() if isinstance(drafter, str) else drafter
        self.options = options
        widths = EXACT if options.get("strict") else UNPADDED
        self.engine = Engine(target, Letters(), self.drafter, slots=slots, widths=widths, find_drafts=find_drafts)
        self.prompts: dict[Request, str] = {}
        self.told: dict[Request, list[int]] = {}

    def submit(self, prompt: str, **own: Any) -> Request:
        options = options_of(**{"max_tokens": 20} | self.options | own)
        request = self.engine.submit(prompt, options, FixedLength(int(options.num_draft_tokens)))
        self.prompts[request], self.told[request] = prompt, []
        return request

    def step(self) -> list[Event]:
        events = self.engine.step()
        for event in events:
            assert event.request.finish_reason == event.round.finish_reason
            assert len(event.texts) == len(event.round.tokens)
            self.told[event.request] += event.round.tokens
        assert len({event.request for event in events}) == len(events)
        return events

    def finish(self) -> None:
        while not self.engine.is_idle:
            assert self.step()
        self.check()

    def check(self, *cancelled: Request) -> None:
        for request, prompt in self.prompts.items():
            expected = alone(prompt, request.options)
            assert request.tokens == self.told[request]
            if request in cancelled:
                assert request.finish_reason == "cancelled" and request.tokens == expected[: len(request.tokens)]
            else:
                assert request.tokens == expected and request.finish_reason in ("stop", "length")
                assert Letters().decode(expected) == request.text


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that records "eval" or "async_eval" for each evaluation, and "encode" for each source."""
    done: list[str] = []
    for name in ("eval", "async_eval"):
        evaluate = getattr(mx, name)
        monkeypatch.setattr(
            mx, name, lambda *arrays, name=name, evaluate=evaluate: (done.append(name), evaluate(*arrays))[1]
        )
    encode = type(TARGET).encode

    def encoding(self: Any, tokens: mx.array, *rest: Any) -> mx.array:
        done.extend(["encode"] * tokens.shape[0])
        return encode(self, tokens, *rest)

    monkeypatch.setattr(type(TARGET), "encode", encoding)
    return done


def test_submit_computes_nothing_and_has_no_limit(work: list[str]) -> None:
    client = Client(slots=2)
    for number in range(100):
        client.submit(PROMPTS[number % len(PROMPTS)], max_tokens=1)
        assert client.engine.wants_more == (number + 1 < QUEUE_PER_SLOT * 2) and not client.engine.is_idle
    assert work == []
    client.step()
    assert work
    work.clear()
    client.submit("abc")
    assert work == []


@pytest.mark.parametrize("slots", [1, 5])
def test_at_most_one_request_for_each_slot_is_encoded_ahead(work: list[str], slots: int) -> None:
    """This bounds the work lost on requests that are cancelled while they wait."""
    client = Client("ngram", slots=slots, max_tokens=5)
    for prompt in PROMPTS * 2:
        client.submit(prompt)
    ended = 0
    while not client.engine.is_idle:
        before = sum(bool(request.tokens) for request in client.prompts)
        events = client.step()
        started = sum(bool(request.tokens) for request in client.prompts)
        assert work.count("encode") <= started + slots and work.count("encode") - before <= 2 * slots
        ended += sum(event.request.finish_reason is not None for event in events)
        assert started - ended <= slots
    assert work.count("encode") == ended == 2 * len(PROMPTS)
    client.check()


def test_step_that_fills_a_slot_waits_for_the_device_once(work: list[str]) -> None:
    client = Client("ngram", slots=2)
    requests = [client.submit(prompt, max_tokens=count) for prompt, count in zip(PROMPTS[:6], (2, 9) * 3, strict=True)]
    fills = 0
    while not client.engine.is_idle:
        before = sum(bool(request.tokens) for request in requests)
        work.clear()
        client.step()
        if "encode" not in work:
            fills += sum(bool(request.tokens) for request in requests) > before
            assert work.count("eval") == 1
    assert fills


def test_step_runs_a_round_for_each_active_row() -> None:
    client = Client(slots=4)
    requests = [client.submit(prompt) for prompt in PROMPTS[:6]]
    for _ in range(3):
        active = {request for request in requests if request.tokens and not request.finish_reason}
        found = {event.request for event in client.step()}
        assert active <= found and len(found) == 4
    client.finish()
    assert client.engine.step() == []


def slots_taken(client: Client) -> int:
    return sum(request is not None and not request.finish_reason for request in client.engine._requests)


def test_cancelled_request_frees_its_slot_before_the_next_round() -> None:
    """Requests are cancelled while decoding, encoded, sorted or queued."""
    client = Client("auto", slots=3, max_tokens=8)
    requests = [client.submit(prompt) for prompt in (PROMPTS * 3)[: 3 * QUEUE_PER_SLOT + 6]]
    client.step()
    engine = client.engine
    running = [each for each in engine._requests if each is not None and not each.finish_reason]
    encoded = [request for request, _ in engine._encoded] or [engine._sorted[0]]
    cancelled = [running[0], encoded[0], engine._sorted[-1], engine._queue[0]]
    for request in cancelled:
        engine.cancel(request)
        engine.cancel(request)  # a second call has no effect
    next_in_line = len(client.step())
    assert (
        next_in_line
        == 3
        == slots_taken(client)
        + sum(request.finish_reason not in (None, "cancelled") for request in engine._requests if request is not None)
    )
    while not engine.is_idle:
        assert not {event.request for event in client.step()} & set(cancelled)
    client.check(*cancelled)
    done = requests[-1]
    reason = done.finish_reason
    engine.cancel(done)
    assert done.finish_reason == reason != "cancelled"


def test_request_cancelled_before_the_first_round_costs_nothing(work: list[str]) -> None:
    client = Client(slots=2)
    requests = [client.submit(prompt) for prompt in PROMPTS[:4]]
    for request in requests:
        client.engine.cancel(request)
    assert client.engine.is_idle and client.step() == [] and work == []
    client.submit("abc")
    while not client.engine.is_idle:
        client.step()
    client.check(*requests)


def test_finished_requests_are_released() -> None:
    """After their slots are reused, neither finished and cancelled requests nor their state are referenced."""
    client = Client("auto", slots=3, max_tokens=4)
    old = [weakref.ref(client.submit(prompt)) for prompt in PROMPTS * 3]
    client.engine.cancel(old[5]())  # type: ignore[arg-type]
    sizes = set()
    for number in range(30):
        client.step()
        if number == 2:
            client.engine.cancel(next(each for each in client.engine._requests if each and not each.finish_reason))
    while not client.engine.is_idle:
        client.step()
        sizes.add(state_size(client.drafter))
    client.prompts.clear()
    client.told.clear()
    for _ in range(3):
        client.submit("abc")
    client.step()
    gc.collect()
    assert not [each for each in old if each() is not None]
    assert max(sizes) <= 3 and state_size(client.drafter) <= 3


def state_size(drafter: BatchDrafter) -> int:
    """Return the size of the largest dictionary of a drafter, including inner drafters."""
    own = [len(value) for value in vars(drafter).values() if type(value) is dict]
    inner = [state_size(value) for value in vars(drafter).values() if isinstance(value, BatchDrafter)]
    return max(own + inner)


@pytest.mark.parametrize("drafter", BY_NAME)
def test_prompts_at_random_times_equal_single_prompts(drafter: str) -> None:
    """Greedy and coupled requests of random lengths are submitted and cancelled in random order.

    So the batch grows and shrinks.
    """
    rng = random.Random(len(drafter))
    client = Client(drafter, slots=16)
    sizes = []
    cancelled = []
    waiting = 60
    while waiting or not client.engine.is_idle:
        for _ in range(min(waiting, rng.choice((0, 0, 1, 1, 2, 9)))):
            own: dict[str, Any] = {"max_tokens": rng.randint(1, 12), "num_draft_tokens": rng.randint(0, 6)}
            if rng.random() < 0.4:
                own |= COUPLED | {"seed": rng.randint(0, 5)}
            prompt = rng.choice(PROMPTS)
            texts = [*map(text_of_output, rng.sample(PROMPTS, 2)), text_of_output(prompt)]
            client.submit(prompt, draft_text=texts[rng.randint(0, 3) :], **own)
            waiting -= 1
        alive = [request for request in client.prompts if not request.finish_reason]
        if alive and rng.random() < 0.2:
            cancelled.append(rng.choice(alive))
            client.engine.cancel(cancelled[-1])
        client.step()
        sizes.append(len(client.engine._requests))
    assert len({*sizes}) > 3 and sizes != sorted(sizes)
    assert len(client.prompts) == 60 and len(cancelled) > 1
    client.check(*cancelled)


def test_invalid_prompt_is_refused_and_others_continue() -> None:
    client = Client(slots=2)
    client.submit("abc")
    client.step()
    with pytest.raises(InputError, match="prompt: is empty"):
        client.submit(" ")
    with pytest.raises(InputError, match="eos_token_ids: must be between 0 and 23"):
        client.submit("b", eos_token_ids=(99,))
    client.submit("cab")
    client.finish()
    assert len(client.prompts) == 2


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_a_draft_text_is_followed_by_its_own_request_only(slots: int) -> None:
    """Requests with a text, with no text and with an empty one share the batch, and take each other's slots."""
    client = Client("text", slots=slots)
    given = {}
    for number, prompt in enumerate(PROMPTS * 2):
        texts = ([text_of_output(prompt)], [], [""])[number % 3]
        given[client.submit(prompt, draft_text=texts)] = texts
    drafted = dict.fromkeys(given, 0)
    while not client.engine.is_idle:
        for event in client.step():
            drafted[event.request] += event.round.drafted
    client.check()
    for request, texts in given.items():
        assert bool(drafted[request]) == (texts not in ([], [""])), (request.text, texts)


class Recording(type(TARGET)):  # type: ignore[misc]
    """A model that records the widths of its passes."""

    def states(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
        self.widths.add(tokens.shape[1])
        return super().states(tokens, cache)


def test_strict_batches_use_one_class_of_widths_and_equal_single_rows() -> None:
    target = Recording(TARGET.config)
    target.update(TARGET.parameters())
    target.widths = set()
    prefix = tuple(alone("iii", options_of(max_tokens=20)))
    for options in ({"max_tokens": 20}, {"max_tokens": 36, "decoder_prefix": prefix}):
        client = Client(slots=4, target=target, strict=True, num_draft_tokens=7, **options)
        client.submit(PROMPTS[0])  # one row, before the batch grows
        client.step()
        for prompt in PROMPTS:  # one row is near its end while another prefills a prefix
            client.submit(prompt)
        while not client.engine.is_idle:
            client.step()
        if "decoder_prefix" not in options:
            client.check()
    assert target.widths == EXACT.costs(1).passes.keys()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("options", [{}, COUPLED], ids=["greedy", "coupled"])
def test_found_drafts_follow_the_given_ones_and_change_no_token(options: dict[str, Any], strict: bool) -> None:
    """They are looked up once for each source, with its text, and only for requests that follow texts."""
    asked: list[str] = []

    def find(request: Request) -> list[DraftText]:
        assert isinstance(request.source, TextTokens) and request.source.text is not None
        asked.append(request.source.text)
        own = alone(request.source.text, options_of(**options, max_tokens=20))
        return [DraftText(own if len(asked) % 2 else own[::-1], {}, MEMORY), DraftText([], {}, MEMORY)]

    client = Client("auto", slots=4, find_drafts=find, strict=strict, **options)
    given = DraftText([3, 4], {}, TEXT)
    requests = [client.submit(prompt, drafter="auto") for prompt in PROMPTS]
    for request in requests[:3]:
        request.draft_texts = [given]
    others = [client.submit("abc", drafter="none"), client.submit("abc", drafter="auto", num_draft_tokens=0)]
    client.finish()
    assert sorted(asked) == sorted(PROMPTS)
    for request in requests:
        assert client.told[request] == alone(client.prompts[request], request.options)
        kinds = [text.kind for text in request.draft_texts]
        assert kinds == [TEXT] * (request in requests[:3]) + [MEMORY, MEMORY]
    assert not any(request.draft_texts for request in others)


def test_samples_of_a_prompt_share_what_is_found() -> None:
    asked = []

    def find(request: Request) -> list[DraftText]:
        asked.append(request)
        return [DraftText([3, 4, 5], {}, MEMORY)]

    client = Client("auto", slots=2, find_drafts=find)
    options = options_of(temperature=1.0, num_return_sequences=5, drafter="auto", max_tokens=6)
    requests = client.engine.submit_samples("abc", options, FixedLength(3))
    while not all(request.finish_reason for request in requests):
        client.engine.step()
    assert len(asked) == 1 and len({id(request.draft_texts[0]) for request in requests}) == 1

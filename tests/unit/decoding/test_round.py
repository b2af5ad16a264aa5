"""A round fits one screen, has one host sync, and runs as many device operations for one row as for many.

On a GPU, the next pass of a baseline starts before the host reads the tokens of this one: that changes no output.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import GenerationResult, Session, generate
from speculative_decoding.decoding import round as loop
from speculative_decoding.decoding.prompt import DecoderPrompt
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.drafters import AutoDrafter, BatchDrafter, Draft, NgramDrafter, NoDrafter, SeparateDrafters
from speculative_decoding.drafters.base import TEXT
from speculative_decoding.drafters.draft_text import DraftText
from speculative_decoding.engine import Engine
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.sampling import Constraints, History, processed_logits
from tests.support.device import within
from tests.support.metal import pretend_gpu
from tests.support.operations import counted, operations, passes_and_syncs, read_by_host, total_without_masks
from tests.support.tiny import EXACT, VOCAB, head_drafter, model_drafter, noisy_copy, tiny_model
from tests.support.together import Letters, options_of

LINES = 30
MODEL = tiny_model()
ENDLESS = tiny_model(eos_token_id=[])
TARGET = tiny_model(7, 0.3, num_layers=2, eos_token_id=[])  # never ends
DRAFT = noisy_copy(TARGET, 0.1)
COPIES = NgramDrafter(min_chance=0.0)
BY_NAME: dict[str, Callable[[], BatchDrafter]] = {
    "model": lambda: model_drafter(TARGET, DRAFT),
    "head": lambda: head_drafter(TARGET, range(12)),
    "ngram": lambda: SeparateDrafters(COPIES.fresh, VOCAB),
    "text": lambda: AutoDrafter(NgramDrafter(search_input=False, search_output=False, min_chance=0.0), None, VOCAB),
    "auto": lambda: AutoDrafter(COPIES, model_drafter(TARGET, DRAFT), VOCAB),
}


@cache
def output_of(prompt: str) -> str:
    return generate(TARGET, Letters(), prompt, drafter="none", max_tokens=100).text


def running(drafter: str, rows: int, **options: Any) -> Engine:
    """Return an engine after three rounds, with rows at different positions."""
    engine = Engine(TARGET, Letters(), BY_NAME[drafter](), slots=rows)
    for number in range(rows):
        prompt = "abcdefgh"[number % 8 :] + "ab"
        texts = [output_of(prompt)] if drafter == "text" else []
        chosen = options_of(max_tokens=100, draft_text=texts, **options)
        engine.submit(prompt, chosen, FixedLength(int(chosen.num_draft_tokens)))
    for _ in range(3):
        engine.step()
    return engine


def test_speculate_fits_one_screen() -> None:
    assert len(inspect.getsource(loop.speculate).splitlines()) <= LINES


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("drafter", BY_NAME)
def test_a_round_has_one_host_sync(drafter: str) -> None:
    """`timed` adds a sync for the draft."""
    for timed in (False, True):
        engine = running(drafter, 5, timed=timed)
        with passes_and_syncs() as done:
            for _ in range(3):
                assert len(engine.step()) == 5
        assert done.count("sync") == 3 * (1 + timed)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("drafter", BY_NAME)
def test_arrays_read_after_the_host_sync_are_evaluated(drafter: str) -> None:
    """`tolist` on a lazy array would be a hidden second sync."""
    with read_by_host() as left:
        running(drafter, 3, logprobs=True)
    assert len(left) > 10 and not any(left)


def operations_of_rounds(drafter: str, rows: int, **options: Any) -> list[Counter[str]]:
    engine = running(drafter, rows, num_draft_tokens=3, **options)
    found = []
    for _ in range(4):
        with counted() as seen:
            assert len(engine.step()) == rows
        found.append(seen)
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("drafter", ["model", "head", "ngram", "text"])
def test_a_greedy_round_runs_as_many_operations_for_one_row_as_for_many(drafter: str) -> None:
    one, eight, many = (operations_of_rounds(drafter, rows) for rows in (1, 8, 32))
    most = max(one, key=Counter.total)
    for found in (*eight, *many):
        assert total_without_masks(found) == total_without_masks(most), (found - most, most - found)
    if drafter == "model":
        assert len({found.total() for found in one}) == 1


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_a_greedy_decision_takes_two_operations(num_draft_tokens: int) -> None:
    """The host compares the draft with the arg-max. The other operation detects logits that are not finite."""
    rows = [row for row in running("model", 2)._batch.slots if row is not None]
    draft = Draft(mx.zeros((2, num_draft_tokens), mx.uint32))
    logits = mx.random.normal((2, num_draft_tokens + 1, VOCAB))
    mx.eval(logits)
    decision = loop.verify_rows(rows, draft, logits)
    assert operations(*(array for array in decision if array is not None)) == {"ArgReduce": 1, "Max": 1}


# What observers see.


PREFIX = [0, 7, 3, 9]
CONSTRAINTS = Constraints(no_repeat_ngram_size=2, banned=((4,),))
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"repetition_penalty": 1.3},
    "rejection": {"temperature": 0.8, "acceptance": "rejection"},
    "coupled": {"temperature": 0.8, "top_k": 5},
}


class Watching:
    """Keeps all that it sees."""

    position = 2

    def __init__(self) -> None:
        self.prefix: list[mx.array] = []
        self.logits: list[np.ndarray] = []
        self.tokens: list[int] = []

    def prefilled(self, logits: mx.array) -> None:
        self.prefix.append(logits)

    def committed(self, logits: np.ndarray, tokens: Sequence[int]) -> None:
        self.logits += [*logits]
        self.tokens += tokens


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        ("none", "greedy"),
        ("model", "greedy"),
        ("model", "rejection"),
        ("ngram", "coupled"),
        ("text", "greedy"),
        ("text", "rejection"),
    ],
)
def test_an_observer_sees_the_logits_of_committed_tokens_only(drafter: str, rule: str) -> None:
    """The batch also decodes a request without an observer, and for a while one by another rule."""
    drafts = BY_NAME | {"none": NoDrafter, "model": lambda: model_drafter(MODEL, noisy_copy(MODEL))}
    engine = Engine(MODEL, Letters(), drafts[drafter](), slots=3)
    options, observer = options_of(max_tokens=15, **RULES[rule]), Watching()
    likely = generate(MODEL, Letters(), "abcabc", drafter="none", decoder_prefix=PREFIX[1:], max_tokens=15).tokens
    texts = [DraftText([*PREFIX[1:], *likely], {}, TEXT)] if drafter == "text" else []
    start = DecoderPrompt(options, [*PREFIX], {1}, CONSTRAINTS, observer, draft_texts=texts)
    request = engine.submit("abcabc", options, FixedLength(4), start)
    engine.submit("cab", options, FixedLength(2))
    engine.submit("bad", options_of(max_tokens=5, temperature=1.0, acceptance="block"), FixedLength(2))
    drafted = 0
    while not engine.is_idle:
        drafted += sum(event.round.drafted for event in engine.step() if event.request is request)
    assert bool(drafted) == (drafter != "none")

    read = mx.array([request.decoder_tokens[:-1]])
    logits = MODEL.logits(MODEL.teacher_forced(read, MODEL.encode(mx.array([request.source]))))
    history = History([request.decoder_tokens[:-1]], None, [CONSTRAINTS])
    first = len(PREFIX) - 1
    assert observer.tokens == request.tokens and len(observer.logits) == len(request.tokens)
    assert len(observer.prefix) == 1 and mx.abs(observer.prefix[0] - logits[0, 1]).max().item() < within(1e-5)
    for i, found in enumerate(observer.logits):
        history = History([request.decoder_tokens[: first + 1 + i]], None, [CONSTRAINTS])
        expected = np.array(processed_logits(logits[:, first + i : first + i + 1], [options], history)[0, 0])
        assert np.allclose(found, expected, atol=within(1e-5))


# Passes that start early.


PROMPTS = ["abc", "b", "hgfedcba", "aa", "cabbage", "fed"]
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "logprobs": {"logprobs": True},
    "stop strings": {"stop": ["e", "hg"]},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "an end token later": {"eos_token_ids": [9]},
    "padded passes": {"strict": True},
    "a minimum length": {"min_tokens": 5},
    "samples": {"temperature": 1.0},
    "a penalty": {"repetition_penalty": 1.3},
}


def outputs(model: EncoderDecoder, slots: int, options: dict[str, Any]) -> list[tuple[Any, ...]]:
    session = Session(model, Letters(), slots=slots)
    if "strict" in options:
        session.planner.widths = lambda *_: EXACT  # type: ignore[method-assign]  # passes are padded
    given = {"drafter": "none", "max_tokens": 12} | options
    results: list[GenerationResult | None] = [each.result for each in session.batch(PROMPTS, **given)]
    assert all(results)
    return [(each.tokens, each.text, each.finish_reason, each.logprobs) for each in results if each is not None]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("name", "slots"),
    [*product(OPTIONS, [3]), ("greedy", 1), ("greedy", 8), ("stop strings", 8), ("an end token later", 8)],
)
def test_outputs_do_not_change(name: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("speculative_decoding.engine.on_gpu", lambda: False)  # starts no pass early
        expected = outputs(MODEL, slots, OPTIONS[name])
    assert outputs(MODEL, slots, OPTIONS[name]) == expected


def test_each_pass_starts_before_the_host_waits_for_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=2)  # evaluates tables
    with passes_and_syncs() as done:
        generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=4)
    assert done[done.index("pass") :] == ["pass", "pass", "sync", "pass", "sync", "pass", "sync", "sync"]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"timed": True},
        {"drafter": NgramDrafter(min_chance=0.0), "num_draft_tokens": 3},
    ],
)
def test_a_pass_that_needs_the_tokens_waits_for_them(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    with passes_and_syncs() as done:
        generate(ENDLESS, Letters(), "abc", **{"drafter": "none", "max_tokens": 6} | options)
    assert "pass pass" not in " ".join(done)


@pytest.mark.usefixtures("device")
def test_an_end_token_wastes_one_pass_and_a_full_output_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    with passes_and_syncs() as done:
        tokens = generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=8).tokens
        assert done.count("pass") == len(tokens) == 8
        done.clear()
        at = next(i for i in range(2, 8) if tokens[i] not in tokens[:i])
        found = generate(ENDLESS, Letters(), "abc", drafter="none", eos_token_ids=[tokens[at]]).tokens
    assert found == tokens[: at + 1]
    assert done.count("pass") == at + 2


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("cancelled", [0, 1])
def test_cancelled_and_new_requests_change_no_other(cancelled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    session = Session(ENDLESS, Letters())
    options = session.options_with({"drafter": "none", "max_tokens": 9})
    own = session.engine(options, 3)
    length = session.planner.draft_length(options)
    requests = [own.submit(prompt, options, length) for prompt in PROMPTS[:3]]
    for _ in range(3):
        own.step()
    own.cancel(requests.pop(cancelled))
    own.step()
    requests += [own.submit(prompt, options, length) for prompt in PROMPTS[3:]]
    while not own.is_idle:
        own.step()
    prompts = PROMPTS[:cancelled] + PROMPTS[cancelled + 1 :]
    expected = [generate(ENDLESS, Letters(), each, drafter="none", max_tokens=9).tokens for each in prompts]
    assert [request.tokens for request in requests] == expected


def broken_at(token: int) -> EncoderDecoder:
    """Return ENDLESS with an embedding of this token that is not finite."""
    model = tiny_model(eos_token_id=[])
    weight = model.embedding.weight
    model.embedding.weight = mx.where(mx.arange(len(weight))[:, None] == token, mx.nan, weight)
    return model


@pytest.mark.usefixtures("device")
def test_logits_that_are_not_finite_end_only_their_own_output(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=8).tokens
    at = next(i for i in range(2, 8) if baseline[i] not in [*baseline[:i], *Letters().encode("abc")])
    session = Session(broken_at(baseline[at]), Letters(), slots=2)

    def errors_and_tokens() -> list[Any]:
        results = session.batch(["abc", "b"], drafter="none", max_tokens=12)
        return [each.error if each.result is None else each.result.tokens for each in results]

    expected = errors_and_tokens()
    pretend_gpu(monkeypatch)
    assert errors_and_tokens() == expected and f"output token {at + 2} are not finite" in str(expected[0])


@pytest.mark.usefixtures("device")
def test_a_wasted_pass_that_is_not_finite_does_not_harm_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wasted pass reads the end token, and leaves its keys and values in the slot."""
    pretend_gpu(monkeypatch)
    baseline = generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=8).tokens
    at = next(i for i in range(2, 8) if baseline[i] not in [*baseline[:i], *Letters().encode("abc")])
    session = Session(broken_at(baseline[at]), Letters())
    options = session.options_with({"drafter": "none", "max_tokens": 8, "eos_token_ids": [baseline[at]]})
    own = session.engine(options, 1)
    for _ in range(2):
        request = own.submit("abc", options, session.planner.draft_length(options))
        while not own.is_idle:
            own.step()
        assert (request.tokens, request.finish_reason) == (baseline[: at + 1], "stop")

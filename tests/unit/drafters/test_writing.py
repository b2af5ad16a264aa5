"""The drafter for models of another vocabulary: what it writes, when it starts again, and which outputs it drops."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from speculative_decoding.drafters.base import MODEL, RequestView
from speculative_decoding.drafters.draft_text import DraftText, TextFollower
from speculative_decoding.drafters.writing import MAX_SILENT, MAX_SKIPPED, BatchWritingDrafter
from speculative_decoding.sampling import GenerationOptions
from tests.support.writing import HELD_BACK, ScriptedWriter

START, END = 0, 1
TEXT = [*range(10, 60), END]


def request_of(tokens: Sequence[int] = (), slot: int = 0) -> RequestView:
    return RequestView(GenerationOptions(), [5, 6, END], [START, *tokens], slot)


def drafter_of(writer: ScriptedWriter, *requests: RequestView) -> BatchWritingDrafter:
    drafter = BatchWritingDrafter(writer)
    for request in requests:
        drafter.begin(request)
    return drafter


def drafted(drafter: BatchWritingDrafter, request: RequestView, count: int, slots: int = 1) -> list[int]:
    return drafter.propose({request: count}, slots).to_lists()[request.slot]


def grow(drafter: BatchWritingDrafter, request: RequestView, tokens: Sequence[int]) -> None:
    request.decoder_tokens += tokens
    drafter.observe([request], [len(tokens)])


@pytest.mark.parametrize("count", [1, 4, 15])
def test_only_the_text_of_the_next_draft_is_written(count: int) -> None:
    writer, request = ScriptedWriter(lambda _: TEXT), request_of()
    drafter = drafter_of(writer, request)
    assert writer.started == []  # nothing is written before a draft is needed
    position = 0
    while position + count + HELD_BACK < len(TEXT):
        assert drafted(drafter, request, count) == TEXT[position : position + count]
        assert writer.steps == position + count + HELD_BACK
        grow(drafter, request, TEXT[position : position + count])
        position += count
    assert len(writer.started) == 1


def test_a_prompt_that_is_not_in_the_text_is_not_followed() -> None:
    prompt = [*range(60, 90)]
    writer, request = ScriptedWriter(lambda _: [*prompt, *TEXT], num_skipped=len(prompt)), request_of(prompt)
    drafter = drafter_of(writer, request)
    assert drafted(drafter, request, 4) == TEXT[:4] and writer.steps == 4 + HELD_BACK
    grow(drafter, request, TEXT[:4])
    assert drafted(drafter, request, 4) == TEXT[4:8] and len(writer.started) == 1


@pytest.mark.parametrize("seed", range(4))
def test_drafts_follow_the_text_as_if_it_were_given(seed: int) -> None:
    """Until the output has left the text for good: then the next draft begins behind the committed tokens."""
    rng = random.Random(seed)
    text = [rng.randrange(10, 30) for _ in range(60)]
    output = [token if rng.random() < 0.8 else rng.randrange(30, 40) for token in text]
    writer, request = ScriptedWriter(lambda _: text), request_of()
    drafter, follower = drafter_of(writer, request), TextFollower(DraftText(text, {}, MODEL))
    compared = 0
    for token in output:
        found, place = drafted(drafter, request, 4), follower.find()
        if len(writer.started) > 1:
            break
        if place is not None and found:
            assert found == text[place.position : place.position + 4][: len(found)]
            compared += len(found)
        follower.append(token)
        grow(drafter, request, [token])
    assert compared > 4


def test_the_text_that_the_model_writes_is_drafted_after_the_output_left_it_for_good() -> None:
    other = [*range(70, 120), END]
    outputs = iter([TEXT, other])
    writer, request = ScriptedWriter(lambda _: next(outputs)), request_of()
    drafter = drafter_of(writer, request)
    for i in range(12):
        draft = drafted(drafter, request, 4)
        if len(writer.started) == 2:
            break
        grow(drafter, request, other[i : i + 1])
    done = len(request.decoder_tokens) - 1
    assert draft == other[done : done + 4]
    assert writer.started[0].is_cancelled and writer.started[1].committed == other[:done]


def test_useless_texts_are_started_ever_less_often() -> None:
    writer, request = ScriptedWriter(lambda _: TEXT), request_of()
    drafter = drafter_of(writer, request)
    starts = []
    for i in range(200):
        drafted(drafter, request, 4)
        starts.append(len(writer.started))
        grow(drafter, request, [1000 + i])
    assert 3 <= starts[-1] <= 8 and starts[-1] - starts[100] <= 1


def test_an_endless_word_is_not_written_to_its_end() -> None:
    """After a difference, the draft may continue behind the word. Its end may never come."""
    pieces = {token: f"x{token}" for token in range(5000)} | {10: "▁a", 11: "▁b"}
    writer, request = ScriptedWriter(lambda _: [10, 11, *range(100, 4000)], pieces), request_of()
    drafter = drafter_of(writer, request)
    assert drafted(drafter, request, 4) == [10, 11, 100, 101]
    grow(drafter, request, [10, 11, 100, 50])
    before = writer.steps
    drafted(drafter, request, 4)
    assert writer.steps - before <= 4 + 4 + MAX_SKIPPED + HELD_BACK


@pytest.mark.parametrize("count", [0, 5])
def test_an_output_without_text_is_given_up(count: int) -> None:
    """A model may write special tokens for ever. Without a limit, one draft would write thousands of them."""
    writer = ScriptedWriter(lambda _: [*TEXT[:count], *[None] * 5000])
    drafter = drafter_of(writer, request := request_of())
    most = count + HELD_BACK + MAX_SILENT + 8  # as many as the draft lacks are written together
    assert drafted(drafter, request, 8) == TEXT[:count]
    assert writer.steps <= most and writer.live == []
    for i in range(100):
        grow(drafter, request, [1000 + i])
        drafted(drafter, request, 8)
    assert len(writer.started) <= 8 and writer.steps <= len(writer.started) * most


def test_a_request_that_was_not_drafted_for_long_starts_from_its_committed_tokens() -> None:
    writer, request = ScriptedWriter(lambda _: TEXT), request_of()
    drafter = drafter_of(writer, request)
    drafted(drafter, request, 2)
    grow(drafter, request, TEXT[:40])
    before = writer.steps
    assert drafted(drafter, request, 4) == TEXT[40:44]
    assert writer.steps - before == 4 + HELD_BACK
    assert writer.started[1].committed == TEXT[:40] and writer.live == writer.started[1:]


def test_a_request_that_the_model_cannot_read_has_no_drafts_and_is_tried_once() -> None:
    tried = []
    writer = ScriptedWriter(lambda request: tried.append(request))
    drafter = drafter_of(writer, request := request_of())
    assert drafter.kind_and_limit(request)[1] > 0
    assert drafted(drafter, request, 4) == [] and drafter.kind_and_limit(request) == (MODEL, 0)
    assert drafted(drafter, request, 4) == [] and len(tried) == 1


def test_rows_grow_together_and_each_follows_its_own_text() -> None:
    texts = {slot: [token + 100 * slot for token in TEXT] for slot in range(3)}
    writer = ScriptedWriter(lambda request: texts[request.slot])
    requests = [request_of(slot=slot) for slot in range(3)]
    drafter = drafter_of(writer, *requests)
    draft = drafter.propose({requests[0]: 2, requests[2]: 5}, 3)
    assert draft.to_lists() == [texts[0][:2], [], texts[2][:5]] and draft.probs is None  # point masses
    assert writer.steps == 5 + HELD_BACK and len(writer.started) == 2  # the second request has no draft yet


def test_outputs_of_finished_cancelled_and_retried_requests_are_dropped() -> None:
    writer = ScriptedWriter(lambda _: TEXT)
    requests = [request_of(slot=slot) for slot in range(4)]
    drafter = drafter_of(writer, *requests)
    drafter.propose(dict.fromkeys(requests, 3), 4)
    assert len(writer.live) == 4
    drafter.end(requests[0])
    assert len(writer.live) == 3
    drafter.observe([requests[1], requests[3]], [0, 0])  # the third was cancelled, or its round is repeated
    assert len(writer.live) == 2
    assert drafted(drafter, requests[2], 3, slots=4) == TEXT[:3]  # it starts again
    drafter.begin(request_of(slot=3))
    assert writer.live == [writer.started[1], writer.started[4]]


def test_a_slot_that_is_listed_twice_keeps_its_first_place() -> None:
    """An engine fills the free slots of a larger batch with copies of any row, which new requests then replace."""
    writer = ScriptedWriter(lambda _: TEXT)
    requests = [request_of(slot=slot) for slot in range(3)]
    drafter = drafter_of(writer, *requests)
    drafter.propose(dict.fromkeys(requests, 3), 3)
    drafter.end(requests[0])
    drafter.select([2, 1, 0, 2, 2])
    requests[2].slot = 0
    drafter.begin(request_of(slot=3))
    drafter.begin(request_of(slot=4))
    assert len(writer.live) == 2
    assert drafter.propose({requests[2]: 4, requests[1]: 4}, 5).to_lists() == [TEXT[:4], TEXT[:4], [], [], []]
    drafter.select([1])
    assert writer.live == writer.started[1:2]


def test_a_text_may_grow_and_change_while_it_is_followed() -> None:
    text = DraftText([], {}, MODEL)
    follower = TextFollower(text)
    text.update([5, 6])
    for token in (5, 6):
        follower.append(token)
    text.update([5, 6, 7, 8])
    assert follower.find() == (2, 2, "unconfirmed") and text.index.tokens == [5, 6, 7, 8]
    text.update([5, 6, 9])
    assert text.ids == text.index.tokens == [5, 6, 9]
    follower.append(9)
    assert follower.find() == (3, 3, "unconfirmed")

"""The benchmark of live speech: its counts agree with counts by hand, and its replay with `transcribe_live`."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.support.subpackages import needs_subpackage

live = pytest.importorskip("benchmarks.live")


def test_a_hypothesis_may_take_a_call_for_each_new_token() -> None:
    last = [*range(17), 99]
    assert live.bound((), [0, 1, 2, 99]) == 0 + 4 + 1
    assert live.bound(last, last) == 2 + 0 + 1  # 18 tokens that agree
    assert live.bound(last, [0, 1, 50, *range(2, 17), 51, 99]) == 2 + 2 + 1
    assert live.bound(last, [1, 0, 99]) == 1 + 1 + 1  # only one of 0 and 1 is in order


def test_text_that_was_cut_is_left_out_of_the_last_hypothesis() -> None:
    times = [live.Time(frame) for frame in (110, 200, 200, 250)]
    last = live.Hypothesis(100, [times[0], 1, times[1], times[2], 2, times[3], 99])
    assert last.after(100) == last.tokens
    assert last.after(200) == [times[2], 2, times[3], 99]
    assert last.after(250) == [times[3], 99]
    assert last.after(105) == ()


@lru_cache
def fewest_errors(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    substituted = fewest_errors(a[1:], b[1:]) + (a[0] != b[0])
    return min(substituted, 1 + fewest_errors(a[1:], b), 1 + fewest_errors(a, b[1:]))


@lru_cache
def most_agreeing(a: str, b: str) -> int:
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + most_agreeing(a[1:], b[1:])
    return max(most_agreeing(a[1:], b), most_agreeing(a, b[1:]))


def test_words_are_compared_as_by_recursion() -> None:
    chance = random.Random(0)
    for _ in range(200):
        a, b = ("".join(chance.choices("xyz", k=chance.randrange(8))) for _ in range(2))
        assert live.word_errors([*a], [*b]) == fewest_errors(a, b)
        assert live.common_subsequence([*a], [*b]) == most_agreeing(a, b)


def test_delays_are_of_words_that_both_have() -> None:
    shown = [("Ask", 2.0), ("not", 2.0), ("what", 3.0), ("your", 3.0)]
    spoken = [(" ask", 0.5), (" what,", 1.25), (" you", 1.5)]
    assert live.word_delays(shown, spoken) == [1.5, 1.75]


@pytest.fixture
def sounds() -> np.ndarray:
    from tests.support.speech import noise

    return np.round(noise(2, 1.5) * 32767).astype(np.int16)


@needs_subpackage("speech")
def test_a_replay_writes_what_live_speech_writes(sounds: np.ndarray) -> None:
    from speculative_decoding.session import Session
    from tests.support.speech import Letters, speech_model

    model = speech_model()
    options = {"no_speech_threshold": None, "sample_len": 24, "num_draft_tokens": 15}
    chunks = [sounds[at : at + 1600] for at in range(0, len(sounds), 1600)]
    expected = [
        *Session(model, Letters()).transcribe_live(chunks, every=0.1, reads_ahead=False, language="en", **options)  # type: ignore[arg-type]
    ]
    found = live.replay(Session(model, Letters()), sounds, every=0.1, **options)
    assert found.text == "".join(each.final for each in expected) != ""
    assert found.calls == sum(each.stats.target_calls for each in expected)
    decoded = [each.stats.generated_tokens for each in expected if each.stats.target_calls]
    assert [len(each.hypothesis.tokens) for each in found.heard if each.hypothesis] == decoded
    assert max(found.excesses) <= 0
    timed = live.replay(Session(model, Letters()), sounds, every=0.1, is_timed=True, **options)
    assert all(each.shown > each.update.seconds for each in timed.heard)
    assert all(a.update.seconds <= b.update.seconds for a, b in pairwise(timed.heard))


def test_a_missing_table_of_spellings_is_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, words in ((None, "--normalizer: is missing"), (tmp_path / "none", "cannot be read")):
        given = [] if file is None else ["--normalizer", str(file)]
        status = live.main(["--model", "no-model", *given])
        out, err = capsys.readouterr()
        assert status == 2 and out == "" and err.count("\n") == 1 and words in err

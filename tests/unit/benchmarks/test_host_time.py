"""benchmarks.host_time: the parts of a round's host work."""

from __future__ import annotations

import time

import mlx.core as mx
import pytest

from benchmarks import host_time
from speculative_decoding import engine
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import load_tokenizer
from tests.support.tiny import CONFIG


def test_a_nested_call_counts_for_its_own_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))
    timer = host_time.PartTimer()  # 0
    timer.switch("graph")  # 1
    timer.switch("evaluation")  # 2
    timer.switch("graph")  # 3
    timer.switch("bookkeeping")  # 4
    assert timer.seconds == {"bookkeeping": 1.0, "graph": 2.0, "evaluation": 1.0}


def test_a_round_has_one_host_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "on_gpu", lambda: False)  # passes ahead are asynchronous
    original = mx.eval
    shape = CONFIG | {"vocab_size": 64, "eos_token_id": []}
    for name, session in host_time.sessions(load_tokenizer(BUNDLED / "t5-web-docs"), 50, shape):
        seconds, calls = host_time.host_times(session, rows=2, rounds=1)
        assert [*seconds] == [*host_time.PARTS]
        assert calls["eval"] == 1, name
        assert calls["async_eval"] == (5 if "head" in name else 0)
        assert calls["states"] == calls["verify"] == 1
    assert mx.eval is original

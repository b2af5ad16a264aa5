"""The host's work in a round."""

from __future__ import annotations

import pytest

from benchmarks import host_time
from speculative_decoding import engine
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import load_tokenizer
from tests.support.tiny import CONFIG


def test_a_round_has_one_host_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "on_gpu", lambda: False)  # passes ahead are asynchronous
    shape = CONFIG | {"vocab_size": 64, "eos_token_id": []}
    for name, session in host_time.sessions(load_tokenizer(BUNDLED / "t5-web-docs"), 50, shape):
        _, calls = host_time.host_times(session, rows=2, rounds=1)
        assert calls["eval"] == 1, name
        assert calls["async_eval"] == (5 if "head" in name else 0)

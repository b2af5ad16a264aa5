"""The server under what nobody means well: random bodies, and clients that leave. More of both by the commands
`python -m tools.fuzz_server` and `python -m tools.soak_server`.
"""

from __future__ import annotations

import sys

import httpx
import pytest

from tests.support.serving import serving
from tools.fuzz_server import LIMITS, check, fuzz
from tools.soak_server import Soak, soak


def test_random_bodies_are_answered() -> None:
    with serving(limits=LIMITS) as server:
        statuses = fuzz(server, 100, seed=3)
        assert server.service.admitted == 0 and server.metric("slots_busy") == 0
    assert statuses[200] > 5 and statuses[400] > 25, statuses


@pytest.mark.parametrize("answer", [(500, "{}"), (400, "not JSON"), (400, '{"error": {"message": "a\\nb"}}')])
def test_a_planted_fault_of_an_answer_is_found(answer: tuple[int, str]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(httpx.Response(answer[0], text=answer[1]), "/v1/completions", b"")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory and files are looked up in /proc")
def test_a_short_soak() -> None:
    said = soak(requests=36, seconds=None, seed=5)
    assert said.startswith("36 requests: ") and "probe's text unchanged" in said


def test_a_soak_notices_another_text() -> None:
    trial = Soak("http://127.0.0.1:1")
    trial.same({"prompt": "a"}, ["b"])
    with pytest.raises(AssertionError):
        trial.same({"prompt": "a"}, ["c"])

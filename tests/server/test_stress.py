"""Short runs of the tools that stress the server: random bodies, and clients that disconnect.

`python -m tools.fuzz_server` and `python -m tools.soak_server` run longer.
"""

from __future__ import annotations

import sys

import httpx
import pytest

from tests.support.serving import serving
from tests.support.waiting import eventually
from tools.fuzz_server import LIMITS, audio_request, check, fuzz, tiny_speech_session
from tools.soak_server import Soak, soak

pytestmark = pytest.mark.slow


def test_random_bodies_get_valid_responses() -> None:
    with serving(limits=LIMITS) as server:
        statuses = fuzz(server, 100, seed=3)
        assert server.service.admitted == 0
        eventually(lambda: server.metric("slots_busy") == 0)
    assert statuses[200] > 5 and statuses[400] > 25, statuses


@pytest.mark.filterwarnings("ignore:file")  # damaged recordings
def test_random_recordings_get_valid_responses() -> None:
    with serving(tiny_speech_session(), LIMITS) as server:
        statuses = fuzz(server, 60, 3, audio_request)
        assert server.service.admitted == 0
        eventually(lambda: server.metric("slots_busy") == 0)
    assert statuses[200] > 5 and statuses[400] > 10, statuses


@pytest.mark.parametrize("answer", [(500, "{}"), (400, "not JSON"), (400, '{"error": {"message": "a\\nb"}}')])
def test_fuzzing_detects_invalid_responses(answer: tuple[int, str]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(httpx.Response(answer[0], text=answer[1]), "/v1/completions", b"")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory and open files from /proc")
def test_short_soak_finds_no_fault() -> None:
    report = soak(requests=36, seconds=None, seed=5)
    assert report.startswith("36 requests: ") and "text of the probe unchanged" in report


def test_soak_detects_a_changed_text() -> None:
    trial = Soak("http://127.0.0.1:1")
    trial.check_text({"prompt": "a"}, ["b"])
    with pytest.raises(AssertionError):
        trial.check_text({"prompt": "a"}, ["c"])

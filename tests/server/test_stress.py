"""Runs `python -m tools.check_server` briefly: random bodies and recordings, disconnecting clients, and sockets."""

from __future__ import annotations

import sys

import pytest

from tests.support.serving import serving
from tests.support.waiting import eventually
from tools.check_server import sockets
from tools.check_server.clients import run
from tools.check_server.random_requests import LIMITS, audio_request, fuzz, tiny_speech_session

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory and open files from /proc")
def test_hostile_sockets_find_no_fault() -> None:
    notes = [*sockets.run(count=6, seconds=1.0, seed=2)]
    assert notes[-1] == "all slots free, all files closed"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory and open files from /proc")
def test_random_clients_find_no_fault() -> None:
    sent, compared = run(requests=36, seconds=None, seed=5)
    assert sent.startswith("36 requests: ") and "text of the probe unchanged" in compared

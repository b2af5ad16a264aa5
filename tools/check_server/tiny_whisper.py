"""Serves a tiny random Whisper until SIGTERM: `python -m tools.check_server.tiny_whisper`."""

from __future__ import annotations

import logging
import signal
import sys

from speculative_decoding.server.connections import ConnectionLimits
from speculative_decoding.server.limits import Limits
from tests.support.serving import drain, serving
from tests.support.waiting import eventually

from .random_requests import tiny_speech_session

LIMITS = Limits(slots=8, queue=12, max_audio_seconds=120.0, max_live_seconds=10.0, grace=10.0)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads, so that only `sigwait` receives it
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with serving(tiny_speech_session(), LIMITS, ConnectionLimits(seconds=5.0), token=None) as server:
        print(server.url, file=sys.stderr, flush=True)
        signal.sigwait({signal.SIGTERM})
        drain(server)
        eventually(lambda: bool(server.ended))


if __name__ == "__main__":
    main()

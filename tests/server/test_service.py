"""The deadline of a recording."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.server.decoding_thread import DecodingThread
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.metrics import Metrics
from speculative_decoding.server.recordings import ClientRecording
from speculative_decoding.server.service import READY, Service
from speculative_decoding.speech.options import TranscriptionOptions


def test_a_recording_has_one_deadline_from_its_arrival() -> None:
    """It was counted once while the recording was opened, and once more while it was decoded."""

    async def run() -> None:
        limits = Limits(max_seconds=100)
        service = Service(DecodingThread(lambda: pytest.fail("not started"), limits), limits, Metrics())
        service.state = READY
        loop = asyncio.get_running_loop()
        deadlines: list[float] = []
        call_at = loop.call_at

        def recorded(when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
            deadlines.append(when)
            return call_at(when, *args, **options)

        loop.call_at = recorded  # type: ignore[assignment, method-assign]
        with service.upload(1000) as upload:
            with service.opening(upload):
                assert service.admitted == 1
            await asyncio.sleep(0.01)
            item: Any = ClientRecording(None, TranscriptionOptions(), GenerationOptions())  # type: ignore[arg-type]
            item.stats = None
            with service.request([item], upload):
                assert service.admitted == 1
        started = [when for when in deadlines if when > loop.time() + 50]
        assert started == [upload.deadline] * 2

    asyncio.run(run())


def test_an_upload_that_fails_cancels_its_work() -> None:
    async def run() -> None:
        limits = Limits()
        service = Service(DecodingThread(lambda: pytest.fail("not started"), limits), limits, Metrics())
        service.state = READY
        cancelled = []

        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(True)

        with pytest.raises(ServerError, match="is stopping"), service.upload(1000) as upload:
            asyncio.get_running_loop().call_soon(service.abort)
            await upload.unless_failed(endless())
        assert cancelled == [True]

    asyncio.run(run())

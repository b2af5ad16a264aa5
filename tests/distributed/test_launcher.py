"""How the processes of a group end together."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

from speculative_decoding.distributed import launcher


def test_a_rank_ends_although_its_message_cannot_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx.launch, which reads standard error, and rank 0 were killed."""
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(launcher, "join_process_group", lambda on_lost: on_lost(0, None, ""))

    def say(text: str) -> NoReturn:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        launcher.run_in_group(1, "main.py", say, lambda processes: 0)
    assert statuses == [1]

"""A command ends in all processes of a group."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

from speculative_decoding.distributed import command


def test_a_rank_ends_although_its_message_cannot_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx.launch, which reads standard error, and rank 0 were killed."""
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(command, "join_process_group", lambda on_lost: on_lost(0, None, ""))

    def say(text: str) -> NoReturn:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        command.run_in_group(1, "main.py", say, lambda processes: 0)
    assert statuses == [1]

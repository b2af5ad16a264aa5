"""A command that waits for Ctrl-C at a progress line, for tests/robustness/test_ctrl_c.py."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence

from speculative_decoding.cli import common, programs, progress


def main(state: str, signals: int, arguments: Sequence[str]) -> None:
    """Run a command that waits at a line with the text `state`. With two signals, another follows the first at once."""
    say = common.say

    def say_and_wait(text: str) -> None:
        say(text)
        while state in text:
            time.sleep(0.01)  # until Ctrl-C
        if signals == 2 and "interrupted" in text:
            signal.raise_signal(signal.SIGINT)

    for module in [*sys.modules.values()]:
        if getattr(module, "say", None) is say:
            module.say = say_and_wait  # type: ignore[attr-defined]
    progress.LINE_SECONDS = 0
    sys.exit(programs.main([*arguments]))

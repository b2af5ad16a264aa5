"""Interrupts texts of a console with Ctrl-C at random moments: `python -m tools.random_interruptions [ROUNDS]`.

Every second text gets several signals. The next text must be the same as without an interruption.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import signal
import time
from typing import Any

PROMPT = "translate English to German: The method returns the value of the property."


def texts_stopped(rounds: int) -> int:
    """Interrupt texts of a console with one or two signals. Returns the number of incomplete texts."""
    from speculative_decoding.cli.console import answer as answer_line
    from speculative_decoding.cli.console import console_parser
    from speculative_decoding.cli.console_commands import ConsoleState
    from speculative_decoding.cli.run_config import run_config_from

    config = run_config_from(console_parser("console").parse_args(["--drafter", "auto"]))
    state = ConsoleState(config)
    state.open(config)

    def answer() -> tuple[str, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            answer_line(state, PROMPT)
        return out.getvalue(), err.getvalue()

    expected, _ = answer()
    started = time.perf_counter()
    answer()
    seconds = time.perf_counter() - started
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    stopped = 0
    for number in range(rounds):
        shown: Any = ("", "")
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, seconds), 0.0005 if number % 2 else 0)
        try:
            try:
                shown = answer()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:  # after the text, where the console's loop would catch it
            signal.setitimer(signal.ITIMER_REAL, 0)
        stopped += shown[0] != expected
        assert answer()[0] == expected
    return stopped


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=100, help="texts (default: 100)")
    count = parser.parse_args().rounds
    print(f"{count} signals: identical texts afterwards; {texts_stopped(count)} texts were interrupted")

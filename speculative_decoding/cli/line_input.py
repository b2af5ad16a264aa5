"""One line from the user: at a terminal edited, with history and completion."""

from __future__ import annotations

import sys

from ..errors import InputError
from .commands import completions

PROMPT = "> "


def read_line() -> str:
    """One line, edited where there is a terminal. Raises EOFError at the end."""
    is_terminal = sys.stdin.isatty()
    if is_terminal and not sys.stdout.isatty():  # then `input` would write its prompt into our output
        print(PROMPT, end="", file=sys.stderr, flush=True)
    try:
        line = input(PROMPT if is_terminal and sys.stdout.isatty() else "")
        line.encode("utf-8")
    except EOFError:
        if is_terminal:
            print(file=sys.stderr)
        raise
    except UnicodeError as error:
        raise InputError("this line is not UTF-8; type it again") from error
    return line


def edit_lines() -> None:
    """History and completion, where Python was built with readline."""
    try:
        import readline
    except ImportError:
        return

    def complete(word: str, number: int) -> str | None:
        found = completions(readline.get_line_buffer()[: readline.get_endidx()])
        return f"{found[number]} " if number < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    is_libedit = "libedit" in (readline.__doc__ or "")  # macOS
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")

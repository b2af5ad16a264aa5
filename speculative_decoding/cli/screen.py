"""What is printed on: a console that shows text as it is, with colour or without."""

from __future__ import annotations

from rich.console import Console

from ..loading.tokenizer import REPLACEMENT

# Control characters would be obeyed by a terminal; a line end and a tab are text.
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
CONTROLS |= {127: "\u2421"} | dict.fromkeys(range(128, 160), REPLACEMENT)


def make_console(*, to_errors: bool = True) -> Console:
    """Text is printed as it is: nothing is highlighted, no markup, no emoji codes; wrapped only at a terminal."""
    console = Console(stderr=to_errors, highlight=False, markup=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


def has_colour(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def visible(text: str) -> str:
    return text.translate(CONTROLS)

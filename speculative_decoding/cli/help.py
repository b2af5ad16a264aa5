"""Formats a command's help text. This module is imported only when help is shown."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import one_line, shown
from ..sampling.values import OptionSpec


class HelpFormatter(argparse.HelpFormatter):
    """Writes --[no-]strict for a flag that can be turned off, and never breaks a line within a flag."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=27)

    def _format_usage(self, *arguments: Any) -> str:
        usage = super()._format_usage(*arguments)
        return textwrap.fill(usage, self._width, subsequent_indent="       ", break_on_hyphens=False) + "\n\n"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        return super()._format_action_invocation(action)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs == "+" and isinstance(action.metavar, str):
            return f"{action.metavar} ..."
        return super()._format_args(action, default_metavar)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def help_text(spec: OptionSpec, name: Callable[[str], str]) -> str:
    """Return a field's help text with its default. name: see `shown`."""
    text = shown(spec.help, name)
    if spec.default is False or spec.default in (None, "", ()):
        return text
    default = f"default: {'on' if spec.default is True else as_typed(spec.default)})"
    return f"{text[:-1]}; {default}" if text.endswith(")") else f"{text} ({default}"


def as_typed(value: Any) -> str:
    """Return a value as the user would type it."""
    if value is None or value in ("", ()):
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(as_typed, value))
    text = str(value)
    return one_line(text if len(text) <= 60 else f"{text[:57]}...")

"""Builds flags from dataclasses such as `GenerationOptions`, and reports errors in one line.

A field `name: Annotated[type, Value, "help", *marks] = default` becomes the flag --name, unless a `Flag` says otherwise
(sampling/values.py). The help text may be a `Message`. If a flag is not given, the parsed namespace has no attribute
for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ..errors import InputError, Message, one_line, similar_names
from ..sampling.options import OPTIONS_BY_OTHER_NAME, is_address, option_specs, refusal
from ..sampling.values import BASIC, PYTHON_ONLY, Bool, ListOf, OptionSpec, Value, specs_of
from ..version import __version__

WITHOUT_NAME = ("prompt",)  # fields whose value can also be given without a flag

Flags = TypeVar("Flags")


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line that names the flag and its value, and exits with status 2.

    basic: The fields that --help lists in addition to those marked `BASIC`; () lists all, as --help-all does.
    """

    def __init__(self, *, basic: Collection[str] = (), **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._basic = basic
        self.add_argument("--version", action="version", version=f"speculative-decoding {__version__}")
        if basic:
            self.add_argument("--help-all", action="help", help="show all options")
        self._given: Sequence[str] = ()
        self.flags: dict[str, str] = {}  # keyed by field, and by Python parameter if its name differs
        self.specs: list[tuple[argparse.Action, OptionSpec]] = []  # flags added by `add_flags`

    def format_help(self) -> str:
        from .help import HelpFormatter, help_text

        basic = {"help", "help_all", *self._basic}
        for action, spec in self.specs:
            action.help = help_text(spec, flag)
            action.metavar = spec.flag.metavar or spec.type.metavar
            if BASIC in spec.marks:
                basic.add(action.dest)
        formatter = HelpFormatter(self.prog)
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        shows_all = not self._basic or "--help-all" in self._given
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_arguments(each for each in group._group_actions if shows_all or each.dest in basic)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def parse_args(  # type: ignore[override]  # the base method has overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        self._given = sys.argv[1:] if args is None else args
        chosen, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return chosen

    def _unknown(self, arguments: Sequence[str]) -> str:
        """Return the error for unknown arguments. It quotes only the name of a flag: the rest may be a prompt."""
        names = (each.partition("=")[0] for each in arguments)
        given = next((name for name in names if name.startswith("-") and " " not in name), None)
        if given is None:
            return "unexpected argument; put a text with spaces in quotes, and give each argument once"
        from .other_flags import hint

        name = given.strip("-").replace("-", "_")
        same = [
            own for each in (name, *OPTIONS_BY_OTHER_NAME.get(name, ())) if (own := self._flag_of(each)) is not None
        ]
        way_out = f"did you mean {same[0]}?" if same else hint(name, self._flag_of)
        known = self._option_string_actions
        if not way_out and (meant := similar_names(given, known, 1, 0.7, key=lambda each: each.strip("-"))):
            way_out = f"did you mean {meant[0]}?"
        return f"{one_line(given[:60])}: unknown option{way_out and '; '}{way_out}"

    def _flag_of(self, field: str) -> str | None:
        """Return the flag for a field, or None if this command has no such flag."""
        name = self.flags.get(field, flag(field))
        return name if name in self._option_string_actions else None

    def name_of(self, field: str) -> str:
        """Return the name of a field on this command line: its flag, or the field's own name if it has none."""
        name = self._flag_of(field)
        if name is not None and field not in WITHOUT_NAME:
            return name
        positional = (each.metavar for each in self._get_positional_actions() if each.dest == field)
        return next((each for each in positional if isinstance(each, str) and field not in WITHOUT_NAME), field)

    def error(self, message: str) -> NoReturn:
        """Print an error and exit.

        If a flag is mistyped, report that instead, because argparse would only report that the correct flag is missing.
        """
        flags = [each for each in takewhile(lambda each: each != "--", self._given) if each.startswith("--")]
        names = [name for name in (each.partition("=")[0] for each in flags) if " " not in name]
        if unknown := [name for name in names if name not in self._option_string_actions]:
            message = self._unknown(unknown)
        list_all = "--help-all" if self._basic else "--help"
        self.exit(2, f"{self.prog}: error: {message} ({list_all} lists the options)\n")


class File(Value):
    """The path of a file, which does not have to exist."""

    expected = "the path of a file (- is not supported)"
    metavar = "FILE"

    def accept(self, value: Any) -> Path:
        if value in ("", "-") or is_address(value):
            raise ValueError
        return Path(value)


def flag(name: str, spec: OptionSpec | None = None) -> str:
    """Return the flag for a field.

    spec: The field's specification. Optional for decoding options, and for flags that are named after their field.
    """
    spec = spec or option_specs().get(name)
    return "--" + ((spec.flag.name if spec else "") or name.replace("_", "-"))


def add_flags(
    parser: Parser,
    title: str,
    cls: type,
    *,
    without: Collection[str] = (),
    lists: Collection[str] = (),
) -> None:
    """Add a group of flags for the fields of a dataclass, except those that are `PYTHON_ONLY`.

    Args:
        without: Fields for which this command has no flag.
        lists: Fields for which this command's flag takes several values.
    """
    group = parser.add_argument_group(title)
    for name, spec in specs_of(cls).items():
        if name in without or PYTHON_ONLY in spec.marks:
            continue
        value = spec.type
        settings: dict[str, Any] = {"type": argument_type(value)}
        if isinstance(value, Bool):
            settings = {"action": "store_true" if spec.default is False else argparse.BooleanOptionalAction}
        if isinstance(value, ListOf):
            settings["action"] = "append"
        elif name in lists:
            settings["nargs"] = "+"
        elif spec.flag.bare is not None:
            hint = ""
            if "--prompt" in parser._option_string_actions:  # argparse would take the prompt as the value
                hint = "; put a prompt before this flag, or use --prompt"
            settings |= {"nargs": "?", "const": spec.flag.bare, "type": argument_type(value, hint)}
        own = flag(name, spec)
        names = [own, spec.flag.short] if spec.flag.short else [own]
        action = group.add_argument(*names, dest=name, default=argparse.SUPPRESS, **settings)
        parser.specs.append((action, spec))
        parser.flags |= dict.fromkeys(filter(None, (name, spec.flag.parameter)), own)


def flags_from(cls: type[Flags], args: argparse.Namespace) -> Flags:
    """Build the dataclass from the given flags, with defaults for all others."""
    given = vars(args)
    return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})  # type: ignore[arg-type]


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the decoding options that were given, keyed by name."""
    options = {name: value for name, value in vars(args).items() if name in option_specs()}
    if "baseline" in args:
        if "drafter" in options:
            raise InputError(Message("cannot be combined with {baseline}"), "drafter", "leave one of them out")
        options["drafter"] = "none"
    return options


def argument_type(value: Value, hint: str = "") -> Callable[[str], Any]:
    """Return an argparse `type`. hint: replaces the value in error messages."""
    if isinstance(value, ListOf):
        value = value.item

    def parse(text: str) -> Any:
        try:
            return value.parse(text)
        except (ValueError, TypeError, OverflowError):
            problem = f"must be {value.expected}{hint}" if hint else refusal(value, text)  # the text may be a prompt
            raise argparse.ArgumentTypeError(problem) from None

    return parse

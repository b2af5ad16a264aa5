"""The header of a gettext catalog: its placeholders, and the plural forms of the output's language."""

from __future__ import annotations

import re
from gettext import c2py
from typing import NamedTuple

from babel.messages.plurals import PLURALS

from ..errors import InputError
from .findings import SHOWN

CHARSET = re.compile(r'(?<=charset=)CHARSET(?=\\n|")')
EMPTY = r'(?:(?<=")|(?<=\\n)){}:[ \t]*(?:nplurals=INTEGER; plural=EXPRESSION;)?(?=\\n|")'  # or a placeholder
LANGUAGE = re.compile(r"^Language:[ \t]*(\S+)", re.MULTILINE)
NAMED = re.compile(r"^Plural-Forms:[ \t]*+(?!.*EXPRESSION)(.+)$", re.MULTILINE)
FORMS = re.compile(r"nplurals\s*=\s*([1-9])\s*;\s*plural\s*=([^;]+)")
NUMBERS = range(1000)
OFTEN = 5  # if more of these numbers take a form, msgfmt requires all placeholders in it


class Plurals(NamedTuple):
    """The plural forms of a language: their number, the form for 1, and whether many other numbers take it as well."""

    number: int
    singular: int
    is_often: bool


def known_forms(target: str | None) -> str | None:
    """Return the value of Plural-Forms for a language. target: a BCP 47 tag, or None if unknown."""
    tag = (target or "").replace("-", "_")
    found = PLURALS.get(tag) or PLURALS.get(tag.split("_")[0])
    return found and f"nplurals={found[0]}; plural={found[1]};"


def plurals_in(header: str, line: int) -> Plurals | None:
    """Return the plural forms that a header names. Raises `InputError` with the line's number if they are invalid."""
    named = NAMED.search(header)
    if named is None:
        return None
    try:
        count, expression = FORMS.match(named[1]).groups()  # type: ignore[union-attr]
        forms = [*map(c2py(expression), NUMBERS)]
        if not set(forms) <= {*range(int(count))}:
            raise ValueError
    except (ArithmeticError, AttributeError, ValueError) as error:
        raise InputError(f"line {line}: Plural-Forms is invalid ({named[1][:SHOWN]})", way_out="correct it") from error
    return Plurals(int(count), forms[1], forms.count(forms[1]) > OFTEN)


def filled(raw: str, target: str | None, forms: str | None, line_end: str, *, adds_forms: bool) -> str:
    """Return the strings of a header with values for placeholders.

    Args:
        raw: The strings and the blank lines after them.
        target: The BCP 47 tag of the output's language, or None if unknown.
        forms: Its Plural-Forms, or None if unknown.
        line_end: The line end of the catalog.
        adds_forms: Whether to add Plural-Forms if the header lacks them.
    """
    raw = CHARSET.sub("UTF-8", raw)
    for name, value in (("Language", target and target.replace("-", "_")), ("Plural-Forms", forms)):
        if value:
            raw = re.sub(EMPTY.format(name), f"{name}: {value}", raw)
    end = raw.rindex('"')
    if forms is None or not adds_forms or "Plural-Forms:" in raw or ":" not in raw:
        return raw
    border = "" if raw[:end].endswith(r"\n") else r"\n"
    return f'{raw[:end]}"{line_end}"{border}Plural-Forms: {forms}\\n{raw[end:]}'

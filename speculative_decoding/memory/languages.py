"""Chooses a translation memory's source and target languages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import InputError, Message, Name
from ..loading.language_map import language_of

MAX_SHOWN = 20
MAX_NAME = 40  # characters of a language's name to show in a message


def closeness(wanted: str, name: str) -> int:
    """Score a text's language against the wanted one: 0 if it does not match, more for the same region or name."""
    one, other = language_of(wanted), language_of(name)
    if not one.includes(other):
        return 0
    return 1 + (one.region == other.region) + (wanted.lower() == name.lower())


def choose_languages(found: Iterable[str], source: str | None, target: str | None, said: str | None) -> tuple[str, str]:
    """Return the source and target languages to read from a file.

    Args:
        found: The names of the languages in the file.
        source: The requested source language, if any.
        target: The requested target language, if any.
        said: The source language according to the file.

    Raises:
        InputError: The languages cannot be determined, or the file has no texts in one of them.
    """
    found = sorted(set(found))
    for name, wanted in (("src_lang", source), ("tgt_lang", target)):
        if wanted is not None and not any(closeness(wanted, each) for each in found):
            raise InputError(
                f"has no texts in {wanted}, only in {listed(found)}",
                "memory",
                Message("name another {other}", other=Name(name)),
            )
    different = [each for number, each in enumerate(found) if not any(closeness(each, b) for b in found[:number])]
    if source is None and target is None and said is not None:
        source = next((each for each in different if closeness(said, each)), None)
    if len(different) == 2:
        if source is None and target is not None:
            source = next((each for each in different if not closeness(target, each)), None)
        elif target is None and source is not None:
            target = next((each for each in different if not closeness(source, each)), None)
    if source is None or target is None:
        problem = (
            f"has texts in {listed(found)}"
            if len(different) != 2
            else (f"does not say which of its languages {listed(found)} is that of the sources")
        )
        raise InputError(problem, "memory", Message("name {src_lang} and {tgt_lang}"))
    return source, target


def listed(names: Sequence[str]) -> str:
    if not names:
        return "no language"
    more = f", ... ({len(names)} languages)" if len(names) > MAX_SHOWN else ""
    return ", ".join(name[:MAX_NAME] for name in names[:MAX_SHOWN]) + more

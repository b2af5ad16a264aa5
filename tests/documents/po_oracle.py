"""Reads gettext catalogs with polib."""

from __future__ import annotations

from typing import Any, NamedTuple

import polib


class Message(NamedTuple):
    """A message. targets: its translations, one for each plural form. comments: all comments before it except flags."""

    context: str | None
    source: str
    plural: str
    targets: tuple[str, ...]
    flags: frozenset[str]
    comments: tuple[object, ...]
    is_obsolete: bool


def messages_in(text: str) -> list[Message]:
    """Return the messages of a catalog without the header."""
    return [message_of(each) for each in polib.pofile(text)]


def message_of(entry: Any) -> Message:
    plural = entry.msgid_plural
    targets = tuple(entry.msgstr_plural[index] for index in sorted(entry.msgstr_plural)) if plural else (entry.msgstr,)
    flags = frozenset(" ".join(entry.flags).split())
    previous = (entry.previous_msgctxt, entry.previous_msgid, entry.previous_msgid_plural)
    comments = (entry.comment, entry.tcomment, tuple(entry.occurrences), *previous)
    return Message(entry.msgctxt, entry.msgid, plural, targets, flags, comments, bool(entry.obsolete))

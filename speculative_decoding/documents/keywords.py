"""The keyword arguments of `Session.document`, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling.keywords import OptionKeywords


class DocumentKeywords(OptionKeywords, total=False):
    """The keyword arguments of `document`, for `**options: Unpack[...]` (PEP 692)."""

    prefix: str
    keep: Sequence[str]
    slots: int | None
    format: str | None
    unit: str
    unwrap: bool
    fields: Sequence[str]

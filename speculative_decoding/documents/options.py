"""Options for reading and dividing a document. They are also flags of `document` and keyword arguments in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated as A
from typing import Any

from ..errors import InputError, Message
from ..sampling.keywords import OptionKeywords
from ..sampling.options import validate_fields
from ..sampling.values import BASIC, Bool, Flag, Int, ListOf, Text
from .encodings import require_encoding
from .formats import FORMATS

UNITS = ("sentence", "line", "paragraph")
FORMAT = f"format of the documents: {', '.join(FORMATS)} (default: by the suffix; text without one)"
UNIT = "unit of text to decode as one prompt"
UNWRAP = "in plain text, join the lines of a paragraph, and break its output into as many lines"
FIELDS = "field of each JSON line to decode (default: text), or key of the texts in JSON; may be repeated"
COLUMNS = "column of a table to decode: a name in the first row, or a number from 1; may be repeated"
ENCODING = "encoding of documents that do not declare one, such as windows-1252 (default: utf-8)"
FORMATS_OF = {"unwrap": ("text",), "fields": ("json", "jsonl"), "columns": ("csv", "tsv")}  # option -> its formats
MAX_DOCUMENT = "maximum bytes of a document that is read as a whole: not plain text, JSON lines or a table"


@dataclass(frozen=True, kw_only=True)
class DocumentOptions:
    """Options for reading and dividing a document. Raises `InputError` for options that have no effect.

    format: One of `FORMATS`. None selects the format by the file's suffix, or plain text if there is no suffix or no
        file.
    """

    format: A[str | None, Text(tuple(FORMATS)), FORMAT, BASIC, Flag(metavar="NAME")] = None
    unit: A[str, Text(UNITS), UNIT, BASIC] = "sentence"
    unwrap: A[bool, Bool(), UNWRAP, BASIC] = False
    fields: A[Sequence[str], ListOf(Text()), FIELDS, BASIC, Flag("field")] = ()
    columns: A[Sequence[str], ListOf(Text()), COLUMNS, BASIC, Flag(metavar="NAME_OR_NUMBER")] = ()
    encoding: A[str | None, Text(), ENCODING, BASIC, Flag(metavar="NAME")] = None
    max_document: A[int, Int(1), MAX_DOCUMENT] = 1 << 26

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.encoding is not None:
            require_encoding(self.encoding, "encoding")
        if self.unwrap and self.unit == "line":
            raise InputError(Message("cannot be combined with {unit} line"), "unwrap", "leave one of them out")
        for name, formats in FORMATS_OF.items():
            if getattr(self, name) and self.format not in (None, *formats):
                raise InputError(
                    Message("has no effect with {format} {value}", value=self.format), name, "leave it out"
                )

    def for_format(self, format: str) -> DocumentOptions:
        """Return the options for one of several documents, without the options that have no effect on its format."""
        defaults = DocumentOptions()
        unused: dict[str, Any] = {
            name: getattr(defaults, name) for name in FORMATS_OF if format not in FORMATS_OF[name]
        }
        return replace(self, format=format, **unused)


class DocumentKeywords(OptionKeywords, total=False):
    """The keyword arguments of `document`, for `**options: Unpack[...]` (PEP 692)."""

    prefix: str
    keep: Sequence[str]
    slots: int | None
    use_matches: bool
    format: str | None
    unit: str
    unwrap: bool
    fields: Sequence[str]
    columns: Sequence[str]

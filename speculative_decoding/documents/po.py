r"""Parses gettext catalogs (PO and POT). Each message without a translation is decoded, and becomes fuzzy.

Messages with a translation are copied, even fuzzy ones, which a person may have edited. So are obsolete messages and
messages without words. A translation's strings are laid out like those of its source: "\n", a tab or several spaces end
a block, and other borders between strings are line breaks within a block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from .code_patterns import CODE_PATTERNS
from .findings import SHOWN, UNTRANSLATED, Finding
from .options import DocumentOptions
from .pieces import has_words
from .po_header import LANGUAGE, Plurals, filled, known_forms, plurals_in
from .po_messages import Field, messages
from .splitting import wrong_target
from .survival import lost, must_survive
from .tokens import Block, Literal, Part

SOURCES = ("msgid", "msgid_plural")
# Flags of messages in which "%" starts a placeholder
PERCENT_FORMAT = re.compile(
    r"\s*#[,=](?:.*[\s,])?(?:awk|boost|c|gcc-internal|lua|objc|perl|php|python|tcl)-format(?![\w-])"
)
LONE_PERCENT = re.compile(rf"{CODE_PATTERNS['printf'][1].pattern}|(?P<lone>%)")
NO_FORMS = "the plural forms are unknown, so name the output's language, or fill in Plural-Forms in the header"


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of a catalog. Raises `InputError` with the number of the line if it is malformed.

    If a translation is missing, placeholders in the header are replaced.
    """
    lines = [*lines]
    is_incomplete = any(is_missing(fields) for _, fields in messages(lines))
    has_plurals = any(line.lstrip().startswith("msgid_plural") for line in lines)
    forms = known_forms(target) if is_incomplete else None
    plurals = plurals_in(f"Plural-Forms: {forms}", 1) if forms else None
    for comments, fields in messages(lines):
        if is_header(fields) and is_incomplete:
            msgid, header = fields.values()
            declared = LANGUAGE.search(header.text)
            if declared and (error := wrong_target(declared[1], target)):
                raise error.at(f"line {header.line}")
            raw = filled(header.raw, target, forms, msgid.line_end, adds_forms=has_plurals)
            header = replace(header, lines=[raw])
            plurals = (plurals_in(header.text, header.line) if has_plurals else None) or plurals
            yield Literal("".join([*comments, msgid.raw, header.raw]))
        elif is_missing(fields):
            yield from parts_of(comments, fields, plurals)
        else:
            yield Literal("".join([*comments, *(field.raw for field in fields.values())]))


def is_header(fields: Mapping[str, Field]) -> bool:
    return "msgstr" in fields and "msgctxt" not in fields and fields["msgid"].is_empty


def is_missing(fields: Mapping[str, Field]) -> bool:
    """Return whether a message has words, but no translation."""
    is_open = any(field.is_empty for keyword, field in fields.items() if keyword.startswith("msgstr"))
    return is_open and any(has_words(fields[keyword].tokens) for keyword in SOURCES if keyword in fields)


def parts_of(comments: Sequence[str], fields: Mapping[str, Field], plurals: Plurals | None) -> Iterator[Part]:
    """Yield a message with a copy of its source as the missing translation, and with the flag "fuzzy"."""
    sources = [fields[keyword] for keyword in SOURCES if keyword in fields]
    targets = [field for keyword, field in fields.items() if keyword.startswith("msgstr")]
    copied = sources if len(sources) == 1 else forms_of(plurals, *sources)
    if not copied or not all(field.is_empty for field in targets):
        problem = "some plural forms are missing" if copied else NO_FORMS
        finding = Finding(sources[0].line, UNTRANSLATED, f"{sources[0].text[:SHOWN]}: {problem}")
        yield Literal("".join([*comments, *(field.raw for field in fields.values())]), finding=finding)
        return
    before = [field.raw for keyword, field in fields.items() if not keyword.startswith("msgstr")]
    yield Literal("".join([*fuzzy(comments, sources[0].line_end), *before]))
    for index, source in enumerate(copied):
        for part in source.copy("msgstr" if len(sources) == 1 else f"msgstr[{index}]"):
            is_format = isinstance(part, Block) and any(map(PERCENT_FORMAT.match, comments))
            yield replace(part, write_whole=doubled) if is_format and doubled(part.raw) == part.raw else part
        is_last = index == len(copied) - 1
        yield Literal(targets[-1].line_end if is_last else source.line_end)
    yield Literal("".join(field.blank_lines for field in targets))


def forms_of(plurals: Plurals | None, one: Field, many: Field) -> list[Field]:
    """Return the source of each plural form: msgid for 1, unless the form needs placeholders that msgid lacks."""
    if plurals is None:
        return []
    found = [many] * plurals.number
    if plurals.number > 1 and not (plurals.is_often and lost(must_survive(many.text, ()), one.text)):
        found[plurals.singular] = one
    return found


def doubled(text: str) -> str:
    """Double each "%" that starts no placeholder, which a model may have added: msgfmt would reject it."""
    return LONE_PERCENT.sub(lambda match: "%%" if match["lone"] else match[0], text)


def fuzzy(comments: Sequence[str], line_end: str) -> list[str]:
    """Return the comments before a message with the flag "fuzzy", where msgmerge would write it."""
    found = [*comments]
    flags = [index for index, line in enumerate(found) if line.lstrip().startswith("#,")]
    if not flags:
        place = next((index for index, line in enumerate(found) if line.lstrip().startswith(("#|", "#="))), len(found))
        found.insert(place, f"#, fuzzy{line_end}")
    elif "fuzzy" not in re.findall(r"[\w-]+", "".join(found[index] for index in flags)):
        line = found[flags[0]]
        found[flags[0]] = line.replace("#,", "#, fuzzy" if line.strip() == "#," else "#, fuzzy,", 1)
    return found

"""Implements `Session.document` and `Session.document_parts`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from io import StringIO
from typing import Any, Unpack

from ..decoding.prompt import fits, language_prefix, require_characters
from ..errors import UnknownOption
from ..loading.language_map import effective_languages
from ..loading.task_prefixes import only_languages
from ..rows.session_like import SessionLike
from ..sampling import GenerationOptions
from ..sampling.options import option_specs, suggested_option, validate
from ..sampling.values import Bool, ListOf, Text
from .decoder import DocumentDecoder
from .decoding import Rules
from .matches import FindMatch, match_finder
from .options import DocumentKeywords, DocumentOptions
from .output_checks import DocumentFindings
from .pieces import Piece, parts_of
from .rendering import Renderer
from .results import DecodedDocument, DocumentPart
from .splitting import effective_unit, source_language, target_language
from .tokens import Literal

OWN = ("prefix", "keep", "slots", "use_matches")
READING = ("format", "unit", "unwrap", "fields", "columns")


def rules_for(
    session: SessionLike,
    options: GenerationOptions,
    prefix: str = "",
    keep: Collection[str] = (),
    match: FindMatch | None = None,
) -> Rules:
    """Return the `Rules` for pieces that a session decodes.

    keep: Terms that must appear unchanged in the outputs.
    match: Finds targets that are used instead of decoding; see `Rules`.
    """
    rules = Rules(lambda text: fits(session.model, session.tokenizer, prefix + text, options), frozenset(keep))
    return rules if match is None else replace(rules, match=match)


def document(session: SessionLike, text: str, **options: Unpack[DocumentKeywords]) -> DecodedDocument:
    """Decode a document sentence by sentence. Sentences are batched, which does not change the outputs.

    Args:
        text: The document.
        options: `prefix` is prepended to every prompt. `keep` lists terms that must appear unchanged in the output.
            `slots` is the number of prompts to decode together (default: the session's). If `use_matches` is True, the
            targets of equal sources in the session's memory are used without decoding. `format`, `unit`, `unwrap`,
            `fields` and `columns` are fields of `DocumentOptions`. All other options are fields of `GenerationOptions`.

    Raises:
        InputError: The document cannot be read, or an option cannot be used.
    """
    decoder, parts = prepared(session, text, **options)
    findings = DocumentFindings()
    written, matches = [], 0
    for part in decoded_parts(decoder, parts, findings):
        written.append(part.written)
        matches += part.from_memory
    stats = decoder.scheduler.stats
    stats.lossless = stats.lossless and not matches
    return DecodedDocument("".join(written), findings.by_line(), decoder.scheduler.num_parts, stats, matches)


def document_parts(session: SessionLike, text: str, **options: Unpack[DocumentKeywords]) -> Iterator[DocumentPart]:
    """Decode a document like `document`, but yield each part as soon as this part and all earlier parts are decoded.

    The arguments are validated by the call itself, before iteration. Unusual lengths are not reported as findings,
    because detecting them requires the whole document.
    """
    return decoded_parts(*prepared(session, text, **options))


def prepared(
    session: SessionLike, text: str, **options: Unpack[DocumentKeywords]
) -> tuple[DocumentDecoder, Iterator[Literal | Piece]]:
    """Return a decoder and the parts of a document. Raises `InputError` for an invalid text or option."""
    text = validate("text", Text(may_be_empty=True), text)
    require_characters(text, "text")
    decoding: dict[str, Any] = {**options}
    own = {name: decoding.pop(name) for name in (*OWN, *READING) if name in decoding}
    given = {name: own[name] for name in READING if own.get(name) is not None}
    reading = DocumentOptions(**{"format": "text"} | given)
    prefix = validate("prefix", Text(may_be_empty=True), own.get("prefix", ""))
    keep = validate("keep", ListOf(Text()), own.get("keep", ()))
    uses_matches = validate("use_matches", Bool(), own.get("use_matches", False))
    try:
        chosen = session.options_with(decoding)
    except UnknownOption as error:
        way_out = suggested_option(str(error.field), [*OWN, *READING, *option_specs()])
        raise UnknownOption("unknown option", error.field, way_out) from None
    prefix = prefix or language_prefix(session.model, session.tokenizer, chosen.src_lang, chosen.tgt_lang)
    reading = replace(reading, unit=effective_unit(reading))
    own_languages = only_languages(session.model.task_prefixes)
    languages = effective_languages(chosen.src_lang, chosen.tgt_lang, prefix, own_languages)
    language, target = source_language(languages[0], prefix), target_language(languages[1], prefix)
    match = match_finder(session.memory, *languages) if uses_matches else None
    rules = rules_for(session, chosen, prefix, keep, match)
    decoder = DocumentDecoder(session, rules, prefix=prefix, slots=own.get("slots"), **decoding)
    has_match = rules.has_match if uses_matches else None
    return decoder, parts_of(StringIO(text, newline=""), reading, language, target, has_match)


def decoded_parts(
    decoder: DocumentDecoder, parts: Iterator[Literal | Piece], findings: DocumentFindings | None = None
) -> Iterator[DocumentPart]:
    """Decode the parts of a document in order. findings: collects all findings, if given."""
    renderer = Renderer()
    for part, decoded in decoder.decode(parts):
        written = renderer.add(part, decoded)
        if findings is not None:
            findings.add(part, decoded)
        if isinstance(part, Literal) or decoded is None:
            found = part.finding if isinstance(part, Literal) else None
            yield DocumentPart(written, findings=() if found is None else (found,))
        else:
            yield DocumentPart(written, decoded.source, decoded.text, tuple(decoded.findings), decoded.from_memory)

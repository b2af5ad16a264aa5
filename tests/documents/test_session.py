"""`Session.document` decodes pieces in batches and in order, with the same outputs as without batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_type_hints

import pytest

from speculative_decoding import InputError, Session
from speculative_decoding.decoding.prompt import usual_max_tokens
from speculative_decoding.documents.findings import CUT
from speculative_decoding.documents.options import DocumentKeywords, DocumentOptions
from speculative_decoding.sampling.options import option_specs
from speculative_decoding.sampling.random import row_seed
from speculative_decoding.sampling.values import specs_of

PREFIX = "translate English to German: "
SENTENCES = [
    "The method returns the value of the property.",
    "The other columns are balanced, filling with equal amounts of text.",
    "The position of a quad refers to the center of the quad.",
    "It is an object.",
]
TEXT = f"{SENTENCES[0]} {SENTENCES[1]}\n\n1.5\n  {SENTENCES[2]}\r\n{SENTENCES[3]}"


def test_every_piece_is_decoded_as_it_is_alone_and_stands_in_its_place(pair: Session) -> None:
    one, two, three, four = (pair.generate(PREFIX + each).text for each in SENTENCES)
    decoded = pair.document(TEXT, prefix=PREFIX)
    assert decoded.text == f"{one} {two}\n\n1.5\n  {three}\r\n{four}"
    assert decoded.pieces == 4 and decoded.stats.generated_tokens > 40 and not decoded.findings
    parts = list(pair.document_parts(TEXT, prefix=PREFIX))
    assert "".join(part.written for part in parts) == decoded.text
    assert [part.source for part in parts if part.source] == SENTENCES


def test_units_are_what_is_decoded_as_one_prompt(pair: Session) -> None:
    lines = pair.document(TEXT, prefix=PREFIX, unit="line", max_tokens=3)
    assert lines.pieces == 3
    text = "The method\nreturns it.\n\nThe end."
    assert pair.document(text, prefix=PREFIX, unwrap=True).pieces == 2
    assert pair.document(text, prefix=PREFIX, unwrap=True).text.count("\n") == 3


def test_samples_depend_on_the_seed_and_the_number_of_the_piece_only(pair: Session) -> None:
    options = {"temperature": 0.8, "max_tokens": 20}
    decoded = pair.document("\n".join(SENTENCES), prefix=PREFIX, seed=3, slots=3, **options)
    expected = [
        pair.generate(PREFIX + each, seed=row_seed(3, number), **options).text
        for number, each in enumerate(SENTENCES, 1)
    ]
    assert decoded.text.split("\n") == expected


def test_outputs_at_the_token_limit_are_found(pair: Session) -> None:
    found = pair.document(TEXT, prefix=PREFIX, max_tokens=3).findings
    assert {(each.line, each.kind) for each in found} == {(1, CUT), (4, CUT), (5, CUT)}


def test_the_usual_limit_depends_on_the_source_and_another_one_is_obeyed(pair: Session) -> None:
    limit = usual_max_tokens(len(pair.tokenizer.encode(PREFIX + SENTENCES[3])))
    usual = pair.document(SENTENCES[3], prefix=PREFIX, min_tokens=limit)
    assert usual.stats.generated_tokens == limit < 100 and CUT in [each.kind for each in usual.findings]
    longer = pair.document(SENTENCES[3], prefix=PREFIX, min_tokens=limit + 1, max_tokens=limit + 9)
    assert limit < longer.stats.generated_tokens <= limit + 9


REFUSED = [
    ({"format": "word"}, "format: must be"),
    ({"unit": "word"}, "unit: must be one of sentence"),
    ({"unwrap": True, "format": "html"}, "unwrap: has no effect with format html"),
    ({"fields": ["a"], "format": "text"}, "fields: has no effect"),
    ({"fields": ["a"]}, "fields: has no effect"),
    ({"src_lang": "fra_Latn"}, "src_lang: this model has prefixes for en to de, not for fra_Latn"),
    ({"num_return_sequences": 2, "num_beams": 2}, "num_return_sequences: must be 1"),
    ({"slots": 0}, "slots: must be"),
    ({"keep": "term"}, "keep: must be"),
    ({"prefix": 3}, "prefix: must be"),
    ({"prefix": "\ud800"}, "prefix: contains a lone surrogate"),
    ({"format": ""}, "format: must be"),
    ({"temperatur": 3}, "temperatur: unknown option; did you mean temperature"),
    ({"formats": "html"}, "formats: unknown option; did you mean format"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=str)
def test_options_are_checked_before_anything_is_decoded(pair: Session, options: dict, message: str) -> None:
    for call in (pair.document, pair.document_parts):
        with pytest.raises(InputError, match=message):
            call(TEXT, **options)


def test_a_document_is_a_text(pair: Session) -> None:
    with pytest.raises(InputError, match="text: must be"):
        pair.document(["a"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="text: contains a lone surrogate"):
        pair.document("a \ud800 b")
    assert pair.document("").text == ""


def test_type_checkers_know_every_option_with_its_type() -> None:
    specs = {**option_specs(), **specs_of(DocumentOptions)}
    types = {name: spec.annotation for name, spec in specs.items() if name not in ("encoding", "max_document")}
    assert get_type_hints(DocumentKeywords) == {
        **types,
        "prefix": str,
        "keep": Sequence[str],
        "slots": int | None,
        "use_matches": bool,
    }

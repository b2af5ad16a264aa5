"""Tables keep all cells except those of the decoded columns, and every byte around them."""

from __future__ import annotations

import csv
import io
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculative_decoding.documents.findings import COPIED
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.table import DELIMITERS, parse
from speculative_decoding.documents.table_cells import MAX_CELL, cells
from speculative_decoding.documents.tokens import Block, Literal
from speculative_decoding.errors import InputError
from tests.documents.csv_shapes import SHAPES, Shape
from tests.documents.decoders import document_with
from tests.documents.properties import SMALL, TEXTS, parts_in, require_properties, swapped
from tests.documents.test_subtitles import every_third, twice

MODELS = [
    str,
    swapped,
    every_third,
    twice,
    lambda text: 'A "b", c; d | e\tf',
    lambda text: '"quoted"',
    lambda text: "=1+1",
]


def rows_of(text: str, delimiter: str, format: str = "csv") -> list[list[str]]:
    quoting = csv.QUOTE_NONE if format == "tsv" else csv.QUOTE_MINIMAL
    return [*csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)]


def other_cells(text: str, shape: Shape) -> list[list[str]]:
    """Return all cells, without the content of those that are decoded."""
    rows = rows_of(text.removeprefix("sep=;\r\n").removeprefix("sep=,\n"), shape.delimiter, shape.format)
    names = next(filter(None, rows), [])
    wanted = {number for number, name in enumerate(names) if name.strip() in shape.columns}
    wanted |= {int(each) - 1 for each in shape.columns if each.isdigit()}
    return [["" if number in wanted else cell for number, cell in enumerate(row)] for row in rows]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=[*SHAPES])
def test_shapes_of_public_files_change_only_in_their_columns(shape: Shape) -> None:
    options = DocumentOptions(format=shape.format, columns=shape.columns)
    found = parse(io.StringIO(shape.text, newline=""), options)
    assert [part.text for part in found if isinstance(part, Block)] == shape.decoded
    require_properties(shape.text, shape.format, columns=shape.columns)
    if ', "' in shape.text and shape.text.startswith("id, "):
        return  # the module csv does not read quotation marks after spaces
    for model in MODELS:
        output = document_with(shape.text, model, shape.format, columns=shape.columns)
        assert other_cells(output, shape) == other_cells(shape.text, shape)


def test_there_are_thirty_shapes() -> None:
    assert len(SHAPES) >= 30


CELLS = TEXTS.map(lambda text: text.replace("\r", "\r\n"))  # the module csv writes "\r" without quotation marks
TABLES = st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=4)
DIALECTS = st.tuples(
    st.sampled_from(DELIMITERS), st.sampled_from(["\n", "\r\n"]), st.sampled_from([0, 1]), st.booleans()
)


def written(rows: list[list[str]], dialect: tuple[str, str, int, bool]) -> str:
    delimiter, end, quoting, is_declared = dialect
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(rows)  # type: ignore[arg-type]
    return (f"sep={delimiter}{end}" if is_declared else "") + file.getvalue()


@SMALL
@given(TABLES, DIALECTS)
def test_any_table_of_the_module_csv_is_edited_in_place(
    rows: list[list[str]], dialect: tuple[str, str, int, bool]
) -> None:
    text = written([["first", "text", "last"], *rows], dialect)
    for model in (str, every_third, lambda prompt: 'A "b", c; d | e\tf', lambda prompt: "=1+1"):
        output = document_with(text, model, "csv", columns=["text"])
        if model is str:
            assert output == text
        first = 1 if dialect[3] else 0
        found = rows_of(output, dialect[0])[first:]
        assert [[row[0], row[2]] for row in found] == [["first", "last"], *([row[0], row[2]] for row in rows)]
        assert found[0][1] == "text"


@SMALL
@given(TABLES, DIALECTS)
def test_cells_are_those_of_the_module_csv(rows: list[list[str]], dialect: tuple[str, str, int, bool]) -> None:
    text = written(rows, (*dialect[:3], False))
    found = [each.text for each in cells(io.StringIO(text, newline=""), dialect[0], is_tsv=False)]
    spaced = any(cell.startswith(" ") and '"' in cell for row in rows for cell in row)
    assert spaced or found == [cell for row in rows for cell in row]


@SMALL
@given(st.text(alphabet='ab ",;\t|\r\n=\u00e9', max_size=60), st.sampled_from(["csv", "tsv"]))
def test_any_text_is_kept_or_refused(text: str, format: str) -> None:
    try:
        output = document_with(text, str, format, columns=["1"])
    except InputError as error:
        assert str(error).isprintable() and format == "csv"
    else:
        assert output == text


@SMALL
@given(st.lists(st.lists(st.text(alphabet='ab ",x\u00e9', max_size=9), min_size=2, max_size=2), max_size=4), TEXTS)
def test_tsv_keeps_its_lines_and_tabs(rows: list[list[str]], output: str) -> None:
    text = "".join("\t".join(row) + "\n" for row in rows)
    require_properties(text, "tsv", columns=["1"] if rows else ["x"])
    found = document_with(text, lambda prompt: output, "tsv", columns=["1"])
    assert [line.split("\t")[1:] for line in found.split("\n")] == [line.split("\t")[1:] for line in text.split("\n")]


QUOTED = {
    ("a,Hello there\n", "Hello, you"): 'a,"Hello, you"\n',
    ("a,Hello there\n", 'Say "no"'): 'a,"Say ""no"""\n',
    ("a;Hello there\nb;c\n", "Hello, you"): "a;Hello, you\nb;c\n",
    ("a;Hello there\nb;c\n", "Hello; you"): 'a;"Hello; you"\nb;c\n',
    ('a,"Hello there"\n', 'Say "no"'): 'a,"Say ""no"""\n',
    ('a,A 5" screen\n', 'One 5" two'): 'a,One 5" two\n',
    ("a,Hello there\n", "=1+1"): "a,'=1+1\n",
    ('a,"Hello there"\n', "@SUM(A1)"): 'a,"\'@SUM(A1)"\n',
    ("a,Hello there\n", "-cmd|' /C calc'!A0"): "a,'-cmd|' /C calc'!A0\n",
    ("a,Hello there\n", "- an item"): "a,- an item\n",
    ("a,Hello there\n", "+49 to call"): "a,+49 to call\n",
}


@pytest.mark.parametrize(("pair", "wanted"), QUOTED.items(), ids=str)
def test_cells_are_quoted_if_needed_and_never_become_formulas(pair: tuple[str, str], wanted: str) -> None:
    assert document_with(pair[0].replace("c\n", "\n"), lambda prompt: pair[1], "csv", columns=["2"]) == wanted.replace(
        "c\n", "\n"
    )


def test_formulas_are_copied_and_reported() -> None:
    text = 'a,=SUM(A1)\nb,"=CONCAT(""two words"")"\nc,+A1+B2\n'
    found = [
        part.finding for part in parts_in(text, "csv", columns=["2"]) if isinstance(part, Literal) and part.finding
    ]
    assert [(each.line, each.kind) for each in found] == [(1, COPIED), (2, COPIED), (3, COPIED)]
    assert document_with(text, str.upper, "csv", columns=["2"]) == text


REFUSED = [
    ({"columns": ["2"]}, 'sep=,\nid,"text\n1,a\n', "line 2: the quotation mark that begins a cell has no counterpart"),
    (
        {},
        "id,text\n1,a\n",
        "columns: csv needs the columns to decode; name some of 'id', 'text', or numbers from 1 to 2",
    ),
    ({"columns": ["txt"]}, "id,text\n", "columns: the table has no column 'txt'; name some of 'id', 'text', or"),
    (
        {"columns": ["text,id"]},
        "id;text\n",
        "columns: the table has no column 'text,id'; name some of 'id', 'text', or numbers from 1 to 2, each with its "
        "own columns",
    ),
    ({"columns": ["3"]}, "id,text\n", "columns: the table has no column '3'"),
    ({"columns": ["0"]}, "id,text\n", "columns: the table has no column '0'"),
    ({"columns": ["9" * 5000]}, "id,text\n", "columns: the table has no column '999"),
    ({"columns": ["text"]}, 'id,text\n1,"a" b\n', "line 2: text follows the quotation mark that ends a cell; double"),
    (
        {"columns": ["text"]},
        'id,text\n1,"a \\"b\\" c"\n',
        "line 2: text follows the quotation mark that ends a cell; double",
    ),
    (
        {"columns": ["text"]},
        'id,text\n1,a\n2,"b\n\nc',
        "line 3: the quotation mark that begins a cell has no counterpart; add",
    ),
    ({"columns": ["text"]}, '"id,text\n1,a\n', "line 1: the quotation mark that begins a cell"),
    ({"columns": ["text"]}, 'id,text\n1,"' + "a\n" * MAX_CELL, f"no counterpart within {MAX_CELL} characters"),
]


@pytest.mark.parametrize(("options", "text", "words"), REFUSED, ids=lambda each: str(each)[:30])
def test_missing_columns_and_damaged_cells_are_refused(options: dict[str, list[str]], text: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        parts_in(text, "csv", **options)
    assert words in str(refused.value) and str(refused.value).isprintable()


def test_a_table_has_a_header_if_a_column_is_named() -> None:
    text = "key,text\nsome key,some text\n"
    assert document_with(text, str.upper, "csv", columns=["text"]) == "key,text\nsome key,SOME TEXT\n"
    assert document_with(text, str.upper, "csv", columns=["1", "text"]) == "key,text\nSOME KEY,SOME TEXT\n"
    assert document_with(text, str.upper, "csv", columns=["2"]) == "key,TEXT\nsome key,SOME TEXT\n"


def test_blocks_know_their_lines() -> None:
    text = 'sep=,\nid,text\n1,"One\nTwo\r\nThree"\n2,Four\n'
    found = parse(io.StringIO(text, newline=""), DocumentOptions(format="csv", columns=["text"]))
    assert [(part.text, part.line) for part in found if isinstance(part, Block)] == [
        ("One", 3), ("Two", 4), ("Three", 5), ("Four", 6),
    ]  # fmt: skip


def test_memory_does_not_depend_on_the_size_of_a_table() -> None:
    def lines() -> Iterator[str]:
        yield "id,text\n"
        for number in range(20_000):
            yield f'{number},"A text, {number}"\n'

    tracemalloc.start()
    count = sum(isinstance(part, Block) for part in parse(lines(), DocumentOptions(format="csv", columns=["text"])))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000 and peak < 1 << 20

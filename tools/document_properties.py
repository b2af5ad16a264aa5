"""Decodes documents using functions instead of a model, and checks that everything except the text is unchanged.

    python -m tools.document_properties README.md docs data
    python -m tools.document_properties prices.csv --columns name description

Pass files, or folders, in which all files with a known suffix are read. With the identity function, the output must
equal the document byte for byte. In a bilingual document, each missing target becomes a copy of its source. With a
function that swaps the case of letters, only letters in decoded texts may differ, and all of them must. With functions
that repeat or drop words, these parts must stay the same: lines, cues, JSON fields and keys, the cells of tables, all
of a gettext catalog except translations, the elements of XLIFF, code, and the blocks, cells and tags of Markdown and
HTML. The tool prints a line per failure and a summary. The exit status is 1 if there are failures.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from itertools import zip_longest
from pathlib import Path

from speculative_decoding.documents.formats import BY_SUFFIX, FORMATS
from speculative_decoding.documents.html_scanner import BLOCK
from speculative_decoding.documents.markdown import block_parser
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import Piece, parts_of
from speculative_decoding.documents.reading import DocumentFile
from speculative_decoding.documents.subtitles import LINE_END
from speculative_decoding.documents.table import DELIMITERS
from speculative_decoding.documents.tokens import line_ends
from speculative_decoding.documents.xml_source import elements
from tests.documents.decoders import written_with
from tests.documents.po_oracle import messages_in
from tests.documents.properties import swapped, swapped_part
from tests.documents.test_html import tree
from tests.documents.test_json_tree import shape_of as json_shape
from tests.documents.test_subtitles import TIMES, every_third, twice

MARKDOWN = block_parser()
MODELS: dict[str, Callable[[str], str]] = {"identity": str, "swapcase": swapped, "third": every_third, "twice": twice}


def blocks(text: str) -> list[object]:
    """Return the blocks of a Markdown document, including all code and the tags of HTML."""
    found: list[object] = []
    for each in MARKDOWN.parse(text):
        content = "" if each.type == "inline" else each.content
        found.append((each.type, each.tag, each.level, block_tags(content) if each.type == "html_block" else content))
    return found


def block_tags(text: str) -> list[object]:
    return [each[1] for each in tree(text) if len(each) == 3 and each[1] in BLOCK]


def other_fields(text: str) -> list[object]:
    return [json.loads(line) | {"text": None} if line.strip() else line for line in text.splitlines()]


def other_than_translations(text: str) -> list[object]:
    return [each._replace(targets=(), flags=each.flags | {"fuzzy"}) for each in messages_in(text)]


def rows(text: str) -> list[object]:
    """Return the number of cells of each row of a CSV table, for the delimiter that its rows agree on."""
    found = [[len(row) for row in csv.reader(StringIO(text, newline=""), delimiter=each)] for each in DELIMITERS]
    return [*max(found, key=lambda sizes: (sizes[:1] > [1], sizes.count(sizes[0]) if sizes else 0))]


def line_cells(text: str) -> list[object]:
    return [line.count("\t") for line in text.splitlines()]


def xliff_elements(text: str) -> list[object]:
    """Return the content of the sources in order, and all elements with their attributes, sorted."""
    found = [(each.name.rpartition(":")[2], each) for each in elements(text)]
    sources = [text[each.content : each.stop] for name, each in found if name == "source"]
    return [*sources, *sorted((name, *each.attributes.items()) for name, each in found)]


STRUCTURES: dict[str, Callable[[str], list[object]]] = {
    "text": LINE_END.findall,
    "markdown": blocks,
    "html": block_tags,
    "srt": TIMES.findall,
    "vtt": TIMES.findall,
    "json": lambda text: [json_shape(text)],
    "jsonl": other_fields,
    "po": other_than_translations,
    "csv": rows,
    "tsv": line_cells,
    "xliff": xliff_elements,
}


def failures(path: Path, models: Sequence[str], counts: Counter[str], columns: Sequence[str] = ()) -> Iterator[str]:
    """Yield a document's failures. models: names in `MODELS`. counts: updated in place. columns: for tables."""
    format = BY_SUFFIX[path.suffix.lower()]
    options = DocumentOptions(format=format, columns=columns if format in ("csv", "tsv") else ())
    with DocumentFile(path, options) as file:
        source = "".join(file.lines)
        parts = [*parts_of(file.lines, options, "en")]
        counts.update(documents=1, bytes=path.stat().st_size, pieces=sum(isinstance(part, Piece) for part in parts))
        outputs = {name: written_with(parts, model) for name, model in MODELS.items() if name in models}
        same = "".join(part.raw for part in parts) if FORMATS[file.format].is_bilingual else source
        if file.preamble + file.encode(source) != path.read_bytes() or outputs.get("identity", same) != same:
            yield f"identity: {difference(same, outputs.get('identity', same))}"
    expected = "".join(map(swapped_part, parts))
    if outputs.get("swapcase", expected) != expected:
        yield f"swapcase: {difference(expected, outputs['swapcase'])}"
    structure = STRUCTURES[file.format]
    wanted = structure(same)
    for name, output in outputs.items():
        pairs = enumerate(zip_longest(wanted, structure(output)))
        if changed := next((f"structure {i}: {a!r}, but {b!r}" for i, (a, b) in pairs if a != b), None):
            yield f"{name}: {changed}"


def difference(wanted: str, found: str) -> str:
    """Return the first difference between two texts."""
    start = next((i for i, (a, b) in enumerate(zip_longest(wanted, found)) if a != b), 0)
    line = line_ends(wanted[:start]) + 1
    return f"line {line}: {wanted[start : start + 60]!r}, but {found[start : start + 60]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Check that documents keep everything but their text.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], help="functions (default: all)")
    parser.add_argument("--columns", nargs="+", default=[], help="the columns of tables to decode")
    chosen = parser.parse_args()
    found = [each for path in chosen.paths for each in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    counts = Counter[str]()
    for path in (each for each in found if each.suffix.lower() in BY_SUFFIX):
        for failure in failures(path, chosen.models, counts, chosen.columns):
            counts["failures"] += 1
            print(f"{path}: {failure}", flush=True)
    print(", ".join(f"{counts[name]} {name}" for name in ("documents", "bytes", "pieces", "failures")))
    return int(counts["failures"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())

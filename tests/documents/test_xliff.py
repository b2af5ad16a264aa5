"""Missing targets of XLIFF documents are written with the codes of their sources; everything else stays the same."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from io import BytesIO, StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding import InputError
from speculative_decoding.documents.findings import UNTRANSLATED
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import Piece
from speculative_decoding.documents.reading import DocumentFile
from speculative_decoding.documents.tokens import Block, Literal
from speculative_decoding.documents.xliff import parse

from .decoders import document_with
from .properties import parts_in, require_properties, swapped
from .test_subtitles import every_third, twice
from .xliff_shapes import SHAPES, first, second

etree = pytest.importorskip("lxml.etree")

XLIFF = DocumentOptions(format="xliff")
EXAMPLES = settings(derandomize=True, deadline=None, max_examples=150, database=None)
SHAPE = pytest.mark.parametrize("name", SHAPES)
MODELS: dict[str, Callable[[str], str]] = {
    "third": every_third,
    "twice": twice,
    "empty": lambda _: "",
    "x": lambda _: "X",
}


def tree(document: str) -> Any:
    document = re.sub(r'(xmlns:\w+=")(?=\w+")', r"\1urn:", document)  # C14N refuses memoQ's relative namespace
    return etree.fromstring(document.removeprefix("\ufeff").encode(), etree.XMLParser(strip_cdata=False))


def canonical(root: Any) -> str:
    return etree.tostring(root, method="c14n").decode()


def local(node: Any) -> str:
    return etree.QName(node).localname if isinstance(node.tag, str) else ""


def child(unit: Any, name: str) -> Any:
    found = [each for each in unit if local(each) == name]
    return found[0] if found else None


def units(root: Any) -> dict[str, Any]:
    """Return the elements that contain sources and targets, by the id of the element or its parent."""
    found = (each for each in root.iter() if local(each) in ("trans-unit", "segment"))
    return {each.get("id") or each.getparent().get("id"): each for each in found}


def segment(element: Any, mid: str) -> Any:
    return next(each for each in element.iter() if each.get("mtype") == "seg" and each.get("mid") == mid)


def fill(element: Any, source: Any) -> None:
    element[:] = [deepcopy(each) for each in source]
    element.text = source.text


def filled(document: str, written: str, language: str | None = None) -> str:
    """Return the canonical form of the document in which each target to write is a copy of its source."""
    root = tree(document)
    version = root.get("version") or root.tag.partition("}")[0].rpartition(":")[2]
    is_first = version.startswith("1")
    by_id = units(root)
    names = [each for each in by_id if f" {each} " in f" {written} " or f" {each}/" in f" {written}"]
    for name in names:
        unit = by_id[name]
        source, target = child(unit, "source"), child(unit, "target")
        segmented = child(unit, "seg-source")
        last = source if segmented is None else segmented
        mids = [each.partition("/")[2] for each in written.split(" ") if each.startswith(f"{name}/")]
        if target is None:
            target = etree.Element(etree.QName(etree.QName(source).namespace, "target"))
            space = "{http://www.w3.org/XML/1998/namespace}space"
            if source.get(space):
                target.set(space, source.get(space))
            before = (last.getprevious().tail if last.getprevious() is not None else unit.text) or ""
            tail = last.tail
            last.addnext(target)  # moves the tail of `last`
            last.tail = "\n" + before.rpartition("\n")[2] if "\n" in before else ""
            target.tail = tail
        if mids:
            for mid in mids:
                fill(segment(target, mid), segment(last, mid))
        else:
            fill(target, last)
        if is_first:
            target.set("state", "needs-review-translation")
            if version != "1.0":
                target.set("state-qualifier", "leveraged-mt")
        else:
            unit.set("state", "translated")
            unit.attrib.pop("subState", None)
        holder = next(
            each for each in [unit, *unit.iterancestors()] if local(each) == ("file" if is_first else "xliff")
        )
        attribute = "target-language" if is_first else "trgLang"
        if language and not holder.get(attribute):
            holder.set(attribute, language)
    return canonical(root)


def copied(document: str, language: str | None = None) -> str:
    """Return the document in which each missing target is a copy of its source."""
    return "".join(part.raw for part in parse(StringIO(document, newline=""), XLIFF, language))


def declared_language(document: str) -> str | None:
    root = tree(document)
    found = root.get("trgLang") or next(
        (each.get("target-language") for each in root.iterfind("{*}file[@target-language]")), None
    )
    return found or None


def codes(element: Any) -> Counter[Any]:
    """Count the inline elements, with their attributes, and with their content if it is code."""
    native = ("bpt", "ept", "it", "ph")
    return Counter(
        (each.tag, *sorted(each.attrib.items()), canonical(each).partition(">")[2] if local(each) in native else "")
        for each in element.iter(etree.Element)
        if each is not element and not any(local(around) in native for around in each.iterancestors())
    )


def require_codes(document: str, written: str, output: str) -> None:
    """Check that each written target has each code of its source once, and that the rest of the document is kept."""
    root = tree(output)
    for name, unit in units(root).items():
        if name not in written:
            continue
        source = child(unit, "source") if child(unit, "seg-source") is None else child(unit, "seg-source")
        assert codes(child(unit, "target")) == codes(source)
    before, after = tree(copied(document)), root
    for each in (before, after):
        for unit in units(each).values():
            if (target := child(unit, "target")) is not None:
                target[:], target.text = [], None
    assert canonical(after) == canonical(before)


@SHAPE
def test_exactly_the_missing_targets_are_written(name: str) -> None:
    shape = SHAPES[name]
    for language in (None, declared_language(shape.document) or "pt-BR"):
        assert canonical(tree(copied(shape.document, language))) == filled(shape.document, shape.written, language)
    if not shape.written:
        assert copied(shape.document, "th") == shape.document


@SHAPE
def test_a_document_for_another_language_is_refused_if_it_would_be_written(name: str) -> None:
    shape = SHAPES[name]
    language = declared_language(shape.document)
    if not shape.written or language is None:
        copied(shape.document, "th")
    else:
        with pytest.raises(InputError, match=f"line [1-9]: the document is for translations into {language}, not into"):
            copied(shape.document, "th")


def test_the_line_of_another_language_is_that_of_its_element() -> None:
    unit = "<body><trans-unit id='1'><source>A car</source></trans-unit></body>"
    document = f"<xliff version='1.2'><file>{unit}</file>\n<file\ntarget-language='fr-CA'>{unit}</file></xliff>"
    with pytest.raises(InputError) as refused:
        copied(document, "de")
    assert refused.value.message(str) == (
        "line 3: the document is for translations into fr-CA, not into de; correct its language, or name another "
        "document"
    )


@SHAPE
def test_identity_copies_sources_and_swapcase_changes_only_letters_of_targets(name: str) -> None:
    shape = SHAPES[name]
    require_properties(shape.document, "xliff", filled=copied(shape.document))
    require_codes(shape.document, shape.written, document_with(shape.document, swapped, "xliff"))


@SHAPE
@pytest.mark.parametrize("model", MODELS)
def test_each_code_is_in_the_target_once_whatever_a_model_does(name: str, model: str) -> None:
    shape = SHAPES[name]
    require_codes(shape.document, shape.written, document_with(shape.document, MODELS[model], "xliff"))


@SHAPE
def test_a_written_document_has_no_missing_targets(name: str) -> None:
    written = document_with(SHAPES[name].document, swapped, "xliff")
    assert copied(written) == written


@SHAPE
def test_lines_of_blocks_are_those_of_their_sources(name: str) -> None:
    lines = SHAPES[name].document.splitlines()
    for part in parse(StringIO(SHAPES[name].document, newline=""), XLIFF):
        if isinstance(part, Block) and part.tokens[0].raw and "<![CDATA[" not in lines[part.line - 1]:
            assert lines[part.line - 1].find(part.tokens[0].raw.splitlines()[0]) >= 0


def test_the_layout_of_the_document_is_kept() -> None:
    """Exact bytes: quotation marks, indentation, spaces in tags, line ends, and the place of the new target."""
    source = first("""      <trans-unit id='1' >
        <source >The car</source >
        <note >n</note>
      </trans-unit>
      <trans-unit id="2"><source>The bus</source><target xml:lang='de'  state = 'new' /></trans-unit>""")
    marks = 'state="needs-review-translation" state-qualifier="leveraged-mt"'
    wanted = source.replace("</source >\n", f"</source >\n        <target {marks}>The car</target>\n").replace(
        "<target xml:lang='de'  state = 'new' />", f"<target xml:lang='de' {marks}>The bus</target>"
    )
    assert document_with(source, str, "xliff") == wanted
    windows = source.replace("\n", "\r\n")
    assert document_with(windows, str, "xliff") == wanted.replace("\n", "\r\n")


TEXTS = {
    "One<x id='1' ctype='lb'/>two &#10; three": ["One", "two", "three"],
    "One sentence. And another.": ["One sentence.", "And another."],
    "A <ph id='1'>code</ph>red <mrk mtype='protected'>Car</mrk> here": ["A red Car here"],
    "<![CDATA[Tea & <b>milk</b>]]> &lt; sugar": ["Tea & <b>milk</b> < sugar"],
    "{n, plural, one {<g id='1'>one file</g>} other {# files}}": ["one file", "files"],
}


@pytest.mark.parametrize("content", TEXTS)
def test_prompts_are_the_texts_of_sources(content: str) -> None:
    parts = parts_in(first(f'<trans-unit id="1"><source>{content}</source></trans-unit>'), "xliff")
    assert [part.text.strip() for part in parts if isinstance(part, Piece)] == TEXTS[content]


def test_only_messages_with_words_are_written() -> None:
    for branch in ("# file", "#"):
        unit = f'<trans-unit id="1"><source>{{n, plural, one {{{branch}}} other {{#}}}}</source></trans-unit>'
        assert ("<target" in document_with(first(unit), str, "xliff")) == ("file" in branch)


@pytest.mark.parametrize("target", ["", "<target/>", '<target state="new">Auf. Zu.</target>'])
def test_a_locked_segment_is_never_written(target: str) -> None:
    unit = (
        '<trans-unit id="a"><source>Open. Closed.</source><seg-source><mrk mtype="seg" mid="1">Open.</mrk> '
        f'<mrk mtype="seg" mid="2">Closed.</mrk></seg-source>{target}<sdl:seg-defs><sdl:seg id="1" locked="true"/>'
        '<sdl:seg id="2"/></sdl:seg-defs></trans-unit>'
    )
    document = f"<xliff version='1.2' xmlns:sdl='sdl'>\n<file>{unit}</file></xliff>"
    assert document_with(document, str.upper, "xliff") == document
    (finding,) = [part.finding for part in parts_in(document, "xliff") if isinstance(part, Literal) and part.finding]
    assert finding.kind == UNTRANSLATED and finding.line == 2


def test_a_code_between_words_is_placed_with_the_space_before_it() -> None:
    content = "The <ph id='1'>{0}</ph> method returns <x id='2'/>, the <x id='3'/>value <x id='4'/> now"
    document = first(f'<trans-unit id="1"><source>{content}</source></trans-unit>')
    (piece,) = (part for part in parts_in(document, "xliff") if isinstance(part, Piece))
    assert piece.text == "The method returns, the value now"
    output = document_with(document, lambda _: "Die Methode liefert, den Wert nun", "xliff")
    target = output.partition("<target ")[2].partition(">")[2].partition("</target>")[0]
    assert target.startswith("Die <ph id='1'>{0}</ph> Methode liefert <x id='2'/>, den ")
    assert target.endswith("Wert <x id='4'/> nun")


def test_outputs_are_escaped() -> None:
    document = first('<trans-unit id="1"><source>word</source></trans-unit>')
    assert ">a&lt;b&gt; &amp; ]]&gt;\xa0c</target>" in document_with(document, lambda _: "a<b> & ]]>\xa0\x0bc", "xliff")


@pytest.mark.parametrize("model", MODELS)
def test_codes_of_phrase_enclose_text_that_is_decoded(model: str) -> None:
    document = SHAPES["Phrase"].document
    blocks = [part for part in parse(StringIO(document, newline=""), XLIFF) if isinstance(part, Block)]
    assert [block.text for block in blocks] == ["Click here to go {2}on ", "Plain text", "The end of it"]
    output = document_with(document, MODELS[model], "xliff")
    target = child(units(tree(output))["x:0"], "target").text
    assert [target.count(code) for code in ("{1>", "{b>", "<b}", "<1}", "<3}")] == [1] * 5
    assert target.index("{1>") < target.index("{b>") < target.index("<b}") < target.index("<1}")


VERSIONS = "convert it to version 1.0, 1.1, 1.2, 2.0, 2.1, 2.2"
TYPE = "a document type declaration is not supported; remove it"
DAMAGED = "not well-formed XML"
REFUSED = {
    "<a/>": "line 1: not XLIFF (its first element is a); name another file",
    "<xliff/>": f"line 1: XLIFF version '' is not supported; {VERSIONS}",
    "<xliff version='2.3'/>": f"line 1: XLIFF version '2.3' is not supported; {VERSIONS}",
    "\n<!DOCTYPE xliff SYSTEM 'xliff.dtd'><xliff version='1.2'/>": f"line 2: {TYPE}",
    "<!DOCTYPE x [<!ENTITY a 'b'>]><xliff version='1.2'/>": f"line 1: {TYPE}",
    first("<trans-unit><source>a</target></trans-unit>"): f"line 5: {DAMAGED} (mismatched tag); correct it",
    first("<a>&nbsp;</a>"): f"line 5: {DAMAGED} (undefined entity); correct it",
    first("<a b=1/>"): f"line 5: {DAMAGED} (not well-formed (invalid token)); correct it",
    first("<a x='1' x='2'/>"): f"line 5: {DAMAGED} (duplicate attribute); correct it",
    "<xliff version='1.2'>\n\ud800</xliff>": f"line 2: {DAMAGED} (not well-formed (invalid token)); correct it",
    "": f"line 1: {DAMAGED} (no element found); correct it",
    first("<g>" * 100 + "</g>" * 100): "line 5: over 100 levels of elements; correct it",
}


@pytest.mark.parametrize("document", REFUSED, ids=range(len(REFUSED)))
def test_other_documents_are_refused_in_one_line(document: str) -> None:
    with pytest.raises(InputError) as refused:
        copied(document)
    assert refused.value.message(str) == REFUSED[document]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "windows-1252", "iso-8859-2"])
def test_the_declared_encoding_is_kept(tmp_path: Path, encoding: str) -> None:
    text = first('<trans-unit id="1"><source>Größe der Tür</source></trans-unit>')
    text = text.replace("UTF-8", encoding.removesuffix("-sig"))
    path = tmp_path / "a.xlf"
    path.write_bytes(text.encode(encoding))
    with DocumentFile(path, DocumentOptions()) as file:
        assert file.format == "xliff"
        output = document_with("".join(file.lines), lambda each: each.replace("ö", "\u4f60"), "xliff")
        written = file.preamble + file.encode(output)
    target = etree.parse(BytesIO(written)).find(".//{*}target")
    assert target.text == "Gr\u4f60ße der Tür"


INLINE = st.sampled_from(
    ["words here", "one. Two", "{name}", " ", "\n", "&#10;", "&amp;", "<![CDATA[a <b>]]>", "<!-- c -->", "<?p i?>"]
)
CODES = {
    False: [
        *("<x id='%d'/>", "<x id='START_A_%d'/>", "<x id='CLOSE_A'/>", "<bpt id='%d'>b</bpt>", "<ept id='%d'>e</ept>"),
        *("<bx id='%d' rid='1'/>", "<ex id='%d' rid='1'/>", "<ph id='%d'>{}</ph>", "<it id='%d' pos='open'>i</it>"),
    ],
    True: ["<ph id='%d'/>", "<sc id='%d'/>", "<ec id='%d' startRef='1'/>", "<sm id='%d'/>", "<cp hex='001%d'/>"],
}
AROUND = {
    False: ["<g id='%d'>%s</g>", "<mrk mtype='seg' mid='%d'>%s</mrk>", "<mrk mtype='protected' mid='%d'>%s</mrk>"],
    True: ["<pc id='%d'>%s</pc>", "<mrk id='%d'>%s</mrk>", "<mrk id='%d' translate='no'>%s</mrk>"],
}


def contents(is_second: bool) -> st.SearchStrategy[str]:
    number = st.integers(1, 3)
    code = st.builds(lambda each, n: each.replace("%d", str(n)), st.sampled_from(CODES[is_second]), number)

    def around(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        parts = st.lists(inner, max_size=4).map("".join)
        return st.builds(
            lambda each, n, text: each.replace("%d", str(n)).replace("%s", text),
            st.sampled_from(AROUND[is_second]),
            number,
            parts,
        )

    return st.lists(st.recursive(st.one_of(INLINE, code), around, max_leaves=12), max_size=6).map("".join)


@EXAMPLES
@given(st.booleans(), st.data(), st.randoms(use_true_random=False))
def test_codes_survive_in_any_document(is_second: bool, data: st.DataObject, random: Random) -> None:
    content = data.draw(contents(is_second))
    space = data.draw(st.sampled_from(["", " xml:space='preserve'"]))
    source = f"<source{space}>{content}</source>"
    document = (
        second(f"<unit id='1'><segment>{source}</segment></unit>")
        if is_second
        else first(f"<trans-unit id='1'>{source}</trans-unit>")
    )

    def model(text: str) -> str:
        words = [*random.choices(text.split(), k=random.randint(1, 3)), *random.choices(["", "&", "<", "new"], k=1)]
        return " ".join(words).title()

    same = copied(document)
    written = "1" if same != document else ""
    assert canonical(tree(same)) == filled(document, written)
    require_properties(document, "xliff", filled=same)
    require_codes(document, written, document_with(document, model, "xliff"))


UNIT = "<trans-unit id='1'><source>The red car.</source></trans-unit>"
HOSTILE = {
    "units": (UNIT, "%s"),
    "one text": ("The red car. ", "<trans-unit id='1'><source>%s</source></trans-unit>"),
    "codes": ("a <x id='1'/>", "<trans-unit id='1'><source>%s</source></trans-unit>"),
    "open codes": ("a <bx id='1'/>", "<trans-unit id='1'><source>%s</source></trans-unit>"),
    "ends of codes": ("a <ex id='1'/>", "<trans-unit id='1'><source>%s</source></trans-unit>"),
    "spaces": (" ", "<trans-unit id='1'><source>a%s\n</source></trans-unit>"),
    "line breaks": ("&#10;", "<trans-unit id='1'><source>a%s</source></trans-unit>"),
    "CDATA sections": ("<![CDATA[a]]>", "<trans-unit id='1'><source>%s</source></trans-unit>"),
    "comments": ("<!---->", "%s"),
    "lines": ("\n", "%s" + UNIT),
    "lines of a unit": ("\n", "<trans-unit id='1'>%s<source>a b</source></trans-unit>"),
    "segments": (
        "<mrk mtype='seg' mid='1'>a b</mrk>",
        "<trans-unit id='1'><source>a</source><seg-source>%s</seg-source></trans-unit>",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_proportional_to_the_size(name: str) -> None:
    repeated, around = HOSTILE[name]

    def seconds(size: int) -> float:
        document = first(around.replace("%s", repeated * (size // len(repeated))))
        started = time.process_time()
        copied(document)
        return time.process_time() - started

    assert seconds(400_000) < 8 * seconds(100_000) + 0.5

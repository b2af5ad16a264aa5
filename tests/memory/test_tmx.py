"""TMX files of translation programs are read, and damaged or hostile files are refused."""

from __future__ import annotations

import codecs
import time
import tracemalloc
from pathlib import Path

import pytest

from speculative_decoding import InputError
from speculative_decoding.memory import TranslationMemory, tmx

OMEGAT = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx11.dtd">
<tmx version="1.1">
  <header creationtool="OmegaT" o-tmf="OmegaT TMX" adminlang="EN-US" datatype="plaintext"
    creationtoolversion="6.0.1_0" segtype="sentence" srclang="en-GB"/>
  <body>
<!-- Default translations -->
    <tu>
      <tuv lang="en-GB">
        <seg>Open the &lt;file&gt; &amp; read it.</seg>
      </tuv>
      <tuv lang="de" changeid="a" changedate="20240101T120000Z" creationid="a">
        <seg>Öffne die Datei.</seg>
      </tuv>
    </tu>
<!-- Alternative translations -->
    <tu>
      <note>a note</note>
      <prop type="file">a.txt</prop>
      <prop type="id">3</prop>
      <tuv lang="en-GB"><seg>Close it.</seg></tuv>
      <tuv lang="de"><seg>Schließe sie.</seg></tuv>
    </tu>
  </body>
</tmx>
"""
MEMOQ = """<?xml version="1.0" encoding="utf-8"?>
<tmx version="1.4">
  <header creationtool="MemoQ" creationtoolversion="10.2.5" segtype="sentence" adminlang="en-us" srclang="en"
    o-tmf="MemoQTM" datatype="unknown"><prop type="defclient">Client</prop><prop type="defsubject"> </prop></header>
  <body>
    <tu changedate="20230202T101010Z" changeid="b"><prop type="client"> </prop>
      <tuv xml:lang="en"><prop type="x-context-pre">&lt;seg&gt;Before&lt;/seg&gt;</prop>
        <seg>Press <bpt i="1" type="bold">{}</bpt>Save<ept i="1">{}</ept> <ph>&lt;mq:ch val="&amp;#10;"
          /&gt;</ph>now.</seg></tuv>
      <tuv xml:lang="de-DE"><seg>Drücken Sie <bpt i="1" type="bold">{}</bpt>Speichern<ept i="1">{}</ept>.</seg></tuv>
    </tu>
  </body>
</tmx>
"""
TRADOS = """<?xml version="1.0" encoding="utf-16"?>
<tmx version="1.4">
  <header creationtool="SDL Language Platform" creationtoolversion="8.1" o-tmf="SDL TM8 Format" datatype="xml"
    segtype="sentence" adminlang="en-US" srclang="en-US" creationdate="20230202T101010Z" creationid="c">
    <prop type="x-Recognizers">RecognizeAll</prop>
    <prop type="RTFFontTable">{\\fonttbl {\\f1 Arial;}}</prop>
  </header>
  <body>
    <tu creationdate="20230202T101010Z" lastusagedate="20230202T101010Z" usagecount="1">
      <prop type="x-Origin">TM</prop>
      <tuv xml:lang="en-US">
        <seg>An <hi type="it">important</hi> <ut>{\\b </ut>note<ut>}</ut><it pos="end">&lt;/b&gt;</it>.</seg></tuv>
      <tuv xml:lang="de-DE">
        <seg>Ein <hi>wichtiger</hi> Hinweis<ph x="1">&lt;fn&gt;<sub>Fußnote</sub>&lt;/fn&gt;</ph>.</seg></tuv>
    </tu>
  </body>
</tmx>
"""
OKAPI = """<?xml version="1.0" encoding="UTF-8" ?>
<tmx version="1.4"><header creationtool="oku_alignment" creationtoolversion="1" segtype="sentence" o-tmf="okapi"
 adminlang="en" srclang="en" datatype="x-text"></header><body>
<tu tuid="a"><prop type="Txt::FileName">a.html</prop>
<tuv xml:lang="en"><seg>A<ph x="1">&lt;br/&gt;</ph> line
   in  two.</seg></tuv>
<tuv xml:lang="de"><seg><![CDATA[Eine Zeile <in> zwei.]]></seg></tuv>
<tuv xml:lang="fr"><seg>Une ligne.</seg></tuv>
</tu><tu><tuv xml:lang="en"><seg>Only English</seg></tuv><tuv xml:lang="fr"><seg>Une</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg/></tuv><tuv xml:lang="de"><seg>leer</seg></tuv></tu>
</body></tmx>"""
WEBLATE = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE tmx
  SYSTEM 'tmx14.dtd'>
<tmx version="1.4">
\t<header creationtool="Translate Toolkit" creationtoolversion="3.9" segtype="sentence" o-tmf="UTF-8" adminlang="en"
\t\tsrclang="en" datatype="PlainText"/>
\t<body><tu><note>weblate</note><tuv xml:lang="en"><seg>Hello &#8212; world</seg></tuv>
\t\t<tuv xml:lang="de"><seg>Hallo Welt</seg></tuv></tu></body>
</tmx>
"""
FILES = {
    "omegat": (OMEGAT, [("Open the <file> & read it.", "Öffne die Datei."), ("Close it.", "Schließe sie.")]),
    "memoq": (MEMOQ, [("Press Save now.", "Drücken Sie Speichern.")]),
    "trados": (TRADOS, [("An important note.", "Ein wichtiger Hinweis.")]),
    "okapi": (OKAPI, [("A line in two.", "Eine Zeile <in> zwei.")]),
    "weblate": (WEBLATE, [("Hello — world", "Hallo Welt")]),
}
ENCODINGS = {
    "utf-8": (b"", "utf-8"),
    "utf-8 with a mark": (codecs.BOM_UTF8, "utf-8"),
    "utf-16-le with a mark": (codecs.BOM_UTF16_LE, "utf-16-le"),
    "utf-16-be with a mark": (codecs.BOM_UTF16_BE, "utf-16-be"),
    "utf-16-le": (b"", "utf-16-le"),
    "utf-16-be": (b"", "utf-16-be"),
}


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "a.tmx"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pairs_of(path: Path, src_lang: str | None = None, tgt_lang: str | None = None) -> list[tuple[str, str]]:
    with path.open("rb") as file:
        found = tmx.Tmx(file, src_lang, tgt_lang)
        found.choose()
        return [*found.pairs()]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("program", FILES)
def test_the_pairs_of_a_program_are_read_in_each_encoding_whatever_it_declares(
    program: str, encoding: str, tmp_path: Path
) -> None:
    content, expected = FILES[program]
    mark, name = ENCODINGS[encoding]
    path = written(tmp_path, mark + content.encode(name))
    assert pairs_of(path, "en", "de") == expected


def test_the_parts_in_which_a_file_is_read_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (1, 7):
        monkeypatch.setattr(tmx, "PART_BYTES", part)
        for content, expected in FILES.values():
            assert pairs_of(written(tmp_path, content.replace("utf-16", "utf-8")), "en", "de") == expected


def test_a_declared_encoding_is_used(tmp_path: Path) -> None:
    content = WEBLATE.replace('encoding="utf-8"', 'encoding="windows-1252"').replace("Hallo Welt", "Grüße")
    assert pairs_of(written(tmp_path, content.encode("cp1252"))) == [("Hello — world", "Grüße")]


def test_the_header_names_the_source_of_two_languages(tmp_path: Path) -> None:
    path = written(tmp_path, OMEGAT)
    assert pairs_of(path) == FILES["omegat"][1]
    assert pairs_of(path, "de") == [(target, source) for source, target in FILES["omegat"][1]]
    assert TranslationMemory.open(path).languages == ("en-GB", "de")
    for said in ("", "*all*"):
        with pytest.raises(InputError, match="does not say which of its languages de, en-GB is that of the sources"):
            TranslationMemory.open(written(tmp_path, OMEGAT.replace('srclang="en-GB"', f'srclang="{said}"')))


def test_of_several_texts_in_a_language_the_closest_is_taken(tmp_path: Path) -> None:
    variants = "".join(
        f'<tuv xml:lang="{language}"><seg>{language}</seg></tuv>' for language in ("en-US", "pt-PT", "en-GB", "pt-BR")
    )
    path = written(tmp_path, f'<tmx version="1.4"><header/><body><tu>{variants}</tu></body></tmx>')
    assert pairs_of(path, "en-GB", "pt_BR") == [("en-GB", "pt-BR")]
    assert pairs_of(path, "eng_Latn", "pt") == [("en-US", "pt-PT")]


ENTITY = '<!DOCTYPE tmx [<!ENTITY {} "ha">]><tmx><body><tu><tuv xml:lang="en"><seg>&a;</seg></tuv></tu></body></tmx>'
LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 40))
DEFAULTS = " ".join(f"a{i} CDATA 'some value'" for i in range(5000))
START = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de">'
HOSTILE = {
    "billion laughs": (f'<!DOCTYPE tmx [<!ENTITY l0 "ha">{LAUGHS}]><tmx>&l39;</tmx>', "declares the entity l0"),
    "external entity": (
        '<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]><tmx>&a;</tmx>',
        "declares the entity a",
    ),
    "parameter entity": (
        '<!DOCTYPE tmx [<!ENTITY % a SYSTEM "http://127.0.0.1:9/">%a;]><tmx/>',
        "declares the entity a",
    ),
    "unused entity": (ENTITY.format("b"), "declares the entity b"),
    "undeclared entity": (f'<!DOCTYPE tmx SYSTEM "tmx14.dtd">{START}<seg>a&nbsp;b', "undeclared entity &nbsp;"),
    "deep": (START + "<seg>" + "<hi>" * 3_000_000, "over 100 levels of elements"),
    "deep outside": ("<tmx>" + "<tu>" * 3_000_000, "over 100 levels of elements"),
    "huge attribute": (f'<tmx><tu a="{"x" * 20_000_000}"/></tmx>', "a tag, comment or document type of over"),
    "huge comment": (f"<tmx><!--{'x' * 20_000_000}--></tmx>", "a tag, comment or document type of over"),
    "huge doctype": (f"<!DOCTYPE tmx [{'<!-- a -->' * 2_000_000}", "no element found"),
    "huge name": (f"<tmx><{'x' * 20_000_000}/></tmx>", "a tag, comment or document type of over"),
    "huge segment": (f"{START}<seg>{'x ' * 10_000_000}</seg></tuv></tu></body></tmx>", "a segment of over"),
    "many names": ("<tmx>" + "".join(f"<a{i}/>" for i in range(300_000)), "names of elements and attributes"),
    "many attributes": (
        "<tmx><tu " + "".join(f"a{i}='' " for i in range(90_000)) + "/>",
        "names of elements and attributes",
    ),
    "many defaults": (
        f"<!DOCTYPE tmx [<!ATTLIST tu {DEFAULTS}>]><tmx>{'<tu/>' * 99_999}",
        "default values of attributes",
    ),
    "many languages": (
        "<tmx>" + "".join(f'<tu><tuv xml:lang="a{i}"><seg>a</seg></tuv></tu>' for i in range(100_000)),
        "over 1000 languages",
    ),
    "truncated": (OMEGAT[: len(OMEGAT) // 2].rpartition(">")[0] + ">", "is not XML or is damaged (no element found"),
    "truncated tag": (OMEGAT[: OMEGAT.index("creationtoolversion")], "is not XML or is damaged (unclosed token"),
    "other bytes": (b"\x00\x01\x02\xff" * 1000, "is not XML or is damaged"),
    "not xml": ("source\ttarget\n", "is not XML or is damaged"),
    "empty": ("", "is not XML or is damaged (no element found"),
    "another format": (
        '<?xml version="1.0"?><xliff><file/></xliff>',
        "is XML, but not TMX (its first element is xliff)",
    ),
    "other encoding": ('<?xml version="1.0" encoding="Shift_JIS"?><tmx/>', "has an unsupported encoding"),
    "unknown encoding": ('<?xml version="1.0" encoding="nonsense"?><tmx/>', "has an unsupported encoding"),
    "huge name of an encoding": (f'<?xml version="1.0" encoding="{"x" * 9000}"?><tmx/>', "has an unsupported encoding"),
    "huge name of a language": (
        f'<tmx><tu><tuv xml:lang="{"en" * 9000}"/></tu></tmx>',
        "has no texts in en, only in enenen",
    ),
    "no pairs": ('<tmx><header srclang="en"/><body></body></tmx>', "has texts in no language"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_in_one_line_within_bounded_time_and_memory(name: str, tmp_path: Path) -> None:
    content, message = HOSTILE[name]
    path = written(tmp_path, content)
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(InputError) as caught:
        TranslationMemory.open(path, src_lang=None if name == "no pairs" else "en", tgt_lang=None)
    seconds = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in caught.value.message()
    assert caught.value.field == "memory" and len(str(caught.value)) < 400
    assert seconds < 20 and peak < 2**25


def test_a_large_file_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """The pairs are consumed during reading."""
    unit = '<tu><tuv xml:lang="en"><seg>A source</seg></tuv><tuv xml:lang="de"><seg>Ein Ziel</seg></tuv></tu>\n'
    path = written(tmp_path, f'<tmx version="1.4"><header srclang="en"/><body>{unit * 20_000}</body></tmx>')
    with path.open("rb") as file:
        found = tmx.Tmx(file, "en", "de")
        found.choose()
        tracemalloc.start()
        assert sum(pair == ("A source", "Ein Ziel") for pair in found.pairs()) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**20

"""A few documents of each format with the columns of tables, which `tools.fuzz_files` damages."""

from __future__ import annotations

from collections.abc import Sequence

from tests.documents.xliff_shapes import SHAPES
from tests.support.paths import ROOT

HTML = b"""\xef\xbb\xbf<!doctype html><html><head><title>A &amp; B</title><style>p { color: red }</style></head>
<body><h1 class=x>Open the <b>page</b></h1><p>One <a href="a.html">link</a>.<br>Two &lt; three.<pre>code</pre>
<ul><li>First<li translate=no>Second</ul><table><tr><td>Cell<td>Other</table><script>let a = "<p>";</script>
</body></html>
"""
SRT = b"""1
00:00:01,000 --> 00:00:02,500
<i>Hello,</i> my
- friend.

2
00:00:02,600 --> 00:00:04,000 X1:10
Bye!
""".replace(b"\n", b"\r\n")
VTT = b"""WEBVTT

NOTE a comment

STYLE
::cue { color: red }

intro
00:01.000 --> 00:02.500 align:start
<v Mary>Hello &amp; <c.loud>welcome</c>

00:02.600 --> 00:04.000
to the show.
"""
JSON_LINES = rb"""{"id": 1, "text": "Open the page.\nClose \"it\"."}
  {"text" : "{n, plural, one {# file} other {# files}}", "n": 1e400}

{"text": "Caf\u00e9 \ud83d\ude00"}
"""
PO = rb"""# \xd0\x9f\xd0\xb5\xd1\x80\xd0\xb5\xd0\xb2\xd0\xbe\xd0\xb4
#, fuzzy
msgid ""
msgstr ""
"Language: \n"
"Content-Type: text/plain; charset=CHARSET\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

#. note
#: a.c:1
#, c-format
#| msgid "Old"
msgctxt "menu"
msgid "Open \"%s\"."
msgstr ""

msgid ""
"The first line of a well-"
"known text is long "
"enough.\n"
"  -h, --help\tshow \303\274 and \a\n"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

msgid "Done"
msgstr "Fertig"

#~ msgid "Gone"
#~ msgstr "Weg"
"""
LATIN_PO = PO.replace(b"\n", b"\r\n").replace(b"CHARSET", b"iso-8859-1").replace(b"Fertig", b"F\xe4hig")
LATIN_PO = LATIN_PO.replace(b"nplurals=INTEGER; plural=EXPRESSION;", b"nplurals=3; plural=n%10==1 ? 0 : n<5 ? 1 : 2;")
JSON = rb"""{
  "@@locale": "en",
  "menu": {"open": "Open the page.\nClose \"it\".", "n": [1e400, null, "{n, plural, one {# file} other {# files}}"]},
  "@menu": {"description": "Copied"},
  "caf\u00e9": "Caf\u00e9 \ud83d\ude00"
}
"""
CSV = b"""sep=;\r
1;Open the page.;2,5\r
2;"Close ""it"";\r
now."\r
3;=SUM(A1:A2)\r
4;"{n, plural, one {# file}\r
other {# files}}";;\r
"""
TSV = b"""1\tOpen the page.\t2
2\t"Close ""it""."
3\t"A quotation, without end
"""
TEXT = "Open the page. Close it.\n\n  Name\tValue\r\nCafé   2 km\n".encode("utf-16")

SAMPLES: dict[str, list[bytes]] = {
    "text": [TEXT, TEXT.decode("utf-16").encode()],
    "markdown": [(ROOT / "data/README.md").read_bytes()],
    "html": [HTML],
    "srt": [SRT],
    "vtt": [VTT],
    "json": [JSON],
    "jsonl": [JSON_LINES],
    "po": [PO, LATIN_PO],
    "csv": [CSV, CSV.removeprefix(b"sep=;\r\n")],
    "tsv": [TSV],
    "xliff": [shape.document.encode() for shape in SHAPES.values()],
}
COLUMNS: dict[str, Sequence[str]] = {"csv": ["2"], "tsv": ["2"]}

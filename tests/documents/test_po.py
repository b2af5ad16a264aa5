"""Gettext catalogs: missing translations are decoded and become fuzzy, and polib reads everything else unchanged."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from gettext import c2py

import polib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import Piece, parts_of
from speculative_decoding.documents.po_encoding import charset_in, with_charset
from speculative_decoding.documents.po_header import plurals_in
from speculative_decoding.documents.reading import DocumentFile
from speculative_decoding.documents.splitting import needs_decoding
from speculative_decoding.documents.tokens import Literal
from speculative_decoding.errors import InputError
from tests.documents.decoders import document_with, written_with
from tests.documents.po_oracle import Message, messages_in
from tests.documents.po_shapes import CATALOGS, HEADER
from tests.documents.properties import SMALL, TEXTS, require_properties, swapped
from tests.documents.test_subtitles import every_third, twice

# polib reads less than gettext
NOT_IN_POLIB = {"several strings on a line", "a keyword without a string on its line", "a domain"}
LINE_ENDS = ["\n", "\r\n", "\r"]


def parts_into(text: str, target: str | None = None) -> list[Literal | Piece]:
    return [*parts_of(io.StringIO(text, newline=""), DocumentOptions(format="po"), "en", target)]


def decoded(text: str, model: Callable[[str], str] = str, target: str | None = "de") -> str:
    return written_with(parts_into(text, target), model)


def forms_in(text: str) -> tuple[int, Callable[[int], int]]:
    """Return the number of plural forms in a catalog's header, and the function that chooses a form."""
    forms = polib.pofile(text).metadata.get("Plural-Forms", "nplurals=2; plural=(n != 1);")
    found = re.match(r"nplurals=(\d+); plural=(.*?);?$", forms)
    assert found is not None
    return int(found[1]), c2py(found[2])


def filled(message: Message, text: str) -> Message:
    """Return a message with a copy of its source if its translation is missing. text: the output, with its header."""
    sources = [message.source, message.plural]
    has_words = any(needs_decoding(each) or "one {# file" in each for each in sources)
    if message.is_obsolete or any(message.targets) or not has_words:
        return message
    targets: tuple[str, ...] = (message.source,)
    if message.plural:
        count, form = forms_in(text)
        numbers = [[n for n in range(1000) if form(n) == index] for index in range(count)]
        is_one = [1 in each and count > 1 and (len(each) <= 5 or "%d" in message.source) for each in numbers]
        targets = tuple(message.source if each else message.plural for each in is_one)
    return message._replace(targets=targets, flags=message.flags | {"fuzzy"})


def without_targets(messages: list[Message]) -> list[Message]:
    return [each._replace(targets=()) for each in messages]


@pytest.mark.parametrize("end", LINE_ENDS)
@pytest.mark.parametrize("name", CATALOGS)
def test_only_letters_of_missing_translations_change(name: str, end: str) -> None:
    text = CATALOGS[name].replace("\n", end)
    output = document_with(text, str, "po")
    require_properties(text, "po", filled=output)
    assert document_with(output, swapped, "po") == output  # nothing is left to decode
    assert output == document_with(CATALOGS[name], str, "po").replace("\n", end)


@pytest.mark.parametrize("name", [name for name in CATALOGS if name not in NOT_IN_POLIB])
def test_polib_reads_the_filled_catalog(name: str) -> None:
    text = CATALOGS[name]
    output = decoded(text)
    assert messages_in(output) == [filled(each, output) for each in messages_in(text)]


@pytest.mark.parametrize("model", [swapped, every_third, twice, lambda text: "x", lambda text: 'a "b" \\ c\td'])
@pytest.mark.parametrize("name", [name for name in CATALOGS if name not in NOT_IN_POLIB])
def test_all_but_translations_stays_the_same_with_any_model(name: str, model: Callable[[str], str]) -> None:
    text = CATALOGS[name]
    same, output = messages_in(decoded(text)), messages_in(decoded(text, model))
    assert without_targets(output) == without_targets(same)
    for one, other in zip(same, output, strict=True):
        for target, wanted in zip(other.targets, one.targets, strict=True):
            assert bool(target) == bool(wanted)
            assert re.findall(r"^\n*|\n*$", target) == re.findall(r"^\n*|\n*$", wanted)  # `msgfmt -c` requires it
            assert target.count("\n") == wanted.count("\n")
            assert target == target.rstrip(" ") or wanted != wanted.rstrip(" ")


@pytest.mark.parametrize("end", LINE_ENDS)
def test_a_complete_catalog_stays_the_same(end: str) -> None:
    names = [name for name in CATALOGS if "half" not in name]
    for name in names:
        complete = decoded(CATALOGS[name]).replace("\n", end).replace("charset=UTF-8", "charset=CHARSET")
        assert decoded(complete, swapped) == complete


# polib divides lines as str.splitlines does
TEXT = TEXTS.map(lambda text: "".join(each for each in text if each == "\n" or not f"a{each}b".splitlines()[1:]))
MESSAGES = st.builds(
    polib.POEntry,
    msgid=TEXT.map(lambda text: f"Say it. {text}"),
    msgctxt=st.none() | TEXT,
    msgid_plural=st.just("") | TEXT.map(lambda text: f"{text} all"),
    msgstr=st.just("") | TEXT,
    flags=st.lists(st.sampled_from(["c-format", "no-wrap", "fuzzy"]), unique=True),
    occurrences=st.just([("a.c", "1")]) | st.just([]),
    obsolete=st.booleans(),
)


@SMALL
@given(st.lists(MESSAGES, max_size=4), st.sampled_from([20, 78]))
def test_catalogs_written_by_polib_are_edited_in_place(entries: list[polib.POEntry], width: int) -> None:
    file = polib.POFile(wrapwidth=width)
    file.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Plural-Forms": "nplurals=2; plural=(n != 1);"}
    for entry in entries:
        if entry.msgid_plural:
            entry.msgstr, entry.msgstr_plural = "", {0: entry.msgstr, 1: entry.msgstr}
        file.append(entry)
    text = str(file)
    output = decoded(text)
    require_properties(text, "po", filled=document_with(text, str, "po"))
    assert messages_in(output) == [filled(each, output) for each in messages_in(text)]
    assert without_targets(messages_in(decoded(text, swapped))) == without_targets(messages_in(output))


# Target -> Plural-Forms of Unicode's rules for integers, and the targets of "%d page", "%d pages"
PLURALS = {
    "de": ["%d page", "%d pages"],
    "pl": ["%d page", "%d pages", "%d pages"],
    "ja": ["%d pages"],
    "zh-Hans": ["%d pages"],
    "pt-BR": ["%d page", "%d pages", "%d pages"],
}


@pytest.mark.parametrize("name", ["a template of xgettext", "a template of Babel"])
@pytest.mark.parametrize(("target", "wanted"), PLURALS.items())
def test_a_template_gets_the_plural_forms_of_the_language(name: str, target: str, wanted: list[str]) -> None:
    text = CATALOGS[name].replace("apple", "page").replace("%(num)d", "%d")
    file = polib.pofile(decoded(text, target=target))
    assert [*file[-1].msgstr_plural.values()] == wanted
    count, form = forms_in(str(file))
    assert count == len(wanted) and form(1) == 0 and form(5) == count - 1
    assert file.metadata["Content-Type"].lower().endswith("charset=utf-8")
    assert file.metadata.get("Language") == (target.replace("-", "_") if "xgettext" in name else None)


@pytest.mark.parametrize("name", ["a template of xgettext", "a template of Babel"])
@pytest.mark.parametrize("target", [None, "tlh"])
def test_plural_forms_of_an_unknown_language_are_left_out_and_listed(name: str, target: str | None) -> None:
    text = CATALOGS[name] + '\nmsgid "Open"\nmsgstr ""\n'
    parts = parts_into(text, target)
    (finding,) = [part.finding for part in parts if isinstance(part, Literal) and part.finding]
    assert finding.kind == "untranslated" and "name the output's language" in finding.what
    assert text.splitlines()[finding.line - 1].startswith("msgid ")
    file = polib.pofile(written_with(parts, str))
    assert [each.msgstr for each in file] == ["", "Open"] and set(file[0].msgstr_plural.values()) == {""}


LANGUAGES = {  # value of the field "Language" -> languages of outputs, and languages that are refused
    "de": (["de", "de-AT", None], ["fr", "nl"]),
    "pt_BR": (["pt", "pt-BR", "pt-PT"], ["es"]),
    "de_DE.UTF-8": (["de"], ["en"]),
    "sr@latin": (["sr", "sr-Latn"], ["sr-Cyrl", "hr"]),
    "ca@valencia": (["ca"], ["es"]),
    "zh_TW": (["zh", "zh-Hant"], ["zh-Hans"]),
    "nb": (["no"], ["nn", "da"]),
    "": (["fr"], []),
}


@pytest.mark.parametrize("declared", LANGUAGES)
def test_a_catalog_for_another_language_is_refused_if_a_message_would_be_decoded(declared: str) -> None:
    header = HEADER.replace("Language: de", f"Language: {declared}")
    accepted, refused = LANGUAGES[declared]
    for target in accepted:
        assert decoded(header + 'msgid "Open"\nmsgstr ""\n', target=target).endswith('msgstr "Open"\n')
    for target in refused:
        error = f"line 2: the document is for translations into {re.escape(declared)}, not into {target}; correct"
        with pytest.raises(InputError, match=error):
            parts_into(header + 'msgid "Open"\nmsgstr ""\n', target)
        whole = header + 'msgid "Open"\nmsgstr "Auf"\n'
        assert decoded(whole, target=target) == whole


@pytest.mark.parametrize(
    "catalog",
    [
        HEADER.replace("Language: de", "Language: " + "x" * 1000) + 'msgid "Open"\nmsgstr ""\n',
        'msgid ""\nmsgstr "Plural-Forms: ' + "x" * 1000 + '\\n"\nmsgid "a word"\nmsgid_plural "words"\nmsgstr[0] ""\n',
        'msgid "Open"\n' + 'msgstr ""\n' * 1000,
        HEADER.replace("UTF-8", "x" * 1000),
    ],
)
def test_an_error_shows_only_the_beginning_of_what_is_wrong(catalog: str) -> None:
    content = io.BytesIO(catalog.encode())
    with pytest.raises(InputError) as error, DocumentFile(content, DocumentOptions(), "a.po") as file:
        parts_into("".join(file.lines), "de")
    assert len(str(error.value)) < 250


def test_a_half_translated_plural_is_kept_and_listed() -> None:
    text = CATALOGS["a half translated plural"]
    (finding,) = [part.finding for part in parts_into(text) if isinstance(part, Literal) and part.finding]
    assert finding.kind == "untranslated" and "%d day" in finding.what
    assert decoded(text) == text


FLAGS = {
    '#: a.c:1\nmsgid "Open"': '#: a.c:1\n#, fuzzy\nmsgid "Open"',
    '# A\n#. B\n#: c\n#| msgid "Old"\nmsgid "Open"': '# A\n#. B\n#: c\n#, fuzzy\n#| msgid "Old"\nmsgid "Open"',
    '#, c-format\nmsgctxt "x"\nmsgid "Open"': '#, fuzzy, c-format\nmsgctxt "x"\nmsgid "Open"',
    '#, c-format, fuzzy\nmsgid "Open"': '#, c-format, fuzzy\nmsgid "Open"',
    '#= c-format\nmsgid "Open"': '#, fuzzy\n#= c-format\nmsgid "Open"',  # gettext 1.0
    '#~ msgid "Old"\n#~ msgstr ""\n\nmsgid "Open"': '#~ msgid "Old"\n#~ msgstr ""\n\n#, fuzzy\nmsgid "Open"',
}


@pytest.mark.parametrize(("before", "after"), FLAGS.items())
def test_the_flag_is_where_msgmerge_writes_it(before: str, after: str) -> None:
    assert decoded(f'{before}\nmsgstr ""\n') == f'{after}\nmsgstr "Open"\n'


def test_prompts_are_sentences_without_escapes() -> None:
    prompts = [part.text for part in parts_into(CATALOGS["a usage text of GNU"]) if isinstance(part, Piece)]
    assert prompts[-4:] == ["Print the lines of each file.", "number all lines", "display this help and", "exit"]
    text = 'msgid ""\n"Say \\"one\\" of the many"\n" words. And a well-"\n"known one.\\n"\nmsgstr ""'
    prompts = [part.text for part in parts_into(text) if isinstance(part, Piece)]
    assert prompts == ['Say "one" of the many words.', "And a well-known one."]
    output = decoded(text, lambda prompt: prompt.replace("one", "a\\b"))
    assert output.endswith('msgstr ""\n"Say \\"a\\\\b\\" of the many"\n" words. And a "\n"well-known a\\\\b.\\n"')


def test_a_short_output_has_no_empty_strings_and_spaces() -> None:
    text = 'msgid ""\n"One two three four "\n"five six seven "\n"eight.\\n"\n"Nine.\\n"\nmsgstr ""\n'
    output = decoded(text, lambda prompt: "Eins.")
    assert messages_in(output)[0].targets == ("Eins.\nEins.\n",)


SURVIVING = ["%(name)s", "%1$s", "{0}", "{name}", "%%", "%d", "%s", "%-5.2f", "&", "_", "<b>", "%m"]


@pytest.mark.parametrize("part", SURVIVING)
def test_placeholders_survive_a_model_that_loses_them(part: str) -> None:
    text = f'#, c-format\nmsgid "Open the page {part}{"Close" if part in "&_" else ""} now"\nmsgstr ""\n'
    (message,) = messages_in(decoded(text, lambda prompt: re.sub(r"[^\w\s]|\d|_|m", "", prompt)))
    assert part in message.targets[0]


@pytest.mark.parametrize(
    ("flags", "source", "target"),
    [
        ("c-format", "Usage: %s or %d", "%% Usage: %s or %d 5%%"),
        ("fuzzy, python-format", "Read %(name)s", "%% Read %(name)s 5%%"),
        ("no-c-format", "Usage now", "% Usage now 5%"),
        ("c-format", "Less than 5% of it", "% Less than 5% of it 5%"),  # the source contains such a sign
    ],
)
def test_a_percent_sign_that_a_model_adds_is_no_placeholder(flags: str, source: str, target: str) -> None:
    text = f'# c-format\n#, {flags}\nmsgid "{source}"\nmsgstr ""\n'
    (message,) = messages_in(decoded(text, lambda prompt: f"% {prompt} 5%"))
    assert message.targets == (target,)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('msgid "a"\nmsgstr "b\n', "line 2: not valid"),
        ('msgid "a"\nmsgstr "b"c"\n', "line 2: not valid"),
        ("<<<<<<< HEAD\n", "line 1: not valid"),
        ('"alone"\n', "line 1: not valid"),
        ('msgid "a" msgstr "b"\n', "line 1: not valid"),
        ('\nmsgid "a"\n', "line 2: not a complete message (got msgid)"),
        ('msgid "a"\nmsgid "b"\nmsgstr ""\n', "line 1: not a complete message (got msgid)"),
        ('msgid "a"\nmsgstr ""\nmsgstr "b"\n', "(got msgid, msgstr, msgstr)"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr ""\n', "(got msgid, msgid_plural, msgstr)"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[0] "x"\n', "(got msgid, msgid_plural, msgstr[0], msgst"),
        ('msgid "a"\n# between\nmsgstr "b"\n', "line 1: not a complete message"),
        ('msgctxt "a"\nmsgctxt "b"\nmsgid "c"\nmsgstr ""\n', "line 1: not a complete message (got msgctxt)"),
        ("msgid\nmsgstr\n", "line 1: not a complete message"),
    ],
)  # fmt: skip
def test_a_malformed_catalog_is_refused_with_the_line(lines: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        decoded(lines)


INVALID = [
    *("two", "nplurals=2", "nplurals=0; plural=0;", "nplurals=1000; plural=0;", "nplurals=2; plural=n;"),
    *("nplurals=2; plural=n/0;", "nplurals=2; plural=n!=;", "nplurals=2; plural=__import__('os');"),
    *(f"nplurals=2; plural={expression};" for expression in ["(" * 200, "n?" * 200, "!" * 2000 + "n", "0" * 2000]),
]


@pytest.mark.parametrize("forms", INVALID)
def test_invalid_plural_forms_are_refused_only_if_they_are_needed(forms: str) -> None:
    header = HEADER.replace("nplurals=2; plural=(n != 1);", forms)
    assert decoded(header + 'msgid "a word"\nmsgstr ""\n').count("a word") == 2
    with pytest.raises(InputError, match="line 2: Plural-Forms is invalid"):
        decoded(header + 'msgid "a word"\nmsgid_plural "words"\nmsgstr[0] ""\n')


ENCODINGS = {
    "UTF-8": "utf-8", "utf8": "utf-8", "CHARSET": "utf-8", "ISO-8859-1": "iso8859-1", "iso-8859-15": "iso8859-15",
    "ISO-8859-2": "iso8859-2", "KOI8-R": "koi8-r", "windows-1251": "cp1251", "CP1251": "cp1251", "EUC-JP": "euc_jp",
    "GB2312": "gb2312", "BIG5": "big5", "us-ascii": "ascii", "EUC-KR": "euc_kr",
}  # fmt: skip


@pytest.mark.parametrize(("charset", "encoding"), ENCODINGS.items())
def test_a_catalog_is_read_in_the_encoding_of_its_header(charset: str, encoding: str) -> None:
    header = "#\tAn old comment of a translator\n" * 1000 + HEADER.replace("charset=UTF-8", f"charset={charset}")
    characters = "".join(each for each in "éЯżス你한€" if each.encode(encoding, "ignore"))
    text = f'{header}msgid "Open"\nmsgstr "{characters}"\n\nmsgid "charset=koi8-r"\nmsgstr ""\n'
    for mark, content in [(b"", text.encode(encoding)), (b"\xef\xbb\xbf", text.encode())]:
        with DocumentFile(io.BytesIO(mark + content), DocumentOptions(), "a.po") as file:
            assert "".join(file.lines) == text and file.preamble + file.encode(text) == mark + content


@pytest.mark.parametrize("repeated", ["\n", "\n ", "Content-Type:", " "])
def test_the_header_is_found_in_time_proportional_to_the_size(repeated: str) -> None:
    def seconds(size: int) -> float:
        long = repeated * (size // len(repeated))
        header = f"Plural-Forms: {long}EXPRESSION"
        started = time.process_time()
        charset_in(f'{long}msgid ""\nmsgstr "{long}"\n'.encode())
        with_charset(f'msgid ""\nmsgstr "{long}"\n{long}', "cp1252")
        assert plurals_in(header, 1) is None
        return time.process_time() - started

    assert seconds(120_000) < 8 * seconds(30_000) + 0.5


def test_an_encoding_that_gettext_does_not_define_is_refused() -> None:
    content = HEADER.replace("UTF-8", "iso-2022-jp").encode()
    with pytest.raises(InputError, match="a.po: declares the encoding iso-2022-jp"):
        DocumentFile(io.BytesIO(content), DocumentOptions(), "a.po").__enter__()


@pytest.mark.parametrize("charset", ["ISO-8859-2", "CHARSET"])
@pytest.mark.parametrize(
    ("encoding", "declared"), [("utf-8", "UTF-8"), ("cp1251", "CP1251"), ("iso8859-15", "ISO-8859-15")]
)
def test_the_header_declares_the_encoding_of_the_output(charset: str, encoding: str, declared: str) -> None:
    content = f'{HEADER.replace("UTF-8", charset)}msgid "charset=A"\nmsgstr "charset=B"\n'.encode()
    with DocumentFile(io.BytesIO(content), DocumentOptions(), "a.po", output_encoding=encoding) as file:
        output = file.preamble + file.encode(decoded("".join(file.lines)))
    same = charset == "CHARSET" and encoding == "utf-8"  # a complete catalog is copied
    assert output.decode(encoding) == content.decode().replace(charset, charset if same else declared)


def test_a_character_that_the_encoding_lacks_is_refused() -> None:
    content = HEADER.replace("UTF-8", "ISO-8859-1").encode()
    with DocumentFile(io.BytesIO(content), DocumentOptions(), "a.po") as file:
        assert file.encode("ü") == b"\xfc"
        with pytest.raises(InputError, match="iso-8859-1 cannot write '„'"):
            file.encode("„")

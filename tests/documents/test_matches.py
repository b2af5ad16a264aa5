"""`--use-matches` takes the targets of equal sources as they are, if they would pass the checks of an output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given

from speculative_decoding import InputError, Session
from speculative_decoding.documents.decoding import Rules
from speculative_decoding.documents.findings import MATCH
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import Piece, parts_of, pieces_of
from speculative_decoding.documents.rendering import Renderer
from speculative_decoding.documents.tokens import Block
from speculative_decoding.loading.pair import ModelPair
from tests.documents.commands import Command, document_command, interrupt_after
from tests.documents.decoders import decode_with, written_with
from tests.documents.test_pieces import blocks, examples
from tests.support.subpackages import needs_subpackage


def decoded(
    text: str,
    memory: Mapping[str, str],
    model: Mapping[str, str],
    format: str = "markdown",
    terms: tuple[str, ...] = (),
) -> tuple[str, list[str], list[str]]:
    """Decode a document. Returns it, the prompts, and the findings about matches. model: The output for each prompt."""
    prompts: list[str] = []

    def decode(prompt: str) -> str:
        prompts.append(prompt)
        return model[prompt]

    rules = Rules(match=lambda text: memory.get(text.strip()), terms=terms)
    renderer = Renderer()
    written, found = "", []
    for part in parts_of(text.splitlines(True), DocumentOptions(format=format), "en", None, rules.has_match):
        result = decode_with(part, decode, rules) if isinstance(part, Piece) else None
        written += renderer.add(part, result)
        found += [each.what for each in result.findings if each.kind == MATCH] if result is not None else []
    return written, prompts, found


def test_only_equal_sources_match() -> None:
    memory = {"Open the page.": "Bitte die Seite öffnen!", "Close it.": "Zu."}
    model = {"open the page.": "A.", "Open the page!": "B.", "Open a page.": "C."}
    text = "  Open the page.\n\nopen the page.\n\nOpen the page!\n\nOpen a page. Open the page.\n"
    written, prompts, found = decoded(text, memory, model, "text")
    assert written == "  Bitte die Seite öffnen!\n\nA.\n\nB.\n\nC. Bitte die Seite öffnen!\n"
    assert prompts == ["open the page.", "Open the page!", "Open a page."] and not found


def test_markup_is_placed_in_a_match() -> None:
    memory = {"Open the page now.": "Jetzt die Seite öffnen."}
    written, prompts, found = decoded("Open the **page** now.\n", memory, {"page": "Seite"})
    assert written == "Jetzt die **Seite** öffnen.\n" and prompts == ["page"] and not found
    written, prompts, found = decoded("> *Open the page now.*\n", memory, {})
    assert written == "> *Jetzt die Seite öffnen.*\n" and not prompts
    memory = {"Open PAGE.html now.": "Jetzt PAGE.html öffnen."}
    written, prompts, _ = decoded("Open `PAGE.html` now.\n", memory, {})
    assert written == "Jetzt `PAGE.html` öffnen.\n" and not prompts


@pytest.mark.parametrize(
    ("text", "target", "lacks"),
    [
        ("Open {name} now.", "Jetzt öffnen.", "{name}"),
        ("Open 3 pages now.", "Jetzt Seiten öffnen.", "3"),
        ("Open the **page** now.", "Jetzt das Blatt öffnen.", "**"),
        ("Open [the page](a.html) now.", "Jetzt öffnen.", "[, ](a.html)"),
        ("Open `page` now.", "Jetzt öffnen.", "`page`"),
        ("Open the → page.", "Seite öffnen.", "→"),
        ("Open the Dock now.", "Jetzt die Leiste öffnen.", "Dock"),
    ],
)
def test_an_incomplete_match_is_decoded_and_reported(text: str, target: str, lacks: str) -> None:
    plain = text.replace("**", "").replace("`", "").replace("[", "").replace("](a.html)", "")
    model = dict.fromkeys(["page", "the page"], "nicht da") | {plain: plain.upper().replace("NAME", "name")}
    model |= {each: each for each in ("Open", "now.", "now", "Open the", "Open the Dock now.", "the page.")}
    written, prompts, found = decoded(text + "\n", {plain: target}, model, terms=("Dock",))
    assert plain in prompts and target not in written and found == [lacks]


def test_a_block_of_several_sentences_may_match() -> None:
    whole = "Open the page. Close it."
    model = {"Open the page.": "A.", "Close it.": "B."}
    for text in (f"# {whole}\n", f"- {whole}\n", "Open the page.\nClose it.\n"):
        written, prompts, _ = decoded(text, {whole: "Eins, zwei drei vier."}, model)
        assert written.split()[-4:] == ["Eins,", "zwei", "drei", "vier."] and not prompts
    two = "Open {a}. Close it."
    model |= {"Open {a}.": "A {a}."}
    written, prompts, _ = decoded(two + "\n", {two: "Ganz kurz."}, model)
    assert written == "A {a}. B.\n" and prompts == ["Open {a}.", "Close it."]
    written, prompts, _ = decoded(whole + "\n", {whole: "Alles.", "Close it.": "C."}, model)
    assert written == "Alles.\n" and not prompts
    written, prompts, _ = decoded(whole + "\n", {"Close it.": "C."}, model)
    assert written == "A. C.\n" and prompts == ["Open the page."]


@examples
@given(blocks())
def test_a_memory_of_a_models_outputs_gives_the_models_document(block: Block) -> None:
    parts = [*pieces_of(block, "sentence", "en")]
    assert written_with(parts, str.swapcase, Rules(match=str.swapcase)) == written_with(parts, str.swapcase)


MODEL = ("--model", "t5-web-docs-draft", "--dtype", "float32", "-m", "40", "--prefix", "translate English to German: ")
SOURCES = ["Delete the file.", "Open the page.", "The method returns the value.", "Close the {name} window."]


@pytest.fixture
def document(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return `document`, which runs in a folder with a text and memories."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("\n".join(SOURCES) + "\n")
    pairs = [(SOURCES[0], "Alt."), (SOURCES[0], "Weg mit der Datei!"), (SOURCES[1], "Seite auf!"), (SOURCES[3], "Zu.")]
    Path("m.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return document_command(capfd)


@needs_subpackage("memory")
def test_matches_are_counted_and_marked_as_lossy(document: Command) -> None:
    status, plain, said = document("a.txt", *MODEL, "--memory", "m.tsv", "--stats-json", "plain.json")
    assert status == 0 and "LOSSY" not in said and "Weg mit" not in plain
    for more in ((), ("--baseline",), ("--num-beams", "2")):
        arguments = ("a.txt", *MODEL, "--memory", "m.tsv", "--use-matches", "--stats-json", "stats.json", *more)
        status, out, said = document(*arguments)
        assert status == 0 and "\nLOSSY: 2 segments from the memory, not decoded\n" in said, said
        assert "\na.txt:4: match: {name}" in said
        lines = out.splitlines()
        assert lines[:2] == ["Weg mit der Datei!", "Seite auf!"] and "{name}" in lines[3]
        assert more[:1] == ("--num-beams",) or lines[2:] == plain.splitlines()[2:]
    first, second = (json.loads(Path(f"{name}.json").read_text()) for name in ("plain", "stats"))
    assert (first["matches"], first["lossless"]) == (0, True)
    assert (second["matches"], second["lossless"], second["pieces"]) == (2, False, 4)
    assert second["prompts"] == first["prompts"] - 2


@needs_subpackage("memory")
def test_an_interrupted_run_is_continued(document: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("a.txt", "-o", "b.txt", *MODEL, "--memory", "m.tsv", "--use-matches")
    _, whole, _ = document("a.txt", *MODEL, "--memory", "m.tsv", "--use-matches")
    appended = interrupt_after(3, monkeypatch)
    assert document(*arguments)[0] == 130
    status, _, said = document(*arguments[:-1])
    assert status == 2 and "(use_matches was true, is null); give the same settings" in said
    status, _, said = document(*arguments)
    assert status == 0 and "\nLOSSY: 2 segments from the memory, not decoded\n" in said
    assert Path("b.txt").read_text() == whole and len(appended) == len(set(appended)) == 4


@needs_subpackage("memory")
def test_a_written_memory_contains_the_matches(document: Command) -> None:
    arguments = ("a.txt", "-o", "b.txt", *MODEL, "--memory", "m.tsv", "--use-matches", "--write-memory", "new.tmx")
    assert document(*arguments)[0] == 0
    assert "<seg>Weg mit der Datei!</seg>" in Path("new.tmx").read_text()
    status, _, said = document("a.txt", "-o", "c.txt", *MODEL, "--memory", "new.tmx", "--use-matches")
    assert status == 0 and "LOSSY: 4 segments" in said and Path("c.txt").read_text() == Path("b.txt").read_text()


REFUSED = {
    ("--use-matches",): "--use-matches: has no effect without --memory; give both, or leave it out",
    ("--use-matches", "--memory", "m.tsv", "--verify"): "--verify: unknown option",
    ("--use-matches", "--memory", "fr.tmx"): "--use-matches: the memory is for en and fr, not for en and de; load "
    "another memory, or leave it out",
    ("--memory", "m.tsv", "--baseline"): "--memory: only applies to --drafter",
}
TMX = """<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>One word.</seg></tuv>
<tuv xml:lang="fr"><seg>Un mot.</seg></tuv></tu></body></tmx>"""


@needs_subpackage("memory")
@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_bad_arguments_are_one_line_with_status_2_before_weights_load(
    arguments: tuple[str, ...], document: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelPair, "load_weights", None)
    Path("fr.tmx").write_text(TMX)
    status, out, said = document("a.txt", *MODEL, *arguments)
    (line,) = [line for line in said.splitlines() if not line.startswith(("target ", "memory of "))]
    assert status == 2 and not out and line.startswith(f"speculative-decoding document: error: {REFUSED[arguments]}"), (
        line
    )


@needs_subpackage("memory")
def test_a_session_uses_the_matches_of_its_memory(new_session: Callable[..., Session]) -> None:
    from speculative_decoding.memory import TranslationMemory

    memory = TranslationMemory.from_pairs([("Open the page.", "Seite auf!"), ("Close it.", "Zu.")])
    session = new_session(memory=memory)
    options = {"prefix": "translate English to German: ", "max_tokens": 20}
    text = "Open the page. Delete the file."
    decoded = session.document(text, use_matches=True, **options)
    assert decoded.text.startswith("Seite auf! ") and (decoded.matches, decoded.pieces) == (1, 2)
    assert not decoded.stats.lossless
    parts = [part for part in session.document_parts(text, use_matches=True, **options) if part.source]
    assert [part.from_memory for part in parts] == [True, False]
    plain = session.document(text, **options)
    assert plain.matches == 0 and plain.stats.lossless and "Seite auf!" not in plain.text
    with pytest.raises(InputError, match="use_matches: has no effect without a translation memory"):
        new_session().document(text, use_matches=True)
    with pytest.raises(InputError, match="use_matches: must be"):
        session.document(text, use_matches="yes")  # type: ignore[arg-type]
    memory.languages = ("en", "fr")
    with pytest.raises(InputError, match="the memory is for en and fr, not for en and de"):
        session.document(text, use_matches=True, **options)

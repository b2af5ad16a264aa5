"""The view of a draft, with and without color: the whole text and the rejected tokens. Traces of runs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from speculative_decoding import Event, Session
from speculative_decoding.cli import main as main_command
from speculative_decoding.cli.runner import watch
from speculative_decoding.cli.views import DraftView, has_color, visible
from speculative_decoding.decoding.results import Round
from speculative_decoding.drafters import base
from speculative_decoding.loading.tokenizer import Tokenizer
from speculative_decoding.models.base import EncoderDecoder
from tests.integration.test_streaming import TEXT, Cuts, Writer, bundled
from tests.support.tiny import DRAFTERS, SOURCES, Scripted, noisy_copy, run, tiny_model, tokens_of
from tests.support.together import Letters
from tests.unit.loading.test_tokenizer import Bytes

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
GREEN, RED, BLUE = "color(2)", "strike color(1)", "color(12)"  # in ANSI


def screen(*, color: bool, width: int = 80) -> Console:
    options = {"force_terminal": True, "color_system": "standard"} if color else {}
    return Console(
        file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False, soft_wrap=True, **options
    )  # type: ignore[arg-type]


def show(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str,
    console: Console,
    *,
    rounds: bool = False,
    **options: object,
) -> tuple[str, str, list[Round]]:
    """Return (output, text, rounds)."""
    events: list[Round] = []

    draft = options.pop("draft_model", None)
    started = Session(model, tokenizer, draft).rounds(prompt, on_round=events.append, **options)  # type: ignore[arg-type]
    found = watch(started, [DraftView(console, tokenizer, rounds=rounds)])
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), found.text, events


def pieces(shown: str) -> dict[str, str]:
    """Return the text in each style, joined."""
    found: dict[str, str] = {}
    text = Text.from_ansi(shown)
    for span in text.spans:
        style = str(span.style)
        found[style] = found.get(style, "") + text.plain[span.start : span.end]
    return found


def rejected_text(tokenizer: Tokenizer, events: Sequence[Round]) -> str:
    """Compute the text that each rejected token adds to all earlier tokens."""
    tokens: list[int] = []
    text = ""
    for event in events:
        if len(event.tokens) > event.accepted:
            before = tokens + event.tokens[: event.accepted]
            for token in event.proposed[event.accepted :]:
                piece = tokenizer.decode([*before, token])[len(tokenizer.decode(before)) :]
                text += piece or str(tokenizer.vocabulary.pieces.get(token, token))
                before = [*before, token]
        tokens += event.tokens
    return text


@pytest.mark.parametrize("drafter", ["none", "auto", "every third wrong", "end inside"])
def test_text_without_rejected_tokens_is_the_output(drafter: str) -> None:
    for source, color in zip(SOURCES, (True, False), strict=False):
        letters = Letters().decode(source)
        baseline = tokens_of(run(TARGET, Letters().encode(letters), max_tokens=20))
        made = DRAFTERS[drafter](TARGET, DRAFT, baseline)
        shown, text, events = show(
            TARGET, Letters(), letters, screen(color=color), drafter=made, max_tokens=20, num_draft_tokens=4
        )
        if color:
            found = pieces(shown)
            assert found.get(RED, "") == rejected_text(Letters(), events)
            accepted = "".join(Letters().decode(event.tokens[: event.accepted]) for event in events)
            assert found.get(GREEN, "") == accepted
            assert len(found.get(GREEN, "")) + len(found.get(BLUE, "")) == len(text)
        else:
            rejected = "".join(re.findall(r"\[-(.*?)-\]", shown))
            assert rejected == rejected_text(Letters(), events)
            assert re.sub(r"\[-.*?-\]|\{\+|\+\}|\n$", "", shown) == text


@pytest.mark.parametrize("tokenizer", [Bytes, bundled], ids=["bytes", "bundled"])
def test_no_part_of_the_view_splits_a_character(tokenizer) -> None:  # type: ignore[no-untyped-def]
    tokenizer = tokenizer()
    ids = tokenizer.encode(TEXT)
    model = Writer(ids, max(ids) + 1)
    for sizes in ((1,), (2,), (3, 1), (64,)):
        shown, text, _ = show(
            model, tokenizer, "x", screen(color=False), drafter=Cuts(ids, sizes), num_draft_tokens=64, max_tokens=200
        )
        assert re.sub(r"\{\+|\+\}|\n$", "", shown) == text == tokenizer.decode(ids)


def test_a_rejected_word_keeps_its_space_and_a_rejected_end_token_shows_its_name() -> None:
    tokenizer = bundled()
    ids = tokenizer.encode("Die Methode gibt den Wert.")
    wrong = tokenizer.encode("Das")[0]
    script = Scripted(ids, lambda i, token: {1: wrong, 3: 1}.get(i, token))
    shown, *_ = show(Writer(ids, 8192), tokenizer, "x", screen(color=False), drafter=script, num_draft_tokens=2)
    assert shown == "Die[- Das-]{+ Methode+} gibt[-</s>-]{+ den+} Wert.\n"


@pytest.mark.parametrize(("color", "drafter"), [(True, "model"), (False, "model"), (False, "none")])
def test_lines_of_rounds_add_up_to_the_text(color: bool, drafter: str) -> None:
    options: dict[str, object] = {"draft_model": DRAFT, "num_draft_tokens": 5} if drafter == "model" else {}
    view = {"console": screen(color=color), "rounds": True}
    shown, text, events = show(TARGET, Letters(), "abcde", drafter=drafter, max_tokens=20, **view, **options)  # type: ignore[arg-type]
    lines = Text.from_ansi(shown).plain.splitlines()
    assert len(lines) == len(events)
    for number, (line, event) in enumerate(zip(lines, events, strict=True), start=1):
        drafted = f"{event.accepted} of {event.drafted} accepted, model" if event.drafted else "no draft"
        assert line.startswith(f"round {number}: {drafted}, ")
    if not color:
        bare = [re.sub(r"\[-.*?-\]|\{\+|\+\}", "", line.split("ms", 1)[1].split(": ", 1)[1]) for line in lines]
        assert "".join(bare) == text


def test_no_color_pipes_and_dumb_terminals_get_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert has_color(Console(file=io.StringIO(), force_terminal=True))
    assert not has_color(Console(file=io.StringIO()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_color(Console(file=io.StringIO(), force_terminal=True))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not has_color(Console(file=io.StringIO(), force_terminal=True))


def test_the_legend_uses_the_marks_it_explains() -> None:
    console = screen(color=False)
    DraftView(console, Letters()).legend()
    assert console.file.getvalue() == "accepted [-rejected-] {+correction or bonus+}\n"  # type: ignore[attr-defined]
    console = screen(color=True)
    DraftView(console, Letters()).legend()
    found = pieces(console.file.getvalue())  # type: ignore[attr-defined]
    assert found == {GREEN: "accepted", RED: "rejected", BLUE: "correction or bonus"}


def test_control_characters_are_not_executed() -> None:
    assert visible("a\x1b[2Jb\x07\x7f\x9b\n\tü🎉") == "a\u241b[2Jb\u2407\u2421\ufffd\n\tü🎉"


def test_text_is_not_interpreted_as_markup() -> None:
    tokenizer = Bytes()
    ids = tokenizer.encode("[bold]x[/bold] :smile: [red]")
    shown, text, _ = show(Writer(ids, 300), tokenizer, "x", screen(color=True), drafter=Cuts(ids, (4,)))
    assert Text.from_ansi(shown).plain.rstrip("\n") == text == "[bold]x[/bold] :smile: [red]"


@pytest.mark.parametrize("kind", [base.MODEL, base.COPY, base.TEXT, base.MEMORY, ""])
def test_a_line_of_a_round_names_the_source_of_its_draft(kind: str) -> None:
    console = screen(color=False)
    view = DraftView(console, Letters(), rounds=True)
    view(Event(None, Round([5, 6], [5, 7], 1, seconds=0.002, kind=kind), ["c", "d"]))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    source = f", {kind}" if kind else ""
    assert console.file.getvalue().startswith(f"round 1: 1 of 2 accepted{source}, 2.0 ms: c[-")


# Traces.


GERMAN = "translate English to German: The method returns the value of the property."
OLD = "Die Methode gibt den Inhalt der Eigenschaft zurück."


def test_a_trace_adds_up_to_the_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, stats_file = tmp_path / "run.jsonl", tmp_path / "stats.json"
    files = ["--trace", str(trace), "--stats-json", str(stats_file)]
    assert main_command.main(["--prompt", GERMAN, "--drafter", "model", "--num-draft", "5", *files]) == 0
    out, _ = capsys.readouterr()
    lines = [json.loads(each) for each in trace.read_text().splitlines()]
    stats = json.loads(stats_file.read_text())
    assert len(lines) == stats["target_calls"] == 2
    assert "".join(each["text"] for each in lines) + "\n" == out
    for name, key in (("accepted", "accepted_tokens"), ("drafted", "drafted_tokens")):
        assert sum(each[name] for each in lines) == stats[key]
    for name in ("draft_seconds", "verify_seconds"):
        assert sum(each[name] for each in lines) == pytest.approx(stats[name])
    position = 0
    for number, each in enumerate(lines):
        assert (each["request"], each["round"], each["position"], each["kind"]) == (0, number, position, "model")
        assert each["proposed"][: each["accepted"]] == each["tokens"][: each["accepted"]]
        assert 0 < each["draft_seconds"] + each["verify_seconds"] < each["seconds"]
        position += len(each["tokens"])
    assert lines[0]["encode_seconds"] == stats["encode_seconds"] and "encode_seconds" not in lines[1]
    assert lines[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("drafter", ["text", "ngram", "auto"])
def test_drafts_of_a_given_text_are_named_in_each_round_and_counted_by_kind(
    drafter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, stats_file, draft = tmp_path / "run.jsonl", tmp_path / "stats.json", tmp_path / "draft.txt"
    draft.write_text(OLD)
    files = ["--trace", str(trace), "--stats-json", str(stats_file), "--draft-text-file", str(draft)]
    shown = ["--show-draft", "rounds", "--verify"]
    assert main_command.main(["--prompt", GERMAN, "--drafter", drafter, *files, *shown]) == 0
    _, err = capsys.readouterr()
    lines = [json.loads(each) for each in trace.read_text().splitlines()]
    stats = json.loads(stats_file.read_text())
    assert "verify: identical" in err and OLD not in stats_file.read_text()
    for number, each in enumerate(lines, 1):
        expected = (
            f"{each['accepted']} of {each['drafted']} accepted, {each['kind']}" if each["drafted"] else "no draft"
        )
        assert f"\nround {number}: {expected}, " in err
    for name in ("drafted", "accepted"):
        found = {kind: sum(each[name] for each in lines if each["kind"] == kind) for kind in stats["drafted_by_kind"]}
        assert found == stats[f"{name}_by_kind"] and sum(found.values()) == stats[f"{name}_tokens"]
    accepted, drafted = stats["accepted_by_kind"]["text"], stats["drafted_by_kind"]["text"]
    assert accepted > 3 and f"text {accepted} of {drafted}" in err

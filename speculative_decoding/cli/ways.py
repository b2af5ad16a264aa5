"""The ways to decode a prompt: speculatively, with copies, the target alone, the draft alone; and who watches each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from ..drafters import DraftModel
from ..generate import GenerationResponse, stream_generate
from ..models.base import EncoderDecoder
from ..session import Session
from .views import DraftView
from .watching import OnRound, PlainText, Run, Watcher, one_screen, watch

SPECULATIVE, NGRAM, TARGET, DRAFTER = "speculative", "ngram", "target", "drafter"
WAYS = (SPECULATIVE, NGRAM, TARGET, DRAFTER)  # the first of those asked for is the program's answer


def has_drafts(session: Session) -> bool:
    """Whether the session itself decodes speculatively."""
    return session.drafter != "none" and (session.drafter is not None or session.draft_model is not None)


def available(session: Session) -> list[str]:
    """Which of `WAYS` the session's models allow."""
    ways = [SPECULATIVE] if has_drafts(session) else []
    ways += [NGRAM, TARGET]
    return ways if session.draft_model is None else [*ways, DRAFTER]


def draft_of(session: Session) -> EncoderDecoder:
    assert session.draft_model is not None
    return session.draft_model.model if isinstance(session.draft_model, DraftModel) else session.draft_model


def start(
    way: str, session: Session, prompt: str, request: Mapping[str, Any], on_round: OnRound | None = None
) -> Iterator[GenerationResponse]:
    """The stream of that way. request: the options of `stream_generate`."""
    if way == DRAFTER:
        return stream_generate(draft_of(session), session.tokenizer, prompt, on_round=on_round, **request)
    own: dict[str, Any] = {TARGET: {"drafter": "none"}, NGRAM: {"drafter": "ngram"}}.get(way, {})
    return session.stream(prompt, on_round=on_round, **{**request, **own})


@dataclass(frozen=True)
class Audience:
    """Who watches which way. Only the text of the answer goes to standard output.

    console: of standard error. show_draft: None, "text" or "rounds". traces: watch the answer.
    """

    console: Console
    show_draft: str | None = None
    traces: Sequence[Watcher] = ()

    def of(self, way: str, session: Session, *, is_answer: bool) -> list[Watcher]:
        watchers: list[Watcher] = []
        shows_draft = self.show_draft is not None and (is_answer or way in (SPECULATIVE, NGRAM))
        if shows_draft:
            watchers.append(DraftView(self.console, session.tokenizer, rounds=self.show_draft == "rounds"))
        if is_answer and not (shows_draft and one_screen()):
            watchers.append(PlainText())
        if not is_answer and not shows_draft:
            watchers.append(PlainText(to_errors=True))
        return [*watchers, *self.traces] if is_answer else watchers

    def legend(self, session: Session) -> None:
        if self.show_draft is not None:
            DraftView(self.console, session.tokenizer).legend()


def run_ways(
    ways: Sequence[str],
    session: Session,
    prompt: str,
    request: Mapping[str, Any],
    audience: Audience,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Run]:
    """Decode in each of the ways, the answer last; with their names if there are several."""
    runs: dict[str, Run] = {}
    for way in reversed(ways):
        if len(ways) > 1:
            audience.console.print(f"{way}:", style="bold")

        def begin(on_round: OnRound, way: str = way) -> Iterator[GenerationResponse]:
            return start(way, session, prompt, request, on_round)

        runs[way] = watch(begin, audience.of(way, session, is_answer=way == ways[0]), is_stopped)
        if is_stopped():
            break
    return {way: runs[way] for way in (TARGET, DRAFTER, NGRAM, SPECULATIVE) if way in runs}

"""The ways to decode a prompt: speculatively, with copies, the target alone, the draft alone; and who watches each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from ..decoding.results import GenerationResponse
from ..decoding.ways import PLAIN, Way
from ..drafters import DraftModel
from ..session import Session
from .views import DraftView
from .watching import OnRound, PlainText, Run, Watcher, one_screen, watch

SPECULATIVE, NGRAM, TARGET, DRAFTER = "speculative", "ngram", "target", "drafter"
ORDER = (SPECULATIVE, NGRAM, TARGET, DRAFTER)  # the first of those that are on is the program's answer


def available(session: Session) -> dict[str, Way]:
    """Which ways the session's models allow, by name, in `ORDER`."""
    own = session.options.drafter or ("none" if session.draft_model is None else "model")
    num_draft = session.options.num_draft
    drafters = {SPECULATIVE: own, NGRAM: "ngram"} if own != "none" else {NGRAM: "ngram"}
    ways = {name: Way(name, drafter, num_draft) if num_draft else PLAIN for name, drafter in drafters.items()}
    ways[TARGET] = PLAIN
    return ways if session.draft_model is None else {**ways, DRAFTER: PLAIN}


def draft_alone(session: Session) -> Session:
    """A session whose target is the draft model."""
    draft = session.draft_model
    assert draft is not None
    model = draft.model if isinstance(draft, DraftModel) else draft
    return Session(model, session.tokenizer, options=replace(session.options, drafter="none"))


def start(
    name: str, session: Session, prompt: str, *, on_round: OnRound | None = None, timed: bool = False
) -> Iterator[GenerationResponse]:
    """The stream of that way."""
    way = available(session)[name]
    decoder = draft_alone(session) if name == DRAFTER else session
    return decoder.stream(prompt, on_round=on_round, timed=timed, **way.keywords)


@dataclass(frozen=True)
class Audience:
    """Who watches which way. Only the text of the answer goes to standard output.

    console: of standard error. show_draft: None, "text" or "rounds". traces: watch the answer.
    """

    console: Console
    show_draft: str | None = None
    traces: Sequence[Watcher] = ()

    def of(self, name: str, session: Session, *, is_answer: bool) -> list[Watcher]:
        watchers: list[Watcher] = []
        shows_draft = self.shows_draft(name, is_answer=is_answer)
        if shows_draft:
            watchers.append(DraftView(self.console, session.tokenizer, rounds=self.show_draft == "rounds"))
        if is_answer and not (shows_draft and one_screen()):
            watchers.append(PlainText())
        if not is_answer and not shows_draft:
            watchers.append(PlainText(to_errors=True))
        return [*watchers, *self.traces] if is_answer else watchers

    def shows_draft(self, name: str, *, is_answer: bool) -> bool:
        return self.show_draft is not None and (is_answer or name in (SPECULATIVE, NGRAM))

    def legend(self, session: Session) -> None:
        if self.show_draft is not None:
            DraftView(self.console, session.tokenizer).legend()


def run_ways(
    names: Sequence[str],
    session: Session,
    prompt: str,
    audience: Audience,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Run]:
    """Decode in each of the ways, the answer last; with their names if there are several."""
    runs: dict[str, Run] = {}
    for name in reversed(names):
        is_answer = name == names[0]
        timed = audience.shows_draft(name, is_answer=is_answer) or (is_answer and bool(audience.traces))
        if len(names) > 1:
            audience.console.print(f"{name}:", style="bold")

        def begin(on_round: OnRound, name: str = name, timed: bool = timed) -> Iterator[GenerationResponse]:
            return start(name, session, prompt, on_round=on_round, timed=timed)

        runs[name] = watch(begin, audience.of(name, session, is_answer=is_answer), is_stopped)
        if is_stopped():
            break
    return {name: runs[name] for name in (TARGET, DRAFTER, NGRAM, SPECULATIVE) if name in runs}

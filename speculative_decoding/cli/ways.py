"""The ways to decode a prompt: speculatively, with copies of the text as a draft, the target alone, the draft alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..decoding.results import GenerationResponse
from ..decoding.ways import PLAIN, Way
from ..drafters import DraftHead, DraftModel, usual_drafter
from ..models.base import EncoderDecoder
from ..session import Session
from .watching import OnRound

SPECULATIVE, NGRAM, TARGET, DRAFTER = "speculative", "ngram", "target", "drafter"
ORDER = (SPECULATIVE, NGRAM, TARGET, DRAFTER)  # the first of those that are on is the program's answer
WARM_UP_TOKENS = 4


def available(session: Session) -> dict[str, Way]:
    """Which ways the session's models allow, by name, in `ORDER`."""
    own = session.options.drafter or usual_drafter(session.draft_model)
    num_draft = session.options.num_draft
    drafters = {SPECULATIVE: own, NGRAM: "ngram"} if own != "none" else {NGRAM: "ngram"}
    ways = {name: Way(name, drafter, num_draft) if num_draft else PLAIN for name, drafter in drafters.items()}
    ways[TARGET] = PLAIN
    is_alone = session.draft_model is None or isinstance(session.draft_model, DraftHead)  # a head cannot decode alone
    return ways if is_alone else {**ways, DRAFTER: PLAIN}


def usual(session: Session) -> list[str]:
    """Those that a comparison is of; copies are for who wants them. The first is decoded with where nobody compares."""
    return [name for name in available(session) if name != NGRAM]


def start(
    on_round: OnRound | None, name: str, session: Session, prompt: str, *, timed: bool = False
) -> Iterator[GenerationResponse]:
    """The stream of that way."""
    way = available(session)[name]
    if name == DRAFTER:
        draft = session.draft_model
        model = draft.model if isinstance(draft, DraftModel) else draft
        assert isinstance(model, EncoderDecoder)
        session = Session(model, session.tokenizer, options=replace(session.options, drafter="none"))
    return session.stream(prompt, on_round=on_round, timed=timed, **way.keywords)


def warm_up(session: Session, prompt: str) -> None:
    """The first passes of a process are slower than the others; none of the ways is to pay for it. No store learns."""
    short = replace(session, options=replace(session.options, drafter=None, max_tokens=WARM_UP_TOKENS))
    for name in reversed(usual(short)):
        list(start(None, name, short, prompt))

"""Record how often drafts for a target are right: `python -m benchmarks.record FILE`, which --acceptance replays."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from speculative_decoding import load
from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.parser import Parser, require_writable
from speculative_decoding.cli.verify import PROMPTS, read_prompt_files
from speculative_decoding.drafters import (
    BatchDrafter,
    Draft,
    DraftHead,
    DraftModel,
    Row,
    Wanted,
    choose_drafter,
    new_ngram,
)
from speculative_decoding.drafters.base import COPY, MODEL, Verified, token_rows
from speculative_decoding.drafters.model import shared
from speculative_decoding.errors import InputError
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.session import Session

from .acceptance import KINDS, LONGEST, Recorded, write
from .options import COUNT

MOST = 100  # tokens of an output
BUNDLED = "t5-web-docs", ["t5-web-docs-head", "t5-web-docs-draft"]


class Recorder(BatchDrafter):
    """Asks several drafters for a draft in front of each token, and hands on none; for one row.

    drafts: by kind. proposed: by kind, of the last request: the ids drafted in front of each token; "copy" has them
        where the drafter auto would copy. What copies have been worth is learned from request to request.
    """

    def __init__(self, target: EncoderDecoder, drafts: Mapping[str, DraftHead | DraftModel]) -> None:
        self._target, self._drafts, self._ngram = target, drafts, new_ngram(target, 16, 1)
        self.proposed: dict[str, list[list[int]]] = {}

    def share(self, cache: DecoderCache) -> None:
        """A new request, and new drafters, as a session makes them."""
        alone, auto = GenerationOptions(drafter="model"), GenerationOptions(drafter="auto")
        own = {kind: choose_drafter(alone, self._target, draft) for kind, draft in self._drafts.items()}
        some_draft = next(iter(self._drafts.values()))
        self._drafters = {**own, "copy": choose_drafter(auto, self._target, some_draft, self._ngram)}
        self.proposed = {kind: [] for kind in self._drafters}
        for drafter in self._drafters.values():
            drafter.share(cache)

    def begin(self, row: Row) -> None:
        for drafter in self._drafters.values():
            drafter.begin(row)

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        (one,) = wanted
        for kind, drafter in self._drafters.items():
            ids: list[int] = []
            if drafter.kind(one.row) == (COPY if kind == "copy" else MODEL):
                draft = drafter.propose([replace(one, kind=drafter.kind(one.row))], slots)
                ids = token_rows(draft.tokens)[0][: draft.length(0)]
            self.proposed[kind].append(ids)
        return Draft.empty(slots)

    def observe(self, rows: Sequence[Row], verified: Verified) -> None:
        for drafter in self._drafters.values():
            drafter.observe(rows, verified)

    def end(self, row: Row) -> None:
        for drafter in self._drafters.values():
            drafter.end(row)

    def select(self, slots: Sequence[int]) -> None:
        raise NotImplementedError("for one row")


def record(session: Session, recorder: Recorder, prompts: Sequence[str]) -> Recorded:
    """Of the outputs for these prompts, `MOST` tokens each at most."""
    found: dict[str, list[list[int]]] = {kind: [] for kind in KINDS}
    for prompt in prompts:
        output = session.generate(prompt, drafter=recorder, num_draft=LONGEST, max_tokens=MOST).tokens
        for kind, drafts in recorder.proposed.items():
            drafts += [[]] * (len(output) - len(drafts))  # none in front of the last token that may come
            found[kind].append([shared(draft, output[i:]) for i, draft in enumerate(drafts)])
        found["found"].append([len(draft) for draft in recorder.proposed["copy"]])
    return {kind: outputs for kind, outputs in found.items() if outputs}


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.record", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="is written")
    parser.add_argument(
        "prompts", nargs="*", type=Path, help="a task each, with a prompt a line (default: the bundled)"
    )
    parser.add_argument("--model", default=BUNDLED[0], metavar="NAME", help="the target")
    parser.add_argument(
        "--drafts", nargs="+", default=BUNDLED[1], metavar="NAME", help="a draft head, a model, or both"
    )
    parser.add_argument("--limit", type=COUNT, default=40, metavar="N", help="prompts of each task")
    chosen = parser.parse_args(argv)
    return run("benchmarks.record", lambda: recorded(chosen))


def recorded(chosen: argparse.Namespace) -> int:
    require_writable("file", chosen.file)
    sessions = [load(chosen.model, draft=draft) for draft in chosen.drafts]
    drafts: dict[str, DraftHead | DraftModel] = {}
    for session in sessions:
        draft = session.draft_model
        assert draft is not None
        kind = "head" if isinstance(draft, DraftHead) else "model"
        if kind in drafts:
            raise InputError(f"--drafts {' '.join(chosen.drafts)}: has two of a kind; name a draft head and a model")
        drafts[kind] = DraftModel(draft) if isinstance(draft, EncoderDecoder) else draft
    tasks = {}
    for path in chosen.prompts or sorted(PROMPTS.glob("*.txt"), reverse=True):
        say(f"recording {path}")
        prompts = [prompt for prompt in read_prompt_files([path]) if prompt.strip()][: chosen.limit]
        tasks[path.stem] = record(sessions[0], Recorder(sessions[0].model, drafts), prompts)
    about = (
        f"{chosen.model} with {', '.join(chosen.drafts)}: how many tokens of a draft in front of each token are right"
    )
    write(chosen.file, tasks, about)
    return 0


if __name__ == "__main__":
    sys.exit(main())

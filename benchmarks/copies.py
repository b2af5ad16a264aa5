"""Compare the texts from which drafts can be copied: `python -m benchmarks.copies [FILE ...]`.

The target's outputs are decoded once, and each n-gram drafter is then replayed on them. At temperature 0, the output
does not depend on drafts, so a round accepts the longest prefix of its draft that agrees with the output, and adds one
token. `us` is the drafter's CPU time per token, in microseconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from speculative_decoding import load
from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.parser import Parser
from speculative_decoding.drafters import NgramDrafter, TextStore
from speculative_decoding.drafters.base import num_shared
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.session import Session

from .options import COUNT
from .ours import Ids
from .tasks import tasks_from_files

START = 0  # T5's decoder start token
MAX_TOKENS = 100


@dataclass(frozen=True)
class RecordedRequest:
    source: Sequence[int]
    output: Sequence[int]


@dataclass
class Replay:
    """Totals over requests."""

    calls: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_call(self) -> float:
        return self.tokens / self.calls


def replay(
    drafter: NgramDrafter, requests: Iterable[RecordedRequest], num_draft: int, max_tokens: int = MAX_TOKENS
) -> Replay:
    """Replay the rounds that greedy decoding would run with this drafter."""
    totals = Replay()
    for request in requests:
        started = time.thread_time()
        drafter.begin(request.source)
        tokens = [START]
        while rest := request.output[len(tokens) - 1 :]:
            draft = drafter.propose(tokens, min(num_draft, max_tokens - len(tokens)))
            accepted = num_shared(draft, rest)
            tokens += rest[: accepted + 1]
            totals.calls += 1
            totals.tokens += len(rest[: accepted + 1])
            totals.drafted += len(draft)
            totals.accepted += accepted
        drafter.end(tokens)
        totals.seconds += time.thread_time() - started
    return totals


def variants(pieces: Mapping[int, str]) -> dict[str, Callable[[], NgramDrafter]]:
    return {
        "source and output": lambda: NgramDrafter(pieces=pieces),
        "source only": lambda: NgramDrafter(pieces=pieces, search_output=False),
        "output only": lambda: NgramDrafter(search_input=False),
        "output only, n <= 2, always (HF)": lambda: NgramDrafter(search_input=False, max_ngram_size=2, min_chance=0.0),
        "source and output, always": lambda: NgramDrafter(pieces=pieces, min_chance=0.0),
        "source and output, ids only": lambda: NgramDrafter(),
        "with a store of texts": lambda: NgramDrafter(pieces=pieces, store=TextStore()),
    }


def measure(paths: Sequence[Path], limit: int, lengths: Sequence[int]) -> int:
    pair = load(BUNDLED / "t5-web-docs", draft=BUNDLED / "t5-web-docs-head")
    for task in tasks_from_files(paths, limit, MAX_TOKENS, pair.model, pair.tokenizer):
        say(f"decoding {task.name}")
        session = Session(pair.model, Ids(task.sources), pair.draft_model, slots=8)
        found = session.batch([str(i) for i in range(len(task.sources))], max_tokens=MAX_TOKENS, allow_long_prompt=True)
        outputs = {each.index: each.result.tokens for each in found if each.result is not None}
        requests = [RecordedRequest(source, outputs[i]) for i, source in enumerate(task.sources)]
        print(f"\n### {task.name}: {len(requests)} prompts\n")
        print("| copies from | draft | tokens/target call | accepted | us |\n|---|---|---|---|---|")
        for name, make in variants(pair.tokenizer.vocabulary.pieces).items():
            for length in lengths:
                drafter = make()
                once = replay(drafter, requests, length)
                rows = {name: once}
                if "store" in name:
                    rows |= {f"{name}, which contains all of them": replay(drafter, requests, length)}
                for row, totals in rows.items():
                    accepted = totals.accepted / max(1, totals.drafted)
                    us = 1e6 * totals.seconds / totals.tokens
                    print(
                        f"| {row} | {length} | {totals.tokens_per_call:.2f} | {accepted:.0%} | {us:.1f} |", flush=True
                    )
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.copies", description=__doc__)
    files = "files with one prompt per line (default: the bundled files)"
    parser.add_argument("prompts", nargs="*", type=Path, help=files)
    parser.add_argument("--limit", type=COUNT, default=100, metavar="N", help="prompts per file (default: 100)")
    parser.add_argument(
        "--num-draft", type=COUNT, nargs="+", default=[8], metavar="N", help="draft length (default: 8)"
    )
    chosen = parser.parse_args(argv)
    return run("benchmarks.copies", lambda: measure(chosen.prompts, chosen.limit, chosen.num_draft))


if __name__ == "__main__":
    sys.exit(main())

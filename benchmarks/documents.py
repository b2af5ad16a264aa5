"""Measures the cost of decoding sentences as a document: `python -m benchmarks.documents`.

Decodes the same sentences as one document and as one batch, in turns, with the same models, drafts, slots and limits.
Sentences that a document decodes again in parts are omitted, unless `--with-losses` is given.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from speculative_decoding import load
from speculative_decoding.cli.common import PROMPTS, read_prompts, run
from speculative_decoding.cli.parser import Parser
from speculative_decoding.errors import InputError
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.sampling.keywords import OptionKeywords
from speculative_decoding.session import Session

from .options import COUNT

PREFIX = "translate English to German: "
LIMIT: OptionKeywords = {"max_tokens": 100}  # for both; by default, the limit in a document depends on the sentence


def sentences_of(session: Session, limit: int, *, with_losses: bool) -> list[str]:
    """Return sentences of the bundled prompts.

    with_losses: Whether to include sentences that are decoded again in parts, because the output lost something.
    """
    text = "\n".join(line.removeprefix(PREFIX) for line in read_prompts(PROMPTS / "translation.txt")[:limit])
    parts = [part for part in session.document_parts(text, prefix=PREFIX, **LIMIT) if part.source is not None]
    sources = [str(part.source) for part in parts]
    alone = [each.result.text if each.result else "" for each in session.batch([PREFIX + s for s in sources], **LIMIT)]
    return [
        source
        for source, part, text in zip(sources, parts, alone, strict=True)
        if with_losses or part.text == text.strip()
    ]


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = function()
    return time.perf_counter() - started, result


def compare(limit: int, pairs: int, *, with_losses: bool) -> int:
    """Print the times of each pair and the median of the time ratios, and return the exit status."""
    session = load(BUNDLED / "t5-web-docs", draft=BUNDLED / "t5-web-docs-head")
    sentences = sentences_of(session, limit, with_losses=with_losses)
    text = "\n".join(sentences)
    prompts = [PREFIX + each for each in sentences]
    ratios = []
    for number in range(pairs + 1):  # the first pair is a warm-up
        batch_seconds, _ = timed(lambda: list(session.batch(prompts, **LIMIT)))
        document_seconds, _ = timed(lambda: session.document(text, prefix=PREFIX, **LIMIT))
        if number:
            ratios.append(batch_seconds / document_seconds)
            print(f"batch {batch_seconds:.2f} s, document {document_seconds:.2f} s", flush=True)
    print(f"{len(sentences)} sentences: the document has {median(ratios):.3f} of the batch's speed")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.documents", description=__doc__)
    parser.add_argument("--limit", type=COUNT, default=200, metavar="N", help="sentences (default: %(default)s)")
    parser.add_argument("--pairs", type=COUNT, default=9, metavar="N", help="repeats (default: %(default)s)")
    parser.add_argument("--with-losses", action="store_true", help="include sentences that are decoded in parts again")
    chosen = parser.parse_args(argv)
    if not (PROMPTS / "translation.txt").is_file():
        raise InputError("the bundled prompts are only in the repository")
    return run(parser.prog, lambda: compare(chosen.limit, chosen.pairs, with_losses=chosen.with_losses))


if __name__ == "__main__":
    sys.exit(main())

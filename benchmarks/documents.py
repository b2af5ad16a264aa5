"""What it costs to decode sentences as a document: `python -m benchmarks.documents`.

Decodes the same sentences as one document and as one batch, in turns. Both use the same models, drafts and slots, and
their outputs are compared.
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
from speculative_decoding.session import Session

from .options import COUNT

PREFIX = "translate English to German: "


def sentences_of(session: Session, limit: int) -> list[str]:
    """Return sentences of the bundled prompts."""
    text = "\n".join(line.removeprefix(PREFIX) for line in read_prompts(PROMPTS / "translation.txt")[:limit])
    parts = session.document_parts(text, prefix=PREFIX, max_tokens=1)
    return [part.source for part in parts if part.source is not None][:limit]


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = function()
    return time.perf_counter() - started, result


def compare(limit: int, pairs: int) -> int:
    """Print the times of each pair and the median of their ratios, and return the exit status."""
    session = load(BUNDLED / "t5-web-docs", draft=BUNDLED / "t5-web-docs-head")
    sentences = sentences_of(session, limit)
    text = "\n".join(sentences)
    prompts = [PREFIX + each for each in sentences]
    ratios = []
    for number in range(pairs + 1):  # the first pair warms up
        batch_seconds, results = timed(lambda: list(session.batch(prompts)))
        document_seconds, decoded = timed(lambda: session.document(text, prefix=PREFIX))
        outputs = [each.result.text.strip() or source for each, source in zip(results, sentences, strict=True)]
        difference = "" if decoded.text == "\n".join(outputs) else ", with other outputs (something was lost)"
        if number:
            ratios.append(batch_seconds / document_seconds)
            print(f"batch {batch_seconds:.2f} s, document {document_seconds:.2f} s{difference}", flush=True)
    print(f"{len(sentences)} sentences: the document has {median(ratios):.3f} of the batch's speed")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.documents", description=__doc__)
    parser.add_argument("--limit", type=COUNT, default=200, metavar="N", help="sentences (default: %(default)s)")
    parser.add_argument("--pairs", type=COUNT, default=9, metavar="N", help="repeats (default: %(default)s)")
    chosen = parser.parse_args(argv)
    if not (PROMPTS / "translation.txt").is_file():
        raise InputError("the bundled prompts come only with the repository")
    return run(parser.prog, lambda: compare(chosen.limit, chosen.pairs))


if __name__ == "__main__":
    sys.exit(main())

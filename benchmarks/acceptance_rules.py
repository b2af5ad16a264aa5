"""What the default rule for samples costs: `python -m benchmarks.acceptance_rules`.

Decodes the bundled prompts with the acceptance rules `rejection` and `coupled`, interleaved, and prints how much time
a token takes with the former, relative to the latter: above 1, `coupled` is faster.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from speculative_decoding import load
from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.parser import Parser
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.session import Session

from .interleave import Run, take_turns
from .options import COUNT
from .ours import Ids, Ours
from .tasks import Task, tasks_from_files

RULES = ("rejection", "coupled")
TEMPERATURES = (0.6, 1.0)


def contenders(task: Task, pair: Session, temperature: float) -> list[Ours]:
    """Return a session for each rule, with default drafts."""
    found = []
    for rule in RULES:
        options = GenerationOptions(
            temperature=temperature, max_tokens=task.max_tokens, acceptance=rule, allow_long_prompt=True
        )
        session = Session(pair.model, Ids(task.sources), pair.draft_model, options)
        found.append(Ours(rule, rule, temperature, session))
    return found


def ms_per_token(runs: Sequence[Run]) -> float:
    return 1e3 * sum(each.output.seconds for each in runs) / sum(len(each.output.tokens) for each in runs)


def tokens_per_call(runs: Sequence[Run]) -> float:
    calls = sum(each.output.stats.target_calls for each in runs if each.output.stats is not None)
    return sum(len(each.output.tokens) for each in runs) / calls


def measure(limit: int, repeats: int) -> int:
    pair = load(BUNDLED / "t5-web-docs", draft=BUNDLED / "t5-web-docs-head")
    tasks = tasks_from_files([], limit, 100, pair.model, pair.tokenizer)
    for temperature in TEMPERATURES:
        found = [*take_turns([(task, contenders(task, pair, temperature)) for task in tasks], repeats, 1, say)]
        for task in tasks:
            runs = {
                rule: [each for each in found if each.task is task and each.contender.label == rule] for rule in RULES
            }
            ratios = []
            for repeat in range(repeats):
                rejection, coupled = ([each for each in runs[rule] if each.repeat == repeat] for rule in RULES)
                ratios.append(ms_per_token(rejection) / ms_per_token(coupled))
            calls = ", ".join(f"{rule} {tokens_per_call(runs[rule]):.2f}" for rule in RULES)
            print(
                f"temperature {temperature:g}, {task.name}: rejection / coupled median {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f}); tokens per target call: {calls}",
                flush=True,
            )
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.acceptance_rules", description=__doc__)
    parser.add_argument("--limit", type=COUNT, default=25, metavar="N", help="prompts per file (default: 25)")
    parser.add_argument("--repeats", type=COUNT, default=9, metavar="N", help="measured repeats (default: 9)")
    chosen = parser.parse_args(argv)
    return run("benchmarks.acceptance_rules", lambda: measure(chosen.limit, chosen.repeats))


if __name__ == "__main__":
    sys.exit(main())

"""Replays n-gram drafters on recorded outputs of the target, without running a model.

    python -m tools.replay_drafters --prompts data/grammar.txt data/translation.txt data/describe.txt
    python -m tools.replay_drafters --tsv test.tsv --prefix "grammar: " --num-draft 3 5 8 12
    python -m tools.replay_drafters --prompts data/describe.txt --index-cost

At temperature 0, the output is known: a round accepts the longest prefix of its draft that agrees with the output, and
adds one token. Columns: tokens per target call, acceptance rate, draft tokens per call, tokens per unit of time. The
last column assumes that a pass over K + 1 positions costs 1 + `--slope` * K passes over one position.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import mlx.core as mx

from speculative_decoding import generate, load
from speculative_decoding.drafters import NgramDrafter, TextStore
from speculative_decoding.drafters.suffix_index import SuffixIndex
from speculative_decoding.models.base import EncoderDecoder

START = 0  # T5's decoder start token
Variant = Callable[[], NgramDrafter]


@dataclass(frozen=True)
class RecordedRequest:
    source: list[int]
    output: list[int]


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

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    def tokens_per_time(self, slope: float) -> float:
        return self.tokens / (self.calls + slope * self.drafted)


def replay(drafter: NgramDrafter, requests: Iterable[RecordedRequest], num_draft: int, max_tokens: int = 100) -> Replay:
    """Replay the rounds of greedy decoding with this drafter."""
    totals = Replay()
    for request in requests:
        started = time.perf_counter()
        drafter.begin(request.source)
        tokens = [START]
        done = 0
        while done < len(request.output):
            draft = drafter.propose(tokens, min(num_draft, max_tokens - done - 1))
            totals.seconds += time.perf_counter() - started
            rest = request.output[done:]
            accepted = num_accepted(draft, rest)
            new = rest[: accepted + 1]
            tokens += new
            done += len(new)
            totals.calls += 1
            totals.tokens += len(new)
            totals.drafted += len(draft)
            totals.accepted += accepted
            started = time.perf_counter()
        drafter.end(tokens)
        totals.seconds += time.perf_counter() - started
    return totals


def num_accepted(draft: Sequence[int], rest: Sequence[int]) -> int:
    """Return the length of the longest prefix of the draft that agrees with the rest of the output."""
    accepted = 0
    while accepted < min(len(draft), len(rest)) and draft[accepted] == rest[accepted]:
        accepted += 1
    return accepted


def requests_of(
    prompts: Sequence[str], model: str, draft_model: str, cache: Path, max_tokens: int
) -> list[RecordedRequest]:
    """Return the target's greedy outputs. A cache file with one JSON object per line stores them for later runs."""
    known: dict[str, RecordedRequest] = {}
    if cache.exists():
        for line in cache.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            known[entry["prompt"]] = RecordedRequest(entry["source"], entry["output"])
    if missing := [prompt for prompt in dict.fromkeys(prompts) if prompt not in known]:
        target, tokenizer = load(model)
        draft, _ = load(draft_model)
        with cache.open("a", encoding="utf-8") as file:
            for prompt in missing:
                result = generate(target, tokenizer, prompt, draft_model=draft, max_tokens=max_tokens)
                known[prompt] = RecordedRequest(tokenizer.encode(prompt), result.tokens)
                file.write(json.dumps({"prompt": prompt, "source": known[prompt].source, "output": result.tokens}))
                file.write("\n")
                file.flush()
    return [known[prompt] for prompt in prompts]


def variants(pieces: dict[int, str]) -> dict[str, Variant]:
    return {
        "input and output": lambda: NgramDrafter(pieces=pieces),
        "input only": lambda: NgramDrafter(pieces=pieces, search_output=False),
        "output only": lambda: NgramDrafter(search_input=False),
        "output only, n <= 2, always (HF)": lambda: NgramDrafter(search_input=False, max_ngram_size=2, min_chance=0.0),
        "input and output, always": lambda: NgramDrafter(pieces=pieces, min_chance=0.0),
        "input and output, ids only": lambda: NgramDrafter(),
        "with a store of texts": lambda: NgramDrafter(pieces=pieces, store=TextStore()),
    }


def print_row(name: str, num_draft: int, totals: Replay, slope: float) -> None:
    print(
        f"{name:34} {num_draft:3} {totals.tokens_per_call:8.2f} {totals.acceptance_rate:8.1%} "
        f"{totals.drafted / totals.calls:8.2f} {totals.tokens_per_time(slope):8.2f} "
        f"{1e6 * totals.seconds / totals.tokens:8.1f}"
    )


def print_second_pass(
    requests: Sequence[RecordedRequest], pieces: dict[int, str], num_draft: int, slope: float
) -> None:
    """Replay the requests twice, without a text store and with a store that has seen the first pass."""
    for name, store in {"no store": None, "store of texts": TextStore()}.items():
        drafter = NgramDrafter(pieces=pieces, store=store)
        for number in ("first", "second"):
            print_row(f"{name}, {number} pass", num_draft, replay(drafter, requests, num_draft), slope)


def propose_each(drafter: NgramDrafter, rounds: Sequence[Sequence[int]]) -> None:
    for tokens in rounds:
        drafter.propose(tokens, 8)


def print_index_cost(ids: Sequence[int]) -> None:
    """Print the µs per token to index a source, and to draft for an output that copies most of it."""
    for size in (100, 1_000, 10_000):
        source = (list(ids) * (size // len(ids) + 1))[:size]
        output = [token for i, token in enumerate(source) if i % 9]
        built = min(timed(partial(SuffixIndex, 16, source)) for _ in range(5)) / size
        begun = []
        followed = []
        for _ in range(3):
            drafter = NgramDrafter()
            begun.append(timed(partial(drafter.begin, source)) / size)
            rounds = [[START, *output[:end]] for end in range(0, min(len(output), 2_000), 4)]
            followed.append(
                timed(partial(propose_each, drafter, rounds))
                / sum(len(after) - len(before) for before, after in pairwise(rounds))
            )
        print(
            f"{size:6} tokens: index {built:.2f}, begin {min(begun):.2f} µs per source token; "
            f"read and propose {min(followed):.1f} µs per output token, 4 tokens a round"
        )


def print_index_share(model: EncoderDecoder, ids: Sequence[int], pieces: dict[int, str]) -> None:
    """Print the cost of drafting between decoder passes, which evict Python's data from the processor caches.

    The output copies the source except for every ninth token. The encoder output is random.
    """
    for size in (100, 1_000, 10_000):
        source = (list(ids) * (size // len(ids) + 1))[:size]
        output = [token for i, token in enumerate(source) if i % 9][:400]
        cache = model.make_cache(mx.random.normal((1, size, model.config.d_model)))
        mx.eval(cache.arrays)
        for _ in range(3):  # only the last run counts; the others compile all shapes
            drafter = NgramDrafter(pieces=pieces)
            tokens = [START]
            drafting = timed(partial(drafter.begin, source))
            started = time.perf_counter()
            cache.trim_to(0)
            while len(tokens) <= len(output):
                draft_started = time.perf_counter()
                draft = drafter.propose(tokens, 8)
                drafting += 1e6 * (time.perf_counter() - draft_started)
                target_inputs = [tokens[-1], *draft]
                padding = [0] * (9 - len(target_inputs))  # all passes have the same width
                mx.eval(mx.argmax(model.decode(mx.array([target_inputs + padding], mx.uint32), cache), axis=-1))
                rest = output[len(tokens) - 1 :]
                tokens += rest[: num_accepted(draft, rest) + 1]
                cache.trim_to(len(tokens) - 1)
        total = 1e6 * (time.perf_counter() - started)
        print(
            f"{size:6} tokens: {drafting / len(output):.1f} µs of {total / len(output):.0f} µs per output token "
            f"({drafting / total:.2%}), without encoding the source"
        )


def timed(call: Callable[[], object]) -> float:
    """Return the microseconds that a call takes."""
    started = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/t5-web-docs")
    parser.add_argument("--draft-model", default="models/t5-web-docs-draft")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[], help="files with one prompt per line")
    parser.add_argument("--tsv", type=Path, help="a table whose first column is the source")
    parser.add_argument("--prefix", default="", help="text to prepend to each source of --tsv")
    parser.add_argument("--limit", type=int, help="maximum prompts per file")
    parser.add_argument("--num-draft", type=int, nargs="+", default=[3, 5, 8, 12])
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--slope", type=float, default=0.06)
    parser.add_argument("--second-pass", action="store_true", help="replay each file twice, with a text store")
    parser.add_argument("--index-cost", action="store_true", help="measure the index of the n-grams instead")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "replay-cache.jsonl",
        help="recorded outputs of this model",
    )
    options = parser.parse_args()
    if not options.prompts and not options.tsv:
        parser.error("name files with --prompts, or a table with --tsv")

    target, tokenizer = load(options.model)
    pieces = tokenizer.vocabulary.pieces
    files = {path.name: path.read_text(encoding="utf-8").splitlines() for path in options.prompts}
    if options.tsv:
        rows = options.tsv.read_text(encoding="utf-8").splitlines()
        files[options.tsv.name] = [options.prefix + row.split("\t")[0] for row in rows]
    if options.index_cost:
        ids = [token for prompts in files.values() for prompt in prompts for token in tokenizer.encode(prompt)]
        print_index_cost(ids)
        print_index_share(target, ids, pieces)
        return
    for name, prompts in files.items():
        prompts = prompts[: options.limit]
        requests = requests_of(prompts, options.model, options.draft_model, options.cache, options.max_tokens)
        print(f"\n{name}: {len(requests)} requests, {sum(len(request.output) for request in requests)} tokens")
        print(f"{'':34} num tok/call accepted  drafted tok/time   µs/tok")
        if options.second_pass:
            print_second_pass(requests, pieces, options.num_draft[-1], options.slope)
            continue
        for variant, make in variants(pieces).items():
            for num_draft in options.num_draft:
                print_row(variant, num_draft, replay(make(), requests, num_draft, options.max_tokens), options.slope)


if __name__ == "__main__":
    main()

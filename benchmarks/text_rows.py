"""Measures the gain from draft texts, and returns table rows. Outputs must equal the baseline's."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Any

from speculative_decoding import Session
from speculative_decoding.cli.common import say
from speculative_decoding.decoding.prompt import encode_output
from speculative_decoding.decoding.results import GenerationResult, GenerationStats, Round
from speculative_decoding.drafters.base import TEXT, num_shared
from speculative_decoding.errors import InputError
from speculative_decoding.models.draft_head import DraftHead

from .given_texts import KINDS, Decoded, GivenTexts, Texts, split_prefix
from .interleave import Contender, Output, take_turns
from .summary import Spread, grouped
from .tasks import Task, task_of

NUM_DRAFT = 15
BASELINE_SLOTS = 16


@dataclass(frozen=True)
class Row:
    """Tokens per target call of a task, over all its prompts.

    Args:
        given: The given texts.
        drafts: The source of drafts.
        task: The task's name.
        by_seed: The figure for each seed.
    """

    given: str
    drafts: str
    task: str
    by_seed: Sequence[float]

    @property
    def figure(self) -> str:
        return f"{statistics.mean(self.by_seed):.2f}"


@dataclass(frozen=True)
class WasteRow:
    """The cost of a draft text for a request in a new session.

    Args:
        given: The given texts.
        task: The task's name.
        wasted: For each prompt, the number of rounds in which all tokens drafted from the text were rejected.
        more_calls: For each prompt, the number of target calls with the text minus the number without it.
    """

    given: str
    task: str
    wasted: Sequence[int]
    more_calls: Sequence[int]

    @property
    def figure(self) -> str:
        parts = ((statistics.mean(each), max(each)) for each in (self.wasted, self.more_calls))
        return ", ".join(f"{mean:.2f} ({most})" for mean, most in parts)


@dataclass(frozen=True)
class TimeRow:
    """The time of a task with given texts, divided by the time without them.

    Args:
        given: The given texts.
        task: The task's name.
        ratios: One for each repeat.
    """

    given: str
    task: str
    ratios: Sequence[float]

    @property
    def figure(self) -> str:
        return "{1:.3f} ({0:.3f}-{2:.3f})".format(*Spread.of(self.ratios))


@dataclass(frozen=True)
class Bench:
    """Runs tasks with the models of a session. Each run uses a new session without learned statistics."""

    session: Session
    max_tokens: int
    slots: int = 1

    @property
    def draft(self) -> str:
        """The name in tables for the source of drafts other than texts and copies; "" if there is no other source."""
        model = self.session.draft_model
        return "" if model is None else "head" if isinstance(model, DraftHead) else "draft model"

    def fresh(self) -> Session:
        return replace(self.session)

    def with_memory(self, given: GivenTexts) -> Bench:
        """Return a bench whose sessions use the translation memory in `given`, if there is one."""
        prefixes = sorted({split_prefix(prompt)[0] for prompt in given.decoded.prompts})
        return replace(self, session=replace(self.session, memory=given.memory, prompt_prefixes=prefixes))

    def decoded(self, name: str, prompts: Sequence[str]) -> Decoded:
        """Decode the prompts without drafts."""
        task = task_of(name, prompts, self.max_tokens, self.session.model, self.session.tokenizer)
        results = self._results(prompts, [()] * len(prompts), drafter="none", slots=BASELINE_SLOTS)
        return Decoded(task, prompts, results)

    def tokens_per_call(self, decoded: Decoded, texts: Texts, drafter: str) -> float:
        total = GenerationStats()
        options = {"drafter": drafter, "num_draft_tokens": NUM_DRAFT, "slots": self.slots}
        found = self._results(decoded.prompts, texts, **options)
        for result, expected in zip(found, decoded.outputs, strict=True):
            require_same(decoded.task, result.tokens, expected)
            total.add(result.stats)
        return total.tokens_per_target_call

    def _results(self, prompts: Sequence[str], texts: Texts, **options: Any) -> list[GenerationResult]:
        rows = [
            {"prompt": prompt, **({"draft_text": own} if own else {})}
            for prompt, own in zip(prompts, texts, strict=True)
        ]
        results = []
        for each in self.fresh().batch(rows, max_tokens=self.max_tokens, **options):
            if each.result is None:
                raise InputError(f"prompt {prompts[each.index]}: {each.error}")
            results.append(each.result)
        return results

    def best_place(self, decoded: Decoded, texts: Texts) -> float:
        """Return the tokens per call if drafts start at the best place: where the texts match most of the next
        tokens."""
        tokens = calls = 0
        model, tokenizer, memory = self.session.model, self.session.tokenizer, self.session.memory
        for prompt, output, own in zip(decoded.prompts, decoded.outputs, texts, strict=True):
            similar = () if memory is None else memory.similar(split_prefix(prompt)[1])
            encoded = [
                encode_output(model, tokenizer, text, "draft_text") for text in [*own, *(text for _, text in similar)]
            ]
            places = [ids[i : i + NUM_DRAFT] for ids in encoded for i in range(len(ids))]
            done = 0
            while done < len(output.tokens):
                done += 1 + max((num_shared(ids, output.tokens[done:]) for ids in places), default=0)
                calls += 1
            tokens += len(output.tokens)
        return tokens / calls

    def rounds(self, prompt: str, **options: Any) -> tuple[list[int], list[Round]]:
        """Decode a single request, and return its output and rounds."""
        rounds: list[Round] = []
        options = {"num_draft_tokens": NUM_DRAFT, "max_tokens": self.max_tokens, **options}
        result = self.fresh().generate(prompt, on_round=rounds.append, **options)
        return result.tokens, rounds


def require_same(task: Task, tokens: Sequence[int], expected: GenerationResult) -> None:
    if list(tokens) != list(expected.tokens):
        raise AssertionError(f"{task.name}: an output differs from the baseline's")


def token_rows(bench: Bench, given: GivenTexts) -> Iterator[Row]:
    decoded, name, task = given.decoded, KINDS[given.kind], given.decoded.task.name
    if given.kind == "none":
        modes = {"copies": "ngram"}
        if draft := bench.draft:
            modes |= {draft: "model", f"{draft} and copies": "auto"}
    else:
        bench = bench.with_memory(given)
        modes = {"text": "text", "all": "auto" if bench.draft else "ngram"}
    for drafts, drafter in modes.items():
        yield Row(name, drafts, task, [bench.tokens_per_call(decoded, texts, drafter) for texts in given.by_seed])
    if given.kind != "none":
        yield Row(name, "text, best place", task, [bench.best_place(decoded, texts) for texts in given.by_seed])


def waste_row(bench: Bench, given: GivenTexts, limit: int) -> WasteRow:
    """Measure the cost of useless draft texts on the first `limit` prompts."""
    wasted, more_calls = [], []
    decoded = given.decoded
    requests = zip(decoded.prompts, given.by_seed[0], decoded.outputs, strict=True)
    for prompt, texts, expected in islice(requests, limit):
        tokens, rounds = bench.rounds(prompt, draft_text=texts)
        require_same(decoded.task, tokens, expected)
        wasted.append(sum(each.kind == TEXT and each.drafted > each.accepted == 0 for each in rounds))
        more_calls.append(len(rounds) - len(bench.rounds(prompt)[1]))
    return WasteRow(KINDS[given.kind], decoded.task.name, wasted, more_calls)


@dataclass(frozen=True)
class WithTexts(Contender):
    """The default drafter, with or without draft texts. Each run of a task uses a new session."""

    bench: Bench
    given: GivenTexts

    def decode(self, task: Task) -> Iterator[tuple[int, Output]]:
        session = self.bench.with_memory(self.given).fresh()
        for number, (prompt, own) in enumerate(zip(self.given.decoded.prompts, self.given.by_seed[0], strict=True)):
            options: Any = {"draft_text": own} if own else {}
            started = perf_counter()
            result = session.generate(prompt, max_tokens=task.max_tokens, **options)
            yield number, Output(result.tokens, perf_counter() - started, result.stats)


def time_rows(bench: Bench, found: Iterable[GivenTexts], repeats: int) -> Iterator[TimeRow]:
    """Time the prompts of each task with and without draft texts, in turns."""
    bench.session.calibrate()
    expected = {}
    contenders: list[tuple[Task, list[Contender]]] = []
    for task, alike in grouped(found, lambda given: given.decoded.task).items():
        decoded = alike[0].decoded
        expected[task] = decoded.outputs
        without = GivenTexts("none", decoded, [[()] * len(decoded.prompts)])
        kinds = [given for given in alike if given.kind != "none"]
        row = [WithTexts(given.kind, "", 0.0, bench, given) for given in (without, *kinds)]
        contenders.append((task, [*row]))
    seconds: dict[tuple[Task, str], list[float]] = {}
    for each in take_turns(contenders, repeats, 1, say):
        require_same(each.task, each.output.tokens, expected[each.task][each.prompt])
        totals = seconds.setdefault((each.task, each.contender.label), [0.0] * repeats)
        totals[each.repeat] += each.output.seconds
    for (task, kind), totals in seconds.items():
        if kind != "none":
            pairs = zip(totals, seconds[task, "none"], strict=True)
            yield TimeRow(KINDS[kind], task.name, [with_texts / without for with_texts, without in pairs])

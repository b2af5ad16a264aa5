"""Many prompts at once: every contender decodes a task at each number of slots; what comes out, by slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import linear_regression

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative_decoding.batch import batch_generate
from speculative_decoding.drafters import DraftModel
from speculative_decoding.generate import GenerationResult
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.sampling import SamplingParams

from .plot import require_matplotlib
from .report import COLUMNS, Study, markdown, shown
from .summary import Row
from .tasks import Task
from .ways import Ids, Models, Ours, Output, ours


def at_slots(tasks: Iterable[Task], slots: Iterable[int]) -> list[Task]:
    """Each task at each number of slots, named "TASK, N slots"."""
    return [replace(task, name=f"{task.name}, {count} slots", slots=count) for task in tasks for count in slots]


def task_and_slots(name: str) -> tuple[str, int]:
    task, _, slots = name.rpartition(", ")
    return task, int(slots.split()[0])


@dataclass(frozen=True)
class Together(Ours):
    """A way that decodes a task's prompts as many at a time as it has slots."""

    def decode(self, task: Task) -> Iterator[Output]:
        """In the order of the prompts. What others do and hold while this one waits is not counted as its own."""
        assert task.slots is not None
        prompts = [{"prompt": str(number), "seed": number} for number in range(len(task.sources))]
        found = batch_generate(
            self.target,
            NumberedIds(task.sources),
            prompts,
            slots=task.slots,
            sampling=SamplingParams(self.temperature),
            max_tokens=task.max_tokens,
            allow_long_prompt=True,
            **self.options,
        )
        speaker: DraftModel | None = self.options["draft_model"]
        held = peak = sum(weight_bytes(each) for each in (self.target, speaker and speaker.model) if each)
        results: dict[int, GenerationResult] = {}
        seconds = 0.0
        for number in range(len(prompts)):
            while number not in results:
                before, started = mx.get_active_memory(), time.perf_counter()
                mx.reset_peak_memory()
                each = next(found)
                assert each.result is not None
                results[each.index] = each.result
                seconds += time.perf_counter() - started
                peak = max(peak, held + mx.get_peak_memory() - before)
                held += mx.get_active_memory() - before
            result = results.pop(number)
            stats = replace(result.stats, peak_memory_bytes=peak)
            yield Output(result.tokens, seconds, stats, self.options["num_draft"].describe())
            seconds = 0.0


def weight_bytes(model: EncoderDecoder) -> int:
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    return sum(array.nbytes for array in parameters.values())


class NumberedIds(Ids):
    """The text "3" has the ids of source 3; any other is only a trial of the options."""

    def __init__(self, sources: Sequence[Sequence[int]]) -> None:
        self._sources = sources

    def encode(self, text: str) -> list[int]:
        return list(self._sources[int(text) if text.isdecimal() else 0])


def together(
    names: Sequence[str], num_drafts: Sequence[int], temperatures: Sequence[float], models: Models, slots: int
) -> list[Together]:
    """As `ours`, for rows decoded `slots` at a time."""
    return [Together(**vars(each)) for each in ours(names, num_drafts, temperatures, models, slots)]


def peers_of(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.label for row in rows if not row.is_ours))


def batch_tables(study: Study) -> str:
    """A table for each task, slots down; ours against each peer at the same slots."""
    tables = []
    for task in dict.fromkeys(task_and_slots(row.task)[0] for row in study.rows):
        rows = [row for row in study.rows if task_and_slots(row.task)[0] == task]
        columns: dict[str, Callable[[Row], str]] = {"slots": lambda row: str(task_and_slots(row.task)[1])}
        columns |= {name: COLUMNS[name] for name in SHOWN[:3]} | {"against plain": COLUMNS["against plain"]}
        for peer in peers_of(rows):
            theirs = {row.task: row.ms_per_token.median for row in rows if row.label == peer}
            columns[f"against {peer}"] = ratio_to(theirs)
        columns |= {name: COLUMNS[name] for name in SHOWN[3:]}
        columns["draft length at the end"] = lambda row: "" if row.label == "plain" else row.length
        names = [name for name, cell in columns.items() if any(cell(row) for row in rows)]
        lines = [[columns[name](row) for name in names] for row in rows]
        title = f"### {study.model}: {task}, {rows[0].tokens} tokens a repeat"
        tables.append("\n\n".join([title, markdown(names, lines), *memory_lines(rows)]))
    return "\n\n".join(tables)


def memory_lines(rows: Sequence[Row]) -> list[str]:
    """Peak memory as a straight line over slots, for each of ours that has been measured at several."""
    found = []
    for label in dict.fromkeys(row.label for row in rows):
        peaks = {task_and_slots(row.task)[1]: row.peak_memory_bytes for row in rows if row.label == label}
        points = {slots: peak / 1e6 for slots, peak in peaks.items() if peak is not None}
        if len(points) > 1:
            slope, at_zero = linear_regression(list(points), list(points.values()))
            found.append(f"Peak memory of {label}, weights included: {at_zero:.0f} MB and {slope:.1f} MB a slot.")
    return found


SHOWN = ("way", "T", "tokens/s", "tokens/target call", "accepted", "peak GB", "same ids (outputs)")


def ratio_to(theirs: Mapping[str, float]) -> Callable[[Row], str]:
    """How many times as fast as a peer, whose ms per token are given for each task."""
    return lambda row: (
        shown(theirs[row.task] / row.ms_per_token.median if row.is_ours else None, ".2f") + "x" * row.is_ours
    )


def plot_batches(studies: Sequence[Study], path: Path) -> None:
    """Tokens per second and peak memory against slots, a line for each contender; a row of panels for each task."""
    series: dict[str, dict[str, dict[int, Row]]] = {}
    for study in studies:
        for row in study.rows:
            task, slots = task_and_slots(row.task)
            label = row.label if row.temperature == 0 else f"{row.label}, temperature {row.temperature:g}"
            series.setdefault(f"{study.model}: {task}", {}).setdefault(label, {})[slots] = row
    figure = require_matplotlib().Figure(figsize=(11, 4 * len(series)), layout="constrained")
    for (left, right), (title, lines) in zip(
        figure.subplots(len(series), 2, squeeze=False), series.items(), strict=True
    ):
        for label, points in lines.items():
            counts = sorted(points)
            left.plot(counts, [points[n].tokens_per_second for n in counts], marker="o", label=label)
            peaks = {n: peak / 1e6 for n in counts if (peak := points[n].peak_memory_bytes) is not None}
            if peaks:
                right.plot(list(peaks), list(peaks.values()), marker="o", label=label)
        left.set(xlabel="slots", ylabel="tokens per second", title=title, ylim=(0, None))
        right.set(xlabel="slots", ylabel="peak memory, MB", title="weights included", ylim=(0, None))
        left.legend(fontsize="small")
        right.legend(fontsize="small")
    figure.savefig(path, dpi=120)

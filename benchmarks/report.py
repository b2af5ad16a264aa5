"""Results as Markdown, for people, and as one dictionary, for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from speculative_decoding.draft_length.costs import Costs

from .environment import Environment
from .summary import Row, Spread, Weights


@dataclass(frozen=True)
class Study:
    """What was measured with one model or pair."""

    model: str
    rows: Sequence[Row]
    costs: Costs | None
    weights: Weights | None
    versions: Mapping[str, str]  # of the peers' libraries

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "costs": None if self.costs is None else asdict(self.costs),
            "weights": None if self.weights is None else asdict(self.weights),
            "versions": dict(self.versions),
            "rows": [row.as_dict() for row in self.rows],
        }


SHOWN_WIDTHS = (2, 4, 6, 8, 16)  # of the passes over several positions


def shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def spread(value: Spread | None) -> str:
    return "" if value is None else f"{value.median:.2f} ({value.low:.2f}-{value.high:.2f})"


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "way": lambda row: row.label + (f" ({row.setting})" if row.setting else ""),
    "T": lambda row: f"{row.temperature:g}",
    "ms/token (quartiles)": lambda row: spread(row.ms_per_token),
    "tokens/s": lambda row: f"{row.tokens_per_second:.0f}",
    "against plain": lambda row: f"{row.gain:.2f}x",
    "decoding alone, ms/token": lambda row: spread(row.decode_ms_per_token),
    "first token, ms": lambda row: shown(row.first_token_ms, ".1f"),
    "tokens/target call": lambda row: shown(row.tokens_per_target_call, ".2f"),
    "accepted": lambda row: shown(row.acceptance, ".0%"),
    "efficiency": lambda row: shown(row.efficiency, ".0%"),
    "of the byte limit": lambda row: shown(row.share_of_limit, ".0%"),
    "peak GB": lambda row: "" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 1e9:.2f}",
    "same ids (outputs)": lambda row: (
        "" if row.same_ids is None or row.same_outputs is None else f"{row.same_ids:.1%} ({row.same_outputs:.0%})"
    ),
}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def result_tables(study: Study) -> str:
    """A table for each task; our fastest way and the fastest peer stand in bold."""
    parts = []
    for task in dict.fromkeys(row.task for row in study.rows):
        rows = [row for row in study.rows if row.task == task]
        best = [
            min(group, key=lambda row: row.ms_per_token.median)
            for temperature in dict.fromkeys(row.temperature for row in rows)
            for ours in (True, False)
            if (group := [row for row in rows if row.temperature == temperature and row.is_ours is ours])
        ]
        names = [name for name, cell in COLUMNS.items() if any(cell(row) for row in rows)]
        lines = []
        for row in rows:
            cells = [COLUMNS[name](row) for name in names]
            lines.append([f"**{cells[0]}**" if row in best else cells[0], *cells[1:]])
        parts.append(f"### {study.model}: {task}, {rows[0].tokens} tokens a repeat\n\n{markdown(names, lines)}")
    if (costs := study.costs) is not None:
        unit = costs.pass_seconds(1)
        passes = ", ".join(f"t({width}) = {costs.pass_seconds(width) / unit:.2f}" for width in SHOWN_WIDTHS)
        parts.append(
            f"In passes over one position ({1e3 * unit:.2f} ms): {passes}; s = {costs.start / unit:.2f}, "
            f"c = {costs.draft / unit:.2f}, h = {costs.host / unit:.2f}, r = {costs.reading / unit:.2f}."
        )
    if study.weights is not None:
        parts.append(
            f"A pass of the target reads {study.weights.target_bytes / 1e6:.1f} MB of weights; this machine reads "
            f"{study.weights.bandwidth / 1e9:.1f} GB/s."
        )
    return "\n\n".join(parts)


def growth_tables(studies: Sequence[Study]) -> str:
    """Lengths down, models and contenders across."""
    parts = []
    for kind, unit in (("source", "tokens of source, 32 of output"), ("output", "tokens of output, 40 of source")):
        series = growth_series(studies, kind)
        lengths = sorted({length for points in series.values() for length in points})
        lines = [
            [
                str(length),
                *(spread(points[length].ms_per_token) if length in points else "" for points in series.values()),
            ]
            for length in lengths
        ]
        if lines:
            parts.append("### ms per token, encoder included\n\n" + markdown([unit, *series], lines))
    return "\n\n".join(parts)


def growth_series(studies: Sequence[Study], kind: str) -> dict[str, dict[int, Row]]:
    """ "model way" -> length -> row, of the tasks named "source N" or "output N"."""
    series: dict[str, dict[int, Row]] = {}
    for study in studies:
        for row in study.rows:
            name, length = row.task.split()
            if name == kind:
                series.setdefault(f"{study.model} {row.label}", {})[int(length)] = row
    return series


def environment_text(environment: Environment, versions: Mapping[str, str], said: Sequence[str]) -> str:
    threads = "" if environment.blas_threads is None else f", {environment.blas_threads} threads"
    lines = [
        f"{environment.date}, commit {environment.commit}; {environment.chip}, {environment.cores} cores, "
        f"{environment.system}; Python {environment.python}, MLX {environment.mlx} on {environment.device}, "
        f"{environment.dtype}; BLAS {environment.blas}{threads}; load average before: {environment.load_before:.2f}"
        + "".join(f"; {name} {version}" for name, version in versions.items())
    ]
    return "\n".join([*lines, *(f"\n**Note: {note}.**" for note in said)])

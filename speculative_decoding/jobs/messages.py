"""Parses the results of rows, which ranks send to rank 0 as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..decoding.results import GenerationResult, GenerationStats
from ..rows.scheduling import BatchResult


def parse_batch_result(fields: Mapping[str, Any]) -> BatchResult[GenerationResult]:
    """Create a `BatchResult` from its fields."""
    result = fields["result"]
    return BatchResult(fields["index"], None if result is None else parse_result(result), fields["error"])


def parse_result(fields: Mapping[str, Any]) -> GenerationResult:
    """Create a `GenerationResult` from its fields."""
    stats = GenerationStats(**fields["stats"])
    stats.accepted_histogram = Counter({int(length): count for length, count in stats.accepted_histogram.items()})
    stats.drafted_by_kind, stats.accepted_by_kind = Counter(stats.drafted_by_kind), Counter(stats.accepted_by_kind)
    sequences = tuple(parse_result(each) for each in fields["sequences"])
    return GenerationResult(**{**fields, "stats": stats, "sequences": sequences})

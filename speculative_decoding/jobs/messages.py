"""Results of rows as JSON, as one rank sends them to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..decoding.results import GenerationResult, GenerationStats
from ..rows import BatchResult


def parse_batch_result(fields: Mapping[str, Any]) -> BatchResult[GenerationResult]:
    """A `BatchResult` from its fields."""
    result = fields["result"]
    return BatchResult(fields["index"], None if result is None else parse_result(result), fields["error"])


def parse_result(fields: Mapping[str, Any]) -> GenerationResult:
    """A `GenerationResult` from its fields."""
    stats = GenerationStats(**fields["stats"])
    stats.accepted_histogram = Counter({int(length): count for length, count in stats.accepted_histogram.items()})
    sequences = tuple(parse_result(each) for each in fields["sequences"])
    return GenerationResult(**{**fields, "stats": stats, "sequences": sequences})

"""Prometheus metrics for /metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..decoding.results import GenerationStats

PREFIX = "speculative_decoding_"


class Metrics:
    """The metrics of a server, in their own registry. Used on the event loop only."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.responses = self._counter("responses", "Responses by path and HTTP status", "path", "status")
        self._prompts = self._counter("prompts", "Prompts, texts and recordings by how they ended", "finish_reason")
        self.errors = self._counter("errors", "Requests answered with an error, by code", "code")
        # The keys are names of attributes of GenerationStats
        self._counts = {
            "prompt_tokens": self._counter("prompt_tokens", "Tokens of finished prompts"),
            "generated_tokens": self._counter("generated_tokens", "Tokens generated for finished prompts"),
            "drafted_tokens": self._counter("drafted_tokens", "Draft tokens"),
            "accepted_tokens": self._counter("accepted_tokens", "Draft tokens that the target accepted"),
            "target_calls": self._counter(
                "target_calls", "Forward passes of the target's decoder, summed over prompts"
            ),
        }
        self.time_to_first_token = Histogram(
            f"{PREFIX}time_to_first_token_seconds",
            "Time from admitting a request to its first token",
            registry=self.registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
        )
        self._totals = GenerationStats()
        self._gauge("acceptance_rate", "Accepted / draft tokens since the start", lambda: self._totals.acceptance_rate)
        self._gauge(
            "tokens_per_target_call",
            "Generated tokens per target call since the start",
            lambda: self._totals.tokens_per_target_call,
        )

    def watch(self, decoding: Callable[[], int], waiting: Callable[[], int], slots: int) -> None:
        """Add gauges for the decoding thread."""
        self._gauge("slots", "Prompts that can be decoded together", lambda: slots)
        self._gauge("slots_busy", "Prompts being decoded", decoding)
        self._gauge("queue_length", "Prompts waiting for a slot", waiting)

    def add(self, stats: GenerationStats | None, finish_reason: str) -> None:
        """Count a prompt, text or recording that has ended. stats: None if decoding did not finish."""
        self._prompts.labels(finish_reason).inc()
        if stats is not None:
            self._totals.add(stats)
            for name, counter in self._counts.items():
                counter.inc(getattr(stats, name))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, help, labels, registry=self.registry)

    def _gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        Gauge(PREFIX + name, help, registry=self.registry).set_function(value)

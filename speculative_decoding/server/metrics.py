"""What /metrics shows, in a registry of this server's own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..decoding.stats import GenerationStats

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
PREFIX = "speculative_decoding_"


class Metrics:
    """Counts of this process. Used on the event loop alone."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._responses = self._counter("responses", "Answers, by path and HTTP status", "path", "status")
        self._prompts = self._counter("prompts", "Prompts that ended, by how", "finish_reason")
        self._errors = self._counter("errors", "Requests that were answered with an error", "code")
        self._counts = {
            name: self._counter(name, about)
            for name, about in (
                ("prompt_tokens", "Tokens read, of prompts that ended"),
                ("generated_tokens", "Tokens written, likewise"),
                ("drafted_tokens", "Tokens that were drafted"),
                ("accepted_tokens", "Drafted tokens that the target accepted"),
                ("target_calls", "Passes of the target's decoder, counted for each prompt"),
            )
        }
        self._first = Histogram(
            f"{PREFIX}time_to_first_token_seconds", "From taking a request", registry=self.registry, buckets=SECONDS
        )
        self._totals = GenerationStats()
        self._gauge("acceptance_rate", "Accepted / drafted since the start", lambda: self._totals.acceptance_rate)
        per_call = lambda: self._totals.tokens_per_target_call  # noqa: E731
        self._gauge("tokens_per_target_call", "Of a prompt, since the start", per_call)

    def watch(self, decoding: Callable[[], int], waiting: Callable[[], int], slots: int) -> None:
        self._gauge("slots", "Prompts that can be decoded together", lambda: slots)
        self._gauge("slots_busy", "Prompts that are decoded", decoding)
        self._gauge("queue_length", "Prompts that wait for a slot", waiting)

    def add(self, stats: GenerationStats | None, finish_reason: str) -> None:
        """A prompt that ended. stats: None where it did not come to its end."""
        self._prompts.labels(finish_reason).inc()
        if stats is not None:
            self._totals.add(stats)
            for name, counter in self._counts.items():
                counter.inc(getattr(stats, name))

    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    def response(self, path: str, status: int) -> None:
        self._responses.labels(path, str(status)).inc()

    def error(self, code: str) -> None:
        self._errors.labels(code).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        Gauge(PREFIX + name, about, registry=self.registry).set_function(value)

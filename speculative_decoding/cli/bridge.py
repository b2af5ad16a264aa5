"""For the time until session.py has this interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..batch import BatchResult, batch_generate
from ..decoding.request import choose_length
from ..decoding.stats import Round
from ..draft_length.schedules import DraftLength
from ..drafters import DraftModel, NgramDrafter
from ..generate import GenerationResponse, GenerationResult, generate, stream_generate
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..sampling import GenerationOptions, SamplingParams

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
SAME = (
    *("max_tokens", "stop", "eos_token_ids", "acceptance", "delta", "skip_sample_adjustment", "strict"),
    *("allow_long_prompt", "prefix", "logprobs", "timed", "drafter"),
)


@dataclass
class Session:
    model: EncoderDecoder
    tokenizer: Tokenizer
    draft_model: EncoderDecoder | DraftModel | None = None
    options: GenerationOptions = GenerationOptions()  # noqa: RUF009
    ngram: NgramDrafter | None = None
    slots: int = 8
    _lengths: dict[Any, DraftLength] = field(default_factory=dict, init=False)

    def stream(
        self, prompt: str, *, on_round: Callable[[Round], None] | None = None, **keywords: Any
    ) -> Iterator[GenerationResponse]:
        return stream_generate(self.model, self.tokenizer, prompt, on_round=on_round, **self._old(keywords, 1))

    def generate(self, prompt: str, **keywords: Any) -> GenerationResult:
        return generate(self.model, self.tokenizer, prompt, **self._old(keywords, 1))

    def batch(
        self,
        prompts: Iterable[str | Mapping[str, Any]],
        *,
        slots: int | None = None,
        max_memory_gb: float | None = None,
        **keywords: Any,
    ) -> Iterator[BatchResult]:
        slots = slots or self.slots
        return batch_generate(
            self.model,
            self.tokenizer,
            prompts,
            slots=slots,
            max_memory_gb=max_memory_gb,
            **self._old(keywords, slots),
        )

    def describe_length(self) -> str:
        return self._length(self.options.num_draft, 1).describe()

    def _length(self, num_draft: Any, rows: int) -> DraftLength:
        known = num_draft, rows
        if known not in self._lengths:
            self._lengths[known] = choose_length(num_draft, self.model, self.draft_model, rows)
        return self._lengths[known]

    def _old(self, keywords: Mapping[str, Any], rows: int) -> dict[str, Any]:
        options = self.options.changed(keywords)
        return {
            "draft_model": self.draft_model,
            "ngram": self.ngram,
            "num_draft": self._length(options.num_draft, rows),
            "sampling": SamplingParams(**{name: getattr(options, name) for name in SAMPLING}),
            **{name: getattr(options, name) for name in SAME},
        }

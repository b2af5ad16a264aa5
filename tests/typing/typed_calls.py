"""Calls as users write them: mypy checks this file (pyproject.toml), and tests/unit/test_session.py runs it.

If mypy stopped checking the keywords, it would report the `type: ignore` comments in `wrong_calls` as unused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, assert_type

from speculative_decoding import (
    BatchResult,
    GenerationOptions,
    GenerationResponse,
    GenerationResult,
    Session,
    batch_generate,
    generate,
    stream_generate,
)
from speculative_decoding.drafters import NgramDrafter
from speculative_decoding.loading.tokenizer import Tokenizer
from speculative_decoding.models.base import EncoderDecoder


def right_calls(model: EncoderDecoder, tokenizer: Tokenizer, draft: EncoderDecoder) -> None:
    session = Session(model, tokenizer, draft, GenerationOptions(max_tokens=5))
    few = generate(model, tokenizer, "abc", draft_model=draft, temperature=1.0, top_k=5, seed=3, max_tokens=5)
    assert_type(few, GenerationResult)
    stream = stream_generate(
        model, tokenizer, "abc", drafter="ngram", ngram=NgramDrafter(), stop=("cd",), on_round=print, max_tokens=5
    )
    assert_type(stream, Iterator[GenerationResponse])
    many = batch_generate(model, tokenizer, ["abc", {"prompt": "b", "seed": 2}], slots=2, max_memory_gb=None)
    assert_type(many, Iterator[BatchResult[GenerationResult]])
    assert_type(session.generate("abc", num_draft_tokens="auto", logprobs=True), GenerationResult)
    assert_type(session.generate(["abc", "b"], num_draft_tokens=3, decoder_prefix=[4, 5]), list[GenerationResult])
    assert_type(session.stream("abc", temperature=0.7, acceptance="coupled"), Iterator[GenerationResponse])
    assert_type(session.batch(["abc", "b"], slots=2, eos_token_ids=[7]), Iterator[BatchResult[GenerationResult]])


def wrong_calls(model: EncoderDecoder, tokenizer: Tokenizer, session: Session) -> list[Callable[[], Any]]:
    """Calls with an unknown argument name or a value of the wrong type: one of each per entry point."""
    return [
        lambda: generate(model, tokenizer, "abc", max_new_tokens=5),  # type: ignore[call-arg]
        lambda: generate(model, tokenizer, "abc", temperature="hot"),  # type: ignore[arg-type]
        lambda: generate(model, tokenizer),  # type: ignore[call-arg]
        lambda: stream_generate(model, tokenizer, "abc", slots=2),  # type: ignore[call-arg]
        lambda: stream_generate(model, tokenizer, "abc", strict=2),  # type: ignore[arg-type]
        lambda: batch_generate(model, tokenizer, ["abc"], on_round=print),  # type: ignore[call-arg]
        lambda: batch_generate(model, tokenizer, ["abc"], top_k=2.5),  # type: ignore[arg-type]
        lambda: session.stream("abc", sampling=None),  # type: ignore[call-arg]
        lambda: session.stream("abc", logprobs="yes"),  # type: ignore[arg-type]
        lambda: session.generate("abc", slots=3),  # type: ignore[call-overload]
        lambda: session.generate("abc", max_tokens="5"),  # type: ignore[call-overload]
        lambda: session.batch(["abc"], num_drafts=3),  # type: ignore[call-arg]
        lambda: session.batch(["abc"], stop=3),  # type: ignore[arg-type]
        lambda: session.transcribe("a.wav", beam_size=5),  # type: ignore[call-arg]
        lambda: session.transcribe_batch(["a.wav"], slots="2"),  # type: ignore[arg-type]
        lambda: session.transcribe_live([], each=1.0),  # type: ignore[call-arg]
        lambda: session.document("abc", sentences=True),  # type: ignore[call-arg]
        lambda: session.document_parts("abc", keep=3),  # type: ignore[arg-type]
        lambda: session.score("abc", "b", seed=3),  # type: ignore[call-arg]
        lambda: GenerationOptions(1.0),  # type: ignore[call-arg]
    ]

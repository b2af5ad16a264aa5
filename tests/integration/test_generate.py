"""Greedy, coupled and strict output equals baseline decoding with any drafter and any draft length."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, generate, stream_generate
from speculative_decoding.drafters import Drafter, NoDrafter, RequestView
from speculative_decoding.drafters.base import TEXT
from speculative_decoding.models.base import EncoderDecoder
from tests.support.tiny import (
    DRAFTERS,
    EOS,
    KINDS,
    SOURCES,
    VOCAB,
    Scripted,
    model_drafter,
    noisy_copy,
    run,
    tiny_model,
    tokens_of,
)
from tests.support.together import Letters, drafter_of_rows, options_of, together

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
BASELINE = [tokens_of(run(TARGET, source)) for source in SOURCES]


def baseline_of(row: RequestView) -> list[int]:
    return BASELINE[SOURCES.index(row.source_tokens)]


def test_tiny_models_accept_some_draft_tokens() -> None:
    assert len({tuple(baseline) for baseline in BASELINE}) == len(BASELINE)
    assert any(baseline[-1] == EOS for baseline in BASELINE) and any(len(baseline) == 30 for baseline in BASELINE)
    rounds = [event for source in SOURCES for event in run(TARGET, source, model_drafter(TARGET, DRAFT))]
    accepted = {event.accepted for event in rounds}
    assert {0, 4} < accepted  # none, all and some of the draft tokens


def test_a_text_that_equals_the_output_is_accepted_whole_and_a_revised_one_in_part() -> None:
    requests = [(source, options_of()) for source in SOURCES]
    whole, revised = (
        [
            event
            for told in together(TARGET, requests, drafter_of_rows(name, TARGET, DRAFT, baseline_of))
            for event in told.rounds
        ]
        for name in ("text of the output", "text")
    )
    assert all(
        event.accepted == event.drafted == min(4, len(event.tokens)) for event in whole if not event.finish_reason
    )
    assert all(event.kind == TEXT for event in whole if event.drafted)
    assert {0, 1} < {event.accepted for event in revised} and len(whole) < len(revised)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_rows_with_any_draft_length_and_limit_equal_the_baseline(drafter: str) -> None:
    """Rows have num_draft_tokens from 0 to 12 and max_tokens from 1. Outputs stop exactly at max_tokens.

    test_streaming.py decodes one request at a time.
    """
    limits = [(0, 30), (1, 30), (2, 30), (5, 30), (12, 30), (4, 1), (4, 2), (4, 3), (4, 7), (4, 29)]
    requests = [
        (source, options_of(num_draft_tokens=num_draft_tokens, max_tokens=max_tokens))
        for source in SOURCES
        for num_draft_tokens, max_tokens in limits
    ]
    found = together(TARGET, requests, drafter_of_rows(drafter, TARGET, DRAFT, baseline_of))
    for (source, options), told in zip(requests, found, strict=True):
        expected = BASELINE[SOURCES.index(source)][: options.max_tokens]
        assert told.tokens == expected
        assert [event.finish_reason for event in told.rounds][-1] == ("stop" if EOS in expected else "length")
        assert all(event.finish_reason is None for event in told.rounds[:-1])
        assert all(event.drafted <= options.num_draft_tokens for event in told.rounds)


PENALTY = 1.5


@cache
def without_cache(source: tuple[int, ...], penalty: float, max_tokens: int) -> list[int]:
    """Decode greedily as transformers does, without cache and draft."""
    tokens = [0]
    encoder_output = TARGET.encode(mx.array([source]))
    while len(tokens) <= max_tokens and EOS not in tokens:
        logits = np.array(TARGET.decode(mx.array([tokens]), TARGET.make_cache(encoder_output)))[0, -1]
        for token in set(tokens):
            logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
        tokens.append(int(logits.argmax()))
    return tokens[1:]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("drafter", KINDS)
def test_a_repetition_penalty_acts_on_the_tokens_before_each_position(drafter: str) -> None:
    requests = [
        (source, options_of(repetition_penalty=PENALTY, num_draft_tokens=number + 2, max_tokens=20))
        for number, source in enumerate(SOURCES)
    ]
    made = drafter_of_rows(drafter, TARGET, DRAFT, lambda row: without_cache(tuple(row.source_tokens), PENALTY, 20))
    expected = [without_cache(tuple(source), PENALTY, 20) for source in SOURCES]
    assert [told.tokens for told in together(TARGET, requests, made)] == expected
    assert expected[-1] != BASELINE[-1][:20]


@cache
def coupled_requests() -> list[tuple[list[int], dict[str, Any], list[int]]]:
    """Return (source, options, baseline tokens) at three temperatures, with all options that change the distribution.

    At temperature 2, outputs end at any position, also within a draft.
    """
    found = []
    for seed in range(39):
        temperature = (0.7, 1.0, 2.0)[seed // 13]
        extra = {"top_k": 9, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2} if seed % 2 else {}
        options = {"temperature": temperature, "seed": seed, "max_tokens": 14} | extra
        source = SOURCES[seed % len(SOURCES)]
        found.append((source, options, tokens_of(run(TARGET, source, **options))))
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_coupled_output_depends_only_on_the_seed(drafter: str) -> None:
    """Rows of one batch have draft lengths from 0 to 12."""
    expected = {options["seed"]: baseline for _, options, baseline in coupled_requests()}
    requests = [
        (source, options_of(num_draft_tokens=options["seed"] % 13, **options))
        for source, options, _ in coupled_requests()
    ]
    made = drafter_of_rows(drafter, TARGET, DRAFT, lambda row: expected[row.options.seed])
    assert [told.tokens for told in together(TARGET, requests, made)] == list(expected.values())
    assert len(set(map(tuple, expected.values()))) > 30
    assert len({len(baseline) for baseline in expected.values() if EOS in baseline}) > 5


def test_a_coupled_draft_of_the_target_itself_is_always_accepted() -> None:
    """The draft has the noise of the target."""
    requests = [(SOURCES[0], options_of(temperature=1.0, seed=seed)) for seed in range(6)]
    found = together(TARGET, requests, model_drafter(TARGET, TARGET))
    rounds = [event for told in found for event in told.rounds]
    assert sum(event.drafted for event in rounds) > 20
    assert all(event.accepted == event.drafted for event in rounds if event.finish_reason is None)


def logprobs_of(
    model: EncoderDecoder, drafter: Drafter, num_draft_tokens: int, strict: bool
) -> list[tuple[int, float]]:
    """Return the tokens of an output that does not end, and their log-probabilities."""
    options: dict[str, Any] = {"num_draft_tokens": num_draft_tokens, "strict": strict, "logprobs": True}
    rounds = run(model, SOURCES[0], drafter, ends=lambda token: False, max_tokens=100, **options)
    return [pair for event in rounds for pair in zip(event.tokens, event.logprobs or (), strict=True)]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_strict_passes_are_bit_identical_with_and_without_a_draft(dtype: mx.Dtype) -> None:
    wide = {"d_model": 96, "d_kv": 24, "d_ff": 320, "num_heads": 4}  # enough for kernels to split their sums
    model = tiny_model(seed=3, position_scale=1.0, **wide)
    model.set_dtype(dtype)
    plain = logprobs_of(model, NoDrafter(), 7, True)
    baseline = [token for token, _ in plain]
    assert len(baseline) == 100 and len(set(baseline)) > 3
    for num_draft_tokens in (1, 4, 7):  # draft lengths up to 7 use passes of one width
        third_wrong = Scripted(baseline, lambda i, token: (token + 1) % VOCAB if i % 3 == 2 else token)
        assert logprobs_of(model, third_wrong, num_draft_tokens, True) == plain


def test_stream_and_result_agree() -> None:
    responses = list(stream_generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20))
    result = generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20)
    assert result.text == "".join(response.text for response in responses) == Letters().decode(result.tokens)
    assert result.tokens == [response.token for response in responses]
    assert [response.finish_reason for response in responses] == [None] * (len(responses) - 1) + [result.finish_reason]
    assert result.stats.accepted_tokens == sum(response.from_draft for response in responses)
    assert result.stats.generated_tokens == len(result.tokens)
    assert result.stats.target_calls == sum(result.stats.accepted_histogram.values())


@pytest.mark.parametrize("drafter", KINDS)
def test_stop_string_cuts_at_every_position_of_an_accepted_draft(drafter: str) -> None:
    """Every substring of one to three letters of the baseline text is a stop string; text is not released too early."""
    requests = []
    for source, baseline in zip(SOURCES, BASELINE, strict=True):
        letters = Letters().decode(baseline)
        stops = {letters[i : i + size] for i, size in product(range(min(len(letters), 9)), (1, 3))}
        requests += [(source, options_of(stop=("~", stop))) for stop in sorted(stops)]
    found = together(TARGET, requests, drafter_of_rows(drafter, TARGET, DRAFT, baseline_of))
    for (source, options), told in zip(requests, found, strict=True):
        baseline, (_, stop) = BASELINE[SOURCES.index(source)], options.stop
        letters = Letters().decode(baseline)
        at = letters.index(stop)
        assert (told.text, told.finish_reason) == (letters[:at], "stop")
        assert (
            Letters().decode(told.tokens) == letters[: at + len(stop)] and told.tokens == baseline[: len(told.tokens)]
        )
        assert all(letters.startswith(text) and stop not in text for text in told.texts)
        assert all(event.accepted <= len(event.tokens) for event in told.rounds)


@pytest.mark.parametrize("drafter", KINDS)
def test_extra_eos_id_cuts_at_every_position_of_an_accepted_draft(drafter: str) -> None:
    baseline = max(BASELINE, key=lambda tokens: len(set(tokens)))
    source = SOURCES[BASELINE.index(baseline)]
    requests = [(source, options_of(eos_token_ids=(token, 0))) for token in sorted(set(baseline) - {EOS})]
    found = together(TARGET, requests, drafter_of_rows(drafter, TARGET, DRAFT, baseline_of))
    for (_, options), told in zip(requests, found, strict=True):
        end = min(baseline.index(token) for token in options.eos_token_ids if token in baseline)
        assert told.tokens == baseline[: end + 1]
        assert (told.text, told.finish_reason) == (Letters().decode(told.tokens[:-1]), "stop")


MODEL_OF_5: dict[str, Any] = {"draft_model": DRAFT, "drafter": "model", "num_draft_tokens": 5, "max_tokens": 40}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lossy_run_reports_its_total_variation(temperature: float) -> None:
    def price(**options: Any) -> float:
        options |= {**MODEL_OF_5, "temperature": temperature, "seed": 2}
        return generate(TARGET, Letters(), "abc", **options).stats.delta_total_variation

    assert price() == 0
    assert 0 < price(delta=0.9) <= 1
    assert price(delta=1.0) >= price(delta=0.0)
    if temperature > 0:
        assert 0 < price(delta=0.2) <= 0.2
        assert price(acceptance="block") == price(acceptance="coupled") == 0


def test_closing_a_stream_does_not_change_the_next_output() -> None:
    expected = generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20).tokens
    for stop in (1, 4):
        stream = stream_generate(TARGET, Letters(), "cab", draft_model=DRAFT)
        for _ in range(stop):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20).tokens == expected


def test_delta_marks_the_output_lossy_and_accepts_more() -> None:
    exact = generate(TARGET, Letters(), "abc", **MODEL_OF_5)
    lenient = generate(TARGET, Letters(), "abc", delta=1.0, **MODEL_OF_5)
    assert exact.stats.lossless and not lenient.stats.lossless
    assert lenient.stats.acceptance_rate > exact.stats.acceptance_rate
    with pytest.warns(UserWarning, match="delta: has no effect with drafter none"):
        generate(TARGET, Letters(), "abc", delta=1.0, drafter="none")
    undrafted = run(TARGET, SOURCES[0], delta=1.0)  # without drafts, delta changes nothing
    assert tokens_of(undrafted) == BASELINE[0] and not any(event.total_variation for event in undrafted)


def test_a_prompt_that_is_too_long_is_refused_before_decoding_unless_it_is_allowed() -> None:
    model = tiny_model(n_positions=32)
    with pytest.raises(InputError, match="prompt"):
        stream_generate(model, Letters(), "a" * 40)
    assert generate(model, Letters(), "a" * 40, allow_long_prompt=True, max_tokens=3).tokens

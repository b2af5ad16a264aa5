"""Greedy, coupled and strict output equals baseline decoding with any drafter and any draft length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, generate, stream_generate
from speculative_decoding.drafters import BatchModelDrafter, Draft, Drafter, NoDrafter, RequestView
from speculative_decoding.drafters.draft_model import DraftModel
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from tests.support.tiny import (
    DRAFTERS,
    EOS,
    EXACT,
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


def check_identity(drafter: str, num_draft_tokens: int) -> None:
    for source, baseline in zip(SOURCES, BASELINE, strict=True):
        made = DRAFTERS[drafter](TARGET, DRAFT, baseline)
        rounds = run(TARGET, source, made, num_draft_tokens=num_draft_tokens)
        assert tokens_of(rounds) == baseline


def test_tiny_models_accept_some_draft_tokens() -> None:
    assert len({tuple(baseline) for baseline in BASELINE}) == len(BASELINE)
    assert any(baseline[-1] == EOS for baseline in BASELINE) and any(len(baseline) == 30 for baseline in BASELINE)
    rounds = [event for source in SOURCES for event in run(TARGET, source, model_drafter(TARGET, DRAFT))]
    accepted = {event.accepted for event in rounds}
    assert {0, 4} < accepted  # none, all and some of the draft tokens


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_output_equals_the_baseline(drafter: str) -> None:
    """One request at a time; the batch test below covers all draft lengths."""
    check_identity(drafter, 5)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_rows_with_any_draft_length_and_limit_equal_the_baseline(drafter: str) -> None:
    """Rows have num_draft_tokens from 0 to 12 and max_tokens from 1. Outputs stop exactly at max_tokens."""
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


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_nothing_follows_the_end_of_sequence(drafter: str) -> None:
    """At temperature 2 outputs end at any position, including within a draft."""
    requests = [(SOURCES[0], options_of(temperature=2.0, seed=seed)) for seed in range(16)]
    found = together(TARGET, requests, drafter_of_rows(drafter, TARGET, DRAFT, baseline_of))
    assert all(EOS not in told.tokens[:-1] for told in found)
    assert len({len(told.tokens) for told in found}) > 5


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_equal_seeds_give_equal_tokens_and_other_seeds_give_others(temperature: float) -> None:
    def sample(seed: int) -> list[int]:
        options = {"temperature": temperature, "seed": seed, "max_tokens": 12}
        return tokens_of(run(TARGET, SOURCES[2], model_drafter(TARGET, DRAFT), **options))

    assert sample(3) == sample(3)
    assert len({tuple(sample(seed)) for seed in range(8)}) > 4


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


@pytest.mark.parametrize("drafter", DRAFTERS)
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
    """Return (source, options, baseline tokens) at two temperatures, with all options that change the distribution."""
    found = []
    for seed in range(26):
        temperature = 0.7 if seed < 13 else 1.0
        extra = {"top_k": 9, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2} if seed % 2 else {}
        options = {"temperature": temperature, "seed": seed, "max_tokens": 14} | extra
        source = SOURCES[seed % len(SOURCES)]
        found.append((source, options, tokens_of(run(TARGET, source, **options))))
    return found


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
    assert len(set(map(tuple, expected.values()))) > 20


class Independent(BatchModelDrafter):
    """Samples with independent noise, even for coupled requests."""

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        own = {
            RequestView(
                replace(row.options, acceptance="rejection"), row.source_tokens, row.decoder_tokens, row.slot
            ): count
            for row, count in counts.items()
        }
        return super().propose(own, slots)


def test_a_coupled_draft_is_accepted_more_often_than_an_independent_one() -> None:
    def accepted(kind: type[BatchModelDrafter]) -> int:
        requests = [(SOURCES[0], options_of(temperature=1.0, seed=seed)) for seed in range(6)]
        made = kind(DraftModel(DRAFT), VOCAB)
        return sum(event.accepted for told in together(TARGET, requests, made) for event in told.rounds)

    assert accepted(BatchModelDrafter) > 2 * accepted(Independent) > 0


def logprobs_of(
    model: EncoderDecoder, drafter: Drafter, num_draft_tokens: int, strict: bool
) -> list[tuple[int, float]]:
    """Return the tokens of an output that does not end, and their log-probabilities."""
    options: dict[str, Any] = {"num_draft_tokens": num_draft_tokens, "strict": strict, "logprobs": True}
    rounds = run(model, SOURCES[0], drafter, ends=lambda token: False, max_tokens=100, **options)
    return [pair for event in rounds for pair in zip(event.tokens, event.logprobs or (), strict=True)]


DTYPES = (mx.float32, mx.bfloat16, mx.float16)


WIDE = {"d_model": 96, "d_kv": 24, "d_ff": 320, "num_heads": 4}  # enough for kernels to split their sums


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strict_passes_are_bit_identical_with_and_without_a_draft(dtype: mx.Dtype) -> None:
    model = tiny_model(seed=3, position_scale=1.0, **WIDE)
    model.set_dtype(dtype)
    plain = logprobs_of(model, NoDrafter(), 7, True)
    baseline = [token for token, _ in plain]
    assert len(baseline) == 100 and len(set(baseline)) > 3
    for num_draft_tokens in (1, 4, 7):  # draft lengths up to 7 use passes of one width
        third_wrong = Scripted(baseline, lambda i, token: (token + 1) % VOCAB if i % 3 == 2 else token)
        assert logprobs_of(model, third_wrong, num_draft_tokens, True) == plain


class Sensitive(type(TARGET)):  # type: ignore[misc]
    """A model whose bits depend on the width of a pass, unless the width is one of the exact ones. Records all widths.

    It shows that the test above can fail, even if this device computes the same bits for all widths.
    """

    def states(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
        width = tokens.shape[1]
        self.widths.append(width)
        return super().states(tokens, cache) * (1.0 + 1e-3 * (width not in EXACT.costs(1).passes) * width)


def sensitive() -> EncoderDecoder:
    model = Sensitive(TARGET.config)
    model.update(TARGET.parameters())
    model.widths = []
    return model


@pytest.mark.parametrize("strict", [True, False])
def test_width_dependent_bits_are_identical_only_in_strict_passes(strict: bool) -> None:
    model = sensitive()
    plain = logprobs_of(model, NoDrafter(), 4, strict)
    right = Scripted([token for token, _ in plain], lambda i, token: token)
    assert (logprobs_of(model, right, 4, strict) == plain) == strict


@pytest.mark.parametrize(("most", "expected"), [(0, {2}), (2, {4}), (4, {8}), (9, {8})])
def test_strict_passes_use_one_class_of_widths(most: int, expected: set[int]) -> None:
    model = sensitive()
    run(model, SOURCES[0], Scripted(BASELINE[0], lambda i, token: token, most), num_draft_tokens=9, strict=True)
    widths = set(model.widths)
    assert widths - {2, 4} == expected - {2, 4} and widths <= {2, 4, 8}


def test_stream_and_result_agree() -> None:
    responses = list(stream_generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20))
    result = generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20)
    assert result.text == "".join(response.text for response in responses) == Letters().decode(result.tokens)
    assert result.tokens == [response.token for response in responses]
    assert [response.finish_reason for response in responses] == [None] * (len(responses) - 1) + [result.finish_reason]
    assert result.stats.accepted_tokens == sum(response.from_draft for response in responses)
    assert result.stats.generated_tokens == len(result.tokens)
    assert result.stats.target_calls == sum(result.stats.accepted_histogram.values())


@pytest.mark.parametrize("drafter", DRAFTERS)
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


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_extra_eos_id_cuts_at_every_position_of_an_accepted_draft(drafter: str) -> None:
    baseline = max(BASELINE, key=lambda tokens: len(set(tokens)))
    source = SOURCES[BASELINE.index(baseline)]
    requests = [(source, options_of(eos_token_ids=(token, 0))) for token in sorted(set(baseline) - {EOS})]
    found = together(TARGET, requests, drafter_of_rows(drafter, TARGET, DRAFT, baseline_of))
    for (_, options), told in zip(requests, found, strict=True):
        end = min(baseline.index(token) for token in options.eos_token_ids if token in baseline)
        assert told.tokens == baseline[: end + 1]
        assert (told.text, told.finish_reason) == (Letters().decode(told.tokens[:-1]), "stop")


def test_generate_accepts_stop_strings_and_extra_eos_ids() -> None:
    plain = generate(TARGET, Letters(), "abc", draft_model=DRAFT)
    stop = plain.text[3:5]
    at = plain.text.index(stop)
    result = generate(TARGET, Letters(), "abc", draft_model=DRAFT, stop=[stop])
    assert (result.text, result.finish_reason) == (plain.text[:at], "stop")
    assert result.stats.generated_tokens == len(result.tokens) == at + 2
    ended = generate(TARGET, Letters(), "abc", draft_model=DRAFT, eos_token_ids=[plain.tokens[3]])
    assert ended.tokens == plain.tokens[: plain.tokens.index(plain.tokens[3]) + 1] and ended.finish_reason == "stop"


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


def test_greedy_total_variation_counts_tokens_that_are_not_the_arg_max() -> None:
    lenient = generate(TARGET, Letters(), "abc", delta=0.95, **MODEL_OF_5)
    prefix = mx.array([[0, *lenient.tokens]])
    encoder_output = TARGET.encode(mx.array([Letters().encode("abc")]))
    best = mx.argmax(TARGET.decode(prefix, TARGET.make_cache(encoder_output))[0], axis=-1).tolist()
    others = sum(token != right for token, right in zip(lenient.tokens, best, strict=False))  # type: ignore[arg-type]
    assert lenient.stats.delta_total_variation == others / len(lenient.tokens) > 0


def test_interrupted_call_does_not_change_the_next() -> None:
    expected = generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20).tokens
    for stop in range(1, 8):
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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": 1.0, "acceptance": "block", "delta": 0.1}, "delta"),
        ({"eos_token_ids": [VOCAB]}, "eos_token_ids"),
        ({"eos_token_ids": [-1]}, "eos_token_ids"),
        ({"prompt": " "}, "prompt"),
        ({"prompt": "a" * 40}, "prompt"),
        ({"max_token": 3}, "did you mean max_tokens"),
    ],
)
def test_invalid_arguments_are_named_before_decoding(options: dict[str, object], named: str) -> None:
    model = tiny_model(n_positions=32)
    arguments = {"prompt": "abc", "draft_model": model} | options
    with pytest.raises(InputError, match=named):
        stream_generate(model, Letters(), **arguments)  # type: ignore[arg-type]


def test_allow_long_prompt_accepts_long_prompts() -> None:
    model = tiny_model(n_positions=32)
    assert generate(model, Letters(), "a" * 40, allow_long_prompt=True, max_tokens=3).tokens

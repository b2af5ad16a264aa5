"""Laws of the loop: whoever drafts, and however much, the output is the target's own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, SamplingParams, acceptance, generate, stream_generate
from speculative_decoding.acceptance import Verdict
from speculative_decoding.drafters import ModelDrafter
from speculative_decoding.models.cache import DecoderCache, KVCache
from speculative_decoding.stats import Round
from speculative_decoding.tokenizer import Vocabulary
from tests.tiny import DRAFTERS, EOS, SOURCES, VOCAB, noisy_copy, run, tiny_model, tokens_of

generate_module = import_module("speculative_decoding.generate")  # the package gives that name to the function

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
REGULAR = [tokens_of(run(TARGET, source)) for source in SOURCES]
GREEDY = SamplingParams()


def check_identity(drafter: str, num_draft: int) -> None:
    for source, regular in zip(SOURCES, REGULAR, strict=True):
        made = DRAFTERS[drafter](TARGET, DRAFT, GREEDY, regular, False)
        rounds = run(TARGET, source, made, num_draft=num_draft)
        assert tokens_of(rounds) == regular


def test_the_tiny_models_exercise_the_loop() -> None:
    assert len({tuple(regular) for regular in REGULAR}) == len(REGULAR)
    assert any(regular[-1] == EOS for regular in REGULAR) and any(len(regular) == 30 for regular in REGULAR)
    rounds = [event for source in SOURCES for event in run(TARGET, source, ModelDrafter(DRAFT, TARGET, GREEDY))]
    accepted = {event.accepted for event in rounds}
    assert {0, 4} < accepted  # rejections at once, full acceptance, and something between


@pytest.mark.parametrize("num_draft", [0, 1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_output_is_that_of_regular_decoding(drafter: str, num_draft: int) -> None:
    check_identity(drafter, num_draft)


def rewind_one_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = KVCache.trim_to
    monkeypatch.setattr(KVCache, "trim_to", lambda self, offset: trim(self, max(0, offset - 1)))


def rewind_one_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = DecoderCache.trim_to
    monkeypatch.setattr(DecoderCache, "trim_to", lambda self, offset: trim(self, offset + 1))


def drop_the_bonus_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on behind the bonus token, but the reader never sees it."""

    def without_bonus(tokens: list[int], drafted: int, accepted: int, *rest: Any) -> Round:
        return Round(tokens[:-1] if accepted == drafted else tokens, drafted, accepted, *rest)

    monkeypatch.setattr(generate_module, "Round", without_bonus)


def keep_the_rejected_token(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Verdict.read

    def with_rejected(self: Verdict, draft):  # type: ignore[no-untyped-def]
        new, accepted, prices = read(self, draft)
        if accepted < draft.num_tokens:
            new[-1] = draft.tokens.tolist()[0][accepted]
        return new, accepted, prices

    monkeypatch.setattr(Verdict, "read", with_rejected)


@pytest.mark.parametrize(
    "plant", [rewind_one_too_far, rewind_one_too_short, drop_the_bonus_token, keep_the_rejected_token]
)
def test_a_planted_fault_breaks_identity(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_identity("every third wrong", 4)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_identity("every third wrong", 4)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 29])
def test_max_tokens_is_exact(drafter: str, max_tokens: int) -> None:
    for source, regular in zip(SOURCES, REGULAR, strict=True):
        rounds = run(TARGET, source, DRAFTERS[drafter](TARGET, DRAFT, GREEDY, regular, False), max_tokens=max_tokens)
        assert tokens_of(rounds) == regular[:max_tokens]
        ends = EOS in regular[:max_tokens]
        assert [event.finish_reason for event in rounds][-1] == ("stop" if ends else "length")
        assert all(event.finish_reason is None for event in rounds[:-1])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_nothing_follows_the_end_of_sequence(drafter: str) -> None:
    """At temperature 2 the end comes at every place, also inside drafts that run past it."""
    lengths = set()
    for seed in range(25):
        sampling = SamplingParams(temperature=2.0, seed=seed)
        made = DRAFTERS[drafter](TARGET, DRAFT, sampling, REGULAR[0], False)
        tokens = tokens_of(run(TARGET, SOURCES[0], made, sampling=sampling))
        assert EOS not in tokens[:-1]
        lengths.add(len(tokens))
    assert len(lengths) > 5


def test_counts_add_up() -> None:
    for source in SOURCES:
        for event in run(TARGET, source, ModelDrafter(DRAFT, TARGET, GREEDY), num_draft=4):
            assert 0 <= event.accepted <= event.drafted <= 4
            assert len(event.tokens) == event.accepted + 1 or event.finish_reason == "stop"


def test_one_wait_per_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """All reads of the device go through mx.eval or tolist; a round evaluates once, when it does not time its draft."""
    waits: list[int] = []
    evaluate = mx.eval
    monkeypatch.setattr(mx, "eval", lambda *arrays: (waits.append(len(arrays)), evaluate(*arrays))[1])
    rounds = run(TARGET, SOURCES[0], ModelDrafter(DRAFT, TARGET, GREEDY), num_draft=3)
    timed = sum(event.draft_seconds is not None for event in rounds)
    assert len(waits) == len(rounds) + timed


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_same_seed_same_tokens_and_other_seed_other_tokens(temperature: float) -> None:
    def sample(seed: int) -> list[int]:
        sampling = SamplingParams(temperature=temperature, seed=seed)
        return tokens_of(run(TARGET, SOURCES[2], ModelDrafter(DRAFT, TARGET, sampling), sampling=sampling))

    assert sample(3) == sample(3)
    assert len({tuple(sample(seed)) for seed in range(8)}) > 4


def sequence_law(length: int) -> dict[tuple[int, ...], float]:
    """P of every output of at most `length` tokens at temperature 1, by running the target over all of them."""

    cache = SMALL.make_cache(SMALL.encode(mx.array([SMALL_SOURCE] * SMALL_VOCAB ** (length - 1))))
    prefixes = np.array(list(product(range(SMALL_VOCAB), repeat=length - 1)))
    start = np.zeros((len(prefixes), 1), dtype=int)
    logits = np.array(SMALL.decode(mx.array(np.hstack([start, prefixes])), cache)).astype(np.float64)
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    law: dict[tuple[int, ...], float] = {}
    for prefix, table in zip(prefixes.tolist(), probs, strict=True):
        for last in range(SMALL_VOCAB):
            sequence = [*prefix, last]
            mass = np.prod([table[i, token] for i, token in enumerate(sequence)])
            end = sequence.index(EOS) + 1 if EOS in sequence else length
            # sequences that share what comes before the end are one outcome, counted once per continuation
            key = tuple(sequence[:end])
            law[key] = law.get(key, 0.0) + float(mass)
    return law


SMALL_VOCAB = 5
SMALL = tiny_model(seed=4, scale=0.45, vocab_size=SMALL_VOCAB)
SMALL_DRAFT = noisy_copy(SMALL, noise=0.25)
SMALL_SOURCE = [4, 3, 2, 1]


def chi_square(samples: int = 700, length: int = 3, delta: float = 0.0, num_draft: int = 2) -> tuple[float, int]:
    """(statistic, degrees of freedom) of sampled whole outputs against their exact law."""
    law = sequence_law(length)
    counts = dict.fromkeys(law, 0)
    for seed in range(samples):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        drafter = ModelDrafter(SMALL_DRAFT, SMALL, sampling)
        rounds = run(
            SMALL, SMALL_SOURCE, drafter, sampling=sampling, delta=delta, num_draft=num_draft, max_tokens=length
        )
        outcome = tuple(tokens_of(rounds))
        counts[outcome] = counts.get(outcome, 0) + 1
    expected = {outcome: mass * samples for outcome, mass in law.items()}
    common = [outcome for outcome, count in expected.items() if count >= 5]
    rest_expected = samples - sum(expected[outcome] for outcome in common)
    rest_found = samples - sum(counts[outcome] for outcome in common)
    assert counts.keys() == law.keys()  # nothing that cannot happen
    statistic = sum((counts[outcome] - expected[outcome]) ** 2 / expected[outcome] for outcome in common)
    statistic += (rest_found - rest_expected) ** 2 / max(rest_expected, 1e-9) if rest_expected > 1 else 0.0
    return statistic, len(common) - (0 if rest_expected > 1 else 1)


def limit(freedom: int) -> float:
    """The statistic's 1 - 1e-4 quantile (Wilson and Hilferty's approximation)."""
    return float(freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3)


def check_law(**options: float) -> None:
    statistic, freedom = chi_square(**options)  # type: ignore[arg-type]
    assert statistic < limit(freedom)


def test_sampled_sequences_follow_the_targets_law() -> None:
    check_law()


def raw_logits_for_probs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SamplingParams, "probs", lambda self, logits: mx.maximum(logits, 0))


def correction_from_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def unadjusted(draft, probs, weights, accepted):  # type: ignore[no-untyped-def]
        return mx.take_along_axis(probs, accepted[:, None, None], axis=1)[:, 0]

    monkeypatch.setattr(acceptance, "residual", unadjusted)


@pytest.mark.parametrize(
    "plant", [raw_logits_for_probs, correction_from_the_target, drop_the_bonus_token, rewind_one_too_far]
)
def test_a_planted_fault_breaks_the_law(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_law()


def test_delta_breaks_the_law() -> None:
    with pytest.raises(AssertionError):
        check_law(delta=0.5)


class Letters:
    """A tokenizer for tests: id 2 is 'a', 3 is 'b' and so on."""

    def encode(self, text: str) -> list[int]:
        return [*(ord(letter) - ord("a") + 2 for letter in text), EOS]

    def decode(self, tokens) -> str:  # type: ignore[no-untyped-def]
        return "".join(chr(ord("a") + token - 2) for token in tokens if token >= 2)

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary({chr(ord("a") + i - 2): i for i in range(2, VOCAB)})


def test_stream_and_result_agree() -> None:
    responses = list(stream_generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20))
    result = generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20)
    assert result.text == "".join(response.text for response in responses) == Letters().decode(result.tokens)
    assert result.tokens == [response.token for response in responses]
    assert [response.finish_reason for response in responses] == [None] * (len(responses) - 1) + [result.finish_reason]
    assert result.stats.accepted_tokens == sum(response.from_draft for response in responses)
    assert result.stats.generated_tokens == len(result.tokens)
    assert result.stats.target_calls == sum(result.stats.accepted_histogram.values())


def test_an_interrupted_call_leaves_no_trace() -> None:
    expected = generate(TARGET, Letters(), "abc", draft_model=DRAFT).tokens
    for stop in range(1, 8):
        stream = stream_generate(TARGET, Letters(), "cab", draft_model=DRAFT)
        for _ in range(stop):
            next(stream)
        stream.close()
        assert generate(TARGET, Letters(), "abc", draft_model=DRAFT).tokens == expected


def test_delta_marks_the_output_lossy_and_accepts_more() -> None:
    exact = generate(TARGET, Letters(), "abc", draft_model=DRAFT)
    lenient = generate(TARGET, Letters(), "abc", draft_model=DRAFT, delta=1.0)
    assert exact.stats.lossless and not lenient.stats.lossless
    assert lenient.stats.acceptance_rate > exact.stats.acceptance_rate
    assert generate(TARGET, Letters(), "abc", delta=1.0).stats.lossless  # nothing is drafted, so nothing is lost


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_draft": -1}, "num_draft"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"delta": 1.5}, "delta"),
        ({"delta": -0.1}, "delta"),
        ({"prompt": " "}, "prompt"),
        ({"prompt": "a" * 40}, "prompt"),
    ],
)
def test_bad_arguments_are_named_at_the_call(options: dict[str, object], named: str) -> None:
    model = tiny_model(n_positions=32)
    arguments = {"prompt": "abc"} | options
    with pytest.raises(InputError, match=named):
        stream_generate(model, Letters(), **arguments)  # type: ignore[arg-type]


def test_bad_sampling_is_named() -> None:
    for options in ({"temperature": -1.0}, {"temperature": float("nan")}, {"seed": -1}, {"seed": 2**32}):
        with pytest.raises(InputError, match=next(iter(options))):
            SamplingParams(**options)  # type: ignore[arg-type]


def test_long_prompts_are_accepted_when_asked() -> None:
    model = tiny_model(n_positions=32)
    assert generate(model, Letters(), "a" * 40, allow_long_prompt=True, max_tokens=3).tokens

"""Laws of the loop: whoever drafts, and however much, the output is the target's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, SamplingParams, generate, stream_generate
from speculative_decoding.decoding.acceptance import Coupled, Greedy, Verdict
from speculative_decoding.decoding.ending import Ending
from speculative_decoding.decoding.stats import Round
from speculative_decoding.drafters import Drafter, ModelDrafter, NoDrafter
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from tests.tiny import DRAFTERS, EOS, SOURCES, VOCAB, Scripted, noisy_copy, run, tiny_model, tokens_of

loop = import_module("speculative_decoding.decoding.loop")  # the package gives that name to the function

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


@pytest.mark.parametrize("num_draft", [0, 1, 2, 5, 12])  # those between: below
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_output_is_that_of_regular_decoding(drafter: str, num_draft: int) -> None:
    check_identity(drafter, num_draft)


def rewind_one_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = DecoderCache.trim_to
    monkeypatch.setattr(
        DecoderCache, "trim_to", lambda self, offsets: trim(self, [max(0, each - 1) for each in offsets])
    )


def rewind_one_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = DecoderCache.trim_to
    monkeypatch.setattr(DecoderCache, "trim_to", lambda self, offsets: trim(self, [each + 1 for each in offsets]))


def drop_the_bonus_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on behind the bonus token, but the reader never sees it."""

    def without_bonus(tokens: list[int], drafted: int, accepted: int, *rest: Any) -> Round:
        return Round(tokens[:-1] if accepted == drafted else tokens, drafted, accepted, *rest)

    monkeypatch.setattr(loop, "Round", without_bonus)


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
    for seed in range(16):
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


PENALTY = SamplingParams(repetition_penalty=1.5)


def without_cache(model: EncoderDecoder, source: list[int], penalty: float, max_tokens: int) -> list[int]:
    """Greedy decoding as transformers has it, written down again: no cache, no draft, numpy."""
    tokens = [0]
    memory = model.encode(mx.array([source]))
    while len(tokens) <= max_tokens and EOS not in tokens:
        logits = np.array(model.decode(mx.array([tokens]), model.make_cache(memory)))[0, -1]
        for token in set(tokens):
            logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
        tokens.append(int(logits.argmax()))
    return tokens[1:]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_repetition_penalty_acts_on_the_tokens_before_each_position(drafter: str) -> None:
    for number, source in enumerate(SOURCES):
        expected = without_cache(TARGET, source, PENALTY.repetition_penalty, 20)
        made = DRAFTERS[drafter](TARGET, DRAFT, PENALTY, expected, False)
        assert tokens_of(run(TARGET, source, made, sampling=PENALTY, num_draft=number + 2, max_tokens=20)) == expected
    assert expected != REGULAR[-1][:20]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_coupled_output_depends_on_the_seed_alone(drafter: str) -> None:
    """Drafts of 0 to 12 tokens at two temperatures, every transformation of the distribution."""
    outputs = set()
    for seed in range(26):
        temperature = 0.7 if seed < 13 else 1.0
        extra = {"top_k": 9, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2} if seed % 2 else {}
        sampling = SamplingParams(temperature=temperature, seed=seed, **extra)  # type: ignore[arg-type]
        source = SOURCES[seed % len(SOURCES)]
        regular = coupled_regular(tuple(source), sampling)
        made = DRAFTERS[drafter](TARGET, DRAFT, sampling, regular, True)
        rounds = run(TARGET, source, made, sampling=sampling, rule=Coupled(), num_draft=seed % 13, max_tokens=14)
        assert tokens_of(rounds) == regular
        outputs.add(tuple(regular))
    assert len(outputs) > 20


@cache
def coupled_regular(source: Sequence[int], sampling: SamplingParams) -> list[int]:
    return tokens_of(run(TARGET, source, sampling=sampling, rule=Coupled(), max_tokens=14))


def test_a_coupled_draft_is_accepted_more_often_than_an_independent_one() -> None:
    def accepted(coupled: bool) -> int:
        params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(6)]
        rounds = [
            run(TARGET, SOURCES[0], ModelDrafter(DRAFT, TARGET, p, coupled=coupled), sampling=p, rule=Coupled())
            for p in params
        ]
        return sum(event.accepted for events in rounds for event in events)

    assert accepted(True) > 2 * accepted(False) > 0


def recorded_logits(
    monkeypatch: pytest.MonkeyPatch, num_draft: int, drafter: Drafter, strict: bool, dtype: mx.Dtype
) -> dict[int, mx.array]:
    """What the target's passes computed for each committed position of a run."""
    found: dict[int, mx.array] = {}
    verdict = Greedy.verdict

    def recording(self, draft, logits, sampling, tokens):  # type: ignore[no-untyped-def]
        result = verdict(self, draft, logits, sampling, tokens)
        for i in range(result.accepted.item() + 1):
            found[len(tokens) + i] = logits[0, i]
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Greedy, "verdict", recording)
        options: dict[str, Any] = {"num_draft": num_draft, "max_tokens": 100, "ends": lambda token: False}
        rounds = run(WIDE[dtype], SOURCES[0], drafter, strict=strict, **options)
        found[-1] = mx.array(tokens_of(rounds))
    return found


def cast(model: EncoderDecoder, dtype: mx.Dtype) -> EncoderDecoder:
    model.set_dtype(dtype)
    return model


# Wide enough that kernels block and split their sums; and long enough that the cache grows and keys are added.
WIDE = {
    dtype: cast(tiny_model(seed=3, position_scale=1.0, d_model=96, d_kv=24, d_ff=320, num_heads=4), dtype)
    for dtype in (mx.float32, mx.bfloat16, mx.float16)
}


@pytest.mark.parametrize("num_draft", [1, 4, 7])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_strict_passes_compute_the_same_bits_with_and_without_a_draft(
    dtype: mx.Dtype, num_draft: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = recorded_logits(monkeypatch, num_draft, NoDrafter(), True, dtype)
    regular = plain[-1].tolist()
    assert len(regular) == 100 and len(set(regular)) > 3  # type: ignore[arg-type]
    third_wrong = Scripted(regular, lambda i, token: (token + 1) % VOCAB if i % 3 == 2 else token)  # type: ignore[arg-type]
    drafted = recorded_logits(monkeypatch, num_draft, third_wrong, True, dtype)
    assert plain.keys() == drafted.keys()
    for position, logits in plain.items():
        assert mx.array_equal(logits, drafted[position]), position


def test_where_bits_depend_on_the_width_of_a_pass_only_strict_passes_have_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the test above can fail, also where kernels happen to give the same bits at any width."""
    decode = EncoderDecoder.decode

    def sensitive(self: EncoderDecoder, tokens: mx.array, cache: DecoderCache) -> mx.array:
        return decode(self, tokens, cache) * (1.0 + 1e-3 * tokens.shape[1])

    monkeypatch.setattr(EncoderDecoder, "decode", sensitive)
    for strict in (True, False):
        plain = recorded_logits(monkeypatch, 4, NoDrafter(), strict, mx.float32)
        right = Scripted(plain[-1].tolist(), lambda i, token: token)  # type: ignore[arg-type]
        drafted = recorded_logits(monkeypatch, 4, right, strict, mx.float32)
        assert plain.keys() == drafted.keys()
        assert strict == all(mx.array_equal(logits, drafted[position]) for position, logits in plain.items())


def test_strict_passes_all_have_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = set()
    states = type(TARGET).states

    def recording(self, tokens, cache):  # type: ignore[no-untyped-def]
        result = states(self, tokens, cache)
        shapes.add((tokens.shape[1], cache.capacity))
        return result

    monkeypatch.setattr(type(TARGET), "states", recording)
    for drafter in (NoDrafter(), Scripted(REGULAR[0], lambda i, token: token, most=2)):
        run(TARGET, SOURCES[0], drafter, num_draft=4, max_tokens=100, strict=True)
    assert shapes == {(8, 128)}


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


def stopped(
    source: list[int], drafter: Drafter, stop: Sequence[str], eos: Sequence[int] = ()
) -> tuple[str, list[int], str | None]:
    """(text, tokens, finish_reason) of a greedy run that ends at stop strings; checks that no text came too early."""
    ending, text = Ending(Letters(), {EOS, *eos}, stop), ""
    rounds = run(TARGET, source, drafter, ends=ending)
    tokens = tokens_of(rounds)
    whole = Letters().decode(tokens)
    for _ in tokens:
        text += ending.next_text()
        assert whole.startswith(text) and not any(each in text for each in stop)
    assert all(event.accepted <= len(event.tokens) for event in rounds)
    return text + ending.finish(), tokens, rounds[-1].finish_reason


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_stop_string_cuts_at_every_place_of_an_accepted_draft(drafter: str) -> None:
    """Each one to three letters of the regular text in turn are the stop string."""
    for regular, source in zip(REGULAR, SOURCES, strict=True):
        letters = Letters().decode(regular)
        for stop in sorted({letters[i : i + size] for i, size in product(range(min(len(letters), 9)), (1, 3))}):
            at = letters.index(stop)
            made = DRAFTERS[drafter](TARGET, DRAFT, GREEDY, regular, False)
            text, tokens, reason = stopped(source, made, ["~", stop])
            assert (text, reason) == (letters[:at], "stop")
            assert Letters().decode(tokens) == letters[: at + len(stop)] and tokens == regular[: len(tokens)]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_an_extra_end_of_sequence_id_cuts_at_every_place_of_an_accepted_draft(drafter: str) -> None:
    regular = max(REGULAR, key=lambda tokens: len(set(tokens)))
    source = SOURCES[REGULAR.index(regular)]
    for token in set(regular) - {EOS}:
        made = DRAFTERS[drafter](TARGET, DRAFT, GREEDY, regular, False)
        text, tokens, reason = stopped(source, made, [], [token, 0])
        assert tokens == regular[: regular.index(token) + 1] and reason == "stop"
        assert text == Letters().decode(tokens[:-1])


def test_generate_takes_stop_strings_and_extra_ids() -> None:
    plain = generate(TARGET, Letters(), "abc", draft_model=DRAFT)
    stop = plain.text[3:5]
    at = plain.text.index(stop)
    result = generate(TARGET, Letters(), "abc", draft_model=DRAFT, stop=[stop])
    assert (result.text, result.finish_reason) == (plain.text[:at], "stop")
    assert result.stats.generated_tokens == len(result.tokens) == at + 2
    ended = generate(TARGET, Letters(), "abc", draft_model=DRAFT, eos_token_ids=[plain.tokens[3]])
    assert ended.tokens == plain.tokens[: plain.tokens.index(plain.tokens[3]) + 1] and ended.finish_reason == "stop"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_lossy_run_reports_its_price(temperature: float) -> None:
    def price(**options: Any) -> float:
        sampling = SamplingParams(temperature=temperature, seed=2)
        return generate(
            TARGET, Letters(), "abc", draft_model=DRAFT, sampling=sampling, **options
        ).stats.delta_total_variation

    assert price() == 0
    assert 0 < price(delta=0.9) <= 1
    assert price(delta=1.0) >= price(delta=0.0)
    if temperature > 0:
        assert 0 < price(delta=0.2) <= 0.2
        assert price(skip_sample_adjustment=True) > 0
        assert price(acceptance="block") == price(acceptance="coupled") == 0


def test_at_temperature_0_the_price_counts_tokens_that_are_not_the_arg_max() -> None:
    lenient = generate(TARGET, Letters(), "abc", draft_model=DRAFT, delta=0.95)
    prefix = mx.array([[0, *lenient.tokens]])
    memory = TARGET.encode(mx.array([Letters().encode("abc")]))
    best = mx.argmax(TARGET.decode(prefix, TARGET.make_cache(memory))[0], axis=-1).tolist()
    others = sum(token != right for token, right in zip(lenient.tokens, best, strict=False))  # type: ignore[arg-type]
    assert lenient.stats.delta_total_variation == others / len(lenient.tokens) > 0


def test_an_interrupted_call_leaves_no_trace() -> None:
    expected = generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20).tokens
    for stop in range(1, 8):
        stream = stream_generate(TARGET, Letters(), "cab", draft_model=DRAFT)
        for _ in range(stop):
            next(stream)
        stream.close()
        assert generate(TARGET, Letters(), "abc", draft_model=DRAFT, max_tokens=20).tokens == expected


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
        ({"acceptance": "typical"}, "acceptance"),
        ({"acceptance": "block", "delta": 0.1}, "delta"),
        ({"stop": [""]}, "stop"),
        ({"stop": "word"}, "stop"),
        ({"eos_token_ids": [VOCAB]}, "eos_token_ids"),
        ({"eos_token_ids": [-1]}, "eos_token_ids"),
        ({"prompt": " "}, "prompt"),
        ({"prompt": "a" * 40}, "prompt"),
    ],
)
def test_bad_arguments_are_named_at_the_call(options: dict[str, object], named: str) -> None:
    model = tiny_model(n_positions=32)
    arguments = {"prompt": "abc"} | options
    with pytest.raises(InputError, match=named):
        stream_generate(model, Letters(), **arguments)  # type: ignore[arg-type]


def test_long_prompts_are_accepted_when_asked() -> None:
    model = tiny_model(n_positions=32)
    assert generate(model, Letters(), "a" * 40, allow_long_prompt=True, max_tokens=3).tokens

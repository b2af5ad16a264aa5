"""Non-finite logits end their request with a one-line error, and masked positions never change a token.

In most tests the embedding of one token is not finite. It spoils a source that contains the token, an output after it,
a draft that proposes it, or the padding.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from speculative_decoding import InputError, batch_generate, generate, score, stream_generate
from speculative_decoding.drafters import NgramDrafter, RequestView, SeparateDrafters
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from tests.support.tiny import VOCAB, Scripted, noisy_copy, tiny_model, tiny_model_like
from tests.support.together import Letters

MODEL = tiny_model(pad_token_id=22)
DRAFT = noisy_copy(MODEL)
BAD = 13  # a token that no text below contains
MESSAGE = "target: the logits of output token {} are not finite"
RULES: dict[str, Mapping[str, Any]] = {
    "greedy": {},
    "penalty": {"repetition_penalty": 1.3},
    "rejection": {"temperature": 1.0, "acceptance": "rejection"},
    "block": {"temperature": 1.0, "acceptance": "block"},
    "coupled": {"temperature": 1.0, "seed": 4, "logprobs": True},
}
DRAFTS: dict[str, Mapping[str, Any]] = {
    "none": {"drafter": "none"},
    "model": {"drafter": "model", "num_draft_tokens": 4},
    "ngram": {"drafter": "ngram", "num_draft_tokens": 4, "ngram": NgramDrafter(min_chance=0.0)},
    "text": {"drafter": "text", "num_draft_tokens": 4, "draft_text": ["abcdef", "nlnlnl"]},  # "l" is BAD
    "auto": {},
}


def changed(place: str, values: Mapping[int, float]) -> EncoderDecoder:
    """Copy the model and set the rows of these tokens, in the embedding or the head, to these values."""
    model = tiny_model_like(MODEL)
    model.update(MODEL.parameters())
    table = {"embedding": model.embedding, "head": model.head}[place]
    weight = mx.array(table.weight)
    for token, value in values.items():
        weight[token] = value
    table.weight = weight
    return model


def alone(prompt: str = "abc", **options: Any) -> list[int]:
    return generate(MODEL, Letters(), prompt, drafter="none", **options).tokens


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("value", "draft", "rule"),
    [
        *product([mx.nan], ["model"], RULES),
        *product([mx.nan], ["none", "ngram", "text", "auto"], ["greedy"]),
        (mx.inf, "model", "coupled"),
    ],
    ids=str,
)
def test_non_finite_logits_are_a_one_line_error(value: float, draft: str, rule: str) -> None:
    broken = changed("head", {5: value})
    with pytest.raises(InputError) as error:
        generate(broken, Letters(), "abc", draft_model=DRAFT, max_tokens=9, **DRAFTS[draft], **RULES[rule])
    assert str(error.value).startswith(MESSAGE.format(1)) and "\n" not in str(error.value)


def test_logits_are_an_error_only_if_none_is_finite() -> None:
    class Masked:
        """Sets all but the first `left` logits to -inf."""

        def __init__(self, left: int) -> None:
            self.left = left

        def __call__(self, states: mx.array) -> mx.array:
            logits = MODEL.logits(states)
            return mx.where(mx.arange(VOCAB) < self.left, logits, -mx.inf)

    model = changed("head", {})
    object.__setattr__(model, "logits", Masked(1))
    assert {*generate(model, Letters(), "abc", max_tokens=5).tokens} == {0}
    object.__setattr__(model, "logits", Masked(0))
    with pytest.raises(InputError, match=MESSAGE.format(1)):
        generate(model, Letters(), "abc", max_tokens=5)


@pytest.mark.parametrize("draft", ["none", "model"])
def test_text_before_the_first_non_finite_logits_is_streamed(draft: str) -> None:
    baseline = alone(max_tokens=12)
    prompt = Letters().encode("abc")
    at = next(at for at in range(2, 12) if baseline[at] not in [*baseline[:at], *prompt])
    broken = changed("embedding", {baseline[at]: mx.nan})
    tokens = []
    with pytest.raises(InputError, match=MESSAGE.format(at + 2)):
        for response in stream_generate(broken, Letters(), "abc", draft_model=DRAFT, max_tokens=12, **DRAFTS[draft]):
            tokens.append(response.token)
    assert tokens == baseline[: at + 1]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("value", "rule"), [(mx.nan, "greedy"), (mx.nan, "penalty"), (mx.inf, "coupled"), (-mx.inf, "greedy")], ids=str
)
def test_rejected_non_finite_draft_tokens_change_nothing(value: float, rule: str) -> None:
    """Their keys and values stay in the cache, masked, until other tokens overwrite them."""
    baseline = alone(max_tokens=20, **RULES[rule])
    broken = changed("embedding", {BAD: value})
    assert BAD not in baseline
    for choose in (lambda i, token: BAD, lambda i, token: BAD if i % 3 == 2 else token):
        found = generate(
            broken,
            Letters(),
            "abc",
            drafter=Scripted(baseline, choose),
            num_draft_tokens=5,
            max_tokens=20,
            **RULES[rule],
        )
        assert found.tokens == baseline and found.stats.drafted_tokens > 20


def test_drafters_observe_only_finite_states() -> None:
    """A pass whose logits were not finite commits nothing, so drafters do not observe it."""
    baseline, shown = alone(max_tokens=20), Counter[bool]()

    class Watching(SeparateDrafters[Scripted]):
        def use_cache(self, cache: DecoderCache) -> None:
            self.cache, cache.recorded_layers = cache, (0,)

        def observe(self, requests: Sequence[RequestView], counts: Sequence[int]) -> None:
            for request, count in zip(requests, counts, strict=True):
                shown[bool(mx.isfinite(self.cache.hidden[0][request.slot, :count]).all())] += 1

    drafter = Watching(lambda: Scripted(baseline, lambda i, token: BAD if i == 9 else token))
    broken = changed("embedding", {BAD: mx.nan})
    found = generate(broken, Letters(), "abc", drafter=drafter, num_draft_tokens=3, max_tokens=20)
    assert found.tokens == baseline and shown[False] == 0 < shown[True] < found.stats.target_calls


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("draft", ["none", "model", "text"])
def test_other_rows_of_the_batch_continue(draft: str) -> None:
    """This includes requests that later take the slot of a failed one."""
    bad = Letters().decode([3, BAD, 4])
    prompts = ["abc", 12 * bad, "hgfedcba", "b", bad, "cabbage", "ee"]
    broken = changed("embedding", {BAD: mx.nan})
    options = DRAFTS[draft] | {"draft_model": DRAFT, "max_tokens": 8}
    for found in batch_generate(broken, Letters(), prompts, slots=2, **options):
        if BAD in Letters().encode(prompts[found.index]):
            assert found.result is None and (found.error or "").startswith(MESSAGE.format(1))
        else:
            assert found.result is not None and found.result.tokens == alone(prompts[found.index], max_tokens=8)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("draft", ["none", "model", "text"])
def test_non_finite_padding_changes_nothing(draft: str) -> None:
    """Padding follows shorter sources, and drafts that are shorter than the pass."""
    prompts = ["abc", "hgfedcba", "b", "cabbage", "ee"]
    broken = changed("embedding", {22: mx.nan})
    options = DRAFTS[draft] | {"draft_model": DRAFT, "max_tokens": 8}
    for found in batch_generate(broken, Letters(), prompts, slots=3, **options):
        assert found.result is not None, found.error
        assert found.result.tokens == alone(prompts[found.index], max_tokens=8)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("rule", RULES)
def test_non_finite_draft_model_changes_nothing(rule: str) -> None:
    broken = noisy_copy(MODEL)
    broken.head.weight = mx.full(broken.head.weight.shape, mx.nan)
    own = {"draft_model": broken, "drafter": "model", "num_draft_tokens": 4, "max_tokens": 12}
    found = generate(MODEL, Letters(), "abc", **own, **RULES[rule]).tokens
    assert len(found) == 12 if rule in ("rejection", "block") else found == alone(max_tokens=12, **RULES[rule])


def test_score_reports_non_finite_logits() -> None:
    with pytest.raises(InputError, match="not finite"):
        score(changed("head", {5: mx.nan}), Letters(), "abc", "ab")


def test_overflowing_weights_give_the_same_text_or_error_with_any_draft() -> None:
    """The weights may be in any parameter. Some of them overflow only for some tokens."""
    dice, seen = random.Random(0), Counter[str]()
    parameters: list[tuple[str, mx.array]] = tree_flatten(MODEL.parameters())

    def outcome(model: EncoderDecoder, **options: Any) -> list[int] | str:
        try:
            return generate(model, Letters(), "abc", max_tokens=8, **options).tokens
        except InputError as error:
            return str(error)

    for _ in range(30):
        name, weight = dice.choice(parameters)
        large = mx.array(weight)
        for _ in range(dice.choice([1, 5])):
            large[tuple(dice.randrange(size) for size in weight.shape)] = dice.choice([3e38, -3e38, 1e38, 1e30])
        model = changed("head", {})
        model.load_weights([(name, large)], strict=False)
        expected = outcome(model, **DRAFTS["none"])
        seen[type(expected).__name__] += 1
        for draft in ("model", "ngram", "text"):
            assert outcome(model, draft_model=DRAFT, **DRAFTS[draft]) == expected, name
    assert min(seen["list"], seen["str"]) > 3, seen

"""A row of a batch gives the result of a single request, independent of the other rows."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import GenerationResult, InputError, Session, batch_generate, generate
from speculative_decoding.draft_length import DraftLength, DraftOutcome, FixedLength
from speculative_decoding.drafters import NgramDrafter, RequestView
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.engine import QUEUE_PER_SLOT
from speculative_decoding.models.memory_budget import slots_within
from speculative_decoding.sampling import GenerationOptions
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import model_drafter, noisy_copy, tiny_model
from tests.support.together import Letters

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
TRIMMED = DraftVocabulary((1, 3, 5, 8, 9, 13, 20))
PROMPTS = ["abc", "b", "hgfedcba", "aa", "cabbage", "fed", "deadbeef", "g", "abcdefghijkl", "cc", "hij", "ecb", "iii"]
DRAFTERS: dict[str, dict[str, Any]] = {
    "none": {"drafter": "none"},
    "model": {"drafter": "model", "draft_model": DRAFT},
    "model, trimmed": {"drafter": "model", "draft_model": DRAFT, "draft_vocabulary": TRIMMED},
    "default": {"draft_model": DRAFT},
    "default, without a draft model": {},
    "ngram": {"drafter": "ngram", "ngram": NgramDrafter(min_chance=0.0)},
    "auto": {"draft_model": DRAFT, "drafter": "auto", "ngram": NgramDrafter(min_chance=0.0)},
    "text": {"drafter": "text", "draft_text": ["kkbekjkkkhkk", "hijab"]},
    "auto with a text": {"draft_model": DRAFT, "drafter": "auto", "draft_text": "kkbekjkkkhkk"},
}


def batch(prompts: list[Any], **options: Any) -> list[GenerationResult]:
    found = {each.index: each for each in batch_generate(TARGET, Letters(), prompts, **options)}
    assert sorted(found) == list(range(len(prompts)))
    results = []
    for index in range(len(prompts)):
        result = found[index].result
        assert result is not None, found[index].error
        results.append(result)
    return results


def same(one: GenerationResult, other: GenerationResult) -> bool:
    return (one.text, one.tokens, one.finish_reason) == (other.text, other.tokens, other.finish_reason)


@cache
def alone(**options: Any) -> list[GenerationResult]:
    """Decode each prompt as a single request without a draft."""
    return [generate(TARGET, Letters(), prompt, drafter="none", **options) for prompt in PROMPTS]


def check_identity(slots: int, drafter: str = "model", num_draft_tokens: Any = 5, **options: Any) -> None:
    length = {} if drafter.startswith(("none", "default")) else {"num_draft_tokens": num_draft_tokens}
    results = batch(PROMPTS, slots=slots, **length, **DRAFTERS[drafter], **options)
    assert all(map(same, results, alone(**options)))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("drafter", "slots"), [*((drafter, 3) for drafter in DRAFTERS), ("model", 32)])
def test_batch_row_equals_single_row(drafter: str, slots: int) -> None:
    """With 3 slots, prompts take the slots of finished ones; with 32, all start together."""
    check_identity(slots, drafter, max_tokens=20)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("acceptance", ["rejection", "block"])
def test_samples_do_not_depend_on_other_rows(acceptance: str) -> None:
    """Random keys depend on the seed and the position of a row, so rows equal single requests.

    This does not hold for drafters that learn from other rows: their drafts, and so the sample of a seed, depend on
    earlier rows. Their distribution does not, and neither do coupled samples.
    """
    options: dict[str, Any] = {"temperature": 1.0, "acceptance": acceptance, "num_draft_tokens": 5, "max_tokens": 12}
    options |= DRAFTERS["model, trimmed"]
    rows = [{"prompt": prompt, "seed": seed} for seed, prompt in enumerate(PROMPTS[:8])]
    expected = [generate(TARGET, Letters(), **row, **options) for row in rows]
    assert all(map(same, batch(rows, slots=4, **options), expected))


OWN: list[dict[str, Any]] = [
    {},
    {"max_tokens": 3},
    {"temperature": 1.0, "seed": 5},
    {"repetition_penalty": 1.5},
    {"stop": ["b", "d"]},
    {"eos_token_ids": [6, 9]},
    {"num_draft_tokens": 0},
    {"num_draft_tokens": 7, "max_tokens": 30},
    {"temperature": 0.7, "top_k": 5, "seed": 2, "acceptance": "block", "num_draft_tokens": 1},
    {"decoder_prefix": [4, 7, 2]},
    {"max_tokens": 1},
]


ROWS = [{"prompt": prompt} | own for prompt, own in zip(PROMPTS, [*OWN, *OWN], strict=False)]
SHARED: dict[str, Any] = {"max_tokens": 12, "draft_model": DRAFT, "drafter": "model", "num_draft_tokens": 5}


@pytest.mark.usefixtures("device")
def test_rows_may_have_different_options() -> None:
    for row, result in zip(ROWS, batch(ROWS, slots=5, **SHARED), strict=True):
        options = SHARED | row
        if options["num_draft_tokens"] == 0:  # generate warns about a drafter without effect
            del options["drafter"]
        assert same(result, generate(TARGET, Letters(), **options)), row


def test_batch_row_has_the_drafts_of_a_single_row() -> None:
    """Therefore a batch has the acceptance rate of single requests."""
    options: dict[str, Any] = {"draft_model": DRAFT, "drafter": "model", "num_draft_tokens": 5, "max_tokens": 20}
    alone = [generate(TARGET, Letters(), prompt, **options).stats for prompt in PROMPTS]
    together = [result.stats for result in batch(PROMPTS, slots=4, **options)]
    for one, other in zip(alone, together, strict=True):
        assert one.accepted_histogram == other.accepted_histogram and one.drafted_tokens == other.drafted_tokens


def test_prompts_are_read_a_bounded_number_ahead() -> None:
    read = 0

    def prompts() -> Iterator[str]:
        nonlocal read
        for number in range(10_000):
            read = number + 1
            yield PROMPTS[number % len(PROMPTS)]

    results = Session(TARGET, Letters()).batch_as_completed(prompts(), slots=2, max_tokens=4)
    assert read == 0
    for done in range(1, 41):
        next(results)
        assert read <= done + 2 + QUEUE_PER_SLOT * 2
    results.close()  # type: ignore[attr-defined]


def peaks(slots: int, counts: list[int]) -> list[int]:
    """Return the peak bytes of one batch after each number of prompts, without the memory in use before it."""
    gc.collect()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    prompts = (PROMPTS[number % len(PROMPTS)] for number in range(max(counts)))
    results = batch_generate(TARGET, Letters(), prompts, slots=slots, draft_model=DRAFT, max_tokens=6)
    return [mx.get_peak_memory() - before for done, _ in enumerate(results, 1) if done in counts]


def test_peak_memory_grows_with_slots_but_not_with_prompts() -> None:
    """The peak varies by a factor of up to 1.5 because evaluation is asynchronous; a leak per prompt exceeds it."""
    few, early, later = peaks(2, [30])[0], *peaks(16, [60, 300])
    assert few < early and later < 2 * early


class Watched(FixedLength):
    """A fixed length that records the number of rows in each call."""

    def __init__(self) -> None:
        super().__init__(3)
        self.asked: list[int] = []
        self.told: list[int] = []

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        self.asked.append(len(limits))
        return super().choose(kinds, limits)

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        assert all(0 <= outcome.accepted <= outcome.drafted <= 3 for outcome in outcomes)
        self.told.append(len(outcomes))


def test_draft_length_is_chosen_for_all_rows_that_share_a_policy() -> None:
    shared, own = Watched(), Watched()
    rows: list[Any] = [
        {"prompt": prompt} | ({"num_draft_tokens": own} if i == 1 else {}) for i, prompt in enumerate("abcd")
    ]
    batch(rows, slots=4, draft_model=DRAFT, num_draft_tokens=shared, max_tokens=8)
    assert shared.asked[0] == 3 and own.asked[0] == 1
    assert shared.told == shared.asked and own.told == own.asked


class Erratic(DraftLength):
    """Skips rounds and chooses lengths at random, regardless of limits."""

    def __init__(self) -> None:
        self.rng = random.Random(3)
        self.skipped = 0

    def wants_drafts(self) -> bool:
        skips = self.rng.random() < 0.3
        self.skipped += skips
        return not skips

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        return [self.rng.randint(0, 9) for _ in limits]

    def describe(self) -> str:
        return "at random"


def test_draft_lengths_do_not_change_the_output() -> None:
    length = Erratic()
    check_identity(4, "auto", num_draft_tokens=length, max_tokens=20)
    assert length.skipped > 5


def test_invalid_prompt_gets_an_error_and_others_continue() -> None:
    bad: dict[int, tuple[Any, str]] = {
        1: ([], "prompt: must be text"),
        2: ({"prompt": "b", "top_p": 3.0}, "top_p"),
        3: ({"prompt": "b", "max_tokens": 0}, "max_tokens"),
        4: ({"prompt": "b", "strict": True}, "strict: is the same for all rows"),
        5: ({"prompt": "b", "tempreature": 1.0}, "did you mean temperature"),
        6: ({"max_tokens": 3}, "prompt: is missing"),
        7: (None, "prompt: must be text, not None"),
    }
    rows: list[Any] = ["abc", *(row for row, _ in bad.values()), "cab"]
    found = {each.index: each for each in batch_generate(TARGET, Letters(), rows, slots=2)}
    assert sorted(found) == list(range(9))
    for index, (_, named) in bad.items():
        assert found[index].result is None and named in (found[index].error or "")
    for index in (0, 8):
        result = found[index].result
        assert result is not None and result.text == generate(TARGET, Letters(), rows[index]).text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"drafter": NgramDrafter()}, "a name, a class or a function for several prompts"),
        ({"max_memory_gb": 0.000001}, "is too little"),
    ],
)
def test_invalid_arguments_are_named_before_decoding(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        batch_generate(TARGET, Letters(), PROMPTS, **options)


def test_max_memory_limits_the_slots() -> None:
    assert slots_within(1.0, 8, TARGET, DRAFT, 100) == 8
    found = [fitting(kilobytes / 1e6) for kilobytes in range(1, 1000, 20)]
    assert found == sorted(found) and {0, 1, 2, 3, 7, 8} <= set(found)


def fitting(gb: float) -> int:
    try:
        return slots_within(gb, 8, TARGET, None, 100)
    except InputError:
        return 0


def test_session_returns_results_in_the_order_of_prompts() -> None:
    session = Session(TARGET, Letters(), DRAFT, slots=3)
    rows = [{"prompt": prompt, "max_tokens": number} for prompt, number in zip(PROMPTS, (9, 2, 12, 1), strict=False)]
    expected = [generate(TARGET, Letters(), drafter="none", **row).text for row in rows]  # type: ignore[arg-type]
    assert [each.text for each in session.generate(rows)] == expected  # type: ignore[arg-type]
    ordered, completed = (list(way(rows, slots=4)) for way in (session.batch, session.batch_as_completed))
    assert [each.index for each in ordered] == [0, 1, 2, 3] and completed[-1].index == 2
    assert sorted(completed, key=lambda each: each.index) != completed
    with pytest.raises(InputError, match="prompt 1: prompt: must be text, not 5"):
        session.generate(["abc", 5])  # type: ignore[list-item]


@pytest.mark.parametrize("options", [{}, pytest.param({"num_beams": 3}, marks=needs_subpackage("beam_search"))])
def test_a_blank_text_of_several_gives_a_blank_text_and_leaves_the_others_unchanged(options: dict[str, Any]) -> None:
    session = Session(TARGET, Letters(), slots=2)
    rows: list[Any] = ["", "abc", " \t\n", {"prompt": "", "max_tokens": 5}, "cab", "\u3000"]
    found = list(session.batch(rows, max_tokens=6, **options))
    assert [each.index for each in found] == [*range(6)]
    for index, (row, each) in enumerate(zip(rows, found, strict=True)):
        assert each.error is None and each.result is not None
        if index in (1, 4):
            alone = session.generate(row, max_tokens=6, **options)
            assert (each.result.text, each.result.tokens) == (alone.text, alone.tokens) and alone.tokens
        else:
            assert (each.result.text, each.result.tokens, each.result.finish_reason) == ("", [], "blank")
            assert each.result.stats.generated_tokens == each.result.stats.prompt_tokens == 0
    assert session.generate(["", "abc"], max_tokens=6, **options)[0].text == ""
    with pytest.raises(InputError, match="prompt: is empty"):
        session.generate("", **options)


def test_a_blank_row_has_the_number_of_outputs_and_the_checks_of_its_options() -> None:
    session = Session(TARGET, Letters())
    (three,) = session.generate([""], num_return_sequences=3, temperature=1.0)
    assert [each.text for each in three.sequences] == ["", "", ""]
    (wrong,) = session.batch([{"prompt": "", "top_p": 3}])
    assert wrong.error is not None and wrong.error.startswith("top_p: must be")


def test_samples_of_a_row_that_end_in_the_same_round_give_one_result() -> None:
    session = Session(TARGET, Letters())
    options: dict[str, Any] = {"num_return_sequences": 3, "temperature": 1.0, "max_tokens": 1}
    found = list(session.batch_as_completed(PROMPTS[:3], slots=4, **options))
    assert sorted(each.index for each in found) == [0, 1, 2]
    for each in found:
        assert each.result is not None
        texts = [sample.text for sample in each.result.sequences]
        assert texts == [sample.text for sample in session.generate(PROMPTS[each.index], **options).sequences]


@pytest.mark.usefixtures("device")
def test_strict_batch_rows_equal_single_rows() -> None:
    options: dict[str, Any] = {"strict": True, "max_tokens": 20, "num_draft_tokens": 5}
    plain = [generate(TARGET, Letters(), prompt, drafter="none", strict=True, max_tokens=20) for prompt in PROMPTS]
    found = batch(PROMPTS, slots=4, draft_model=DRAFT, **options)
    assert [each.tokens for each in found] == [each.tokens for each in plain]


def test_draft_model_cache_does_not_move_for_rows_that_do_not_draft() -> None:
    """In this batch one row drafts and the other does not."""
    drafter = model_drafter(TARGET, DRAFT)
    still, moving = (
        RequestView(GenerationOptions(), source, tokens, slot)
        for slot, (source, tokens) in enumerate((([5, 9, 1], [0]), ([7, 3, 8, 1], [0, 4])))
    )
    for row in (still, moving):
        drafter.begin(row)
    alone = drafter.propose({moving: 3}, 2).tokens[1].tolist()
    for _ in range(3):
        mx.eval(drafter.propose({still: 4}, 2).tokens)
    assert drafter.propose({moving: 3}, 2).tokens[1].tolist() == alone

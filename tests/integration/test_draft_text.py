"""Texts that a request gives as drafts: the option, and texts of any content and size.

The properties of all drafters hold for texts, too, and are tested with the other drafters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import (
    GenerationOptions,
    GenerationResult,
    InputError,
    Session,
    batch_generate,
    generate,
    stream_generate,
)
from speculative_decoding.cli.run_config import DraftFlags
from speculative_decoding.drafters import NgramDrafter, TextStore
from speculative_decoding.drafters.base import TEXT
from speculative_decoding.sampling import options as options_module
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import Scripted, noisy_copy, tiny_model
from tests.support.together import Letters

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
PROMPTS = ("abc", "cabbage", "hgfedcba")
FOLLOWING = ("text", "ngram", "auto")  # the drafters that follow texts
SHORT: dict[str, Any] = {"max_tokens": 20}
FIXED: dict[str, Any] = {"num_draft_tokens": 6} | SHORT


@cache
def baseline(prompt: str = "abc", **options: Any) -> GenerationResult:
    return generate(TARGET, Letters(), prompt, drafter="none", **SHORT | options)


def text_of(prompt: str = "abc") -> str:
    return baseline(prompt).text


# The option.


GIVEN: list[Any] = [text_of(), [text_of()], (text_of(), text_of("cabbage")), ["", text_of()]]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_a_text_or_several_save_target_calls_in_every_call(given: Any) -> None:
    texts = [given] if isinstance(given, str) else [*given]
    session, row = Session(TARGET, Letters()), {"prompt": "abc", "draft_text": texts}
    with_texts = Session(TARGET, Letters(), options=GenerationOptions(drafter="text", draft_text=texts, **FIXED))
    rounds: list[Any] = []
    results = [
        session.generate("abc", drafter="text", draft_text=texts, **FIXED),
        session.generate(["abc"], drafter="text", draft_text=texts, **FIXED)[0],
        *[each.result for each in session.batch([row], drafter="text", **FIXED)],
        *[
            each.result
            for each in batch_generate(TARGET, Letters(), ["abc"], drafter="text", draft_text=texts, **FIXED)
        ],
        with_texts.generate("abc"),
        with_texts.generate("abc", draft_text=text_of()),
    ]
    for result in results:
        assert result is not None and result.tokens == baseline().tokens
        assert result.stats.target_calls < len(result.tokens) / 2
    streamed = stream_generate(
        TARGET, Letters(), "abc", drafter="text", draft_text=texts, on_round=rounds.append, **FIXED
    )
    assert [each.token for each in streamed] == baseline().tokens
    assert {each.kind for each in rounds if each.drafted} == {TEXT} and rounds[0].accepted > 0  # the first token, too
    decoded = [event.round for event in with_texts.rounds("abc")]
    assert [token for event in decoded for token in event.tokens] == baseline().tokens and len(decoded) == len(rounds)
    assert with_texts.generate("abc", draft_text=()).stats.drafted_tokens == 0


@pytest.mark.parametrize("drafter", FOLLOWING)
def test_a_text_of_the_output_is_used_by_every_drafter_that_follows_texts(drafter: str) -> None:
    session = Session(TARGET, Letters(), DRAFT)
    found = session.generate("abc", drafter=drafter, draft_text=text_of(), **FIXED)
    assert found.tokens == baseline().tokens and found.stats.target_calls <= 1 + len(found.tokens) / 2


WRONG = [b"ab", 5, 1.5, True, None, {"a": "b"}, {}, [["a"]], ["a", None], [b"a"], [1, 2], range(3), object()]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:16])
def test_a_value_that_is_no_text_is_named_in_one_line(value: Any) -> None:
    session = Session(TARGET, Letters())
    for call in (
        lambda: session.generate("abc", draft_text=value),
        lambda: next(session.stream("abc", draft_text=value)),
        lambda: session.rounds("abc", draft_text=value),
        lambda: GenerationOptions(draft_text=value),
    ):
        with pytest.raises(InputError, match="^draft_text: must be text, or a list of such, not ") as error:
            call()
        assert "\n" not in str(error.value) and len(str(error.value)) < 200
    results = [*session.batch([{"prompt": "abc", "draft_text": value}, "abc"], **SHORT)]
    assert results[0].error is not None and results[0].error.startswith("draft_text: must be text")
    assert results[1].result is not None and results[1].result.tokens == baseline().tokens


def test_a_text_that_would_take_minutes_and_gigabytes_is_refused_at_once(
    pair: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = "translate English to German: The method returns the value."
    monkeypatch.setattr(options_module, "MAX_DRAFT_TEXT", 1000)
    for texts in ("a" * 1001, ["a" * 501, "b" * 500]):
        with pytest.raises(InputError, match="^draft_text: has 1,001 characters .at most 1,000.; shorten it$"):
            pair.generate(prompt, draft_text=texts)
    wrong, right = pair.batch([{"prompt": prompt, "draft_text": "a" * count} for count in (1001, 1000)])
    assert wrong.error is not None and wrong.error.startswith("draft_text: has 1,001 characters")
    assert right.result is not None and right.result.tokens
    (file := tmp_path / "text").write_text("a" * 501)
    flags = DraftFlags(draft_text_file=[file])
    with pytest.raises(InputError, match="^draft_text_file: has 1,001 characters .at most 1,000.; shorten it$"):
        flags.add_draft_texts(GenerationOptions(draft_text="b" * 500))


def test_a_lone_surrogate_is_refused_by_name_and_other_rows_continue(pair: Session) -> None:
    prompt = "translate English to German: The method returns the value."
    with pytest.raises(InputError, match="^prompt: contains a lone surrogate, .*; remove it$"):
        pair.generate("a\ud800")
    with pytest.raises(InputError, match="^draft_text: contains a lone surrogate, .*; remove it$"):
        pair.generate(prompt, draft_text="a\ud800")
    wrong, right = pair.batch([{"prompt": prompt, "draft_text": ["a", "\udfff"]}, prompt])
    assert wrong.error is not None and wrong.error.startswith("draft_text: contains a lone surrogate")
    assert right.result is not None and right.result.tokens


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"drafter": "none"}, "with drafter none, only with text, ngram, auto"),
        ({"drafter": "model"}, "with drafter model, only with text, ngram, auto"),
        ({"num_draft_tokens": 0}, "with num_draft_tokens 0"),
    ],
)
def test_a_text_without_effect_gives_a_warning(options: dict[str, Any], why: str) -> None:
    session = Session(TARGET, Letters(), DRAFT)
    for call in (
        lambda: session.generate("abc", draft_text="cab", **SHORT | options).tokens,
        lambda: [each.token for each in session.stream("abc", draft_text="cab", **SHORT | options)],
        lambda: next(session.batch([{"prompt": "abc", "draft_text": "cab"}], **SHORT | options)).result.tokens,  # type: ignore[union-attr]
    ):
        with pytest.warns(UserWarning, match=f"draft_text: has no effect {why}"):
            assert call() == baseline().tokens
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a session, they are defaults
        defaults = GenerationOptions(draft_text="cab", **SHORT)
        assert Session(TARGET, Letters(), DRAFT, defaults).generate("abc", **options).tokens == baseline().tokens


def test_a_text_without_effect_on_a_drafter_of_one_request_gives_a_warning() -> None:
    """Such a drafter sees the source and the output only."""
    for drafter in (NgramDrafter(), Scripted([5], lambda i, token: token)):
        with pytest.warns(UserWarning, match="draft_text: has no effect with "):
            generate(TARGET, Letters(), "abc", drafter=drafter, draft_text=text_of(), **SHORT)


@needs_subpackage("beam_search")
def test_a_text_is_refused_with_beams_and_leaves_other_rows_alone() -> None:
    session = Session(TARGET, Letters())
    expected = session.generate("abc", num_beams=2, **SHORT).tokens
    with pytest.raises(InputError, match="draft_text: .* cannot be combined with num_beams 2"):
        session.generate("abc", num_beams=2, draft_text=text_of(), **SHORT)
    with pytest.raises(InputError, match="draft_text: .* cannot be combined with num_beams 2") as error:
        session.generate("abc", num_beams=2, draft_text="abc" * 10_000)
    assert len(str(error.value)) < 300
    rows: list[Any] = [{"prompt": "abc", "draft_text": text_of()}, "abc"]
    wrong, right = session.batch(rows, num_beams=2, **SHORT)
    assert wrong.error is not None and right.result is not None and right.result.tokens == expected


# Which requests see a text.


def test_a_text_is_followed_by_its_own_row_only() -> None:
    """The rows share the batch and take each other's slots; later calls of the session have no text either."""
    session = Session(TARGET, Letters())
    rows: list[Any] = [{"prompt": p, "draft_text": text_of(p)} if i % 2 else p for i, p in enumerate(PROMPTS * 3)]
    for slots in (1, 2, 8):
        for row, each in zip(rows, session.batch(rows, slots=slots, drafter="text", **FIXED), strict=True):
            assert each.result is not None
            prompt = row if isinstance(row, str) else row["prompt"]
            assert each.result.tokens == baseline(prompt).tokens
            assert bool(each.result.stats.drafted_tokens) == (row is not prompt)
        assert session.generate("abc", drafter="text", **FIXED).stats.drafted_tokens == 0


def test_a_closed_stream_leaves_no_text_behind() -> None:
    session = Session(TARGET, Letters())
    stream = session.stream("abc", drafter="text", draft_text=text_of(), **FIXED)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    after = session.generate("abc", drafter="text", **FIXED)
    assert after.tokens == baseline().tokens and after.stats.drafted_tokens == 0


def test_a_text_store_learns_no_given_text() -> None:
    """Otherwise the text of one client would be proposed to another, here after any first words of its output."""
    ngram = NgramDrafter(store=TextStore(), search_input=False, search_output=False, min_chance=0.0)
    session, output = Session(TARGET, Letters(), ngram=ngram), text_of("cabbage")
    secret = "".join(sorted({*"abcdefghijklmnopqrstuv"} - {*text_of(), *output}))
    assert len(secret) > 4
    text = "".join(output[: size + 1] + secret for size in range(len(output)))
    assert session.generate("abc", draft_text=text, **FIXED).stats.drafted_tokens
    rounds = [event.round for event in session.rounds("cabbage", **FIXED)]
    proposed = Letters().decode([token for event in rounds for token in event.proposed])
    assert not {*proposed} & {*secret}


OPTIONS: list[dict[str, Any]] = [
    {"min_tokens": 18},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.5},
    {"stop": ["kb"]},
    {"eos_token_ids": [12, 3]},
    {"decoder_prefix": [4, 7, 2]},
    {"logprobs": True},
    {"max_tokens": 1},
    {"strict": True},
    {"timed": True},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.7, "top_k": 5, "num_return_sequences": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("drafter", FOLLOWING)
def test_no_text_changes_an_output_with_any_option(drafter: str, options: dict[str, Any]) -> None:
    """Given are the output without the options, with them, both, and a text that never fits."""
    session = Session(TARGET, Letters(), DRAFT)
    expected = session.generate("abc", **{"drafter": "none"} | SHORT | options)
    for texts in ([text_of()], [expected.text], [expected.text, text_of()], ["tuv" * 9]):
        found = session.generate("abc", **{"drafter": drafter, "draft_text": texts} | FIXED | options)
        for one, other in zip(found.sequences or [found], expected.sequences or [expected], strict=True):
            assert (one.tokens, one.text, one.finish_reason) == (other.tokens, other.text, other.finish_reason)
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5) if other.logprobs else not one.logprobs


# Texts of any content and size, with a real tokenizer.


PROMPT = "translate English to German: The method returns the value of the property."
CONTENTS: dict[str, Callable[[str], str | Sequence[str]]] = {
    "empty": lambda output: "",
    "no text": lambda output: [],
    "spaces": lambda output: "   ",
    "line breaks": lambda output: "\r\n\n\t\v\u2028",
    "the source": lambda output: PROMPT,
    "the output": lambda output: output,
    "the output, with capitals": str.upper,
    "the output twice": lambda output: 2 * output,
    "every word twice": lambda output: " ".join(2 * f"{word} " for word in output.split()),
    "backwards": lambda output: output[::-1],
    "an end token at the start": lambda output: f"</s> {output}",
    "end and special tokens inside": lambda output: output.replace(" ", " </s> <pad> <extra_id_0> <unk> "),
    "special tokens only": lambda output: "</s></s><pad><pad><extra_id_0>",
    "another script": lambda output: "该方法返回属性的值。Метод возвращает значение свойства. 👩‍👩‍👧",
    "NUL and controls": lambda output: f"\0{output}\0\x1b[31m\x7f",
    "one word 10,000 times": lambda output: 10_000 * "Methode ",
    "two texts": lambda output: ["Das ist falsch.", output],
    "50 texts": lambda output: [output[:size] for size in range(50)],
    "duplicates": lambda output: 20 * [output],
}
HUGE: dict[str, Callable[[str, int], str]] = {
    "a document": lambda output, size: (f"{output} Ein anderer Satz. " * (size // 20))[:size],
    "one letter": lambda output, size: size * "a",
    "spaces": lambda output, size: size * " ",
    "another script": lambda output, size: size // 2 * "漢字",
}


@pytest.mark.parametrize("drafter", FOLLOWING)
def test_a_text_of_any_content_changes_no_token(drafter: str, pair: Session) -> None:
    expected = pair.generate(PROMPT, drafter="none")
    for name, content in CONTENTS.items():
        texts = content(expected.text)
        found = pair.generate(PROMPT, drafter=drafter, draft_text=texts, num_draft_tokens=6)
        assert (found.tokens, found.text) == (expected.tokens, expected.text), name
        if drafter == "text" and name in ("the output", "the output twice", "duplicates", "two texts"):
            assert found.stats.target_calls <= len(found.tokens) / 2, name


@pytest.mark.parametrize("size", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("content", HUGE.values(), ids=HUGE)
def test_a_huge_text_changes_no_token(content: Callable[[str, int], str], size: int, pair: Session) -> None:
    expected = pair.generate(PROMPT, drafter="none")
    text = content(expected.text, size)
    assert len(text) == size
    rows: list[Any] = [PROMPT, {"prompt": PROMPT, "draft_text": text}]
    assert all(each.result and each.result.tokens == expected.tokens for each in pair.batch(rows))


class CountedLetters(Letters):
    """Counts the characters of the texts that it encodes as outputs."""

    def __init__(self) -> None:
        self.encoded = 0

    def encode_output(self, text: str) -> list[int]:
        self.encoded += len(text)
        return self.encode(text)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_shared_texts_are_encoded_once(count: int) -> None:
    """By the rows of a batch, the samples of a prompt, and the requests of a session."""
    tokenizer = CountedLetters()
    session = Session(TARGET, tokenizer)
    texts = ["abc" * 10 + "abcdefgh"[number] for number in range(count)]
    results = [*session.batch(PROMPTS * 3, draft_text=texts, **SHORT)]
    session.generate("abc", draft_text=texts, temperature=1.0, num_return_sequences=4, **SHORT)
    assert len(results) == 9 and tokenizer.encoded == sum(map(len, texts))

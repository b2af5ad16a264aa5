"""Streams: the fields of each response, and complete texts wherever rounds and characters end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import Session, stream_generate
from speculative_decoding.decoding.results import Round
from speculative_decoding.drafters import Draft, Drafter
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import REPLACEMENT, Tokenizer, load_tokenizer
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.scoring import score
from tests.parity.test_scoring import Numbers, text_of
from tests.support.tiny import DRAFTERS, EOS, KINDS, SOURCES, noisy_copy, run, tiny_model, tokens_of
from tests.unit.loading.test_tokenizer import Bytes

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
BASELINE = [tokens_of(run(TARGET, source)) for source in SOURCES]
PROMPTS = BUNDLED.parent / "data"
TEXT = "Ärger 🎉👩‍👩‍👧 größer, naïve — 漢字! ü"  # characters of 1 to 4 bytes, and an emoji of several characters


class Writer(EncoderDecoder):
    """A model that generates given ids for any source: the logit of the next id is 1, all others are 0."""

    def __init__(self, output: Sequence[int], vocab_size: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(  # type: ignore[assignment]
            vocab_size=vocab_size,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_ids=(EOS,),
        )
        self._output = [0, *output]

    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        return mx.zeros((1, 1, 1))

    def make_cache(self, encoder_output: mx.array, mask: mx.array | None = None, *, beams: int = 1) -> DecoderCache:
        return DecoderCache.empty([], mx.zeros((1, 1, 1, 1)))

    def states(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
        """The state of each token is the id that follows it, (1, L, 1)."""
        start, length = cache.max_offset, tokens.shape[1]
        cache.advance(length)
        following = (self._output + [EOS] * (length + 1))[start + 1 : start + 1 + length]
        return mx.array(following)[None, :, None]

    def decoder_states(self, *_: Any) -> Any:
        raise NotImplementedError

    def logits(self, states: mx.array) -> mx.array:
        return (mx.arange(self.config.vocab_size) == states).astype(mx.float32)

    def head_of(self, ids: mx.array) -> Any:
        raise NotImplementedError


@cache
def bundled() -> Tokenizer:
    return load_tokenizer(BUNDLED / "t5-web-docs")


TOKENIZERS = {
    "bytes": Bytes,
    "bundled": bundled,
}


class Cuts(Drafter):
    """Drafts the right tokens with a given length, so that tests choose where rounds end."""

    def __init__(self, output: Sequence[int], sizes: Sequence[int]) -> None:
        self.output, self.sizes = output, sizes

    def begin(self, input_tokens: Sequence[int]) -> None:
        self.round = 0

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        size = min(self.sizes[self.round % len(self.sizes)], num_draft_tokens)
        self.round += 1
        found = self.output[len(tokens) - 1 : len(tokens) - 1 + size]
        return Draft(mx.array([found], mx.uint32)) if found else Draft.empty()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_streamed_text_is_complete_for_every_round_boundary(name: str) -> None:
    """Rounds of each size are tested, so rounds end after every token and within every character."""
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer.encode(TEXT)
    whole = tokenizer.decode(ids)
    assert name == "bundled" or whole == TEXT
    model = Writer(ids, max(ids) + 1)
    for sizes in ((0,), (1,), (3, 1), (5, 0, 2), (64,)):
        rounds: list[Round] = []
        responses = list(
            stream_generate(
                model,
                tokenizer,
                "x",
                drafter=Cuts(ids, sizes),
                num_draft_tokens=64,
                max_tokens=len(ids),
                on_round=rounds.append,
            )
        )
        assert [response.token for response in responses] == ids == tokens_of(rounds)
        text = ""
        for response in responses:
            text += response.text
            assert whole.startswith(text) and REPLACEMENT not in response.text
        assert text == whole


@pytest.mark.parametrize("name", TOKENIZERS)
def test_prefix_may_end_within_a_character(name: str) -> None:
    """The text completes the characters of any forced prefix. Long drafts keep the number of rounds low."""
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer.encode(TEXT)
    model = Writer(ids, max(ids) + 1)
    options: dict[str, Any] = {"num_draft_tokens": 64, "max_tokens": 200}
    for given in range(len(ids)):
        options["drafter"] = Cuts(ids, (64,))
        responses = stream_generate(model, tokenizer, "x", decoder_prefix=ids[:given], **options)
        text = "".join(response.text for response in responses)
        shown = [tokenizer.decode(ids[:i]) for i in range(given + 1)]
        assert tokenizer.decode(ids) == max((each for each in shown if REPLACEMENT not in each), key=len) + text


@pytest.mark.parametrize("stop", ["👩‍👧", "ßer"])
def test_stop_strings_cut_between_characters(stop: str) -> None:
    tokenizer = Bytes()
    ids = tokenizer.encode(TEXT)
    responses = list(stream_generate(Writer(ids, max(ids) + 1), tokenizer, "x", stop=[stop], max_tokens=200))
    assert "".join(response.text for response in responses) == TEXT[: TEXT.index(stop)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", KINDS)
def test_logprobs_equal_those_of_score(drafter: str, temperature: float) -> None:
    """Logprobs ignore the sampling options, and requesting them does not change the output."""
    source, baseline = (each[2 if temperature else 1] for each in (SOURCES, BASELINE))
    options: dict[str, Any] = {"repetition_penalty": 1.3, "seed": 1, "max_tokens": 12, "decoder_prefix": baseline[:2]}
    options |= {"temperature": temperature, "top_k": 9 if temperature else 0}
    plain, responses = (
        list(
            stream_generate(
                TARGET,
                Numbers(),
                text_of(source),
                drafter=DRAFTERS[drafter](TARGET, DRAFT, baseline),
                logprobs=logprobs,
                **options,
            )
        )
        for logprobs in (False, True)
    )
    assert [each.token for each in plain] == [each.token for each in responses]
    assert all(each.logprob is None for each in plain)
    whole = score(TARGET, Numbers(), text_of(source), baseline[:2] + [each.token for each in responses])
    assert [each.logprob for each in responses] == pytest.approx(whole.logprobs[2:], abs=2e-5)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("drafter", KINDS)
def test_output_after_a_forced_prefix_equals_the_output_without_it(drafter: str, strict: bool) -> None:
    """The prefix may have any length, and max_tokens does not count it."""
    for number, (source, baseline) in enumerate(zip(SOURCES, BASELINE, strict=True)):
        given = number if (number + strict) % 2 else 4 + 2 * number  # a short prefix, or a long one
        if given >= len(baseline):
            continue
        made = DRAFTERS[drafter](TARGET, DRAFT, baseline)
        options: dict[str, Any] = {
            "decoder_prefix": baseline[:given],
            "max_tokens": 10,
            "num_draft_tokens": 3,
            "strict": strict,
        }
        responses = list(stream_generate(TARGET, Numbers(), text_of(source), drafter=made, **options))
        assert [each.token for each in responses] == baseline[given : given + 10]


def test_text_does_not_include_the_prefix(pair: Session) -> None:
    prompt = "translate English to German: The method returns the value of the property."
    whole = pair.generate(prompt).text
    for given in ("Die", "Die Methode gibt den"):
        result = pair.generate(prompt, decoder_prefix=given)
        assert given + result.text == whole and given not in result.text
    other = pair.generate(prompt, decoder_prefix="Diese Eigenschaft")
    assert other.text.startswith(" ") and other.text != whole
    assert other.tokens == pair.generate(prompt, decoder_prefix="Diese Eigenschaft", drafter="none").tokens


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_single_request_equals_the_baseline_and_reports_proposed_and_accepted_tokens(drafter: str) -> None:
    for source, baseline in zip(SOURCES, BASELINE, strict=True):
        rounds: list[Round] = []
        made = DRAFTERS[drafter](TARGET, DRAFT, baseline)
        options: dict[str, Any] = {"drafter": made, "num_draft_tokens": 5, "max_tokens": 30, "on_round": rounds.append}
        responses = list(stream_generate(TARGET, Numbers(), text_of(source), **options))
        assert tokens_of(rounds) == [each.token for each in responses] == baseline
        expected = [(event.accepted, i < event.accepted) for event in rounds for i in range(len(event.tokens))]
        assert [(each.accepted, each.from_draft) for each in responses] == expected
        for event in rounds:
            assert len(event.proposed) == event.drafted >= event.accepted
            assert len(event.tokens) == event.accepted + 1 or event.finish_reason == "stop"
            assert event.tokens[: event.accepted] == event.proposed[: event.accepted]
            if event.accepted < min(event.drafted, len(event.tokens)):
                assert event.tokens[event.accepted] != event.proposed[event.accepted]


def test_timed_rounds_report_draft_and_verify_seconds() -> None:
    rounds: list[Round] = []
    list(stream_generate(TARGET, Numbers(), "5 9 1", draft_model=DRAFT, on_round=rounds.append, timed=True))
    assert len(rounds) > 2
    for event in rounds:
        assert event.draft_seconds is not None and event.verify_seconds is not None
        assert 0 < event.draft_seconds + event.verify_seconds < event.seconds


def test_callback_error_is_raised_and_the_next_call_works() -> None:
    def complain(event: Round) -> None:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(stream_generate(TARGET, Numbers(), text_of(SOURCES[0]), draft_model=DRAFT, on_round=complain))
    again = stream_generate(TARGET, Numbers(), text_of(SOURCES[0]), draft_model=DRAFT, max_tokens=30)
    assert [each.token for each in again] == BASELINE[0]

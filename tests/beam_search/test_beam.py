"""Beam search, against enumeration of all outputs and against Hugging Face; batches of prompts; samples of a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, Session, load
from speculative_decoding.beam_search.search import best_continuations
from speculative_decoding.cli.lines import InputLine
from speculative_decoding.cli.main import main
from speculative_decoding.jobs.input import ParsedLine
from speculative_decoding.jobs.job import record
from speculative_decoding.loading.load import checked_generation_config
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.generation_config import GenerationConfig
from speculative_decoding.models.memory_budget import slot_bytes
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.sampling.distribution import logsumexp
from speculative_decoding.sampling.random import sample_seed
from tests.parity.test_scoring import Numbers, text_of
from tests.parity.test_t5 import load_golden
from tests.support.beam_goldens import GOLDENS, decoded, expected, options_of, records
from tests.support.device import within
from tests.support.families import CODES, save_family
from tests.support.metal import pretend_gpu
from tests.support.metal_kernels import checked_kernels
from tests.support.tiny import EOS, SOURCES, noisy_copy, tiny_model

TOY = tiny_model(vocab_size=12)
MODEL = tiny_model()
SESSION = Session(MODEL, Numbers(), noisy_copy(MODEL))
PROMPTS = [text_of(source) for source in SOURCES]
FAMILIES = ("t5", "t5-v1_1", "bart", "m2m_100", "t5gemma", "t5gemma2")


def every_output(model: EncoderDecoder, source: Sequence[int], most: int) -> list[tuple[float, list[int]]]:
    """Return all outputs and their log-probabilities, finished or cut at `most` tokens."""
    encoder_output = model.encode(mx.array([list(source)]))
    found, open_ones = [], [(0.0, list[int]())]
    for _ in range(most):
        read = mx.array([[model.config.decoder_start_token_id, *tokens] for _, tokens in open_ones])
        states = model.teacher_forced(read, mx.repeat(encoder_output, len(open_ones), axis=0))
        logits = np.array(model.logits(states)[:, -1]).astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        grown = [
            (score + logprobs[i, token], [*tokens, token])
            for i, (score, tokens) in enumerate(open_ones)
            for token in range(model.config.vocab_size)
        ]
        found += [each for each in grown if each[1][-1] == EOS]
        open_ones = [each for each in grown if each[1][-1] != EOS]
    return found + open_ones


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("penalty", [-1.0, 0.6, 2.0])
def test_exhaustive_beams_find_the_best_of_all_outputs(penalty: float) -> None:
    """121 unfinished prefixes of two tokens exist. With early_stopping "never", all of them are continued."""
    outputs = [(score / len(tokens) ** penalty, tokens) for score, tokens in every_output(TOY, [5, 9, 3, 1], 3)]
    best = sorted(outputs, reverse=True)[:12]
    options: dict[str, Any] = {"num_beams": 128, "length_penalty": penalty, "early_stopping": "never"}
    found = Session(TOY, Numbers()).generate("5 9 3 1", max_tokens=3, num_return_sequences=12, **options).sequences
    assert [each.tokens for each in found] == [tokens for _, tokens in best]
    assert np.allclose([each.score for each in found], [score for score, _ in best], atol=within(1e-5))  # type: ignore[arg-type]
    assert {each.finish_reason for each in found} <= {"stop", "length"}


@pytest.mark.parametrize("beams", [2, 4, 8])
def test_bundled_outputs_and_scores_equal_hugging_face(beams: int, pair: Session) -> None:
    """Compare with transformers 4.46 (make_beam_goldens.py): a third of the settings, each with another prompt."""
    first = [2, 4, 8].index(beams)
    known = [*records()][first::6]
    chosen = [setting for setting in known[0][1]["found"] if setting.startswith(f"{beams} ")][first::3]
    known = known[: len(chosen)]
    rows = [
        {
            "prompt": record["prompt"],
            **{name: value for name, value in options_of(setting).items() if name != "num_beams"},
        }
        for (_, record), setting in zip(known, chosen, strict=True)
    ]
    several = decoded(pair, rows, num_beams=beams, max_tokens=known[0][0], slots=5)
    for (_, golden), setting, found in zip(known, chosen, several, strict=True):
        tokens, scores = expected(golden, setting)
        assert [each.tokens for each in found] == tokens, (setting, golden["prompt"])
        assert np.allclose([each.score for each in found], scores, atol=1e-4)  # type: ignore[arg-type]


OF_FAMILIES = json.loads((GOLDENS / "beams_of_families.json").read_text())
TO_OURS = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


def of_family(name: str) -> tuple[Session, list[str]]:
    """Return a session with the model's generation_config.json, and its sources as texts."""
    model, golden = load_golden(GOLDENS / name)
    raw = json.loads((GOLDENS / name / "config.json").read_text())
    model.generation_config = checked_generation_config(GOLDENS / name, raw, model)
    rows = zip(golden["input_ids"], golden["attention_mask"].astype(bool), strict=True)
    return Session(model, Numbers()), [text_of(ids[mask].tolist()) for ids, mask in rows]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", OF_FAMILIES)
def test_families_with_logits_processors_equal_hugging_face(name: str) -> None:
    """Processors force and ban tokens, and apply minimum lengths and penalties. All sources are in one batch."""
    session, prompts = of_family(name)
    for golden in OF_FAMILIES[name]:
        options = {TO_OURS.get(key, key): value for key, value in golden["options"].items()}
        for found, (tokens, scores) in zip(decoded(session, prompts, **options), golden["found"], strict=True):
            assert [each.tokens for each in found] == tokens, options
            assert np.allclose([each.score for each in found], scores, rtol=within(1e-4))  # type: ignore[arg-type]


@pytest.mark.usefixtures("device")
def test_batch_with_beams_equals_single_prompts() -> None:
    options: dict[str, Any] = {"num_beams": 3, "max_tokens": 12}
    rows = [{"prompt": prompt, "max_tokens": 6 + i, "length_penalty": 0.5 * i} for i, prompt in enumerate(PROMPTS)]
    found = decoded(SESSION, rows, slots=2, **options)
    for row, several in zip(rows, found, strict=True):
        (alone,) = decoded(SESSION, [row], slots=1, **options)
        assert [each.tokens for each in several] == [each.tokens for each in alone]
        assert np.allclose([each.score for each in several], [each.score for each in alone], atol=within(1e-5))  # type: ignore[arg-type]
        assert several[0].finish_reason == alone[0].finish_reason and several[0].text == alone[0].text


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", FAMILIES)
def test_beams_with_a_shared_encoder_output_equal_separate_rows(name: str) -> None:
    """Two prompts of different lengths with three beams each, which change places."""
    model, _ = load_golden(GOLDENS / name)
    encoder_output = model.encode(mx.array([[5, 9, 13, 7, 3], [21, 3, 8, 8, 6]]))
    mask = mx.array([[True] * 5, [True] * 2 + [False] * 3])
    shared = model.make_cache(encoder_output, mask, beams=3)
    repeated = model.make_cache(mx.repeat(encoder_output, 3, axis=0), mx.repeat(mask, 3, axis=0))
    assert [len(shared.layers[0].cross_keys), shared.rows, repeated.rows] == [2, 6, 6]
    moved = [2, 0, 0, 3, 5, 4]
    for step in range(3):
        tokens = mx.array([[(7 * i + 3 * step) % 20 + 4] * (1 + step % 2) for i in range(6)])
        ours, theirs = model.decode(tokens, shared), model.decode(tokens, repeated)
        assert mx.abs(ours - theirs).max().item() < within(2e-5)
        shared.reorder(moved)
        repeated.select(moved)
    own = sum(layer.keys_values.nbytes for layer in shared.layers)
    cross = [sum(each.nbytes for each in cache.arrays) for cache in (shared, repeated)]
    assert cross[1] - own == 3 * (cross[0] - own)  # each beam adds the same size, without cross keys and values


def test_slot_bytes_include_beams() -> None:
    one, four, eight = (slot_bytes(MODEL, 32, 60, beams) for beams in (1, 4, 8))
    logits = 4 * MODEL.config.vocab_size * 4
    own = 2 * 64 * 8 * 4  # keys and values of one layer: 64 positions, two heads, four floats each
    assert eight - four == 4 * (own + logits) and four < 4 * one


@pytest.mark.usefixtures("device")
def test_best_continuations_equal_a_full_sort() -> None:
    logprobs = mx.random.normal((3, 4, 70), key=mx.random.key(0))
    scores = mx.random.normal((3, 4), key=mx.random.key(1))
    found, numbers = best_continuations(logprobs, scores, 9)
    flat = np.array(logprobs + scores[..., None]).reshape(3, -1)
    assert np.array_equal(np.array(found), np.sort(flat, axis=1)[:, ::-1][:, :9])
    assert np.array_equal(np.array(found), np.take_along_axis(flat, np.array(numbers), axis=1))
    assert best_continuations(logprobs[:, :1, :3], scores[:, :1], 9)[0].shape == (3, 3)


@pytest.mark.usefixtures("device")
def test_logsumexp_over_many_ids_has_float32_precision() -> None:
    logits = mx.random.normal((4, 8192), key=mx.random.key(2)) * 3
    exact = np.log(np.exp(np.array(logits).astype(np.float64)).sum(-1))
    assert np.abs(np.array(logsumexp(logits)) - exact).max() < within(3e-6)


@pytest.mark.usefixtures("device")
def test_samples_of_a_prompt_are_encoded_once_and_do_not_depend_on_their_number() -> None:
    encoded: list[int] = []

    class Counting(type(MODEL)):  # type: ignore[misc]
        def encode(self, tokens: mx.array, *rest: Any) -> mx.array:
            encoded.append(len(tokens))
            return super().encode(tokens, *rest)

    model = Counting(MODEL.config)
    model.update(MODEL.parameters())
    session = Session(model, Numbers(), SESSION.draft_model)
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 8, "seed": 5}
    few, many = (session.generate(PROMPTS[0], num_return_sequences=n, **options) for n in (2, 20))
    assert sum(encoded) == 2
    assert [each.tokens for each in few.sequences] == [each.tokens for each in many.sequences[:2]]
    assert len({tuple(each.tokens) for each in many.sequences}) > 10
    one = SESSION.generate(PROMPTS[0], **options)
    assert one.tokens == few.tokens == few.sequences[0].tokens and one.sequences == ()
    third = SESSION.generate(PROMPTS[0], **options | {"seed": sample_seed(5, 3)})
    assert third.tokens == many.sequences[3].tokens
    assert many.stats.prompt_tokens == one.stats.prompt_tokens
    assert many.stats.generated_tokens == sum(len(each.tokens) for each in many.sequences)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_return_sequences": 2}, "num_return_sequences: 2 would return one text 2 times at temperature 0; give "),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences: must be <= num_beams (2), not 3"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature: 0.5 cannot be combined with num_beams 2"),
        ({"num_beams": 2, "drafter": "model"}, "drafter: 'model' cannot be combined with num_beams 2"),
        ({"num_beams": 2, "stop": ["a"]}, "stop: 'a' cannot be combined with num_beams 2"),
        ({"num_beams": 2, "draft_text": "a"}, "draft_text: 'a' cannot be combined with num_beams 2"),
    ],
)
def test_conflicting_options_are_refused_in_one_line(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as error:
        SESSION.generate(PROMPTS[0], **options)
    assert str(error.value).startswith(named) and "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("length_penalty", 2.0), ("early_stopping", True)])
def test_options_of_beam_search_without_beams_are_warnings(name: str, value: Any) -> None:
    options = GenerationOptions(**{name: value})
    with pytest.raises(InputError, match=f"^{name}: has no effect with num_beams 1"):
        options.require_effect([name])
    with pytest.warns(UserWarning, match=f"^{name}: has no effect with num_beams 1"):
        SESSION.generate(PROMPTS[0], **{name: value})


def test_stream_yields_only_the_best_output_at_its_end() -> None:
    rounds: list[Any] = []
    found = [*SESSION.stream(PROMPTS[2], num_beams=3, max_tokens=9, on_round=rounds.append)]
    best = SESSION.generate(PROMPTS[2], num_beams=3, max_tokens=9)
    assert [each.token for each in found] == best.tokens and found[-1].finish_reason == best.finish_reason
    assert "".join(each.text for each in found) == best.text and best.score is not None
    assert [len(each.tokens) for each in rounds] == [0] * (len(rounds) - 1) + [len(best.tokens)]
    assert best.stats.target_calls == len(rounds) and best.stats.drafted_tokens == 0
    with pytest.raises(InputError, match="^num_return_sequences: 2 outputs cannot be streamed; use generate or batch$"):
        SESSION.stream(PROMPTS[0], num_beams=3, num_return_sequences=2)


def test_prefix_starts_every_beam_and_adds_nothing_to_the_score() -> None:
    """With the first two greedy tokens forced, three beams find an output at least as good as the greedy one."""
    greedy = SESSION.generate(PROMPTS[0], drafter="none", max_tokens=8)
    prefix = greedy.tokens[:2]
    found = SESSION.generate(PROMPTS[0], num_beams=3, num_return_sequences=3, decoder_prefix=prefix, max_tokens=6)
    assert all(len(each.tokens) <= 6 for each in found.sequences)
    for each in found.sequences:
        logprob = SESSION.score(PROMPTS[0], [*prefix, *each.tokens]).logprob - SESSION.score(PROMPTS[0], prefix).logprob
        assert each.score == pytest.approx(logprob / len(each.tokens), abs=1e-5)


@pytest.mark.usefixtures("device")
def test_non_finite_logits_end_only_that_prompt() -> None:
    """Only one source, and no output, contains the token with the corrupt embedding."""
    model, options = tiny_model(), {"num_beams": 2, "max_tokens": 5, "slots": 2}
    model.generation_config = GenerationConfig(suppress_tokens=(22,))
    prompts = [PROMPTS[0], "22 4 1", *PROMPTS[1:4]]
    right = {each.index: each for each in Session(model, Numbers()).batch(prompts, **options)}
    table = np.array(model.embedding.weight)  # type: ignore[attr-defined]
    table[22] = np.nan
    model.update({"embedding": {"weight": mx.array(table)}})
    model.finalize()
    found = {each.index: each for each in Session(model, Numbers()).batch(prompts, **options)}
    assert found.pop(1).error is not None and right.pop(1).error is None
    for index, each in found.items():
        assert each.result is not None and each.result.tokens == right[index].result.tokens  # type: ignore[union-attr]


def test_generation_config_sets_length_penalty_and_early_stopping() -> None:
    """Options of the call take precedence."""
    session, _ = of_family("bart")
    settled = session.model.generation_config.with_defaults(GenerationOptions(num_beams=4), 1)
    assert (settled.length_penalty, settled.early_stopping) == (2.0, True)
    own = GenerationOptions(num_beams=4, length_penalty=0.5, early_stopping="never")
    assert session.model.generation_config.with_defaults(own, 1).length_penalty == 0.5


def test_command_line_prints_all_sequences_and_refuses_conflicting_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompt = ["--prompt", "grammar: It were a cod business.", "-m", "12", "--num-beams", "3"]
    assert main(["--num-return-sequences", "2", "--early-stopping", "never", "--length-penalty", "0.6", *prompt]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2 and "3 beams, no draft" in err and "scores -" in err
    assert main(prompt) == 0
    assert capsys.readouterr().out == out.splitlines(keepends=True)[0]
    assert main([*prompt, "--num-return-sequences", "2", "--show-draft"]) == 2
    err = capsys.readouterr().err
    assert "--show-draft: needs a single output, not --num-return-seq" in err and len(err.splitlines()) == 1


def test_record_contains_all_sequences_with_scores() -> None:
    prompt = {"prompt": PROMPTS[0]}
    (found,) = SESSION.batch([prompt], num_beams=3, num_return_sequences=2, max_tokens=5)
    assert found.result is not None
    line = json.loads(record(ParsedLine(InputLine(1, b"", b"", 0), prompt), found.result, None))
    assert [each["score"] for each in line["sequences"]] == [each.score for each in found.result.sequences]
    assert line["text"] == line["sequences"][0]["text"] and line["score"] == line["sequences"][0]["score"]


@pytest.mark.parametrize("family", FAMILIES)
def test_beams_give_metals_kernels_no_unchecked_arguments(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beams share cross keys and values. tests/unit/models/test_metal_kernels.py tests other decoding."""
    pretend_gpu(monkeypatch)
    _, codes = CODES.get(family, ("", ()))
    languages: dict[str, Any] = dict(zip(("src_lang", "tgt_lang"), codes, strict=False))
    with checked_kernels():
        session = load(save_family(tmp_path / "model", family), dtype="bfloat16")
        found = session.generate(["w3 w5 w7 w11", "w8"], num_beams=3, max_tokens=6, **languages)
    assert all(each.tokens for each in found)

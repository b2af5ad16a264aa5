"""generation_config.json and languages, with every drafter: the tokens are those of a search without cache or draft."""

from __future__ import annotations

import codecs
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import InputError, Session, batch_generate, generate, load, score
from speculative_decoding.cli.divergence import first_divergence
from speculative_decoding.errors import CheckpointError, shown
from speculative_decoding.loading.conversion import convert
from speculative_decoding.models.generation_config import GenerationConfig
from speculative_decoding.sampling import GenerationOptions
from tests.support.tiny import CONFIG, DRAFTERS, EOS, SOURCES, VOCAB, noisy_copy, save_hugging_face, tiny_model
from tests.support.together import Letters, drafter_of_rows, options_of, together
from tests.unit.sampling.test_constraints import naive_constrain

ASKED: dict[str, Any] = {
    "forced_bos_token_id": 5,
    "forced_eos_token_id": EOS,
    "no_repeat_ngram_size": 2,
    "min_length": 14,
    "bad_words_ids": [[0], [3, 4], [EOS]],
    "suppress_tokens": [11],
    "begin_suppress_tokens": [7, 9],
    "repetition_penalty": 1.1,
}
BARE = tiny_model()
MODEL = tiny_model()
MODEL.generation_config = GenerationConfig.from_dict(ASKED, VOCAB, [EOS])
DRAFT = noisy_copy(MODEL)
LENGTH = 18


def greedy(source: Sequence[int], asked: Mapping[str, Any], length: int = LENGTH) -> list[int]:
    """Decode greedily without a cache, one token at a time."""
    config = GenerationConfig.from_dict(asked, VOCAB, [EOS])
    options = config.with_defaults(GenerationOptions(max_tokens=length), 1)
    own = config.constraints(options, [EOS], 1, config.forced_bos_token_id)
    encoder_output, tokens = BARE.encode(mx.array([list(source)])), [0]
    while len(tokens) <= length and tokens[-1] != EOS:
        logits: list[float] = BARE.logits(BARE.teacher_forced(mx.array([tokens]), encoder_output))[0, -1].tolist()  # type: ignore[assignment]
        penalty = options.repetition_penalty or 1.0
        for token in set(tokens):
            logits[token] *= penalty if logits[token] < 0 else 1 / penalty
        scores = naive_constrain(logits, own, tokens)
        tokens.append(scores.index(max(scores)))
    return tokens[1:]


@cache
def baseline(number: int) -> list[int]:
    return greedy(SOURCES[number], ASKED)


def test_the_file_changes_the_text() -> None:
    for number, source in enumerate(SOURCES):
        text = baseline(number)
        assert text[0] == 5 and text[-1] == EOS and (len(text) >= 13) and text != greedy(source, {})
        assert len({*pairwise(text)}) == len(text) - 1


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_obeys_the_file(drafter: str) -> None:
    """A text cut at max_tokens ends with the forced end token, and its finish_reason is "length"."""
    requests = [(source, options_of(max_tokens=LENGTH)) for source in SOURCES]
    made = drafter_of_rows(drafter, MODEL, DRAFT, lambda row: baseline(SOURCES.index(row.source_tokens)))
    for number, told in enumerate(together(MODEL, requests, made, slots=3)):
        assert told.tokens == baseline(number)
        assert told.finish_reason == ("length" if len(told.tokens) == LENGTH else "stop")


def test_options_override_the_file() -> None:
    prompt = Letters().decode(SOURCES[0])
    bare = {"no_repeat_ngram_size": 0, "min_tokens": 0, "repetition_penalty": 1.0}
    kept = {name: ASKED[name] for name in ASKED if name not in (*bare, "min_length")}
    found = generate(MODEL, Letters(), prompt, max_tokens=LENGTH, draft_model=DRAFT, **bare)
    assert found.tokens == greedy(SOURCES[0], kept)
    own = {"no_repeat_ngram_size": 3, "min_tokens": 10, "max_tokens": LENGTH}
    found = generate(BARE, Letters(), prompt, draft_model=DRAFT, **own)
    assert found.tokens == greedy(SOURCES[0], {"no_repeat_ngram_size": 3, "min_new_tokens": 10})


def test_a_prefix_follows_the_forced_token() -> None:
    prompt = Letters().decode(SOURCES[0])
    whole = baseline(0)
    for given in (whole[1:6], whole[:6]):
        found = generate(MODEL, Letters(), prompt, decoder_prefix=given, max_tokens=LENGTH - 6, draft_model=DRAFT)
        assert found.tokens == whole[6:]


def test_a_scored_text_follows_the_forced_token() -> None:
    assert score(MODEL, Letters(), "abc", "bc").tokens == [5, *Letters().encode("bc")]
    assert score(BARE, Multilingual(), "abc", [3], src_lang="fra_Latn", tgt_lang="deu_Latn").tokens == [3]
    with pytest.raises(InputError, match="^tgt_lang: is missing"):
        score(BARE, Multilingual(), "abc", "bc")


def test_divergence_obeys_the_file() -> None:
    prompt = Letters().decode(SOURCES[0])
    text = baseline(0)
    session = Session(MODEL, Letters(), options=GenerationOptions(max_tokens=LENGTH))
    found = first_divergence(session, prompt, text, [*text[:3], 2])
    assert found is not None and found.position == 3 and found.logit_gap is not None and found.logit_gap > 0


@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_rows_of_a_batch_have_their_constraints(rule: str) -> None:
    """Rows with different constraints give the same tokens in a batch as in single requests."""
    rows = [{"prompt": "abc"}, {"prompt": "abc", "no_repeat_ngram_size": 1}, {"prompt": "cab", "min_tokens": 9}]
    own = {"temperature": 1.0, "acceptance": rule, "seed": 3, "num_draft_tokens": 3, "max_tokens": 12}
    for found in batch_generate(MODEL, Letters(), rows, draft_model=DRAFT, drafter="model", **own):
        alone = generate(MODEL, Letters(), draft_model=DRAFT, drafter="model", **(own | rows[found.index]))
        assert found.result is not None and found.result.tokens == alone.tokens


# Folders.


def folder_of(path: Path, generation: Mapping[str, Any] | None, **config: Any) -> Path:
    save_hugging_face(BARE, path, CONFIG | config)
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("forced_bos_token_id", VOCAB, "must be a whole number, 0 to 23"),
        ("bad_words_ids", [1], "must be a list, each item a list"),
        ("no_repeat_ngram_size", 65, "must be a whole number, 0 to 64"),
        ("repetition_penalty", 0, "must be a number, 1e-10"),
        ("bad_words_ids", [[3, 4]] * 65_537, "has too many entries .got 65537, at most 65536.$"),
        ("bad_words_ids", [[3] * 65], "has too many ids .got 65, at most 64.$"),
        ("suppress_tokens", [3] * (VOCAB + 1), "has too many entries"),
        ("suppress_tokens", [*range(VOCAB)], "leaves no token; remove ids that may occur$"),
    ],
)
def test_an_invalid_field_is_reported(tmp_path: Path, field: str, value: Any, wanted: str) -> None:
    folder = folder_of(tmp_path / "model", {field: value})
    for use in (lambda: load(folder), lambda: convert(str(folder), tmp_path / "out")):
        with pytest.raises(CheckpointError, match=f"^generation_config.json: .*{field}' {wanted}") as error:
            use()
        assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_fields_that_forbid_every_token_together_are_refused() -> None:
    asked = {
        "suppress_tokens": [0, 1],
        "begin_suppress_tokens": [2],
        "bad_words_ids": [[3, 4], *([i] for i in range(3, VOCAB))],
    }
    with pytest.raises(CheckpointError, match="'suppress_tokens', 'begin_suppress_tokens', 'bad_words_ids' leaves no"):
        GenerationConfig.from_dict(asked, VOCAB, [EOS])
    assert GenerationConfig.from_dict(asked | {"begin_suppress_tokens": []}, VOCAB, [EOS])


def test_older_folders_use_config_json_and_conversion_keeps_it(tmp_path: Path) -> None:
    """generation_config.json replaces these fields of config.json, as in transformers."""
    old = folder_of(tmp_path / "old", None, **ASKED)
    assert load(old).model.generation_config == MODEL.generation_config
    assert load(convert(str(old), tmp_path / "converted")).model.generation_config == MODEL.generation_config
    both = folder_of(tmp_path / "both", {"min_length": 3}, **ASKED)
    assert load(both).model.generation_config == GenerationConfig(min_length=3)
    first = folder_of(tmp_path / "first", None, force_bos_token_to_be_generated=True, bos_token_id=4)
    assert load(first).model.generation_config.forced_bos_token_id == 4


def test_unsupported_fields_are_reported_once_in_a_line(tmp_path: Path) -> None:
    asked = {"num_beams": 4, "length_penalty": 2.0, "do_sample": True, "encoder_repetition_penalty": 1.0}
    asked["forced_decoder_ids"] = [[1, 10**9]]
    folder = folder_of(tmp_path / "model", asked)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        load(folder, draft=folder).generate("a", max_tokens=2)
    (line,) = [str(each.message) for each in said if "generation_config" in str(each.message)]
    assert "num_beams 4 is ignored (set num_beams to use beam search); do_sample" in line
    assert "forced_decoder_ids [[1, 1000000000]] is ignored (set decoder_prefix for a fixed start)" in line
    assert "encoder_repetition_penalty" not in line and "\n" not in line


def test_a_byte_order_mark_in_the_files_of_a_folder_is_skipped(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", {"forced_bos_token_id": 5})
    expected = load(folder).generate("a", max_tokens=4).tokens
    for path in folder.glob("*.json"):
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert load(folder).generate("a", max_tokens=4).tokens == expected


def test_a_field_whose_option_was_chosen_needs_no_note() -> None:
    raw = {"num_beams": 4, "max_length": 200, "do_sample": True, "guidance_scale": 2.0, "max_new_tokens": None}
    config = GenerationConfig.from_dict(raw, VOCAB, [1])
    said = shown(config.note(), str.upper).split("; ")
    assert said[0] == "num_beams 4 is ignored (set NUM_BEAMS to use beam search)" and len(said) == 4
    chosen = ("num_beams", "max_tokens", "temperature")
    assert str(config.note(chosen)) == "guidance_scale 2.0 is ignored"
    assert GenerationConfig.from_dict({"num_beams": 4}, VOCAB, [1]).note(["num_beams"]) == ""
    longest = GenerationConfig.from_dict({"max_new_tokens": 64}, VOCAB, [1])
    assert str(longest.note()).startswith("max_new_tokens 64 is ignored (set max_tokens ")


# Languages.


class Multilingual(Letters):
    """Source ids begin with the language token, as with NLLB."""

    languages: Mapping[str, int] = {"deu_Latn": 20, "eng_Latn": 21, "fra_Latn": 22}

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [self.languages[language or "eng_Latn"], *super().encode(text)]


def test_rows_of_a_batch_have_different_languages() -> None:
    languages = ["deu_Latn", "fra_Latn", "deu_Latn", "eng_Latn"]
    rows = [{"prompt": "abc", "tgt_lang": each} for each in languages]
    rows[2]["src_lang"] = "fra_Latn"
    for found in batch_generate(BARE, Multilingual(), rows, draft_model=DRAFT, max_tokens=10):
        row = rows[found.index]
        source = Multilingual().encode("abc", row.get("src_lang"))
        forced = {"forced_bos_token_id": Multilingual.languages[row["tgt_lang"]]}
        assert found.result is not None and found.result.tokens == greedy(source, forced, 10)


@pytest.mark.parametrize(
    ("tokenizer", "options", "message"),
    [
        (
            Multilingual(),
            {},
            "^tgt_lang: is missing; choose one of the 3 languages of this model: deu_Latn, eng_Latn, fra",
        ),
        (
            Multilingual(),
            {"tgt_lang": "deu"},
            "^tgt_lang: 'deu' is an unknown language; did you mean deu_Latn.* This model has",
        ),
        (Multilingual(), {"tgt_lang": "deu_Latn", "src_lang": "xx"}, "^src_lang: 'xx' is an unknown language"),
        (Letters(), {"tgt_lang": "de"}, "^tgt_lang: 'de' has no effect: this model has no languages"),
        (Letters(), {"src_lang": "de"}, "^src_lang: 'de' has no effect: this model has no languages"),
    ],
)
def test_a_wrong_or_missing_language_is_reported_with_the_choices(
    tokenizer: Letters, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        generate(BARE, tokenizer, "abc", **options)
    assert "\n" not in str(error.value)


def test_a_model_with_a_fixed_language_needs_none() -> None:
    """The language is fixed by generation_config.json, or by the start token as in the first mBART."""
    one = tiny_model()
    one.generation_config = GenerationConfig(forced_bos_token_id=20)
    assert generate(one, Multilingual(), "abc", max_tokens=2).tokens[0] == 20
    start = tiny_model(decoder_start_token_id=21)
    assert generate(start, Multilingual(), "abc", max_tokens=2).tokens

"""Fine-tuned Whispers: tokens after the timestamps, heads of a larger decoder, defaults of generation_config.json."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculative_decoding import CheckpointError, InputError, load
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage, open_model
from speculative_decoding.models.speech_languages import ALIASES, CODES, NAMES, code_of_language
from speculative_decoding.models.whisper_tokens import AudioConfig, config_by_layout, resolved, upper_half
from speculative_decoding.speech.keywords import split_options
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.scheduler import language_code
from speculative_decoding.speech.segments import Window
from speculative_decoding.speech.speech_text import SpeechText
from speculative_decoding.speech.transcription import Attempt
from speculative_decoding.speech.window_requests import WindowRequests
from speculative_decoding.training.recordings import read_manifest
from tests.support.paths import GOLDENS
from tests.support.tiny import WHISPER, audio_frames, save_whisper, tiny_whisper, whisper_tokenizer

# The ids of `whisper_tokenizer`: text, end, start, en, de, translate, transcribe, startoflm, startofprev, ...
END, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS, ZERO = (
    40,
    42,
    43,
    44,
    45,
    47,
    48,
    49,
    50,
)
LAYOUT = {"no_timestamps_token_id": NO_TIMESTAMPS, "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN}}
LAYOUT |= {"task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE}, "prev_sot_token_id": PREVIOUS}
AUDIO = (np.random.default_rng(0).standard_normal(16000) * 0.1).astype(np.float32)
GREEDY: dict[str, Any] = {"temperature": 0, "no_speech_threshold": None, "sample_len": 8, "drafter": "none"}
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write a tiny Whisper. rows: more than the standard ones. added: tokens of the tokenizer after the timestamps."""

    def write(rows: int = 0, added: tuple[str, ...] = (), **generation_config: Any) -> Path:
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        sizes = {"vocab_size": WHISPER["vocab_size"] + rows}
        folder = save_whisper(tiny_whisper(**sizes), tmp_path / "model", WHISPER | sizes)
        tokenizer = whisper_tokenizer(WHISPER)
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        for i, piece in enumerate(added):
            tokenizer["added_tokens"].append({"id": WHISPER["vocab_size"] + i, "content": piece, **flags})
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        content = {"is_multilingual": True} | generation_config
        (folder / "generation_config.json").write_text(json.dumps(content))
        return folder

    return write


def audio_of(folder: Path) -> AudioConfig:
    audio = open_model(folder).model.audio
    assert audio is not None
    return audio


@pytest.mark.parametrize("stated", [LAYOUT, {}], ids=["stated", "tokenizer"])
@pytest.mark.parametrize(("rows", "added"), [(0, ()), (7, ("concord",))])
def test_added_and_padded_rows_leave_the_layout_as_it_is(
    save: Save, rows: int, added: tuple[str, ...], stated: dict[str, Any], tmp_path: Path
) -> None:
    folder = save(rows, added, **stated)
    for each in (folder, convert(str(folder), tmp_path / "converted", Storage("float32"))):
        audio = audio_of(each)
        ids = (audio.translate, audio.transcribe, audio.previous, audio.no_speech, audio.no_timestamps)
        assert ids == (TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS)
        assert (audio.timestamp_begin, audio.timestamp_end) == (ZERO, WHISPER["vocab_size"])
        assert audio.languages == {"en": ENGLISH, "de": GERMAN}
        assert [*audio.unused] == [*range(81 + len(added), 81 + rows)]


def test_added_tokens_are_text_and_padding_never_occurs(save: Save) -> None:
    session = load(save(3, ("concord",), suppress_tokens=[]))
    model, audio = session.model, session.model.audio
    assert audio is not None
    text = SpeechText(session.tokenizer, audio)
    assert text.decode([5, 81, ZERO + 3]) == text.decode([5, 81]) and "concord" in text.decode([5, 81])
    assert {82, 83} <= {*text.suppressed} and 81 not in text.suppressed
    requests = WindowRequests(model, text, "en", TranscriptionOptions(), session.options)
    start = requests.decoder_prompt(Attempt(Window(0, 60, audio_frames()), [], 0.0))
    assert start.constraints.processor is not None and start.constraints.processor.added_from == 81
    # Make the added token likely: it becomes part of the transcript and of its words.
    model.embedding.weight[81] = 2 * model.embedding.weight[21]
    model.finalize()
    found = session.transcribe(AUDIO, language="en", word_timestamps=True, **GREEDY)
    assert "concord" in found.text and any(81 in segment.tokens for segment in found.segments)
    words = "".join(word.word for segment in found.segments for word in segment.words or ())
    assert words.replace(" ", "") == found.text.replace(" ", "")  # a word-level tokenizer adds spaces between words
    assert not {82, 83}.intersection(token for segment in found.segments for token in segment.tokens)


def test_a_tokenizer_of_another_whisper_is_refused(save: Save) -> None:
    """Also one that is a row shorter than the model, as whisper-tiny's is for large-v3."""
    folder = save(**LAYOUT)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["id"] -= token["id"] > GERMAN
    del tokenizer["added_tokens"][GERMAN - END]
    tokenizer["model"]["vocab"] = {f"w{i}": i for i in range(END)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match="tokenizer: token .* does not fit the model"):
        load(folder)


def test_sizes_of_openai_have_their_layout_unless_the_tokenizer_names_all_tokens() -> None:
    tiny = config_by_layout(51866, 1500, num_mel_bins=80, start=50258, end=50257, alignment_heads=[(0, 0)])
    names = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    special = ["endoftext", "startoftranscript", *NAMES]
    languages = special[:101]  # of all models but large-v3
    pieces = {50257 + i: f"<|{name}|>" for i, name in enumerate([*languages, *names])}
    with pytest.raises(InputError, match="token .* does not fit the model"):
        resolved(tiny, pieces, {}, (1, 2), 51866, "generation_config.json")
    found = resolved(tiny, pieces | {51865: "concord"}, {}, (1, 2), 51866, "generation_config.json")
    assert found.no_timestamps == 50363 and len(found.languages) == 99
    stated = resolved(tiny, pieces, {"no_timestamps_token_id": 50363}, (1, 2), 51866, "generation_config.json")
    assert stated.timestamp_begin == 50364


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"no_timestamps_token_id": 80}, "'no_timestamps_token_id' 80 leaves no room for 30 timestamps among 81"),
        ({"no_timestamps_token_id": 81}, "'no_timestamps_token_id' must be a whole number, 0 to 80"),
        ({"lang_to_id": [42]}, "'lang_to_id' must be an object"),
        ({"lang_to_id": {"<|en|>": 99}}, "'lang_to_id of <|en|>' must be"),
        ({"task_to_id": {"transcribe": -1}}, "'task_to_id of transcribe' must be"),
        ({"suppress_tokens": [81]}, "'suppress_tokens' must be"),
        ({"begin_suppress_tokens": "40"}, "'begin_suppress_tokens' must be"),
        ({"language": "fr"}, "'language' 'fr' is not a language of this model"),
        ({"language": ["en"]}, "'language' must be text"),
        ({"task": "sing"}, "'task' must be one of transcribe, translate"),
        ({"is_multilingual": False, "task": "translate"}, "'task' must be one of transcribe"),
        ({"alignment_heads": [[0, -1]]}, "'alignment_heads' must be"),
        ({"alignment_heads": 3}, "'alignment_heads' must be"),
    ],
    ids=str,
)
def test_an_invalid_field_is_named(save: Save, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_model(save(**fields))
    assert named in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("heads", [[[7, 0], [1, 1]], [[0, 9]]])
def test_heads_of_another_decoder_are_replaced_by_the_upper_half(save: Save, heads: list[list[int]]) -> None:
    """As openai-whisper aligns models without known heads. Only word times depend on it, so only they are noted."""
    session = load(save(alignment_heads=heads))
    audio = session.model.audio
    assert audio is not None and audio.alignment_heads == upper_half(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.transcribe(AUDIO, language="en", **GREEDY)
    with pytest.warns(UserWarning, match=rf"'alignment_heads' has \[{heads[0][0]}, {heads[0][1]}\], but this decoder"):
        found = session.transcribe(AUDIO, language="en", word_timestamps=True, **GREEDY)
    own = load(save(alignment_heads=upper_half(2, 2)))
    assert found.segments == own.transcribe(AUDIO, language="en", word_timestamps=True, **GREEDY).segments


def test_suppressed_tokens_are_those_of_the_file(save: Save) -> None:
    """Without the field, they are openai-whisper's. Special tokens are always suppressed."""
    special = {TRANSLATE, TRANSCRIBE, 41, 46, PREVIOUS, NO_SPEECH}
    for fields, suppressed, blank in (
        ({"suppress_tokens": [5, 9]}, {5, 9} | special, None),
        ({"suppress_tokens": [], "begin_suppress_tokens": [7, END]}, special, [7, END]),
        ({"suppress_tokens": None, "begin_suppress_tokens": []}, None, []),
    ):
        opened = open_model(save(**fields))
        assert opened.model.audio is not None
        text = SpeechText(opened.tokenizer, opened.model.audio)
        assert {*text.suppressed} == (suppressed or text._symbols | special)
        if blank is not None:
            assert text.blank == blank


def test_transcripts_obey_the_suppressed_tokens_of_the_file(save: Save) -> None:
    free = load(save(suppress_tokens=[])).transcribe(AUDIO, language="en", **GREEDY)
    used = sorted({token for segment in free.segments for token in segment.tokens if token < END})
    found = load(save(suppress_tokens=used)).transcribe(AUDIO, language="en", **GREEDY)
    assert used and not {*used}.intersection(token for segment in found.segments for token in segment.tokens)


def test_language_and_task_of_the_file_are_defaults(save: Save) -> None:
    session = load(save(language="German", task="translate"))
    audio = session.model.audio
    assert audio is not None and audio.defaults == {"language": "de", "task": "translate"}
    default = session.transcribe(AUDIO, **GREEDY)
    assert default.language == "de"
    assert default.text == session.transcribe(AUDIO, language="de", task="translate", **GREEDY).text
    english = session.transcribe(AUDIO, language="English", task="transcribe", **GREEDY)
    assert english.language == "en"
    *_, last = session.transcribe_batch([{"audio": AUDIO, "language": "en"}], **GREEDY)
    assert last.language == "en"
    detecting, _ = split_options({"language": None}, audio)
    assert (detecting.language, detecting.task) == (None, "translate")
    assert [*session.transcribe_chunks(AUDIO, **GREEDY)][-1].language == "de"


GOLDEN = json.loads((GOLDENS / "speech_languages.json").read_text())


def test_names_of_languages_are_those_of_openai() -> None:
    assert GOLDEN["languages"] == NAMES and GOLDEN["codes"] == CODES and ALIASES.keys() <= GOLDEN["codes"].keys()
    for name, code in GOLDEN["codes"].items():
        assert (
            code_of_language(name.title()) == code_of_language(code.upper()) == code_of_language(f"<|{code}|>") == code
        )


def test_a_language_may_be_named_wherever_one_is_expected(save: Save, tmp_path: Path) -> None:
    audio = audio_of(save())
    for name, code in (("German", "de"), ("english", "en"), ("DE", "de")):
        assert language_code(audio, TranscriptionOptions(language=name)) == code
    with pytest.raises(InputError, match="language: 'castilian' is unknown; choose one of the 2 languages"):
        language_code(audio, TranscriptionOptions(language="castilian"))
    manifest = tmp_path / "manifest.jsonl"
    segments = [{"start": 0, "end": 1, "text": "a"}]
    manifest.write_text(json.dumps({"audio": "a.wav", "language": "Haitian Creole", "segments": segments}))
    assert read_manifest(manifest)[0].language == "ht"

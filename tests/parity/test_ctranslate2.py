"""CTranslate2 folders: files equal those that CTranslate2 writes, and outputs equal those that it decodes from them.

tools/goldens/make_ctranslate2_goldens.py records both. It also checks that outputs depend on each attribute.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from speculative_decoding import CheckpointError, batch_generate, checkpoints, generate, load
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.draft_head import write_draft_head
from speculative_decoding.loading.load import Storage, build_model, checked_generation_config, read_folder
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.source import AudioFrames
from tests.parity.test_scoring import Numbers, text_of
from tests.support.ctranslate2_cases import CASES, variables, write
from tests.support.ctranslate2_files import random_array
from tests.support.device import within
from tests.support.paths import GOLDENS
from tests.support.tiny import TOKENIZER, noisy_copy, tiny_head

TEXTS = [name for name, case in CASES.items() if case["spec"] == "TransformerSpec"]
SPEECH = [name for name in CASES if name not in TEXTS]
FAMILIES = [name for name, case in CASES.items() if case["family"] == name]  # converted in float32
ERROR = 2e-4  # of log-probabilities in float32


def opened(folder: Path, storage: Storage | None = None) -> EncoderDecoder:
    raw, checkpoint = read_folder(folder)
    model, raw, checkpoint = build_model(raw, checkpoint, storage or Storage("float32"))
    model.load_checkpoint(checkpoint)
    model.generation_config = checked_generation_config(folder, raw, model)
    return model


def without_end(model: EncoderDecoder, tokens: list[int]) -> list[int]:
    return [token for token in tokens if token not in model.config.eos_token_ids]


def log_probs_of(model: EncoderDecoder, source: list[int], output: list[int]) -> np.ndarray[Any, Any]:
    """Return the log-probability of each token and of the end, among the tokens that outputs may contain."""
    tokens = [model.config.decoder_start_token_id, *output]
    cache = model.make_cache(model.encode_rows([source])[0])
    logits = np.array(model.decode(mx.array([tokens], mx.uint32), cache)[0]).astype(np.float64)
    logits[:, [token for token, *_ in model.generation_config.bad_words_ids]] = -np.inf
    logits -= logits.max(axis=-1, keepdims=True)
    ids = [*output, model.config.eos_token_ids[0]]
    return logits[np.arange(len(ids)), ids] - np.log(np.exp(logits).sum(axis=-1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_written_files_equal_those_of_ctranslate2(name: str, tmp_path: Path) -> None:
    """The writer of the tests is correct, so that the other tests read files as CTranslate2 writes them."""
    folder = write(name, tmp_path)
    assert hashlib.sha256((folder / "model.bin").read_bytes()).hexdigest() == CASES[name]["sha256"]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", TEXTS)
def test_outputs_and_their_scores_equal_those_of_ctranslate2(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = opened(write(name, tmp_path))
    prefix = text_of(case["prefix"])
    end = [model.config.eos_token_ids[0]] if checkpoints.read_config(tmp_path)["add_source_eos"] else []
    for source, expected, log_probs in zip(case["sources"], case["outputs"], case["log_probs"], strict=True):
        source = source + end
        prompt = text_of(source)
        assert np.abs(log_probs_of(model, source, expected) - log_probs).max() < within(ERROR)
        options: dict[str, Any] = {"max_tokens": max(1, 16 - len(case["prefix"])), "drafter": "none"}
        result = generate(model, Numbers(), prompt, decoder_prefix=prefix, **options)
        assert without_end(model, result.tokens) == expected[len(case["prefix"]) :]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "name", ["pre-norm", "RMS norms after blocks", "zero start", "gated", "sinusoids", "grouped keys"]
)
def test_batch_rows_equal_ctranslate2_with_drafts(name: str, tmp_path: Path) -> None:
    """Sources of different lengths share two slots."""
    case = CASES[name]
    model = opened(write(name, tmp_path))
    prompts = [text_of(source) for source in case["sources"]]
    draft = noisy_copy(model, 0.03)
    found = batch_generate(
        model, Numbers(), prompts, slots=2, drafter="model", draft_model=draft, num_draft_tokens=3, max_tokens=16
    )
    outputs = {each.index: without_end(model, each.result.tokens) for each in found if each.result is not None}
    assert outputs == dict(enumerate(case["outputs"]))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", SPEECH)
def test_transcripts_equal_those_of_ctranslate2(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = opened(write(name, tmp_path))
    assert model.audio is not None
    bins, length = model.audio.num_mel_bins, model.audio.window_frames
    prefix = text_of([case["tokens"].index("<|notimestamps|>")])
    for index, expected in enumerate(case["outputs"]):
        frames = AudioFrames(mx.array(random_array(index, "frames", (length, bins))))
        result = generate(model, Numbers(), frames, decoder_prefix=prefix, max_tokens=16, drafter="none")
        assert without_end(model, result.tokens) == expected


# Equality with the model that was converted.

# Errors of CTranslate2's converter: it writes one number of heads for both stacks. With transformers 5, it also writes
# the output scale of tied T5 models for untied ones.
CORRECTIONS: Mapping[str, dict[str, Any]] = {
    "bart": {"decoder/num_heads": np.int16(4)},
    "flan-t5": {"decoder/scale_outputs": None},
    "mt5": {"decoder/scale_outputs": None},
}


def original(name: str) -> EncoderDecoder:
    """Open the Hugging Face model that a case was converted from.

    Marian's converter removes the row of the start token, which is zero in published models, but random in ours.
    """
    model = opened(GOLDENS / name)
    if name == "marian":
        weight = model.embedding.weight
        model.embedding.weight = mx.concatenate([weight[:-1], mx.zeros_like(weight[-1:])])
        model.logits_bias = mx.concatenate([model.logits_bias[:, :-1], mx.zeros((1, 1))], axis=1)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_equal_those_of_the_converted_model(name: str, tmp_path: Path) -> None:
    found, expected = opened(write(name, tmp_path, CORRECTIONS.get(name))), original(name)
    ours, theirs = (dict(tree_flatten(model.parameters())) for model in (found, expected))
    tables = {f"{stack}.positions.weight" for stack in ("encoder", "decoder")}
    assert ours.keys() ^ theirs.keys() <= tables
    for path in ours.keys() - tables:
        assert mx.array_equal(ours[path], theirs[path]), path
    for stack in ("encoder", "decoder") if tables & ours.keys() else ():  # stored, even if they are sinusoids
        pair = [getattr(model, stack).positions.table(40) for model in (found, expected)]
        assert mx.allclose(*pair, rtol=0, atol=4e-6)
        assert name == "m2m_100" or mx.array_equal(*pair)  # torch rounds differently


@pytest.mark.parametrize("name", FAMILIES)
def test_all_outputs_equal_those_of_the_converted_model(name: str, tmp_path: Path) -> None:
    """Greedy outputs and samples, with the generation config of the folder. For beams, see tests/beam_search."""
    found, expected = opened(write(name, tmp_path, CORRECTIONS.get(name))), original(name)
    expected.generation_config = found.generation_config
    prefix = text_of(CASES[name].get("prefix", ()))
    if found.audio is None:
        prompts: list[Any] = [text_of(source) for source in CASES[name]["sources"][1:]]
    else:
        length, bins = found.audio.window_frames, found.audio.num_mel_bins
        prompts = [AudioFrames(mx.array(random_array(index, "frames", (length, bins)))) for index in range(4)]
    for options in ({}, {"temperature": 1.0, "seed": 5}):
        outputs = [
            [
                generate(model, Numbers(), each, decoder_prefix=prefix, max_tokens=12, drafter="none", **options).tokens
                for each in prompts
            ]
            for model in (found, expected)
        ]
        assert outputs[0] == outputs[1] and len({*map(tuple, outputs[0])}) > 1, options


# Folders.


def with_tokenizer(folder: Path, tokens: Sequence[str]) -> Path:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": tokens[3]}
    content = TOKENIZER | {"model": model, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("name", ["marian", "t5", "whisper", "version 5, revision 4", "RMS norms", "gated", "int8"])
def test_converted_folders_equal_the_original(name: str, tmp_path: Path) -> None:
    folder = with_tokenizer(write(name, tmp_path / "ct2"), CASES[name]["tokens"])
    for storage in (Storage("float32"), Storage("float32", 4, 32)):
        if storage.quantize and name != "t5":
            continue  # no layer is wide enough
        path = convert(str(folder), tmp_path / str(storage), storage)
        quantize = {"quantize": storage.quantize, "group_size": 32} if storage.quantize else {}
        converted, found = load(path).model, load(folder, **quantize).model  # type: ignore[arg-type]
        ours, theirs = (dict(tree_flatten(model.parameters())) for model in (converted, found))
        assert ours.keys() == theirs.keys() and all(mx.array_equal(ours[path], theirs[path]) for path in ours)
        assert storage.quantize is None or any(path.endswith("scales") for path in ours)
        assert converted.config == found.config
        assert converted.generation_config == found.generation_config and converted.audio == found.audio


def test_alignment_heads_and_suppressed_tokens_of_a_whisper(tmp_path: Path) -> None:
    heads = [[0, 3], [1, 1]]
    fields: dict[str, Any] = {"alignment_heads": heads, "suppress_ids": [5, 9], "suppress_ids_begin": [7, 60]}
    folder = with_tokenizer(write("whisper", tmp_path / "ct2", **fields), CASES["whisper"]["tokens"])
    for path in (folder, convert(str(folder), tmp_path / "converted")):
        audio = load(path).model.audio
        assert audio is not None and [list(head) for head in audio.alignment_heads] == heads
        assert (audio.suppressed, audio.begin_suppressed) == ((5, 9), (7, 60))
        assert (audio.start, audio.end) == (61, 60)


def test_drafts_on_a_ctranslate2_target(tmp_path: Path) -> None:
    """A draft head, and a draft model in another format, leave the output unchanged."""
    folder = with_tokenizer(write("bart", tmp_path / "ct2"), CASES["bart"]["tokens"])
    shutil.copytree(GOLDENS / "bart", tmp_path / "hf")
    with_tokenizer(tmp_path / "hf", CASES["bart"]["tokens"])
    target = load(folder).model
    write_draft_head(tmp_path / "head", tiny_head(target), target, mx.float32)
    source = CASES["bart"]["sources"][3]
    (tmp_path / "hf" / "generation_config.json").unlink()
    options: dict[str, Any] = {"max_tokens": 12}
    expected = load(folder).generate(source, drafter="none", **options).tokens
    for draft in (tmp_path / "head", tmp_path / "hf"):
        assert (
            load(folder, draft=draft).generate(source, drafter="model", num_draft_tokens=3, **options).tokens
            == expected
        )
    expected = load(tmp_path / "hf").generate(source, drafter="none", **options).tokens
    assert (
        load(tmp_path / "hf", draft=folder).generate(source, drafter="model", num_draft_tokens=3, **options).tokens
        == expected
    )


def test_binary_flags_of_sources_and_starts(tmp_path: Path) -> None:
    """Up to version 5, attributes of model.bin contain these fields; from version 6 on, config.json does."""
    old = {"with_source_bos": np.int8(1), "with_source_eos": np.int8(1), "bos_token": "w4"}
    raw = checkpoints.read_config(write("version 5, revision 4", tmp_path / "old", old))
    assert (raw["add_source_bos"], raw["add_source_eos"], raw["bos_token"]) == (True, True, "w4")
    assert raw["decoder_start_token_id"] == raw["eos_token_id"] == 7  # with_target_bos is 0
    raw = checkpoints.read_config(write("pre-norm", tmp_path / "new", old, add_source_eos=True))
    assert (raw["add_source_bos"], raw["add_source_eos"], raw["bos_token"]) == (False, True, "<s>")


def test_the_multi_query_flag_equals_one_head_of_keys(tmp_path: Path) -> None:
    """CTranslate2 4.8 decodes such files only one source at a time, to the same outputs."""
    heads = [name for name in variables("multi-query") if name.endswith("/num_heads_kv")]
    changes: dict[str, Any] = dict.fromkeys(heads)
    changes |= {name.replace("num_heads_kv", "multi_query"): np.int8(1) for name in heads}
    found, expected = (opened(write("multi-query", tmp_path / str(len(each)), each)) for each in (changes, {}))
    ours, theirs = (dict(tree_flatten(model.parameters())) for model in (found, expected))
    assert len(heads) == 6 and all(mx.array_equal(ours[path], theirs[path]) for path in theirs)


def test_vocabulary_may_be_smaller_than_the_tables(tmp_path: Path) -> None:
    folder = write("pre-norm", tmp_path)
    tokens = CASES["pre-norm"]["tokens"]
    (folder / "shared_vocabulary.json").write_text(json.dumps(tokens[:-6]))
    assert opened(folder).config.vocab_size == len(tokens)
    (folder / "shared_vocabulary.json").write_text(json.dumps([*tokens, "more"]))
    with pytest.raises(CheckpointError, match=r"shared_vocabulary\.json: has 41 tokens, but the model has 40$"):
        opened(folder)


# Refusals.

ATTENTION = "decoder/layer_0/self_attention"
NORM = np.ones(16, np.float32)
MATRIX = np.ones((16, 16), np.float32)
REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    # changes of variables and arguments of `write` -> the message after the name of the file
    "rotary": ({f"{ATTENTION}/rotary_dim": np.int32(4)}, f"'{ATTENTION}/rotary_dim' is not supported"),
    "rotary, all dimensions": ({f"{ATTENTION}/rotary_dim": np.int32(0)}, f"'{ATTENTION}/rotary_dim' is not supp"),
    "alibi": ({"decoder/alibi": np.int8(1)}, "'decoder/alibi' is not supported"),
    "Shaw": (
        {f"{ATTENTION}/relative_position_keys": np.ones((9, 4), np.float32)},
        f"'{ATTENTION}/relative_position_keys' is not supported",
    ),
    "sliding window": ({"decoder/sliding_window": np.int32(8)}, "'decoder/sliding_window' is not supported"),
    "project_in": ({"decoder/project_in/weight": MATRIX}, "'decoder/project_in/weight' is not supported"),
    "project_out": ({"decoder/project_out/weight": MATRIX}, "'decoder/project_out/weight' is not supported"),
    "soft cap": (
        {"decoder/final_logit_softcapping": np.float32(9)},
        "'decoder/final_logit_softcapping' is not supported",
    ),
    "scale of outputs": ({"decoder/scale_outputs": np.float32(0.5)}, "'decoder/scale_outputs' is not supported"),
    "tanh": (
        {"encoder/activation": np.int8(5), "decoder/activation": np.int8(5)},
        r"'activation' has unsupported values \(5, 5\)",
    ),
    "sigmoid": ({"decoder/activation": np.int8(6)}, r"'activation' has unsupported values \(0, 6\)"),
    "two source embeddings": (
        {"encoder/embeddings_0/weight": MATRIX[:, :8], "encoder/embeddings_1/weight": MATRIX[:, 8:]},
        "'encoder/embeddings_1/weight' is not supported",
    ),
    "norms around blocks": (
        {"decoder/layer_1/post_feedforward_layer_norm/gamma": NORM},
        "'decoder/layer_1/post_feedforward_layer_norm/gamma' is not supported",
    ),
    "T5Gemma": (
        {
            f"{ATTENTION}/layer_norm/gamma": None,
            f"{ATTENTION}/layer_norm/beta": None,
            "decoder/layer_0/input_layer_norm/gamma": NORM,
        },
        "'decoder/layer_0/input_layer_norm/gamma' is not supported",
    ),
    "missing norm": (
        {"encoder/layer_1/ffn/layer_norm/gamma": None},
        "variable 'encoder/layer_1/ffn/layer_norm/gamma' is missing",
    ),
    "norms of queries": ({f"{ATTENTION}/q_norm/gamma": NORM[:4]}, f"'{ATTENTION}/q_norm/gamma' is not supported"),
    "no final norm": (
        {"decoder/layer_norm/gamma": None, "decoder/layer_norm/beta": None},
        "variable 'decoder/layer_norm/gamma' is missing",
    ),
    "scale of embeddings": (
        {"encoder/scale_embeddings": np.float32(3)},
        "attribute 'encoder/scale_embeddings' of 3 is not supported",
    ),
    "scale of one stack": (
        {"encoder/scale_embeddings": np.int8(0)},
        "'scale_embeddings' is False in the encoder and True in the decoder",
    ),
    "pre-norm of one stack": (
        {"encoder/pre_norm": np.int8(0)},
        "'pre_norm' is False in the encoder and True in the decoder",
    ),
    "positions of one stack": (
        {"encoder/position_encodings/encodings": None},
        "'position_encodings' is False in the encoder and True in the decoder",
    ),
    "scale of queries": (
        {f"{ATTENTION}/queries_scale": np.float32(1)},
        f"attribute '{ATTENTION}/queries_scale' of 1 is not supported",
    ),
    "size of heads": ({f"{ATTENTION}/head_dim": np.int32(8)}, f"attribute '{ATTENTION}/head_dim' of 8 is not supp"),
    "heads": ({"decoder/num_heads": np.int16(3)}, "'decoder/num_heads' of 3 does not divide the width 16"),
    "AWQ": (
        {f"{ATTENTION}/linear_1/weight_zero": np.ones((4, 2), np.int32)},
        f"'{ATTENTION}/linear_1/weight_zero' is not supported",
    ),
    "weights in int32": (
        {f"{ATTENTION}/linear_1/weight": np.ones((16, 16), np.int32)},
        "the variables of 'model.decoder.layers.0.self_attn.out_proj.weight' do not fit together",
    ),
    "decoder only": (
        {"spec": "TransformerDecoderSpec", "revision": 8},
        "unsupported kind of model 'TransformerDecoderSpec' .expected TransformerSpec, WhisperSpec",
    ),
    "encoder only": ({"spec": "TransformerEncoderSpec"}, "unsupported kind of model 'TransformerEncoderSpec'"),
    "wav2vec2": ({"spec": "Wav2Vec2Spec"}, "unsupported kind of model 'Wav2Vec2Spec'"),
    "new revision": ({"revision": 8}, "unsupported revision 8 of TransformerSpec .expected 4 to 7.; convert the orig"),
    "old revision": ({"revision": 3}, "unsupported revision 3 of TransformerSpec"),
    "new version": ({"version": 7}, "unsupported version 7 .expected 4, 5, 6.; convert the original model again"),
    "old version": ({"version": 3}, "unsupported version 3"),
}


def refusal(folder: Path) -> str:
    """Return the message, which is the same for the config and the weights, and is one line."""
    with pytest.raises(CheckpointError) as caught:
        read_folder(folder)
    message = str(caught.value)
    assert message.isprintable() and str(folder) in message
    return message.partition(": ")[2]


@pytest.mark.parametrize("name", REFUSED)
def test_other_architectures_are_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, expected = REFUSED[name]
    form = {key: changes[key] for key in changes if key in ("spec", "revision", "version")}
    values = {key: value for key, value in changes.items() if key not in form}
    assert re.match(expected, refusal(write("pre-norm", tmp_path, values, **form)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"decoder_start_token": None}, "'decoder_start_token' is missing"),
        ({"decoder_start_token": "w99"}, "has no 'w99', which is the model's 'decoder_start_token'"),
        ({"eos_token": "w99"}, "has no 'w99', which is the model's 'eos_token'"),
        ({"eos_token": 5}, "'eos_token' must be a token, not 5"),
        ({"layer_norm_epsilon": 1e-6}, "'layer_norm_epsilon' of 1e-06 is not supported"),
    ],
)
def test_other_configs_are_refused(fields: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert refusal(write("pre-norm", tmp_path, **fields)).startswith(expected)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    folder = write("pre-norm", tmp_path)
    shared = folder / "shared_vocabulary.json"
    for name in ("source_vocabulary.json", "target_vocabulary.json"):
        (folder / name).write_bytes(shared.read_bytes())
    shared.unlink()
    assert refusal(folder).startswith("separate source and target vocabularies are not supported")
    (folder / "source_vocabulary.json").unlink()
    assert refusal(folder).startswith("has no shared_vocabulary.json or .txt")
    user = {"user_decoder_start_tokens": np.int8(1)}
    assert "decoder_start_token" in refusal(write("version 5, revision 4", tmp_path / "old", user))


def test_refused_variants_of_t5_and_whisper(tmp_path: Path) -> None:
    t5 = {"decoder/scale_outputs": np.float32(0.5)}
    assert refusal(write("T5, tied, with wide heads", tmp_path / "a", t5)).startswith(
        "attribute 'decoder/scale_outputs'"
    )
    beta = dict.fromkeys((f"{ATTENTION}/layer_norm/beta", "decoder/layer_norm/beta"), NORM)
    assert refusal(write("T5", tmp_path / "b", beta)).startswith("a relative attention bias with layer norms")
    scaled = {"decoder/scale_embeddings": np.int8(1)}
    assert refusal(write("T5", tmp_path / "c", scaled)).startswith("'decoder/scale_embeddings' is not supported")
    assert refusal(write("whisper", tmp_path / "d", scaled)).startswith("'decoder/scale_embeddings' is not supported")
    assert refusal(write("whisper", tmp_path / "e", {"decoder/activation": np.int8(2)})).startswith(
        "'decoder/activation'"
    )

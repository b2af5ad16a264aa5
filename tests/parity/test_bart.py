"""BART families: file variants, positions and decoding. test_t5.py checks the goldens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from safetensors.numpy import load_file, save_file

from speculative_decoding import CheckpointError, InputError, checkpoints, generate, load, models
from speculative_decoding.decoding.prompt import make_request
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage, checked_generation_config
from speculative_decoding.models.bart import BART, FAMILIES, BartConfig
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.scoring import score
from tests.parity.test_scoring import Numbers, text_of
from tests.parity.test_t5 import load_golden, sources_of
from tests.support.device import within
from tests.support.paths import GOLDENS
from tests.support.tiny import head_drafter, noisy_copy, run, tokens_of
from tests.support.tiny import save_hugging_face as save
from tests.support.together import Letters

SOURCES = [[5, 9, 13, 7, 3], [21, 3], [11, 4, 19, 6, 33, 8, 3, 40, 41, 42, 43]]
CONFIG: dict[str, Any] = {
    "model_type": "bart",
    "vocab_size": 64,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 70,
    "decoder_start_token_id": 2,
    "pad_token_id": 1,
    "eos_token_id": 2,
}


def opened(name: str) -> tuple[BART, dict[str, Any]]:
    model, golden = load_golden(GOLDENS / name)
    assert isinstance(model, BART)
    return model, golden


def random_model(**changes: Any) -> BART:
    model = BART(BartConfig.from_dict(CONFIG | changes))
    keys = iter(mx.random.split(mx.random.key(3), 200))
    noise = {path: mx.random.normal(p.shape, key=next(keys)) for path, p in tree_flatten(model.parameters())}
    norms = {path for path in noise if "norm.weight" in path}
    model.load_weights([(path, 0.12 * each + (path in norms)) for path, each in noise.items()])
    mx.eval(model.parameters())
    return model


# Files.


def test_zero_logits_bias_is_ignored(tmp_path: Path) -> None:
    name, tensors = "final_logits_bias", load_file(GOLDENS / "bart" / "model.safetensors")

    def loaded(bias: np.ndarray[Any, Any]) -> BART:
        save_file(tensors | {name: bias}, tmp_path / "model.safetensors")
        checkpoint = checkpoints.read(tmp_path)
        model = models.build(json.loads((GOLDENS / "bart" / "config.json").read_text()), checkpoint)
        model.load_checkpoint(checkpoint)
        return model  # type: ignore[return-value]

    assert "logits_bias" in loaded(tensors[name]) and "logits_bias" not in loaded(np.zeros_like(tensors[name]))
    with pytest.raises(CheckpointError, match=f"'{name}' has shape"):
        loaded(np.zeros((1, 5), np.float32))


IMPOSSIBLE: list[tuple[str, Any]] = [
    ("d_model", 1 << 30),
    ("d_model", None),
    ("d_model", 66),
    ("decoder_attention_heads", 3),
    ("activation_function", "sine"),
    ("share_encoder_decoder_embeddings", False),
    ("decoder_start_token_id", 64),
]


@pytest.mark.parametrize(("field", "value"), IMPOSSIBLE, ids=lambda value: str(value)[:20])
def test_invalid_field_is_named_in_one_line(field: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as error:
        models.build(CONFIG | {field: value})
    assert field in str(error.value) and str(error.value).isprintable()


def test_mbart_requires_a_decoder_start_token() -> None:
    silent = {name: value for name, value in CONFIG.items() if name != "decoder_start_token_id"}
    assert models.build(silent).config.decoder_start_token_id == 2
    with pytest.raises(CheckpointError, match="decoder_start_token_id"):
        models.build(silent | {"model_type": "mbart"})


# Positions.


@pytest.mark.usefixtures("device")
def test_passes_may_exceed_a_learned_position_table() -> None:
    """In a cache of capacity 128, a draft beyond the 70 positions does not change the logits within them."""
    model = random_model()
    encoder_output = model.encode(mx.array([SOURCES[0]]))
    tokens = mx.random.randint(3, 64, (1, 76), key=mx.random.key(0))
    whole = np.array(model.decode(tokens[:, :70], model.make_cache(encoder_output)))
    cache = model.make_cache(encoder_output)
    model.states(tokens[:, :66], cache)
    over = np.array(model.decode(tokens[:, 66:], cache))
    assert np.abs(over[:, :4] - whole[:, 66:]).max() < within(1e-4) and np.isfinite(over).all()
    table = model.decoder.positions.table(128)
    assert mx.array_equal(table[:70], model.decoder.positions.weight[2:]) and not mx.any(table[70:]).item()


def test_output_beyond_the_positions_is_refused_in_one_line() -> None:
    model, length = random_model(), FixedLength(4)

    def ask(prompt: str = "abc", **options: Any) -> None:
        make_request(model, Letters(), prompt, GenerationOptions(**options), length)  # type: ignore[arg-type]

    ask(max_tokens=70)
    ask(max_tokens=68, decoder_prefix=[5, 6])
    ask("a" * 69, max_tokens=5)
    with pytest.raises(InputError, match="max_tokens: the model has positions for outputs of at most 70 tokens, not"):
        ask(max_tokens=71)
    with pytest.raises(InputError, match="not for 69 after a prefix of 2 tokens; choose fewer"):
        ask(max_tokens=69, decoder_prefix=[5, 6])
    for allow in (False, True):
        with pytest.raises(InputError, match="has 71 tokens, but the model has positions for at most 70") as error:
            ask("a" * 70, allow_long_prompt=allow, max_tokens=5)
        assert "allow" not in str(error.value)
    with pytest.raises(InputError, match="target: the model has positions"):
        score(model, Letters(), "abc", [5] * 71)  # type: ignore[arg-type]


def test_sinusoidal_positions_have_no_limit() -> None:
    model = random_model(model_type="marian")
    assert model.max_positions is None
    prepared = make_request(
        model,
        Letters(),  # type: ignore[arg-type]
        "a" * 90,
        GenerationOptions(max_tokens=100, allow_long_prompt=True),
        FixedLength(4),
    )
    assert len(prepared.source_tokens) == 91
    with pytest.raises(InputError, match="was trained on at most 70 tokens; .* or allow long prompts"):
        make_request(model, Letters(), "a" * 90, GenerationOptions(), FixedLength(4))  # type: ignore[arg-type]


# Decoding.


STORED = [(family, Storage("bfloat16", 4, 32)) for family in ("bart", "marian")]
STORED += [("mbart", Storage("float32", 8, 32)), ("marian", Storage("float16"))]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("family", "storage"), STORED, ids=str)
def test_converted_weights_approximate_the_model(family: str, storage: Storage, tmp_path: Path) -> None:
    config = CONFIG | {"model_type": family}
    folder = save(random_model(**config), tmp_path / "hf", config)
    expected, found = (
        load(path, dtype="float32").model for path in (folder, convert(str(folder), tmp_path / "out", storage))
    )
    logits = []
    for model in (expected, found):
        tokens = mx.array([[2, 5, 9, 33]])
        logits.append(np.array(model.decode(tokens, model.make_cache(model.encode(mx.array(SOURCES[:1]))))))
    scale = {4: 0.8, 8: 0.1, None: 0.02}[storage.quantize]
    difference = np.abs(logits[0] - logits[1]).max() / logits[0].std()
    assert 0 < difference < scale
    if storage.quantize:
        layer = found.decoder.layers[1]
        assert "scales" in layer.ff.wo and "scales" in layer.self_attention.qkv and "bias" in layer.ff.wo
        baseline = tokens_of(run(found, SOURCES[0], max_tokens=12))
        assert tokens_of(run(found, SOURCES[0], head_drafter(found), max_tokens=12)) == baseline


@pytest.mark.parametrize("family", ["bart", "pegasus"])
def test_float16_is_refused_for_growing_residual_streams(family: str, tmp_path: Path) -> None:
    """Each layer adds more than half of float16's maximum to the residual stream."""
    config = CONFIG | {"model_type": family}
    model, adds_up = random_model(**config), FAMILIES[family].norm_first
    for layer in model.decoder.layers:
        layer.ff.wo.bias = mx.where(mx.arange(64) % 3 == 0, 4e4, 0.0)
    folder = save(model, tmp_path / "hf", config)
    for dtype in (mx.float32, mx.float16):
        model.set_dtype(dtype)
        found = model.decode(mx.array([[2, 5, 9]]), model.make_cache(model.encode(mx.array([[5, 9, 2]]))))
        assert mx.isfinite(found).all().item() == (dtype == mx.float32 or not adds_up)
    for attempt in (
        lambda: load(folder, dtype="float16"),
        lambda: convert(str(folder), tmp_path / "out", Storage("float16", 8, 32)),
    ):
        if adds_up:
            with pytest.raises(InputError, match=f"{family} models may overflow in float16; use bfloat16"):
                attempt()
        else:
            attempt()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["bart", "mbart", "pegasus", "m2m_100", "marian"])
def test_generation_config_gives_hugging_faces_output_with_a_draft(name: str) -> None:
    """The options force first and last tokens, ban tokens and repeated n-grams, and set a minimum length."""
    model, golden = opened(name)
    raw = json.loads((GOLDENS / name / "config.json").read_text())
    model.generation_config = checked_generation_config(GOLDENS / name, raw, model)
    draft = noisy_copy(model)
    for source, expected, length in zip(
        sources_of(golden), golden["configured_ids"], golden["configured_lengths"], strict=True
    ):
        found = generate(model, Numbers(), text_of(source), draft_model=draft, max_tokens=40)  # type: ignore[arg-type]
        assert found.tokens == expected[: int(length)].tolist()

"""T5Gemma and T5Gemma 2: decoding, dtypes and config.json. test_t5.py checks the goldens."""

from __future__ import annotations

import copy
import json
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import CheckpointError, InputError, checkpoints, load, models
from speculative_decoding.decoding.prompt import encode_prompt
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage
from speculative_decoding.models import t5gemma, t5gemma2
from speculative_decoding.models.attention import attend
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.rope import Window
from speculative_decoding.models.t5gemma2 import Keys
from tests.parity.test_scoring import Numbers
from tests.parity.test_t5 import GOLDENS, load_golden
from tests.support.damaged_folders import MALICIOUS_VALUES, places
from tests.support.device import within
from tests.support.operations import uncompiled
from tests.support.tiny import DRAFTERS, TOKENIZER, run, tokens_of

NAMES = ("t5gemma", "t5gemma-unequal", "t5gemma2")
FOLDERS = {folder.name: folder for folder in GOLDENS if folder.name in NAMES}
SOURCE = [5, 9, 50, 3, 17, 21, 9, 9, 14, 5, 79, 1]
every_family = pytest.mark.parametrize("name", NAMES)


@cache
def target_of(name: str) -> EncoderDecoder:
    return load_golden(FOLDERS[name])[0]


def config_of(name: str) -> dict[str, Any]:
    return json.loads((FOLDERS[name] / "config.json").read_text())  # type: ignore[no-any-return]


# Storage.


def folder_of(name: str, tmp_path: Path) -> Path:
    folder = tmp_path / "hf" / name
    shutil.copytree(FOLDERS[name], folder)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


def logits_of(model: EncoderDecoder) -> mx.array:
    encoder_output = model.encode(mx.array([SOURCE]))
    return model.decode(mx.array([[2, 4, 8, 50, 17, 70, 33, 6, 21]]), model.make_cache(encoder_output)).astype(
        mx.float32
    )


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("name", "storage", "most"),
    [("t5gemma2", Storage("bfloat16"), 0.15), *((name, Storage("bfloat16", 4, 32), 1.5) for name in NAMES)],
    ids=str,
)
def test_converted_weights_approximate_the_model(name: str, storage: Storage, most: float, tmp_path: Path) -> None:
    folder, dtype = folder_of(name, tmp_path), storage.dtype
    quantization = {"quantize": storage.quantize, "group_size": 32} if storage.quantize else {}
    with uncompiled():
        converted = load(convert(str(folder), tmp_path / "out", storage), dtype=dtype).model
        loaded = load(folder, dtype=dtype, **quantization).model  # type: ignore[arg-type]
        assert mx.array_equal(logits_of(converted), logits_of(loaded))
        assert mx.abs(logits_of(converted) - logits_of(target_of(name))).mean().item() < most
        assert "scales" not in converted.embedding or "head" in converted
        baseline = tokens_of(run(converted, SOURCE, max_tokens=12))
        made = DRAFTERS["head"](converted, converted, baseline)
        assert tokens_of(run(converted, SOURCE, made, max_tokens=12)) == baseline


def test_vision_tower_is_neither_loaded_nor_converted(tmp_path: Path) -> None:
    folder = folder_of("t5gemma2", tmp_path)
    theirs = set(checkpoints.read(folder))
    ours = set(checkpoints.read(convert(str(folder), tmp_path / "out")))
    assert ours < theirs and {
        name for name in theirs - ours if "embed_tokens" not in name and "lm_head" not in name
    } == {name for name in theirs if "vision_tower" in name or "multi_modal_projector" in name}


def test_prompt_with_an_image_is_refused_in_one_line() -> None:
    raw = config_of("t5gemma2")
    model = models.build(raw | {"encoder": raw["encoder"] | {"boi_token_index": 7}})
    assert encode_prompt(model, Numbers(), "5 6 8") == [5, 6, 8]
    with pytest.raises(InputError, match=r"prompt: contains an image placeholder \(token 7\); remove it"):
        encode_prompt(model, Numbers(), "5 7 8")


# config.json.


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("t5gemma", ("decoder",), None),
        ("t5gemma", ("encoder", "head_dim"), 7),
        ("t5gemma", ("decoder", "attention_bias"), True),
        ("t5gemma", ("decoder", "layer_types"), ["chunked_attention"] * 2),
        ("t5gemma", ("encoder", "vocab_size"), 97),
        ("t5gemma", ("eos_token_id",), [1, 96]),
        ("t5gemma2", ("encoder", "text_config", "hidden_size"), 40),
        ("t5gemma2", ("decoder", "rope_parameters", "full_attention", "rope_type"), "yarn"),
    ],
)
def test_invalid_field_is_named(name: str, path: tuple[str, ...], value: object) -> None:
    raw = config_of(name)
    holder = raw
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(CheckpointError, match=path[-1]) as error:
        models.build(raw)
    assert str(error.value).isprintable()


@every_family
def test_any_config_builds_a_model_or_fails_with_one_line(name: str) -> None:
    """Every field gets a sample of hostile values."""
    rng, raw, refused = random.Random(name), config_of(name), 0
    for at in places(raw):
        for value in rng.sample(MALICIOUS_VALUES, 2):
            changed = copy.deepcopy(raw)
            holder: Any = changed
            for key in at[:-1]:
                holder = holder[key]
            if at:
                holder[at[-1]] = value
            if not isinstance(changed.get("model_type"), str):
                continue
            try:
                models.build(changed)
            except CheckpointError as error:
                refused += 1
                assert str(error).isprintable() and len(str(error)) < 500
    assert refused > 40


def test_old_and_new_rope_fields_are_equivalent() -> None:
    raw = config_of("t5gemma2")
    old = copy.deepcopy(raw)
    for part in (old["decoder"], old["encoder"]["text_config"]):
        kinds = part.pop("rope_parameters")
        part |= {"rope_theta": kinds["full_attention"]["rope_theta"]}
        part |= {"rope_local_base_freq": kinds["sliding_attention"]["rope_theta"]}
        part |= {"rope_scaling": {"rope_type": "linear", "factor": kinds["full_attention"]["factor"]}}
    assert t5gemma2.t5gemma2_config(old) == t5gemma2.t5gemma2_config(raw)


def test_omitted_fields_have_the_family_defaults() -> None:
    part = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 7}
    part |= {"num_attention_heads": 4}
    first = t5gemma.t5gemma_config({"encoder": part, "decoder": part})
    assert (first.decoder.attention_cap, first.decoder.logit_cap, first.decoder_start_token_id) == (50.0, 30.0, 2)
    assert [kind.window.past is None for kind in first.decoder.layers] == [False, True] * 3 + [False]
    second = t5gemma2.t5gemma2_config({"encoder": {"text_config": part}, "decoder": part})
    assert (second.decoder.attention_cap, second.decoder.logit_cap) == (None, None)
    assert [kind.rope.base for kind in second.decoder.layers] == [1e4] * 5 + [1e6, 1e4]


# Attention.


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("window", [Window(), Window(None, 0), Window(3, 0), Window(2, 3), Window(5, 5)], ids=str)
def test_window_masks_positions_outside_it(window: Window) -> None:
    offsets, length, reach = [0, 7, 3], 4, 12
    found = window.masked(mx.array(offsets), length, reach)
    expected = np.zeros((3, 1, length, reach), bool)
    for b, i, j in np.ndindex(3, length, reach):
        ahead = j - (offsets[b] + i)
        is_late = window.future is not None and ahead > window.future
        expected[b, 0, i, j] = is_late or (window.past is not None and ahead < -window.past)
    assert (found is None) == (not expected.any())
    assert found is None or np.array_equal(np.array(found), expected)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_attention_over_two_parts_equals_attention_over_their_concatenation(heads: int, soft_cap: float | None) -> None:
    """Grouped queries are compared with repeated keys."""
    mx.random.seed(0)
    queries, parts = mx.random.normal((2, 4, 3, 8)), []
    for reach, rows in ((6, 3), (5, 1)):
        mask = mx.where(mx.random.normal((2, 1, rows, reach)) > 1, -mx.inf, 0.0)
        parts.append(Keys(mx.random.normal((2, heads, reach, 8)), mx.random.normal((2, heads, reach, 8)), mask))
    grouped = [mx.concatenate([part[i] for part in parts], axis=2) for i in range(2)]
    keys, values = (mx.repeat(each, 4 // heads, axis=1) for each in grouped)
    mask = mx.concatenate([mx.broadcast_to(part.mask, (2, 1, 3, part.mask.shape[3])) for part in parts], axis=3)
    found = [
        attend(queries, *grouped, mask, scale=0.4, soft_cap=soft_cap),
        attend(queries, keys, values, mask, scale=0.4, soft_cap=soft_cap),
    ]
    if soft_cap is None:  # T5Gemma 2 has no soft cap
        found.append(t5gemma2.attend_together(queries, parts, 0.4))
    scores = 0.4 * queries @ keys.swapaxes(-1, -2)
    scores = scores if soft_cap is None else soft_cap * mx.tanh(scores / soft_cap)
    plain = (mx.softmax(scores + mask, axis=-1) @ values).transpose(0, 2, 1, 3).reshape(6, 32)
    assert all(mx.allclose(each, plain, atol=within(1e-5)) for each in found)

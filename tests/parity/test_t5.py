"""Every family matches Hugging Face, and decoding in several passes equals decoding in one."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import checkpoints, models
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.source import AudioFrames, Source
from speculative_decoding.models.t5 import T5Config
from tests.support.device import within
from tests.support.paths import GOLDENS as GOLDENS_FOLDER
from tests.support.tiny import CONFIG

GOLDENS = sorted(path.parent for path in GOLDENS_FOLDER.glob("*/golden.npz"))
TEXT_GOLDENS = [folder for folder in GOLDENS if not folder.name.startswith("whisper")]
NOISE = 1.6e-4  # the difference between two float32 computations of the same logits


def load_golden(folder: Path) -> tuple[EncoderDecoder, dict[str, np.ndarray]]:  # type: ignore[type-arg]
    raw = json.loads((folder / "config.json").read_text())
    raw, checkpoint = models.find(raw).adapt(raw, checkpoints.read(folder))
    model = models.build(raw, checkpoint)
    model.load_checkpoint(checkpoint)
    golden = dict(np.load(folder / "golden.npz"))
    if "input_features" in golden:
        golden["input_ids"] = golden["input_features"].astype(np.float32)
    return model, golden


def sources_of(golden: dict[str, np.ndarray]) -> list[Source]:  # type: ignore[type-arg]
    """Return each row without padding: its ids, or its audio frames."""
    if "input_features" in golden:
        return [AudioFrames(mx.array(frames)) for frames in golden["input_ids"]]
    rows = zip(golden["input_ids"], golden["attention_mask"].astype(bool), strict=True)
    return [ids[mask].tolist() for ids, mask in rows]


def test_every_family_has_a_golden() -> None:
    assert {folder.name for folder in GOLDENS} >= {
        "t5", "t5-11b", "t5-v1_1", "flan-t5", "mt5", "umt5", "byt5", "madlad", "codet5", "pile-t5",
        "bart", "mbart", "pegasus", "m2m_100", "marian",
        "whisper", "whisper-en", "whisper-v3", "whisper-distilled"
    }  # fmt: skip


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_logits_and_encoder_output_match_hugging_face(folder: Path) -> None:
    """The largest differences are float32 rounding.

    For t5gemma2 with AVX-512, our logits differ from a float64 computation by 7.7e-5 and Hugging Face's by 6.7e-5, in
    opposite directions. With AVX2, ours differ by 3.9e-5.
    """
    model, golden = load_golden(folder)
    mask = mx.array(golden["attention_mask"]).astype(mx.bool_)
    encoder_output = model.encode(mx.array(golden["input_ids"]), mask)
    there = golden["attention_mask"].astype(bool)
    assert np.abs(np.array(encoder_output) - golden["encoder_last_hidden_state"])[there].max() < within(1e-4)
    logits = model.decode(mx.array(golden["decoder_input_ids"]), model.make_cache(encoder_output, mask))
    assert np.abs(np.array(logits) - golden["logits"]).max() < within(NOISE)


def test_omitted_fields_have_the_family_defaults() -> None:
    silent = {name: value for name, value in CONFIG.items() if name not in ("tie_word_embeddings", "feed_forward_proj")}
    for family, is_gated, is_tied in (("t5", False, True), ("mt5", True, False), ("umt5", True, True)):
        config = T5Config.from_dict(silent | {"model_type": family})
        assert (config.encoder.is_gated, config.tie_word_embeddings) == (is_gated, is_tied)

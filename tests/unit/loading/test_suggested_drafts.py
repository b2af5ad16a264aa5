"""Drafts that are suggested for well-known targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.cli.run_config import DraftFlags, ModelFlags, make_run_config
from speculative_decoding.loading import suggested_drafts
from speculative_decoding.loading.load import BUNDLED, open_model
from speculative_decoding.loading.suggested_drafts import suggested_draft


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("google/flan-t5-xl", "google/flan-t5-small"),
        ("models/t5-11b", "google-t5/t5-small"),
        (Path("/home/me/T5-Base"), "google-t5/t5-small"),
        ("~/.cache/hub/models--google--madlad400-10b-mt/snapshots/0123abcd", "google/madlad400-3b-mt"),
        ("facebook/bart-large-cnn", "sshleifer/distilbart-cnn-12-6"),
        ("models/t5gemma-9b-2b-prefixlm", "google/t5gemma-2b-2b-prefixlm"),
        ("google/flan-t5-small", None),
        ("me/my-t5-base-finetuned", None),
        ("models/t5-web-docs", "t5-web-docs-head"),
        ("openai/whisper-base", "whisper-base-head"),
        ("openai/whisper-base.en", None),
        ("Systran/faster-whisper-base", "whisper-base-head"),  # CTranslate2
        ("Systran/faster-whisper-large-v3", "distil-whisper/distil-large-v3"),
        ("Systran/faster-whisper-medium.en", "distil-whisper/distil-medium.en"),
    ],
)
def test_a_well_known_target_has_a_suggested_draft(target: str | Path, draft: str | None) -> None:
    assert suggested_draft(target) == draft


def test_a_draft_is_suggested_if_none_was_given() -> None:
    def said(draft: Path | None, **options: str) -> str:
        return make_run_config(ModelFlags("models/flan-t5-xl", draft), options, DraftFlags()).describe()

    assert said(None).endswith("; to use a draft model, add --draft-model google/flan-t5-small")
    assert "flan-t5-small" not in said(Path("other")) + said(None, drafter="none")


@pytest.mark.parametrize(
    ("changes", "suggestion"),
    [
        ({}, "self-4bit"),
        ({"name": "google/flan-t5-xl"}, "google/flan-t5-small"),
        ({"dtype": "float32"}, None),
        ({"quantize": 8}, None),
        ({"nbytes": 4e8}, None),
        ({"gpu": False}, None),
    ],
)
def test_a_large_target_in_16_bits_on_a_gpu_may_draft_for_itself(
    changes: dict[str, Any], suggestion: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: dict[str, Any] = {"name": "me/mine", "dtype": "bfloat16", "quantize": None, "nbytes": 5e8, "gpu": True}
    facts |= changes
    monkeypatch.setattr(suggested_drafts, "on_gpu", lambda: facts["gpu"])
    opened = open_model(BUNDLED / "t5-web-docs", dtype=facts["dtype"], quantize=facts["quantize"])
    opened = replace(opened, nbytes=facts["nbytes"])
    assert suggested_draft(facts["name"], opened) == suggestion

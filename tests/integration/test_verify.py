"""`verify`: progress while it decodes. Its results are tested in test_cli.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculative_decoding.cli import verify


def test_progress_is_printed_in_a_pipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompts.txt").write_text("grammar: He go home.\ngrammar: It were a cod business.\n")
    monkeypatch.setattr("speculative_decoding.cli.progress.LINE_SECONDS", 0)
    assert verify.main([str(tmp_path / "prompts.txt"), "-m", "8", "--drafter", "model", "--num-draft", "5"]) == 0
    out, err = capsys.readouterr()
    assert "drafter model, num-draft 5, seed 0, slots 1: 2 of 2 baseline outputs" in err
    assert "slots 1: 2 of 2 outputs identical" in err
    assert out.startswith("2 of 2 identical (")

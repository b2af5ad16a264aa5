"""`convert`: its flags reach the conversion, whose own tests are tests/unit/loading/test_conversion.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculative_decoding import checkpoints, load
from speculative_decoding.cli import convert as convert_command
from speculative_decoding.loading import load as loading
from tests.support.tiny import CONFIG, save_hugging_face, tiny_model

WIDE = {"d_model": 64, "d_kv": 32, "d_ff": 128}  # multiples of the quantization group size


def convert(*arguments: object) -> int:
    return convert_command.main([*map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_hugging_face(tiny_model(**WIDE), tmp_path / "source", CONFIG | WIDE)


@pytest.mark.parametrize(
    ("flags", "stored"),
    [([], "bfloat16"), (["--dtype", "float32"], "float32"), (["--quantize", "8", "--group-size", "32"], "uint32")],
)
def test_a_folder_is_written_and_verified_and_replaced_only_with_force(
    flags: list[str], stored: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "output"
    assert convert("--model", source, "--output", output, *flags) == 0
    dtypes = {str(checkpoints.read(output).info(name).dtype) for name in checkpoints.read(output)}
    assert f"mlx.core.{stored}" in dtypes
    assert convert("--verify", output) == 0
    assert convert("--model", source, "--output", output) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("convert.py: error: --output") and "--force" in line
    assert convert("--model", source, "--output", output, "--force") == 0

    weights = bytearray((output / "weights.npz").read_bytes())
    weights[1000] ^= 1
    (output / "weights.npz").write_bytes(weights)
    assert convert("--verify", output) == 2 and "weights.npz: checksum mismatch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--group-size", "32"], "--group-size: has no effect without --quantize; give both, or leave it out"),
        (["--revision", "main"], "--revision"),
        (["--verify", "x", "--force"], "--verify: x takes no other options"),
        (["--verify", "/nowhere"], "/nowhere: no manifest.json"),
    ],
)
def test_what_has_no_effect_is_refused(
    more: list[str], message: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if "--verify" in more else ["--model", source, "--output", "/nowhere/x"]
    assert convert(*model, *more) == 2
    assert capsys.readouterr().err.startswith(f"convert.py: error: {message}")


@pytest.mark.parametrize("name", ["t5-web-docs-draft", "models/t5-web-docs-draft"])  # the second row is a guard
def test_a_bundled_model_is_converted_by_its_name(name: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    assert convert("--model", name, "--output", output, "--quantize", "8") == 0
    assert load(output).generate("a", max_tokens=2).tokens


def test_the_name_of_a_bundled_model_may_be_verified(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("--verify", "t5-web-docs-draft") == 0
    assert "t5-web-docs-draft: 7 files match the manifest" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--output: models/t5-web-docs-draft is the model to convert; name another folder"),
        (["--force"], "--output: models/t5-web-docs-draft is the model to convert; name another folder"),
        (["--output", "x", "--revision", "main"], "--revision: main has no effect on the local folder "),
    ],
)
def test_a_bundled_model_is_never_replaced(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("--model", "t5-web-docs-draft", *flags) == 2
    assert f"error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("is_long", [True, False])
def test_a_long_quantization_while_loading_is_announced(
    is_long: bool, source: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(loading, "LONG_QUANTIZED", 1 if is_long else 1e12)
    loading.open_model(source, quantize=8).load_weights()
    notes = [
        str(each.message) for each in recwarn if "quantizing source to 8 bits, which takes a while" in str(each.message)
    ]
    assert len(notes) == is_long and all("`speculative-decoding convert --quantize 8` writes" in each for each in notes)

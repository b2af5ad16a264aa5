"""`convert`: its flags reach the conversion, whose own tests are tests/unit/loading/test_conversion.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculative_decoding import checkpoints
from speculative_decoding.cli import convert as convert_command
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

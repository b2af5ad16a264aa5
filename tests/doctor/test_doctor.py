"""`doctor`: the report, private facts that its JSON must not contain, and planted faults that it must find."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from speculative_decoding.cli import programs
from speculative_decoding.doctor import command as doctor
from speculative_decoding.doctor import device, diagnosis
from speculative_decoding.doctor.kernel_checks import kernel_checks
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import BUNDLED, Storage
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.session import Session
from tests.parity.test_families import FOLDERS
from tests.parity.test_scoring import Numbers
from tests.parity.test_t5 import load_golden
from tests.support.metal import pretend_gpu, pretend_memory
from tests.support.metal_kernels import checked_kernels
from tests.support.paths import ROOT
from tests.support.tiny import CONFIG, WHISPER, noisy_copy, save_hugging_face, save_whisper, tiny_model, tiny_whisper

SIZES = {"d_model": 64, "d_kv": 32, "d_ff": 128}  # multiples of the quantization group size
SECTIONS = ("Device", "Models", "Target passes", "Draft", "Precisions", "Fused", "Self-test", "Result")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the flags for a target and a draft model, each in a private folder."""
    model, folder = tiny_model(scale=0.15, **SIZES), tmp_path_factory.mktemp("private")
    target = save_hugging_face(model, folder / "secret-target", CONFIG | SIZES)
    draft = save_hugging_face(noisy_copy(model, 0.02), folder / "secret-draft", CONFIG | SIZES)
    return ["--model", str(target), "--draft-model", str(draft)]


@pytest.fixture(scope="module")
def quantized(pair: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the flags for a quantized target, which is tested in no other precision, and a draft model."""
    folder = convert(pair[1], tmp_path_factory.mktemp("quantized") / "target", Storage("float32", 8, 32))
    return ["--model", str(folder), *pair[2:]]


def test_the_report_has_all_sections_and_the_json_has_no_private_facts(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, link = tmp_path / "figures.json", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)  # as /dev/stdout may be
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(doctor, "say", lambda line: said.append((line, file.read_text())))
    assert doctor.main([*pair, "--json", str(link)]) == 0 and link.is_symlink()
    out = capsys.readouterr().out
    assert [out.index(f"\n{each}") for each in SECTIONS] == sorted(out.index(f"\n{each}") for each in SECTIONS)
    assert [line for line in out.splitlines() if len(line) > 80] == [] and "all checks: pass" in out
    assert "4 of 4 identical" in out and "Not measured" in out
    text = file.read_text()
    contents = "facts about the device and the models, costs of passes and drafts, and results of checks."
    privacy = "It contains no paths, user names, host names, prompts or outputs."
    assert said == [(f"wrote {link}: {contents}", text), (privacy, text)]
    found = json.loads(text, parse_constant=pytest.fail)
    assert found["format"] == 2 and found["passed"] and found["versions"]["mlx"] == mx.__version__  # type: ignore[attr-defined]
    assert [each["precision"] for each in found["precisions"]] == ["float32", "bfloat16", "8 bits", "4 bits"]
    tested = [each for each in found["precisions"] if "self_test" in each]
    assert [each["precision"] for each in tested] == ["float32", "bfloat16", "4 bits"]
    assert all(each["self_test"]["drafted"] for each in tested)
    assert {each["kernel"] for each in tested[-1]["kernels"]} >= {"rms_norm", "quantized_matmul"}
    weights = {each["precision"]: each["bytes"] for each in found["precisions"]}
    assert weights["float32"] == 2 * weights["bfloat16"] > weights["8 bits"] > weights["4 bits"]
    assert found["target"]["name"] is None and found["calibration"] == "given"
    private = [
        getpass.getuser(),
        platform.node(),
        str(Path.home()),
        str(tmp_path),
        "secret",
        "/",
        *diagnosis.GENERIC_PROMPTS,
    ]
    words = set(text.replace('"', " ").replace(",", " ").split())
    for each in private:
        assert (each not in words) if each.isalnum() else each not in text, each


def test_a_speech_model_is_tested_with_the_bundled_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = WHISPER | {"num_mel_bins": 80, "max_target_positions": 120}
    folder = save_whisper(tiny_whisper(**config), tmp_path / "hf", config)
    assert doctor.main(["--model", str(folder)]) == 0
    assert "1 of 1 identical" in capsys.readouterr().out


def test_without_the_folder_speech_the_self_test_of_a_speech_model_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "has_subpackage", lambda name: False)
    model = tiny_whisper()
    prompts = [*diagnosis.self_test_prompts(None, model.audio)]
    found = diagnosis.self_test(Session(model, Numbers()), prompts)
    assert prompts == [] and found["skipped"] == "the folder speech is missing" and not found["differences"]
    assert diagnosis.has_passed({"self_test": found})


def test_a_target_that_drafts_for_itself_is_not_tested_in_4_bits(pair: list[str], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert doctor.main([*pair[:2], "--draft-model", "self-4bit", "--json", str(file)]) == 0
    skipped = {each["precision"]: each["skipped"] for each in json.loads(file.read_text())["precisions"]}
    assert skipped == dict.fromkeys(("float32", "bfloat16", "8 bits")) | {
        "4 bits": "a quantized target cannot be its own draft"
    }


def test_only_json_goes_to_standard_output(quantized: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert programs.main(["doctor", *quantized, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["passed"] and "\nSelf-test" in err


def test_bundled_models_are_named_and_their_prompts_are_not_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--model", "t5-web-docs-draft", "--json", "-"]) == 0
    found = json.loads(text := capsys.readouterr().out)
    assert found["target"]["name"] == "t5-web-docs-draft"
    assert found["precisions"][0]["self_test"]["identical"] == 6
    assert not any(prompt in text for prompt in diagnosis.self_test_prompts("t5-web-docs-draft", None))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("family", FOLDERS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_the_kernels_of_every_family_are_compared(family: str, dtype: mx.Dtype) -> None:
    model, _ = load_golden(FOLDERS[family])
    model.set_dtype(dtype)
    checks = kernel_checks(model)
    assert [each for each in checks if not each.passed] == []
    assert {"rms_norm", "layer_norm"} & {each.kernel for each in checks}
    assert ("rope" in {each.kernel for each in checks}) == ("gemma" in family)


@pytest.mark.parametrize("family", FOLDERS)
def test_kernels_are_called_as_the_model_calls_them(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metal would read behind the offsets of a rope that gets fewer than one per row, for example."""
    pretend_gpu(monkeypatch)
    with checked_kernels():
        model, _ = load_golden(FOLDERS[family])
        assert [each for each in kernel_checks(model) if not each.passed] == []


WRONG: dict[str, tuple[Any, str, Callable[..., mx.array]]] = {
    "attention": (mx, "addmm", lambda mask, queries, keys, right=mx.addmm: right(mask, 1.2 * queries, keys)),
    "rms_norm": (mx.fast, "rms_norm", lambda x, weight, eps: x * mx.nan),
    "quantized_matmul": (
        mx,
        "quantized_matmul",
        lambda *given, right=mx.quantized_matmul, **options: 1.01 * right(*given, **options),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(**SIZES)
    nn.quantize(model.decoder, group_size=64, bits=4)
    assert all(each.passed for each in kernel_checks(model))
    module, function, kernel = WRONG[name]
    monkeypatch.setattr(module, function, kernel)
    checks = kernel_checks(model)
    assert {each.kernel for each in checks if not each.passed} == {name}
    entry = {"precision": "float32", "kernels": [diagnosis.summarize_kernel(name, checks)]}
    assert not diagnosis.has_passed(entry)
    lines = doctor.kernel_lines({"precisions": [entry], "device": {"kind": "GPU"}})
    assert sum(line.endswith("FAIL") for line in lines) > 1


def test_wrongly_accepted_tokens_are_found() -> None:
    """With a delta of 1, every draft token is accepted."""
    model = tiny_model(**SIZES)
    session = Session(model, Numbers(), noisy_copy(model, 0.5), GenerationOptions(delta=1.0))
    test = diagnosis.self_test(session, ["5 9 3", "2 8 1"])
    entry = {"precision": "float32", "self_test": test}
    assert test["differences"] and not diagnosis.has_passed(entry)
    lines = doctor.self_test_lines({"precisions": [entry]})
    assert lines[0].endswith("FAIL") and "differs at token" in lines[1]


def test_weights_that_do_not_fit_in_memory_are_not_loaded(
    quantized: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_memory(monkeypatch, 1e9, 1000)
    assert doctor.main(quantized) == 0
    out = capsys.readouterr().out
    assert "nothing was checked" in out and "skipped: does not fit into memory" in out and "Target passes" not in out


REFUSED = [
    ("unexpected argument", "x"),
    ("--json: /nowhere/x.json cannot be written", "--json", "/nowhere/x.json"),
]


@pytest.mark.parametrize(("words", "arguments"), [(words, each) for words, *each in REFUSED])
def test_flags_without_effect_are_one_line_errors(
    words: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = doctor.main(arguments)
    except SystemExit as ended:  # raised by argparse
        status = int(ended.code or 0)
    assert status == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and words in err


def test_only_bundled_and_hub_models_are_named(tmp_path: Path) -> None:
    assert diagnosis.public_name(BUNDLED / "t5-web-docs") == "t5-web-docs"
    hub = tmp_path / "models--google--flan-t5-small" / "snapshots" / "0fc9"
    for folder, name in (
        (hub, "google/flan-t5-small"),
        (tmp_path / "t5-web-docs", None),
        (tmp_path / "snapshots", None),
    ):
        folder.mkdir(parents=True)
        assert diagnosis.public_name(folder) == name


M2, M3 = ({"name": f"Apple {chip}", "generation": number} for chip, number in (("M2", 14), ("M3 Ultra", 15)))
CPU: dict[str, Any] = {"name": "AMD EPYC", "generation": None}
VIRTUAL: dict[str, Any] = {"name": "Apple Paravirtual device", "generation": None}


@pytest.mark.parametrize(
    ("facts", "version", "words"),
    [
        (M2, "0.32.0", ["M1 and M2", "mlx>=0.32.4"]),
        (M2, "0.32.4", ["M1 and M2"]),
        (CPU, "0.32.2", ["mlx>=0.32.4"]),
        (CPU, "0.32.10.dev3", []),
        (VIRTUAL, "0.32.4", ["virtual machine; its timings do not describe a Mac"]),
    ],
)
def test_limitations_of_the_device_and_of_mlx_are_reported(
    facts: dict[str, Any], version: str, words: list[str]
) -> None:
    notes = device.device_notes(facts, version)
    assert len(notes) == len(words) and all(word in note for word, note in zip(words, notes, strict=True))


def test_reported_minimum_version_of_mlx_is_the_required_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [each.split(";")[0] for each in project["dependencies"] if each.startswith("mlx")]
    minimum = ".".join(map(str, device.MINIMUM_MLX))
    assert versions == [f"mlx>={minimum}", f"mlx[cpu]>={minimum}"]


@pytest.mark.parametrize(
    ("platform", "set_by_user", "expected"),
    [
        ("linux", {}, "0 None"),
        ("darwin", {}, "0 200"),
        ("darwin", {"MLX_ENABLE_TF32": "1", "MLX_MAX_OPS_PER_BUFFER": "50"}, "1 50"),
    ],
)
def test_variables_are_set_before_mlx_is_imported(platform: str, set_by_user: dict[str, str], expected: str) -> None:
    code = f"""
import os, sys
sys.platform = {platform!r}
sys.modules["mlx"] = None  # importing it raises ImportError
try:
    import speculative_decoding
except ImportError:
    print(os.environ["MLX_ENABLE_TF32"], os.environ.get("MLX_MAX_OPS_PER_BUFFER"))
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLX_")} | set_by_user
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == f"{expected}\n"


def test_lines_fit_the_terminal(pair: list[str]) -> None:
    """The report describes an Apple device and includes every note."""
    facts = {"name": "Apple M3 Ultra", "architecture": "applegpu_g15d", "kind": "GPU", "cores": 32}
    facts |= {"system": "macOS 26.2", "machine": "arm64", "memory": 512 << 30, "memory_limit": 464 << 30}
    facts |= {"recommended_working_set": 464 << 30, "forced_architecture": "applegpu_g13g"}
    found = {"device": facts, "versions": device.versions(), "tf32": True}
    lines = doctor.device_lines(found | {"notes": device.device_notes(VIRTUAL | {"generation": 13}, "0.32.0")})
    assert max(map(len, lines)) <= 78 and any("MLX_ENABLE_TF32=0" in line for line in lines)


@pytest.mark.parametrize(("value", "forced"), [(None, None), ("", None), ("applegpu_g13g", "applegpu_g13g")])
def test_a_forced_architecture_is_reported(
    value: str | None, forced: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpu(monkeypatch, "applegpu_g13g")
    monkeypatch.delenv("MLX_METAL_GPU_ARCH", raising=False)
    if value is not None:
        monkeypatch.setenv("MLX_METAL_GPU_ARCH", value)
    facts = device.device_facts()
    assert (facts["architecture"], facts["forced_architecture"]) == ("applegpu_g13g", forced)
    lines = doctor.device_lines({"device": facts, "versions": device.versions(), "tf32": None, "notes": []})
    assert "(applegpu_g13g), GPU" in lines[0]
    assert sum("MLX_METAL_GPU_ARCH=applegpu_g13g" in line for line in lines) == bool(forced)

"""Tests the command: flags, names of the model, exit status."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from speculative_decoding.cli.programs import main as program
from speculative_decoding.drafters import TextStore
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.server.command import TOKEN_VARIABLE, AccessFlags, main, served_names
from tests.support.serving import GRAMMAR
from tests.support.waiting import PATIENCE, eventually

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def unloadable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose weights cannot be read."""
    folder = tmp_path_factory.mktemp("model") / "t5"
    shutil.copytree(BUNDLED / "t5-web-docs", folder, ignore=shutil.ignore_patterns("*.safetensors", "manifest.json"))
    (folder / "model.safetensors").write_bytes(b"not weights")
    return folder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--host", "0.0.0.0"), "--host: 0.0.0.0 is reachable from other machines"),
        (("--host", "texts.example"), "--token-file, or SPECULATIVE_DECODING_TOKEN, or --no-token"),
        (("--token-file", "short"), "at least 16"),
        (("--token-file", "missing"), "--token-file: missing: not readable"),
        (("--token-file", "long", "--no-token"), "--no-token: a token is set"),
        (("--max-prompts", "99"), "lower it, or raise --queue"),
        (("--max-tokens", "2000"), "--max-tokens: 2000 is above --max-output-tokens"),
        (("--port", "PORT"), "choose another"),
        (("--model", "missing"), "--model: "),
        (("--seed", "3"), "--seed: unknown option ("),
        (("--ngram-store", "s.json"), "--ngram-store: s.json would tell clients what other clients have sent"),
        (("--draft-text-file", "missing"), "--draft-text-file: missing: not readable"),
        (("--draft-text", "a", "--drafter", "none"), "--draft-text: has no effect with --drafter none"),
        (("--max-draft-text", "-1"), "--max-draft-text: must be a whole number"),
        (("--trusted-proxy", "proxy"), "--trusted-proxy: must be an IP address, not 'proxy'"),
        (("--served-model-name", ""), "--served-model-name: must be text that is not empty"),
        (("--share-client-texts",), "--share-client-texts: has no effect without --ngram-store"),
        (("--translate", "x", "--port", "0"), "--translate: must be SOURCE:TARGET=PREFIX"),
    ],
)
def test_invalid_flags_are_refused_in_one_line_before_loading(
    flags: tuple[str, ...],
    words: str,
    unloadable: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("abc\n")
    Path("long").write_text(f"{TOKEN}\n")
    model = () if "--model" in flags else ("--model", str(unloadable))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        try:
            status: Any = main([port if each == "PORT" else each for each in (*flags, *model)])
        except SystemExit as ended:  # raised by argparse
            status = ended.code
    err = capsys.readouterr().err
    assert status == 2 and words in err and err.splitlines()[-1].count("error: ") == 1


def test_the_token_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert AccessFlags(host="0.0.0.0").token() == TOKEN
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert AccessFlags().token() is AccessFlags(host="::1").token() is None
    assert AccessFlags(host="0.0.0.0", no_token=True).token() is None


def test_a_missing_extra_is_reported_with_its_install_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "python_multipart", None)  # as if it were not installed
    assert program(["serve"]) == 2
    assert "server: requires python_multipart; run pip install starlette" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "given", "chosen", "names"),
    [
        (f"models--google-t5--t5-small/snapshots/{COMMIT}", "t5-small", [], ["t5-small", "google-t5/t5-small"]),
        (f"models--org--tiny/snapshots/{COMMIT}", None, [], ["org/tiny", "tiny"]),
        ("models/tiny", "models/tiny", [], ["tiny", "models/tiny"]),
        ("models/tiny", "models/tiny", ["b", "tiny", "a"], ["b", "tiny", "a", "models/tiny"]),
    ],
)
def test_the_users_name_comes_first_unless_it_is_a_path(
    folder: str, given: str | None, chosen: list[str], names: list[str], tmp_path: Path
) -> None:
    assert served_names(tmp_path / folder, given, chosen) == names


@pytest.mark.slow
def test_a_signal_lets_a_stream_finish_and_exits_with_0(tmp_path: Path) -> None:
    """Runs the command in a process, with a client that reads slowly. `tools.check_server` sends SIGTERM."""
    command = [sys.executable, "-m", "speculative_decoding.serve", "--port", "0"]
    command += ["--ngram-store", "store.json", "--share-client-texts"]
    environment = os.environ | {"PYTHONPATH": str(BUNDLED.parent)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = ""
        while not url:
            url = "".join(re.findall(r"http://[\d.:]+", process.stderr.readline()))
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            eventually(lambda: client.get("/health").status_code == 200)
            assert "note: t5-web-docs is a demonstration" in client.get("/").text
            fields = {"prompt": GRAMMAR, "stream": True, "min_tokens": 200, "max_tokens": 200, "num_draft_tokens": 0}
            with client.stream("POST", "/v1/completions", json=fields) as response:
                lines = response.iter_lines()
                first = next(lines)
                process.send_signal(signal.SIGINT)
                text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in [first, *lines] if "{" in line)
        rest = process.stderr.read()
        assert process.wait(PATIENCE) == 0 and len(text) > 200 and "Traceback" not in rest, rest
        assert rest.count("stopping") == 1
        assert len(TextStore.load(tmp_path / "store.json")) > 200

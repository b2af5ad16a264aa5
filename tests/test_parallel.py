"""Several processes on one machine: a shared model writes what the whole one writes, and so does a shared job. What the
processes do is in parallel_process.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import InputError, checkpoints, models
from speculative_decoding.checkpoints.base import Share
from speculative_decoding.checkpoints.npz import read_npz, write_npz
from speculative_decoding.cli.main import main as main_command
from speculative_decoding.decoding.results import BatchResult, GenerationResult
from speculative_decoding.decoding.stats import GenerationStats
from speculative_decoding.jobs.spread import message_of, result_of
from speculative_decoding.machines import Channel
from speculative_decoding.models import sharding
from tests.parallel_process import GOLDENS
from tests.tiny import CONFIG, save_hugging_face, tiny_model

# A head of its own; layers with biases; fewer heads of keys than processes; a position bias for each layer.
OF_TWO = ("madlad", "bart", "t5gemma2")
OF_FOUR = ("pile-t5", "t5gemma")
LIMIT = 1800  # seconds: longer than any machine takes, so that a test that would wait for ever fails
WIDE = {"d_model": 32, "d_kv": 32, "d_ff": 64}
WORDS = {"version": "1.0", "added_tokens": []}
PROMPTS = [" ".join("abcdefgh"[: i % 7 + 1]) for i in range(24)]


def start(processes: int, folder: Path, arguments: Sequence[str]) -> list[subprocess.Popen[str]]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(processes)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))  # a free port
        hosts = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in sockets]
    (folder / "hosts.json").write_text(json.dumps(hosts))
    command = [sys.executable, "-m", "tests.parallel_process", str(folder), *arguments]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environments = [{"MLX_HOSTFILE": str(folder / "hosts.json"), "MLX_RANK": str(rank)} for rank in range(processes)]
    root = Path(__file__).parent.parent
    return [subprocess.Popen(command, env=os.environ | each, cwd=root, **pipes) for each in environments]


def ended(started: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Of each its status, and what it said."""
    try:
        said = [process.communicate(timeout=LIMIT) for process in started]
        return [(process.returncode, *each) for process, each in zip(started, said, strict=True)]
    finally:
        for process in started:
            process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    save_hugging_face(tiny_model(), folder / "tiny", CONFIG)
    save_hugging_face(tiny_model(**WIDE), folder / "quantized", CONFIG | WIDE)
    save_hugging_face(tiny_model(), folder / "words", CONFIG)
    vocabulary = {"<unk>": 0, "</s>": 1} | {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuv", 2)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    words = WORDS | {"model": model, "pre_tokenizer": {"type": "Whitespace"}}
    (folder / "words" / "tokenizer.json").write_text(json.dumps(words))
    (folder / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    return folder


@pytest.fixture(scope="module")
def two(folder: Path) -> tuple[Path, list[tuple[int, str, str]]]:
    return folder, ended(start(2, folder, OF_TWO))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    said = ended(start(4, tmp_path_factory.mktemp("four"), OF_FOUR))
    assert [status for status, *_ in said] == [0] * 4, said
    found: dict[str, Any] = json.loads(said[0][1])
    return found


def found_by(said: list[tuple[int, str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said[0][1].splitlines()[0]) if said[0][1] else pytest.fail(str(said))
    return found


def test_shared_models_have_hugging_faces_logits(two: Any, four: dict[str, Any]) -> None:
    for found, names in ((found_by(two[1]), OF_TWO), (four, OF_FOUR)):
        assert found["errors"].keys() == set(names)
        assert max(found["errors"].values()) < 1e-4 < 1e-2 < found["deaf"]


def test_a_pass_adds_up_three_times_a_layer_and_once_for_its_tokens(two: Any, four: dict[str, Any]) -> None:
    for found in (found_by(two[1]), four):
        for name, sums in found["sums"].items():
            layers = models.build(checkpoints.read_config(GOLDENS / name)).config.decoder_layers
            assert sums == 1 + layers * (2 if name == "t5gemma2" else 3)


@pytest.mark.parametrize("name", ["tiny", "quantized"])
def test_a_shared_model_writes_the_tokens_of_the_whole_one(name: str, two: Any) -> None:
    """In each of `WAYS`; and each process has half of the layers."""
    found = found_by(two[1])
    assert found[name] == []
    share, all_of_it = found["bytes"][name]
    assert share < 0.75 * all_of_it  # the tables of tokens are in both


def test_all_processes_are_fed_the_same_tokens(two: Any) -> None:
    first, second = (json.loads((two[0] / f"fed-{rank}.json").read_text()) for rank in range(2))
    assert first == second and len(first) > 30


def test_a_shared_job_writes_the_same_bytes(two: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after a process died in the midst of it, which one line says."""
    folder, said = two
    job = ["--model", str(folder / "words"), "--input", str(folder / "prompts.txt"), "-m", "8", "--slots", "2"]
    assert main_command([*job, "--output", str(folder / "one.jsonl")]) == 0
    one, data, dead = ((folder / f"{name}.jsonl").read_bytes() for name in ("one", "data", "dead"))
    assert data == one and json.loads(said[0][1].splitlines()[1]) == 0
    assert one.startswith(dead) and len(dead) < len(one)
    assert [status for status, *_ in said] == [1, -9]
    (line,) = (each for each in said[0][2].splitlines() if "error" in each)
    assert line.startswith("main.py: error: process 2: has ended, or is out of reach for 20 seconds")
    assert "Traceback" not in said[0][2]
    assert main_command([*job, "--output", str(folder / "dead.jsonl"), "--resume"]) == 0
    assert (folder / "dead.jsonl").read_bytes() == one


# What each process reads.


def test_a_share_is_the_slice(tmp_path: Path) -> None:
    table = mx.arange(48).reshape(6, 8).astype(mx.float32)
    write_npz(tmp_path / "a.npz", [("a", table), ("b", table[0].astype(mx.bfloat16))])
    checkpoint = read_npz(tmp_path / "a.npz")
    for axis, pieces in ((0, 1), (0, 3), (1, 4), (1, 2)):
        parts = [checkpoint.share("a", Share(axis, pieces, index)) for index in range(pieces)]
        assert mx.array_equal(mx.concatenate(parts, axis=axis), table)
        usual = [super(type(checkpoint), checkpoint).share("a", Share(axis, pieces, i)) for i in range(pieces)]  # type: ignore[misc]
        assert all(mx.array_equal(one, other) for one, other in zip(parts, usual, strict=True))
    assert checkpoint.share("b", Share(0, 2, 1)).tolist() == [4, 5, 6, 7]


def refusal(name: str, processes: int) -> str:
    folder = GOLDENS / name
    raw, checkpoint = checkpoints.read_config(folder), checkpoints.read(folder)
    group: Any = SimpleNamespace(rank=0, size=processes, is_first=True)
    with pytest.raises(InputError) as caught:
        sharding.shared(partial(models.build, raw, checkpoint), checkpoint, group)
    return str(caught.value)


def test_what_cannot_be_shared_is_refused_with_numbers_that_work() -> None:
    assert "2 processes cannot share a model with num_heads 3, d_ff 64; no other number can" in refusal("t5-v1_1", 2)
    assert "with num_heads 4, d_ff 64; 2 or 4 can" in refusal("t5", 3)
    assert "decoder.num_kv_heads 2, decoder.d_ff 32; 2 or 4 can" in refusal("t5gemma", 8)


def test_a_result_survives_its_message() -> None:
    stats = GenerationStats(prompt_tokens=3, generated_tokens=2, target_calls=2)
    stats.accepted_histogram.update({0: 1, 2: 4})
    one = GenerationResult("ä", [5, 1], "stop", stats, score=-0.5)
    for answer in (BatchResult(4, replace(one, sequences=(one, one))), BatchResult(0, None, "too long")):
        assert result_of(json.loads(json.dumps(message_of(answer)))) == answer


# Who is gone.


LAST_WORDS = {b"": (1, None, ""), b'{"leaves": 2, "why": "no disk"}\n': (1, 2, "no disk")}


@pytest.mark.parametrize("last_words", LAST_WORDS)
def test_a_peer_that_closes_or_leaves_is_noticed(last_words: bytes) -> None:
    (ours, theirs), heard = socket.socketpair(), Queue[Any]()
    channel = Channel({1: ours}, lambda *what: heard.put(what))
    theirs.sendall(b'null\n{"a": 1}\n' + last_words)
    assert channel.receive() == (1, {"a": 1})
    theirs.close()
    assert heard.get(timeout=LIMIT) == LAST_WORDS[last_words]
    channel.leave(0)
    ours.close()


def test_a_peer_that_is_silent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speculative_decoding.machines.channel.BEAT_SECONDS", 0.01)
    (ours, theirs), heard = socket.socketpair(), Queue[Any]()
    channel = Channel({1: ours}, lambda *what: heard.put(what))
    assert heard.get(timeout=LIMIT) == (1, None, "") and theirs.recv(5) == b"null\n"
    channel.leave(0)
    ours.close()
    theirs.close()


def test_what_has_no_effect_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main_command(["--prompt", "a", "--parallel", "tensor"]) == 2
    assert "--parallel tensor has no effect on one process" in capsys.readouterr().err
    monkeypatch.setenv("MLX_RANK", "0")
    assert main_command(["--prompt", "a"]) == 2
    said = capsys.readouterr().err
    assert "the environment is that of mlx.launch, but the other processes cannot be reached" in said
    assert said.count("\n") == 2 and "waits for the other processes, 90 seconds at most" in said

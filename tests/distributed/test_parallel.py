"""Several processes on one machine: sharded models and data-parallel jobs give the output of one process.

Each process runs `main` of tests/support/parallel_process.py.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import InputError, checkpoints, models
from speculative_decoding.checkpoints import Checkpoint
from speculative_decoding.checkpoints.npz import read_npz, write_npz
from speculative_decoding.cli.main import main as main_command
from speculative_decoding.distributed import Channel, shard_model
from speculative_decoding.distributed.process_group import accept, connect
from speculative_decoding.distributed.sharding import Shard
from speculative_decoding.jobs.command import main as batch_command
from speculative_decoding.loading.load import Storage, build_model
from tests.support import parallel_process
from tests.support.parallel_process import GOLDENS, PROMPT
from tests.support.processes import start
from tests.support.tiny import CONFIG, save_hugging_face, tiny_model

pytestmark = pytest.mark.slow

# They have an untied head, biases, fewer key heads than processes, or a position bias per layer.
OF_TWO = ("madlad", "bart", "t5gemma2", "pile-t5")
OF_FOUR = ("t5gemma",)  # four processes on two cores wait for each other
LIMIT = 1800  # seconds; a deadlock fails the test, and a slow machine does not
WIDE = {"d_model": 32, "d_kv": 32, "d_ff": 64}
PROMPTS = [" ".join("abcdefgh"[: i % 7 + 1]) for i in range(24)]


def run_to_end(processes: int, folder: Path, names: Sequence[str]) -> list[tuple[int | None, str, str]]:
    """Return the exit status, stdout and stderr of each process."""
    started = start(processes, folder, parallel_process.main, folder, *names)
    try:
        for process in started:
            process.join(LIMIT)
        statuses = [process.exitcode for process in started]
    finally:
        for process in started:
            process.kill()
    texts = ([(folder / f"{name}-{rank}").read_text() for name in ("out", "said")] for rank in range(processes))
    return [(status, out, said) for status, (out, said) in zip(statuses, texts, strict=True)]


def words(folder: Path, seed: int = 5, **sizes: int) -> None:
    """Write a model whose tokens are letters, and a file with the number of a free port."""
    save_hugging_face(tiny_model(seed, **sizes), folder / "words", CONFIG | sizes)
    vocabulary = {"<unk>": 0, "</s>": 1} | {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuv", 2)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    content = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": {"type": "Whitespace"}}
    (folder / "words" / "tokenizer.json").write_text(json.dumps(content))
    with socket.create_server(("127.0.0.1", 0)) as one:
        (folder / "port").write_text(str(one.getsockname()[1]))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, str]]]:
    folder = tmp_path_factory.mktemp("two")
    save_hugging_face(tiny_model(), folder / "tiny", CONFIG)
    save_hugging_face(tiny_model(**WIDE), folder / "quantized", CONFIG | WIDE)
    words(folder)
    (folder / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    return folder, run_to_end(2, folder, OF_TWO)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, str]]]:
    folder = tmp_path_factory.mktemp("four")
    words(folder, seed=4, num_heads=4)
    return folder, run_to_end(4, folder, OF_FOUR)


def found_by(said: list[tuple[int, str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said[0][1].splitlines()[0]) if said[0][1] else pytest.fail(str(said))
    return found


def test_sharded_models_have_hugging_faces_logits(two: Any, four: Any) -> None:
    for found, names in ((found_by(two[1]), OF_TWO), (found_by(four[1]), OF_FOUR)):
        assert found["errors"].keys() == set(names)
        assert max(found["errors"].values()) < 1e-4


def test_a_pass_has_three_all_reduces_per_layer_and_one_for_its_tokens(two: Any, four: Any) -> None:
    for found in (found_by(two[1]), found_by(four[1])):
        for name, sums in found["sums"].items():
            layers = models.build(checkpoints.read_config(GOLDENS / name)).config.decoder_layers
            assert sums == 1 + layers * (2 if name == "t5gemma2" else 3)


@pytest.mark.parametrize("name", ["tiny", "quantized"])
def test_a_sharded_model_gives_the_tokens_of_the_unsharded_model(name: str, two: Any) -> None:
    """Compare in each of `MODES`. Each process holds half of the layers' weights."""
    found = found_by(two[1])
    assert found[name] == []
    share, all_of_it = found["bytes"][name]
    assert share < 0.75 * all_of_it  # both hold the whole embedding


def test_all_ranks_run_the_same_passes(two: Any) -> None:
    first, second = (json.loads((two[0] / f"passes-{rank}.json").read_text()) for rank in range(2))
    assert first == second and len(first) > 30


def test_a_data_parallel_job_writes_the_bytes_of_one_process(two: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The job can be resumed after a process died, which is reported in one line."""
    folder, said = two
    job = ["--model", str(folder / "words"), str(folder / "prompts.txt"), "-m", "8", "--slots", "2"]
    assert batch_command([*job, "--output", str(folder / "one.jsonl")]) == 0
    one, data, dead = ((folder / f"{name}.jsonl").read_bytes() for name in ("one", "data", "dead"))
    assert data == one and json.loads(said[0][1].splitlines()[1]) == 0
    assert one.startswith(dead) and len(dead) < len(one)
    assert [status for status, *_ in said] == [1, -9]
    (line,) = (each for each in said[0][2].splitlines() if "error" in each)
    assert line.startswith("speculative-decoding batch: error: process 2: has ended, or has been unreachable for 20")
    assert "Traceback" not in said[0][2]
    assert batch_command([*job, "--output", str(folder / "dead.jsonl"), "--resume"]) == 0
    assert (folder / "dead.jsonl").read_bytes() == one


@pytest.mark.parametrize("name", ["two", "four"])
def test_a_server_with_a_sharded_model_answers_as_one_process(
    name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = request.getfixturevalue(name)
    assert main_command(["--model", str(folder / "words"), "--prompt", PROMPT, "-m", "8"]) == 0
    text = json.loads((folder / "answer.json").read_text())["choices"][0]["text"]
    assert text and text == capsys.readouterr().out.rstrip("\n")


def test_all_ranks_of_a_server_end_with_rank_0(two: Any) -> None:
    """SIGTERM ends them in order, even if it is sent to all ranks."""
    assert [(two[0] / f"status-{rank}").read_text() for rank in range(2)] == ["0", "0"]


def test_all_ranks_of_a_server_end_when_one_is_killed(four: Any) -> None:
    assert [status for status, *_ in four[1]] == [1, 1, 1, -9]
    lines = [line for _, _, said in four[1] for line in said.splitlines()]
    own = [line for line in lines if not line.startswith("[ring]")]  # MLX logs failed connections, depending on timing
    (line,) = [line for line in own if "error" in line or "Traceback" in line]
    assert line.startswith("python -m speculative_decoding.serve: error: process 4: has ended, or has been unreachable")


# Shards of a checkpoint.


def test_a_shard_is_a_slice_of_the_tensor(tmp_path: Path) -> None:
    table = mx.arange(48).reshape(6, 8).astype(mx.float32)
    write_npz(tmp_path / "a.npz", [("a", table), ("b", table[0].astype(mx.bfloat16))])
    checkpoint = read_npz(tmp_path / "a.npz")
    for axis, pieces in ((0, 1), (0, 3), (1, 4), (1, 2)):
        bounds = [Shard(axis, pieces, index).bounds(table.shape) for index in range(pieces)]
        parts = [checkpoint.read_slice("a", axis, *each) for each in bounds]
        assert [part.shape for part in parts] == [Shard(axis, pieces, 0).shape(table.shape)] * pieces
        assert mx.array_equal(mx.concatenate(parts, axis=axis), table)
        usual = [super(type(checkpoint), checkpoint).read_slice("a", axis, *each) for each in bounds]  # type: ignore[misc]
        assert all(mx.array_equal(one, other) for one, other in zip(parts, usual, strict=True))
    assert checkpoint.read_slice("b", 0, *Shard(0, 2, 1).bounds((8,))).tolist() == [4, 5, 6, 7]


class Unread(Checkpoint):
    """A checkpoint with only the tensor that a model needs to choose its shapes."""

    def __init__(self, inner: Checkpoint) -> None:
        super().__init__(str(inner), {name: inner.info(name) for name in inner})
        self._inner = inner

    def __getitem__(self, name: str) -> mx.array:
        assert name == "final_logits_bias"
        return self._inner[name]


def refusal(name: str, processes: int, bits: int | None = None, **fields: Any) -> str:
    """fields: replace fields of config.json."""
    folder = GOLDENS / name
    raw = checkpoints.read_config(folder) | fields
    raw, checkpoint = models.find(raw).adapt(raw, checkpoints.read(folder))
    _, raw, checkpoint = build_model(raw, checkpoint, Storage(quantize=bits, group_size=32))
    unread = Unread(checkpoint)
    build: Any = partial(models.build, raw, unread)
    group: Any = SimpleNamespace(rank=0, size=processes, is_first=True)
    with pytest.raises(InputError) as caught:
        shard_model(build, unread, group)
    return str(caught.value)


def test_a_model_that_cannot_be_sharded_is_refused_with_valid_process_counts() -> None:
    """The refusal comes before weights are read."""
    for name, processes, words in (
        ("t5-v1_1", 2, "2 processes cannot share a model with num_heads 3, d_ff 64; use one, or"),
        ("t5", 3, "with num_heads 4, d_ff 64; use 2 or 4"),
        ("marian", 4, "encoder_attention_heads 2"),
        ("whisper", 2, "processes cannot share a speech model; use one process"),
        ("t5gemma", 8, "decoder.num_kv_heads 2, decoder.d_ff 32; use 2 or 4"),
    ):
        assert words in refusal(name, processes)
    package = {"model_type": "opennmt", "static_position_embeddings": True, "replace_unknowns": True}
    assert "cannot share a package of Argos Translate; use one process" in refusal("m2m_100", 2, **package)
    quantized = refusal("t5", 4, bits=4)
    assert "num_heads 4, d_ff 64 and groups of quantized columns; use one" in quantized


# Joining and lost ranks.


def test_strangers_do_not_keep_peers_from_joining() -> None:
    """One stays silent, one sends other bytes, one ends at once, and one resets its connection."""
    secret = bytes(range(16))
    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()
    strangers = [socket.create_connection(address) for _ in range(4)]
    silent, other, ended, reset = strangers
    other.sendall(bytes(18))
    ended.close()
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reset.close()
    ours = [connect(*address, secret, rank)[0] for rank in (2, 1)]
    theirs = accept(server, 2, secret)
    for rank, peer in zip((2, 1), ours, strict=True):
        peer.sendall(b"hello")
        assert theirs[rank].recv(5) == b"hello"
    assert silent.recv(1) == other.recv(1) == b""  # closed
    for each in (*strangers, *ours, *theirs.values()):
        each.close()


LAST_MESSAGES = {b"": (1, None, ""), b'{"leaves": 2, "why": "no disk"}\n': (1, 2, "no disk")}


@pytest.mark.parametrize("last_message", LAST_MESSAGES)
def test_a_rank_that_disconnects_is_reported(last_message: bytes) -> None:
    (ours, theirs), heard = socket.socketpair(), Queue[Any]()
    channel = Channel({1: ours}, lambda *what: heard.put(what))
    theirs.sendall(b'null\n{"a": 1}\n' + last_message)
    assert channel.receive() == (1, {"a": 1})
    theirs.close()
    assert heard.get(timeout=LIMIT) == LAST_MESSAGES[last_message]
    channel.leave(0)
    ours.close()


def test_a_silent_rank_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speculative_decoding.distributed.process_group.HEARTBEAT_SECONDS", 0.01)
    (ours, theirs), heard = socket.socketpair(), Queue[Any]()
    channel = Channel({1: ours}, lambda *what: heard.put(what))
    assert heard.get(timeout=LIMIT) == (1, None, "") and theirs.recv(5) == b"null\n"
    channel.leave(0)
    ours.close()
    theirs.close()


def test_a_flag_without_effect_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch_command(["prompts.txt", "--parallel", "tensor"]) == 2
    assert "--parallel: tensor has no effect on one process" in capsys.readouterr().err
    monkeypatch.setenv("MLX_RANK", "0")
    assert main_command(["--prompt", "a"]) == 2
    said = capsys.readouterr().err
    assert "mlx.launch: the other processes cannot be reached" in said
    assert said.count("\n") == 2 and "waiting up to 90 seconds for the other processes" in said

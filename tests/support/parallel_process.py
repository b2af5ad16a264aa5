"""One of several processes, as `mlx.launch` would start it.

test_parallel.py calls `main` in each process, with MLX_RANK and MLX_HOSTFILE in the environment. Rank 0 prints its
results as JSON. At the end, one process kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from speculative_decoding import checkpoints, models
from speculative_decoding.checkpoints import Checkpoint
from speculative_decoding.checkpoints.quantized import QuantizedCheckpoint
from speculative_decoding.distributed import ProcessGroup, ShardedModel, shard_model
from speculative_decoding.distributed.process_group import join_process_group
from speculative_decoding.drafters import BatchHeadDrafter
from speculative_decoding.jobs.command import main as batch_command
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.rows.prompts import PromptScheduler
from speculative_decoding.server.command import main as serve_command
from tests.support.device import use
from tests.support.paths import GOLDENS
from tests.support.tiny import noisy_copy, tiny_head
from tests.support.together import drafter_of_rows, options_of, together

SOURCES = [[5, 9, 3, 7, 1], [11, 4, 19, 6, 13, 8, 1], [3, 1]]
COUPLED = {"temperature": 1.0, "seed": 4}
REJECTION = COUPLED | {"acceptance": "rejection"}
# (drafter, options, slots); few, because two processes are slow
MODES: list[tuple[str, dict[str, Any], int]] = [
    ("model", {}, 1),
    ("auto", {}, 8),
    ("n-grams", COUPLED, 8),
    ("text", {}, 8),
    ("auto with texts", COUPLED, 8),
    ("head", COUPLED, 1),
    ("model", REJECTION, 8),
    ("head", REJECTION, 8),
]
PROMPT = "a b c d e"
passes: list[Any] = []  # tokens, offsets and capacity


def meet(folder: Path, processes: int) -> None:
    """Wait for all processes, because MLX tries to connect for 30 s only, and imports may take longer."""
    (folder / f"here-{os.environ['MLX_RANK']}").touch()
    while len([*folder.glob("here-*")]) < processes:
        time.sleep(0.01)


def whole_model(folder: Path) -> EncoderDecoder:
    raw, checkpoint = read(folder)
    model = models.build(raw, checkpoint)
    model.load_checkpoint(checkpoint)
    return model


def read(folder: Path) -> tuple[Mapping[str, Any], Checkpoint]:
    raw = checkpoints.read_config(folder)
    raw, checkpoint = models.find(raw).adapt(raw, checkpoints.read(folder))
    if folder.name == "quantized":
        names = {name for name in checkpoint if len(checkpoint.info(name).shape) == 2 and "block" in name}
        names = {name for name in names if "bias" not in name}
        checkpoint = QuantizedCheckpoint(checkpoint, names, 4, 32)
    return raw, checkpoint


def record_passes() -> None:
    """Append each pass of a sharded model to `passes`."""
    states = EncoderDecoder.states

    def recorded(self: EncoderDecoder, tokens: mx.array, cache: Any) -> mx.array:
        if isinstance(self, ShardedModel):
            mx.eval(tokens)
            passes.append([tokens.tolist(), list(cache.offsets), cache.capacity])
        return states(self, tokens, cache)

    EncoderDecoder.states = recorded  # type: ignore[method-assign]


@contextmanager
def shared(folder: Path, processes: ProcessGroup) -> Iterator[EncoderDecoder | None]:
    """Yield the model on rank 0. The other ranks repeat its calls, and then yield None."""
    raw, checkpoint = read(folder)
    model, checkpoint = shard_model(partial(models.build, raw, checkpoint), checkpoint, processes)
    model.load_checkpoint(checkpoint)
    if not processes.is_first:
        model.broadcaster.serve(model)
        yield None
        return
    try:
        yield model
    finally:
        processes.channel.send({"leaves": 0})


def error_of(model: EncoderDecoder, name: str) -> float:
    """Return the largest difference from Hugging Face's logits in cached and teacher-forced passes."""
    golden = np.load(GOLDENS / name / "golden.npz")
    mask = mx.array(golden["attention_mask"]).astype(mx.bool_)
    tokens = mx.array(golden["decoder_input_ids"])
    encoder_output = model.encode(mx.array(golden["input_ids"]), mask)
    cache = model.make_cache(encoder_output, mask)
    pieces = mx.concatenate([model.decode(tokens[:, :3], cache), model.decode(tokens[:, 3:], cache)], axis=1)
    at_once = model.logits(model.teacher_forced(tokens, encoder_output, mask))
    return max(float(np.abs(np.array(each) - golden["logits"]).max()) for each in (pieces, at_once))


def sums_of_a_pass(model: EncoderDecoder) -> int:
    """Count the all-reduces in a pass of one token."""
    cache = model.make_cache(model.encode(mx.array([[5, 1]])))
    count, add_up = 0, mx.distributed.all_sum

    def counting(*arguments: Any, **options: Any) -> mx.array:
        nonlocal count
        count += 1
        return add_up(*arguments, **options)

    mx.distributed.all_sum = counting
    try:
        mx.eval(model.decode(mx.array([[7]]), cache))
    finally:
        mx.distributed.all_sum = add_up
    return count


def different(model: EncoderDecoder, alone: EncoderDecoder, draft: EncoderDecoder) -> list[Any]:
    """Return the entries of `MODES` whose tokens differ from those of one process."""
    head, found = tiny_head(alone), []
    greedy: dict[tuple[int, ...], list[int]] = {}
    assert isinstance(model, ShardedModel)
    model.keep_full_cross_attention()

    def text_of(row: Any) -> list[int]:
        return greedy[tuple(row.source_tokens)]

    def outputs(target: EncoderDecoder, name: str, given: Mapping[str, Any], slots: int) -> list[list[int]]:
        drafter = BatchHeadDrafter(head, target) if name == "head" else drafter_of_rows(name, target, draft, text_of)
        requests = [(source, options_of(max_tokens=8, **given)) for source in SOURCES]
        return [told.tokens for told in together(target, requests, drafter, slots)]

    greedy |= zip(map(tuple, SOURCES), outputs(alone, "none", {}, 1), strict=True)
    for mode in MODES if model.config.d_model == draft.config.d_model else [("head", {}, 8)]:
        if outputs(alone, *mode) != outputs(model, *mode):
            found.append(mode)
    return found


def bytes_of(model: EncoderDecoder) -> int:
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))


def main(folder: Path, *names: str) -> None:
    use(mx.cpu)
    meet(folder, len(json.loads((folder / "hosts.json").read_text())))
    processes = join_process_group(lambda *_: os._exit(9))
    record_passes()
    found: dict[str, Any] = {"errors": {}, "sums": {}, "bytes": {}}
    for name in names:
        with shared(GOLDENS / name, processes) as model:
            if model is not None:
                found["errors"][name], found["sums"][name] = error_of(model, name), sums_of_a_pass(model)
    draft = None
    if processes.is_first and (folder / "tiny").exists():
        draft = noisy_copy(whole_model(folder / "tiny"), 0.05)
    for name in [each for each in ("tiny", "quantized") if (folder / each).is_dir()]:
        with shared(folder / name, processes) as model:
            if model is not None:
                alone = whole_model(folder / name)
                found[name] = different(model, alone, draft)
                found["bytes"][name] = [bytes_of(model), bytes_of(alone)]
    (folder / f"passes-{processes.rank}.json").write_text(json.dumps(passes))
    processes.channel.leave(0)
    if processes.is_first:
        print(json.dumps(found), flush=True)
    served(folder, processes.rank, processes.size)
    if (folder / "prompts.txt").exists():
        jobs(folder, processes.rank)


def served(folder: Path, rank: int, size: int) -> None:
    """Run a server that answers one request. Then two processes get SIGTERM; of four, one is killed."""
    port = (folder / "port").read_text()
    if size == 2 or rank == size - 1:
        Thread(target=end_when_answered, args=(folder, signal.SIGTERM if size == 2 else signal.SIGKILL)).start()
    if rank == 0:
        Thread(target=ask, args=(f"http://127.0.0.1:{port}", folder / "answer.json")).start()
    flags = ["--draft-model", str(folder / "words"), "--port", port, "--slots", "2", "--max-tokens", "8"]
    flags += ["--num-draft", "2"] if size > 2 else []  # the server then compiles few passes before it is ready
    status = serve_command(["--model", str(folder / "words"), *flags])
    (folder / f"status-{rank}").write_text(str(status))


def ask(url: str, answer: Path) -> None:
    body = json.dumps({"prompt": PROMPT}).encode()
    while not answer.exists():
        with suppress(OSError):  # not ready
            urlopen(f"{url}/health").close()
            with urlopen(Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})) as response:
                answer.with_suffix(".new").write_bytes(response.read())
            answer.with_suffix(".new").rename(answer)
        time.sleep(0.01)


def end_when_answered(folder: Path, number: int) -> None:
    while not (folder / "answer.json").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), number)


def jobs(folder: Path, rank: int) -> None:
    """Run a data-parallel job, and one in which a process dies."""

    def job(name: str, *flags: str) -> int:
        given = ["--model", str(folder / "words"), str(folder / "prompts.txt"), "-m", "8", "--slots", "2"]
        return batch_command([*given, "--output", str(folder / name), *flags])

    print(json.dumps(job("data.jsonl")), flush=True)
    if rank:
        PromptScheduler.step = kill_at(5, PromptScheduler.step)  # type: ignore[method-assign]
    job("dead.jsonl")


def kill_at(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its n-th call kills the process."""
    left = calls

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return counted

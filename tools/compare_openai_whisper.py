"""Compares transcripts with openai-whisper's, on the same weights and samples: segments, words, languages, fallback.

`record` runs in an environment with openai-whisper and writes its transcripts; `compare` runs in this one:

    OTHER/bin/python tools/compare_openai_whisper.py record MODEL RECORD.json 16KHZ.wav... [--options '{...}']
    python -m tools.compare_openai_whisper compare MODEL RECORD.json [--draft DRAFT] [--drafter ngram] [--slots 4]

MODEL is a Hugging Face folder. For a recording whose transcripts differ, `compare` prints the first attempt with a
different output, and that attempt's log-probability in both programs. If the two differ only by rounding errors, the
attempt is a tie.
"""

from __future__ import annotations

import argparse
import json
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np

HALF_STEP = 0.0101  # seconds; times are multiples of 0.02
NAMES = [  # parts of Hugging Face's tensor names, and their equivalents in openai-whisper
    ("model.", ""),
    ("layers.", "blocks."),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("encoder_attn.", "cross_attn."),
    ("self_attn_layer_norm", "attn_ln"),
    ("self_attn.", "attn."),
    (".q_proj", ".query"),
    (".k_proj", ".key"),
    (".v_proj", ".value"),
    (".out_proj", ".out"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens", "token_embedding"),
]


def samples_of(path: str) -> np.ndarray:
    """Read a WAV file with one channel of 16-bit samples at 16 kHz."""
    with wave.open(path) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (16000, 1, 2):
            raise SystemExit(f"{path}: must have one channel of 16-bit samples at 16 kHz")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def openai_model(folder: Path) -> Any:
    import torch
    from safetensors.torch import load_file
    from whisper.model import ModelDimensions, Whisper

    config = json.loads((folder / "config.json").read_text())
    sizes = (
        "num_mel_bins max_source_positions d_model encoder_attention_heads encoder_layers vocab_size "
        "max_target_positions d_model decoder_attention_heads decoder_layers"
    )
    model = Whisper(ModelDimensions(*(config[name] for name in sizes.split())))
    state = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for other, own in NAMES:
            name = name.replace(other, own)
        state[name] = tensor.float()
    model.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith("proj_out")})
    heads = torch.zeros(model.dims.n_text_layer, model.dims.n_text_head, dtype=torch.bool)
    for layer, head in json.loads((folder / "generation_config.json").read_text())["alignment_heads"]:
        heads[layer, head] = True
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return model.eval()


def record(model: Path, output: Path, files: list[str], options: dict[str, Any]) -> None:
    import whisper
    from whisper.decoding import DecodingTask

    attempts: list[dict[str, Any]] = []
    run = DecodingTask.run

    def logged(task: Any, mel: Any) -> Any:
        (result,) = run(task, mel)
        values = {name: getattr(result, name) for name in ("tokens", "temperature", "avg_logprob", "no_speech_prob")}
        attempts.append(values | {"previous": list(task.options.prompt or [])[-223:]})
        return [result]

    DecodingTask.run = logged
    loaded = openai_model(model)
    found = []
    for path in files:
        attempts.clear()
        started = time.perf_counter()
        result = whisper.transcribe(loaded, samples_of(path), fp16=False, **options)
        seconds = time.perf_counter() - started
        print(f"{path}: {len(result['segments'])} segments in {seconds:.1f} s", flush=True)
        found.append({"path": path, "seconds": seconds, "result": result, "attempts": [*attempts]})
        output.write_text(json.dumps({"options": options, "recordings": found}, default=float, ensure_ascii=False))


def compare(model: Path, recorded: Path, draft: str | None, decoding: dict[str, Any], slots: int) -> int:
    """Print the differences for each recording. Returns the number of recordings that differ."""
    from speculative_decoding import load
    from speculative_decoding.speech.window_requests import WindowRequests

    content = json.loads(recorded.read_text())
    outputs: dict[int, tuple[Any, list[Any]]] = {}  # keyed by the `id` of a recording's requests, which are kept alive
    decoded = WindowRequests.decoded

    def logged(requests: Any, request: Any) -> Any:
        outputs.setdefault(id(requests), (requests, []))[1].append(output := decoded(requests, request))
        return output

    WindowRequests.decoded = logged  # type: ignore[method-assign, assignment]
    session = load(model, draft=draft)
    samples = [samples_of(each["path"]) for each in content["recordings"]]
    events = session.transcribe_batch(samples, slots=slots, **(content["options"] | decoding))
    results = {event.number: event.result for event in events if event.result is not None}
    different = 0
    for number, each in enumerate(content["recordings"]):
        result = results[number]
        problems = differences(result.as_dict(), each["result"])
        calls = f"{result.stats.tokens_per_target_call:.2f} tokens per call"
        print(f"{each['path']}: {len(result.segments)} segments, {calls}: {'; '.join(problems) or 'equal'}")
        different += bool(problems)
        for _, own in outputs.values():
            if abs(own[0].no_speech_prob - each["attempts"][0]["no_speech_prob"]) < 1e-4:  # of this recording
                print("   ", margins(own, each["attempts"]))
    return different


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    problems = []
    if found["language"] != expected["language"]:
        problems.append(f"language {found['language']} instead of {expected['language']}")
    if len(found["segments"]) != len(expected["segments"]):
        problems.append(f"{len(found['segments'])} segments instead of {len(expected['segments'])}")
    for one, other in zip(found["segments"], expected["segments"], strict=False):
        where = f"segment {other['id']}"
        for name in ("seek", "tokens", "text", "temperature"):
            if one[name] != other[name]:
                problems.append(f"{where}: {name} {one[name]!r} instead of {other[name]!r}")
        for name in ("start", "end"):
            if abs(one[name] - other[name]) > HALF_STEP:
                problems.append(f"{where}: {name} {one[name]} instead of {other[name]}")
        for word, right in zip(one.get("words", []), other.get("words", []), strict=False):
            if word["word"] != right["word"]:
                problems.append(f"{where}: word {word['word']!r} instead of {right['word']!r}")
            elif max(abs(word["start"] - right["start"]), abs(word["end"] - right["end"])) > 2 * HALF_STEP:
                times = [f"{each['start']:.2f} to {each['end']:.2f}" for each in (word, right)]
                problems.append(f"{where}: {word['word']!r} {times[0]} instead of {times[1]}")
        if problems:
            break
    return problems


def margins(outputs: list[Any], attempts: list[dict[str, Any]]) -> str:
    """Describe the first attempt that differs, or else the largest differences in values that determine fallback."""
    found = {"avg_logprob": 0.0, "no_speech_prob": 0.0}
    for number, (output, other) in enumerate(zip(outputs, attempts, strict=False)):
        if output.tokens != other["tokens"]:
            return f"attempt {number} differs: log-probability {output.avg_logprob:.6f} and {other['avg_logprob']:.6f}"
        found = {name: max(gap, abs(getattr(output, name) - other[name])) for name, gap in found.items()}
    shown = ", ".join(f"{name} by {gap:.1e}" for name, gap in found.items())
    return f"{len(outputs)} attempts are equal; they differ in {shown}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("model", type=Path)
    recording.add_argument("record", type=Path)
    recording.add_argument("files", nargs="+")
    recording.add_argument("--options", type=json.loads, default={}, help="options of both programs, as JSON")
    comparing = commands.add_parser("compare")
    comparing.add_argument("model", type=Path)
    comparing.add_argument("record", type=Path)
    comparing.add_argument("--draft")
    comparing.add_argument("--drafter", help='default: "model" with a draft, otherwise "none"')
    comparing.add_argument("--num-draft", type=lambda text: text if text == "auto" else int(text), default="auto")
    comparing.add_argument("--slots", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.model, arguments.record, arguments.files, arguments.options)
    else:
        chosen = {"drafter": arguments.drafter or ("model" if arguments.draft else "none")}
        if chosen["drafter"] != "none":
            chosen["num_draft_tokens"] = arguments.num_draft
        raise SystemExit(compare(arguments.model, arguments.record, arguments.draft, chosen, arguments.slots) > 0)

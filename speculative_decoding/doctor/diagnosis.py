"""The measurements and checks of `doctor`. The resulting JSON object names no paths, prompts, users or hosts."""

from __future__ import annotations

import gc
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints import Checkpoint
from ..cli.common import PROMPTS, read_prompts, say
from ..cli.divergence import compare_outputs
from ..cli.run_config import BUNDLED_PAIR, RunConfig
from ..decoding.prompt import build_decoder_prompt, check_languages
from ..draft_length.exact_widths import COMPARED_WIDTHS
from ..draft_length.store import CALIBRATION_VARIABLE
from ..errors import InputError
from ..loading.load import BUNDLED, Storage, build_model, open_adapter, read_folder
from ..loading.names import hub_name
from ..loading.pair import SELF_DRAFTS
from ..models.base import EncoderDecoder, checked_sources, is_read_by_pass
from ..models.device import uses_tf32
from ..models.draft_head import DraftHead
from ..models.memory_budget import fits
from ..models.source import AudioFrames
from ..models.whisper_tokens import AudioConfig
from ..session import Session
from ..subpackages import has_subpackage
from .device import device_facts, device_notes, versions
from .kernel_checks import KernelCheck, kernel_checks

FORMAT = 2
BUNDLED_NAMES = {*BUNDLED_PAIR, "t5-web-docs-draft"}
GENERIC_PROMPTS = (
    "translate English to German: The house is small, but the garden is large.",
    "summarize: The council met on Monday. It approved the new library and postponed the vote on the bridge.",
    "The quick brown fox jumps over the lazy dog. The dog sleeps.",
    "What is the capital of France?",
)


@dataclass(frozen=True)
class Precision:
    """A precision of the target's weights.

    Args:
        name: The name in reports.
        dtype: As in `open_model`.
        quantize: As in `open_model`.
        is_tested: Whether a model is loaded in this precision.
    """

    name: str
    dtype: str | None = None
    quantize: int | None = None
    is_tested: bool = True


@dataclass(frozen=True)
class WeightSizes:
    """Sizes of the loaded weights, computed from their shapes.

    Args:
        nbytes: Size of all weights.
        pass_bytes: Size of the weights that a decoder pass reads.
        dtype: Data type of weights and activations.
        bits: Bits per quantized weight; None if nothing is quantized.
    """

    nbytes: int
    pass_bytes: int
    dtype: str
    bits: int | None

    @property
    def precision(self) -> str:
        return self.dtype if self.bits is None else f"{self.bits} bits"


def diagnose(config: RunConfig) -> dict[str, Any]:
    """Measure the device, check kernels and drafts in several precisions, and return the report."""
    device = device_facts()
    models, sizes, audio = describe_models(config)
    found = {
        "format": FORMAT,
        "versions": versions(),
        "device": device,
        "tf32": uses_tf32(),
        "notes": device_notes(device, versions()["mlx"]),
        "calibration": "given" if os.environ.get(CALIBRATION_VARIABLE) else "measured",
        **models,
    }
    draft_bytes = 0 if models["draft"] is None else models["draft"]["bytes"]
    prompts = list(self_test_prompts(models["target"]["name"], audio))
    precisions = []
    for precision in precisions_to_test(sizes):
        entry = size_entry(precision, sizes, config, draft_bytes, device)
        if entry["skipped"] is None and precision.is_tested:
            say(f"{precision.name}: measuring passes, checking kernels and drafts ...")
            with warnings.catch_warnings():
                if precision.name != sizes.precision:
                    warnings.simplefilter("ignore")  # they have already been printed for the first precision
                entry |= check_precision(config, precision, prompts, has_tf32=bool(found["tf32"]))
            gc.collect()
            mx.clear_cache()
        precisions.append(entry)
    return {
        **found,
        "precisions": precisions,
        "fastest": fastest_precisions(precisions, is_measured=found["calibration"] == "measured"),
        "passed": all(has_passed(entry) for entry in precisions),
    }


def describe_models(config: RunConfig) -> tuple[dict[str, Any], WeightSizes, AudioConfig | None]:
    """Open the models without weights, and describe the target and the draft.

    Returns:
        The description, the sizes of the target's weights, and its audio configuration if it is a speech model.

    Raises:
        InputError: The options lack a language that the target needs.
    """
    pair = config.open()
    model = pair.target.model
    check_languages(model, pair.target.tokenizer, config.options)
    build_decoder_prompt(model, pair.target.tokenizer, config.options)
    sizes = weight_sizes(model, pair.target.checkpoint)
    target = {
        "name": public_name(Path(config.models.model)),
        "architecture": type(model).__name__,
        "precision": sizes.precision,
        "bytes": sizes.nbytes,
        "vocab_size": model.config.vocab_size,
        "d_model": model.config.d_model,
        "decoder_layers": model.config.decoder_layers,
        "d_ff": model.config.decoder.d_ff,
        "heads": model.config.decoder.num_heads,
        "head_width": model.config.decoder.head_dim,
    }
    draft = None
    if pair.draft is not None:
        name = "draft head" if isinstance(pair.draft.model, DraftHead) else "draft model"
        name += " of another vocabulary" * pair.drafts_text
        draft = {"name": public_name(pair.draft.folder), "kind": name, "bytes": pair.draft.nbytes}
    return {"target": target, "draft": draft}, sizes, model.audio


def precisions_to_test(own: WeightSizes) -> list[Precision]:
    """Return the precision in use, followed by others to compare with it."""
    others = [
        Precision("float32", "float32"),
        Precision("bfloat16", "bfloat16"),
        Precision("8 bits", quantize=8, is_tested=False),
        Precision("4 bits", quantize=4),
    ]
    return [Precision(own.precision), *(other for other in others if other.name != own.precision)]


def weight_sizes(model: EncoderDecoder, checkpoint: Checkpoint) -> WeightSizes:
    """Compute the sizes without reading weights."""
    sources = checked_sources(model, checkpoint)
    names = {name for joined in sources.values() for name in joined}
    read = {
        name
        for path, joined in sources.items()
        if is_read_by_pass(path, has_head="head.weight" in sources)
        for name in joined
    }
    dtypes = (checkpoint.info(name).dtype for name in names)
    return WeightSizes(
        nbytes=sum(checkpoint.info(name).nbytes for name in names),
        pass_bytes=sum(checkpoint.info(name).nbytes for name in read),
        dtype=next(str(each) for each in dtypes if mx.issubdtype(each, mx.floating)).removeprefix("mlx.core."),
        bits=max((module.bits for module in model.modules() if isinstance(module, nn.QuantizedLinear)), default=None),
    )


def size_entry(
    precision: Precision, own: WeightSizes, config: RunConfig, draft_bytes: int, device: Mapping[str, Any]
) -> dict[str, Any]:
    """Report whether the weights fit into memory, or the reason why the precision is skipped."""
    entry: dict[str, Any] = {
        "precision": precision.name,
        "bytes": None,
        "pass_bytes": None,
        "fits": None,
        "skipped": None,
    }
    is_speech_model = False
    if precision.name == own.precision:
        sizes = own
    elif own.bits is not None:
        return entry | {"skipped": "the folder is already quantized"}
    elif precision.quantize and precision.is_tested and config.models.draft_model in SELF_DRAFTS:
        return entry | {"skipped": "a quantized target cannot be its own draft"}
    else:
        try:
            storage = Storage(precision.dtype or own.dtype, precision.quantize)
            raw, checkpoint = read_folder(Path(config.models.model))
            if config.models.adapter is not None:
                raw, checkpoint = open_adapter(config.models.adapter).merge(raw, checkpoint)
            model, _, checkpoint = build_model(raw, checkpoint, storage, unread=True)
            sizes = weight_sizes(model, checkpoint)
            is_speech_model = model.audio is not None
        except InputError as error:
            say(f"{precision.name}: {error}")  # not part of the report, because it may name a path
            return entry | {"skipped": "this model has no such precision"}
    entry |= {"bytes": sizes.nbytes, "pass_bytes": sizes.pass_bytes}

    entry["fits"] = fits(sizes.nbytes + draft_bytes, device["memory_limit"])
    if not entry["fits"]:
        entry["skipped"] = "does not fit into memory"
    elif (
        precision.name != own.precision
        and precision.is_tested
        and device["kind"] == "CPU"
        and (is_speech_model or sizes.nbytes > 500e6)  # MLX has no fast 16-bit or quantized matmul on a CPU
    ):
        entry["skipped"] = "too slow on a CPU for a model of this size"
    return entry


def check_precision(
    config: RunConfig, precision: Precision, prompts: Sequence[str | AudioFrames], *, has_tf32: bool
) -> dict[str, Any]:
    """Load the models in this precision, then measure and check them."""
    config = replace(config, models=replace(config.models, dtype=precision.dtype or config.models.dtype))
    with config.session(config.open(use_draft=True, quantize=precision.quantize)) as session:
        checks = kernel_checks(session.model, tf32=has_tf32)
        return {
            **measure_costs(session),
            "kernels": [summarize_kernel(name, checks) for name in dict.fromkeys(check.kernel for check in checks)],
            "self_test": self_test(session, prompts),
        }


def measure_costs(session: Session) -> dict[str, Any]:
    """Measure passes and drafts of a single row."""
    options = session.options_with({})
    calibration = session.planner.calibration(options)
    exact_widths = session.planner.exact_widths
    costs = calibration.measure_fully(1)
    passes = {**calibration.measure_fully(1, exact=True).passes, **costs.passes}
    return {
        "pass_seconds": costs.baseline,
        "passes": [
            {
                "width": width,
                "seconds": seconds,
                "relative": seconds / costs.baseline,
                "exact": exact_widths is None or exact_widths.same_bits(1, width),
            }
            for width, seconds in sorted(passes.items())
        ],
        "exact_widths": [*COMPARED_WIDTHS] if exact_widths is None else exact_widths.widths,
        "exactness": {"default": session.planner.widths(options).exact},
        "draft_seconds": None
        if session.draft_model is None
        else {"step": costs.step, "start": costs.start, "source": costs.prefill},
    }


def summarize_kernel(name: str, checks: Iterable[KernelCheck]) -> dict[str, Any]:
    """Summarize all checks of one kernel by the largest deviation."""
    own = [check for check in checks if check.kernel == name]
    worst = max((check.deviation if math.isfinite(check.deviation) else math.inf for check in own), default=0.0)
    return {
        "kernel": name,
        "checks": len(own),
        "failed": [check.shape for check in own if not check.passed],
        "worst_deviation": worst if math.isfinite(worst) else None,
        "tolerance": own[0].tolerance,
    }


def self_test(session: Session, prompts: Sequence[str | AudioFrames]) -> dict[str, Any]:
    """Compare greedy decoding with and without a draft, in exact passes."""
    exact_widths = session.planner.exact_widths
    length = 5 if exact_widths is None else min(5, max(exact_widths.widths) - 1)
    found: dict[str, Any] = {
        "prompts": len(prompts),
        "identical": 0,
        "tokens": 0,
        "drafted": 0,
        "accepted": 0,
        "draft_length": length,
        "differences": [],
        "skipped": None,
    }
    if not prompts:
        return found | {"skipped": "the folder speech is missing"}
    if not length:
        return found | {"skipped": "no exact pass is wide enough for a draft"}
    settings: dict[str, Any] = {"strict": True, "max_tokens": 40}
    if (audio := session.model.audio) is not None:
        settings["decoder_prefix"] = [*audio.start_tokens("en")[1:], audio.no_timestamps]
    for output, divergence in compare_outputs(session, prompts, {"num_draft_tokens": length}, **settings):
        number = output.index + 1
        if output.result is None:
            say(f"self-test, prompt {number}: {output.error}")
            found["differences"].append({"prompt": number, "token": None, "logit_gap": None})
            continue
        found["tokens"] += len(output.result.tokens)
        found["drafted"] += output.result.stats.drafted_tokens
        found["accepted"] += output.result.stats.accepted_tokens
        if divergence is None:
            found["identical"] += 1
        else:
            gap = divergence.logit_gap
            gap = gap if gap is not None and math.isfinite(gap) else None
            found["differences"].append({"prompt": number, "token": divergence.position, "logit_gap": gap})
    return found


def has_passed(entry: Mapping[str, Any]) -> bool:
    """Return whether every test of this precision passed."""
    has_differences = bool(entry.get("self_test", {}).get("differences"))
    return not has_differences and not any(kernel["failed"] for kernel in entry.get("kernels", ()))


def fastest_precisions(precisions: Sequence[Mapping[str, Any]], *, is_measured: bool) -> dict[str, str | None]:
    """Return the precision that reads the fewest bytes and the one measured as fastest; both must fit into memory."""
    fitting = [entry for entry in precisions if entry["fits"]]
    timed = [entry for entry in fitting if is_measured and "pass_seconds" in entry]
    by_bytes = min(fitting, key=lambda entry: entry["pass_bytes"], default={"precision": None})
    by_time = min(timed, key=lambda entry: entry["pass_seconds"], default={"precision": None})
    return {"by_bytes": by_bytes["precision"], "measured": by_time["precision"]}


def public_name(folder: Path) -> str | None:
    """Return the name of a bundled model or a model on the Hub; None for other folders, which may be private."""
    if folder.name in BUNDLED_NAMES and folder.resolve().parent == BUNDLED.resolve():
        return folder.name
    return hub_name(folder)


def self_test_prompts(target: str | None, audio: AudioConfig | None) -> Sequence[str | AudioFrames]:
    """Return prompts for a self-test.

    A bundled target is tested with two prompts from each bundled file, a speech model with the bundled recording, and
    any other target with generic prompts. If the `speech` subpackage is missing, there is no prompt for speech models,
    because the recording cannot be read.
    """
    if audio is not None:
        if not has_subpackage("speech"):
            return ()
        from ..speech.recording import open_audio

        frames = open_audio(PROMPTS / "jfk.wav", [audio.num_mel_bins]).frames(0, audio.window_frames)
        return [AudioFrames(mx.array(frames))]
    files = sorted(PROMPTS.glob("*.txt")) if target in BUNDLED_NAMES else []
    if not files:
        return GENERIC_PROMPTS
    return [prompt for path in files for prompt in read_prompts(path)[:2]]

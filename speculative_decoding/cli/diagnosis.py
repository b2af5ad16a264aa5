"""What --doctor finds out, as one JSON object: without paths, names of users or hosts, and prompts."""

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

from .. import checkpoints, models
from ..decoding.divergence import first_divergence
from ..decoding.prompt import build_decoder_prompt
from ..draft_length.calibration import CALIBRATION_VARIABLE
from ..draft_length.costs import RoundCosts
from ..draft_length.recommendation import recommend_length
from ..errors import InputError
from ..loading.load import BUNDLED, HUB_NAME, Storage, checked_config, transformed
from ..models.base import checked_sources
from ..models.draft_head import DraftHead
from ..models.kernel_checks import KernelCheck, kernel_checks
from ..session import Session
from .common import read_prompts, say
from .device import device_facts, mlx_notes, tf32, versions
from .drafting import Plan
from .models import BUNDLED_PAIR
from .verify import PROMPTS

FORMAT = 1
ACCEPTANCES = (0.5, 0.7, 0.9)
HEADROOM = 1.1  # of the weights: caches, and a copy of the largest matrix while it is loaded
MOST_ON_CPU = 500e6  # bytes; MLX has no fast 16-bit or quantised product on a CPU
MOST_DRAFTED, TOKENS, PROMPTS_PER_FILE = 5, 40, 2
BUNDLED_NAMES = {*BUNDLED_PAIR, "t5-web-docs-draft"}
GENERIC = (
    "translate English to German: The house is small, but the garden is large.",
    "summarize: The council met on Monday. It approved the new library and postponed the vote on the bridge.",
    "The quick brown fox jumps over the lazy dog. The dog sleeps.",
    "What is the capital of France?",
)


@dataclass(frozen=True)
class Precision:
    """dtype and quantize as `open_model` takes them. is_tested: whether a model is loaded in it."""

    name: str
    dtype: str | None = None
    quantize: int | None = None
    is_tested: bool = True


@dataclass(frozen=True)
class Stored:
    """What the weights take as they would be loaded, by their shapes. pass_bytes: of those that a pass of the decoder
    reads. bits: None where nothing is quantised.
    """

    nbytes: int
    pass_bytes: int
    dtype: str
    bits: int | None

    @property
    def name(self) -> str:
        return self.dtype if self.bits is None else f"{self.bits} bits"


def diagnose(plan: Plan) -> dict[str, Any]:
    device, folder = device_facts(), plan.folders.target
    pair = plan.open()
    build_decoder_prompt(pair.target, pair.tokenizer, plan.options)  # raises for a language that is missing
    draft, own = pair.opened_draft, stored(folder, plan.folders.dtype)
    draft_bytes = 0 if draft is None else sum(draft.checkpoint.info(name).nbytes for name in draft.checkpoint)
    config = pair.target.config.decoder
    names = "vocab_size", "d_model", "decoder_layers"
    sizes = {name: getattr(pair.target.config, name) for name in names}
    sizes |= {"d_ff": config.d_ff, "heads": config.num_heads, "head_width": config.head_dim}
    found: dict[str, Any] = {
        "format": FORMAT,
        "versions": versions(),
        "device": device,
        "tf32": tf32(device),
        "notes": mlx_notes(device, versions()["mlx"]),
        "calibration": "given" if os.environ.get(CALIBRATION_VARIABLE) else "measured",
        "target": {"name": public_name(folder), "architecture": type(pair.target).__name__, "precision": own.name}
        | {"bytes": own.nbytes, **sizes},
        "draft": None,
    }
    if draft is not None and plan.folders.draft is not None:
        kind = "draft head" if isinstance(draft.model, DraftHead) else "draft model"
        found["draft"] = {"name": public_name(plan.folders.draft), "kind": kind, "bytes": draft_bytes}
    del pair, draft
    prompts = list(chosen_prompts(public_name(folder)))
    precisions = []
    for precision in precisions_of(own):
        entry = sized(precision, own, plan, draft_bytes, device)
        if entry.get("skipped") is None and precision.is_tested:
            say(f"{precision.name}: measuring passes, checking kernels and drafts ...")
            with warnings.catch_warnings():
                if precision.name != own.name:
                    warnings.simplefilter("ignore")  # said already
                entry |= tested(plan, precision, prompts, is_tf32=bool(found["tf32"]))
            gc.collect()
            mx.clear_cache()
        precisions.append(entry)
    found |= {"precisions": precisions, "fastest": fastest(precisions, found["calibration"] == "measured")}
    return found | {"passed": all(passed(each) for each in precisions)}


def precisions_of(own: Stored) -> list[Precision]:
    """The one that is used, and those to compare with it."""
    others = [Precision("float32", "float32"), Precision("bfloat16", "bfloat16")]
    others += [Precision("8 bits", quantize=8, is_tested=False), Precision("4 bits", quantize=4)]
    return [Precision(own.name), *(each for each in others if each.name != own.name)]


def stored(folder: Path, dtype: str | None, quantize: int | None = None) -> Stored:
    """Without reading data. Raises `InputError` for what cannot be."""
    if dtype is None and mx.default_device() == mx.Device(mx.cpu):
        dtype = "float32"  # as `open_model`
    raw, checkpoint = transformed(checked_config(folder), checkpoints.read(folder), Storage(dtype, quantize, 64))
    model = models.build(raw, checkpoint)
    sources = checked_sources(model, checkpoint)
    infos = [checkpoint.info(name) for name in {name for names in sources.values() for name in names}]
    bits = [module.bits for module in model.modules() if isinstance(module, nn.QuantizedLinear)]
    floats: dict[str, int] = {}
    for info in infos:
        if mx.issubdtype(info.dtype, mx.floating):
            name = str(info.dtype).removeprefix("mlx.core.")
            floats[name] = floats.get(name, 0) + info.nbytes
    usual = max(floats, key=floats.__getitem__)
    read = [names for path, names in sources.items() if is_read(path, has_head="head.weight" in sources)]
    read_bytes = sum(checkpoint.info(name).nbytes for names in read for name in names)
    return Stored(sum(info.nbytes for info in infos), read_bytes, usual, max(bits, default=None))


def is_read(path: str, *, has_head: bool) -> bool:
    """Whether a pass of the decoder reads this parameter: cross keys and values are computed once per source."""
    part = path.split(".")[0]
    return part == ("head" if has_head else "embedding") or (part == "decoder" and "cross_attention.kv" not in path)


def sized(precision: Precision, own: Stored, plan: Plan, draft_bytes: int, device: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the weights fit, and why a precision is skipped."""
    entry: dict[str, Any] = {"precision": precision.name, "bytes": None, "pass_bytes": None}
    entry |= {"fits": None, "skipped": None}
    if precision.name == own.name:
        size = own
    elif own.bits is not None:
        return entry | {"skipped": "the folder is quantised already"}
    else:
        try:
            size = stored(plan.folders.target, precision.dtype or plan.folders.dtype, precision.quantize)
        except InputError as error:
            say(f"{precision.name}: {error}")  # which may name a path
            return entry | {"skipped": "this model cannot be stored so"}
    entry |= {"bytes": size.nbytes, "pass_bytes": size.pass_bytes}
    entry["fits"] = HEADROOM * (size.nbytes + draft_bytes) <= device["memory_limit"]
    if not entry["fits"]:
        entry["skipped"] = "does not fit into memory"
    elif precision.name != own.name and device["kind"] == "CPU" and size.nbytes > MOST_ON_CPU and precision.is_tested:
        entry["skipped"] = "too slow on a CPU for a model of this size"
    return entry


def tested(plan: Plan, precision: Precision, prompts: Sequence[str], *, is_tf32: bool) -> dict[str, Any]:
    """With the models loaded in this precision."""
    plan = replace(plan, folders=replace(plan.folders, dtype=precision.dtype or plan.folders.dtype))
    with plan.session(plan.folders.open(quantize=precision.quantize)) as session:
        checks = kernel_checks(session.model, tf32=is_tf32)
        return {
            **measured(session),
            "kernels": [kernel(name, checks) for name in dict.fromkeys(each.kernel for each in checks)],
            "self_test": self_test(session, prompts),
        }


def measured(session: Session) -> dict[str, Any]:
    """What passes and drafts of a single row cost, and what that promises."""
    options = session.options_with({})
    calibration = session.planner.calibration(options)
    fast, exact, price = calibration.costs(1), calibration.exact_costs(1), session.price(options)
    return {
        "pass_seconds": fast.baseline,
        "passes": [
            {"width": width, "seconds": seconds, "relative": seconds / fast.baseline, "exact": width in exact.passes}
            for width, seconds in fast.passes.items()
        ],
        "exact_widths": [*calibration.exact_widths],
        "exactness": {"possible": price.is_possible, "price": price.share, "default": price.is_worth_it},
        "draft_seconds": None
        if session.draft_model is None
        else {"step": fast.step, "start": fast.start, "source": fast.prefill},
        "recommended": [
            {"acceptance": rate, "passes": name, **recommendation(costs, fast, rate, session)}
            for name, costs in (("fast", fast), ("exact", exact))
            if costs.passes
            for rate in ACCEPTANCES
        ],
    }


def recommendation(costs: RoundCosts, fast: RoundCosts, rate: float, session: Session) -> dict[str, Any]:
    has_steps = session.draft_model is not None
    found = recommend_length(costs, [rate], baseline=fast.baseline, has_steps=has_steps)
    return {"draft_length": found.length, "speedup": found.speedup}


def kernel(name: str, checks: Iterable[KernelCheck]) -> dict[str, Any]:
    """All checks of one kernel; the deviation is that of the worst."""
    own = [each for each in checks if each.kernel == name]
    failed = [each for each in own if not each.passed]
    worst = max((each.deviation if math.isfinite(each.deviation) else math.inf for each in own), default=0.0)
    return {
        "kernel": name,
        "checks": len(own),
        "failed": [each.shape for each in failed],
        "worst_deviation": worst if math.isfinite(worst) else None,
        "tolerance": own[0].tolerance,
    }


def self_test(session: Session, prompts: Sequence[str]) -> dict[str, Any]:
    """Greedy decoding in exact passes, with a draft and without."""
    found: dict[str, Any] = {"prompts": len(prompts), "identical": 0, "tokens": 0, "drafted": 0, "accepted": 0}
    widest = max(session.planner.calibration(session.options_with({})).exact_costs(1).passes, default=1)
    length = min(MOST_DRAFTED, widest - 1)
    found |= {"draft_length": length, "differences": [], "skipped": None}
    if not length:
        return found | {"skipped": "no exact pass has room for a draft"}
    for number, prompt in enumerate(prompts, start=1):
        common: dict[str, Any] = {"strict": True, "max_tokens": TOKENS}
        try:
            plain = session.generate(prompt, drafter="none", **common)
            drafted = session.generate(prompt, num_draft_tokens=length, **common)
        except InputError as error:
            say(f"self-test, prompt {number}: {error}")
            found["differences"].append({"prompt": number, "token": None, "logit_gap": None})
            continue
        options = session.options_with(common)
        difference = first_divergence(session.model, session.tokenizer, prompt, plain.tokens, drafted.tokens, options)
        found["tokens"] += len(drafted.tokens)
        found["drafted"] += drafted.stats.drafted_tokens
        found["accepted"] += drafted.stats.accepted_tokens
        if difference is None:
            found["identical"] += 1
        else:
            gap = difference.logit_gap
            gap = gap if gap is not None and math.isfinite(gap) else None
            found["differences"].append({"prompt": number, "token": difference.position, "logit_gap": gap})
    return found


def passed(entry: Mapping[str, Any]) -> bool:
    """Whether nothing that was tested in this precision failed."""
    return not entry.get("self_test", {}).get("differences") and not any(
        each["failed"] for each in entry.get("kernels", ())
    )


def fastest(precisions: Sequence[Mapping[str, Any]], is_measured: bool) -> dict[str, str | None]:
    """Of those that fit: by bytes, and by a pass over one position where that was measured."""
    fitting = [each for each in precisions if each["fits"]]
    timed = [each for each in fitting if is_measured and "pass_seconds" in each]
    by_bytes = min(fitting, key=lambda each: each["pass_bytes"], default={"precision": None})
    by_time = min(timed, key=lambda each: each["pass_seconds"], default={"precision": None})
    return {"by_bytes": by_bytes["precision"], "measured": by_time["precision"]}


def public_name(folder: Path) -> str | None:
    """Of a bundled model, or of one on the Hub; None for any other folder, whose name may be private."""
    if folder.name in BUNDLED_NAMES and folder.resolve().parent == BUNDLED.resolve():
        return folder.name
    path = folder.resolve()
    if len(path.parents) > 1 and path.parent.name == "snapshots":  # of the Hub's cache
        name = path.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        return name if HUB_NAME.fullmatch(name) else None
    return None


def chosen_prompts(target: str | None) -> Iterable[str]:
    files = sorted(PROMPTS.glob("*.txt")) if target in BUNDLED_NAMES else []
    if not files:
        return GENERIC
    return [prompt for path in files for prompt in read_prompts(path)[:PROMPTS_PER_FILE]]

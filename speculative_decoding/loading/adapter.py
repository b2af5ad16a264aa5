"""Merges LoRA adapters, which are folders of low-rank updates saved by PEFT, into their base models, as PEFT would.

Tensor names follow PEFT 0.21 and older: `base_model.model.`, the module's name in transformers, and one of `PARTS`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from .. import models
from ..checkpoints import ADAPTER_CONFIG, ADAPTER_FORMATS, FORMATS, Checkpoint, reader
from ..checkpoints.files import open_regular, read_json_object
from ..checkpoints.lora import MergedCheckpoint, Rows, Source, Update
from ..errors import CheckpointError, InputError, note
from ..models.config import require
from ..models.tensors import LOGITS_BIAS, TokenTables
from ..sampling.values import Int, ListOf, Number, OrNone, Text
from .names import shown_name
from .tokenizer_base import SIDE_FILES, TOKENIZER_FILES

PREFIX = "base_model.model."
WAY_OUT = "merge it with PEFT (merge_and_unload), and use the result as --model"
# Fields that enable LoRA variants whose result is not simply a weight plus an update
UNSUPPORTED = {
    "use_dora": "DoRA (use_dora)",
    "lora_bias": "LoRA biases (lora_bias)",
    "layer_replication": "layer replication",
    "target_parameters": "LoRA of parameters (target_parameters)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    **{name: f"the LoRA variant {name}" for name in ("use_qalora", "use_bdlora")},
    **{name: f"the LoRA variant {name}" for name in ("arrow_config", "kasa_config", "monteclora_config")},
}
# Values of init_lora_weights that make PEFT change the base model before training
CHANGES_BASE = re.compile(r"(pissa|corda|olora|loftq|lora_ga|mica)", re.IGNORECASE)
MAX_WILDCARDS = 4  # per pattern; a malicious pattern with more could take too long to match
PARTS = re.compile(
    r"(?P<module>.+)\.(?:"
    r"lora_(?P<matrix>[AB])\.weight"
    r"|lora_embedding_(?P<embedding>[AB])"
    r"|token_adapter\.(?P<rows>trainable_tokens_delta)"
    r"|(?:token_adapter\.base_layer|base_layer|original_module)\.(?P<base>weight|bias)"
    r"|modules_to_save\.(?P<saved>weight|bias)"
    r")"
)


@dataclass(frozen=True)
class AdapterConfig:
    """The fields of adapter_config.json that merging needs.

    base: the name or folder of the base model, or None.
    rank_pattern, alpha_pattern: values that replace `rank` and `alpha`, keyed by a regular expression for module names.
    modules_to_save: name suffixes of the modules that were trained in full.
    token_indices: trained rows of embeddings, keyed by a suffix of the module's name; "" means any embedding.
    """

    base: str | None
    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    modules_to_save: Sequence[str] = ()
    token_indices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> AdapterConfig:
        """Parse the file. Raises `InputError` for methods other than LoRA, and `CheckpointError` for invalid fields."""
        raw = {name: value for name, value in read_json_object(path).items() if value is not None}
        method = raw.get("peft_type")
        if method != "LORA":
            raise InputError(f"{path}: PEFT method {method!r} is not supported, only LORA", way_out=WAY_OUT)
        refused = [name for field_name, name in UNSUPPORTED.items() if raw.get(field_name)]
        if (bias := raw.get("bias", "none")) != "none":
            refused.append(f"LoRA biases (bias {bias!r})")
        if CHANGES_BASE.match(initial := str(raw.get("init_lora_weights", ""))):
            refused.append(f"LoRA that changes the base (init_lora_weights {initial!r})")
        if refused:
            raise InputError(f"{path}: {refused[0]} is not supported", way_out=WAY_OUT)

        def checked(name: str, value: Any, default: Any) -> Any:
            return require(name, value, raw.get(name, default), str(path))

        def pattern(name: str, value: Any) -> Mapping[str, Any]:
            found = raw.get(name, {})
            if not isinstance(found, dict):
                raise CheckpointError(f"{path}: {name!r} must be an object")
            for key in found:
                check_pattern(key, path)
            return {key: require(f"{name} of {key}", value, each, str(path)) for key, each in found.items()}

        base = raw.get("base_model_name_or_path")
        indices = raw.get("trainable_token_indices", {})
        indices = indices if isinstance(indices, dict) else {"": indices}
        rank, alpha = Int(1, 1 << 16), Number(-1e9, 1e9)
        return cls(
            base if isinstance(base, str) and base else None,
            checked("r", rank, 8),
            checked("lora_alpha", alpha, 8),
            raw.get("use_rslora") is True,
            pattern("rank_pattern", rank),
            pattern("alpha_pattern", alpha),
            checked("modules_to_save", OrNone(ListOf(Text())), ()),
            {
                str(module): require("trainable_token_indices", ListOf(Int(0, 1 << 24)), each, str(path))
                for module, each in indices.items()
            },
        )

    def scale(self, module: str, rank: int) -> float:
        """Return the scale of a module's update. Raises `CheckpointError` if `rank` differs from the config's."""
        expected = matching(self.rank_pattern, module, self.rank)
        if rank != expected:
            raise CheckpointError(f"{ADAPTER_CONFIG}: {module} has rank {expected}, but its tensors have {rank}")
        alpha = matching(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def check_pattern(pattern: str, path: Path) -> None:
    """Raise `CheckpointError` for a regular expression that is invalid or may take exponential time."""
    is_simple = len(pattern) <= 1000 and len(re.findall(r"[*+{]", pattern)) <= MAX_WILDCARDS
    problem = "too complex"
    if is_simple and not re.search(r"\)[*+{?]", pattern):
        try:
            re.compile(pattern)
            return
        except (re.error, RecursionError, OverflowError) as error:
            problem = str(error)
    raise CheckpointError(f"{path}: the pattern {pattern[:80]!r} cannot be used ({problem})")


def matching(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Like PEFT's `get_pattern_key`, return the value of the first pattern that matches a module's name."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


@dataclass(frozen=True)
class Adapter:
    """An adapter in a folder. Its tensors are read on demand."""

    folder: Path
    config: AdapterConfig
    tensors: Checkpoint

    @classmethod
    def open(cls, folder: Path) -> Adapter:
        """Open a folder. Raises `InputError` or `CheckpointError` if it contains no adapter that can be merged."""
        if not (folder / ADAPTER_CONFIG).is_file():
            raise InputError(
                f"{shown_name(folder)}: has no {ADAPTER_CONFIG}", "adapter", "name the folder that PEFT saved"
            )
        config = AdapterConfig.read(folder / ADAPTER_CONFIG)
        for name in ADAPTER_FORMATS:
            if (folder / name).is_file():
                return cls(folder, config, reader(name)(folder / name))
        raise InputError(
            f"{shown_name(folder)}: has no weights ({', '.join(ADAPTER_FORMATS)})", "adapter", "save the adapter again"
        )

    @property
    def has_vocabulary(self) -> bool:
        """Whether the folder contains a tokenizer, rather than only tokenizer settings."""
        return any((self.folder / name).is_file() for name in TOKENIZER_FILES if name not in SIDE_FILES)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the configuration and the weights."""
        found = hashlib.sha256()
        for path in (self.folder / ADAPTER_CONFIG, *(self.folder / name for name in ADAPTER_FORMATS)):
            if path.is_file():
                with open_regular(path) as file:
                    found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()

    def merge(self, raw: Mapping[str, Any], base: Checkpoint) -> tuple[Mapping[str, Any], Checkpoint]:
        """Return the config.json and checkpoint of the base with this adapter merged in. Reads no tensor data.

        Args:
            raw: The base's config.json, as `read_folder` returns it.
            base: The base's checkpoint, as `Architecture.adapt` returns it.

        Raises:
            InputError: The base model is quantized or rescaled.
            CheckpointError: A tensor of the adapter does not fit the base.
        """
        is_rescaled = any(raw.get(name, 1) != 1 for name in ("residual_scale", "value_scale"))
        if is_rescaled or any(name.endswith(".scales") for name in base):
            state = "rescaled for float16" if is_rescaled else "quantized"
            raise InputError(
                f"{self.folder}: cannot be merged into {base}, which is {state}",
                "adapter",
                "convert the original and the adapter together: convert.py --model ORIGINAL --adapter "
                f"{self.folder}{'' if is_rescaled else ' --quantize BITS'}",
            )
        merging = Merging(self, base, models.find(raw).tables(base.keys()))
        for name in self.tensors:
            merging.read(name)
        sources, rows = merging.result()
        if tied := merging.tied_updates:
            note(
                f"{self.folder}: {tied[0]} shares its tensor with other modules of the base, so the update changes "
                "them too, as PEFT's merge_and_unload does; the adapter may have been trained without that"
            )
        if rows is not None:
            raw = models.with_vocab_size(raw, rows)
            if LOGITS_BIAS in sources:
                sources[LOGITS_BIAS] = replace(sources[LOGITS_BIAS], length=rows)
        return raw, MergedCheckpoint(base, self.tensors, sources)


class Merging:
    """Collects the changes that an adapter makes to each tensor of a base model.

    A model's tables may be tied, that is, the embedding and the head share one tensor. As in PEFT, an update to one
    module changes every module that shares its tensor. A module in `modules_to_save` gets a separate tensor.

    Attributes:
        tied_updates: the modules whose update also changes other modules.
    """

    def __init__(self, adapter: Adapter, base: Checkpoint, tables: TokenTables) -> None:
        self._adapter = adapter
        self._base = base
        self._tables = tables
        # The name of each table -> the key of its tensor in `_own`.
        self._used = dict.fromkeys(tables.names, tables.embedding)
        self._used |= {name: name for name in (tables.source, tables.head) if name is not None and name in base}
        self._own = {name: Source(name) for name in base}  # the source of each tensor
        self._saved: dict[str, str] = {}  # tables that get a separate tensor
        self._updates: dict[str, dict[str, str]] = {}  # module -> "A" or "B" -> tensor
        self._rows: dict[str, str] = {}  # module -> tensor
        self._embeddings = set[str]()  # modules whose updates are for an embedding
        self.tied_updates: list[str] = []

    def read(self, tensor: str) -> None:
        """Record what an adapter tensor changes. Raises `CheckpointError` if it does not fit any tensor of the base."""
        path = tensor.removeprefix(PREFIX)
        match = PARTS.fullmatch(path)
        if match is None:
            if "lora_" in path:
                variant = "DoRA" if "magnitude" in path else "this LoRA variant"
                raise InputError(f"{self._adapter.tensors}: {tensor!r}: {variant} is not supported", way_out=WAY_OUT)
            self._replace(tensor, path)
        elif letter := match["matrix"] or match["embedding"]:
            module = match["module"]
            self._find(tensor, f"{module}.weight")
            self._updates.setdefault(module, {})[letter] = tensor
            if match["embedding"]:
                self._embeddings.add(module)
        elif match["rows"]:
            self._find(tensor, f"{match['module']}.weight")
            self._rows[match["module"]] = tensor
        elif match["base"]:
            found = self._find(tensor, f"{match['module']}.{match['base']}")
            self._own[self._used.get(found, found)] = Source(tensor, is_of_adapter=True)
        elif f"{PREFIX}{match['module']}.{match['saved']}" not in self._adapter.tensors:
            self._replace(tensor, f"{match['module']}.{match['saved']}")

    def _find(self, tensor: str, name: str) -> str:
        """Return the base's name for the tensor called `name` in transformers. The error message names `tensor`."""
        for each in (name, name.removeprefix("model."), name.replace(".text_model.", ".", 1)):
            if each in self._used or each in self._base:
                return each
        raise CheckpointError(
            f"{self._adapter.tensors}: tensor {tensor!r} fits no tensor of {self._base}; use the adapter with the "
            f"model that it was trained for{(self._adapter.config.base and f', {self._adapter.config.base}') or ''}"
        )

    def _replace(self, tensor: str, name: str) -> None:
        found = self._find(tensor, name)
        module = name.rpartition(".")[0]
        if found in self._used and any(module.endswith(end) for end in self._adapter.config.modules_to_save):
            self._saved[found] = tensor
        else:
            self._own[self._used.get(found, found)] = Source(tensor, is_of_adapter=True)

    def result(self) -> tuple[dict[str, Source], int | None]:
        """Return the source of each tensor, and the number of rows of the decoder's embedding, if known."""
        used = dict(self._used)
        for name, tensor in self._saved.items():
            used[name] = f"{PREFIX}{name}"  # a name that does not occur in the base
            self._own[used[name]] = Source(tensor, is_of_adapter=True)
        for module, matrices in self._updates.items():
            name = self._find(next(iter(matrices.values())), f"{module}.weight")
            self._add(used.get(name, name), updates=(self._update(module, matrices),))
            if list(used.values()).count(used.get(name, "")) > 1:
                self.tied_updates.append(module)
        for module, tensor in self._rows.items():
            name = self._find(tensor, f"{module}.weight")
            self._add(used.get(name, name), rows=(Rows(self._indices(module, tensor), tensor),))
        return self._unique(used), self._length(used.get(self._tables.decoder))

    def _unique(self, used: Mapping[str, str]) -> dict[str, Source]:
        """Return the source of each tensor in a checkpoint without duplicates, as `Architecture.adapt` returns it.

        used: the name of each table -> the key of its tensor in `self._own`.

        Raises `CheckpointError` if the merged encoder has a separate table that the family does not support.
        """
        tables, own = self._tables, self._own
        are_tables = {*tables.names, *used.values()}
        found = {name: tensor for name, tensor in own.items() if name not in are_tables}
        embedding = used[tables.decoder]
        if tables.source is None and tables.shared is not None and used[tables.shared] != embedding:
            raise CheckpointError("adapter: encoder and decoder have different tables, which is not supported")
        for name in (tables.source, tables.head):
            if name is not None and (used[name] != embedding or name in own):
                found[name] = own[used[name]]
        if embedding in own:
            found[tables.embedding] = own[embedding]
        return found

    def _add(self, name: str, updates: Sequence[Update] = (), rows: Sequence[Rows] = ()) -> None:
        source = self._own[name]
        self._own[name] = replace(source, updates=(*source.updates, *updates), rows=(*source.rows, *rows))

    def _update(self, module: str, matrices: Mapping[str, str]) -> Update:
        """Return a module's update. Raises `CheckpointError` if its matrices do not fit together."""
        tensors = self._adapter.tensors
        if len(matrices) != 2:
            raise CheckpointError(f"{tensors}: tensor {next(iter(matrices.values()))!r} has no counterpart")
        down, up = (tensors.info(matrices[letter]).shape for letter in "AB")
        if len(down) < 2 or len(up) < 2 or down[0] != up[1] or math.prod(up[2:]) != 1:
            raise CheckpointError(f"{tensors}: {module} has matrices that do not fit together (shapes {down} and {up})")
        scale = self._adapter.config.scale(module, down[0])
        return Update(matrices["A"], matrices["B"], scale, is_embedding=module in self._embeddings)

    def _indices(self, module: str, tensor: str) -> tuple[int, ...]:
        for end, indices in self._adapter.config.token_indices.items():
            if module.endswith(end):
                return indices
        raise CheckpointError(f"{self._adapter.tensors}: {ADAPTER_CONFIG} has no token indices for {tensor!r}")

    def _length(self, name: str | None) -> int | None:
        if name is None or name not in self._own:
            return None
        source = self._own[name]
        shape = (self._adapter.tensors if source.is_of_adapter else self._base).info(source.name).shape
        return shape[0] if shape else None


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains an adapter rather than a model."""
    indices = (f"{name}.index.json" for name in FORMATS)
    has_weights = any((folder / name).is_file() for name in chain(FORMATS, indices))
    return (folder / ADAPTER_CONFIG).is_file() and not has_weights


def refuse_adapter(folder: Path) -> None:
    """If a folder given as a model is an adapter, raise an `InputError` that explains how to load it."""
    if not is_adapter(folder):
        return
    base = read_json_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    name = base if isinstance(base, str) and base else "BASE"
    of = f" of {base}" if name == base else ""
    adapter = shown_name(folder)
    raise InputError(
        f"{adapter} is an adapter{of}, not a model",
        way_out=f"name both: --model {name} --adapter {adapter}, or in Python load({name!r}, adapter={adapter!r})",
    )

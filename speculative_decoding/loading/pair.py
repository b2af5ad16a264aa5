"""Opens a target and its draft, given their folders or names, for Python callers and all commands."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, Message, note
from ..models import memory_budget
from ..models.base import EncoderDecoder
from ..sampling.options import short_repr, validate
from ..sampling.values import Text
from . import manifest
from .draft_head import DraftHeadHandle, open_draft
from .load import ModelHandle, Shard, open_model
from .names import UNPACKED, shown_name
from .tokenizer_base import TOKENIZER_FILES

if TYPE_CHECKING:
    from .self_draft import SelfDraft

# Files that are not only a tokenizer's, but determine how it is read; the last two are of Argos Translate packages
TOKENIZER_SETTINGS = ("config.json", "model/config.json", "metadata.json")
SELF_DRAFTS = {"self-4bit": 4, "self-8bit": 8}  # values of `draft` that mean a quantized copy of the target -> bits


@dataclass(frozen=True)
class DraftPrompt:
    """What a draft model with another vocabulary reads in place of the target's prompt.

    prefix: Text to put before the prompt, in place of the target's prefix; None keeps the target's prefix.
    src_lang, tgt_lang: The languages, in the notation of the draft model's tokenizer; None derives them from the
        target's.
    """

    prefix: str | None = None
    src_lang: str | None = None
    tgt_lang: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                validate(f"draft_{name}", Text(may_be_empty=name == "prefix"), value)

    def require_effect(self, *, drafts_text: bool, is_speech: bool) -> None:
        """Raise `InputError` for a setting that would have no effect.

        Args:
            drafts_text: Whether the draft model has another vocabulary.
            is_speech: Whether the models read speech, in which case there is no prompt.
        """
        for name, value in vars(self).items():
            if value is not None and (is_speech or not drafts_text):
                reason = "on speech" if is_speech else "without a draft model of another vocabulary"
                raise InputError(f"{short_repr(value)} has no effect {reason}", f"draft_{name}", "leave it out")


@dataclass(frozen=True)
class ModelPair:
    """A target, and its draft model or draft head, if any. Call `load_weights` before using them.

    drafts_text: whether the draft model has another vocabulary, in which case its output's text serves as the draft.
    """

    target: ModelHandle
    draft: ModelHandle | SelfDraft | DraftHeadHandle | None = None
    drafts_text: bool = False

    @property
    def folders(self) -> dict[str, str | None]:
        """The models' folders or Hub names, as shown in the statistics."""
        draft = None if self.draft is None else shown_name(self.draft.folder)
        names = {"model": shown_name(self.target.folder), "draft_model": draft}
        if self.target.adapter is not None:
            names["adapter"] = shown_name(self.target.adapter.folder)
        if self.target.named_tokenizer is not None:
            names["tokenizer"] = shown_name(self.target.named_tokenizer)
        return names

    def load_weights(self, given: Collection[str] = ()) -> None:
        """Load all weights. A draft model whose encoder is identical to the target's shares the target's encoder.

        Warns about unsupported fields of the target's generation_config.json, except those that an option in `given`
        replaces.
        """
        model = self.target.model
        nbytes = self.target.nbytes + (self.draft.nbytes if self.draft else 0)
        if not memory_budget.fits(nbytes, available := memory_budget.available_memory()):
            memory_budget.note_slow(shown_name(self.target.folder), nbytes, available)
        self.target.load_weights()
        if ignored := model.generation_config.note(given):
            note(
                Message(
                    "{folder}, generation_config.json: {ignored}",
                    folder=shown_name(self.target.folder),
                    ignored=ignored,
                )
            )
        if self.draft is not None:
            self.draft.load_weights()
        if isinstance(self.draft, ModelHandle):
            from ..models.shared_encoder import share_encoder

            share_encoder(model, self.draft.model)
        elif isinstance(self.draft, DraftHeadHandle):
            model.keep_full_cross_attention()


def open_pair(
    target: str | os.PathLike[str],
    draft: str | os.PathLike[str] | None = None,
    *,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int | None = None,
    gguf_file: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    shard: Shard | None = None,
) -> ModelPair:
    """Open a target and its draft, and check that they are compatible, without reading weights.

    Args:
        target: A model's folder or name.
        draft: A draft model, a draft head of the target, or one of `SELF_DRAFTS`.
        dtype: The dtype to compute in.
        quantize: Bits per weight for the target.
        group_size: Columns per group of quantized weights (default: 64).
        gguf_file: A GGUF file to use instead of the weights in the target's folder.
        adapter: A LoRA adapter to merge into the target.
        tokenizer: A folder or a model on the Hub whose tokenizer replaces the target's own.
        shard: Reduces the target to this process's part, if several processes share it.

    Raises:
        InputError: A model does not exist, the draft is incompatible with the target, or an argument has no effect.
        CheckpointError: A file is damaged or unsupported.
    """
    bits = SELF_DRAFTS.get(draft) if isinstance(draft, str) else None
    if group_size is not None and quantize is None and bits is None:
        raise InputError(
            Message("{size} has no effect without {quantize}", size=group_size),
            "group_size",
            "give 4 or 8 bits, or leave it out",
        )
    if bits is not None:
        require_whole_target(str(draft), quantize, shard)
    group_size = 64 if group_size is None else group_size
    opened = open_model(
        target,
        dtype=dtype,
        quantize=quantize,
        group_size=group_size,
        gguf_file=gguf_file,
        adapter=adapter,
        tokenizer=tokenizer,
        shard=shard,
    )
    if draft is None:
        return ModelPair(opened)
    if bits is not None:
        from .self_draft import open_self_draft

        return ModelPair(opened, open_self_draft(opened, bits, group_size))
    opened_draft = open_draft(draft, opened, dtype=dtype)
    drafts_text = False
    if isinstance(opened_draft, ModelHandle):
        require_draft(opened.model, opened_draft.model)
        drafts_text = token_difference(opened.model, opened_draft.model) is not None
    return ModelPair(opened, opened_draft, drafts_text)


def require_whole_target(draft: str, quantize: int | None, shard: Shard | None) -> None:
    """Raise `InputError` for settings with which a target cannot be copied to one of `SELF_DRAFTS`."""
    if quantize is not None:
        way_out = Message("leave out {quantize} {value}", value=quantize)
        raise InputError(f"{draft!r} needs a target that is not quantized", "draft", way_out)
    if shard is not None:
        raise InputError(f"{draft!r} needs a target in one process", "draft", "choose a draft model or a draft head")


def require_draft(target: EncoderDecoder, draft: EncoderDecoder) -> None:
    """Raise `InputError` unless the models have the same tokens, or one's text can serve as a draft for the other."""
    if (target.audio is None) != (draft.audio is None):
        read, expected = ("text", "speech") if draft.audio is None else ("speech", "text")
        raise InputError(
            f"draft model: reads {read}, and the target reads {expected}; choose a draft that reads {expected}"
        )
    if target.audio is not None and draft.audio is not None and target.audio.window_frames != draft.audio.window_frames:
        raise InputError(
            f"draft model: its windows have {draft.audio.window_frames} frames, the target's have "
            f"{target.audio.window_frames}; choose a draft with the same windows"
        )


def require_same_tokens(target: EncoderDecoder, draft: EncoderDecoder) -> None:
    """Raise `InputError` unless every token id has the same meaning in both models."""
    if (difference := token_difference(target, draft)) is not None:
        raise InputError(f"draft model: {difference}; choose a draft of the same family")


def token_difference(target: EncoderDecoder, draft: EncoderDecoder) -> str | None:
    """Describe the first difference between two models' tokens. Returns None if every id has the same meaning."""
    # Speech models never read padding, and Whisper models with the same vocabulary may use different ids for padding.
    for name in ("decoder_start_token_id", "eos_token_ids", *(("pad_token_id",) if target.audio is None else ())):
        expected, found = getattr(target.config, name), getattr(draft.config, name)
        if found != expected:
            return f"its {name} is {found}, the target's is {expected}"
    if target.pieces is None or draft.pieces is None:  # without a tokenizer, there are no pieces to compare
        return None
    if target.pieces == draft.pieces:
        return None
    for token in sorted(target.pieces.keys() | draft.pieces.keys()):
        expected, found = target.pieces.get(token), draft.pieces.get(token)
        if found != expected:
            return f"token {token} is {found!r}, in the target it is {expected!r}"
    return None


def fingerprint(handle: ModelHandle | SelfDraft | DraftHeadHandle) -> str:
    """Return a hash of a model's `files_of`, and of its adapter and its tokenizer if they were named."""
    if not isinstance(handle, ModelHandle | DraftHeadHandle):
        return hashlib.sha256(f"{fingerprint(handle.target)} {handle.bits} {handle.group_size}".encode()).hexdigest()
    files = files_of(handle.folder)
    if isinstance(handle, ModelHandle) and handle.adapter is not None:
        files = {**files, "adapter": handle.adapter.fingerprint}
    if isinstance(handle, ModelHandle) and handle.named_tokenizer is not None:
        named = handle.named_tokenizer
        names = (*TOKENIZER_FILES, *TOKENIZER_SETTINGS)
        hashes = {name: manifest.sha256(named / name) for name in names if (named / name).is_file()}
        files = {**files, "tokenizer": [handle.tokenizer.vocabulary.fingerprint, hashes]}
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def files_of(folder: Path) -> Mapping[str, Any]:
    """Return what tells whether a model's files have changed: its manifest, or else their names, sizes and dates."""
    if UNPACKED.fullmatch(folder.parent.name):
        return {"archive": folder.parent.name}
    files: Mapping[str, Any] = manifest.read(folder)["files"]
    if files:
        return files
    paths = [*folder.iterdir(), *folder.glob("model/*")]  # an Argos Translate package has its weights there
    dates = {path.relative_to(folder).as_posix(): path.stat() for path in paths}
    return {name: [status.st_size, int(status.st_mtime)] for name, status in dates.items()}

"""Translation memories: the translations of similar sources serve as drafts. See docs/memory.md."""

from importlib.util import find_spec

from ..errors import InputError

if find_spec("rapidfuzz") is None:
    raise InputError("requires rapidfuzz", "memory", "run pip install rapidfuzz")

from .translation_memory import TranslationMemory

__all__ = ["TranslationMemory"]

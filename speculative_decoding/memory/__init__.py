"""Translation memories: pairs of sources and targets, whose most similar targets are drafts. See docs/memory.md."""

from .translation_memory import TranslationMemory

__all__ = ["TranslationMemory"]

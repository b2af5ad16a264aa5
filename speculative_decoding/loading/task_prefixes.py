"""The prefixes in config.json that select a T5 model's task, such as "translate English to German: ".

The prefix of a translation may be empty: the model translates this pair of languages, and its prompts have no prefix.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from ..errors import InputError

Pairs = Mapping[tuple[str, str], str]  # language pair (source, target) -> prefix
TRANSLATION = re.compile(r"translation_([\w-]+)_to_([\w-]+)")


def task_prefixes(config: Mapping[str, Any], has_languages: bool = False) -> Mapping[str, str]:
    """Return the prefixes in a config.json, keyed by task name, such as translation_en_to_de.

    has_languages: Whether the tokenizer has language tokens, which select the languages if the prefix is empty.
    """
    tasks = config.get("task_specific_params")
    prefixes = {
        name: prefix
        for name, task in (tasks.items() if isinstance(tasks, dict) else ())
        if isinstance(task, dict)
        and isinstance(prefix := task.get("prefix"), str)
        and (prefix.strip() or (prefix == "" and not has_languages and TRANSLATION.fullmatch(name)))
    }
    return MappingProxyType(prefixes)  # MLX would treat a dict as model parameters


def translation_prefixes(tasks: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return the prefixes of the translation tasks, keyed by language pair."""
    found = ((TRANSLATION.fullmatch(name), prefix) for name, prefix in tasks.items())
    return {(match[1], match[2]): prefix for match, prefix in found if match}


def only_languages(tasks: Mapping[str, str]) -> tuple[str, str] | tuple[None, None]:
    """Return the only languages between which a model translates without a prefix, or (None, None) for other models."""
    pairs = translation_prefixes(tasks)
    return next(iter(pairs)) if [*pairs.values()] == [""] else (None, None)


def matching_pair(pairs: Collection[tuple[str, str]], source: str, target: str) -> tuple[str, str] | None:
    """Return the pair that matches these languages, or None if none does. See `matching_language`."""
    from .language_map import matching_language

    first = matching_language(source, (each for each, _ in pairs))
    second = matching_language(target, (other for each, other in pairs if each == first))
    return None if first is None or second is None else (first, second)


def chosen_prefix(tasks: Mapping[str, str], source: str | None, target: str | None) -> str:
    """Return the prefix for two languages. One may be None if the other determines the prefix. Raises `InputError`."""
    pairs = translation_prefixes(tasks)
    sources = {first for first, _ in pairs} if source is None else {source}
    targets = {second for _, second in pairs} if target is None else {target}
    candidates = (matching_pair(pairs, first, second) for first in sources for second in targets)
    found = {pair for pair in candidates if pair is not None}
    if len(found) == 1:
        return pairs[found.pop()]
    if found:  # one of the languages is None
        missing = "src_lang" if source is None else "tgt_lang"
        names = ", ".join(sorted({pair[source is not None] for pair in found}))
        raise InputError("is missing", missing, f"choose one of {names}")
    known = ", ".join(f"{first} to {second}" for first, second in sorted(pairs))
    wanted = " to ".join(filter(None, (source, target)))
    problem = (
        f"has prefixes for {known}, not for {wanted}"
        if any(pairs.values())
        else f"only translates {known}, not {wanted}"
    )
    raise InputError(
        f"this model {problem}",
        "src_lang" if target is None else "tgt_lang",
        "choose one of these pairs, or leave it out",
    )

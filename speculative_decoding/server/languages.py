"""The languages between which a model translates, with the codes and names that LibreTranslate's clients use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from ..decoding.prompt import language_token
from ..errors import InputError
from ..loading.language_map import USUAL_SCRIPTS, Language, language_of, matching_language
from ..loading.task_prefixes import Pairs, matching_pair
from ..loading.tokenizer import Tokenizer
from ..models.speech_languages import NAMES

MAX_CODE = 40  # maximum number of characters in a language's name in a request


def given_prefixes(flags: Iterable[str]) -> Pairs:
    """Parse the values of --translate, such as "en:de=translate English to German: ". Raises `InputError`."""
    prefixes: dict[tuple[str, str], str] = {}
    for flag in flags:
        match = re.fullmatch(r"([\w-]+):([\w-]+)=(.*)", flag, re.DOTALL)
        if match is None:
            raise InputError(
                f"must be SOURCE:TARGET=PREFIX, such as en:de='translate English to German: ', not {flag!r}",
                "translate",
            )
        prefixes[match[1], match[2]] = match[3]
    return prefixes


class Languages:
    """The language pairs of a model. Clients name a language by its ISO code, by the model's own code or in English.

    Args:
        tokenizer: The model's tokenizer. All of its languages, such as eng_Latn, can be translated into each other.
        prefixes: Further language pairs, with their prompt prefixes.
    """

    def __init__(self, tokenizer: Tokenizer, prefixes: Pairs) -> None:
        self._tokenizer = tokenizer
        self._prefixes = prefixes

    @cached_property
    def targets(self) -> Mapping[str, list[str]]:
        """Code in responses -> codes of its target languages.

        As in LibreTranslate, each language is a target of itself, and each target is also a source. Clients look up the
        names of targets among the sources.
        """
        codes = client_codes(self._tokenizer.languages).values()
        targets = {code: {*codes} for code in codes}
        for source, target in self._prefixes:
            targets.setdefault(source, {source}).add(target)
            targets.setdefault(target, {target})
        return {code: sorted(own) for code, own in sorted(targets.items())}

    @cached_property
    def listed(self) -> list[dict[str, Any]]:
        """The languages, in LibreTranslate's format."""
        return [
            {"code": code, "name": english_name(code), "targets": targets} for code, targets in self.targets.items()
        ]

    def target(self, name: str) -> str:
        """Return a target language's code in responses. Raises `InputError` if nothing can be translated into it."""
        known = sorted({each for code, targets in self.targets.items() for each in targets if each != code})
        code = matching_language(checked(name, "target"), known)
        if code is None:
            raise InputError(f"must be one of {', '.join(known) or 'none'}, not {name!r}", "target")
        return code

    def into(self, target: str) -> list[str]:
        """Return the codes of the possible languages of a source text. Raises `InputError`.

        These are the sources of the target, the target itself, and the same language in other scripts.
        """
        code = self.target(target)
        own = language_of(code)

        def is_in_other_script(each: str) -> bool:
            other = language_of(each)
            return other.code == own.code and other.usual_script != own.usual_script

        return [each for each, targets in self.targets.items() if code in targets or is_in_other_script(each)]

    def is_same(self, source: str, target: str) -> bool:
        """Return whether two names select the same language, so that texts need no translation.

        A prefix from this language to itself is an exception: it asks for a different task, such as a correction.
        """
        code = matching_language(checked(source, "source"), self.targets)
        is_same = code is not None and code == matching_language(checked(target, "target"), self.targets)
        return is_same and (code, code) not in self._prefixes

    def pair(self, source: str, target: str) -> tuple[str, Mapping[str, str]]:
        """Return the prefix and the options of a pair's prompts. Raises `InputError` if the pair is not supported."""
        source, target = checked(source, "source"), checked(target, "target")
        if (found := matching_pair(self._prefixes, source, target)) is not None:
            return self._prefixes[found], {}
        codes = self._tokenizer.languages
        if not codes:
            pairs = ", ".join(":".join(pair) for pair in sorted(self._prefixes)) or "none"
            raise InputError(f"source and target must be a supported pair ({pairs}), not {source}:{target}", "target")
        languages = {}
        for field, option, name in (("source", "src_lang", source), ("target", "tgt_lang", target)):
            languages[option] = matching_language(name, codes) or name
            language_token(self._tokenizer, field, languages[option])
        return "", languages


def checked(name: str, field: str) -> str:
    if len(name) > MAX_CODE:
        raise InputError(f"must be a language, not a text of {len(name)} characters", field)
    return name


def client_codes(codes: Iterable[str]) -> Mapping[str, str]:
    """Map each of a model's language codes to one for clients, such as deu_Latn to de, or zho_Hant to zh-Hant.

    `matching_language` converts such a code to the model's code.
    """
    found: dict[str, str] = {}
    taken: set[Language] = set()
    usual_first = sorted(codes, key=lambda own: language_of(own).script != USUAL_SCRIPTS.get(language_of(own).code))
    for own in usual_first:
        code, script, _ = language_of(own)
        bare, written = Language(code), Language(code, script)
        if bare not in taken:
            found[own] = code
        else:
            found[own] = own if written in taken else f"{code}-{script.title()}"
        taken |= {bare, written}
    return found


def english_name(code: str) -> str:
    """Return the English name of a language, or the code if the name is not known."""
    language = language_of(code)
    name = ENGLISH.get(language.code)
    if name is None:
        return code
    return f"{name} ({language.script.title()})" if language.script else name


ENGLISH = {language_of(code).code: name.title() for code, name in NAMES.items()}

"""Rejects tokenizer files that would make a tokenizer library run out of memory, crash or panic.

The libraries cannot be interrupted, and a panic prints a message before Python can catch it, so these checks run first.
The checks read only parts of tokenizer.json, because parsing the whole file would take a fifth of the loading time.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..checkpoints.files import is_shallow
from ..sampling.options import short_repr

MAX_PIECE = 4096  # bytes; at about 200,000, the stack overflows when `tokenizers` frees a trie recursively
MAX_GROWTH = 1000  # characters to which one character may expand; T5's normalizer reaches 36
MAX_COMPONENT = 4 << 20  # bytes in a normalizer or decoder; T5's normalizer has 320,000

COMPONENT = re.compile(rb'"(normalizer|pre_tokenizer|post_processor|decoder)"\s*:\s*(?=\{)')
ESCAPED_KEY = re.compile(rb'\\u00[5-7][^"]*"\s*:\s*\{')
QUOTE = re.compile(rb'(?<!\\)"')
SUBWORD_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
CHARSMAP = b'"precompiled_charsmap":'
UNIT = re.compile(r"\\[pPxo]\{[^}]*\}|\\.|\[\^?\]?[^\[\]]*\]|(?<=x)\{\d+\}", re.DOTALL)
GROUP = re.compile(r"\((?:\?[^:()]*[:=!>])?([^()]*)\)([*+{]?)")
STACKED = re.compile(r"[*+?}][*{]|\}\+")
UNREADABLE = re.compile(r"\\[gkcCM]|\(\?[a-zA-Z-]*[#x]")  # could hide a group from the patterns above
STEPS = ("normalizers", "pretokenizers", "processors", "decoders")
# The most characters that a Unicode normalization or the byte-level alphabet can produce from one character
GROWTH_BY_TYPE = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12, "ByteLevel": 4}


def check_tokenizer_json(data: bytes) -> None:
    """Raise `ValueError` for a hostile tokenizer.json."""
    start = 0
    while 0 <= start < len(data) - MAX_PIECE:  # a longer string contains a block of MAX_PIECE bytes without a quote
        if QUOTE.search(data, start, start + MAX_PIECE):
            start += MAX_PIECE
            continue
        opening = max(data.rfind(b'"', 0, start), 0)
        if not b"".join(data[max(opening - 64, 0) : opening].split()).endswith(CHARSMAP):
            raise ValueError(f"a piece is longer than {MAX_PIECE} bytes")
        start = data.find(b'"', start)
    if ESCAPED_KEY.search(data):  # could hide a component from the search below
        raise ValueError("a key has escaped letters")
    for match in COMPONENT.finditer(data):
        name = match[1].decode()
        if grown_length(read_object(data, match.end(), name)) > MAX_GROWTH:
            raise ValueError(f"the {name} expands one character to more than {MAX_GROWTH}")
    if SUBWORD_PREFIX.search(data):  # rare, so it is acceptable to parse the rest of the file
        check_merges(json.loads(data)["model"])


def check_merges(model: Mapping[str, Any]) -> None:
    """Raise `ValueError` for merges whose second part lacks the prefix that `tokenizers` removes from it."""
    prefix = model["continuing_subword_prefix"]
    for merge in model.get("merges", ()):
        second = merge.split(" ")[-1] if isinstance(merge, str) else merge[-1]
        if not second.startswith(prefix):
            raise ValueError(f"{second!r} in a merge lacks the prefix {short_repr(prefix)}")


def read_object(data: bytes, start: int, name: str) -> Any:
    """Parse the JSON object at a position, without parsing the rest of the file."""
    for size in (1 << 16, MAX_COMPONENT):
        try:
            content, _ = json.JSONDecoder().raw_decode(data[start : start + size].decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if is_shallow(content):
            return content
    raise ValueError(f"the {name} is not valid JSON, too large or too deep")


def grown_length(step: Any, length: float = 1) -> float:
    """Return the maximum length to which a normalizer, decoder or other step can extend a text of this length."""
    if not isinstance(step, Mapping):
        return length
    for name in STEPS:
        for inner in step[name] if isinstance(step.get(name), list) else ():
            length = grown_length(inner, length)
    pattern = step.get("pattern")
    if isinstance(pattern, Mapping) and isinstance(regex := pattern.get("Regex"), str):
        check_regex(regex)
    if "content" in step and isinstance(pattern, Mapping):
        replaced, content = pattern.get("String"), str(step["content"])
        if isinstance(replaced, str) and replaced:
            length *= max(1, len(content) / len(replaced))
        else:
            length *= 1 + len(content)  # a regular expression may match before every character
    if "single" in step:
        length = templated_length(step, length)
    step_type = str(step.get("type"))
    if "precompiled_charsmap" in step or step_type == "Precompiled":
        length *= longest_replacement(base64.b64decode(str(step.get("precompiled_charsmap", "")), validate=True))
    return length * GROWTH_BY_TYPE.get(step_type, 1) + len(str(step.get("prepend", "")))


def check_regex(regex: str) -> None:
    """Raise `ValueError` for a regular expression that may backtrack so much that `tokenizers` panics.

    A repeated group must not contain a choice, and an alternative may contain at most two repetitions and eight
    choices. The patterns of GPT-2, Llama 3 and GPT-4o meet these conditions.
    """
    plain, count = regex, 1
    while count:  # character classes may be nested
        plain, count = UNIT.subn("x", plain)
    is_safe = not UNREADABLE.search(regex)
    while group := GROUP.search(plain):
        is_safe &= not (group[2] and re.search(r"[*+?{|]", group[1]))
        plain = plain[: group.start()] + group[1].replace("|", "?") + group[2] + plain[group.end() :]
    is_safe &= not STACKED.search(plain)
    alternatives = plain.split("|")
    if not is_safe or any(len(re.findall(r"[*+{]", each)) > 2 or each.count("?") > 8 for each in alternatives):
        raise ValueError(f"the regular expression {short_repr(regex)} may take exponential time")


def templated_length(template: Mapping[str, Any], length: float) -> float:
    """Return the length of a text after a template adds special tokens. Raises `ValueError` for unknown tokens."""
    special = template.get("special_tokens")
    sequences = 0
    for piece in template["single"]:
        match piece:
            case {"Sequence": {"id": "A"}}:
                sequences += 1
            case {"SpecialToken": {"id": str(name)}} if isinstance(special, Mapping) and name in special:
                length += len(special[name]["ids"])
            case _:
                raise ValueError(f"the post_processor's template uses an unknown token {short_repr(piece)}")
    return max(1, sequences) * length


def check_added_tokens(content: Mapping[str, Any]) -> None:
    """Raise `ValueError` for hostile added tokens. content: the JSON object of a file next to the vocabulary."""
    level: list[Any] = [content]
    while level:
        for each in (inner for inner in level if isinstance(inner, Mapping)):
            if isinstance(token := each.get("content"), str) and len(token) > MAX_PIECE:
                raise ValueError(f"a token is longer than {MAX_PIECE} characters")
        level = [
            inner
            for each in level
            if isinstance(each, Mapping | list)
            for inner in (each.values() if isinstance(each, Mapping) else each)
        ]
    names = [*content, *(value for key, value in content.items() if key.endswith("_token"))]
    for tokens in (content.get("additional_special_tokens"), content.get("extra_special_tokens")):
        names += tokens if isinstance(tokens, list) else list(tokens.values()) if isinstance(tokens, Mapping) else []
    if max((len(each) for each in names if isinstance(each, str)), default=0) > MAX_PIECE:
        raise ValueError(f"a token is longer than {MAX_PIECE} characters")


def check_vocabulary(data: bytes) -> None:
    """Raise `ValueError` for a vocab.json, merges.txt, vocab.txt or dict.txt with a very long piece."""
    if max(map(len, re.split(rb'[\n"]', data))) > MAX_PIECE:
        raise ValueError(f"a piece is longer than {MAX_PIECE} bytes")


def check_sentencepiece(data: bytes) -> None:
    """Raise `ValueError` for a hostile SentencePiece model, or `DecodeError` for a damaged one."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(data)  # type: ignore[attr-defined]
    if not model.pieces:
        raise ValueError("it holds no pieces")
    if max(len(each.piece) for each in model.pieces) > MAX_PIECE:
        raise ValueError(f"a piece is longer than {MAX_PIECE} characters")
    rules = model.normalizer_spec.precompiled_charsmap
    if rules and longest_replacement(rules) > MAX_GROWTH:
        raise ValueError(f"the normalizer expands one character to more than {MAX_GROWTH}")


def longest_replacement(charsmap: bytes) -> int:
    """Return the length in characters of the longest replacement in a SentencePiece model's normalization rules.

    Raises `ValueError` for rules that would make `tokenizers` panic. Format: the size of a double-array trie, the trie
    as uint32 (Yata's darts-clone), and the replacements, each ending with a zero byte.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if size % 1024 or not 0 < size <= len(charsmap) - 4:
        raise ValueError("its normalization rules are damaged")
    units = np.frombuffer(charsmap, "<u4", size // 4, offset=4).astype(np.int64)
    replacements = charsmap[4 + size :]

    # A unit's children are at its index XOR its offset XOR the next byte. The highest bit marks a leaf: a unit without
    # children.
    offsets = (units >> 10) << ((units & 1 << 9) >> 6)
    children = np.arange(len(units)) ^ offsets
    is_inner = units < 1 << 31
    is_inner[0] = True
    if (children[is_inner] | 0xFF).max() >= len(units):
        raise ValueError("its normalization rules are damaged")
    leaves = units[children[is_inner & (units & 1 << 8 != 0)]] & (1 << 31) - 1
    starts = np.frombuffer(replacements + b"\0", np.uint8)
    if (leaves >= len(starts)).any() or (starts[leaves] & 0xC0 == 0x80).any():  # a leaf points into a character
        raise ValueError("its normalization rules are damaged")
    return max(map(len, replacements.decode().split("\0")))

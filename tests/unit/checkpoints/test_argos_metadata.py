"""What metadata.json says about a package's model, and which files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.checkpoints.argos_metadata import package_fields
from speculative_decoding.errors import CheckpointError
from speculative_decoding.loading.task_prefixes import only_languages, task_prefixes
from speculative_decoding.models.generation_config import GenerationConfig
from speculative_decoding.sampling import GenerationOptions
from tests.support.argos import FIELDS

VOCABULARY = ["<unk>", "<s>", "</s>", "__pt__", "a"]


def fields_of(folder: Path, content: object) -> dict[str, Any]:
    (folder / "metadata.json").write_text(json.dumps(content))
    return package_fields(folder, VOCABULARY)


@pytest.mark.parametrize("pair", [("en", "de"), ("zt", "en"), ("pt-BR", "en"), ("zh_Hant", "pb"), ("en", "to")])
def test_the_languages_are_a_pair_without_a_prefix(pair: tuple[str, str], tmp_path: Path) -> None:
    found = fields_of(tmp_path, FIELDS | {"from_code": pair[0], "to_code": pair[1]})
    assert found.pop("replace_unknowns") and found.keys() == {"task_specific_params", "min_new_tokens"}
    assert only_languages(task_prefixes(found)) == pair


def test_the_target_prefix_is_the_first_token_of_every_output(tmp_path: Path) -> None:
    assert fields_of(tmp_path, FIELDS | {"target_prefix": "__pt__"})["forced_bos_token_id"] == 3
    for nothing in ({"target_prefix": None}, {}):
        assert "forced_bos_token_id" not in fields_of(tmp_path, FIELDS | nothing)


@pytest.mark.parametrize("prefix", ["", "__pt__"])
def test_an_output_has_at_least_one_token(prefix: str, tmp_path: Path) -> None:
    """As with CTranslate2's default `min_decoding_length` of 1, which counts the target prefix."""
    found = GenerationConfig.from_dict(fields_of(tmp_path, FIELDS | {"target_prefix": prefix}), len(VOCABULARY), [2])
    options = found.with_defaults(GenerationOptions(), 1)
    constraints = found.constraints(options, [2], 1, found.forced_bos_token_id)
    assert constraints.not_before == ((2, 2),)  # the start token and a token precede the end


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_prefix": "__fr__"}, "target_prefix '__fr__' is not a token of the model; restore"),
        ({"target_prefix": ["__pt__"]}, "target_prefix must be a string of at most 100 characters"),
        ({"type": "sbd"}, "a package of the type 'sbd' is not supported; name one of the type 'translate'"),
        ({"type": "a\nb"}, r"type 'a\\nb' is not"),
        ({"from_code": None}, "from_code must be the code of a language, such as en or pt-BR, not ''"),
        ({"to_code": 3}, "to_code must be a string"),
        ({"to_code": "../de"}, "to_code must be the code of a language"),
        ({"from_code": "en_to_fr"}, "from_code must be the code of a language"),
        ({"from_code": "en-to"}, "from_code must be the code of a language"),
        ({"from_code": "e" * 101}, "from_code must be a string of at most 100 characters"),
    ],
)
def test_other_packages_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as refused:
        fields_of(tmp_path, FIELDS | changes)
    assert str(refused.value).startswith(str(tmp_path / "metadata.json")) and str(refused.value).isprintable()


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="metadata.json: not "):
        package_fields(tmp_path, VOCABULARY)

"""A model of any family drafts for a target of any other family."""

from __future__ import annotations

import random
import warnings
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError, Session, load
from speculative_decoding.loading.load import ModelHandle
from speculative_decoding.loading.pair import open_pair
from tests.support.families import CODES, FAMILIES, save_family

TEXTS = [family for family in FAMILIES if not family.startswith("whisper")]
SPEECH = [family for family in FAMILIES if family.startswith("whisper")]
PAIRS = [*permutations(TEXTS, 2)]
SAMPLED = [(target, TEXTS[(i + 7) % len(TEXTS)]) for i, target in enumerate(TEXTS)]  # each family in each role
PROMPTS = ["w3 w5 w7 w11", "w2 w40 w9 w9 w1 w17 w23"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    return {family: save_family(folder / family, family) for family in FAMILIES}


@pytest.fixture(scope="module")
def opened(folders: dict[str, Path]) -> dict[str, Session]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes about fields of generation_config.json
        return {family: load(folder, dtype="float32") for family, folder in folders.items() if family in TEXTS}


def languages(family: str) -> dict[str, Any]:
    _, codes = CODES.get(family, ("", ()))
    return dict(zip(("src_lang", "tgt_lang"), codes, strict=False))


def require_equal_tokens(target: Session, draft: Session, own: dict[str, Any]) -> int:
    """Decode with a draft and without one, alone and in a batch. Returns the number of draft tokens."""
    session = Session(target.model, target.tokenizer, draft.model, draft_tokenizer=draft.tokenizer)
    assert session.drafts_text
    options = {"max_tokens": 14, **own}
    expected = [session.generate(prompt, drafter="none", **options).tokens for prompt in PROMPTS]
    found = list(session.batch(PROMPTS, drafter="model", num_draft_tokens=4, slots=2, **options))
    assert [each.result and each.result.tokens for each in found] == expected
    sampled = {"temperature": 1.0, "seed": 2, **options}
    text = session.generate(PROMPTS[0], drafter="none", **sampled).tokens
    one = session.generate(PROMPTS[0], drafter="model", num_draft_tokens=4, **sampled)
    assert one.tokens == text
    return one.stats.drafted_tokens + sum(each.result.stats.drafted_tokens for each in found if each.result)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("target", "draft"), random.Random(5).sample(SAMPLED, 6))
def test_tokens_equal_the_baselines_for_some_pairs(target: str, draft: str, opened: dict[str, Session]) -> None:
    assert require_equal_tokens(opened[target], opened[draft], languages(target)) > 0


@pytest.mark.slow
def test_tokens_equal_the_baselines_for_all_pairs(opened: dict[str, Session]) -> None:
    drafted = {
        (target, draft): require_equal_tokens(opened[target], opened[draft], languages(target))
        for target, draft in PAIRS
    }
    assert len(drafted) == len(TEXTS) * (len(TEXTS) - 1)
    assert {pair for pair, count in drafted.items() if not count} == set()


@pytest.mark.parametrize(("target", "draft"), [("m2m_100", "mbart"), ("mbart", "m2m_100")])
def test_languages_are_those_of_the_request(target: str, draft: str, opened: dict[str, Session]) -> None:
    own, other = opened[target], opened[draft]
    session = Session(own.model, own.tokenizer, other.model, draft_tokenizer=other.tokenizer)
    drafter: Any = session._writing_drafter()
    writer = drafter._writer
    request = session.engine(session.options_with({}), 1).submit(
        PROMPTS[0], session.options_with(languages(target)), session.planner.draft_length(session.options_with({}))
    )
    written = writer.start(request)
    expected = languages(draft)
    assert [*written._draft.source] == other.tokenizer.encode(PROMPTS[0], expected["src_lang"])
    assert written._draft.options.tgt_lang == expected["tgt_lang"]


@pytest.mark.parametrize("family", [TEXTS[0], "bart", TEXTS[-1]])
def test_text_and_speech_do_not_fit_together(family: str, folders: dict[str, Path]) -> None:
    for target, draft in ((folders[family], folders[SPEECH[0]]), (folders[SPEECH[0]], folders[family])):
        with pytest.raises(InputError, match=r"^draft model: reads (text|speech), and the target reads .*; choose a"):
            open_pair(target, draft)
    pair = open_pair(folders[family], folders[TEXTS[0] if family != TEXTS[0] else TEXTS[1]])
    assert pair.drafts_text and isinstance(pair.draft, ModelHandle)

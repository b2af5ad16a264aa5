"""Decisions that every front end must share: Python, the command line, the console, jobs and the server.

Each front end gets the same models and options, and must decode with the same drafter and draft length.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, InputError, Session, load
from speculative_decoding.cli.console_commands import ConsoleState
from speculative_decoding.cli.main import prompt_parser
from speculative_decoding.cli.parser import flag
from speculative_decoding.cli.run_config import RunConfig, run_config_from
from speculative_decoding.decoding.acceptance import RULES
from speculative_decoding.drafters import BatchDrafter, choose_drafter
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.sampling.drafters import DRAFTERS
from speculative_decoding.sampling.options import ACCEPTANCE
from tests.support.rooms import needs_room
from tests.support.tiny import model_drafter, noisy_copy, tiny_model

TARGET, DRAFT = BUNDLED / "t5-web-docs", BUNDLED / "t5-web-docs-draft"
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_draft_tokens": 3},
    {"num_draft_tokens": 0},
    {"num_beams": 2},
    *({"drafter": name} for name in DRAFTERS),
    {"drafter": "ngram", "num_draft_tokens": 2, "seed": 1},
]


@cache
def loaded(draft: bool) -> Session:
    return load(TARGET, draft=DRAFT if draft else None)


def run_config(draft: bool, options: Mapping[str, Any]) -> RunConfig:
    models = ["--model", str(TARGET), *(["--draft-model", str(DRAFT)] if draft else [])]
    flags = [part for name, value in options.items() for part in (flag(name), str(value))]
    return run_config_from(prompt_parser().parse_args([*models, *flags]))


def of_flags(draft: bool, options: Mapping[str, Any]) -> GenerationOptions:
    """What the description, the statistics and the records of a job are made from."""
    return run_config(draft, options).options


def of_a_run(draft: bool, options: Mapping[str, Any]) -> GenerationOptions:
    """What prompts, jobs and the server decode with: the session of the command line."""
    config = run_config(draft, options)
    with config.session(config.open(use_draft=draft)) as session:
        return session.options_with({})


def of_the_console(draft: bool, options: Mapping[str, Any]) -> GenerationOptions:
    with ConsoleState(run_config(draft, {})) as state:
        state.open(state.config)
        state.change(options)
        return state.session.options_with({})


def of_a_session(draft: bool, options: Mapping[str, Any]) -> GenerationOptions:
    """Options of all requests, as `load` gives them."""
    model, tokenizer = loaded(draft).model, loaded(draft).tokenizer
    session = Session(model, tokenizer, loaded(draft).draft_model, GenerationOptions(**options))
    return session.options_with({})


FRONT_ENDS = {"flags": of_flags, "run": of_a_run, "console": of_the_console, "session": of_a_session}


@pytest.mark.parametrize("draft", [True, False], ids=["draft", "no draft"])
@pytest.mark.parametrize(
    "options",
    [pytest.param(each, marks=needs_room("beam_search") if "num_beams" in each else ()) for each in OPTIONS],
    ids=str,
)
@pytest.mark.parametrize("name", FRONT_ENDS)
def test_every_front_end_resolves_the_same_drafter(name: str, options: dict[str, Any], draft: bool) -> None:
    is_refused = not draft and options.get("drafter") == "model"
    if draft and "num_beams" in options and name in ("flags", "run"):
        is_refused = True  # --draft-model was given for nothing
    if is_refused:
        with pytest.raises(
            InputError, match="^(drafter: model (needs|has no effect without)|draft_model: .* no effect)"
        ):
            FRONT_ENDS[name](draft, options)
        return
    expected = loaded(draft).options_with(options)  # options of one request
    found = FRONT_ENDS[name](draft, options)
    for fact in ("drafter", "draft_tokens", "runs_draft_model", "looks_up_ngrams"):
        assert getattr(found, fact) == getattr(expected, fact)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_name_of_a_drafter_is_built_and_runs_the_draft_model_as_its_row_says(name: str) -> None:
    target = tiny_model()
    made: list[BatchDrafter] = []

    def make() -> BatchDrafter:
        made.append(model_drafter(target, noisy_copy(target)))
        return made[-1]

    assert isinstance(choose_drafter(GenerationOptions(drafter=name), target, make), BatchDrafter)
    assert bool(made) == DRAFTERS[name].uses_model


def test_options_and_decoding_know_the_same_acceptance_rules() -> None:
    assert ACCEPTANCE.keys() == RULES.keys()

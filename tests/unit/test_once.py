"""Decisions that every front end must share: Python, the command line, the console, jobs and the server.

Each front end gets the same models and options, and must decode with the same drafter and draft length.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, InputError, Session, load
from speculative_decoding.cli.console_commands import ConsoleState
from speculative_decoding.cli.main import prompt_parser
from speculative_decoding.cli.parser import flag
from speculative_decoding.cli.run_config import RunConfig, run_config_from
from speculative_decoding.decoding.acceptance import RULES
from speculative_decoding.drafters import BatchDrafter, choose_drafter
from speculative_decoding.sampling.drafters import DRAFTERS
from speculative_decoding.sampling.options import ACCEPTANCE
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import CONFIG, model_drafter, noisy_copy, save_hugging_face, tiny_model

Models = tuple[Path, Path | None]  # the folders of the target and of the draft, if there is one
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_draft_tokens": 3},
    {"num_draft_tokens": 0},
    {"num_beams": 2},
    *({"drafter": name} for name in DRAFTERS),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of a tiny target and its draft model."""
    target, folder = tiny_model(), tmp_path_factory.mktemp("models")
    models = {"target": target, "draft": noisy_copy(target)}
    target_folder, draft_folder = (save_hugging_face(each, folder / name, CONFIG) for name, each in models.items())
    return target_folder, draft_folder


@cache
def loaded(models: Models) -> Session:
    return load(models[0], draft=models[1])


def run_config(models: Models, options: Mapping[str, Any]) -> RunConfig:
    target, draft = models
    paths = ["--model", str(target), *(["--draft-model", str(draft)] if draft else [])]
    flags = [part for name, value in options.items() for part in (flag(name), str(value))]
    return run_config_from(prompt_parser().parse_args([*paths, *flags]))


def of_flags(models: Models, options: Mapping[str, Any]) -> GenerationOptions:
    """What the description, the statistics and the records of a job are made from."""
    return run_config(models, options).options


def of_a_run(models: Models, options: Mapping[str, Any]) -> GenerationOptions:
    """What prompts, jobs and the server decode with: the session of the command line."""
    config = run_config(models, options)
    with config.session(config.open(use_draft=models[1] is not None)) as session:
        return session.options_with({})


def of_the_console(models: Models, options: Mapping[str, Any]) -> GenerationOptions:
    with ConsoleState(run_config(models, {})) as state:
        state.open(state.config)
        state.change(options)
        return state.session.options_with({})


def of_a_session(models: Models, options: Mapping[str, Any]) -> GenerationOptions:
    """Options of all requests, as `load` gives them."""
    own = loaded(models)
    return Session(own.model, own.tokenizer, own.draft_model, GenerationOptions(**options)).options_with({})


FRONT_ENDS = {"flags": of_flags, "run": of_a_run, "console": of_the_console, "session": of_a_session}


@pytest.mark.parametrize("draft", [True, False], ids=["draft", "no draft"])
@pytest.mark.parametrize(
    "options",
    [pytest.param(each, marks=needs_subpackage("beam_search") if "num_beams" in each else ()) for each in OPTIONS],
    ids=str,
)
@pytest.mark.parametrize("name", FRONT_ENDS)
def test_every_front_end_resolves_the_same_drafter(
    name: str, options: dict[str, Any], draft: bool, folders: tuple[Path, Path]
) -> None:
    models = folders if draft else (folders[0], None)
    is_refused = not draft and options.get("drafter") == "model"
    if draft and "num_beams" in options and name in ("flags", "run"):
        is_refused = True  # --draft-model was given for nothing
    if is_refused:
        with pytest.raises(
            InputError, match="^(drafter: model (needs|has no effect without)|draft_model: .* no effect)"
        ):
            FRONT_ENDS[name](models, options)
        return
    expected = loaded(models).options_with(options)  # options of one request
    found = FRONT_ENDS[name](models, options)
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

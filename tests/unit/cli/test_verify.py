"""`verify` and --verify: each combination is compared with the baseline, and a difference is found and explained."""

from __future__ import annotations

from itertools import product

import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.cli import verify as verify_command
from speculative_decoding.cli.divergence import first_divergence
from speculative_decoding.cli.main import verify_output
from tests.support.tiny import CONFIG, noisy_copy, save_hugging_face, tiny_model
from tests.support.together import Letters

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
LINES = ["a", "a a", "b a a", "a a a a"]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of `verify` for a tiny pair and four prompts."""
    folder = tmp_path_factory.mktemp("verify")
    target, draft = (save_hugging_face(each, folder / name, CONFIG) for each, name in ((TARGET, "t"), (DRAFT, "d")))
    (folder / "prompts.txt").write_text("\n\n".join(LINES))
    return [str(folder / "prompts.txt"), "--model", str(target), "--draft-model", str(draft), "-m", "20"]


@pytest.mark.parametrize(
    ("more", "combinations"),
    [
        (["--num-draft", "0", "2", "5", "--dtype", "bfloat16", "--strict"], 3),
        (["--temperature", "1", "--seed", "1", "2", "--num-draft", "1", "4"], 4),
        (["--slots", "2", "3", "--drafter", "none", "model", "ngram", "--num-draft", "3"], 6),
    ],
)
def test_every_combination_is_compared(
    more: list[str], combinations: int, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify_command.main([*arguments, *more]) == 0
    *each, total = capsys.readouterr().out.splitlines()
    assert len(each) == combinations and all(line.endswith(": 4 of 4 identical") for line in each)
    assert total.startswith(f"{4 * combinations} of {4 * combinations} identical (")
    if "--seed" in more:
        for length, seed in product((1, 4), (1, 2)):
            assert f"drafter auto, num-draft {length}, seed {seed}, slots 1: 4 of 4 identical" in each


def test_a_difference_is_reported_with_its_combination_and_status_1(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lossy = ["--delta", "1", "--drafter", "model", "--num-draft", "5", "--slots", "2"]
    assert verify_command.main([*arguments, *lossy]) == 1
    out = capsys.readouterr().out
    assert ", drafter model, num-draft 5, seed 0, slots 2: differs at token " in out and ", logit gap " in out


@pytest.mark.parametrize("cause", [["--acceptance", "block"], ["--delta", "0.1"]])
def test_outputs_that_cannot_be_compared_are_refused(
    cause: list[str], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify_command.main([*arguments, "--temperature", "1", *cause]) == 2
    assert f"use --temperature 0, or leave out {' '.join(cause)}" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}, {"decoder_prefix": [4, 7]}], ids=str)
def test_the_output_of_a_session_is_identical_and_another_one_is_not(
    options: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = GenerationOptions(drafter="model", num_draft_tokens=4, max_tokens=20, **options)  # type: ignore[arg-type]
    session = Session(TARGET, Letters(), DRAFT, chosen)
    tokens = session.generate("abc").tokens
    assert verify_output(session, "abc", tokens)
    assert not verify_output(session, "abc", [*tokens[:3], tokens[3] + 1])
    same, other = capsys.readouterr().err.splitlines()
    assert same == f"verify: identical, {len(tokens)} tokens" and "verify: differs at token 3, logit gap " in other


def test_a_divergence_has_its_position_tokens_and_logit_gap() -> None:
    prompt, session = "abc", Session(TARGET, Letters())
    tokens = session.generate(prompt, max_tokens=20).tokens
    found = [first_divergence(session, prompt, tokens, tokens)]
    for position in range(len(tokens)):
        for token in {0, 5, 23} - {tokens[position]}:
            other = first_divergence(session, prompt, tokens, [*tokens[:position], token])
            assert other is not None and other.position == position
            assert (other.baseline, other.speculative) == (tokens[position], token)
            assert other.logit_gap is not None and other.logit_gap > 0  # the baseline takes the best token
        cut = first_divergence(session, prompt, tokens, tokens[:position])
        assert cut is not None and (cut.position, cut.speculative, cut.logit_gap) == (position, None, None)
    assert found == [None] and "the end with it" in cut.with_tokens(Letters()) and "logit gap" in str(other)

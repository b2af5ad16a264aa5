"""Outputs to train on: greedy and sampled ones, and their file."""

from __future__ import annotations

from pathlib import Path

from speculative_decoding import Session
from speculative_decoding.runs.log import Log
from speculative_decoding.training.options import TrainingOptions
from speculative_decoding.training.outputs import LOG_FORMAT, Example, output_request, read_outputs, write_outputs
from tests.support.tiny import VOCAB
from tests.support.training import (
    TARGET,
    LetterTarget,
)


def test_sampled_share_depends_on_seed_and_index_only(tmp_path: Path) -> None:
    session, prompts = Session(TARGET, LetterTarget()), ["abcdefgh"[i % 7 : i % 7 + 2] for i in range(24)]

    def outputs(name: str, share: float, seed: int = 0, slots: int = 5) -> dict[int, Example]:
        (tmp_path / name).mkdir(exist_ok=True)
        options = TrainingOptions(seed=seed, max_tokens=8, slots=slots, sampled_share=share)
        return write_outputs(session, prompts, tmp_path / name, options)

    greedy, half = outputs("greedy", 0.0), outputs("half", 0.5)
    options = TrainingOptions(sampled_share=0.5)
    drawn = {i for i in range(24) if "temperature" in output_request(options, i, "")}
    assert 6 <= len(drawn) <= 18 and {i for i in greedy if greedy[i] != half[i]} <= drawn
    assert len({tuple(half[i].output) for i in drawn}) > len({tuple(greedy[i].output) for i in drawn})
    for i in drawn:
        single = session.generate(drafter="none", max_tokens=8, **output_request(options, i, prompts[i]))
        assert half[i].output == list(single.tokens)
    path = tmp_path / "half" / "outputs.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))
    assert outputs("half", 0.5, slots=3) == half != outputs("other", 0.5, seed=1)


def test_damaged_outputs_are_decoded_again_with_all_that_follow(tmp_path: Path) -> None:
    for name, first in (("outputs.jsonl", 0), ("outputs-1.jsonl", 10)):
        with Log.open(tmp_path / name, LOG_FORMAT, {}) as log:
            log.append([first, [3, 1], [4, 1]])
            log.append([first + 1])
    whole = (tmp_path / "outputs.jsonl").read_text()
    for line in ("[2, [3", "[2, [3], 5]", "nonsense", "[2, [-1], [2]]", f"[2, [2], [{VOCAB}]]", "{}", "[1e999]", "\0"):
        (tmp_path / "outputs.jsonl").write_text(f"{whole}{line}\n[3]\n")
        example = Example([3, 1], [4, 1])
        assert read_outputs(tmp_path, VOCAB) == {0: example, 1: None, 10: example, 11: None}

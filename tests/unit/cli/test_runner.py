"""PromptRunner: texts on standard output, each in one line if each prompt is one, notes, totals, and Ctrl-C."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from functools import partial

import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.cli.common import run
from speculative_decoding.cli.runner import PromptRunner
from tests.support.tiny import noisy_copy, tiny_model
from tests.support.together import Letters

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
BREAKS = str.maketrans(dict(zip("adgjmps", ("\n", "\r\n", "\u2028") * 3, strict=False)))


class Lines(Letters):
    """A tokenizer that decodes every third letter as a line break."""

    def decode(self, tokens: Sequence[int]) -> str:
        return super().decode(tokens).translate(BREAKS)


class Interrupting(Letters):
    """A tokenizer during whose n-th call Ctrl-C is pressed."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def decode(self, tokens: Sequence[int]) -> str:
        self.calls -= 1
        if self.calls == 0:
            signal.raise_signal(signal.SIGINT)
        return super().decode(tokens)


def session(tokenizer: Letters, **options: object) -> Session:
    chosen = GenerationOptions(**{"drafter": "model", "num_draft_tokens": 4, "max_tokens": 20} | options)  # type: ignore[arg-type]
    return Session(TARGET, tokenizer, DRAFT, chosen)


@pytest.mark.parametrize(
    ("show_draft", "options"),
    [(None, {}), ("text", {}), ("rounds", {}), (None, {"num_return_sequences": 3, "temperature": 1.0})],
)
def test_an_output_is_one_line_if_each_prompt_is_one(
    show_draft: str | None, options: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    runner, ours = PromptRunner(show_draft, in_one_line=True), session(Lines(), **options)
    results = [runner.run(ours, prompt) for prompt in ("abc", "fed")]
    out, err = capsys.readouterr()
    texts = [each.text for result in results if result is not None for each in result.sequences or [result]]
    assert out.splitlines() == [re.sub("[\n\r\u2028]", " ", text) for text in texts]
    assert any("\n" in text for text in texts) and err.count("note: an output has line breaks") == 1
    if not options:
        PromptRunner().run(ours, "abc")
        assert capsys.readouterr() == (texts[0] + "\n", "")


def test_totals_add_up_and_count_the_outputs_that_were_cut(capsys: pytest.CaptureFixture[str]) -> None:
    runner, short = PromptRunner(), session(Letters(), max_tokens=9)
    results = [runner.run(short, prompt) for prompt in ("abc", "b", "hgfedcba", "aa")]
    reasons = [result.finish_reason for result in results if result is not None]
    total = runner.finish(short)
    assert total.generated_tokens == sum(len(result.tokens) for result in results if result is not None)
    assert f"\nstopped at --max-tokens: {reasons.count('length')} of 4 texts\n" in capsys.readouterr().err
    assert runner.num_cut == reasons.count("length") > 0


def test_the_last_line_tells_the_length_that_was_used_with_the_default_drafter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runner, ours = PromptRunner("rounds"), session(Letters(), drafter=None, num_draft_tokens="auto")
    runner.run(ours, "abc")
    runner.finish(ours)
    assert "--num-draft auto: drafts nothing" in (err := capsys.readouterr().err) or "tokens a round" in err


def test_ctrl_c_at_any_token_ends_the_program_with_status_130_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    usual, statuses, calls = signal.getsignal(signal.SIGINT), [], 1
    while statuses[-1:] != [0]:
        decode = partial(PromptRunner().run, session(Interrupting(calls)), "abc")
        statuses.append(run("main.py", lambda decode=decode: int(decode() is None)))  # type: ignore[misc]
        err = capsys.readouterr().err
        assert err == ("\nmain.py: interrupted\n" if statuses[-1] else "")
        signal.signal(signal.SIGINT, usual)  # after Ctrl-C, a program keeps SIG_DFL until it exits
        calls += 1
    assert len(statuses) > 10 and {*statuses[:-1]} == {130}

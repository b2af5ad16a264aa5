"""Sessions in threads, which take turns and whose MLX streams end with them, and in forked processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.drafters import Draft, NgramDrafter, NoDrafter, TextStore
from tests.support.paths import ROOT
from tests.support.speech import Letters, noise, speech_model
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import noisy_copy, tiny_model
from tests.support.together import Letters as TextLetters
from tests.support.waiting import PATIENCE

OPTIONS = GenerationOptions(drafter="none", num_draft_tokens=0, max_tokens=3)
TEXT = Session(tiny_model(), TextLetters(), options=OPTIONS)
SPEECH = Session(speech_model(), Letters(), options=OPTIONS)
mx.eval(TEXT.model.parameters(), SPEECH.model.parameters())  # a stream belongs to its thread
DRAFT = noisy_copy(TEXT.model)
USES: dict[str, Callable[[Session], Any]] = {
    "generate": lambda session: session.generate("deadbeef").tokens,
    "stream": lambda session: [each.token for each in session.stream("cabbage", temperature=1.0)],
    "batch": lambda session: [each.result.tokens for each in session.batch(["abc", "fed", "hij"], slots=2)],  # type: ignore[union-attr]
    "text": lambda session: session.generate("deadbeef", draft_text=["kkbekjkkkhkk", "fed"]).tokens,
    "score": lambda session: session.score("abc", "fed").logprobs,
}


def learning_session() -> Session:
    """A session that learns from each request, so that its drafts depend on earlier ones."""
    ngram = NgramDrafter(pieces=TEXT.model.pieces, store=TextStore(), min_chance=0.0)
    options = GenerationOptions(drafter="auto", num_draft_tokens=4, max_tokens=20)
    return Session(TEXT.model, TextLetters(), DRAFT, options, ngram)


@pytest.mark.usefixtures("device")
def test_threads_that_share_a_session_get_the_results_of_separate_sessions() -> None:
    uses, shared, times = [*USES.values()] * 2, learning_session(), 3
    expected = [[use(learning_session())] * times for use in uses]
    start = threading.Barrier(len(uses))

    def work(use: Callable[[Session], Any]) -> list[Any]:
        start.wait(PATIENCE)
        return [use(shared) for _ in range(times)]

    with ThreadPoolExecutor(len(uses)) as pool:
        assert list(pool.map(work, uses, timeout=PATIENCE)) == expected


@needs_subpackage("speech")
def test_threads_that_share_a_model_get_the_transcripts_of_a_single_thread() -> None:
    recordings = [noise(seed, 0.3) for seed in range(3)]
    expected = [SPEECH.transcribe(each).text for each in recordings]
    with ThreadPoolExecutor(3) as pool:
        sessions = [SPEECH, SPEECH, Session(SPEECH.model, Letters(), options=OPTIONS)]
        found = pool.map(lambda session, audio: session.transcribe(audio).text, sessions, recordings, timeout=PATIENCE)
        assert list(found) == expected


class StartsAnotherThread(NoDrafter):
    """In its first round, starts a thread and records whether the thread ends before the round does."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.ended_within: bool | None = None

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        if self.ended_within is None:
            self.thread.start()
            self.thread.join(0.2)
            self.ended_within = not self.thread.is_alive()
        return super().propose(tokens, num_draft_tokens)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_no_thread_computes_during_the_round_of_another(use: Callable[[Session], Any]) -> None:
    found: list[Any] = []
    session = learning_session()
    thread = threading.Thread(target=lambda: found.append(use(session)), daemon=True)
    drafter = StartsAnotherThread(thread)
    session.generate("abc", drafter=drafter, num_draft_tokens=3)
    thread.join(PATIENCE)
    assert drafter.ended_within is False and found == [use(learning_session())]


def test_an_unfinished_stream_blocks_no_thread() -> None:
    session, found = learning_session(), []
    stream = session.stream("cabbage")
    first = next(stream)
    thread = threading.Thread(target=lambda: found.append(session.generate("deadbeef").tokens), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found == [learning_session().generate("deadbeef").tokens]
    assert [first.token, *(each.token for each in stream)] == learning_session().generate("cabbage").tokens


@pytest.mark.parametrize(
    "use",
    [
        lambda: TEXT.generate("abc"),
        lambda: next(TEXT.stream("abc")),
        lambda: [*TEXT.batch(["abc", "fed"])],
        lambda: TEXT.score("abc", "fed"),
        lambda: mx.eval(TEXT.encode("abc")),
        pytest.param(lambda: SPEECH.transcribe(noise(1, 0.3)), marks=needs_subpackage("speech")),
        lambda: Session(tiny_model(), TextLetters(), options=OPTIONS),
    ],
)
def test_streams_of_a_thread_end_with_it(use: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the process aborts at its end in most runs (MLX 0.32.4, CPU)."""
    ended: list[int] = []
    clear = mx.clear_streams
    monkeypatch.setattr(mx, "clear_streams", lambda: (ended.append(threading.get_ident()), clear()))
    used: list[int] = []

    def run() -> None:
        used.append(threading.get_ident())
        use()

    for make in (lambda: threading.Thread(target=run), lambda: threading.Thread(target=run, daemon=True)):
        thread = make()
        thread.start()
        thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()
        pool.submit(run).result()  # a thread that lives on keeps its streams
        assert len(ended) == 2
    assert ended == [used[0], used[1], used[2]] and used[2] == used[3]
    use()
    assert len(ended) == 3  # the main thread ends with the process


FORK = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from speculative_decoding import GenerationOptions, InputError, Session
from tests.support.tiny import tiny_model
from tests.support.together import Letters

def text():
    options = GenerationOptions(drafter="none", num_draft_tokens=0, max_tokens=3)
    return Session(tiny_model(), Letters(), options=options)

def fork(use):
    sys.stdout.flush()
    if os.fork() == 0:
        signal.alarm(60)
        try:
            print(repr(use()), flush=True)
        except InputError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()

fork(lambda: text().generate("abc").text)  # nothing was computed before
session = text()
print(repr(session.generate("abc").text))
another = lambda: Session(session.model, Letters())
for use in (lambda: session.generate("abc"), lambda: session.score("a", "b"), another, session.calibrate):
    fork(use)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_is_told_to_spawn_instead_of_hanging() -> None:
    """A child that was forked before its parent computed is as good as any other."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    before, text, *refused = done.stdout.splitlines()
    assert before == text and len(refused) == 4, done
    for line in refused:
        assert "was forked after its parent had loaded a model" in line and 'get_context("spawn")' in line, line

"""Sessions in threads, whose streams end with them, and in forked processes, which cannot compute."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest

from speculative_decoding import GenerationOptions, Session
from tests.support.paths import ROOT
from tests.support.rooms import needs_room
from tests.support.speech import Letters, noise, speech_model
from tests.support.tiny import tiny_model
from tests.support.together import Letters as TextLetters
from tests.support.waiting import PATIENCE

OPTIONS = GenerationOptions(drafter="none", num_draft_tokens=0, max_tokens=3)
TEXT = Session(tiny_model(), TextLetters(), options=OPTIONS)
SPEECH = Session(speech_model(), Letters(), options=OPTIONS)
mx.eval(TEXT.model.parameters(), SPEECH.model.parameters())  # a stream belongs to its thread


@pytest.mark.parametrize(
    "use",
    [
        lambda: TEXT.generate("abc"),
        lambda: next(TEXT.stream("abc")),
        lambda: [*TEXT.batch(["abc", "fed"])],
        lambda: TEXT.score("abc", "fed"),
        lambda: mx.eval(TEXT.encode("abc")),
        pytest.param(lambda: SPEECH.transcribe(noise(1, 0.3)), marks=needs_room("speech")),
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

"""A memory changes the speed of a session, but never a token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError, Round, Session, load
from speculative_decoding.drafters.base import MEMORY
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import ModelPair
from speculative_decoding.memory import TranslationMemory
from tests.support.paths import ROOT
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import tiny_whisper
from tests.support.together import Letters

PROMPTS = (ROOT / "data" / "translation.txt").read_text().splitlines()[:6]
PREFIX = "translate English to German: "
SAMPLES = {"temperature": 0.7, "num_return_sequences": 3, "repetition_penalty": 1.2}


@pytest.fixture(scope="module")
def outputs(pair: Session) -> dict[str, str]:
    """The outputs of the prompts, without their prefix."""
    texts = [PREFIX + prompt.removeprefix(PREFIX) for prompt in PROMPTS]
    results = pair.batch(texts, drafter="none", max_tokens=60)
    return {
        text.removeprefix(PREFIX): each.result.text for text, each in zip(texts, results, strict=True) if each.result
    }


def test_an_earlier_version_saves_passes(new_session: Callable[..., Session], outputs: dict[str, str]) -> None:
    memory = TranslationMemory.from_pairs((f"{source} Really?", target) for source, target in outputs.items())
    with_memory = new_session(memory=memory, prompt_prefixes=["translate", PREFIX], draft_model=None)
    without = new_session(draft_model=None)
    calls = {}
    for name, session in (("with", with_memory), ("without", without)):
        results = [session.generate(PREFIX + source, max_tokens=60) for source in outputs]
        assert [result.text for result in results] == [*outputs.values()]
        calls[name] = sum(result.stats.target_calls for result in results)
    assert calls["with"] < 0.5 * calls["without"]


@pytest.mark.parametrize(
    ("drafter", "options"), [("text", {"temperature": 1.0}), ("ngram", {}), ("auto", SAMPLES)], ids=str
)
def test_a_memory_changes_no_token(
    drafter: str, options: dict[str, Any], new_session: Callable[..., Session], outputs: dict[str, str]
) -> None:
    """This holds for correct targets, targets of other prompts, and targets in another script."""
    sources = [*outputs]
    memory = TranslationMemory.from_pairs(
        [
            *zip(sources, [*outputs.values()][::-1], strict=True),
            *((source, f"Другой текст {number}") for number, source in enumerate(sources)),
            *((f"{source} more", target) for source, target in outputs.items()),
        ]
    )
    plain = new_session(draft_model=None) if drafter != "auto" else new_session()
    session = new_session(memory=memory, prompt_prefixes=[PREFIX], draft_model=plain.draft_model)
    prompts = [PREFIX + source for source in sources]
    found = [
        each.result for each in session.batch(prompts, slots=4, max_tokens=25, drafter=drafter, strict=True, **options)
    ]
    expected = [
        each.result for each in plain.batch(prompts, slots=4, max_tokens=25, drafter="none", strict=True, **options)
    ]
    tokens = [[each.tokens for each in result.sequences or [result]] for result in found if result]
    assert tokens == [[each.tokens for each in result.sequences or [result]] for result in expected if result]


@needs_subpackage("beam_search")
def test_beams_are_unaffected(new_session: Callable[..., Session], outputs: dict[str, str]) -> None:
    class Unused(TranslationMemory):
        def similar(self, source: str) -> list[tuple[float, str]]:
            raise AssertionError("beams looked up a prompt")

    session = new_session(memory=Unused(outputs.items()))
    prompt = PREFIX + next(iter(outputs))
    found = session.generate(prompt, num_beams=3, max_tokens=8).tokens
    assert found == new_session().generate(prompt, num_beams=3, max_tokens=8).tokens != []
    with pytest.raises(AssertionError, match="beams looked up a prompt"):
        session.generate(prompt, max_tokens=8)


def test_the_text_of_a_prompt_is_looked_up_and_of_ids_their_text(new_session: Callable[..., Session]) -> None:
    asked = []

    class Asked(TranslationMemory):
        def similar(self, source: str) -> list[tuple[float, str]]:
            asked.append(source)
            return []

    session = new_session(memory=Asked([("a", "b")]), prompt_prefixes=["grammar: "])
    text = "grammar:  Two  spaces and a ☃."
    session.generate(text, max_tokens=2)
    session.generate(session.tokenizer.encode(text), max_tokens=2)
    session.generate([text, "other"], max_tokens=2)
    assert asked[0] == " Two  spaces and a ☃." and asked[2:] == ["other", asked[0]]
    assert asked[1].split()[:3] == ["Two", "spaces", "and"]


def test_rounds_name_the_memory_and_a_given_text_comes_first(
    new_session: Callable[..., Session], outputs: dict[str, str]
) -> None:
    source, target = next(iter(outputs.items()))
    memory = TranslationMemory.from_pairs([(source, target)])

    def decode(**options: Any) -> list[Round]:
        rounds: list[Round] = []
        session = new_session(memory=memory, prompt_prefixes=[PREFIX])  # without drafts from earlier requests
        session.generate(PREFIX + source, max_tokens=60, drafter="text", on_round=rounds.append, **options)
        return rounds

    rounds = decode()
    assert {each.kind for each in rounds if each.drafted} == {MEMORY}
    assert sum(each.accepted for each in rounds) > 5
    assert decode(draft_text=target)[0].kind == "text"


def test_a_memory_of_other_languages_is_not_used(new_session: Callable[..., Session], tmp_path: Path) -> None:
    variants = '<tuv xml:lang="en-US"><seg>a</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv>'
    (tmp_path / "a.tmx").write_text(f'<tmx version="1.4"><header srclang="en"/><body><tu>{variants}</tu></body></tmx>')
    memory = TranslationMemory.open(tmp_path / "a.tmx")
    assert memory.is_for("eng_Latn", "deu_Latn") and memory.is_for(None, None) and memory.is_for(None, "de_DE")
    assert not memory.is_for("deu_Latn", "eng_Latn") and not memory.is_for(None, "fra_Latn")
    assert TranslationMemory.from_pairs([("a", "b")]).is_for("fra_Latn", "deu_Latn")


def test_load_opens_a_file_before_weights_are_read(
    tmp_path: Path, outputs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in outputs.items()))
    session = load(BUNDLED / "t5-web-docs-draft", memory=path)
    assert isinstance(session.memory, TranslationMemory) and len(session.memory) == len(outputs)
    assert load(BUNDLED / "t5-web-docs-draft", memory=session.memory).memory is session.memory
    monkeypatch.setattr(ModelPair, "load_weights", None)
    with pytest.raises(InputError, match="no.tsv: No such file"):
        load(BUNDLED / "t5-web-docs-draft", memory=tmp_path / "no.tsv")


def test_what_is_not_a_memory_and_speech_models_are_refused(pair: Session) -> None:
    with pytest.raises(InputError, match="memory: must be a TranslationMemory, not 3"):
        Session(pair.model, pair.tokenizer, memory=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="memory: holds texts, but this model reads speech; leave it out"):
        Session(tiny_whisper(), Letters(), memory=TranslationMemory.from_pairs([("a", "b")]))

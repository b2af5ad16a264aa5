"""Text tokens become words, as in openai-whisper's tokenizer.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from speculative_decoding.errors import InputError
from speculative_decoding.speech.speech_text import SpeechText
from tests.support.speech import END, Letters, speech_model

AUDIO = speech_model().audio
assert AUDIO is not None


BYTE = 1000  # the token of byte 0


class Bytes(Letters):
    """Each token is a byte of UTF-8."""

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token - BYTE for token in tokens).decode(errors="replace")


def test_languages_without_spaces_have_a_word_for_each_character() -> None:
    text = SpeechText(Letters(), AUDIO)
    tokens = [0, 1, 37, 2, END]
    assert text.words(tokens, "ja") == [("a", [0]), ("b", [1]), (" ", [37]), ("c", [2]), ("<|endoftext|>", [END])]
    assert text.words(tokens, "en") == [("ab", [0, 1]), (" c", [37, 2]), ("<|endoftext|>", [END])]


@pytest.mark.parametrize("content", ["aä€b".encode(), b"a\xffb"])
def test_characters_of_several_tokens_are_one_word(content: bytes) -> None:
    found = SpeechText(Bytes(), AUDIO).words([*(BYTE + byte for byte in content), END], "ja")
    assert [word for word, _ in found] == [*content.decode(errors="replace"), "<|endoftext|>"]
    assert bytes(token - BYTE for _, own in found[:-1] for token in own) == content


def test_special_tokens_are_no_text() -> None:
    text = SpeechText(Letters(), AUDIO)
    assert text.encode("ab") == [0, 1]
    with pytest.raises(InputError, match=r"^prompt: contains the special token <\|de\|>; remove it"):
        text.encode("a <|de|>", "prompt")
    assert text.encode("a <|xx|>")

"""The text tokens of a speech model: encoding, decoding, splitting into words, and tokens banned from outputs."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby

from ..errors import InputError
from ..loading.tokenizer import REPLACEMENT, Tokenizer
from ..models.whisper_tokens import AudioConfig

WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")  # languages that are written without spaces between words
SYMBOLS = [
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}"),
    *("♪♪", "♪♪♪"),
]
NOTES = "♩♪♫♬♭♮♯"  # notes of several tokens share their first token, so only the first one is suppressed


class SpeechText:
    """Encodes and decodes a speech model's text, with the same results as openai-whisper's tokenizer.

    The ids of text tokens are below `audio.end`, except for tokens added to the vocabulary, whose ids are above the
    timestamps.
    """

    def __init__(self, tokenizer: Tokenizer, audio: AudioConfig) -> None:
        self._tokenizer = tokenizer
        self.audio = audio

    @property
    def pieces(self) -> Mapping[int, str]:
        """The vocabulary's pieces, keyed by id."""
        return self._tokenizer.vocabulary.pieces

    def encode(self, text: str, name: str = "text") -> list[int]:
        """Encode a text. Raises `InputError` naming the argument `name` if the text contains special tokens."""
        if "<|" in text:  # checked first, because searching for each token takes longer than encoding
            for token, piece in self.pieces.items():
                if not self.audio.is_text(token) and piece in text:
                    raise InputError(f"contains the special token {piece}", name, "remove it")
        return self.text_tokens(text)

    def initial_prompt(self, prompt: str | None) -> list[int]:
        """Encode the value of the option `initial_prompt`. Raises `InputError` if it contains special tokens."""
        return [] if prompt is None else self.encode(" " + prompt.strip(), "initial_prompt")

    def text_tokens(self, text: str) -> list[int]:
        """Encode a text, leaving out special tokens."""
        return [token for token in self._tokenizer.encode_output(text) if self.audio.is_text(token)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens to text, leaving out timestamps. Other special tokens are decoded to their pieces."""
        audio = self.audio
        shown = [token for token in tokens if not audio.is_timestamp(token)]
        if all(map(audio.is_text, shown)):
            return self._tokenizer.decode(shown)
        return "".join(
            self._tokenizer.decode(list(run)) if is_text else "".join(self.pieces[each] for each in run)
            for is_text, run in groupby(shown, audio.is_text)
        )

    def is_spoken(self, token: int) -> bool:
        """Whether a token is a text token or a timestamp."""
        return self.audio.is_text(token) or self.audio.is_timestamp(token)

    def words(self, tokens: Sequence[int], language: str) -> list[tuple[str, list[int]]]:
        """Split text tokens into words, each with its tokens. A final `audio.end` token is a separate word."""
        pieces = list(self.characters(tokens))
        if language in WITHOUT_SPACES:
            return pieces
        words: list[tuple[str, list[int]]] = []
        for text, own in pieces:
            starts_word = not self.audio.is_text(own[0]) or text.startswith(" ") or text.strip() in string.punctuation
            if starts_word or not words:
                words.append((text, list(own)))
            else:
                words[-1] = words[-1][0] + text, [*words[-1][1], *own]
        return words

    def characters(self, tokens: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
        """Split text tokens into the shortest parts that decode to complete characters, each with its tokens."""
        whole = self.decode(tokens)
        current: list[int] = []
        position = 0
        for token in tokens:
            current.append(token)
            text = self.decode(current)
            if REPLACEMENT not in text or whole[position + text.index(REPLACEMENT)] == REPLACEMENT:
                yield text, current
                current = []
                position += len(text)

    @cached_property
    def suppressed(self) -> list[int]:
        """Tokens that an output must not contain.

        These are the tokens listed in the model's files (or, if there is no list, openai-whisper's symbols and sound
        descriptions), all special tokens except the end token, and unused ids that pad the vocabulary.
        """
        audio = self.audio
        special = {audio.transcribe, audio.translate, audio.start, audio.previous, audio.previous - 1, audio.no_speech}
        own = self._symbols if audio.suppressed is None else audio.suppressed
        return sorted(special.union(own, audio.unused))

    @property
    def _symbols(self) -> set[int]:
        found = {self.text_tokens(" -")[0], self.text_tokens(" '")[0]}
        for symbol in [*SYMBOLS, *NOTES]:
            for tokens in (self.text_tokens(symbol), self.text_tokens(" " + symbol)):
                if len(tokens) == 1 or symbol in NOTES:
                    found.add(tokens[0])
        return found

    @cached_property
    def blank(self) -> list[int]:
        """Tokens that an output must not begin with."""
        if self.audio.begin_suppressed is not None:
            return [*self.audio.begin_suppressed]
        return [*self.text_tokens(" "), self.audio.end]

"""The clean-up of spaces that `clean_up_tokenization_spaces` enables: "Hello , it 's" becomes "Hello, it's".

transformers applies it to decoded text, but not for BPE models, whose spaces are exact.
"""

from __future__ import annotations

# The replacements of `PreTrainedTokenizerBase.clean_up_tokenization`, in the same order. Each only removes spaces.
REPLACEMENTS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
# All characters of unfinished matches. Only a final run of these can begin a match that later text completes.
OPEN = " 'nvr"


def clean_up(text: str) -> str:
    for found, replaced in REPLACEMENTS:
        text = text.replace(found, replaced)
    return text


class StreamedCleanUp:
    """Cleans up text that arrives in parts. Holds back the end of the text while later parts may change it."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: str) -> str:
        """Return the cleaned-up text that no later part can change."""
        self._held += text
        start = len(self._held.rstrip(OPEN))
        space = self._held.find(" ", start)  # every replaced string starts with a space
        end = len(self._held) if space < 0 else space
        final, self._held = self._held[:end], self._held[end:]
        return clean_up(final)

    def finish(self) -> str:
        """Return the rest of the text."""
        held, self._held = self._held, ""
        return clean_up(held)

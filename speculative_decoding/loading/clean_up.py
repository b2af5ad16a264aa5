"""The space clean-up that `clean_up_tokenization_spaces` enables: "Hello , it 's" becomes "Hello, it's".

transformers cleans up decoded text in this way, except for BPE models, whose spaces are exact.
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
# All characters that can occur in an incomplete match. Only a trailing run of them can begin a match that later text
# completes.
OPEN = " 'nvr"


def clean_up(text: str) -> str:
    for found, replaced in REPLACEMENTS:
        text = text.replace(found, replaced)
    return text


class StreamedCleanUp:
    """Cleans up text that arrives in parts. Holds back the end of the text as long as later parts may change it."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: str) -> str:
        """Add a part, and return the cleaned-up text that no later part can change."""
        self._held += text
        start = len(self._held.rstrip(OPEN))
        space = self._held.find(" ", start)  # every replaced string starts with a space
        end = len(self._held) if space < 0 else space
        final, self._held = self._held[:end], self._held[end:]
        return clean_up(final)

    def finish(self) -> str:
        """Return the remaining text, cleaned up."""
        held, self._held = self._held, ""
        return clean_up(held)

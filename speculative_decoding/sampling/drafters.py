"""The drafters that the option `drafter` can name, and their properties.

To add a drafter, add a line to `DRAFTERS` and a file in `drafters/`. All other code reads this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class DrafterFacts(NamedTuple):
    """Where a drafter is defined, and what it uses.

    module: the module in `drafters/` whose function `build` makes the drafter; see `drafters.choose_drafter`.
    uses_model: whether the drafter runs the draft model or draft head.
    uses_ngrams: whether it looks up n-grams.
    uses_texts: whether it drafts from the texts given with a request.
    help: the source of its drafts, for the help text of the option.
    """

    module: str
    uses_model: bool = False
    uses_ngrams: bool = False
    uses_texts: bool = False
    help: str = ""

    def described(self, name: str) -> str:
        return f"{name} ({self.help})" if self.help else name


DRAFTERS: Mapping[str, DrafterFacts] = {
    "model": DrafterFacts("model", uses_model=True, help="the draft model or head"),
    "text": DrafterFacts("auto", uses_texts=True, help="the given texts"),
    "ngram": DrafterFacts(
        "auto", uses_ngrams=True, uses_texts=True, help="also copies from the prompt, the output and a store"
    ),
    "auto": DrafterFacts("auto", uses_model=True, uses_ngrams=True, uses_texts=True, help="all"),
    "none": DrafterFacts("none"),
}

"""The drafters that the option `drafter` can name, and their properties.

To add one, add a line to `DRAFTERS` and a file in `drafters/`. All other code reads this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class DrafterFacts(NamedTuple):
    """Where a drafter is defined, and what it uses.

    module: the module in `drafters/` whose function `build` makes the drafter; see `drafters.choose_drafter`.
    uses_model: whether it runs the draft model or draft head.
    uses_ngrams: whether it looks up n-grams.
    uses_texts: whether it follows the texts that a request gives.
    """

    module: str
    uses_model: bool = False
    uses_ngrams: bool = False
    uses_texts: bool = False


DRAFTERS: Mapping[str, DrafterFacts] = {
    "model": DrafterFacts("model", uses_model=True),
    "text": DrafterFacts("auto", uses_texts=True),
    "ngram": DrafterFacts("auto", uses_ngrams=True, uses_texts=True),
    "auto": DrafterFacts("auto", uses_model=True, uses_ngrams=True, uses_texts=True),
    "none": DrafterFacts("none"),
}

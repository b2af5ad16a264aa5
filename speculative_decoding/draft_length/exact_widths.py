"""The exact widths: pass widths at which each position has the same bits, with and without drafts.

All candidates are compared once per target and device, because the output tokens depend on which widths are chosen. The
choice depends only on bits, never on a timing or a draft, so all runs on a device agree
(docs/decisions/exactness-class.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import note
from .costs import max_measured_width, next_power_of_two, powers_of_two
from .store import CalibrationStore

if TYPE_CHECKING:
    from .kernel_bits import Bits
    from .probe import Probe

# These values are the same on every device.
COMPARED_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 15, 16, 17, 24, 32)
NOTE_SECONDS = 10.0  # between progress notes while widths are compared
MAX_USUAL_WIDTH = 16  # most passes that verify drafts have at most this width
MAX_TYPICAL_WIDTH = 10  # if 70 % of the draft tokens are accepted, longer drafts are less than 3 % faster


class ExactWidths:
    """Determines, if necessary by comparison, which passes of a target have the same bits on a device where not all do.

    Args:
        probe: Returns the probe that compares passes on this device. Called only when a comparison is needed.
        store: Returns the store that keeps the results.
    """

    def __init__(self, probe: Callable[[], Probe], store: Callable[[], CalibrationStore]) -> None:
        self._probe = probe
        self._store = store

    @property
    def widths(self) -> list[int]:
        """The exact widths among `COMPARED_WIDTHS`."""
        self._compare_widths()
        store = self._store()
        known = store.same_bits.get(1, {})
        return [width for width in COMPARED_WIDTHS if known.get(width, store.is_read_only)]

    @property
    def borders(self) -> tuple[list[int], list[int]]:
        """The KV-cache capacities and the source capacities at which the bits of exact passes change."""
        self._compare_widths()
        store = self._store()
        return store.capacity_borders, store.source_borders

    def same_bits(self, rows: int, width: int) -> bool:
        """Whether passes of this shape have the same bits as the exact widths."""
        rows = next_power_of_two(rows)
        reference = self.widths[0]  # compares all widths of a single row on first use
        store = self._store()
        known = store.same_bits.setdefault(rows, {})
        if store.is_read_only:
            return known.get(width, True)
        if width not in known:
            store.announce()
            probe = self._probe()
            kernels = probe.kernel_bits([(1, reference), (rows, width)])
            same = kernels[1, reference] == kernels[rows, width]
            if same and rows == 1:
                same = probe.bits(width) == probe.bits(reference)
            elif same:
                same = probe.batch_bits(rows, width) == [probe.single_bits(row, reference) for row in range(2)]
            known[width] = same
            store.save()
        return known[width]

    def known_same_bits(self, rows: int, width: int) -> bool | None:
        """`same_bits` for one of `COMPARED_WIDTHS`; None if it has not been compared, False for any other width."""
        if rows == 1 or width not in self.widths:
            return width in self.widths
        return self._store().same_bits.get(rows, {}).get(width)

    def is_exact_by_default(self, num_draft_tokens: int | None, slots: int) -> bool:
        """Whether exact passes should be the default, which is so if passes of usual widths are exact without padding.

        Timings are not considered, because they could change the default, and so the tokens, from run to run.

        Args:
            num_draft_tokens: The length of every draft; 0 for baseline decoding, None for an adaptive length.
            slots: The maximum number of rows that are decoded together.
        """
        if num_draft_tokens is None:
            usual = [width for width in COMPARED_WIDTHS if 2 <= width <= MAX_TYPICAL_WIDTH]
        else:
            usual = [num_draft_tokens + 1]
        return all(self.same_bits(1, width) for width in usual) and self.batches_match(slots, usual[-1])

    def width_for(self, tokens: int) -> int | None:
        """The width of the narrowest exact single-row pass that can hold this many tokens; None if none can."""
        if self.same_bits(1, tokens):
            return tokens
        return min((width for width in self.widths if width >= tokens), default=None)

    def batches_match(self, slots: int, tokens: int = 1) -> bool:
        """Whether a row has the same bits in any batch of up to `slots` rows.

        tokens: the number of tokens that a pass must be able to hold.
        """
        for rows in powers_of_two(slots)[1:]:
            narrow = [width for width in self.widths if width <= max_measured_width(rows)]
            compared = {*self.widths[:1], *narrow[-1:], self.width_for(tokens)}
            if not all(width is not None and self.same_bits(rows, width) for width in compared):
                return False
        return True

    def widths_for(self, rows: int, num_draft_tokens: int | None) -> list[int]:
        """The exact widths for drafts of this length, or of any length if None."""
        longest = self.widths[-1] if num_draft_tokens is None else self.width_for(num_draft_tokens + 1)
        widths = sorted({*self.widths, longest or 1})
        if rows == 1:
            return widths
        return [width for width in widths if width <= (longest or 1) and self.same_bits(rows, width)]

    def candidates(self, rows: int) -> list[int]:
        """The exact widths whose costs are measured."""
        exact = self.widths
        widths = [width for width in exact if width <= max_measured_width(rows)] or exact[:1]
        return widths if rows == 1 else [width for width in widths if self.same_bits(rows, width)]

    def _compare_widths(self) -> None:
        """Group the widths by their bits, and choose the exact ones."""
        store = self._store()
        if store.is_read_only or store.same_bits.get(1):
            return
        store.announce()
        probe = self._probe()
        kernels = probe.kernel_bits([(1, width) for width in COMPARED_WIDTHS])
        groups: list[tuple[list[Bits], list[int]]] = []
        noted = time.monotonic()
        for done, width in enumerate(COMPARED_WIDTHS):
            if time.monotonic() - noted > NOTE_SECONDS:
                noted = time.monotonic()
                note(f"comparing the bits of pass widths, once for this model: {done} of {len(COMPARED_WIDTHS)}")
            bits = [kernels[1, width], *probe.bits(width)]
            group = next((widths for other, widths in groups if other == bits), None)
            if group is None:
                groups.append((bits, [width]))
            else:
                group.append(width)
        exact = choose_exact_widths([widths for _, widths in groups])
        store.capacity_borders, store.source_borders = probe.borders([exact[0], exact[-1]])
        store.same_bits[1] = {width: width in exact for width in COMPARED_WIDTHS}
        store.save()


def choose_exact_widths(groups: Sequence[Sequence[int]]) -> Sequence[int]:
    """The group with the most usual widths. Ties are broken in favor of the group with the narrowest pass."""
    return max(groups, key=lambda widths: (sum(width <= MAX_USUAL_WIDTH for width in widths), -min(widths)))

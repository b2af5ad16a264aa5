"""The exact widths: pass widths that give each position the same bits, with and without drafts.

They are compared completely, once, because tokens depend on them. They are chosen by bits, never by a timing or a
draft, so all runs on a device agree (docs/decisions/exactness-class.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .store import CalibrationStore

if TYPE_CHECKING:
    from .probe import Bits, Probe

# The same on every device
COMPARED_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 15, 16, 17, 24, 32)
MAX_USUAL_WIDTH = 16  # most passes of drafts are no wider
MAX_TYPICAL_WIDTH = 10  # if 70 % of the draft tokens are accepted, longer drafts gain less than 3 %
MAX_POSITIONS = 256  # rows * width of the largest pass that is measured for several rows


class ExactWidths:
    """Which passes of a target have the same bits. Missing comparisons are made.

    Args:
        probe: Makes, when it is needed, what compares passes on this device.
        store: Opens the store of comparisons.
        any_width: Whether passes of all shapes are known to give the same bits, so that nothing must be compared.
    """

    def __init__(
        self, probe: Callable[[], Probe], store: Callable[[], CalibrationStore], *, any_width: bool = False
    ) -> None:
        self.probe = probe
        self.store = store
        self.any_width = any_width

    @property
    def widths(self) -> list[int]:
        """The exact widths among `COMPARED_WIDTHS`."""
        if self.any_width:
            return [*COMPARED_WIDTHS]
        self._compare_widths()
        store = self.store()
        known = store.found.same_bits.get(1, {})
        return [width for width in COMPARED_WIDTHS if known.get(width, store.is_read_only)]

    @property
    def fixed_capacity(self) -> bool:
        """Whether bits depend on the capacity of the KV cache."""
        if self.any_width:
            return False
        self._compare_widths()
        return self.store().found.fixed_capacity

    def same_bits(self, rows: int, width: int) -> bool:
        """Whether passes of this shape have the bits of the exact widths, as far as samples show."""
        if self.any_width:
            return True
        rows = next_power_of_two(rows)
        reference = self.widths[0]  # compares all single rows first
        store = self.store()
        known = store.found.same_bits.setdefault(rows, {})
        if store.is_read_only:
            return known.get(width, True)
        if width not in known:
            store.announce()
            probe = self.probe()
            if rows == 1:
                known[width] = probe.bits(width) == probe.bits(reference)
            else:
                single_rows = [probe.single_bits(row, reference) for row in range(2)]
                known[width] = probe.batch_bits(rows, width) == single_rows
            store.save()
        return known[width]

    def is_exact_by_default(self, num_draft_tokens: int | None, slots: int) -> bool:
        """Whether decoding loses nothing with exact passes, as far as bits tell: usual passes need no padding.

        Times have no say, because a default that follows them could change from run to run, and tokens with it.

        Args:
            num_draft_tokens: Of every draft; 0 for baseline decoding, None for an adaptive length.
            slots: The most rows that are decoded together.
        """
        if self.any_width:
            return True
        if num_draft_tokens is None:
            usual = [width for width in COMPARED_WIDTHS if 2 <= width <= MAX_TYPICAL_WIDTH]
        else:
            usual = [num_draft_tokens + 1]
        return all(self.same_bits(1, width) for width in usual) and self.batches_match(slots, usual[-1])

    def width_for(self, tokens: int) -> int | None:
        """The narrowest exact pass of a single row that can hold this many tokens; None if there is none."""
        if self.any_width or self.same_bits(1, tokens):
            return tokens
        return min((width for width in self.widths if width >= tokens), default=None)

    def batches_match(self, slots: int, tokens: int = 1) -> bool:
        """Whether a row has the same bits in any batch of up to `slots` rows, as far as samples show.

        tokens: that a pass must be able to hold.
        """
        if self.any_width:
            return True
        for rows in powers_of_two(slots)[1:]:
            narrow = [width for width in self.widths if width <= max_batched_width(rows)]
            compared = {*self.widths[:1], *narrow[-1:], self.width_for(tokens)}
            if not all(width is not None and self.same_bits(rows, width) for width in compared):
                return False
        return True

    def widths_for(self, rows: int, num_draft_tokens: int | None) -> list[int]:
        """The exact widths with drafts of this length, or of any length if it is None."""
        longest = self.widths[-1] if num_draft_tokens is None else self.width_for(num_draft_tokens + 1)
        widths = sorted({*self.widths, longest or 1})
        if rows == 1:
            return widths
        return [width for width in widths if width <= (longest or 1) and self.same_bits(rows, width)]

    def _compare_widths(self) -> None:
        """Group the widths by their bits, and choose the exact ones."""
        store = self.store()
        found = store.found
        if store.is_read_only or found.same_bits.get(1):
            return
        store.announce()
        probe = self.probe()
        groups: list[tuple[list[Bits], list[int]]] = []
        for width in COMPARED_WIDTHS:
            bits = probe.bits(width)
            group = next((widths for other, widths in groups if other == bits), None)
            if group is None:
                groups.append((bits, [width]))
            else:
                group.append(width)
        exact = choose_exact_widths([widths for _, widths in groups])
        found.fixed_capacity = probe.capacity_matters(exact[0])
        found.same_bits[1] = {width: width in exact for width in COMPARED_WIDTHS}
        store.save()


def choose_exact_widths(groups: Sequence[Sequence[int]]) -> Sequence[int]:
    """The group with the most usual widths; among equally large ones, the group with the narrowest pass."""
    return max(groups, key=lambda widths: (sum(width <= MAX_USUAL_WIDTH for width in widths), -min(widths)))


def max_batched_width(rows: int) -> int:
    """The widest pass over several rows that is measured."""
    return min(MAX_USUAL_WIDTH, MAX_POSITIONS // rows)


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to the first that is at least `most`."""
    return [1 << i for i in range((most - 1).bit_length() + 1)]


def next_power_of_two(rows: int) -> int:
    return 1 << (rows - 1).bit_length()

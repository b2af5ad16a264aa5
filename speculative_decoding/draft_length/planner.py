"""Plans the rounds of a session: pass widths and draft lengths, from the costs measured on this device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..drafters.base import BatchDrafter
from ..errors import InputError, Name, Words, compiling
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from ..sampling import GenerationOptions
from .adaptive import AdaptiveLength
from .base import DraftLength, FixedLength
from .calibration import Calibration, calibration_key, fingerprint, shared_store
from .costs import MAX_WIDTH, RoundCosts
from .exactness import Price, exactness_price
from .passes import UNPADDED, PassWidths
from .probe import Probe


class PassPlanner:
    """The pass widths and draft lengths for requests of one session, and the price of exactness.

    Results are kept for later requests with the same options, so an adaptive length learns from all of them.

    Args:
        target: The model whose passes are planned.
        draft: The network of the draft model or draft head, if there is one.
        make_drafter: Builds a drafter that always runs `draft`, for calibration to time; None without a draft.
        shares_encoder: Whether the draft model uses the target's encoder output, which makes its prefill cheaper.
    """

    def __init__(
        self,
        target: EncoderDecoder,
        draft: EncoderDecoder | DraftHead | None,
        make_drafter: Callable[[], BatchDrafter] | None = None,
        *,
        shares_encoder: bool = False,
    ) -> None:
        self._target = target
        self._draft = draft
        self._make_drafter = make_drafter
        self._shares_encoder = shares_encoder
        self._prior: Sequence[float] = draft.config.acceptance if isinstance(draft, DraftHead) else ()
        self._calibrations: dict[bool, Calibration] = {}  # by whether the draft runs
        self._widths: dict[tuple[Any, ...], PassWidths] = {}
        self._lengths: dict[tuple[str, int, bool, bool], DraftLength] = {}

    def draft_length(self, options: GenerationOptions, slots: int = 1) -> DraftLength:
        """The draft length for these options. An adaptive one is kept for later requests."""
        num_draft_tokens = 0 if options.drafter == "none" else options.num_draft_tokens
        if isinstance(num_draft_tokens, DraftLength):
            return num_draft_tokens
        if isinstance(num_draft_tokens, int):
            return FixedLength(num_draft_tokens)
        if num_draft_tokens != "auto":  # GenerationOptions accepts any object
            raise InputError(
                f"must be a whole number, auto or a DraftLength, not {num_draft_tokens!r}", "num_draft_tokens"
            )
        widths = self.widths(options, slots)
        key = num_draft_tokens, slots, widths.exact, self._runs_draft(options)
        if key not in self._lengths:
            self._lengths[key] = AdaptiveLength(widths.costs, prior=self._prior)
        return self._lengths[key]

    @compiling()
    def widths(self, options: GenerationOptions, slots: int = 1) -> PassWidths:
        """The widths of the target's passes. The first call for a number of slots measures the device."""
        num_draft_tokens: Any = 0 if options.drafter == "none" else options.num_draft_tokens
        if options.num_beams > 1 or (options.strict is False and isinstance(num_draft_tokens, int)):
            return UNPADDED
        key = self._runs_draft(options), num_draft_tokens, options.strict, slots
        if key not in self._widths:
            if options.strict is None:
                exact = self.price(options, slots).is_worth_it
            else:
                exact = options.strict and self.calibration(options).batches_match(slots)
            self._widths[key] = self._plan_widths(options, num_draft_tokens, exact=exact)
        return self._widths[key]

    def price(self, options: GenerationOptions, slots: int = 1) -> Price:
        """The share of the speed that exact passes cost with these options, as measured."""
        num_draft_tokens = 0 if options.drafter == "none" else options.num_draft_tokens
        fixed = num_draft_tokens if isinstance(num_draft_tokens, int) else None
        return exactness_price(self.calibration(options), fixed, slots, self._prior)

    def calibration(self, options: GenerationOptions) -> Calibration:
        """Measured costs of the target's passes, and of the draft if these options run it."""
        runs_draft = self._runs_draft(options)
        if runs_draft not in self._calibrations:
            store = shared_store(calibration_key(self._target))
            if runs_draft:
                assert self._draft is not None
                probe = Probe(self._target, self._make_drafter)
                draft = fingerprint(self._draft)
                calibration = Calibration(probe, store, f"{draft}-shared" if self._shares_encoder else draft)
            else:
                calibration = Calibration(Probe(self._target), store)
            self._calibrations[runs_draft] = calibration
        return self._calibrations[runs_draft]

    def calibrate(self, options: GenerationOptions, slots: int = 1, *, again: bool = False) -> None:
        """Measure the device now for up to `slots` rows, instead of during the first request.

        Args:
            again: Discard earlier measurements, including those of other processes.
        """
        calibration = self.calibration(options)
        if again:
            for each in self._calibrations.values():
                each.forget()
            self._widths.clear()
            self._lengths.clear()
        for rows in range(1, slots + 1):
            calibration.costs(rows)
        self.widths(options, slots)

    def exactness_note(self, options: GenerationOptions, slots: int = 1) -> Words | None:
        """One line that says why drafts or other rows of the batch may change a token, or None if they cannot."""
        if options.num_beams > 1 or not options.is_comparable or options.strict is False:
            return None
        if self.widths(options, slots).exact:
            return None
        price = self.price(options, slots)
        if not price.is_possible:
            way_out = ("decode with 1 slot",) if slots > 1 else ("choose a smaller ", Name("num_draft_tokens"))
            return (
                "tokens may differ where the target's scores nearly tie: no exact passes on this device; ",
                *way_out,
            )
        return (
            "tokens may differ from baseline decoding where the target's scores nearly tie; ",
            *(Name("strict"), f" prevents that and costs {price.share:.0%} of the speed"),
        )

    def _runs_draft(self, options: GenerationOptions) -> bool:
        return self._draft is not None and options.drafter in ("model", "auto") and options.num_draft_tokens != 0

    def _plan_widths(self, options: GenerationOptions, num_draft_tokens: Any, *, exact: bool) -> PassWidths:
        """Plan for an adaptive length, or a fixed one, which sets the width of nearly all passes."""
        calibration = self.calibration(options)
        if exact and isinstance(num_draft_tokens, int) and not calibration.has_exact_pass(num_draft_tokens + 1):
            raise InputError(
                f"{num_draft_tokens} is too many for exact passes on this device, which have up to "
                f"{max(calibration.exact_widths) - 1}",
                "num_draft_tokens",
                ("choose fewer, or leave out ", Name("strict")),
            )
        if isinstance(num_draft_tokens, int):
            extra_widths = [num_draft_tokens + 1]
        elif exact:  # for a caller's `DraftLength`, whose drafts may not fit into the widest measured pass
            extra_widths = [width for width in calibration.exact_widths if width > MAX_WIDTH]
        else:
            extra_widths = []

        planned: dict[int, tuple[RoundCosts, RoundCosts]] = {}  # by rows: measured costs, and those planned from them

        def costs(rows: int) -> RoundCosts:
            measured = calibration.costs(rows)
            if rows in planned and planned[rows][0] is measured:  # nearly always; called several times a round
                return planned[rows][1]
            found = calibration.exact_costs(rows) if exact else measured
            for width in extra_widths:
                if not exact or calibration.same_bits(rows, width):
                    found = found.with_width(width)
            planned[rows] = measured, found
            return found

        reserved = None
        if exact and calibration.fixed_capacity:
            reserved = max(*calibration.exact_widths, *extra_widths)
        return PassWidths(costs, exact, reserved, calibration.measure_again)

"""Plans the rounds of a session: pass widths and draft lengths, from the costs measured on this device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial

from ..drafters.base import BatchDrafter
from ..errors import InputError, Name, Words
from ..models.backend import computing
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from ..sampling import GenerationOptions
from .adaptive import AdaptiveLength
from .base import DraftLength, FixedLength
from .calibration import Calibration, calibration_key, fingerprint, gives_any_width_the_same_bits, powers_of_two
from .costs import RoundCosts
from .passes import UNPADDED, PassWidths
from .probe import Probe
from .store import shared_store


class PassPlanner:
    """The pass widths and draft lengths for requests of one session.

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
        self._widths: dict[tuple[bool, int | str | None, bool | None, int], PassWidths] = {}
        self._lengths: dict[tuple[int, bool, bool], DraftLength] = {}

    def draft_length(self, options: GenerationOptions, slots: int = 1) -> DraftLength:
        """The draft length for these options. An adaptive one is kept for later requests."""
        num_draft_tokens = options.draft_tokens
        if isinstance(num_draft_tokens, DraftLength):
            return num_draft_tokens
        if isinstance(num_draft_tokens, int):
            return FixedLength(num_draft_tokens)
        if num_draft_tokens != "auto":  # GenerationOptions accepts any object
            raise InputError(
                f"must be a whole number, auto or a DraftLength, not {num_draft_tokens!r}", "num_draft_tokens"
            )
        widths = self.widths(options, slots)
        key = slots, widths.exact, self._runs_draft(options)
        if key not in self._lengths:
            self._lengths[key] = AdaptiveLength(widths.costs, prior=self._prior)
        return self._lengths[key]

    @computing()
    def widths(self, options: GenerationOptions, slots: int = 1) -> PassWidths:
        """The widths of the target's passes. Compares bits if exactness depends on them, but measures no times."""
        num_draft_tokens = options.draft_tokens
        length = num_draft_tokens if isinstance(num_draft_tokens, int | str) else None  # of a `DraftLength`, unknown
        if options.num_beams > 1 or (options.strict is False and length != "auto"):
            return UNPADDED
        key = self._runs_draft(options), length, options.strict, slots
        if key not in self._widths:
            self._widths[key] = self._plan_widths(options, length, slots)
        return self._widths[key]

    @computing()
    def prepare(self, options: GenerationOptions, slots: int = 1) -> None:
        """Measure what requests with these options need, so that none of them waits for it."""
        widths = self.widths(options, slots)
        for rows in powers_of_two(slots):
            widths.costs(rows)

    def calibration(self, options: GenerationOptions) -> Calibration:
        """Measured costs of the target's passes, and of the draft if these options run it."""
        runs_draft = self._runs_draft(options)
        if runs_draft not in self._calibrations:
            make_drafter, draft = None, ""
            if runs_draft:
                assert self._draft is not None
                make_drafter = self._make_drafter
                draft = fingerprint(self._draft) + "-shared" * self._shares_encoder
            self._calibrations[runs_draft] = Calibration(
                Probe(self._target, make_drafter),
                shared_store(calibration_key(self._target)),
                draft,
                any_width=self._any_width,
            )
        return self._calibrations[runs_draft]

    def calibrate(self, options: GenerationOptions, slots: int = 1, *, again: bool = False) -> None:
        """Measure the device for up to `slots` rows until the costs are no longer rough.

        Args:
            again: Discard earlier measurements, including those of other processes.
        """
        calibration = self.calibration(options)
        if again:
            for each in self._calibrations.values():
                each.forget()
            self._widths.clear()
            self._lengths.clear()
        exact = self.widths(options, slots).exact
        for rows in powers_of_two(slots):
            calibration.settle(rows, exact=exact)

    def exactness_note(self, options: GenerationOptions, slots: int = 1) -> Words | None:
        """One line that says why drafts or other rows of the batch may change a token, or None if they cannot."""
        if options.num_beams > 1 or not options.is_comparable or options.strict is False:
            return None
        if self.widths(options, slots).exact:
            return None
        calibration = self.calibration(options)
        length = options.draft_tokens
        way_out: Words
        if isinstance(length, int) and calibration.exact_width(length + 1) is None:
            way_out = ("no exact passes are so wide on this device; choose a smaller ", Name("num_draft_tokens"))
        elif not calibration.batches_match(slots):
            way_out = ("no exact passes of batches on this device; decode with 1 slot",)
        else:
            way_out = (Name("strict"), " prevents that, but may be slower")
        return ("tokens may differ where the target's scores nearly tie; ", *way_out)

    @cached_property
    def _any_width(self) -> bool:
        """Whether nothing must be compared; found out once per session, because it visits all weights."""
        return gives_any_width_the_same_bits(self._target)

    def _runs_draft(self, options: GenerationOptions) -> bool:
        return self._draft is not None and options.runs_draft_model

    def _plan_widths(self, options: GenerationOptions, length: int | str | None, slots: int) -> PassWidths:
        """Plan for a fixed length, an adaptive one ("auto"), or any other (None)."""
        if self._any_width and length != "auto":
            return PassWidths(UNPADDED.costs, exact=True, any_width=True)
        calibration = self.calibration(options)
        fixed = length if isinstance(length, int) else None
        if options.strict is None:
            exact = calibration.is_exact_by_default(fixed, slots)
        else:
            exact = options.strict and calibration.batches_match(slots, calibration.exact_width(1 + (fixed or 0)) or 1)
        if exact and fixed is not None and calibration.exact_width(fixed + 1) is None:
            raise InputError(
                f"{fixed} is too many for exact passes on this device, which have up to "
                f"{max(calibration.exact_widths) - 1}",
                "num_draft_tokens",
                ("choose fewer, or leave out ", Name("strict")),
            )
        if length == "auto":
            return PassWidths(
                partial(calibration.costs, exact=exact),
                exact=exact,
                any_width=self._any_width,
                reserved=max(calibration.exact_widths) if exact and calibration.fixed_capacity else None,
                measure_again=partial(calibration.measure_again, exact=exact),
                refine=partial(calibration.refine, exact=exact),
            )
        if not exact:
            return UNPADDED

        @cache
        def widths(rows: int) -> RoundCosts:
            """Only widths: a length that does not adapt needs no times."""
            return RoundCosts(dict.fromkeys(calibration.exact_widths_for(rows, fixed), 0.0))

        reserved = max(*calibration.exact_widths, 1 + (fixed or 0)) if calibration.fixed_capacity else None
        return PassWidths(widths, exact, reserved=reserved)

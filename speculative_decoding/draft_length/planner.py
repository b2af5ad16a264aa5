"""Plans the rounds of a session: pass widths and draft lengths, from the costs measured on this device."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ..drafters.base import BatchDrafter
from ..errors import InputError, Message
from ..models.backend import computing
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from ..models.threads import turn
from ..sampling import GenerationOptions
from .adaptive import AdaptiveLength
from .base import DraftLength, FixedLength
from .calibration import Calibration
from .costs import powers_of_two
from .key import calibration_key, fingerprint, gives_any_width_the_same_bits
from .passes import ALL_EXACT, UNPADDED, PassWidths, RoundCosts
from .store import CalibrationStore

if TYPE_CHECKING:
    from .exact_widths import ExactWidths
    from .probe import Probe

STORES: dict[str, CalibrationStore] = {}  # this process's stores, by calibration key


class PassPlanner:
    """The pass widths and draft lengths for one session's requests.

    Results are kept for later requests with the same options, so an adaptive length learns from all of them.

    Attributes:
        probe: Returns the probe that times and compares passes on this device. Called only when it is needed.
        store: Returns the store of this device's measurements.
        exact_widths: Determines which passes of the target have the same bits; None if all have the same.

    Args:
        target: The model whose passes are planned.
        draft: The network of the draft model or draft head; None without a draft.
        make_drafter: Builds a drafter that always runs `draft`, so that calibration can time it; None without a draft.
        use: What else affects the draft's costs: what it shares with the target (`models.shared_encoder.shared_part`),
            or "text" if it writes text in another vocabulary.
    """

    def __init__(
        self,
        target: EncoderDecoder,
        draft: EncoderDecoder | DraftHead | None,
        make_drafter: Callable[[], BatchDrafter] | None = None,
        *,
        use: str = "",
    ) -> None:
        self._target = target
        self._draft = draft
        self._use = use
        self._prior: Sequence[float] = draft.config.acceptance if isinstance(draft, DraftHead) else ()
        self.probe: Callable[[], Probe] = cache(partial(make_probe, target, make_drafter))
        self.store: Callable[[], CalibrationStore] = cache(partial(shared_store, target))
        self.exact_widths: ExactWidths | None = None
        if not gives_any_width_the_same_bits(target):
            from .exact_widths import ExactWidths

            self.exact_widths = ExactWidths(self.probe, self.store)
        self._calibrations: dict[bool, Calibration] = {}  # by whether the draft runs
        self._widths: dict[tuple[bool, int | str | None, bool | None, int], PassWidths] = {}
        self._lengths: dict[tuple[int, bool, bool], DraftLength] = {}

    @turn()
    def draft_length(self, options: GenerationOptions, slots: int = 1) -> DraftLength:
        """The draft length for these options. An adaptive length is kept for later requests."""
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
            widen = partial(self.calibration(options).widen, exact=widths.exact)
            self._lengths[key] = AdaptiveLength(widths.costs, prior=self._prior, widen=widen)
        return self._lengths[key]

    @computing()
    def widths(self, options: GenerationOptions, slots: int = 1) -> PassWidths:
        """The widths of the target's passes. Compares bits if exactness depends on them, but measures no times."""
        num_draft_tokens = options.draft_tokens
        length = num_draft_tokens if isinstance(num_draft_tokens, int | str) else None  # None: a `DraftLength` decides
        if options.num_beams > 1 or (options.strict is False and length != "auto"):
            return UNPADDED
        if self.exact_widths is None and length != "auto":
            return ALL_EXACT
        key = self._runs_draft(options), length, options.strict, slots
        if key not in self._widths:
            fixed = length if isinstance(length, int) else None
            own = self.exact_widths
            exact = options.strict is not False if own is None else is_exact(own, options.strict, fixed, slots)
            if length == "auto":
                self._widths[key] = self._measured_widths(self.calibration(options), exact)
            elif own is not None and exact:
                self._widths[key] = unmeasured_widths(own, fixed)
            else:
                self._widths[key] = UNPADDED
        return self._widths[key]

    @computing()
    def prepare(self, options: GenerationOptions, slots: int = 1) -> None:
        """Measure the costs that requests with these options need, so that no request has to wait for a measurement."""
        widths = self.widths(options, slots)
        for rows in powers_of_two(slots):
            widths.costs(rows)

    def calibration(self, options: GenerationOptions) -> Calibration:
        """The calibration of the target's passes, and of the draft if these options run it."""
        runs_draft = self._runs_draft(options)
        if runs_draft not in self._calibrations:
            draft = ""
            if self._draft is not None and runs_draft:
                draft = fingerprint(self._draft) + (self._use and f"-{self._use}")
            self._calibrations[runs_draft] = Calibration(self.probe, self.store(), self.exact_widths, draft)
        return self._calibrations[runs_draft]

    def calibrate(self, options: GenerationOptions, slots: int = 1, *, again: bool = False) -> None:
        """Measure the device for up to `slots` rows until the costs are known well.

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
            calibration.measure_fully(rows, exact=exact)

    def exactness_note(self, options: GenerationOptions, slots: int = 1) -> str | Message | None:
        """A line that explains why drafts or other rows of the batch may change a token, or None if they cannot."""
        if options.num_beams > 1 or not options.is_comparable or options.strict is False:
            return None
        own = self.exact_widths
        if own is None or self.widths(options, slots).exact:
            return None
        length = options.draft_tokens
        way_out: str | Message
        if isinstance(length, int) and own.width_for(length + 1) is None:
            way_out = Message("no exact passes are so wide on this device; choose a smaller {num_draft_tokens}")
        elif not own.batches_match(slots):
            way_out = "no exact passes of batches on this device; decode with 1 slot"
        else:
            way_out = Message("{strict} prevents that, but may be slower")
        return Message("tokens may differ where the target's scores nearly tie; {way_out}", way_out=way_out)

    def _runs_draft(self, options: GenerationOptions) -> bool:
        return self._draft is not None and options.runs_draft_model

    def _measured_widths(self, calibration: Calibration, exact: bool) -> PassWidths:
        """Widths with measured costs, for a draft length that adapts to the costs."""
        own = self.exact_widths
        return PassWidths(
            partial(calibration.costs, exact=exact),
            exact,
            any_width=own is None,
            **({} if own is None or not exact else borders(own, max(own.widths))),
            refine=partial(calibration.refine, exact=exact),
            observe=partial(calibration.observe, exact=exact),
        )


def is_exact(own: ExactWidths, strict: bool | None, fixed: int | None, slots: int) -> bool:
    """Whether all passes are exact. fixed: the length of every draft; None if lengths differ."""
    if strict is None:
        exact = own.is_exact_by_default(fixed, slots)
    else:
        exact = strict and own.batches_match(slots, own.width_for(1 + (fixed or 0)) or 1)
    if exact and fixed is not None and own.width_for(fixed + 1) is None:
        raise InputError(
            f"{fixed} is too many for exact passes on this device, which have up to {max(own.widths) - 1}",
            "num_draft_tokens",
            Message("choose fewer, or leave out {strict}"),
        )
    return exact


def unmeasured_widths(own: ExactWidths, fixed: int | None) -> PassWidths:
    """Exact widths without costs, for a draft length that does not adapt to costs."""

    @cache
    def costs(rows: int) -> RoundCosts:
        return RoundCosts(dict.fromkeys(own.widths_for(rows, fixed), 0.0))

    return PassWidths(costs, exact=True, **borders(own, max(*own.widths, 1 + (fixed or 0))))


def borders(own: ExactWidths, widest: int) -> dict[str, Any]:
    """The fields of `PassWidths` that concern capacities. widest: the widest pass, with or without drafts."""
    capacities, sources = own.borders
    return {"reserved": widest, "capacity_borders": capacities, "source_borders": sources}


def make_probe(target: EncoderDecoder, make_drafter: Callable[[], BatchDrafter] | None) -> Probe:
    """Create a probe. Most processes need no probe, because they read stored measurements."""
    from .probe import Probe

    return Probe(target, make_drafter)


def shared_store(target: EncoderDecoder) -> CalibrationStore:
    """This process's measurements of a target. Sessions with and without a draft share them."""
    key = calibration_key(target)
    if key not in STORES:
        STORES[key] = CalibrationStore(json.loads(key))
    return STORES[key]

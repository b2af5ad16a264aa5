"""The weights of a target and of what drafts for it."""

from __future__ import annotations

import warnings

from ..models.shared_encoder import share_encoder
from .draft_head import OpenedHead
from .load import Opened


def load_pair(target: Opened, draft: Opened | OpenedHead | None) -> None:
    """A draft model whose encoder is equal to the target's shares it. What the target's generation_config.json asks for
    and is not supported is a warning.
    """
    target.load_weights()
    if ignored := target.model.generation_config.ignored:
        warnings.warn(f"{target.folder}, generation_config.json: {ignored}", stacklevel=3)
    if draft is not None:
        draft.load_weights()
    if isinstance(draft, Opened):
        share_encoder(target.model, draft.model)
    elif draft is not None:
        target.model.share_memory()

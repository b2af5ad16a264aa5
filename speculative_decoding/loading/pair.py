"""A target and what drafts for it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from ..distributed import ShardedModel
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from ..models.shared_encoder import share_encoder
from .draft_head import OpenedHead
from .load import Opened
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class Pair:
    """A target, and a draft if there is one, without weights until they are loaded."""

    opened_target: Opened
    opened_draft: Opened | OpenedHead | None

    @property
    def target(self) -> EncoderDecoder:
        return self.opened_target.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.opened_target.tokenizer

    @property
    def draft(self) -> EncoderDecoder | DraftHead | None:
        return None if self.opened_draft is None else self.opened_draft.model

    @property
    def folders(self) -> dict[str, str | None]:
        """For statistics."""
        draft = None if self.opened_draft is None else str(self.opened_draft.folder)
        return {"model": str(self.opened_target.folder), "draft_model": draft}

    def load_weights(self) -> None:
        """A draft model whose encoder is equal to the target's shares it. What the target's generation_config.json asks
        for and is not supported is a warning.
        """
        target, draft = self.opened_target, self.opened_draft
        target.load_weights()
        if ignored := target.model.generation_config.ignored:
            warnings.warn(f"{target.folder}, generation_config.json: {ignored}", stacklevel=3)
        if draft is not None:
            draft.load_weights()
        if isinstance(draft, Opened):
            share_encoder(target.model, draft.model)
        elif draft is not None and isinstance(target.model, ShardedModel):
            target.model.keep_full_cross_attention()

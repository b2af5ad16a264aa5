"""The division of subtitles into cues and lines: options and flags of openai-whisper's command line."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated as A

from ..errors import InputError, Message
from ..sampling.options import documented, validate
from ..sampling.values import Bool, Int, specs_of

SUBTITLES = ("srt", "vtt")
WIDTH = "start a new line of a subtitle before it has more than N characters"
COUNT = Message("start a new subtitle after N lines or a pause, but not with each segment (requires {max_line_width})")
WORDS = "start a new subtitle after N words of a segment"
HIGHLIGHT = "write a subtitle for each word, which is underlined in it"


@documented
@dataclass(frozen=True, kw_only=True)
class SubtitleOptions:
    """How subtitles are divided. All options need word times. Raises `InputError` for options without effect."""

    max_line_width: A[int | None, Int(1), WIDTH] = None
    max_line_count: A[int | None, Int(1), COUNT] = None
    max_words_per_line: A[int | None, Int(1), WORDS] = None
    highlight_words: A[bool, Bool(), HIGHLIGHT] = False

    def __post_init__(self) -> None:
        for name, spec in specs_of(SubtitleOptions).items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, validate(name, spec.type, value))
        if self.max_line_count and not self.max_line_width:
            raise InputError(Message("has no effect without {max_line_width}"), "max_line_count", "give both")
        if self.max_words_per_line and self.max_line_width:
            problem = Message("cannot be combined with {max_line_width}")
            raise InputError(problem, "max_words_per_line", "leave one of them out")

    @property
    def first_given(self) -> str | None:
        """The first option that differs from its default. Such an option needs word times."""
        return next((name for name in specs_of(SubtitleOptions) if getattr(self, name)), None)

    def require_effect(self, formats: Collection[str]) -> None:
        """Raise `InputError` if an option is given and none of the formats has subtitles."""
        if self.first_given is not None and not set(SUBTITLES) & set(formats):
            problem = f"has no effect on {', '.join(formats)}"
            raise InputError(problem, self.first_given, f"choose {' or '.join(SUBTITLES)}, or leave it out")

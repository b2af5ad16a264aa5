"""The names of the served model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import State

from .errors import ServerError

WHISPER = "whisper-1"  # OpenAI's name, which many clients hard-code; it stands for the served Whisper model


@dataclass(frozen=True)
class ModelNames:
    """The name in responses, and other names that requests may use."""

    id: str
    aliases: Collection[str] = ()

    def require(self, requested: object, field: str = "model") -> None:
        """Raise `ServerError` for the name of another model. field: where the request has it."""
        if requested != self.id and requested not in self.aliases:
            message = f"{field}: {str(requested)[:80]!r} does not exist (expected {self.id!r})"
            raise ServerError(404, message, field, "model_not_found")


def served_names(state: State) -> ModelNames:
    """Return the names that requests may currently use. state: the application's state."""
    names = [*state.settings.aliases, *([WHISPER] if state.service.is_speech else [])]
    return ModelNames(state.settings.model, names)

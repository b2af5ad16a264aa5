"""The names of the served model. The model that a request names is looked up only here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import State

from .errors import ServerError

WHISPER = "whisper-1"  # OpenAI's name for Whisper, which many clients hard-code; an alias of any served Whisper model


@dataclass(frozen=True)
class ModelNames:
    """The model's name in responses, and the other names that requests may use for the model."""

    id: str
    aliases: Collection[str] = ()

    def find(self, requested: object = None, field: str = "model") -> str:
        """Return the name of the model in responses. Raises `ServerError` if the request names a different model.

        requested: The name in the request, or None. field: The request's field that contains the name.
        """
        if requested is not None and requested != self.id and requested not in self.aliases:
            problem = f"{str(requested)[:80]!r} does not exist (expected {self.id!r})"
            raise ServerError.of_field(field, problem, "model_not_found", 404)
        return self.id


def served_names(state: State) -> ModelNames:
    """Return the names that requests may currently use. state: The state of the application."""
    settings = state.settings
    return ModelNames(settings.model, [*settings.aliases, *([WHISPER] if state.service.is_speech else [])])

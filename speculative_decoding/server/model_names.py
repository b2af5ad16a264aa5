"""The names of the served model, and the only place where the model of a request is looked up."""

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

    def find(self, requested: object = None, field: str = "model") -> str:
        """Return the name of the requested model in responses. None means the model of a request that names none.

        Raises `ServerError` for the name of another model. field: where the request has it.
        """
        if requested is not None and requested != self.id and requested not in self.aliases:
            problem = f"{str(requested)[:80]!r} does not exist (expected {self.id!r})"
            raise ServerError.of_field(field, problem, "model_not_found", 404)
        return self.id


def served_names(state: State) -> ModelNames:
    """Return the names that requests may currently use. state: the application's state."""
    settings = state.settings
    return ModelNames(settings.model, [*settings.aliases, *([WHISPER] if state.service.is_speech else [])])

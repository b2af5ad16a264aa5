"""Errors that are reported to clients, in OpenAI's format."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..errors import InputError, UnknownOption, one_line

FAILED = "the server failed while decoding this request; see its log"


class ServerError(Exception):
    """An error response. The message must not reveal anything about the server's machine.

    Args:
        status: The HTTP status.
        message: A description for human readers. Line breaks are escaped.
        param: The field that caused the error.
        code: A stable identifier for programs.
        headers: Additional headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = one_line(message)
        self.param = param
        self.code = code
        self.headers = headers

    @classmethod
    def of(
        cls, error: Exception, names: Mapping[str, str] = MappingProxyType({}), subject: str | None = None
    ) -> ServerError:
        """Convert an error to a response. Details are reported only for errors about options, prompts and files.

        Args:
            error: The error.
            names: Option name -> field name, for options whose name differs in the API.
            subject: The field to report if the error does not name an option.
        """
        if isinstance(error, ServerError):
            return error
        if isinstance(error, ArithmeticError):
            return cls(500, str(error), code="not_finite")
        if not isinstance(error, InputError):
            return cls(500, FAILED)
        param = subject if error.field is None else names.get(error.field, error.field)[:80]
        code = "unknown_field" if isinstance(error, UnknownOption) else "invalid_value"
        return cls(400, error.message(lambda option: names.get(option, option)), param, code)

    @classmethod
    def of_field(cls, name: str, problem: str, code: str | None = None, status: int = 400) -> ServerError:
        """Return an error about a field. Its message begins with the field's name."""
        return cls(status, f"{name}: {problem}", name, code)

    @property
    def content(self) -> dict[str, Any]:
        """The body of the response."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        types = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
        error_type = types.get(self.status, default)
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}

"""Errors for clients, in OpenAI's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..sampling.options import option_specs
from ..speech.options import transcription_specs

FAILED = "the server failed while decoding this request; see its log"
FIELDS = {
    *("prompt", "model", "n", "stream", "rounds", "q", "source", "target", "file"),
    *option_specs(),
    *transcription_specs(),
}


class ServerError(Exception):
    """An error response. The message is one line and reveals nothing about the server's machine.

    Args:
        status: HTTP status.
        message: For people.
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
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    @classmethod
    def of(cls, error: InputError) -> ServerError:
        """Convert the error of an option or prompt. Its message begins with the name or "there is no option 'NAME'"."""
        message = str(error)
        unknown = re.match(r"(?:there is|transcriptions have) no option '(\w+)'", message)
        if unknown:
            return cls(400, message, unknown[1], "unknown_field")
        words = re.findall(r"\w+", message)
        param = words[0] if words and words[0] in FIELDS else None
        return cls(400, message, param, "invalid_value")

    @property
    def content(self) -> dict[str, Any]:
        """The body of the response."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        types = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
        error_type = types.get(self.status, default)
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}

"""What a client is told when it does not get what it asked for, in OpenAI's shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..sampling.options import option_specs

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
FIELDS = {"prompt", "model", "n", "stream", "rounds", "q", "source", "target", *option_specs()}


class ServerError(Exception):
    """status: of HTTP. param: the field that is wrong. code: a word for programs. The message is one line, and says
    nothing of this machine.
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
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    @classmethod
    def of(cls, error: InputError) -> ServerError:
        """A wrong option or prompt; messages begin with its name, or with "there is no option 'name'"."""
        message = str(error)
        words = re.findall(r"\w+", message)
        unknown = re.match(r"there is no option '(\w+)'", message)
        param = unknown[1] if unknown else next((word for word in words[:1] if word in FIELDS), None)
        return cls(400, message, param, "unknown_field" if unknown else "invalid_value")

    @property
    def content(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

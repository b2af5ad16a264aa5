"""LibreTranslate's API for files: POST /translate_file and GET /download_file/NAME.

Translated files are kept in memory for a limited time, under unguessable names.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ..checkpoints.text import WAY_OUT
from ..errors import InputError
from .bodies import client_address
from .errors import ServerError
from .multipart import Part
from .shared_memory import SharedMemory
from .translation import FILE_FIELDS, IN_FILES, in_thread, of_one, read_request, text_translator

if TYPE_CHECKING:
    from .documents import Document


async def translate_file(request: Request) -> Response:
    translator = text_translator(request, with_documents=True)
    files: KeptFiles = request.app.state.files
    fields = await read_request(request, translator.fields(IN_FILES))
    client = client_address(request)
    with ExitStack() as held:
        held.enter_context(files.reserve(client, len(fields["file"].content)))
        given = await opened(request, fields)
        request.scope["prompts"] = [given.text]
        translation = await translator.open(request, [given], fields, held)

        def content() -> dict[str, Any]:
            found = of_one(translation.fields())
            assert given.file is not None
            name, suffix = file_names(given.file.name, fields.get("target"))
            try:
                encoded = given.file.encode(found.pop("translatedText"))
            except InputError as error:
                raise ServerError.of(InputError(error.problem, way_out=WAY_OUT), subject="file") from None
            key = files.keep(client, name, suffix, given.file.preamble + encoded)
            return {"translatedFileUrl": f"{own_address(request)}/download_file/{key}", **found}

        return await translation.respond(request, held, content, fields.get("stream", False), lambda new: {})


async def opened(request: Request, fields: Mapping[str, Any]) -> Document:
    """Read the file of a request. Raises `ServerError`."""
    from .documents import open_file

    part: Part = fields["file"]
    chosen = {name: fields[name] for name in (*FILE_FIELDS, "encoding") if name in fields}
    try:
        name = base_name(part.file_name)
        return await in_thread(request, lambda: open_file(part.content, name, fields.get("format"), chosen))
    except InputError as error:
        raise ServerError.of(error, subject="file") from None


def base_name(name: str) -> str:
    """Return a file name without the folders before it, which may be separated by slashes or backslashes."""
    return re.split(r"[/\\]", name)[-1]


def file_names(name: str, target: str | None) -> tuple[str, str]:
    """Return the name that users see for a translated file, such as talk_de for talk, and the suffix, such as .srt.

    target: The target language, or None if the model has no languages; the name is then that of the source.
    """
    path = PurePath(name)
    suffix = path.suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,8}", path.suffix) else ""
    stem = name.removesuffix(suffix) or "file"
    return stem if target is None else f"{stem}_{target}", suffix


def own_address(request: Request) -> str:
    """Return the URL at which the client reached the server, which may be behind a proxy with TLS.

    The headers need no check: a client that sends a false header only gets a wrong link itself.
    """
    is_encrypted = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
    return f"http{'s' if is_encrypted else ''}://{request.headers['host']}"


async def download_file(request: Request) -> Response:
    files: KeptFiles = request.app.state.files
    file = files.get(request.path_params["name"])
    headers = {"Content-Disposition": content_disposition(file.name)}  # every response also has nosniff and no-store
    return Response(file.content, media_type="application/octet-stream", headers=headers)


RANDOM_BYTES = 24  # number of random bytes in a name
MAX_NAME = 100  # maximum number of characters in the name that users see
KEPT = 64  # maximum size of all files together, as a multiple of the maximum size of a request
GROWTH = 2  # bytes reserved for each byte of a file that is being translated


class KeptFile(NamedTuple):
    """A translated file. name: The name that users see. client: The client's address. timer: Deletes the file."""

    name: str
    content: bytes
    client: str
    timer: asyncio.TimerHandle


class KeptFiles:
    """Maps random names to files. Files are never written to disk, so no name can refer to a different file.

    Memory is reserved before a file is translated, so no finished translation is refused.

    Args:
        seconds: How long a file is kept.
        max_bytes: The maximum size of all files and reservations.
    """

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._seconds = seconds
        self._files: dict[str, KeptFile] = {}
        self._memory = SharedMemory(max_bytes)

    @contextmanager
    def reserve(self, client: str, size: int) -> Iterator[None]:
        """Reserve memory for a translation within the context. size: The source file's size. Raises `ServerError`."""
        size *= GROWTH
        if not self._memory.take(client, size):
            message = "too many translated files are kept; try again in a few minutes"
            raise ServerError(429, message, code="files_full", headers={"Retry-After": str(round(self._seconds) or 1)})
        try:
            yield
        finally:
            self._memory.release(client, size)

    def keep(self, client: str, name: str, suffix: str, content: bytes) -> str:
        """Keep a file for which memory is reserved, and return its random name.

        name: The name that users see, without the suffix. suffix: The end of both names.
        """
        key = secrets.token_urlsafe(RANDOM_BYTES) + suffix
        timer = asyncio.get_running_loop().call_later(self._seconds, self._delete, key)
        self._files[key] = KeptFile(name[:MAX_NAME] + suffix, content, client, timer)
        self._memory.add(client, len(content))
        return key

    def _delete(self, key: str) -> None:
        file = self._files.pop(key)
        self._memory.release(file.client, len(file.content))

    def get(self, key: str) -> KeptFile:
        """Return a file. Raises `ServerError` for an unknown name."""
        if key not in self._files:
            raise ServerError(404, "no such file; translated files are deleted after a few minutes", code="no_file")
        return self._files[key]

    def clear(self) -> None:
        """Delete all files."""
        for key in [*self._files]:
            self._files[key].timer.cancel()
            self._delete(key)


def content_disposition(name: str) -> str:
    """Return a Content-Disposition header (RFC 6266) with a file name and, for old programs, a similar ASCII name."""
    name = "".join(each if each.isprintable() and each not in '/\\:*?"<>|' else "_" for each in name)
    plain = re.sub("[^A-Za-z0-9._-]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"

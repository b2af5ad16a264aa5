"""LibreTranslate's API for files: POST /translate_file and GET /download_file/NAME."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..errors import InputError
from .bodies import client_address
from .errors import ServerError
from .kept_files import KeptFiles, content_disposition
from .multipart import Part
from .translation import IN_FILES, of_one, read_request, text_translator
from .translator import in_thread

if TYPE_CHECKING:
    from .documents import Document


async def translate_file(request: Request) -> Response:
    translator = text_translator(request, with_documents=True)
    files: KeptFiles = request.app.state.files
    fields = await read_request(request, IN_FILES)
    client = client_address(request)
    with files.reserve(client, len(fields["file"].content)):
        given = await opened(request, fields["file"], fields.get("format"))
        request.scope["prompts"] = [given.text]
        content = of_one(await translator.translate(request, [given], fields["source"], fields["target"]))
        assert given.file is not None
        name, suffix = file_names(given.file.name, fields["target"])
        key = files.keep(client, name, suffix, given.file.preamble + given.file.encode(content.pop("translatedText")))
    return JSONResponse({"translatedFileUrl": f"{own_address(request)}/download_file/{key}", **content})


async def opened(request: Request, part: Part, format: str | None) -> Document:
    """Read the file of a request. Raises `ServerError`."""
    from .documents import open_file

    try:
        return await in_thread(request, lambda: open_file(part.content, base_name(part.file_name), format))
    except InputError as error:
        raise ServerError.of(error, subject="file") from None


def base_name(name: str) -> str:
    """Return a file name without its folders, which may be separated by slashes or backslashes."""
    return re.split(r"[/\\]", name)[-1]


def file_names(name: str, target: str) -> tuple[str, str]:
    """Return the name of a translated file for users, such as talk_de for talk, and its suffix, such as .srt."""
    path = PurePath(name)
    suffix = path.suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,8}", path.suffix) else ""
    return f"{name.removesuffix(suffix) or 'file'}_{target}", suffix


def own_address(request: Request) -> str:
    """Return the URL at which the client reached the server, which may be behind a proxy with TLS.

    The headers need no check: a client that sends a false header gets a false link, which is sent to no other client.
    """
    is_encrypted = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
    return f"http{'s' if is_encrypted else ''}://{request.headers['host']}"


async def download_file(request: Request) -> Response:
    files: KeptFiles = request.app.state.files
    file = files.get(request.path_params["name"])
    headers = {"Content-Disposition": content_disposition(file.name)}  # all responses also have nosniff and no-store
    return Response(file.content, media_type="application/octet-stream", headers=headers)

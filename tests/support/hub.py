"""A Hugging Face Hub on loopback, in this process, which the real huggingface_hub asks."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants, utils

from speculative_decoding import load
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import BUNDLED, tokenizer_folder
from speculative_decoding.loading.pair import open_pair

GATED = {
    "X-Error-Code": "GatedRepo",
    "X-Error-Message": "Access to this model is restricted. You must be authenticated to access it. Please log in.",
}
UNKNOWN = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
TINY = BUNDLED / "t5-web-docs-draft"
SMALL = {name: name.encode() for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "spiece.model")}
SINGLE = SMALL | {"model.safetensors": b"weights"}
# The functions that take the name of a model
WAYS: dict[str, Callable[[str], object]] = {
    "model": lambda name: load(name),
    "draft model": lambda name: open_pair(TINY, name),
    "tokenizer": lambda name: tokenizer_folder(TINY, {}, name),
    "conversion": lambda name: convert(name),
    "tokenizer of a conversion": lambda name: convert(str(TINY), Path("out"), tokenizer=name),
}
OTHERS = {"README.md": b"# a model\n", ".gitattributes": b"*.npz filter=lfs\n", "onnx/model.onnx": b"onnx"}


@dataclass
class Repository:
    """A model. failures: status and headers instead of a file, by its name."""

    files: Mapping[str, bytes]
    commit: str = "a" * 40
    failures: dict[str, tuple[int, Mapping[str, str]]] = field(default_factory=dict)
    branches: tuple[str, ...] = ("main",)


class FakeHub:
    """The models that a Hub has, and what was asked of it.

    Attributes:
        moved: Former names of models, which are redirected as by the Hub.
        refusal: Status and headers with which everything is answered.
        silent: Whether no request is answered.
        requests: The paths asked for, without the metadata of files.
    """

    def __init__(self) -> None:
        self.models: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        self.unknown = 401  # the Hub's answer to users who are not logged in
        self.refusal: tuple[int, Mapping[str, str]] | None = None
        self.refusal_body = b""
        self.silent = False
        self.requests: list[str] = []
        self.ended = threading.Event()

    def add(self, name: str, files: Mapping[str, bytes] | Path) -> Repository:
        if isinstance(files, Path):
            files = {path.name: path.read_bytes() for path in sorted(files.iterdir())}
        self.models[name] = Repository({**files, **OTHERS})
        return self.models[name]

    @property
    def downloaded(self) -> list[str]:
        """The names of the files that were downloaded."""
        return [path.rsplit("/", 1)[-1] for path in self.requests if "/resolve/" in path]

    def answer(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return the status, headers and body for a path."""
        if self.refusal is not None:
            return *self.refusal, self.refusal_body
        for former, name in self.moved.items():
            if match := re.match(rf"(/api/models)?/{former}(?=/|$)", path):
                return 307, {"Location": f"{match[1] or ''}/{name}{path[match.end() :]}"}, b""
        for name, repository in self.models.items():
            if f"/{name}/" not in f"{path}/":
                continue
            prefix = re.escape(name)
            revision = rf"({'|'.join((*repository.branches, repository.commit))})"
            if re.fullmatch(rf"/api/models/{prefix}(/revision/{revision})?", path):
                siblings = [{"rfilename": file} for file in repository.files]
                return json_answer({"id": name, "sha": repository.commit, "siblings": siblings})
            if re.match(rf"/api/models/{prefix}/revision/", path):
                return 404, {"X-Error-Code": "RevisionNotFound"}, b""
            if re.match(rf"/api/models/{prefix}/tree/{revision}", path):
                return json_answer(
                    [
                        {"type": "file", "path": file, "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
                        for file, content in repository.files.items()
                    ]
                )
            match = re.match(rf"/{prefix}/resolve/{revision}/(.+)", path)
            if match and (failure := repository.failures.get(match[2]) or repository.failures.get("*")):
                return *failure, b""
            if match and (content := repository.files.get(match[2])) is not None:
                etag = f'"{hashlib.sha1(content).hexdigest()}"'
                return 200, {"ETag": etag, "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}, content
        return self.unknown, UNKNOWN, b""


def json_answer(content: object) -> tuple[int, Mapping[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


@contextmanager
def running(hub: FakeHub) -> Iterator[str]:
    """Serve a Hub, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.split("?")[0].removeprefix("/mirror")
            if self.command == "GET":
                hub.requests.append(path)
            if hub.silent:
                hub.ended.wait()
                self.close_connection = True
                return
            status, headers, body = hub.answer(path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():  # type: ignore[operator]
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        hub.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Set or remove environment variables, which huggingface_hub reads when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        importlib.reload(constants)
        try:
            yield
        finally:
            patch.undo()
            importlib.reload(constants)


@contextmanager
def fake_hub(cache: Path) -> Iterator[FakeHub]:
    """Run a Hub, and let huggingface_hub ask it, without a login, and store files in this folder."""
    hub = FakeHub()
    settings = {"HF_HUB_OFFLINE": None, "HF_TOKEN": None, "HF_TOKEN_PATH": str(cache / "no token")}
    settings |= {"NO_PROXY": "127.0.0.1", "HF_HUB_ETAG_TIMEOUT": "120", "HF_HUB_DISABLE_XET": "1"}
    with running(hub) as address, environment(HF_ENDPOINT=address, HF_HUB_CACHE=str(cache), **settings):
        utils.disable_progress_bars()
        yield hub
        utils.enable_progress_bars()


@contextmanager
def offline(hub: FakeHub, how: str = "HF_HUB_OFFLINE") -> Iterator[None]:
    """Make a Hub unreachable. how: a name in `settings`, or the status of its answers."""
    settings = {
        "HF_HUB_OFFLINE": {"HF_HUB_OFFLINE": "1"},
        "no connection": {"HF_ENDPOINT": "http://127.0.0.1:9"},  # the discard port, where no server listens
        "no answer": {"HF_HUB_ETAG_TIMEOUT": "1"},
    }
    hub.silent = how == "no answer"
    hub.refusal = (int(how), {}) if how not in settings else None
    with environment(**settings.get(how, {})):
        yield
    hub.silent, hub.refusal = False, None

"""The server as a command: its flags, its token, its socket, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from typing import Annotated as A

from ..checkpoints import read_config
from ..distributed import ProcessGroup
from ..errors import InputError
from ..loading.pair import Pair
from ..sampling.values import Several, Switch, Text, Whole
from ..server.limits import Limits
from . import launcher
from .common import read_text, say
from .drafting import Plan, plan_of
from .flags import add_decoding_flags
from .parser import File, Parser, add_flags, chosen_as

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

    from ..server.service import Service

PROGRAM = "python -m speculative_decoding.serve"
EXTRA = ("starlette", "uvicorn", "prometheus_client")
VARIABLE = "SPECULATIVE_DECODING_TOKEN"
LEAST_TOKEN = 16  # characters
WITHOUT = ("seed", "strict", "num_return_sequences")  # options of decoding that are no flags here
MOST_CONNECTIONS = 1000
IDLE_SECONDS = 75  # of a connection: longer than clients and proxies keep theirs, who else write into a closed one
CLOSING_SECONDS = 5  # for answers that are written already


@dataclass(frozen=True)
class Listening:
    """Where clients come in, and which."""

    host: A[str, Text(), "the address to listen on; others than this machine's own need a token"] = "127.0.0.1"
    port: A[int, Whole(0, 65535), "0 takes one that is free"] = 8080
    allow_host: A[Sequence[str], Several(Text()), "a name by which clients call this server; may be repeated"] = ()
    token_file: A[Path | None, File(), f"a file with the token that clients must send (or {VARIABLE} has it)"] = None
    no_token: A[bool, Switch(), "take requests from everywhere without a token"] = False
    translate: A[
        Sequence[str],
        Several(Text()),
        "SOURCE:TARGET=PREFIX for /translate, where config.json says none; may be repeated",
    ] = ()
    log_prompts: A[bool, Switch(), "write prompts to the log"] = False

    @property
    def is_local(self) -> bool:
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def token(self) -> str | None:
        """None: nobody needs one. Raises `InputError`."""
        given = os.environ.get(VARIABLE)
        if self.token_file is not None:
            given = read_text(self.token_file, "--token-file").strip()
        if given is None:
            if not self.is_local and not self.no_token:
                raise InputError(
                    f"--host {self.host}: everybody who reaches it could use this server; give a --token-file, or "
                    f"{VARIABLE}, or say --no-token"
                )
            return None
        if self.no_token:
            raise InputError("--no-token does not go with a token; leave one of them out")
        if len(given) < LEAST_TOKEN or not given.isascii() or not given.isprintable() or " " in given:
            raise InputError(f"the token must have at least {LEAST_TOKEN} letters, digits and signs; make another")
        return given

    def open(self) -> socket.socket:
        """Before models are loaded. Raises `InputError`."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=128)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"--host {self.host} --port {self.port}: {reason}; choose another") from error


def serve_parser(program: str) -> Parser:
    description = "Serve a target with its draft to many clients at once: completions, translations, metrics, a page."
    parser = Parser(prog=program, description=description)
    add_flags(parser, "listening", Listening)
    add_flags(parser, "limits", Limits)
    add_decoding_flags(parser, "decoding, where a request does not say", without=WITHOUT)
    return parser


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    return launcher.run(serve_parser(program), argv, serve)


def serve(chosen: argparse.Namespace, processes: ProcessGroup | None = None) -> int:
    """The exit status: 1 if the device failed and another process is needed. processes: the processes that share the
    target, of which this one is the first.
    """
    if missing := [name for name in EXTRA if util.find_spec(name) is None]:
        raise InputError(f"the server needs {' and '.join(missing)}: pip install {' '.join(EXTRA)}")
    listening, limits, plan = chosen_as(Listening, chosen), chosen_as(Limits, chosen), plan_of(chosen)
    plan = replace(plan, folders=replace(plan.folders, processes=processes))
    if plan.options.max_tokens > limits.max_output_tokens:
        raise InputError(f"--max-tokens {plan.options.max_tokens}: is above --max-output-tokens; change one of them")
    token = listening.token()
    with listening.open() as opened:
        pair = plan.open()
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        return asyncio.run(listen(opened, listening, limits, plan, pair, token))


async def listen(
    opened: socket.socket, listening: Listening, limits: Limits, plan: Plan, pair: Pair, token: str | None
) -> int:
    # not imported at the top: other commands work without the extra
    from ..server.app import ServerSettings, make_app
    from ..server.decoding_thread import DecodingThread
    from ..server.metrics import Metrics
    from ..server.service import Service
    from ..server.translation import TranslationPrompts

    folder = pair.opened_target.folder
    service = Service(DecodingThread(lambda: plan.session(pair), limits), limits, Metrics())
    translation = TranslationPrompts.of(read_config(folder), list(listening.translate))
    hosts = {listening.host, *listening.allow_host}
    created = int(folder.stat().st_mtime)
    settings = ServerSettings(folder.resolve().name, translation, hosts, token, listening.log_prompts, created)
    server = make_server(make_app(service, settings), service)
    host, port, *_ = opened.getsockname()
    say(f"{plan.describe()}\nhttp://{f'[{host}]' if ':' in host else host}:{port}, as soon as GET /health says ok")
    problems: list[Exception] = []

    def end(problem: Exception | None) -> None:
        problems.extend([problem] if problem is not None else [])
        server.should_exit = True

    service.on_end = end
    await server.serve(sockets=[opened])
    if problems and isinstance(problems[0], InputError):
        raise problems[0]
    return 1 if problems else 0


def make_server(app: Starlette, service: Service) -> uvicorn.Server:
    """uvicorn, but SIGTERM and Ctrl-C let running requests finish, and the exit status be 0; a second one does not."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.drain)

        def drain(self) -> None:
            if draining:
                self.should_exit = True
            else:
                draining.append(asyncio.ensure_future(service.drain()))

    loop, draining = asyncio.get_running_loop(), list[Any]()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return Server(config)

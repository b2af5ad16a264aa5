"""The `serve` command: flags, access token, listening socket and exit status."""

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
from typing import Annotated as A
from typing import Any

from ..cli.common import read_text, say
from ..cli.flags import add_decoding_flags
from ..cli.parser import File, Parser, add_flags, flags_from
from ..cli.run_config import RunConfig, run_config_from
from ..cli.start import start
from ..errors import InputError, Message, Name
from ..loading.names import model_name, other_names
from ..loading.pair import ModelPair
from ..loading.task_prefixes import translation_prefixes
from ..sampling.values import Bool, Int, ListOf, Text, Value
from .limits import Limits

PROGRAM = "python -m speculative_decoding.serve"
EXTRA = ("starlette", "uvicorn", "prometheus_client", "python_multipart", "websockets")
TOKEN_VARIABLE = "SPECULATIVE_DECODING_TOKEN"
MIN_TOKEN_CHARACTERS = 16
BASIC_ACCESS = ("host", "port", "token_file", "no_token", "translate", "slots", "queue", "max_seconds")
TRUSTED_PROXY = "address of a proxy, to which --max-connections does not apply; may be repeated"
SERVED_MODEL_NAME = "name that clients may use for the model; may be repeated; responses contain the first name"
SHARE_CLIENT_TEXTS = (
    "store the prompts and outputs of all clients in --ngram-store, and copy drafts from them; draft counts and timing "
    "then reveal to a client what others have sent"
)


@dataclass(frozen=True)
class Address(Value):
    """An IP address, normalized to the form in which sockets report addresses."""

    expected = "an IP address"
    metavar = "ADDRESS"

    def accept(self, value: Any) -> str:
        return str(ipaddress.ip_address(value))


@dataclass(frozen=True)
class AccessFlags:
    """The flags that determine where the server listens and who may use it."""

    host: A[str, Text(), "address to listen on; any address except loopback requires a token"] = "127.0.0.1"
    port: A[int, Int(0, 65535), "port to listen on; 0 chooses a free one"] = 8080
    allow_host: A[Sequence[str], ListOf(Text()), "additional host name that clients may use; may be repeated"] = ()
    trusted_proxy: A[Sequence[str], ListOf(Address()), TRUSTED_PROXY] = ()
    token_file: A[Path | None, File(), f"a file with the token that clients send (or set {TOKEN_VARIABLE})"] = None
    no_token: A[bool, Bool(), "accept requests from any address without a token"] = False
    translate: A[
        Sequence[str],
        ListOf(Text()),
        "prompt prefix for a language pair of /translate, as SOURCE:TARGET=PREFIX; may be repeated",
    ] = ()
    served_model_name: A[Sequence[str], ListOf(Text()), SERVED_MODEL_NAME] = ()
    log_prompts: A[bool, Bool(), "write prompts to the log"] = False
    share_client_texts: A[bool, Bool(), SHARE_CLIENT_TEXTS] = False

    @property
    def is_local(self) -> bool:
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def token(self) -> str | None:
        """Return the token that clients must send, or None. Raises `InputError`."""
        token = os.environ.get(TOKEN_VARIABLE)
        if self.token_file is not None:
            token = read_text(self.token_file, Name("token_file")).strip()
        if token is None:
            if not self.is_local and not self.no_token:
                raise InputError(
                    f"{self.host} is reachable from other machines, but no token is set",
                    "host",
                    Message("give {token_file}, or {variable}, or {no_token}", variable=TOKEN_VARIABLE),
                )
            return None
        if self.no_token:
            raise InputError("a token is set", "no_token", "leave one of them out")
        if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
            raise InputError(
                f"token: needs at least {MIN_TOKEN_CHARACTERS} printable ASCII characters, no spaces; choose another"
            )
        return token

    def open_socket(self) -> socket.socket:
        """Open the listening socket. Call this before loading the models. Raises `InputError`."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=128)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                Message("{address} with {port} {number}: {reason}", address=self.host, number=self.port, reason=reason),
                "host",
                "choose another",
            ) from error


def serve_parser(program: str) -> Parser:
    description = "Serve completions and translations over HTTP to many clients at once, with metrics and a web page."
    parser = Parser(prog=program, usage="%(prog)s [options]", description=description, basic=BASIC_ACCESS)
    add_flags(parser, "access", AccessFlags)
    add_flags(parser, "limits", Limits)
    without = ("seed", "strict", "num_return_sequences")  # requests set `seed`, and `n` for `num_return_sequences`
    add_decoding_flags(parser, "decoding defaults for requests", without=without)
    return parser


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    return start(serve_parser(program), argv, serve)


def serve(chosen: argparse.Namespace, processes: Any = None) -> int:
    """Serve until shutdown, and return the exit status, which is 1 if the device failed and a restart is needed.

    processes: The processes that share the target, or None. This process is rank 0.
    """
    if missing := [name for name in EXTRA if util.find_spec(name) is None]:
        raise InputError(f"server: requires {' and '.join(missing)}; run pip install {' '.join(EXTRA)}")
    access = flags_from(AccessFlags, chosen)
    limits = flags_from(Limits, chosen)
    if access.share_client_texts != ("ngram_store" in chosen):
        if access.share_client_texts:
            without = Message("has no effect without {ngram_store}")
            raise InputError(without, "share_client_texts", "give both, or leave it out")
        problem = f"{chosen.ngram_store} would tell clients what other clients have sent"
        raise InputError(problem, "ngram_store", Message("leave it out, or add {share_client_texts}"))
    config = run_config_from(chosen, processes=processes)
    if config.options.max_tokens > limits.max_output_tokens:
        raise InputError(
            Message(
                "{value} is above {max_output_tokens} {limit}",
                value=config.options.max_tokens,
                limit=limits.max_output_tokens,
            ),
            "max_tokens",
            "change one of them",
        )
    token = access.token()
    with access.open_socket() as server_socket:
        pair = config.open()
        config = config.with_memory(pair)
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        names = served_names(pair.target.folder, vars(chosen).get("model"), access.served_model_name)
        return asyncio.run(listen(server_socket, access, limits, config, pair, names, token))


def served_names(folder: Path, given: str | None, chosen: Sequence[str] = ()) -> list[str]:
    """Return the names that clients may use for a model. Responses contain the first name.

    Args:
        folder: The folder of the model.
        given: The value of --model. If it is one of the model's names, it comes before the others; a path comes after
            them.
        chosen: The values of --served-model-name, which come before all other names.
    """
    name = model_name(folder)
    names = [name, name.rsplit("/", 1)[-1], *other_names(name)]
    if given is not None:
        names.insert(0 if given in names else len(names), given)
    return list(dict.fromkeys([*chosen, *names]))


async def listen(
    server_socket: socket.socket,
    access: AccessFlags,
    limits: Limits,
    config: RunConfig,
    pair: ModelPair,
    names: Sequence[str],
    token: str | None,
) -> int:
    """Run the server on an open socket, and return the exit status. names: The result of `served_names`."""
    # Imported here, because `serve` first checks that the packages of the extra `server` are installed
    from .app import ServerSettings, make_app
    from .connections import make_server
    from .decoding_thread import DecodingThread
    from .languages import given_prefixes
    from .metrics import Metrics
    from .service import Service

    folder = pair.target.folder
    given = given_prefixes(access.translate)
    prefixes = {**translation_prefixes(pair.target.model.task_prefixes), **given}
    config = replace(config, prompt_prefixes=[*config.prompt_prefixes, *given.values()])
    service = Service(DecodingThread(lambda: config.session(pair), limits), limits, Metrics())
    hosts = {access.host, *access.allow_host}
    created = int(folder.stat().st_mtime)
    note = config.demonstration_note() or ""
    is_speech = pair.target.model.audio is not None
    model, *aliases = names
    listed = access.served_model_name or (model,)
    settings = ServerSettings(
        model, prefixes, hosts, token, access.log_prompts, created, note, aliases, listed, is_speech
    )
    server = make_server(make_app(service, settings), service, access.trusted_proxy)
    host, port, *_ = server_socket.getsockname()
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    say(f"{config.describe(pair)}\n{url} (ready when GET /health answers ok)")
    errors: list[Exception] = []

    def end(error: Exception | None) -> None:
        if error is not None:
            errors.append(error)
        server.should_exit = True

    service.on_end = end
    await server.serve(sockets=[server_socket])
    if errors and isinstance(errors[0], InputError):
        raise errors[0]
    return 1 if errors else 0

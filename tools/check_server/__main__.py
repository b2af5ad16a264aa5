"""Checks that the server stays correct and safe whatever it receives: `python -m tools.check_server [PART ...]`.

bodies       random JSON, texts and files: each must get a valid response in time, and each error must be one line
recordings   the same with random recordings and forms, sent to a tiny Whisper
connections  unfinished requests on many connections: another client must still get the same text as before
clients      clients that stream, leave, drop their connection or send invalid requests for a long time: texts must
             equal those of `batch`, and memory and open files must not grow
sockets      live-speech clients of a tiny Whisper: some stall, vanish, abort, or send broken upgrades, frames and
             events, others speak or send recordings. Another client must get its text, and memory must not grow
neighbors    clients that send expensive frames and texts: another client's small requests must be answered within twice
             their normal time plus one second, and threads and memory must recover within five seconds (use an idle
             machine)
costly       clients that send expensive recordings and forms to the Whisper given by --model: another client must get
             the text of a short recording within twice the normal time plus one second (use an idle machine)

Without an argument, all parts except `neighbors` and `costly` run. After each part, all slots must be free, and the
server must shut down cleanly without a traceback in its log.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from . import attacks, clients, neighbors, random_requests, sockets

PARTS: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "bodies": lambda chosen: random_requests.run(chosen.count, chosen.seed),
    "recordings": lambda chosen: random_requests.run(chosen.count, chosen.seed, audio=True),
    "connections": lambda chosen: attacks.occupy(chosen.connections, chosen.requests),
    "clients": lambda chosen: clients.run(None, 60 * chosen.minutes, chosen.seed),
    "sockets": lambda chosen: sockets.run(chosen.clients, chosen.seconds, chosen.seed),
    "neighbors": lambda chosen: neighbors.run(chosen.attack_seconds, chosen.only),
    "costly": lambda chosen: attacks.burden(chosen.model, ["--slots", chosen.slots], chosen.requests, chosen.only),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.check_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=5000, help="bodies, recordings: requests (default: 5000)")
    parser.add_argument("--connections", type=int, default=1000, help="connections: of each attack (default: 1000)")
    parser.add_argument(
        "--requests", type=int, default=20, help="connections, costly: of the other client (default: 20)"
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="clients: how long they send (default: 20)")
    parser.add_argument("--clients", type=int, default=200, help="sockets: clients at a time (default: 200)")
    parser.add_argument("--seconds", type=float, default=120.0, help="sockets: how long they send (default: 120)")
    parser.add_argument("--model", help="costly: a Whisper")
    parser.add_argument("--slots", default="2", help="costly: of that server (default: 2)")
    parser.add_argument("--attack-seconds", type=float, default=15.0, help="neighbors: of each attack (default: 15)")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="neighbors, costly: run only attacks whose name contains TEXT"
    )
    chosen = parser.parse_args()
    if "costly" in chosen.parts and chosen.model is None:
        parser.error("costly: needs the --model of a Whisper")
    parts = chosen.parts or [name for name in PARTS if name not in ("neighbors", "costly")]
    for name in parts:
        for line in PARTS[name](chosen):
            print(f"{name}: {line}", flush=True)
    print(f"no fault found by {', '.join(parts)}")


if __name__ == "__main__":
    main()

"""Checks that the server stays correct and safe, whatever clients send: `python -m tools.check_server [PART ...]`.

bodies       random JSON, texts and files; each gets a valid response in time, and each error is one line
recordings   the same with random recordings and forms, for a tiny Whisper
connections  unfinished requests on many connections, while another client gets the same text as before
clients      clients that stream, leave, cut their connection or send invalid requests for a long time: equal requests
             get equal texts, which are those of `batch`; memory and open files do not grow
sockets      clients of live speech that stall, vanish, abort, or send broken upgrades, frames and events, and others
             that speak or send recordings, for a tiny Whisper: another client gets its text, memory does not grow
neighbors    clients of sockets and texts that cost much: small requests of another client are answered within twice
             their undisturbed time and one second; threads and memory return within five (use an idle machine)
costly       recordings and forms that cost much, for the Whisper of --model, while another client sends a short
             recording: each gets its text within twice its undisturbed time and one second (use an idle machine)

Without a part, all run except `neighbors` and `costly`. After each, every slot is free, the server ends in order and
its log has no traceback.
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

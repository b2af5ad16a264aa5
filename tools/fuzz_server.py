"""Random bodies against a real server: `python -m tools.fuzz_server --count 5000`.

Each is answered within the time limit, with a status below 500 and an error in one line; what is taken is decoded.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from speculative_decoding.sampling.options import option_specs
from speculative_decoding.server.limits import Limits
from tests.support.serving import GRAMMAR, Serving, serving

LIMITS = Limits(slots=4, queue=12, max_output_tokens=100, max_seconds=120.0)
NAMES = [
    *option_specs(),
    "prompt",
    "model",
    "n",
    "stream",
    "stream_options",
    "rounds",
    "echo",
    "best_of",
    "suffix",
    "user",
]
NAMES += [
    "logit_bias",
    "presence_penalty",
    "q",
    "source",
    "target",
    "format",
    "api_key",
    "",
    "\u0000",
    "__class__",
    "max-tokens",
]
VALUES: list[Callable[[random.Random], Any]] = [
    lambda dice: dice.choice(
        [None, True, False, 0, 1, 2, -1, 3.5, 1e-10, 1e10, 1e308, -0.0, 2**31, 2**32 - 1, 2**63, 10**40]
    ),
    lambda dice: dice.choice(
        ["", " ", "a", "\u0000", "\n", "\u202e", "\ufeff", "\U0001f600", "en", "de", "text", "none", "auto"]
    ),
    lambda dice: dice.choice(
        ["model", "ngram", "coupled", "block", "rejection", "heuristic", "../../etc/passwd", "%s%n", "<b>"]
    ),
    lambda dice: "".join(
        chr(dice.choice([dice.randrange(1, 0x250), dice.randrange(0x4E00, 0x9000)])) for _ in range(dice.randrange(60))
    ),
    lambda dice: [value(dice) for _ in range(dice.randrange(4))],
    lambda dice: {dice.choice(NAMES): value(dice) for _ in range(dice.randrange(3))},
    lambda dice: [dice.randrange(-5, 9000) for _ in range(dice.randrange(20))],
]


def value(dice: random.Random) -> Any:
    return dice.choice(VALUES)(dice)


def sensible(dice: random.Random) -> dict[str, Any]:
    """Mostly decoded: options as they are wanted, at their edges."""
    own: dict[str, Any] = {
        "prompt": dice.choice([GRAMMAR, ["grammar: He go home.", "describe: a = b"], "\U0001f600 \u4e2d", "a" * 2000]),
        "max_tokens": dice.choice([1, 2, 7]),
        "temperature": dice.choice([0, 0, 1e-10, 1, 1e10]),
        "top_k": dice.choice([0, 1, 10**30]),
        "top_p": dice.choice([1, 1e-300, 0.5]),
        "min_p": dice.choice([0, 1, 0.1]),
        "repetition_penalty": dice.choice([1, 1e-10, 1e10]),
        "no_repeat_ngram_size": dice.choice([0, 1, 64]),
        "seed": dice.choice([0, 2**32 - 1]),
        "stop": dice.choice([[], ["e"], "the", ["\u0000", "a" * 256]]),
        "acceptance": dice.choice(["rejection", "block", "coupled"]),
        "num_draft_tokens": dice.choice([0, 1, 64, "auto"]),
        "decoder_prefix": dice.choice(["", "It", [5, 8], " "]),
        "logprobs": dice.choice([0, True, False]),
        "stream": dice.choice([True, False]),
        "n": dice.choice([1, 1, 2]),
    }
    return {name: own[name] for name in {"prompt", "max_tokens", *dice.sample(list(own), dice.randrange(6))}}


def body(dice: random.Random) -> bytes:
    """Random fields, or sensible ones of which a few are changed; at times cut, or with bytes that are none of JSON."""
    fields = sensible(dice) if dice.random() < 0.7 else {"prompt": GRAMMAR, "max_tokens": 3}
    for _ in range(dice.choice([0, 0, 1, 1, 2, 5])):
        fields[dice.choice(NAMES)] = value(dice)
    content = json.dumps(fields, ensure_ascii=dice.random() < 0.5).encode()
    kind = dice.random()
    if kind < 0.1:
        return content[: dice.randrange(len(content) + 1)]
    if kind < 0.2:
        damaged = bytearray(content)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        return bytes(damaged)
    return content


def fuzz(server: Serving, count: int, seed: int) -> Counter[int]:
    """Statuses. Raises AssertionError with the body that is answered as none should be."""
    dice, statuses = random.Random(seed), Counter[int]()
    with server.client() as client:
        for _ in range(count):
            content, path = body(dice), dice.choice(["/v1/completions"] * 5 + ["/translate"])
            kind = dice.choice(
                ["application/json"] * 12 + ["application/x-www-form-urlencoded", "text/plain", "", "a/b; c"]
            )
            try:
                response = client.post(path, content=content, headers={"Content-Type": kind})
            except httpx.TransportError as error:
                raise AssertionError(f"no answer to {content!r} as {kind} at {path}") from error
            statuses[response.status_code] += 1
            check(response, path, content)
    return statuses


def check(response: httpx.Response, path: str, content: bytes) -> None:
    said = (response.status_code, response.text[:2000], content)
    assert response.status_code < 500 and "Traceback" not in response.text, said
    if response.status_code != 200:
        error = response.json()["error"]
        message = error if path == "/translate" else error["message"]
        assert message and message.isprintable() and "speculative_decoding/" not in message, said
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n"), said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with serving(limits=LIMITS) as server:
        statuses = fuzz(server, chosen.count, chosen.seed)
        assert server.service.admitted == 0
    print(
        f"{chosen.count} bodies: " + ", ".join(f"{count} times {status}" for status, count in sorted(statuses.items()))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

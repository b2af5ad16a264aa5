"""A fake peer that speaks the worker's protocol: each output is its source, shortened and reversed.

Modes: {"threads": N} takes N ms per token, {"fail": "exit"} exits, {"fail": "raise"} reports an error.
"""

from __future__ import annotations

import json
import sys

job = json.loads(sys.stdin.readline())
if job["peer"] == "missing":
    print("noise\nModuleNotFoundError: No module named 'missing'", file=sys.stderr)
    sys.exit(1)
print(json.dumps({"versions": {"fake": "1.0"}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if (failure := job["mode"].get("fail")) == "exit":
        sys.exit(3)
    if failure == "raise":
        print(json.dumps({"error": "ValueError: no such mode"}), flush=True)
        continue
    tokens = [source[: request["max_tokens"]][::-1] for source in request["sources"]]
    seconds = [1e-3 * job["mode"]["threads"] * len(ids) for ids in tokens]
    print(json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)

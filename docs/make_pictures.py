"""Draw the pictures of docs/: `python docs/make_pictures.py NAME ...`.

speed       bars of docs/pictures/speed.json, which contains the figures of README.md's table (--json); also prints the
            rows of this table and of the same table in docs/benchmarks.md
show-draft  main.py in a terminal, in colors
server      the server's page after a request (needs chromium)
training    the curves of a training run of twelve minutes (needs matplotlib)
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import termios
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parent / "pictures"
ROOT = PICTURES.parent.parent
GERMAN = "translate English to German: The method returns the value of the property."
PORT = 8765

# rich's template without its fonts, which a reader's browser would download
TERMINAL = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""

# 400 units wide, as a phone shows it. The background belongs to the colors, for pages with a theme of their own.
BARS = """\
<svg xmlns="http://www.w3.org/2000/svg" width="640" viewBox="0 0 400 {height}" font-family="sans-serif" font-size="14">
<style>
.page {{ fill: #ffffff }} text {{ fill: #1f2328 }} .baseline {{ fill: #9aa4b0 }} .drafts {{ fill: #2a7de1 }}
.other {{ fill: #d4a72c }}
@media (prefers-color-scheme: dark) {{
  .page {{ fill: #0d1117 }} text {{ fill: #e6edf3 }} .baseline {{ fill: #6e7681 }}
}}
</style>
<rect class="page" width="400" height="{height}" rx="8"/>
<text x="12" y="25" font-size="16" font-weight="bold">Tokens per second, for the same text</text>
<rect class="baseline" x="12" y="37" width="12" height="12"/><text x="28" y="48">baseline</text>
<rect class="drafts" x="98" y="37" width="12" height="12"/><text x="114" y="48">with drafts</text>
<rect class="other" x="202" y="37" width="12" height="12"/><text x="218" y="48">CTranslate2, float32</text>
{bars}
<text x="12" y="{caption}" font-size="12">{what}</text>
</svg>
"""

DRAFTS = "auto auto"
SPEEDS = {  # label in speed.json -> name in tables
    "baseline": "baseline",
    DRAFTS: "with drafts",
    "ct2 float32": "CTranslate2, float32",
    "ct2 int8": "CTranslate2, int8",
}
BARS_OF = {"baseline": "baseline", DRAFTS: "drafts", "ct2 float32": "other"}  # label -> class of its bars


def speed() -> None:
    figures = json.loads((PICTURES / "speed.json").read_text())
    rows = {(row["slots"], row["task"], row["label"]): row for row in figures["rows"]}
    for form in ("{0:.0f}", "{1:.2f}"):  # tokens per second, milliseconds per token
        for label, name in SPEEDS.items():
            found = [row for (_, _, own), row in rows.items() if own == label]
            cells = [form.format(*speeds(row)) + gain(row) for row in sorted(found, key=lambda row: int(row["slots"]))]
            print(f"| {name} | {' | '.join(cells)} |")

    tasks = list(dict.fromkeys(task for _, task, _ in rows))
    fastest = max(speeds(rows[1, task, label])[0] for task in tasks for label in BARS_OF)
    bars = []
    top = 62
    for task in tasks:
        bars.append(f'<text x="12" y="{top + 15}">{task}</text>')
        for label, kind in BARS_OF.items():
            row = rows[1, task, label]
            width = 190 * speeds(row)[0] / fastest
            bars.append(f'<rect class="{kind}" x="92" y="{top}" width="{width:.0f}" height="19"/>')
            bars.append(f'<text x="{98 + width:.0f}" y="{top + 15}">{speeds(row)[0]:.0f}{gain(row)}</text>')
            top += 21
        top += 10
    where = figures["environment"]
    what = f"float32, {where['cores']} {where['system'].split()[-1]} cores, {where['date'][:10]}"
    text = BARS.format(height=top + 28, bars="\n".join(bars), caption=top + 14, what=what)
    (PICTURES / "speed.svg").write_text(text)


def speeds(row: dict[str, Any]) -> tuple[float, float]:
    """Return tokens per second and milliseconds per token."""
    milliseconds = row["ms_per_token"][1]
    return 1e3 / milliseconds, milliseconds


def gain(row: dict[str, Any]) -> str:
    return f" ({row['speedup']:.2f}x)" if row["label"] == DRAFTS else ""


def show_draft() -> None:
    """The terminal is so narrow that its letters can be read on a phone."""
    columns = 60
    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True, color_system="truecolor")
    for options in (["--show-draft"], ["--show-draft", "rounds"]):
        console.print(Text(f'$ python main.py "{GERMAN}" {" ".join(options)}'))
        console.print(Text.from_ansi(in_terminal([sys.executable, "main.py", GERMAN, *options], columns)))
    console.save_svg(str(PICTURES / "show-draft.svg"), title="main.py", code_format=TERMINAL, unique_id="show-draft")


def in_terminal(command: list[str], columns: int) -> str:
    """Return what a command writes to a terminal."""
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (40, columns))
    environment = {**os.environ, "TERM": "xterm-256color"}
    running = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=ROOT, env=environment)
    os.close(its)
    written = b""
    with suppress(OSError):  # Linux raises it at the end
        while block := os.read(ours, 1 << 16):
            written += block
    if running.wait() != 0:
        raise SystemExit(f"main.py failed:\n{written.decode()}")
    return written.decode().replace("\r\n", "\n").rstrip("\n")


class Browser:
    """Chromium, controlled over two pipes: JSON messages that end with a zero byte."""

    def __init__(self, chromium: str) -> None:
        to_browser, self._requests = os.pipe()
        self._answers, from_browser = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --hide-scrollbars about:blank"
        command = f"exec {shlex.quote(chromium)} {flags} 3<&{to_browser} 4>&{from_browser} 2>/dev/null"
        self._process = subprocess.Popen(["bash", "-c", command], pass_fds=(to_browser, from_browser))
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = count()
        self._buffer = b""
        self._session: str | None = None
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                if not (block := os.read(self._answers, 1 << 20)):
                    raise RuntimeError("the browser has ended")
                self._buffer += block
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == number:
                return dict(answer["result"])

    def evaluate(self, script: str) -> object:
        return self.call("Runtime.evaluate", expression=script)["result"].get("value")

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(60)


def server() -> None:
    if (chromium := shutil.which("chromium")) is None:
        raise SystemExit("server: chromium is not installed")
    address = f"http://127.0.0.1:{PORT}"
    serving = subprocess.Popen([sys.executable, "-m", "speculative_decoding.serve", "--port", str(PORT)], cwd=ROOT)
    try:
        until(lambda: bool(urlopen(f"{address}/health").status == 200))
        browser = Browser(chromium)
        browser.call("Emulation.setDeviceMetricsOverride", width=640, height=660, deviceScaleFactor=1.5, mobile=False)
        browser.call("Page.navigate", url=address)
        until(lambda: browser.evaluate("document.readyState") == "complete")
        for element in ("[value=prompt]", "#compare", "#start"):
            browser.evaluate(f"document.querySelector('{element}').click()")
        until(lambda: "medians" in str(browser.evaluate("document.getElementById('comparison').textContent")))
        picture = browser.call("Page.captureScreenshot")["data"]
        browser.close()
    finally:
        serving.terminate()
        serving.wait(60)
    (PICTURES / "server.png").write_bytes(b64decode(picture))


def until(done: Callable[[], bool]) -> None:
    for _ in range(1500):
        with suppress(OSError):  # the server answers 503, or does not listen yet
            if done():
                return
        time.sleep(0.2)
    raise TimeoutError


def training() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prompts = [str(ROOT / "data" / f"{task}.txt") for task in ("translation", "grammar", "describe")]
        command = [sys.executable, "-m", "speculative_decoding.train", "--model", "t5-web-docs", "--minutes", "12"]
        subprocess.run([*command, "--prompts", *prompts, "--output", f"{folder}/head"], check=True, cwd=ROOT)
        shutil.copy(f"{folder}/head/curves.png", PICTURES / "training.png")


MAKERS = {
    "speed": speed,
    "show-draft": show_draft,
    "server": server,
    "training": training,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=MAKERS)
    for name in parser.parse_args().names:
        MAKERS[name]()


if __name__ == "__main__":
    main()

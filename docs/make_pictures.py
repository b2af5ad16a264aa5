"""Record the pictures of docs/: real sessions in tmux, in colour, without it, and in 40 columns, as SVG; and a plot.

`python docs/make_pictures.py [NAME...]` from the repository's folder, all or those named: speed, sessions.
Needs tmux for sessions and matplotlib for speed, which takes some minutes of a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

NUMBERS = count()
PICTURES = Path(__file__).parent / "pictures"
GERMAN = "translate English to German: The method returns the value of the property."
GRAMMAR = "grammar: He were reading a old book about the history of the city."
LONG = "translate English to German: This method can be used to access the elements of an array."

# rich's own, without the fonts that it would fetch from elsewhere
SVG = """\
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


class Terminal:
    """A separate tmux session."""

    def __init__(self, columns: int, rows: int, **environment: str) -> None:
        self.columns = columns
        self._socket = f"pictures-{os.getpid()}-{next(NUMBERS)}"
        shell = "env -i " + " ".join(
            f"{name}={shlex.quote(value)}"
            for name, value in {
                "PATH": os.environ["PATH"],
                "HOME": os.environ["HOME"],
                "LANG": "C.UTF-8",
                "PS1": "$ ",
                **{name: value for name, value in os.environ.items() if name.startswith("OPENBLAS")},
                **environment,
            }.items()
        )
        self._tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), f"{shell} TERM=$TERM sh")
        self.wait_for("$")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def type(self, line: str, then: str, times: int = 1, *, ready: bool = True) -> None:
        """Type a line, and wait until `then` has appeared `times` times and the prompt is back."""
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")
        self.wait_for(then, times)
        while ready and self._tmux("capture-pane", "-p", "-S", "-").rstrip().split("\n")[-1] not in ("$", ">"):
            time.sleep(0.1)

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def wait_for(self, text: str, times: int = 1) -> None:
        end = time.monotonic() + 120
        while self._tmux("capture-pane", "-p", "-J", "-S", "-").count(text) < times:
            if time.monotonic() > end:
                raise TimeoutError(f"waited for {text!r}:\n{self._tmux('capture-pane', '-p')}")
            time.sleep(0.1)
        time.sleep(0.2)

    def picture(self, name: str, title: str) -> None:
        shown = self._tmux("capture-pane", "-p", "-e", "-S", "-").rstrip("\n")
        console = Console(
            record=True, width=self.columns, file=StringIO(), force_terminal=True, color_system="truecolor"
        )
        console.print(Text.from_ansi(shown))
        console.save_svg(str(PICTURES / f"{name}.svg"), title=title, code_format=SVG, unique_id=name)
        self._tmux("kill-server")


def python() -> dict[str, str]:
    """`python` is this one."""
    folder = Path(tempfile.mkdtemp())
    (folder / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (folder / "python").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def run(name: str, commands: Sequence[str], columns: int, rows: int, **environment: str) -> None:
    """Commands at a shell, one after the other."""
    terminal = Terminal(columns, rows, **python(), **environment)
    for number, command in enumerate(commands, start=1):
        terminal.type(command, "peak memory", number)
    terminal.picture(name, "main.py")


def console() -> None:
    terminal = Terminal(92, 34, **python())
    terminal.type("python -m speculative_decoding console", "/quit to exit.")
    terminal.type("/prefix translate English to German:", "prefix: ")
    terminal.type("The method returns the value of the property.", "tokens/s")
    terminal.type("/show-draft", "show-draft: text")
    terminal.type("This method can be used to access the elements of an array.", "tokens/s", 2)
    terminal.type("/compare", "compare: on")
    terminal.type("The method returns the value of the property.", "identical")
    terminal.type("/num-draft", "usage: /num-draft")
    terminal.picture("console", "speculative-decoding console")


def every_command() -> None:
    """Each once, with a wrong argument and an interruption among them."""
    terminal = Terminal(100, 160, **python())
    pair = "--model t5-web-docs --draft-model t5-web-docs-draft"  # for /compare: a head cannot write without its target
    terminal.type(f"python -m speculative_decoding console {pair}", "/quit to exit.")
    for line, *then in (
        ("/help", "type //."),
        ("/model", "model: target models"),
        ("/max-tokens ten", "usage: /max-tokens N"),
        ("/max-tokens 60", "max-tokens: 60"),
        ("/num-draft 4", "drafts 4"),
        ("/drafter model", "drafter: model"),
        ("/prefix grammar:", "prefix: grammar:"),
        ("He were reading a old book.", "tokens/s"),
        ("/prefix", "prefix: not set"),
        ("/show-draft rounds", "show-draft: rounds"),
        (GERMAN, "round 2"),
        ("/show-draft rounds", "show-draft: off"),
        ("/compare", "compare: on"),
        (GERMAN, "identical"),
        ("/stats", "speculative", 2),
        ("/compare", "compare: off"),
        ("/baseline", "baseline: on"),
        (GERMAN, "zurück.", 5),
        ("/baseline", "baseline: off"),
        ("/temperature 0.8", "temperature: 0.8"),
        ("/top-p 0.9", "top-p: 0.9"),
        ("/seed 7", "seed: 7"),
        ("/acceptance coupled", "acceptance: coupled"),
        (GRAMMAR, "He"),
        ("/acceptance rejection", "acceptance: rejection"),
        ("/temperature 0", "temperature: 0"),
        ("/delta 0.5", "delta: 0.5"),
        (GERMAN, "LOSSY"),
        ("/delta 0", "delta: 0"),
        ("/output-prefix Diese Methode", "output-prefix: Diese"),
        (GERMAN, "gibt"),
        ("/output-prefix", "output-prefix: not set"),
        ("/max-token 3", "did you mean /max-tokens?"),
        ("/max-tokens 100000", "max-tokens: 100000"),
        ("/temperature 5", "temperature: 5"),
    ):
        terminal.type(line, *then)
    terminal.type(GERMAN, GERMAN, 6, ready=False)
    time.sleep(0.4)
    terminal.press("C-c")
    terminal.wait_for("stopped")
    terminal.type("/quit", "$", 2)
    terminal.picture("every-command", "each command")


def speed() -> None:
    """Baseline decoding against the default settings, the bundled pair on 15 prompts a task."""
    modes = ["--drafter", "auto", "--num-draft", "auto"]
    command = [sys.executable, "-m", "benchmarks", "--limit", "15", *modes]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    draw_speed(json.loads(next(line for line in text.splitlines() if line.startswith("{")))["rows"])


def draw_speed(rows: Sequence[Mapping[str, Any]]) -> None:
    """rows: of a benchmark's line of JSON."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
    for offset, (label, name, colour) in enumerate(
        (("baseline", "baseline decoding", "#b0b7c3"), ("auto auto", "with a draft, default settings", "#2a7de1"))
    ):
        found = [row for task in tasks for row in rows if (row["task"], row["label"]) == (task, label)]
        speeds = [1e3 / row["ms_per_token"][1] for row in found]
        bars = axes.barh([i + 0.38 * offset for i in range(len(tasks))], speeds, 0.36, color=colour, label=name)
        speedups = [f", {row['speedup']:.2f}x" if offset else "" for row in found]
        texts = [f"{speed:.0f} tokens/s{speedup}" for speed, speedup in zip(speeds, speedups, strict=True)]
        axes.bar_label(bars, texts, padding=4, fontsize=9)
    axes.set_yticks([i + 0.19 for i in range(len(tasks))], tasks)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    axes.set_title("The same text, token for token: bundled models, two x86 cores, float32", fontsize=10, loc="left")
    figure.savefig(PICTURES / "speed.svg", metadata={"Date": None})


def sessions() -> None:
    show = f'python main.py --show-draft --prompt "{GERMAN}"'
    rounds = f'python main.py --show-draft rounds --prompt "{LONG}"'
    compare = f'python main.py --compare --prompt "{GERMAN}"'
    run("show-draft", [show, rounds], 92, 20)
    run("show-draft-no-colour", [show, rounds], 92, 20, NO_COLOR="1")
    run("show-draft-40-columns", [show, rounds], 40, 48)
    run("compare", [compare], 92, 16)
    run("compare-no-colour", [compare], 92, 16, NO_COLOR="1")
    console()
    every_command()


def main() -> None:
    makers = {"speed": speed, "sessions": sessions}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(makers)} (default: all)")
    names = parser.parse_args().names or list(makers)
    if unknown := set(names) - set(makers):
        parser.error(f"NAME: there is no {', '.join(sorted(unknown))}; choose from {', '.join(makers)}")
    PICTURES.mkdir(exist_ok=True)
    for name in names:
        makers[name]()


if __name__ == "__main__":
    main()

"""What one request loads, calls and makes: modules, functions and classes of the package, from main.py to its text.

    python tools/call_trace.py [--list] [--json FILE] [ARGUMENTS OF main.py ...]

A function counts once, however often it is called. The body of a class and the functions that `dataclass` writes count
as functions; a class counts when an object of it is made. The modules of cpu/, which Linux imports first, are reported
apart.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "speculative_decoding"
ROOT = Path(__file__).parents[1]
EXAMPLE = "translate English to German: The method returns the value of the property."


@dataclass
class CallTrace:
    """Names in the order of their first use; functions and classes as module:qualified name."""

    modules: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call; see `sys.setprofile`."""
        if event != "call":
            return
        code = frame.f_code
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PACKAGE) and not code.co_name.startswith("<"):
            self._add(self.functions, module, code.co_qualname)
        if code.co_name in ("__init__", "__new__"):
            first = next(iter(frame.f_locals.values()), None)
            kind = first if isinstance(first, type) else type(first)
            if kind.__module__.startswith(PACKAGE):
                self._add(self.classes, kind.__module__, kind.__qualname__)

    def _add(self, names: list[str], module: str, name: str) -> None:
        if (whole := f"{module.removeprefix(f'{PACKAGE}.')}:{name}") not in names:
            names.append(whole)

    def finish(self) -> None:
        self.modules = sorted(name for name in sys.modules if name.split(".")[0] == PACKAGE)

    @property
    def modules_without_cpu(self) -> list[str]:
        return [name for name in self.modules if name.split(".")[:2] != [PACKAGE, "cpu"]]

    def summary(self) -> str:
        files = [getattr(sys.modules[name], "__file__", None) for name in self.modules]
        lines = sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files if file)
        return (
            f"one request: {len(self.modules_without_cpu)} modules without cpu/, {len(self.modules)} with it, {lines} "
            f"lines; {len(self.functions)} functions, {len(self.classes)} classes"
        )


def trace(arguments: list[str]) -> CallTrace:
    """Run main.py in this process, which must not have imported the package."""
    found = CallTrace()
    sys.argv = ["main.py", *arguments]
    sys.path[0] = str(ROOT)
    threading.setprofile(found.watch)
    sys.setprofile(found.watch)
    try:
        runpy.run_path(str(ROOT / "main.py"), run_name="__main__")
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    found.finish()
    return found


def main() -> None:
    arguments = sys.argv[1:]
    shows_list = "--list" in arguments
    file = None
    if "--json" in arguments:
        at = arguments.index("--json")
        file = Path(arguments[at + 1])
        del arguments[at : at + 2]
    found = trace([each for each in arguments if each != "--list"] or [EXAMPLE])
    if shows_list:
        print(*(f"  {name}" for name in (*found.modules, *found.functions)), sep="\n")
        print("classes:", ", ".join(found.classes))
    if file is not None:
        file.write_text(json.dumps(asdict(found) | {"modules_without_cpu": found.modules_without_cpu}))
    print(found.summary())


if __name__ == "__main__":
    if PACKAGE in sys.modules:  # python -m tools.call_trace: the package was imported before anything was counted
        os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])
    main()

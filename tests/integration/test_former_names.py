"""What users of the last version call is still there: names and parameters in Python, flags, and paths over HTTP.

`former_names.json` was recorded with the package of commit a0cfd39f by `names()`. A name that is removed on purpose is
removed there, too, and listed in CHANGELOG.md.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import speculative_decoding
from speculative_decoding import Session
from speculative_decoding.cli.programs import COMMANDS
from tests.support.subpackages import SUBPACKAGES, needs_subpackage

pytestmark = [*map(needs_subpackage, SUBPACKAGES)]
RECORDED = Path(__file__).with_name("former_names.json")
PARSERS = {"generate": "prompt_parser", **{name: f"{name}_parser" for name in COMMANDS if name != "generate"}}


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def fields_of(made: Any) -> list[str]:
    """Return the fields of a record, or the parameters of a function or of another class."""
    if hasattr(made, "_fields"):
        return [*made._fields]
    if dataclasses.is_dataclass(made):
        return [each.name for each in dataclasses.fields(made) if not each.name.startswith("_")]
    return parameters(made) if callable(made) else []


def names() -> dict[str, dict[str, list[str]]]:
    """Return the names by kind: each with its fields, parameters or flags."""
    from speculative_decoding.server.app import ServerSettings, make_app
    from speculative_decoding.server.limits import Limits
    from speculative_decoding.server.metrics import Metrics
    from speculative_decoding.server.service import Service

    python = {name: fields_of(getattr(speculative_decoding, name)) for name in speculative_decoding.__all__}
    public = {name: getattr(Session, name, each) for name, each in vars(Session).items() if not name.startswith("_")}
    methods = {name: parameters(each) if inspect.isfunction(each) else [] for name, each in public.items()}
    flags = {}
    for name, (module, _, _) in COMMANDS.items():
        parser = getattr(import_module(f"speculative_decoding.{module}"), PARSERS[name])("program")
        flags[name] = sorted(flag for action in parser._actions for flag in action.option_strings or [action.dest])
    thread: Any = SimpleNamespace(decoding=0, waiting=0, reading=None)
    service = Service(thread, Limits(), Metrics())
    app = make_app(service, ServerSettings(model="name", prefixes={}))
    routes = {route.path: sorted(getattr(route, "methods", None) or []) for route in app.routes}  # type: ignore[attr-defined]
    return {"python": python, "Session": methods, "flags": flags, "paths": routes}


def test_all_names_of_the_last_version_are_still_there() -> None:
    recorded, found = json.loads(RECORDED.read_text()), names()
    missing = {
        f"{kind}: {name}" if name not in found[kind] else f"{kind}: {name}: {each}"
        for kind, former in recorded.items()
        for name, parts in former.items()
        for each in parts or [""]
        if name not in found[kind] or (each and each not in found[kind][name])
    }
    assert missing == set()


def test_fields_of_tuples_keep_their_places() -> None:
    """New ones come last, because users unpack tuples."""
    found = names()["python"]
    for name, fields in json.loads(RECORDED.read_text())["python"].items():
        if hasattr(getattr(speculative_decoding, name), "_fields"):
            assert found[name][: len(fields)] == fields, name

"""The layering of the package: imports only point down, rooms can be left out, functions take few parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from speculative_decoding.rooms import has_room
from tests.support.paths import ROOT
from tests.support.rooms import CORE_TESTS, ROOMS

PACKAGE = ROOT / "speculative_decoding"

# The core, from bottom to top. Folders in one layer must not import each other.
CORE: list[tuple[str, ...]] = [
    ("version", "cache_folder"),
    ("errors",),
    ("rooms",),
    ("sampling",),
    ("checkpoints",),
    ("models",),
    ("loading",),
    ("drafters",),
    ("draft_length",),
    ("decoding",),
    ("engine", "scoring"),
    ("rows",),
    ("session",),
    ("generate",),
    ("cli",),
    ("verify", "train", "serve", "__main__"),
]
# Where the core imports a room, each time in a function that only runs if the room is needed. `__init__` imports cpu/
# before MLX.
SEAMS = {
    ("__init__", "cpu"),
    ("models.backend", "cpu"),
    ("loading.load", "cpu"),
    ("engine", "beam_search"),
    ("session", "speech"),
    ("cli.common", "distributed"),
    ("cli.run_config", "distributed"),
}
TOP_LEVEL_MODULES = 13
PARAMETERS = 8
PARAMETERS_MAY_BE_MORE = {"session.load"}  # users write its arguments by name

NOW, LATE, TYPING = "when the module is imported", "in a function", "for type checkers"


@dataclass(frozen=True)
class Import:
    """Module `importer` imports from module `imported`. Modules are named by their path in the package: "cli.main"."""

    importer: str
    imported: str
    when: str = NOW

    @property
    def top_level(self) -> tuple[str, str]:
        """The top-level folder or module of each."""
        return self.importer.split(".")[0], self.imported.split(".")[0]


def sources(folder: Path) -> dict[str, str]:
    """Return the source of each module. The __init__ of a folder is "cli.__init__"."""
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
    }


@cache
def nodes(text: str) -> list[ast.AST]:
    """Return all nodes of a module; the first one is the module. Parsing takes most of the time of these tests."""
    return [*ast.walk(ast.parse(text))]


@cache
def import_nodes(text: str) -> list[tuple[ast.Import | ast.ImportFrom, str]]:
    """Return the imports of a module, and when each is executed."""
    found: list[tuple[ast.Import | ast.ImportFrom, str]] = []

    def visit(node: ast.AST, when: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                found.append((child, when))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, LATE)
            elif isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                visit(child, TYPING)
            else:
                visit(child, when)

    visit(nodes(text)[0], NOW)
    return found


def imports_of(modules: Mapping[str, str]) -> Iterator[Import]:
    """Yield all imports within the package, including those in functions and under TYPE_CHECKING."""
    for importer, text in modules.items():
        for node, when in import_nodes(text):
            if isinstance(node, ast.ImportFrom):
                if node.level:
                    above = importer.split(".")[: -node.level]
                elif node.module and node.module.split(".")[0] == PACKAGE.name:
                    above = []
                else:
                    continue
                module = node.module or ""
                inside = (
                    [*above, *(part for part in module.split(".") if part)] if node.level else module.split(".")[1:]
                )
                for alias in node.names if len(inside) < 2 else node.names[:1]:
                    yield Import(importer, ".".join([*inside, alias.name] if len(inside) < 2 else inside), when)
            else:
                for alias in node.names:
                    if alias.name.split(".")[0] == PACKAGE.name:
                        yield Import(importer, ".".join(alias.name.split(".")[1:]) or "__init__", when)


def layer_of(name: str) -> int:
    """Return the index of a layer. Unlisted modules get the top one, so nothing may import them."""
    return next((number for number, names in enumerate(CORE) if name in names), len(CORE))


def upward(modules: Mapping[str, str]) -> list[Import]:
    """Return the imports between folders that are not allowed. The package's __init__ may import all of the core."""
    found = []
    for each in imports_of(modules):
        importer, imported = each.top_level
        if importer == imported:
            continue
        if imported in ROOMS:
            in_core = importer not in ROOMS
            is_allowed = (
                (each.importer, imported) in SEAMS and (each.when != NOW or importer == "__init__")
                if in_core
                else imported in ROOMS[importer]
            )
        else:
            is_allowed = importer == "__init__" or importer in ROOMS or layer_of(imported) < layer_of(importer)
        if not is_allowed:
            found.append(each)
    return found


def cycles(modules: Mapping[str, str]) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or through others, also for type checkers.

    Imports in functions do not count: a function of the core may start a room, which imports the core.
    """
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for each in imports_of(modules):
        if each.when != LATE:
            name = next((name for name in (each.imported, f"{each.imported}.__init__") if name in modules), None)
            parent = each.imported.rpartition(".")[0]
            name = name or next((name for name in (parent, f"{parent}.__init__") if name in modules), None)
            if name is not None and name != each.importer:
                graph[each.importer].add(name)
    while True:  # leave out modules that import nothing else, or that nothing else imports
        imported = set().union(*graph.values()) if graph else set()
        kept = {name: own & graph.keys() for name, own in graph.items() if own & graph.keys() and name in imported}
        if kept == graph:
            break
        graph = kept
    return [set(graph)] if graph else []


MODULES = sources(PACKAGE)


def test_imports_point_down_and_only_seams_lead_to_rooms() -> None:
    assert len(list(imports_of(MODULES))) > 200
    folders = {name.split(".")[0] for name in MODULES} - {"__init__"}
    assert folders - ROOMS.keys() == {name for names in CORE for name in names}
    assert folders & ROOMS.keys() == {room for room in ROOMS if has_room(room)}
    assert upward(MODULES) == []


def test_no_modules_import_each_other() -> None:
    assert cycles(MODULES) == []


def test_the_package_imports_neither_tests_nor_benchmarks_nor_itself_by_name() -> None:
    for name, text in MODULES.items():
        for node, _ in import_nodes(text):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {each.split(".")[0] for each in names} & {"benchmarks", "tests", PACKAGE.name}, name


@pytest.mark.parametrize(
    ("module", "text", "imported"),
    [
        ("models.planted", "from ..decoding.round import speculate", "decoding.round"),
        ("models.planted", "def late():\n    from .. import engine", "engine"),
        ("models.planted", "from .. import InputError", "InputError"),
        ("checkpoints.planted", "from ..models import base", "models.base"),
        ("checkpoints.deep.planted", "from ...models.base import Head", "models.base"),
        ("drafters.planted", "import speculative_decoding.cli.main", "cli.main"),
        ("drafters.planted", "from speculative_decoding.session import Session", "session.Session"),
        ("engine", "from .session import Session", "session.Session"),
        ("engine", "from .beam_search.round import beam_search_step", "beam_search.round"),
        ("session", "def late():\n    from .jobs import job", "jobs.job"),
        ("cli.planted", "if TYPE_CHECKING:\n    from ..speech import api", "speech.api"),
        ("jobs.planted", "from ..server import app", "server.app"),
        ("verify", "from . import serve", "serve"),
    ],
)
def test_a_planted_upward_import_is_caught(module: str, text: str, imported: str) -> None:
    assert [(each.importer, each.imported) for each in upward({module: text})] == [(module, imported)]


def test_a_planted_cycle_is_caught_and_valid_imports_are_not() -> None:
    modules = {"jobs.a": "from ..cli.b import c", "cli.b": "if TYPE_CHECKING:\n    from ..jobs import a"}
    assert cycles(modules) == [{"jobs.a", "cli.b"}]
    assert cycles({"a.x": "from . import y", "a.y": "from .z import q", "a.z": "from .x import p"}) != []
    right = {
        "cli.b": "from .c import d\nimport os",
        "cli.c": "def f():\n    from .b import e",
        "jobs.a": "from ..cli.b import f",
    }
    assert upward(right) == [] and cycles(right) == []


# Tokenizer files differ by family, SentencePiece's own `model_type` is its algorithm, the GGUF reader supports T5, and
# the kernels to check depend on the architecture.
MAY_KNOW_FAMILIES = {
    "doctor.kernel_checks",
    "loading.tokenizer_settings",
    "loading.canonical_tokenizer",
    "checkpoints.gguf",
}


def depends_on_family(modules: Mapping[str, str]) -> set[str]:
    """Return the modules outside models/ that import an architecture or read `model_type`."""
    others = {name: text for name, text in modules.items() if not name.startswith("models.")}
    found = {each.importer for each in imports_of(others) if re.match(r"models\.(t5|bart|gemma)", each.imported)}
    for name, text in others.items():
        words = (each for each in nodes(text) if isinstance(each, ast.Constant | ast.Attribute))
        if any("model_type" in (getattr(each, "value", None), getattr(each, "attr", None)) for each in words):
            found.add(name)
    return found


def test_only_models_and_four_modules_depend_on_the_family() -> None:
    there = {name for name in MAY_KNOW_FAMILIES if (folder := name.split(".")[0]) not in ROOMS or has_room(folder)}
    assert depends_on_family(MODULES) == there


@pytest.mark.parametrize(
    "text",
    [
        "from ..models.bart import BART",
        "def f():\n    from ..models import t5gemma2",
        "raw['model_type']",
        "c.model_type",
    ],
)
def test_a_planted_dependence_on_the_family_is_caught(text: str) -> None:
    assert depends_on_family({"decoding.planted": text}) == {"decoding.planted"}


NOT_THE_METHOD = {
    "time",
    "sys",
    "threading",
    "subprocess",
    "multiprocessing",
    "rich",
    "cpu",
    "distributed",
}


def imports_beyond_the_method(modules: Mapping[str, str]) -> set[str]:
    """Return the imports in decoding/ that serve timing, printing, processes or kernels."""
    method = {name: text for name, text in modules.items() if name.startswith("decoding.")}
    names = {each.top_level[1] for each in imports_of(method)}
    for text in method.values():
        for node in nodes(text):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
    return names & NOT_THE_METHOD


def test_decoding_contains_only_the_method() -> None:
    assert imports_beyond_the_method(MODULES) == set()


@pytest.mark.parametrize("text", ["import time", "from ..distributed import launcher", "import rich.console"])
def test_planted_imports_in_decoding_are_detected(text: str) -> None:
    assert imports_beyond_the_method({"decoding.planted": text})


def test_few_modules_are_outside_folders() -> None:
    loose = [name for name in MODULES if "." not in name and name != "__init__"]
    assert len(loose) <= TOP_LEVEL_MODULES, loose


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{within}.{node.name}" if isinstance(node, ast.ClassDef | ast.FunctionDef) else within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, name)


def too_many_parameters(modules: Mapping[str, str]) -> set[str]:
    """Return functions with more than PARAMETERS parameters, not counting `self` and `cls`.

    The keywords that `with_option_kwargs` adds to a function do not count.
    """
    found = set()
    for module, text in modules.items():
        for name, node in functions(nodes(text)[0]):
            own = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            own = own[1:] if own and own[0].arg in ("self", "cls") else own
            if len(own) > PARAMETERS:
                found.add(module + name)
    return found


def test_functions_take_few_parameters() -> None:
    assert too_many_parameters(MODULES) <= PARAMETERS_MAY_BE_MORE


def test_a_planted_function_with_nine_parameters_is_caught() -> None:
    text = (
        "class A:\n    def f(self, a, b, c, d, /, e, f, g, *, h, i): ...\n    def g(self, a, b, c, d, e, f, g, h): ..."
    )
    assert too_many_parameters({"cli.x": text}) == {"cli.x.A.f"}


def room_imports_of_core_tests(tests: Mapping[str, str]) -> set[str]:
    """Find modules that import a room among all modules that the core's tests import, directly or indirectly.

    Imports in functions do not count.
    """
    pending = [name for name in tests if name == "conftest" or f"tests/{name.split('.')[0]}" in CORE_TESTS]
    seen: set[str] = set()
    found = set()
    while pending:
        name = pending.pop()
        if name in seen or name not in tests:
            continue
        seen.add(name)
        for node, when in import_nodes(tests[name]):
            before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for module in (f"{before}{alias.name}" for alias in node.names if when != LATE):
                package, _, inside = module.partition(".")
                if package in ("tests", PACKAGE.name) and inside.split(".")[0] in ROOMS:
                    found.add(name)
                if package == "tests":
                    pending += [inside, inside.rpartition(".")[0]]
    return found


def test_tests_of_the_core_import_no_room() -> None:
    assert room_imports_of_core_tests(sources(ROOT / "tests")) == set()


def test_a_room_that_a_core_test_imports_is_caught() -> None:
    tests = {"unit.cli.test_a": "from tests.support import b\nfrom tests.support.c import d", "support.b": "import os"}
    assert room_imports_of_core_tests(tests | {"support.c": "def f():\n    from tests.jobs import e"}) == set()
    for text in ("from speculative_decoding.jobs import e", "import tests.speech.test_e", "from tests import server"):
        assert room_imports_of_core_tests(tests | {"support.c": text}) == {"support.c"}
    assert room_imports_of_core_tests({"jobs.test_a": "from tests.jobs import b"}) == set()


def test_folders_of_unit_tests_are_those_of_the_core() -> None:
    folders = {each.name for each in (ROOT / "tests" / "unit").iterdir() if (each / "__init__.py").is_file()}
    assert folders - {"benchmarks", "tools"} <= {name.split(".")[0] for name in MODULES if "." in name} - ROOMS.keys()

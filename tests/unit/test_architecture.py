"""The plan of the house: folders are floors, imports only point down; functions take few arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "speculative_decoding"

# From bottom to top; what stands in one line may not import each other, but for the modules within one folder.
FLOORS: list[tuple[str, ...]] = [
    ("errors", "version", "cache_folder"),
    ("linux_cpu", "sampling"),
    ("checkpoints",),
    ("models",),
    ("distributed",),
    ("loading",),
    ("drafters",),
    ("draft_length",),
    ("decoding",),
    ("engine", "scoring", "comparison"),
    ("session",),
    ("generate",),
    ("jobs", "training"),
    ("server",),
    ("cli",),
    ("verify", "train", "serve", "__main__"),
]
LOOSE_FILES = 11
PARAMETERS = 8
PARAMETERS_MAY_BE_MORE: set[str] = set()  # "cli.main.function": why


@dataclass(frozen=True)
class Arrow:
    """Module `importer` imports something of module `imported`; both as their paths in the package, "cli.main"."""

    importer: str
    imported: str

    @property
    def rooms(self) -> tuple[str, str]:
        """The folders, or loose files, they stand in."""
        return self.importer.split(".")[0], self.imported.split(".")[0]


def sources(folder: Path) -> dict[str, str]:
    """Text by module, "cli.main"; a folder's __init__ is "cli.__init__"."""
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
    }


def arrows(modules: Mapping[str, str]) -> Iterator[Arrow]:
    """All imports of the package's own modules, also those within functions and for type checkers alone."""
    for importer, text in modules.items():
        for node in ast.walk(ast.parse(text)):
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
                    yield Arrow(importer, ".".join([*inside, alias.name] if len(inside) < 2 else inside))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == PACKAGE.name:
                        yield Arrow(importer, ".".join(alias.name.split(".")[1:]) or "__init__")


def floor_of(room: str) -> int:
    """What has no floor stands above all others, so that nothing may import it."""
    return next((number for number, rooms in enumerate(FLOORS) if room in rooms), len(FLOORS))


def upward(modules: Mapping[str, str]) -> list[Arrow]:
    """Imports that do not point down. The package's own __init__ stands on the roof."""
    found = []
    for arrow in arrows(modules):
        importer, imported = arrow.rooms
        if importer == "__init__" or importer == imported:
            continue
        if floor_of(imported) >= floor_of(importer):
            found.append(arrow)
    return found


def both_ways(modules: Mapping[str, str]) -> set[tuple[str, str]]:
    rooms = {arrow.rooms for arrow in arrows(modules)}
    return {pair for pair in rooms if pair[0] < pair[1] and pair[::-1] in rooms}


MODULES = sources(PACKAGE)


def test_imports_point_down_only() -> None:
    assert len(list(arrows(MODULES))) > 200
    assert {name.split(".")[0] for name in MODULES} - {"__init__"} == {room for rooms in FLOORS for room in rooms}
    assert upward(MODULES) == []


def test_no_two_folders_import_each_other() -> None:
    assert both_ways(MODULES) == set()


def test_two_modules_import_linux_cpu() -> None:
    """One at import of the package, one before weights are loaded."""
    outside = {arrow.importer for arrow in arrows(MODULES) if arrow.rooms[1] == "linux_cpu"}
    assert {name for name in outside if not name.startswith("linux_cpu.")} == {"__init__", "loading.load"}


def test_the_package_knows_nothing_of_what_stands_around_it() -> None:
    for name, text in MODULES.items():
        for node in ast.walk(ast.parse(text)):
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
        ("jobs.planted", "from ..cli import common", "cli.common"),
        ("verify", "from . import serve", "serve"),
    ],
)
def test_a_planted_upward_import_is_caught(module: str, text: str, imported: str) -> None:
    assert upward({module: text}) == [Arrow(module, imported)]


def test_planted_imports_both_ways_are_caught_and_right_ones_are_not() -> None:
    knot = {"jobs.a": "from ..cli.b import c", "cli.b": "from ..jobs import a"}
    assert both_ways(knot) == {("cli", "jobs")}
    right = {"cli.b": "from ..jobs import a\nfrom .c import d\nimport os", "__init__": "from .cli import main"}
    assert upward(right) == [] and both_ways(right) == set()


MAY_KNOW_FAMILIES = {"loading.tokenizer", "checkpoints.gguf"}  # its files; a format of T5's alone, which says so


def asks_for_family(modules: Mapping[str, str]) -> set[str]:
    """Modules above the models that import an architecture, or look at `model_type`."""
    others = {name: text for name, text in modules.items() if not name.startswith("models.")}
    found = {arrow.importer for arrow in arrows(others) if re.match(r"models\.(t5|bart|gemma)", arrow.imported)}
    for name, text in others.items():
        words = (each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Constant | ast.Attribute))
        if any("model_type" in (getattr(each, "value", None), getattr(each, "attr", None)) for each in words):
            found.add(name)
    return found


def test_nothing_above_the_models_asks_which_family_it_is() -> None:
    assert asks_for_family(MODULES) == MAY_KNOW_FAMILIES


@pytest.mark.parametrize(
    "text",
    [
        "from ..models.bart import BART",
        "def f():\n    from ..models import t5gemma2",
        "raw['model_type']",
        "c.model_type",
    ],
)
def test_a_planted_question_for_the_family_is_caught(text: str) -> None:
    assert asks_for_family({"decoding.planted": text}) == {"decoding.planted"}


APART_FROM_THE_METHOD = {
    "time",
    "sys",
    "threading",
    "subprocess",
    "multiprocessing",
    "rich",
    "linux_cpu",
    "distributed",
}


def imports_apart_from_the_method(modules: Mapping[str, str]) -> set[str]:
    """Imports of decoding/ for timing, printing, processes or kernels."""
    method = {name: text for name, text in modules.items() if name.startswith("decoding.")}
    names = {arrow.rooms[1] for arrow in arrows(method)}
    for text in method.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
    return names & APART_FROM_THE_METHOD


def test_decoding_contains_only_the_method() -> None:
    assert imports_apart_from_the_method(MODULES) == set()


@pytest.mark.parametrize("text", ["import time", "from ..distributed import launcher", "import rich.console"])
def test_planted_imports_in_decoding_are_detected(text: str) -> None:
    assert imports_apart_from_the_method({"decoding.planted": text})


def test_few_files_stand_loose() -> None:
    loose = [name for name in MODULES if "." not in name and name != "__init__"]
    assert len(loose) <= LOOSE_FILES, loose


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{within}.{node.name}" if isinstance(node, ast.ClassDef | ast.FunctionDef) else within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, name)


def too_many_parameters(modules: Mapping[str, str]) -> set[str]:
    """`self` is none. Functions made from GenerationOptions have theirs in a dataclass, so they have few here."""
    found = set()
    for module, text in modules.items():
        for name, node in functions(ast.parse(text)):
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

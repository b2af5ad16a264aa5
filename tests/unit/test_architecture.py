"""The layering of the package: imports only point down, subpackages can be left out, functions take few parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from speculative_decoding.subpackages import has_subpackage
from tests.support.paths import ROOT
from tests.support.subpackages import CORE_TESTS, SUBPACKAGES

PACKAGE = ROOT / "speculative_decoding"

# The core, from bottom to top. Folders in one layer must not import each other.
CORE: list[tuple[str, ...]] = [
    ("version", "cache_folder"),
    ("errors",),
    ("subpackages",),
    ("sampling",),
    ("checkpoints",),
    ("runs",),
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
# Where the core imports an optional subpackage, each time in a function that only runs if the subpackage is
# needed. `__init__` imports cpu/ before MLX.
EXTENSION_POINTS = {
    ("__init__", "cpu"),
    ("models.backend", "cpu"),
    ("loading.load", "cpu"),
    ("engine", "beam_search"),
    ("session", "speech"),
    ("session", "memory"),
    ("session", "documents"),
    ("drafters.text_store", "memory"),
    ("cli.start", "distributed"),
    ("cli.run_config", "distributed"),
    ("cli.run_config", "memory"),
}
TOP_LEVEL_MODULES = 13
PARAMETERS = 8
# Users write the arguments of the first two by name. The others pass on those of `load`, also by name.
PARAMETERS_MAY_BE_MORE = {
    "session.load",
    "generate.batch_generate",
    "loading.pair.open_pair",
    "loading.load.open_model",
}

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


MODULES = sources(PACKAGE)


@cache
def nodes(text: str) -> list[ast.AST]:
    """Return all nodes of a module; the first one is the module. Parsing takes most of the time of these tests."""
    return [*ast.walk(ast.parse(text))]


@cache
def import_nodes(text: str) -> list[tuple[ast.Import | ast.ImportFrom, str]]:
    """Return the imports of a module, and when each is executed. Expressions have none."""
    found: list[tuple[ast.Import | ast.ImportFrom, str]] = []

    def visit(node: ast.AST, when: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                found.append((child, when))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, LATE)
            elif isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                visit(child, TYPING)
            elif not isinstance(child, ast.expr):
                visit(child, when)

    visit(ast.parse(text), NOW)
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


def is_allowed(each: Import) -> bool:
    """Return whether one folder may import from another. The package's __init__ may import all of the core."""
    importer, imported = each.top_level
    if importer == imported:
        return True
    if imported not in SUBPACKAGES:
        return importer == "__init__" or importer in SUBPACKAGES or layer_of(imported) < layer_of(importer)
    if importer in SUBPACKAGES:
        return imported in SUBPACKAGES[importer]
    return (each.importer, imported) in EXTENSION_POINTS and (each.when != NOW or importer == "__init__")


def test_no_modules_import_each_other() -> None:
    """Neither directly nor through others, also for type checkers and in functions."""
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for each in imports_of(MODULES):
        parent = each.imported.rpartition(".")[0]
        names = (each.imported, f"{each.imported}.__init__", parent, f"{parent}.__init__")
        name = next((name for name in names if name in MODULES), None)
        if name is not None and name != each.importer:
            graph[each.importer].add(name)
    while graph:  # leave out modules that import nothing else, or that nothing else imports
        imported = set().union(*graph.values()) if graph else set()
        kept = {name: own & graph.keys() for name, own in graph.items() if own & graph.keys() and name in imported}
        if kept == graph:
            break
        graph = kept
    assert {*graph} == set()


def test_imports_point_down_and_only_extension_points_lead_to_optional_subpackages() -> None:
    imports = [*imports_of(MODULES)]
    assert len(imports) > 200
    folders = {name.split(".")[0] for name in MODULES} - {"__init__"}
    assert folders - SUBPACKAGES.keys() == {name for names in CORE for name in names}
    assert folders & SUBPACKAGES.keys() == {subpackage for subpackage in SUBPACKAGES if has_subpackage(subpackage)}
    assert [each for each in imports if not is_allowed(each)] == []


def test_the_package_imports_neither_tests_nor_benchmarks_nor_itself_by_name() -> None:
    for name, text in MODULES.items():
        for node, _ in import_nodes(text):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {each.split(".")[0] for each in names} & {"benchmarks", "tests", PACKAGE.name}, name


# Tokenizer files differ by family, SentencePiece's own `model_type` is its algorithm, the readers of GGUF and
# CTranslate2 files name the family, and the kernels to check depend on the architecture.
MAY_KNOW_FAMILIES = {
    "doctor.kernel_checks",
    "loading.tokenizer_settings",
    "loading.canonical_tokenizer",
    "loading.ctranslate2_tokenizer",
    "checkpoints.gguf",
    "checkpoints.ctranslate2_config",
    "checkpoints.ctranslate2_layout",
}


def test_only_models_and_few_modules_depend_on_the_family() -> None:
    """Others neither import an architecture nor read `model_type`."""
    others = {name: text for name, text in MODULES.items() if not name.startswith("models.")}
    found = {each.importer for each in imports_of(others) if re.match(r"models\.(t5|bart|gemma)", each.imported)}
    for name, text in others.items():
        words = (each for each in nodes(text) if isinstance(each, ast.Constant | ast.Attribute))
        if any("model_type" in (getattr(each, "value", None), getattr(each, "attr", None)) for each in words):
            found.add(name)
    assert found == {
        name
        for name in MAY_KNOW_FAMILIES
        if name.split(".")[0] not in SUBPACKAGES or has_subpackage(name.split(".")[0])
    }


NOT_THE_METHOD = {"time", "sys", "threading", "subprocess", "multiprocessing", "rich", "cpu", "distributed"}


def test_decoding_contains_only_the_method() -> None:
    """It imports nothing for timing, printing, processes or kernels."""
    method = {name: text for name, text in MODULES.items() if name.startswith("decoding.")}
    names = {each.top_level[1] for each in imports_of(method)}
    for text in method.values():
        for node in nodes(text):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
    assert names & NOT_THE_METHOD == set()


def test_few_modules_are_outside_folders() -> None:
    loose = [name for name in MODULES if "." not in name and name != "__init__"]
    assert len(loose) <= TOP_LEVEL_MODULES, loose


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{within}.{node.name}" if isinstance(node, ast.ClassDef | ast.FunctionDef) else within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, name)


def test_functions_take_few_parameters() -> None:
    """`self`, `cls` and the keywords that `with_option_kwargs` adds to a function do not count."""
    found = set()
    for module, text in MODULES.items():
        for name, node in functions(nodes(text)[0]):
            own = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            own = own[1:] if own and own[0].arg in ("self", "cls") else own
            if len(own) > PARAMETERS:
                found.add(module + name)
    assert found <= PARAMETERS_MAY_BE_MORE


def test_tests_of_the_core_import_no_optional_subpackage() -> None:
    """Nor do the modules that they import. Imports in functions do not count."""
    tests = sources(ROOT / "tests")
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
                if package in ("tests", PACKAGE.name) and inside.split(".")[0] in SUBPACKAGES:
                    found.add(name)
                if package == "tests":
                    pending += [inside, inside.rpartition(".")[0]]
    assert found == set()


def test_folders_of_unit_tests_are_those_of_the_core() -> None:
    folders = {each.name for each in (ROOT / "tests" / "unit").iterdir() if (each / "__init__.py").is_file()}
    assert (
        folders - {"benchmarks", "tools"}
        <= {name.split(".")[0] for name in MODULES if "." in name} - SUBPACKAGES.keys()
    )

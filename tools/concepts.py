"""Counts the concepts in the package: `python -m tools.concepts [FOLDER]`.

FOLDER is the root of a checkout (default: this one); the tool only reads source files, so it works for any commit. It
prints

- lines of Python by room (a folder or a top-level file of the package),
- classes, functions (including methods and nested functions) and module constants (names in capitals),
- the longest import path from module to module,
- record types between a prompt and its text: dataclasses and named tuples in session.py and in the decoding rooms
  (`DECODING_ROOMS`) that it imports, directly or indirectly,
- functions with more than 8 parameters, excluding `self` and `cls`.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "speculative_decoding"
DECODING_ROOMS = ("session", "engine", "decoding", "drafters", "draft_length")
MAX_PARAMETERS = 8

Modules = dict[str, ast.Module]  # by dotted name within the package, "cli.main"; a package is named "cli"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1])
    folder = parser.parse_args().folder / PACKAGE
    paths = sorted(folder.rglob("*.py"))
    if not paths:
        print(f"{folder}: no Python files found; name the root of a checkout", file=sys.stderr)
        return 2

    modules = {module_name(path, folder): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    imports = {name: sorted(set(imports_of(name, modules))) for name in modules}
    lines: Counter[str] = Counter()
    for path in paths:
        lines[room_of(module_name(path, folder))] += len(path.read_text(encoding="utf-8").splitlines())

    print(f"{sum(lines.values()):6} lines in {len(paths)} files")
    print(*(f"{count:8} {room}" for room, count in lines.most_common()), sep="\n")
    print(f"{count_nodes(modules, ast.ClassDef):6} classes")
    print(f"{count_nodes(modules, ast.FunctionDef, ast.AsyncFunctionDef):6} functions")
    print(f"{sum(len(constants(tree)) for tree in modules.values()):6} module constants")

    path = longest_path(imports)
    print(f"{len(path):6} modules in the longest import path: {' > '.join(path)}")

    decoding = sorted(name for name in reachable("session", imports) if room_of(name) in DECODING_ROOMS)
    found = {name: records(modules[name]) for name in decoding}
    print(f"{sum(map(len, found.values())):6} record types between a prompt and its text")
    print(*(f"{len(names):8} {name}: {', '.join(names)}" for name, names in found.items() if names), sep="\n")

    wide = [f"{name}:{node.lineno} {node.name}" for name, tree in modules.items() for node in wide_functions(tree)]
    print(f"{len(wide):6} functions with more than {MAX_PARAMETERS} parameters", *wide, sep="\n         ")
    return 0


def module_name(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def room_of(module: str) -> str:
    return module.split(".")[0]


def imports_of(name: str, modules: Modules) -> Iterator[str]:
    """Yield the package's modules that a module imports with relative imports, including those inside functions."""
    is_package = any(other.startswith(f"{name}.") for other in modules)
    for node in ast.walk(modules[name]):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        parents = name.split(".") if is_package else name.split(".")[:-1]
        parents = parents[: len(parents) - node.level + 1]
        base = [*parents, *filter(None, (node.module or "").split("."))]
        for alias in node.names:
            for candidate in (".".join([*base, alias.name]), ".".join(base)):
                if candidate in modules and candidate != name:
                    yield candidate
                    break


def reachable(start: str, imports: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports.get(name, [])
    return found


def longest_path(imports: dict[str, list[str]]) -> list[str]:
    """Return the longest path without the package's own `__init__`; imports that close a cycle are ignored."""
    longest: dict[str, list[str]] = {}

    def path_from(name: str, above: frozenset[str]) -> list[str]:
        if name not in longest:
            below = [path_from(each, above | {name}) for each in imports[name] if each not in above | {name}]
            longest[name] = [name, *max(below, key=len, default=[])]
        return longest[name]

    return max((path_from(name, frozenset()) for name in imports if name != "__init__"), key=len)


def count_nodes(modules: Modules, *kinds: type[ast.AST]) -> int:
    return sum(isinstance(node, kinds) for tree in modules.values() for node in ast.walk(tree))


def constants(tree: ast.Module) -> list[str]:
    """Return the uppercase names that a module assigns at its top level."""
    names: list[str] = []
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            names += [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
    return [name for name in names if name.isupper()]


def records(tree: ast.Module) -> list[str]:
    """Return the names of a module's dataclasses and named tuples."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            marks = [each.func if isinstance(each, ast.Call) else each for each in [*node.decorator_list, *node.bases]]
            if any(isinstance(mark, ast.Name) and mark.id in ("dataclass", "NamedTuple") for mark in marks):
                found.append(node.name)
    return found


def wide_functions(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if parameters and parameters[0].arg in ("self", "cls"):
                parameters = parameters[1:]
            if len(parameters) > MAX_PARAMETERS:
                yield node


if __name__ == "__main__":
    sys.exit(main())

"""Executes kernels of published mlx-metal wheels on Linux. See tools/metal/README.md.

build    fetches wheels and compiles the runtime. Takes half a minute; needs pip, clang-19 and llvm-19-dev, but no other
         Python packages
classes  which pass widths produce identical bits? Replays recorded dispatches. Takes one to five minutes per model
bounds   do kernels access memory outside their arguments? Takes five minutes for all kernels
diff     which kernels differ between two wheels? Takes a minute
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import operations
from .build import PINNED, BuildError, build, metallib_of
from .operations import CHIPS, DTYPES, MODELS

BITS = "bits of quantized weights; without a value, only dense ones (default: 4 8)"
WHEEL = "VERSION, VERSION/PLATFORM, or the path of a wheel or metallib"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.metal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    of_build = commands.add_parser("build", help="fetch wheels and compile the runtime")
    of_build.add_argument("wheels", nargs="*", default=[PINNED], metavar="WHEEL", help=f"{WHEEL} (default: {PINNED})")
    of_classes = commands.add_parser("classes", help="print the pass widths that give equal bits")
    of_classes.add_argument("--chip", nargs="+", choices=CHIPS, required=True, help="chips whose dispatches to replay")
    of_classes.add_argument("--model", nargs="+", choices=MODELS, default=["t5-web-docs"], help="default: t5-web-docs")
    of_classes.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bfloat16"], help="default: bfloat16")
    of_classes.add_argument("--bits", nargs="*", type=int, choices=(4, 8), default=[4, 8], help=BITS)
    of_bounds = commands.add_parser("bounds", help="print accesses outside of arguments")
    of_bounds.add_argument("--chip", nargs="+", choices=CHIPS, default=[*CHIPS], help="default: all")
    of_bounds.add_argument("--model", nargs="+", choices=MODELS, default=[*MODELS], help="default: all")
    of_bounds.add_argument("--dtype", nargs="+", choices=DTYPES, default=[*DTYPES], help="default: all")
    for command in (of_classes, of_bounds):
        command.add_argument("--wheel", default=PINNED, help=f"{WHEEL} (default: {PINNED})")
        command.add_argument(
            "--processes", type=int, default=os.cpu_count() or 1, help="default: one for each processor"
        )
    of_diff = commands.add_parser("diff", help="print the kernels that differ between two wheels")
    of_diff.add_argument("a", metavar="WHEEL_A", help=WHEEL)
    of_diff.add_argument("b", metavar="WHEEL_B", help=WHEEL)
    of_diff.add_argument("--all", action="store_true", help="print kernels that no trace uses as well")
    chosen = parser.parse_args(argv)
    try:
        if chosen.command == "build":
            build(chosen.wheels)
            return 0
        # The other commands need numpy and the compiled runtime.
        action = {"classes": print_classes, "bounds": print_bounds, "diff": print_difference}[chosen.command]
        return action(chosen)
    except BuildError as error:
        print(f"python -m tools.metal: {error}", file=sys.stderr)
        return 2


def print_classes(chosen: argparse.Namespace) -> int:
    """Print the classes of each operation, and those that all operations of a model have in common."""
    from . import classes

    metallib_of(chosen.wheel)  # fails before the processes start
    has_problem = False
    for chip in chosen.chip:
        for model in chosen.model:
            of_dtype: dict[str, list[classes.Found]] = {dtype: [] for dtype in chosen.dtype}
            for found in classes.classes_of_model(
                chosen.wheel, chip, model, chosen.dtype, chosen.bits, chosen.processes
            ):
                print(f"{chip} {found.dtype} {found}", flush=True)
                of_dtype[found.dtype].append(found)
                has_problem |= bool(found.problems)
            for dtype, of_model in of_dtype.items():
                for bits in (0, *chosen.bits):
                    parts = [each for each in of_model if each.operation in operations.operations_of(model, bits)]
                    if any(each.problems for each in parts):
                        continue
                    shared = classes.described(classes.common_classes([each.classes for each in parts]))
                    print(f"{chip} {dtype} {model}, {f'{bits} bits' if bits else 'dense'}: {shared}", flush=True)
    return int(has_problem)


def print_bounds(chosen: argparse.Namespace) -> int:
    """Print each kernel that accesses memory outside its arguments, with its farthest access."""
    from . import bounds
    from .runtime import Fault

    metallib_of(chosen.wheel)  # fails before the processes start
    cases = bounds.cases(chosen.chip, chosen.model, chosen.dtype)
    farthest: dict[object, tuple[Fault, bounds.Case]] = {}
    problems = 0
    for case, faults, problem in bounds.check_all(chosen.wheel, cases, chosen.processes):
        if problem:
            print(f"{case.operation} {case.dtype} width {case.width}: {problem}", flush=True)
            problems += 1
        for fault in faults:
            key = fault.kernel, fault.argument, fault.access, fault.side
            if key not in farthest or farthest[key][0].distance < fault.distance:
                farthest[key] = fault, case
    unknown = 0
    for fault, case in sorted(farthest.values(), key=lambda found: str(found[0])):
        reason = bounds.reason_for(fault)
        unknown += reason is None
        where = f"{case.operation} {case.dtype}, width {case.width}"
        print(f"{fault} ({where}): {f'known: {reason}' if reason else 'UNKNOWN'}")
    print(f"{len(cases)} passes; accesses outside of arguments: {len(farthest)}, of them unknown: {unknown}")
    return int(bool(unknown or problems))


def print_difference(chosen: argparse.Namespace) -> int:
    """Print the kernels that differ. Returns 1 if the traces use any of them."""
    from .metallib import Metallib
    from .wheel_diff import compare

    found = compare(*(Metallib(metallib_of(wheel)) for wheel in (chosen.a, chosen.b)))
    is_affected = False
    for title, names in (("removed", found.removed), ("changed", found.changed), ("added", found.added)):
        used = sorted(found.used & set(names))
        print(f"{title}: {len(names):,} kernels, {len(used)} of them in traces")
        for name in sorted(names) if chosen.all else used:
            print(f"  {name}{' (in traces)' if chosen.all and name in found.used else ''}")
        is_affected |= bool(used)
    print(f"same: {found.same:,} kernels")
    return int(is_affected)


if __name__ == "__main__":
    sys.exit(main())

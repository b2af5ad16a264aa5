"""convert.py: converts a Hugging Face checkpoint to a folder under models/, with a progress bar."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence

from ..errors import InputError, Message
from ..loading.load import BITS, DTYPES, GROUP_SIZES
from .common import say, start_alone
from .parser import File, Parser, argument_type
from .progress import progress


def convert_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s [options] --model NAME | --verify DIR",
        argument_default=argparse.SUPPRESS,
        description="Convert an encoder-decoder model to MLX .npz weights in bounded memory.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", metavar="NAME", help="model to convert: a local folder, or a model on the Hub")
    what.add_argument(
        "--verify", type=argument_type(File()), metavar="DIR", help="check a converted folder against its manifest"
    )
    add = parser.add_argument
    add("--output", type=argument_type(File()), metavar="DIR", help="the folder to write (default: models/NAME)")
    add("--dtype", choices=tuple(DTYPES), help="data type of the stored weights (default: bfloat16)")
    add("--quantize", type=int, choices=BITS, help="store weight matrices with this many bits per weight")
    add(
        "--group-size",
        type=int,
        choices=GROUP_SIZES,
        help="number of weights that share a scale, with --quantize (default: 64)",
    )
    add("--tokenizer", metavar="NAME", help="use the tokenizer of this folder, or of this model on the Hub")
    add("--adapter", metavar="NAME", help="merge this LoRA adapter, as saved by PEFT: a folder, or a name on the Hub")
    add("--revision", metavar="REV", help="branch, tag or commit on the Hub")
    add("--force", action="store_true", help="replace an existing output folder")
    return parser


def main(argv: Sequence[str] | None = None, program: str = "convert.py") -> int:
    return start_alone(convert_parser(program), argv, convert)


def convert(chosen: argparse.Namespace) -> int:
    """Convert or verify a model, and return the exit status."""
    from ..loading import conversion, manifest
    from ..loading.load import Storage, local_folder

    given = vars(chosen)
    if "verify" in given:
        if len(given) > 1:
            raise InputError(f"{chosen.verify} takes no other options", "verify", "leave them out")
        folder = local_folder(chosen.verify) or chosen.verify
        say(f"{folder}: {manifest.verify(folder)} files match the manifest")
        return 0
    if "quantize" not in given and "group_size" in given:
        raise InputError(Message("has no effect without {quantize}"), "group_size", "give both, or leave it out")

    bytes_read = 0
    started = time.perf_counter()
    storage_options = {name: given.pop(name) for name in ("dtype", "quantize", "group_size") if name in given}
    storage = Storage(**{"dtype": "bfloat16", **storage_options})
    with progress() as show:

        def show_tensor(name: str, done: int, total: int) -> None:
            nonlocal bytes_read
            bytes_read = total
            show(done, total, name)

        output = conversion.convert(
            given.pop("model"), given.pop("output", None), storage, **given, progress=show_tensor
        )
    seconds = time.perf_counter() - started
    bytes_written = sum(path.stat().st_size for path in output.iterdir())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # bytes
    say(
        f"converted to {output}: read {bytes_read / 1e9:.2f} GB in {seconds:.1f} s "
        f"({bytes_read / 1e9 / seconds:.2f} GB/s), wrote {bytes_written / 1e9:.2f} GB; "
        f"peak memory {peak / 2**30:.2f} GiB"
    )
    return 0

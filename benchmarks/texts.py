"""Measures the gain from draft texts: `python -m benchmarks.texts [FILE ...] [--time]`

Each row is a type of draft text that a request passes with a prompt:

- noise: the target's own output, in which each word is replaced, with probability 0.1, by a word drawn from all outputs
  of the task
- person: an output written by a person for the same source (--references)
- memory: the outputs of the unchanged sources, as a translation memory; in one of ten sources, the last clause is
  replaced by that of another source
- prompt, task: a useless text, namely the output of another prompt or of another task
- speech: for recordings (--whisper), the transcript of another Whisper, and the last transcript of a growing recording;
  also measures the other Whisper as the draft model

Without `--time`, the command prints tokens per target call with drafts of at most 15 tokens, which do not depend on the
machine's speed. "All" means texts, copies and the draft model or head. "Best place" replays the output, drafting each
time from the place in the text that matches the most upcoming tokens; no search can find a better place. With `--time`,
the command instead prints the time with the text divided by the time without it, both with the default drafter and
adaptive draft lengths, in interleaved repeats. Each run of a task uses a new session. All outputs are compared with the
baseline's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from speculative_decoding import Session
from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.parser import Parser, add_flags, flags_from
from speculative_decoding.cli.run_config import ModelFlags, find
from speculative_decoding.errors import InputError, Name, writing
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.runs.places import atomic_write, require_writable
from speculative_decoding.subpackages import has_subpackage

from .given_texts import KINDS, USELESS, GivenTexts, given_texts, read_references, with_changed_clauses
from .machine import described, environment, notes, used_by_others
from .options import COUNT, json_path
from .speech_texts import speech_rows
from .summary import grouped
from .tasks import prompts_from_files
from .text_rows import NUM_DRAFT, Bench, time_rows, token_rows, waste_row

LIMIT = 200  # prompts per file
IN_A_ROW = 60  # prompts per file with --time, and for single requests with useless texts
SEEDS = 5
REPEATS = 9
JFK = BUNDLED.parent / "data" / "jfk.wav"


def check(chosen: argparse.Namespace) -> dict[str, list[str]]:
    """Reject contradictory options, and fill in defaults. Returns the prompts by task. Raises `InputError`."""
    given = vars(chosen)
    speech = {"--transcriber": "transcriber", "--whisper-head": "whisper_head", "--recordings": "recordings"}
    conflicts = {
        "--whisper: needs --transcriber, the Whisper that writes the texts": "whisper" in given
        and "transcriber" not in given,
        **{
            f"{flag}: no effect without --whisper": name in given and "whisper" not in given
            for flag, name in speech.items()
        },
        "--whisper: cannot be combined with --time; python -m benchmarks.speech measures times": "whisper" in given
        and chosen.time,
        "--repeats: no effect without --time": "repeats" in given and not chosen.time,
        "--seeds: no effect with --time, which uses the first seed": "seeds" in given and chosen.time,
        "--references: no effect without --kinds person": chosen.references
        and "person" not in given.get("kinds", KINDS),
        "--slots: cannot be combined with --time, which decodes single prompts": "slots" in given and chosen.time,
    }
    for message, applies in conflicts.items():
        if applies:
            raise InputError(message)
    require_writable(json_path(chosen), "json")
    prompts = prompts_from_files(chosen.prompts, given.get("limit", IN_A_ROW if chosen.time else LIMIT))
    impossible = {}
    if not chosen.references:
        impossible["person"] = "needs --references"
    if len(prompts) == 1:
        impossible["task"] = "needs several files of prompts"
    if not has_subpackage("memory"):
        impossible["memory"] = "this copy lacks memory/"
    if "whisper" not in given:
        impossible["speech"] = "needs --whisper"
    for kind, why in impossible.items():
        if kind in given.get("kinds", ()):
            raise InputError(f"--kinds {kind}: {why}")
    defaults = {
        "kinds": [*KINDS.keys() - impossible],
        "repeats": REPEATS,
        "seeds": SEEDS,
        "slots": 1,
        "whisper_head": None,
        "recordings": [JFK],
    }
    given |= {name: value for name, value in defaults.items() if name not in given}
    return prompts


def all_given_texts(
    bench: Bench, prompts: Mapping[str, Sequence[str]], chosen: argparse.Namespace, references: Mapping[str, str]
) -> Iterator[GivenTexts]:
    """Decode each task's baseline, and yield the kinds of draft texts that were chosen."""
    decoded = {name: bench.decoded(name, own) for name, own in prompts.items()}
    names = [*decoded]
    for number, (name, own) in enumerate(decoded.items()):
        changed = bench.decoded(name, with_changed_clauses(own.prompts)) if "memory" in chosen.kinds else None
        other = decoded[names[number - 1]]
        found = given_texts(own, changed, other, references, 1 if chosen.time else chosen.seeds)
        yield from (given for given in found if given.kind in chosen.kinds)


def table(title: str, rows: Sequence[Any], key: Sequence[str]) -> str:
    """Return a table with a column for each task. key: the fields that identify a line."""
    tasks = [*dict.fromkeys(row.task for row in rows)]
    lines = [[*key, *tasks], ["---"] * (len(key) + len(tasks))]
    for values, alike in grouped(rows, lambda row: tuple(getattr(row, name) for name in key)).items():
        figures = {row.task: row.figure for row in alike}
        lines.append([*values, *(figures.get(task, "") for task in tasks)])
    return f"{title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def measure(chosen: argparse.Namespace) -> int:
    prompts = check(chosen)
    references = read_references(chosen.references)
    folders = flags_from(ModelFlags, chosen).find()
    names = ("whisper", "transcriber", "whisper_head") if "speech" in chosen.kinds else ()
    whispers = [None if getattr(chosen, name) is None else find(getattr(chosen, name), name) for name in names]
    pair = folders.open()
    pair.load_weights()
    session = Session(pair.target.model, pair.target.tokenizer, None if pair.draft is None else pair.draft.model)
    bench = Bench(session, chosen.max_tokens, chosen.slots)
    where = environment()
    others = used_by_others()
    found = all_given_texts(bench, prompts, chosen, references) if {*chosen.kinds} - {"speech"} else ()
    rows: list[Any] = []
    wasted: list[Any] = []
    warnings: list[str] = []
    if chosen.time:
        rows += time_rows(bench, found, chosen.repeats)
        warnings = notes(where, others, used_by_others(), chosen.repeats)
        title = f"Time with the text / without it: median (quartiles) of {chosen.repeats} interleaved repeats"
        tables = [table(title, rows, ["given"])]
    else:
        for given in found:
            say(f"{given.decoded.task.name}: {KINDS[given.kind]}")
            rows += token_rows(bench, given)
            if given.kind in USELESS:
                wasted.append(waste_row(bench, given, IN_A_ROW))
        title = f"Tokens per target call, drafts of at most {NUM_DRAFT}"
        tables = [table(title, rows, ["given", "drafts"])] if rows else []
        title = f"Wasted passes, more calls than without a text; mean (most) of {IN_A_ROW} prompts in new sessions"
        tables += [table(title, wasted, ["given"])] if wasted else []
        if "speech" in chosen.kinds:
            spoken = [*speech_rows(whispers, chosen.recordings)]
            tables.append(table("Tokens per target call of recordings", spoken, ["given", "drafts"]))
            rows += spoken
    to_stdout = getattr(chosen, "json", None) == "-"
    lines = [described(where), *(f"**Note: {note}.**" for note in warnings), *tables]
    print(*lines, sep="\n\n", file=sys.stderr if to_stdout else sys.stdout)
    missing = [kind for kind in KINDS if kind not in chosen.kinds]
    if missing:
        say(f"not measured: {', '.join(missing)}; see --help")
    figures = {"environment": where, "notes": warnings, "rows": [asdict(row) for row in (*rows, *wasted)]}
    if to_stdout:
        print(json.dumps(figures))
    elif path := json_path(chosen):
        with writing(Name("json"), path):
            atomic_write(path, json.dumps(figures) + "\n")
        say(f"wrote {path}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.texts", description=__doc__, argument_default=argparse.SUPPRESS)
    add = parser.add_argument
    add("prompts", nargs="*", type=Path, default=[], help="files with one prompt per line (default: the bundled files)")
    add("--kinds", choices=KINDS, nargs="+", help="kinds of texts to measure (default: all that the other flags allow)")
    limit = f"prompts per file (default: {LIMIT}, with --time {IN_A_ROW})"
    add("--limit", type=COUNT, metavar="N", help=limit)
    add("--max-tokens", "-m", type=COUNT, default=80, metavar="N", help="maximum tokens per output (default: 80)")
    add("--seeds", type=COUNT, metavar="N", help=f"seeds of the noise, from 0 (default: {SEEDS})")
    add("--slots", type=COUNT, metavar="N", help="prompts decoded together, without --time (default: 1)")
    add("--time", action="store_true", default=False, help="measure times instead of tokens per target call")
    add("--repeats", type=COUNT, metavar="N", help=f"measured repeats of --time (default: {REPEATS})")
    references = "files with outputs that people wrote; each line is a source, a tab and an output"
    add("--references", type=Path, nargs="+", default=[], metavar="FILE", help=references)
    add("--whisper", metavar="NAME", help="a Whisper that transcribes; without it, there are no rows of speech")
    add("--transcriber", metavar="NAME", help="another Whisper, whose transcripts --whisper is given")
    add("--whisper-head", metavar="NAME", help="a draft head of --whisper (default: none)")
    recordings = "16 kHz WAV files of English speech (default: data/jfk.wav)"
    add("--recordings", type=Path, nargs="+", metavar="FILE", help=recordings)
    add("--json", metavar="FILE", help="also write the figures as JSON; - writes to standard output")
    add_flags(parser, "models", ModelFlags)
    chosen = parser.parse_args(argv)
    return run("benchmarks.texts", lambda: measure(chosen))


if __name__ == "__main__":
    sys.exit(main())

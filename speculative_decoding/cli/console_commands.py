"""Commands and state of the console.

Each decoding option and each flag of `PromptFlags`, except those listed below, is a command with the same meaning.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from ..decoding.prompt import check_languages, check_token_ids
from ..errors import InputError, Message, Name, shown, similar_names
from ..loading.load import model_names
from ..loading.pair import SELF_DRAFTS, ModelPair
from ..sampling import GenerationOptions
from ..sampling.options import option_specs
from ..sampling.values import Bool, OptionSpec, specs_of
from ..session import Session
from .common import read_text
from .compare import Comparison, comparison_table, decoding_modes
from .flags import add_decoding_flags
from .help import as_typed
from .main import PromptFlags
from .parser import Parser, add_flags, flag
from .run_config import ModelFlags, RunConfig, make_run_config

NOT_IN_CONSOLE = ("prompt", "verify", "stats_json", "num_return_sequences")  # neither flags nor commands of the console
FIXED_AT_START = ("trace", "max_ngram_size")  # flags only


def console_parser(program: str, **options: Any) -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s [options]",
        description="Decode prompts as you type them. A line that begins with / is a command; /help lists them. Most "
        "options are also commands.",
        basic=("trace",),
        **options,
    )
    add_flags(parser, "prompt and output", PromptFlags, without=NOT_IN_CONSOLE)
    add_decoding_flags(parser, without=NOT_IN_CONSOLE)
    return parser


class Quit(Exception):
    """Raised by /quit."""


@dataclass
class ConsoleState:
    """The console's open models and settings.

    Args:
        config: The models to open, and the initial options.
        runner: Decodes the prompts.
        flags: The current values of the flags, except `baseline`, which is derived from the options.
    """

    config: RunConfig
    runner: Comparison = field(default_factory=lambda: Comparison(is_on=False))
    flags: PromptFlags = field(default_factory=PromptFlags)
    session: Session = field(init=False)
    pair: ModelPair | None = field(init=False, default=None)
    _opened: ExitStack = field(init=False, default_factory=ExitStack)

    def __enter__(self) -> ConsoleState:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def console(self) -> Console:
        return self.runner.console

    @property
    def options(self) -> GenerationOptions:
        return self.session.options

    def value(self, name: str) -> Any:
        """Return the current value of an option or flag."""
        if name == "baseline":
            return self.options.drafter == "none"
        values: Any = self.session.options_with({}) if name in option_specs() else self.flags  # with default drafter
        return getattr(values, name)

    def set(self, name: str, value: Any) -> None:
        """Set an option or flag. Raises `InputError` if it has no effect, or conflicts with the models or others."""
        if name in option_specs():
            self.change({name: value})
        elif name == "baseline":
            self.change({"drafter": "none" if value else None})
        elif name == "compare" and value and len(decoding_modes(self.session)) == 1:
            way_out = Message("turn {baseline} off, or choose a {draft_model}")
            raise InputError("has no draft to compare", name, way_out)
        else:
            if name == "prefix":
                check_languages(self.session.model, self.session.tokenizer, self.options, value)
            self.flags = replace(self.flags, **{name: value})

    def change(self, changes: Mapping[str, Any]) -> None:
        """Change options. Raises `InputError`, and changes nothing, if they conflict with each other or the models."""
        options = self.options.override(changes)
        changed = replace(self.session, options=options)  # checks the options against the models
        changed.options_with({}).require_effect(changes)
        check_token_ids(options.eos_token_ids, self.session.model.config.vocab_size)
        check_languages(self.session.model, self.session.tokenizer, options, self.flags.prefix)
        self.session.options = options

    def open(self, config: RunConfig, pair: ModelPair | None = None) -> None:
        """Load the models, including a draft that no option uses yet.

        pair: the opened models; None to open them.
        """
        pair = pair or config.open(use_draft=True)
        config = config.with_memory(pair)
        self.session = self._opened.enter_context(config.session(pair))
        self.config, self.pair = config, pair

    def open_other_models(self, model: str, draft_model: str | None) -> None:
        """Open other models with the current options. If that fails, reopen the previous ones."""
        if self.config.shard is not None:
            raise InputError("the model cannot be changed while several processes share it; restart with the new one")
        models = self.config.models
        paths = ModelFlags(model, draft_model, dtype=models.dtype).find()
        if paths.model == models.model:  # an adapter or a tokenizer fits only one model
            paths = replace(paths, adapter=models.adapter, tokenizer=models.tokenizer)
        changed = {
            name: value
            for name, spec in option_specs().items()
            if (value := getattr(self.options, name)) != spec.default
        }
        previous = replace(self.config, chosen=self.options, given=changed.keys())
        # The options for the draft model's prompt were meant for the previous draft model
        flags = replace(self.config.flags, draft_prefix=None, draft_src_lang=None, draft_tgt_lang=None)
        config = replace(make_run_config(paths, changed, flags), memory=self.config.memory)
        pair = config.open(use_draft=True)
        self._opened.close()
        del self.session  # free the old target before loading the new one
        self.pair = None
        try:
            self.open(config, pair)
        except BaseException:
            self.open(previous)
            raise

    def recover(self) -> None:
        """Recreate the session after an interruption, which may leave its learned state inconsistent."""
        self.session = replace(self.session)


@dataclass
class Command:
    """Decorator that registers a function as a command. The function takes the state and the argument text.

    Args:
        usage: The command's name and arguments: literal words, and placeholders in capitals.
        meaning: The help text.
        current: Returns the current value as the user would type it.
        choices: Returns possible completions for an argument.
    """

    usage: str
    meaning: str
    current: Callable[[ConsoleState], str] | None = None
    choices: Callable[[], Iterable[str]] = tuple
    run: Callable[[ConsoleState, str], None] = field(init=False)

    def __call__(self, run: Callable[[ConsoleState, str], None]) -> None:
        self.run = run
        COMMANDS[self.name] = self

    @property
    def name(self) -> str:
        return self.usage.split()[0]

    def completions(self, start: str) -> list[str]:
        return [word for word in self.choices() if word.startswith(start)]

    def execute(self, state: ConsoleState, text: str) -> None:
        """Run the command and print the new value. For an invalid argument, raises `InputError` with the usage."""
        try:
            if self.usage == self.name and text.strip():
                raise InputError(f"unexpected argument (got {text!r}, expected none)")
            self.run(state, text)
        except InputError as error:
            is_own = error.field is not None and command_name(error.field) == self.name
            named = InputError(error.problem, None if is_own else error.field, error.way_out)
            raise InputError(f"{self.name}: {named.message(name_of)}", way_out=f"usage: {self.usage}") from error
        if self.current is not None:
            state.console.print(f"{self.name.removeprefix('/')}: {self.current(state)}")


COMMANDS: dict[str, Command] = {}  # in the order of /help
PARSER = console_parser("", exit_on_error=False)  # parses the arguments of commands


def find(name: str) -> Command:
    """Return the command. Raises an `InputError` that suggests a command with a similar name."""
    if name in COMMANDS:
        return COMMANDS[name]
    command = f"/{name.removeprefix('/')}"
    similar = [each for each in COMMANDS if command != "/" and each.startswith(command)]
    similar = similar or similar_names(command, COMMANDS, 1, 0.7, key=lambda each: each.removeprefix("/"))
    hint = f"did you mean {similar[0]}?" if similar else "/help lists all commands"
    raise InputError(f"{name}: unknown command; {hint} (to start a prompt with /, type //)")


def completions(line: str) -> list[str]:
    """Return completions of the last word of a line: command names, or arguments."""
    name, space, rest = line.partition(" ")
    if not space:
        return [command for command in COMMANDS if name and command.startswith(name)]
    return COMMANDS[name].completions(rest.rpartition(" ")[2]) if name in COMMANDS else []


def parse(name: str, text: str | None) -> Any:
    """Return the value that the flag --name=text sets, or that --name alone sets if `text` is None."""
    own = PARSER.flags[name]
    try:
        return getattr(PARSER.parse_args([own if text is None else f"{own}={text}"]), name)
    except argparse.ArgumentError as error:
        raise InputError(error.message) from error


def on_off(is_on: bool) -> str:
    return "on" if is_on else "off"


@Command("/help [COMMAND]", "list all commands, or describe one", choices=lambda: COMMANDS)
def show_help(state: ConsoleState, text: str) -> None:
    if text.strip():
        command = find(f"/{text.strip().removeprefix('/')}")
        current = f"\nnow: {command.current(state)}" if command.current else ""
        state.console.print(f"usage: {command.usage}\n{command.meaning}{current}")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for command in COMMANDS.values():
        current = f" (now {command.current(state)})" if command.current else ""
        table.add_row(Line(command.usage), Line(command.meaning + current))
    state.console.print(table)
    state.console.print("Any other line is a prompt. To start a prompt with /, type //.")


def command_name(name: str) -> str:
    return f"/{flag(name).removeprefix('--')}"


def name_of(field: str) -> str:
    """Return how a field is written in the console: its command, or its name if it has no command."""
    command = command_name(field)
    return command if command in COMMANDS else field


def add_setting(name: str, spec: OptionSpec) -> None:
    """Add the command that sets an option or flag."""
    value = spec.type
    placeholder = value.metavar
    is_optional = spec.default in ("", (), None)  # without a value, the command restores the default
    usage = command_name(name)
    if not isinstance(value, Bool):
        usage += f" [{placeholder}]" if is_optional or spec.flag.bare else f" {placeholder}"

    def current(state: ConsoleState) -> str:
        found = state.value(name)
        if name == "num_draft_tokens":
            return f"{found}; {state.session.planner.draft_length(state.session.options_with({})).describe()}"
        return on_off(found) if isinstance(value, Bool) else as_typed(found)

    words = [word for word in placeholder.split("|") if word.islower()]

    @Command(usage, shown(spec.help, command_name), current, lambda: words)
    def change(state: ConsoleState, text: str) -> None:
        if placeholder != "TEXT":
            text = text.strip()
        if isinstance(value, Bool):
            is_on = not state.value(name)
            found = spec.default if is_on == bool(spec.default) else is_on
        elif spec.flag.bare is not None:  # turn it on, or off if it is on
            found = parse(name, text or None)
            found = spec.default if found == state.value(name) else found
        else:
            found = parse(name, text) if text or not is_optional else spec.default
        state.set(name, found)


for name, spec in {**specs_of(PromptFlags), **option_specs()}.items():
    if name in PARSER.flags and name not in FIXED_AT_START:
        add_setting(name, spec)


def describe_models(state: ConsoleState) -> str:
    return replace(state.config, chosen=state.options).describe(state.pair)


@Command("/model [TARGET [DRAFT]]", "use other models, or show the current models", describe_models, model_names)
def set_model(state: ConsoleState, text: str) -> None:
    names = text.split()
    if len(names) > 2:
        raise InputError(f"too many names (got {len(names)}, expected a target and a draft)")
    if names:
        state.open_other_models(names[0], names[1] if len(names) > 1 else None)


@Command("/draft-model NAME", "use another draft with this target", choices=lambda: [*model_names(), *SELF_DRAFTS])
def set_draft_model(state: ConsoleState, text: str) -> None:
    state.open_other_models(str(state.config.models.model), parse("draft_model", text.strip()))


@Command("/draft-text-file FILE", "draft from the text of this file; /draft-text without a text clears it")
def set_draft_text_file(state: ConsoleState, text: str) -> None:
    paths = parse("draft_text_file", text.strip())
    state.change({"draft_text": [read_text(path, Name("draft_text_file")) for path in paths]})


@Command("/stats", "show the statistics of this session")
def show_stats(state: ConsoleState, text: str) -> None:
    rows = {mode: (stats, "") for mode, stats in state.runner.totals.items()}
    state.console.print(comparison_table(rows) if rows else "no prompt has been decoded yet")


@Command("/quit", "exit the console; Ctrl-D does the same")
def leave(state: ConsoleState, text: str) -> None:
    raise Quit

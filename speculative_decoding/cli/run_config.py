"""A run's models, options and draft settings, read from flags and checked before the weights are loaded."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from typing import Annotated as A

import mlx.core as mx

from ..decoding.prompt import check_languages, check_token_ids, has_language_prefixes
from ..drafters import with_default_drafter
from ..errors import InputError, Message, Name
from ..loading.load import BUNDLED, DTYPES, ModelHandle, Shard, local_folder, locate
from ..loading.names import shown_name
from ..loading.pair import SELF_DRAFTS, DraftPrompt, ModelPair, fingerprint, open_pair
from ..models.memory_budget import memory_limits
from ..runs.places import require_writable
from ..sampling import GenerationOptions
from ..sampling.drafters import DRAFTERS
from ..sampling.options import option_specs
from ..sampling.values import BASIC, Bool, Flag, Int, ListOf, Text
from ..session import Session, load_session, open_memory, require_text
from ..subpackages import require_subpackage
from .common import launched_rank, read_text, say
from .parser import File, flags_from, given_options

if TYPE_CHECKING:
    from ..drafters.draft_model import DraftVocabulary
    from ..drafters.text_store import TextStore
    from ..memory import TranslationMemory

PREFERRED_PAIR = ("t5-11b", "t5-small")
BUNDLED_PAIR = ("t5-web-docs", "t5-web-docs-head")
OTHER_MODELS = "--model google/flan-t5-large --draft-model google/flan-t5-small"

MODEL_DRAFTERS = [name for name, facts in DRAFTERS.items() if facts.uses_model]
NGRAM_DRAFTERS = [name for name, facts in DRAFTERS.items() if facts.uses_ngrams]
DRAFT_PROMPT = ("draft_prefix", "draft_src_lang", "draft_tgt_lang")
LANGUAGES = ("src_lang", "tgt_lang")
TEXT_DRAFTERS = [name for name, facts in DRAFTERS.items() if facts.uses_texts]
DRAFTERS_OF_FLAGS = {
    **dict.fromkeys(DRAFT_PROMPT, MODEL_DRAFTERS),
    "draft_text_file": TEXT_DRAFTERS,
    "draft_vocab": MODEL_DRAFTERS,
    "draft_vocab_text": MODEL_DRAFTERS,
    "ngram_store": NGRAM_DRAFTERS,
    "memory": TEXT_DRAFTERS,
}

MODEL = (
    "target model: a folder, a name in models/ or on the Hub, or argos:en_de "
    "(default: t5-11b with t5-small, or the bundled pair)"
)
DRAFT_MODEL = f"draft model or draft head; {' or '.join(SELF_DRAFTS)}: the target in 4 or 8 bits (default: none)"
ADAPTER = "LoRA adapter of the target, which PEFT saved: a folder, or a name on the Hub (default: none)"
TOKENIZER = "use the tokenizer of this folder, or of this model on the Hub, for the target (default: the target's own)"
DTYPE = "data type for computation (default: as stored on a GPU, float16 on M1 and M2, float32 on a CPU)"
DRAFT_VOCAB = Message(
    "let the draft model propose only the N most frequent tokens of {draft_vocab_text} and the prompt's tokens"
)
DRAFT_PREFIX = Message(
    "text to put before every prompt for a draft model of another vocabulary, in place of {prefix} (default: {prefix})"
)
DRAFT_SRC_LANG = Message(
    "language of the prompt, as the tokenizer of such a draft model names it (default: {src_lang})"
)
DRAFT_TGT_LANG = Message(
    "language of the output, as the tokenizer of such a draft model names it (default: {tgt_lang})"
)
SAVE_SECONDS = 60.0
DRAFT_TEXT_FILE = "file with a draft text; may be repeated"
MEMORY = (
    "translation memory: draft from its translations of similar prompts; a TSV or TMX file, or the records of an "
    "earlier job (.jsonl)"
)
NGRAM_STORE = "file that stores prompts and outputs; later runs also copy drafts from it"


@dataclass(frozen=True)
class ModelFlags:
    """The models of a run. `find` replaces their names with their folders."""

    model: A[str | Path, Text(), MODEL, BASIC, Flag(metavar="NAME")] = ""
    draft_model: A[str | Path | None, Text(), DRAFT_MODEL, BASIC, Flag(metavar="NAME", parameter="draft")] = None
    adapter: A[str | None, Text(), ADAPTER, Flag(metavar="NAME")] = None
    tokenizer: A[str | None, Text(), TOKENIZER, Flag(metavar="NAME")] = None
    dtype: A[str | None, Text(tuple(DTYPES)), DTYPE] = None

    def open(self, *, use_draft: bool = True, **options: Any) -> ModelPair:
        """Open the models without weights. options: other arguments of `open_pair`."""
        draft = self.draft_model if use_draft else None
        return open_pair(self.model, draft, dtype=self.dtype, adapter=self.adapter, tokenizer=self.tokenizer, **options)

    def find(self) -> ModelFlags:
        """Find the models' folders; `SELF_DRAFTS` have none. Raises an `InputError` that names the flag."""
        if not self.model and self.adapter is not None:
            raise InputError(
                f"{self.adapter} needs the model that it was trained for", "adapter", Message("name it with {model}")
            )
        if not self.model and self.tokenizer is not None:
            raise InputError(
                f"{self.tokenizer} needs the model to use it for", "tokenizer", Message("name it with {model}")
            )
        draft: str | Path | None
        target, draft = (find(self.model, "model"), None) if self.model else find_default_pair()
        if self.draft_model is not None:
            draft = self.draft_model if self.draft_model in SELF_DRAFTS else find(self.draft_model, "draft_model")
        return replace(self, model=target, draft_model=draft)


def find(name: str | Path, field: str) -> Path:
    """Return a model's folder. Raises an `InputError` that names the flag for `field`."""
    try:
        return locate(name)
    except InputError as error:
        raise InputError(error.problem, field, error.way_out) from error


def find_default_pair() -> tuple[Path, Path]:
    for target, draft in (PREFERRED_PAIR, BUNDLED_PAIR):
        if (found := local_folder(target)) is not None and (found_draft := local_folder(draft)) is not None:
            return found, found_draft
    raise InputError(
        "is missing, and this installation has no bundled models",
        "model",
        Message("name a model on the Hub, or a folder that `speculative-decoding convert {model} NAME` wrote"),
    )


@dataclass(frozen=True)
class DraftFlags:
    """Draft settings that apply to a whole run."""

    draft_text_file: A[Sequence[Path], ListOf(File()), DRAFT_TEXT_FILE, BASIC] = ()
    draft_prefix: A[str | None, Text(may_be_empty=True), DRAFT_PREFIX] = None
    draft_src_lang: A[str | None, Text(), DRAFT_SRC_LANG, Flag("draft-source-language")] = None
    draft_tgt_lang: A[str | None, Text(), DRAFT_TGT_LANG, Flag("draft-target-language")] = None
    draft_vocab: A[int | None, Int(1), DRAFT_VOCAB, Flag(parameter="draft_vocabulary")] = None
    draft_vocab_text: A[Path | None, File(), "file with text similar to the expected outputs"] = None
    ngram_store: A[Path | None, File(), NGRAM_STORE] = None
    memory: A[Path | None, File(), MEMORY] = None
    recalibrate: A[bool, Bool(), "repeat the calibration for these models on this device"] = False

    def __post_init__(self) -> None:
        for name, other in (("draft_vocab", "draft_vocab_text"), ("draft_vocab_text", "draft_vocab")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise InputError(
                    Message("has no effect without {other}", other=Name(other)), name, "give both, or leave it out"
                )
        if self.memory is not None:
            require_subpackage("memory", "memory")

    @cached_property
    def draft_texts(self) -> list[str]:
        """The contents of each `draft_text_file`, read only once because it may be a pipe. Raises `InputError`."""
        return [read_text(path, Name("draft_text_file")) for path in self.draft_text_file]

    def add_draft_texts(self, options: GenerationOptions) -> GenerationOptions:
        """Return the options with the contents of each `draft_text_file` added as draft texts. Raises `InputError`."""
        try:
            return options.override({"draft_text": [*options.draft_text, *self.draft_texts]})
        except InputError as error:
            raise InputError(error.problem, "draft_text_file", error.way_out) from error


def run_config_from(
    args: argparse.Namespace, *, may_sample: bool = False, processes: Any = None, used: Collection[str] = ()
) -> RunConfig:
    """Build the configuration from flags. Raises `InputError` for missing models and for flags that have no effect.

    may_sample: Whether to accept sampling options at temperature 0, because decoding may fall back to a higher
        temperature.
    processes: The group of processes that share the target.
    used: The draft flags that the command also uses for another purpose, so that they need no drafts.
    """
    given = given_options(args)
    if "draft_model" in args and (beams := given.get("num_beams", 1)) > 1:
        raise InputError(
            Message("{folder} has no effect with {num_beams} {beams}", folder=args.draft_model, beams=beams),
            "draft_model",
            "leave one out",
        )
    config = make_run_config(flags_from(ModelFlags, args).find(), given, flags_from(DraftFlags, args), may_sample, used)
    if prefix := getattr(args, "prefix", ""):
        config = replace(config, prompt_prefixes=(prefix,))
    if processes is None:
        return config
    from ..distributed import shard_model

    return replace(config, shard=partial(shard_model, processes=processes))


def make_run_config(
    models: ModelFlags,
    given: Mapping[str, Any],
    flags: DraftFlags,
    may_sample: bool = False,
    used: Collection[str] = (),
) -> RunConfig:
    """Build the configuration from a dict of options. Raises `InputError` for options and flags that have no effect.

    may_sample, used: see `run_config_from`.
    """
    config = RunConfig(models, GenerationOptions(**given), flags, frozenset(given))
    options = config.options
    # --num-draft 0 turns drafting off, so it is valid with any drafter
    changed = {name for name, value in given.items() if value not in (option_specs()[name].default, 0)}
    changed |= {name for name in DRAFTERS_OF_FLAGS if getattr(flags, name) not in (None, ())}
    drafter = "none" if options.draft_tokens == 0 else options.drafter
    if models.draft_model is None and drafter != "none":
        names = ("drafter",) if drafter == "model" else ("draft_vocab", *DRAFT_PROMPT)
        if unusable := next((name for name in names if name in changed), ""):
            raise InputError(
                f"{given.get(unusable, '')} has no effect without a draft model".lstrip(),
                unusable,
                Message("name one with {draft_model}, choose another {drafter}, or leave it out"),
            )
    for name, drafters in DRAFTERS_OF_FLAGS.items():
        if name in changed and name not in used and drafter not in drafters:
            if (beams := options.num_beams) > 1:
                raise InputError(
                    Message("has no effect with {num_beams} {beams}", beams=beams), name, "leave one of them out"
                )
            raise InputError(
                Message(
                    "only applies to {drafter} {allowed}, not {chosen}", allowed=" or ".join(drafters), chosen=drafter
                ),
                name,
                "leave it out",
            )
    (options.with_values(temperature=1.0) if may_sample else options).require_effect(given)
    if flags.draft_text_file:
        without = replace(flags, draft_text_file=())  # so that other models in the console do not add the texts again
        config = replace(config, chosen=flags.add_draft_texts(config.chosen), flags=without)
    return config


@dataclass(frozen=True)
class RunConfig:
    """Configuration of a run.

    models: The models, specified by their folders.
    chosen: The options that the user chose. `drafter` is None if the default drafter is used.
    given: The names of the decoding options that the user chose.
    shard: Splits the target among processes; see `open_model`.
    prompt_prefixes: The prefixes with which prompts may begin; see `Session`.
    memory: The translation memory; see `with_memory`.
    """

    models: ModelFlags
    chosen: GenerationOptions
    flags: DraftFlags
    given: Collection[str] = ()
    shard: Shard | None = None
    prompt_prefixes: Sequence[str] = ()
    memory: TranslationMemory | None = None

    @cached_property
    def options(self) -> GenerationOptions:
        """The chosen options, with the name of the drafter."""
        return with_default_drafter(self.chosen, self.models.draft_model)

    def draft_settings(self) -> dict[str, Any]:
        """Return the settings that identify the drafts, for the statistics of a transcription."""
        settings = self.settings()
        return {name: settings[name] for name in ("drafter", "draft_text_sha256")}

    def settings(self) -> dict[str, Any]:
        """Return the options for JSON, with a hash instead of the draft texts, which may be long."""
        settings = asdict(self.options) | {"acceptance": self.options.rule}
        texts = settings.pop("draft_text")
        return settings | {
            "draft_text_sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest() if texts else None
        }

    def output_settings(self, pair: ModelPair) -> dict[str, Any]:
        """Return every setting that affects outputs, for a run that can be resumed.

        The first run adds "comparison", and also "exact" unless the options determine it (see `settle_exactness`).
        Models are identified by a hash of their contents.
        """
        options = self.settings() | asdict(self.flags)
        memory = self.memory
        del options["recalibrate"], options["memory"]
        del options["draft_text_file"]  # the settings already include a hash of the texts
        strict = options.pop("strict")
        prefix = "".join(self.prompt_prefixes)
        return {
            **({} if strict is None else {"exact": strict}),
            **{name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
            "dtype": self.models.dtype,
            "target_sha256": fingerprint(pair.target),
            "draft_sha256": None if pair.draft is None else fingerprint(pair.draft),
            **({"prompt_prefix": prefix} if prefix else {}),
            **({} if memory is None else {"memory_sha256": memory.sha256, "memory_pairs": len(memory)}),
            **({} if memory is None or memory.languages is None else {"memory_languages": memory.languages}),
        }

    def describe(self, pair: ModelPair | None = None) -> str:
        """Describe the models and drafts in one line. pair: the models, if they have been opened."""
        models, options = self.models, self.options
        target = shown_name(Path(models.model))
        if models.adapter is not None:
            target += f" with adapter {models.adapter}"
        if models.tokenizer is not None:
            target += f"{' and' if models.adapter else ' with'} tokenizer {models.tokenizer}"
        if options.num_beams > 1:
            return f"target {target}, {options.num_beams} beams, no draft"
        if options.draft_tokens == 0:
            draft = "no draft: baseline decoding"
        elif not options.runs_draft_model or models.draft_model is None:
            draft = "drafts copied from the text" if options.looks_up_ngrams else f"drafter {options.drafter}"
        else:
            bits = SELF_DRAFTS.get(str(models.draft_model))
            draft = f"draft {target} in {bits} bits" if bits else f"draft {shown_name(Path(models.draft_model))}"
            drafts_text = pair is not None and pair.drafts_text
            if drafts_text:
                draft += ", which has another vocabulary: its text is the draft"
            if options.looks_up_ngrams:
                draft += "; also copies of the text" if drafts_text else " and copies of the text"
        if options.draft_tokens != 0 and options.follows_texts and (count := len(options.draft_text)):
            draft += f", {count} draft text{'s' * (count > 1)}"
        if models.draft_model is None and self.chosen.drafter is None:
            from ..loading.suggested_drafts import suggested_draft

            if suggestion := suggested_draft(models.model, None if pair is None else pair.target):
                draft += f"; to use a draft model, add --draft-model {suggestion}"
        return f"target {target}, {draft}"

    def demonstration_note(self, way_out: str = OTHER_MODELS) -> str | None:
        """Return a note on the bundled target's limits; None for other targets. way_out: how to choose another."""
        target = Path(self.models.model)
        if target.resolve() != (BUNDLED / BUNDLED_PAIR[0]).resolve():
            return None
        return (
            f"note: {target.name} is a demonstration, trained on web documentation (English to German), misspelled "
            f"novels and dialogue facts; for other text, use {way_out}"
        )

    def open(self, *, use_draft: bool | None = None, quantize: int | None = None) -> ModelPair:
        """Open the models without weights.

        Args:
            use_draft: Whether to open the draft; None opens it if the options use it.
            quantize: Bits per weight of the target.
        """
        uses_draft = self.options.runs_draft_model if use_draft is None else use_draft
        pair = self.models.open(use_draft=uses_draft, quantize=quantize, shard=self.shard)
        check_token_ids(self.options.eos_token_ids, pair.target.model.config.vocab_size)
        if self.flags.memory is not None:
            require_text(pair.target.model)
        return pair

    def with_memory(self, pair: ModelPair, used: Collection[str] = ()) -> RunConfig:
        """Return this configuration with its translation memory, which is loaded only once.

        `src_lang` and `tgt_lang` select the languages of a TMX file. If they add a prefix to each prompt, as for T5,
        the prefix is printed.

        used: The language options that are also used for something else, such as a document's sentence rules.

        Raises:
            InputError: The memory file cannot be read, or a language has no effect.
        """
        path, options, memory = self.flags.memory, self.chosen, self.memory
        if path is not None and memory is None:
            memory = open_memory(path, pair, src_lang=options.src_lang, tgt_lang=options.tgt_lang)
            if not launched_rank():  # each rank reads the memory, but only the first one prints the note
                say(memory.describe())
        if memory is not None and memory.languages is not None:
            used = LANGUAGES
        if not (options.src_lang is None and options.tgt_lang is None):
            options = self._effective_languages(pair.target, used)
        return replace(self, chosen=options, memory=memory)

    def _effective_languages(self, target: ModelHandle, used: Collection[str]) -> GenerationOptions:
        """Return the options, without the languages in `used` if the model cannot use them.

        Raises `InputError` for any other language without effect.
        """
        options, prefix = self.chosen, "".join(self.prompt_prefixes)
        try:
            added = check_languages(target.model, target.tokenizer, options, prefix)
        except InputError:
            needs_them = not prefix and has_language_prefixes(target.model, target.tokenizer)
            if not used or target.tokenizer.languages or needs_them:
                raise
            options = options.with_values(**dict.fromkeys(used))
            added = check_languages(target.model, target.tokenizer, options, prefix)
        if added and not (prefix or launched_rank()):
            say(f"each prompt begins with {added!r}, for these languages")
        return options

    @contextmanager
    def session(self, pair: ModelPair) -> Iterator[Session]:
        """Read the weights and yield a session. `saving` saves the n-gram store."""
        assert self.flags.memory is None or self.memory is not None, "call with_memory first"
        path = self.flags.ngram_store
        if path is not None and not path.exists():
            require_writable(path, "ngram_store")
        draft_prompt = [getattr(self.flags, name) for name in DRAFT_PROMPT]
        vocabulary = None if self.flags.draft_vocab_text is None else self._draft_vocabulary(pair)
        with memory_limits():
            session = load_session(
                pair,
                self.chosen,
                store=path,
                draft_vocabulary=vocabulary,
                memory=self.memory,
                draft_prompt=DraftPrompt(*draft_prompt) if any(each is not None for each in draft_prompt) else None,
                given=self.given,
            )
            session.prompt_prefixes = self.prompt_prefixes
            mx.reset_peak_memory()  # so that the summary does not count weights converted while loading
            if self.flags.recalibrate:
                session.calibrate(again=True)
            keep: AbstractContextManager[None] = nullcontext()
            if path is not None:
                assert session.ngram is not None and session.ngram.store is not None
                keep = saving(session.ngram.store, path)
            with keep:
                yield session

    def _draft_vocabulary(self, pair: ModelPair) -> DraftVocabulary:
        """Return the tokens that the draft model may propose, which the two flags specify together."""
        size, path = self.flags.draft_vocab, self.flags.draft_vocab_text
        assert size is not None and path is not None
        lines = read_text(path, Name("draft_vocab_text")).split("\n")
        from ..drafters.draft_model import DraftVocabulary

        return DraftVocabulary.from_lines(size, lines, pair.target.tokenizer, pair.target.model.config.eos_token_ids)


@contextmanager
def saving(store: TextStore, path: Path) -> Iterator[None]:
    """Save a store on exit, even after an error, and once a minute in case the process is killed.

    Raises `InputError` if the store cannot be saved, unless another exception ends the block.
    """
    stop = Event()
    thread = Thread(target=save_changes, args=(store, path, stop), name="n-gram store", daemon=True)
    thread.start()

    def save() -> None:
        stop.set()
        thread.join()
        store.save(path)

    try:
        yield
    except BaseException:
        try:
            save()
        except InputError as error:
            say(f"note: {error}")
        raise
    save()


def save_changes(store: TextStore, path: Path, stop: Event) -> None:
    saved = store.changes
    while not stop.wait(SAVE_SECONDS):
        if store.changes != saved:
            saved = store.changes
            try:
                store.save(path)
            except InputError as error:
                say(f"note: {error}")

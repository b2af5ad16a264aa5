"""Record the files that CTranslate2 writes for tiny random models, and the outputs that it decodes from them.

    pip install ctranslate2==4.8.5 torch==2.13.0 transformers==5.24.0 numpy PyYAML sentencepiece protobuf
    pip download --no-deps --python-version 3.10 ctranslate2==2.24.0   # unzipped into FORMER/2.24.0
    pip download --no-deps --python-version 3.10 ctranslate2==3.1.0   # unzipped into FORMER/3.1.0
    python make_ctranslate2_goldens.py FORMER

The output is tests/parity/goldens/ctranslate2/cases.json.gz: for each case, the variables, the SHA-256 of the file,
greedy outputs with the log-probability of each token, and for some, the best of four beams, and the greedy outputs with
`replace_unknowns`. It contains no arrays, except tables that a converter computes: random arrays are functions of their
names (`random_array` in tests/support/ctranslate2_files.py), and the arrays of converted models are rows of the tensors
in tests/parity/goldens/FAMILY. The rows are found by comparison. Files of revisions 4 and 5 are written by the specs of
the versions in FORMER. CTranslate2 4.8 decodes all files.

For each attribute of a case, the generator changes the attribute in the file and checks that outputs change.
"""

import base64
import gzip
import hashlib
import importlib
import json
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
import transformers
from ctranslate2.converters import marian
from ctranslate2.converters import transformers as converters
from ctranslate2.specs import common_spec, model_spec, transformer_spec
from sentencepiece import SentencePieceProcessor

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "parity" / "goldens"
sys.path.insert(0, str(ROOT / "tests" / "support"))  # not as tests.support, which would import MLX
from ctranslate2_files import first_pieces, model_bytes, quantized, random_array, variables_of, write_folder  # noqa: E402

sys.path.pop(0)  # whose modules have the names of packages

OUTPUT = GOLDENS / "ctranslate2" / "cases.json.gz"
WIDTH, HEADS, UNITS, VOCAB, POSITIONS, BUCKETS = 16, 4, 24, 40, 48, 8
LAYERS = (2, 2)
LENGTHS = (1, 3, 5, 8, 12)  # of the sources
NEW_TOKENS = 16
TOKENS = ["<unk>", "<s>", "</s>", "<blank>", *(f"w{i}" for i in range(4, VOCAB))]
OPTIONAL = model_spec.OPTIONAL
Changes = Mapping[str, Any]


@dataclass
class Case:
    """A model, and how it is stored.

    build: returns the spec for a seed, which a converted model ignores.
    toggles: attribute changes that must each change the outputs. None removes an attribute.
    scored: changes that must change log-probabilities of outputs.
    prefix: ids with which every output begins.
    """

    name: str
    build: Callable[[int], Any]
    seed: int = 0
    quantization: str | None = None
    version: int = 6
    toggles: Sequence[Changes] = ()
    scored: Sequence[Changes] = ()
    tokens: Sequence[str] | None = None
    vocabulary: str = "shared_vocabulary.json"
    config: Changes = field(default_factory=dict)
    prefix: Sequence[str] = ()
    family: str | None = None
    tied: bool = False


def int8(value: int) -> np.generic:
    return np.int8(value)


def shape_of(name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a variable, given the model's sizes."""
    width, units, inner = sizes["width"], sizes["units"], sizes["inner"]
    keys = sizes["key_heads"] * (sizes["inner"] // sizes["heads"])
    scope, _, part = name.rpartition("/")
    if part == "encodings":
        return POSITIONS, width
    if part == "relative_attention_bias":
        return BUCKETS, sizes["heads"]
    if part in ("gamma", "beta"):
        return (width,)
    if part.startswith("relative_position"):
        return 9, width // sizes["heads"]
    if "embeddings" in scope or "projection" in scope:
        rows, columns = VOCAB, width
    elif "project_" in scope:
        rows, columns = width, width
    elif "ffn/linear_0" in scope:
        rows, columns = units, width
    elif "ffn/linear_1" in scope:
        rows, columns = width, units
    elif scope.endswith("self_attention/linear_0"):
        rows, columns = inner + 2 * keys, width
    elif scope.endswith("self_attention/linear_1") or scope.endswith("/attention/linear_2"):
        rows, columns = width, inner
    elif scope.endswith("/attention/linear_0"):
        rows, columns = inner, width
    elif scope.endswith("/attention/linear_1"):
        rows, columns = 2 * keys, width
    else:
        raise ValueError(name)
    return (rows,) if part == "bias" else (rows, columns)


def fill(
    spec: Any,
    seed: int = 1,
    *,
    biases: str = "",
    tables: str = "",
    tied: Sequence[str] = (),
    key_heads: int = HEADS,
    inner: int = WIDTH,
    fields: Changes = {},  # noqa: B006
) -> Any:
    """Set all arrays of a spec to random numbers.

    Args:
        biases: A pattern of the layers that have biases.
        tables: A pattern of the stacks that have tables of positions.
        tied: Tables that equal the decoder's embeddings.
        key_heads: The number of heads of keys and values.
        inner: The number of columns of all query heads.
        fields: Other attributes.
    """
    sizes = {"width": WIDTH, "units": UNITS, "inner": inner, "heads": HEADS, "key_heads": key_heads}

    def set_value(holder: Any, name: str, value: Any) -> None:
        scope, _, part = name.rpartition("/")
        is_wanted = value is None
        if part == "bias":
            is_wanted = re.search(biases, scope) is not None if biases else False
        elif part == "encodings":
            is_wanted = re.search(tables, scope) is not None if tables else False
        if part in ("relative_attention_max_distance", "weight_scale", "weight_zero"):
            return
        if is_wanted:
            same = "decoder/embeddings/weight" if name in tied else name
            setattr(holder, part, random_array(seed, same, shape_of(name, sizes)))

    visit(spec, set_value)
    for name, value in fields.items():
        scope, _, part = name.rpartition("/")
        model_spec.index_spec(spec, scope).__dict__[part] = value
    return spec


def visit(holder: Any, act: Callable[[Any, str, Any], None], scope: str = "") -> None:
    """Call a function with the owner, the name and the value of each variable, also of specs of older versions."""
    for part, value in list(holder.__dict__.items()):
        name = f"{scope}/{part}" if scope else part
        if part.startswith("_"):
            continue
        for index, each in enumerate(value) if isinstance(value, list) else ():
            visit(each, act, f"{name}_{index}")
        if hasattr(value, "_visit"):
            visit(value, act, name)
        elif not isinstance(value, list):
            act(holder, name, value)


ALL_BIASES = "linear|projection"
SOME_BIASES = "self_attention/linear|ffn/linear_1"


def transformer(fields: Changes = {}, **options: Any) -> Callable[[int], Any]:  # noqa: B006
    """Return a function that builds a Transformer. options: see `fill`, and the arguments of `from_config`."""

    def build(seed: int) -> Any:
        chosen = {"biases": ALL_BIASES, "tables": "coder"} | options
        arguments = {
            name: chosen.pop(name) for name in list(chosen) if name not in ("biases", "tables", "tied", "key_heads")
        }
        spec = transformer_spec.TransformerSpec.from_config(LAYERS, HEADS, **arguments)
        return fill(spec, seed, **chosen, fields=fields)

    return build


def grouped(key_heads: int) -> Callable[[int], Any]:
    """Return a function that builds a Transformer whose query heads share heads of keys and values."""

    def build(seed: int) -> Any:
        encoder = transformer_spec.TransformerEncoderSpec(LAYERS[0], HEADS, num_heads_kv=key_heads)
        decoder = transformer_spec.TransformerDecoderSpec(LAYERS[1], HEADS, num_heads_kv=key_heads)
        spec = transformer_spec.TransformerSpec(encoder, decoder)
        return fill(spec, seed, biases=ALL_BIASES, tables="coder", key_heads=key_heads)

    return build


def t5(max_distance: int = 12, inner: int = WIDTH, **options: Any) -> Callable[[int], Any]:
    def build(seed: int) -> Any:
        chosen = {"rms_norm": True, "relative_attention_bias": True} | options
        fields = chosen.pop("fields", {})
        activation = chosen.pop("activation", common_spec.Activation.RELU)
        is_gated = chosen.pop("ffn_glu", False)
        shared = chosen.pop("tied", ())
        spec = transformer_spec.TransformerSpec.from_config(
            LAYERS, HEADS, activation=activation, ffn_glu=is_gated, **chosen
        )
        fill(spec, seed, inner=inner, tied=shared, fields=fields)
        for stack in (spec.encoder, spec.decoder):
            stack.scale_embeddings = False
            for layer in stack.layer:
                layer.self_attention.relative_attention_max_distance = np.int32(max_distance)
                layer.self_attention.relative_attention_bias = stack.layer[0].self_attention.relative_attention_bias
                layer.self_attention.queries_scale = 1.0
                if hasattr(layer, "attention"):
                    layer.attention.queries_scale = 1.0
        return spec

    return build


def both(name: str, value: Any) -> dict[str, Any]:
    return {f"{stack}/{name}": value for stack in ("encoder", "decoder")}


@contextmanager
def former_specs(folder: Path) -> Iterator[types.ModuleType]:
    """Import `ctranslate2.specs` of an older version. Only its Python files are needed."""
    current = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "ctranslate2"}
    for name in current:
        del sys.modules[name]
    package = types.ModuleType("ctranslate2")
    package.__path__ = [str(folder / "ctranslate2")]
    sys.modules["ctranslate2"] = package
    try:
        yield importlib.import_module("ctranslate2.specs")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "ctranslate2"]:
            del sys.modules[name]
        sys.modules.update(current)


def former(root: Path, fields: Changes = {}, **options: Any) -> Callable[[int], Any]:  # noqa: B006
    """Return a function that builds a Transformer with the spec of an older version, whose package is in `root`."""

    def build(seed: int) -> Any:
        chosen = {"biases": ALL_BIASES, "tables": "coder"} | options
        filled = {name: chosen.pop(name) for name in ("biases", "tables", "tied") if name in chosen}
        with former_specs(root) as specs:
            make = getattr(specs.TransformerSpec, "from_config", specs.TransformerSpec)
            spec = make(LAYERS, HEADS, **chosen)
        return fill(spec, seed, **filled, fields=fields)

    return build


class WordTokenizer:
    """Replaces a tokenizer for the converters: a word for each id, and special tokens."""

    def __init__(self, config: Any) -> None:
        names: dict[str, int] = {}
        for key, token in (("pad_token_id", "<pad>"), ("eos_token_id", "</s>"), ("bos_token_id", "<s>")):
            if isinstance(value := getattr(config, key, None), int) and value not in names.values():
                names[token] = value
        ids = {value: token for token, value in names.items()}
        if config.model_type == "whisper":
            end = config.eos_token_id
            special = ["endoftext", "startoftranscript"]
            count = config.vocab_size - end - config.max_source_positions - 9
            special += ["en", "de", "fr", "zh"][: max(count, 0)]
            special += ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
            special += [f"{i / 50:.2f}" for i in range(config.vocab_size - end - len(special))]
            ids = {end + i: f"<|{token}|>" for i, token in enumerate(special)}
        else:
            ids[next(i for i in range(config.vocab_size) if i not in ids)] = "<unk>"
        self.tokens = [ids.get(i, f"w{i}") for i in range(config.vocab_size)]
        self.bos_token, self.eos_token, self.unk_token, self.pad_token = "<s>", "</s>", "<unk>", "<pad>"
        self.unk_token_id = self.tokens.index("<unk>") if "<unk>" in self.tokens else None
        self.special_tokens_map: dict[str, Any] = {}
        self.additional_special_tokens: list[str] = []

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def convert_ids_to_tokens(self, index: int) -> str:
        return self.tokens[index]

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.tokens.index(token)


def converted(family: str, **changes: Any) -> Callable[[int], Any]:
    """Return a function that converts a tiny Hugging Face model with CTranslate2's converter."""

    def build(seed: int) -> Any:
        config = transformers.AutoConfig.from_pretrained(GOLDENS / family)
        norms = {"bart": (False, True), "mbart": (True, True), "pegasus": (True, False)}
        for name, value in zip(
            ("normalize_before", "normalize_embedding"), norms.get(config.model_type, ()), strict=False
        ):
            setattr(config, name, value)  # transformers 5 no longer has these fields
        loader = converters._MODEL_LOADERS[type(config).__name__]
        for name, value in changes.items():
            setattr(config, name, value)
        model = getattr(transformers, loader.architecture_name).from_pretrained(
            GOLDENS / family, config=config, dtype=torch.float32
        )
        with torch.no_grad():
            return loader(model, WordTokenizer(config))

    return build


def opus(folder: Path) -> Callable[[int], Any]:
    """Return a function that converts a model in Marian's own format with CTranslate2's converter."""

    def build(seed: int) -> Any:
        import yaml

        options = {
            "type": "transformer", "tied-embeddings-all": True, "enc-depth": LAYERS[0], "dec-depth": LAYERS[1],
            "transformer-heads": HEADS, "transformer-ffn-activation": "swish", "transformer-preprocess": "",
            "transformer-postprocess": "dan", "transformer-postprocess-emb": "d", "transformer-postprocess-top": "",
            "transformer-guided-alignment-layer": "last", "transformer-decoder-autoreg": "self-attention",
            "transformer-no-projection": False,
        }  # fmt: skip
        arrays: dict[str, Any] = {}

        def add(name: str, *shape: int) -> None:
            arrays[name] = random_array(11, name, shape)

        add("Wemb", VOCAB, WIDTH)
        add("Wpos", POSITIONS, WIDTH)
        add("decoder_ff_logit_out_b", 1, VOCAB)
        for stack, depth in zip(("encoder", "decoder"), LAYERS, strict=True):
            for layer in range(1, depth + 1):
                scope = f"{stack}_l{layer}"
                for block in ("self", "context") if stack == "decoder" else ("self",):
                    for part in "qkvo":
                        add(f"{scope}_{block}_W{part}", WIDTH, WIDTH)
                        add(f"{scope}_{block}_b{part}", 1, WIDTH)
                    add(f"{scope}_{block}_Wo_ln_scale", 1, WIDTH)
                    add(f"{scope}_{block}_Wo_ln_bias", 1, WIDTH)
                for part, sizes in (("1", (WIDTH, UNITS)), ("2", (UNITS, WIDTH))):
                    add(f"{scope}_ffn_W{part}", *sizes)
                    add(f"{scope}_ffn_b{part}", 1, sizes[1])
                add(f"{scope}_ffn_ffn_ln_scale", 1, WIDTH)
                add(f"{scope}_ffn_ffn_ln_bias", 1, WIDTH)
        vocabulary = folder / "vocab.yml"
        vocabulary.write_text("".join(f'"{token}": {i}\n' for i, token in enumerate(MARIAN_TOKENS)))
        text = yaml.safe_dump(options).encode() + b"\0"
        np.savez(folder / "model.npz", **arrays, **{"special:model.yml": np.frombuffer(text, np.int8)})
        spec = marian.MarianConverter(str(folder / "model.npz"), [str(vocabulary)] * 2)._load()
        return renamed(spec, seed)

    return build


def renamed(spec: Any, seed: int) -> Any:
    """Replace all arrays of a converted spec by random arrays that depend on their names. Equal arrays stay equal."""
    seen: list[tuple[Any, Any]] = []

    def renew(holder: Any, name: str, value: Any) -> None:
        if not isinstance(value, np.ndarray) or value.ndim == 0:
            return
        new = next((new for old, new in seen if old.shape == value.shape and np.array_equal(old, value)), None)
        if new is None:
            new = random_array(seed, name, value.shape)
            seen.append((value, new))
        setattr(holder, name.rpartition("/")[2], new)

    for name, holder, value in sorted(found_in(spec), key=lambda each: each[0]):
        renew(holder, name, value)
    return spec


def found_in(spec: Any) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    visit(spec, lambda holder, name, value: found.append((name, holder, value)))
    return found


MARIAN_TOKENS = ["</s>", "<unk>", *(f"w{i}" for i in range(2, VOCAB))]


def parts_of(array: np.ndarray, tensors: Mapping[str, np.ndarray]) -> list[list[Any]] | None:
    """Return the rows that make up an array: [tensor name or None for zeros, start, stop], or None."""
    rows: list[list[Any]] = []
    at = 0
    same = {name: each for name, each in tensors.items() if each.shape[1:] == array.shape[1:]}
    while at < len(array):
        best: list[Any] = [None, 0, 0]
        for name, tensor in same.items():
            flat = tensor.reshape(len(tensor), -1)
            for start in map(int, np.flatnonzero((flat == array[at].reshape(-1)).all(axis=1))):
                length = min(len(tensor) - start, len(array) - at)
                equal = (tensor[start : start + length] == array[at : at + length]).reshape(length, -1).all(axis=1)
                count = length if equal.all() else int(np.argmin(equal))
                if count > best[2] - best[1]:
                    best = [name, start, start + count]
        if best[0] is None:
            zero = array[at:].reshape(len(array) - at, -1).any(axis=1)
            count = len(zero) if not zero.any() else int(np.argmax(zero))
            if count == 0:
                return None
            best = [None, 0, count]
        rows.append(best)
        at += best[2] - best[1]
    return rows


def array_of(value: Any) -> np.ndarray:
    """Return the array of a variable of the current specs, or of older ones; bfloat16 as its bits."""
    if isinstance(value, model_spec.PyTorchVariable) and value.dtype == "bfloat16":
        return value.tensor.view(torch.int16).numpy().view(np.uint16)
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def record(case: Case, folder: Path) -> dict[str, Any]:
    """Write a case with CTranslate2's specs, and return its entry without outputs."""
    spec = case.build(case.seed)
    is_speech = spec.name == "WhisperSpec"
    tokens = list(case.tokens or TOKENS)
    if case.family is not None:
        tokens = spec._vocabulary if is_speech else spec._vocabularies["source"][0]
    elif not any(spec._vocabularies.values()):
        for each in spec._vocabularies.values():
            each.append([*tokens, *(f"unused {i}" for i in range(VOCAB - len(tokens)))])
    spec.validate()
    before = {name: array_of(value).copy() for name, value in spec.variables(ordered=True)}
    spec.optimize(case.quantization)
    version = type(spec)._serialize.__globals__
    kept = version["CURRENT_BINARY_VERSION"]
    version["CURRENT_BINARY_VERSION"] = case.version
    spec._serialize(folder / "model.bin")
    version["CURRENT_BINARY_VERSION"] = kept
    config = {} if case.version < 6 else spec.config.to_dict() | dict(case.config)

    tensors = {}
    if case.family is not None:
        from safetensors.numpy import load_file

        tensors = load_file(GOLDENS / case.family / "model.safetensors")
    variables, aliases = [], []
    for name, value in spec.variables(ordered=True):
        if isinstance(value, str):
            aliases.append([name, value])
            continue
        array = array_of(value)
        if name.endswith("weight_scale"):
            continue
        entry: list[Any] = [name, array.dtype.name, list(array.shape)]
        if array.ndim == 0:
            entry[2] = array.item()
        elif array.ndim == 1 and array.dtype == np.int8:
            entry = [name, "string", array.tobytes().decode()]
        elif case.family is not None:
            parts = parts_of(before[name], tensors)
            if parts is None:
                parts = base64.b64encode(before[name].astype("<f4").tobytes()).decode()
            entry.append(parts)
        variables.append(entry)
    result = {
        "name": case.name,
        "spec": spec.name,
        "revision": spec.revision,
        "version": case.version,
        "seed": case.seed,
        "quantization": case.quantization,
        "family": case.family,
        "config": config,
        "tokens": tokens,
        "vocabulary": "vocabulary.json" if is_speech else case.vocabulary,
        "variables": variables,
        "aliases": aliases,
        "sha256": hashlib.sha256((folder / "model.bin").read_bytes()).hexdigest(),
    }
    again = model_bytes(
        spec.name, spec.revision, quantized(variables_of(result, tensors), case.quantization), aliases, case.version
    )
    assert again == (folder / "model.bin").read_bytes(), case.name
    return result


def write(entry: Mapping[str, Any], folder: Path, changes: Changes = {}) -> None:  # noqa: B006
    """Write the files of an entry, with changed attributes."""
    tensors = {}
    if entry["family"] is not None:
        from safetensors.numpy import load_file

        tensors = load_file(GOLDENS / entry["family"] / "model.safetensors")
    variables = quantized(variables_of(entry, tensors), entry["quantization"])
    for name, value in changes.items():
        if value is None:
            del variables[name]
        elif callable(value):
            variables[name] = value(variables[name])
        else:
            variables[name] = value
    model = model_bytes(entry["spec"], entry["revision"], variables, entry["aliases"], entry["version"])
    write_folder(folder, model, entry["config"] or None, entry["tokens"], entry["vocabulary"])


def sources_of(entry: Mapping[str, Any]) -> list[list[int]]:
    """Return the sources as a caller passes them to CTranslate2, which adds the end if config.json says so."""
    rng = np.random.RandomState(5)
    words = [i for i, token in enumerate(entry["tokens"]) if token.startswith("w")] or [*range(4, VOCAB)]
    sources = [[words[i] for i in rng.randint(0, len(words), length)] for length in LENGTHS]
    if entry["family"] is not None:
        end = entry["tokens"].index("</s>")
        sources = [[*source, end] for source in sources]
    return sources


def decoded(
    entry: Mapping[str, Any], folder: Path, prefix: Sequence[str], beams: int = 1, *, replace_unknowns: bool = False
) -> list[list[int]]:
    """Return CTranslate2's outputs as ids, without the end token. The prefix is part of the outputs."""
    tokens = [*entry["tokens"]] if "<unk>" in entry["tokens"] else [*entry["tokens"], "<unk>"]
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    results = translator.translate_batch(
        [[tokens[i] for i in source] for source in sources_of(entry)],
        target_prefix=[list(prefix)] * len(LENGTHS) if prefix else None,
        beam_size=beams,
        max_decoding_length=NEW_TOKENS,
        min_decoding_length=0,
        return_end_token=False,
        replace_unknowns=replace_unknowns,
    )
    return [[tokens.index(token) for token in result.hypotheses[0]] for result in results]


def translated(folder: Path) -> list[list[str]]:
    """Return texts and their translations by the package, decoded as Argos Translate does it."""
    processor = SentencePieceProcessor(model_proto=first_pieces(SENTENCEPIECE, PIECES))
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    sources = [processor.encode(text, out_type=str) for text in TEXTS]
    results = translator.translate_batch(
        sources, beam_size=1, max_decoding_length=NEW_TOKENS, replace_unknowns=True, return_end_token=False
    )
    decoded = [processor.decode_pieces(result.hypotheses[0]).replace("\u2581", " ").strip() for result in results]
    return [list(pair) for pair in zip(TEXTS, decoded, strict=True)]


def scored(entry: Mapping[str, Any], folder: Path, outputs: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the log-probability of each token of the outputs, and of the end token."""
    tokens = [*entry["tokens"]] if "<unk>" in entry["tokens"] else [*entry["tokens"], "<unk>"]
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    texts = [[[tokens[i] for i in ids] for ids in rows] for rows in (sources_of(entry), outputs)]
    return [[round(each, 5) for each in result.log_probs] for result in translator.score_batch(*texts)]


def features(entry: Mapping[str, Any], index: int) -> np.ndarray:
    """Return random log-mel frames, (frames, bins). The test makes the same."""
    shapes = {name: shape for name, _, shape, *_ in entry["variables"]}
    positions, bins = shapes["encoder/position_encodings/encodings"][0], shapes["encoder/conv1/weight"][1]
    return random_array(index, "frames", (2 * positions, bins))


def transcribed(entry: Mapping[str, Any], folder: Path) -> list[list[int]]:
    model = ctranslate2.models.Whisper(str(folder), compute_type="float32", intra_threads=1)
    tokens = entry["tokens"]
    prompt = [tokens.index(f"<|{token}|>") for token in ("startoftranscript", "notimestamps")]
    outputs = []
    for index in range(3):
        frames = ctranslate2.StorageView.from_array(np.ascontiguousarray(features(entry, index).T[None]))
        (result,) = model.generate(
            frames, [prompt], beam_size=1, max_length=NEW_TOKENS * 2, suppress_blank=False, suppress_tokens=[]
        )
        outputs.append(result.sequences_ids[0])
    return outputs


def finish(case: Case, root: Path) -> dict[str, Any]:
    """Record a case with the first seed whose outputs vary, and depend on the attributes that the case lists."""
    for seed in range(1, 400):
        entry, problems = attempt(replace(case, seed=seed), root)
        if not problems:
            print(f"{case.name}: seed {seed}", flush=True)
            return entry
        if case.family is not None:
            break
    raise SystemExit(f"{case.name}: {problems}")


def attempt(case: Case, root: Path) -> tuple[dict[str, Any], list[str]]:
    folder = Path(tempfile.mkdtemp(dir=root))
    entry = record(case, folder)
    write(entry, folder)
    if entry["spec"] == "WhisperSpec":
        outputs = entry["outputs"] = transcribed(entry, folder)
    else:
        entry["sources"] = sources_of(entry)
        outputs = entry["outputs"] = decoded(entry, folder, case.prefix)
        entry["prefix"] = [entry["tokens"].index(token) for token in case.prefix]
        entry["log_probs"] = scored(entry, folder, outputs)
        if case.name in BEAMS:
            entry["beams"] = decoded(entry, folder, case.prefix, beams=4)
        if case.name == PACKAGE:
            entry["texts"] = translated(folder)
        if case.name in REPLACED:
            entry["replaced"] = decoded(entry, folder, case.prefix, replace_unknowns=True)
            entry["replaced_beams"] = decoded(entry, folder, case.prefix, beams=4, replace_unknowns=True)
    kinds = {tuple(output) for output in outputs}
    distinct = max(len({*output}) for output in outputs)
    is_varied = len(kinds) > 2 and distinct > (4 if case.family is None else 1)
    problems = [] if is_varied else ["outputs hardly vary"]
    if case.name == PACKAGE and not all(
        character in text for character, (_, text) in zip("\U0001f600\u6f22", entry["texts"][1::2], strict=True)
    ):
        problems.append("unknown characters are not translated")
    for changes in (*case.toggles, *case.scored):
        with tempfile.TemporaryDirectory() as other:
            write(entry, Path(other), changes)
            if changes in case.scored:
                is_same = scored(entry, Path(other), outputs) == entry["log_probs"]
            else:
                is_same = decoded(entry, Path(other), case.prefix) == outputs
        if is_same:
            problems.append(f"{changes} changes nothing")
    return entry, problems


def cases(former_root: Path, work: Path) -> Iterator[Case]:
    activation = common_spec.Activation
    pre, post = both("pre_norm", int8(1)), both("pre_norm", int8(0))
    relu, swish = both("activation", int8(0)), both("activation", int8(2))
    all_tables = ("encoder/embeddings_0/weight", "decoder/projection/weight")
    two_heads = [{f"{stack}/num_heads": np.int16(2)} for stack in ("encoder", "decoder")]
    shared = [both("scale_embeddings", int8(0)), swish, *two_heads, {"decoder/projection/bias": None}]
    yield Case("pre-norm", transformer(), toggles=[post, *shared])
    yield Case("post-norm", transformer(pre_norm=False), toggles=[pre, *shared])
    for kind in (activation.GELUTanh, activation.SWISH, activation.GELU, activation.GELUSigmoid):
        others = [both("activation", int8(number)) for number in range(5) if number != kind]
        yield Case(kind.name, transformer(activation=kind), toggles=others)
    for name, value, other in (
        ("scale as a number", WIDTH**0.5, np.float32(1)),
        ("scale of 1", 1.0, np.float32(WIDTH**0.5)),
        ("no scale", False, int8(1)),
    ):
        fields = {f"{stack}/scale_embeddings": value for stack in ("encoder", "decoder")}
        yield Case(name, transformer(fields), toggles=[both("scale_embeddings", other)])
    for flag in (True, False):
        yield Case(
            f"multiply_by_sqrt_depth {flag}",
            old_scale(flag),
            toggles=[both("embeddings/multiply_by_sqrt_depth", int8(not flag))],
        )
    zero, first = {"decoder/start_from_zero_embedding": True}, [{"decoder/start_from_zero_embedding": int8(0)}]
    yield Case("zero start", transformer(zero, pre_norm=False), toggles=first)
    yield Case("zero start, sinusoids", transformer(zero, biases="linear", tables=""), toggles=first)
    norms = [f"{stack}/layernorm_embedding/{part}" for stack in ("encoder", "decoder") for part in ("gamma", "beta")]
    yield Case("norm of embeddings", transformer(layernorm_embedding=True), toggles=[dict.fromkeys(norms)])
    yield Case("gated", transformer(ffn_glu=True, activation=activation.SWISH), toggles=[relu])
    yield Case("gated without biases", transformer(ffn_glu=True, biases="", pre_norm=False), toggles=[swish])
    yield Case("RMS norms", transformer(rms_norm=True, layernorm_embedding=True))
    yield Case("RMS norms after blocks", transformer(rms_norm=True, pre_norm=False, tables=""))
    yield Case("no biases", transformer(biases=""))
    yield Case("some biases", transformer(biases=SOME_BIASES))
    table = random_array(0, "positions", (POSITIONS, WIDTH))
    yield Case("sinusoids", transformer(tables=""), toggles=[both("position_encodings/encodings", table)])
    yield Case("multi-query", transformer(multi_query_attention=True, key_heads=1))
    yield Case("grouped keys", grouped(2))
    yield Case("all tables tied", transformer(tied=all_tables))
    yield Case("head tied", transformer(tied=all_tables[1:], tables=""))
    yield Case("alignment", transformer(alignment_layer=0, alignment_heads=3))
    yield Case("no <unk> in a text file", transformer(), tokens=TOKENS[1:], vocabulary="shared_vocabulary.txt")
    yield Case("special tokens of config.json", transformer(), config={"decoder_start_token": "w9", "eos_token": "w8"})
    pieces = SentencePieceProcessor(model_proto=first_pieces(SENTENCEPIECE, PIECES))
    known = [pieces.id_to_piece(i) for i in range(3, 3 + VOCAB - 4)]
    unscaled = {f"{stack}/scale_embeddings": False for stack in ("encoder", "decoder")}
    yield Case(PACKAGE, transformer(unscaled), tokens=[*TOKENS[:4], *known])
    yield Case("Marian", opus(work), tokens=MARIAN_TOKENS, toggles=[*first, pre, relu])
    distances = [
        {f"{stack}/layer_0/self_attention/relative_attention_max_distance": np.int32(6)}
        for stack in ("encoder", "decoder")
    ]
    yield Case("T5", t5(), toggles=[*distances, swish])
    gated = t5(ffn_glu=True, activation=activation.GELUTanh, tied=all_tables)
    yield Case("T5, gated", gated, toggles=[relu])
    scaled = t5(inner=2 * WIDTH, tied=all_tables, fields={"decoder/scale_outputs": WIDTH**-0.5})
    yield Case("T5, tied, with wide heads", scaled, scored=[{"decoder/scale_outputs": None}])
    for quantization in ("int8", "int16", "int8_float16", "int8_bfloat16", "float16", "bfloat16"):
        yield Case(quantization, transformer(tied=all_tables[1:]), quantization=quantization)
    old = former_root / "2.24.0"
    toggles = [{"num_heads": np.int8(2)}, {"pre_norm": int8(0)}, {"activation": int8(1)}]
    yield Case("version 4, revision 4", former(old), version=4, toggles=toggles)
    variants = {"pre_norm": False, "activation": 2, "layernorm_embedding": True}
    fields = {"with_target_bos": False, "eos_token": "w7"}
    yield Case(
        "version 5, revision 4", former(old, fields, **variants), version=5, toggles=[{"with_target_bos": int8(1)}]
    )
    yield Case("version 5, revision 5", former(former_root / "3.1.0", activation=1), version=5, toggles=[relu])
    yield Case("version 4, revision 7", transformer(), version=4)
    yield Case("version 5, revision 7, int16", transformer(), version=5, quantization="int16")
    for family in (*FAMILIES, *WHISPERS):
        yield Case(family, converted(family), family=family, prefix=PREFIXES.get(family, ()))
    for family, quantization in (
        ("m2m_100", "int8"),
        ("whisper", "int8_float16"),
        ("t5", "int16"),
        ("marian", "float16"),
    ):
        name = f"{family} in {quantization}"
        yield Case(name, converted(family), quantization=quantization, family=family, prefix=PREFIXES.get(family, ()))


WHISPERS = ("whisper", "whisper-en", "whisper-v3")
FAMILIES = ("bart", "mbart", "marian", "m2m_100", "pegasus", "t5", "flan-t5", "mt5")
BEAMS = (
    *FAMILIES,
    "pre-norm",
    "zero start",
    "T5",
    "RMS norms",
    "int8",
)  # cases whose outputs with four beams are recorded
# An Argos Translate package, whose vocabulary lacks some pieces of its SentencePiece model
PACKAGE = "package"
SENTENCEPIECE = GOLDENS / "tokenizers" / "t5" / "spiece.model"
PIECES = 60
TEXTS = ("the house is old.", "an emoji \U0001f600 and a cat", "its tests", "\u6f22 and x_y", "e")
# Cases whose outputs are also recorded with source tokens in place of unknown tokens
REPLACED = ("pre-norm", "no scale", "norm of embeddings", "alignment", "multi-query", "int8")
PREFIXES = {"m2m_100": ("w9",), "mbart": ("w9",)}  # in place of language tokens


class OneTable(transformer_spec.TransformerSpec):
    """A spec whose encoder has one table instead of a list of tables, as in early versions."""

    def get_source_vocabulary_size(self) -> list[int]:
        return [VOCAB]


def old_scale(is_scaled: bool) -> Callable[[int], Any]:
    """Return a function that builds a Transformer with the attribute that preceded `scale_embeddings`."""

    def build(seed: int) -> Any:
        spec = OneTable.from_config(LAYERS, HEADS)
        spec.encoder.embeddings = common_spec.EmbeddingsSpec()
        fill(spec, seed, biases=ALL_BIASES, tables="coder")
        for stack in (spec.encoder, spec.decoder):
            stack.scale_embeddings = OPTIONAL
            stack.embeddings.multiply_by_sqrt_depth = is_scaled
        return spec

    return build


def main() -> None:
    wanted = sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        chosen = [case for case in cases(Path(sys.argv[1]), work) if not wanted or case.name in wanted]
        entries = [finish(case, work) for case in chosen]
    if wanted:
        return
    OUTPUT.parent.mkdir(exist_ok=True)
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    OUTPUT.write_bytes(gzip.compress(text, 9, mtime=0))
    print(OUTPUT, len(text), OUTPUT.stat().st_size)


if __name__ == "__main__":
    main()

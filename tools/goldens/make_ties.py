"""Write ties.json: the tables that transformers uses as source embedding, decoder embedding and output head.

There is a case for each family, each subset of its tables that a file may contain (equal or different), and each value
of `tie_word_embeddings`. Requires torch and transformers: `python tools/goldens/make_ties.py`

versions     of transformers and torch
names        family -> names of its tables; the last one is the head
cases        [families, flag, {table in the file: its value}, [source, decoder, head], whether T5 scales the states]
             a table's value is a number: equal numbers mean equal tables. null: not from the file, or no such table
"""

import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from make_gemma_goldens import CONFIGS as GEMMA
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

OUTPUT = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens" / "ties.json"
VOCAB, WIDTH = 11, 8
T5 = {"d_model": WIDTH, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
BART = {"d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 16}
BART |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
WHISPER = BART | {"max_source_positions": 4, "max_target_positions": 8, "num_mel_bins": 4}
WHISPER |= {"suppress_tokens": None, "begin_suppress_tokens": None}
T5_NAMES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
BART_NAMES = (*(f"model.{name}" for name in T5_NAMES[:3]), "lm_head.weight")
GEMMA_NAMES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.out_proj.weight")
FAMILIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), (T5 | {"vocab_size": VOCAB}, T5_NAMES)),
    **dict.fromkeys(("bart", "mbart", "pegasus", "m2m_100", "marian"), (BART | {"vocab_size": VOCAB}, BART_NAMES)),
    "whisper": (WHISPER | {"vocab_size": VOCAB}, ("model.decoder.embed_tokens.weight", "proj_out.weight")),
    "t5gemma": (GEMMA["t5gemma"], GEMMA_NAMES),
    "t5gemma2": (
        GEMMA["t5gemma2"],
        ("model.encoder.text_model.embed_tokens.weight", "model.decoder.embed_tokens.weight", GEMMA_NAMES[2]),
    ),
}


def contents(names: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """Yield the contents of files: the value of each table in the file. All are equal, one differs, or all differ."""
    for count in range(1, len(names) + 1):
        for subset in itertools.combinations(names, count):
            values = {(0,) * count, tuple(range(count))}
            if count > 2:
                values |= {tuple(int(i == odd) for i in range(count)) for odd in range(count)}
            yield from (dict(zip(subset, each, strict=True)) for each in sorted(values))


def cases(family: str) -> Iterator[tuple[Any, ...]]:
    fields, names = FAMILIES[family]
    cls = AutoModelForSpeechSeq2Seq if family == "whisper" else AutoModelForSeq2SeqLM
    fields = {name: value for name, value in fields.items() if name not in ("model_type", "tie_word_embeddings")}
    config = AutoConfig.for_model(family, **fields)
    model = cls.from_config(config)
    shape = model.state_dict()[names[-1]].shape
    others = {name: value.clone() for name, value in model.state_dict().items() if name not in names}
    raw = {name: value for name, value in config.to_dict().items() if name != "scale_decoder_outputs"}
    tables = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(len(names))]

    def index_of(module: torch.nn.Module) -> int | None:
        return next((i for i, table in enumerate(tables) if torch.equal(module.weight, table)), None)

    with tempfile.TemporaryDirectory() as folder:
        for flag, values in itertools.product((None, True, False), contents(names)):
            changed = raw | {"tie_word_embeddings": flag}
            if flag is None:
                del changed["tie_word_embeddings"]
            (Path(folder) / "config.json").write_text(json.dumps(changed, default=str))
            file = others | {name: tables[i].clone() for name, i in values.items()}
            save_file(file, Path(folder) / "model.safetensors", metadata={"format": "pt"})
            loaded = cls.from_pretrained(folder)
            source = None if family == "whisper" else index_of(loaded.get_encoder().get_input_embeddings())
            decoder = loaded.get_decoder().get_input_embeddings()
            used = source, index_of(decoder), index_of(loaded.get_output_embeddings())
            yield flag, values, used, getattr(loaded.config, "scale_decoder_outputs", None)


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    grouped: dict[str, tuple[Any, list[str]]] = {}
    for family in FAMILIES:
        for case in cases(family):
            grouped.setdefault(json.dumps(case), (case, []))[1].append(family)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    names = {family: names for family, (_, names) in FAMILIES.items()}
    lines = ",\n".join(json.dumps([families, *case]) for case, families in grouped.values())
    head = json.dumps({"versions": versions, "names": names})
    OUTPUT.write_text(f'{head[:-1]}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()

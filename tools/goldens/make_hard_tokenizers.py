"""Write tiny tokenizers whose files are easy to misread, with Hugging Face's encodings of the hard texts.

    pip install transformers==4.46.3 sentencepiece==0.2.3 protobuf==7.36.2    (and the same with 5.24.0)
    python4 make_hard_tokenizers.py && python5 make_hard_tokenizers.py

The first run creates the folders. With the slow classes of transformers 4.46, it records tokenizers that have only a
SentencePiece model, and CodeT5's, which 5.24 cannot load. The second run uses `AutoTokenizer` in 5.24 to record the
others, and the tokenizer "nllb" from make_tokenizer_goldens.py. Each folder's golden.json contains:

    texts       a list of [text, ids, ids as an output (null for multilingual models), text of the ids]
    decoded     a list of [random ids, their text]
    language    a language, and the ids of the first text in it; null for other models

Decoded texts contain no special tokens, and their spaces are cleaned up if 5.24 does so for this tokenizer.
"""

import json
import random
import runpy
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import AddedToken, AutoTokenizer

VERSION = int(transformers.__version__.split(".")[0])
ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "parity" / "goldens"
FOLDERS = GOLDENS / "hard_tokenizers"
HARD = runpy.run_path(str(ROOT / "speculative_decoding" / "loading" / "hard_texts.py"))
LONGEST = 250  # characters in a recorded text
T5_PIECES = {"bos_id": -1, "eos_id": 1, "unk_id": 2, "pad_id": 0}
PRETRAINED_ADDED = [
    "zahlwort",
    AddedToken("<l>", lstrip=True),
    AddedToken("<r>", rstrip=True),
    AddedToken("single", single_word=True),
]


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def made_by_4() -> Any:
    import make_tokenizer_goldens

    return make_tokenizer_goldens


def spiece(name: str = "spiece.model", kind: str = "unigram", **options: Any) -> Callable[[Path, str, Any], None]:
    """Return a function that writes a SentencePiece model and its family's configs."""

    def make(folder: Path, model_type: str, settings: Any) -> None:
        maker = made_by_4()
        lines = [*maker.LINES, *maker.GERMAN, "漢字とカナ 한국어", "Bà ấy nói rằng ngôi nhà rất đẹp"]
        maker.train(folder / name, lines, kind, **options)
        maker.write_configs(folder, model_type, settings)

    return make


def saved(folder: Path, *, fast: bool = False, special: tuple[str, ...] = (), **options: Any) -> None:
    """Add tokens to a folder's tokenizer, and save it again."""
    config = (folder / "config.json").read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=fast, **options)
    tokenizer.add_tokens([*PRETRAINED_ADDED])
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": [*tokenizer.additional_special_tokens, *special]})
    for path in folder.iterdir():
        path.unlink()
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_bytes(config)


def mt5(folder: Path) -> None:
    make = spiece(byte_fallback=True, character_coverage=0.98, **T5_PIECES)
    make(folder, "mt5", {"extra_ids": 0, "additional_special_tokens": None, "tokenizer_class": "T5Tokenizer"})
    write(folder / "special_tokens_map.json", {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"})


def flags(folder: Path) -> None:
    make = spiece(kind="bpe", remove_extra_whitespaces=False, add_dummy_prefix=False, **T5_PIECES)
    make(folder, "t5", {"extra_ids": 5})


def t5_added(folder: Path) -> None:
    spiece(**T5_PIECES)(folder, "t5", {"tokenizer_class": "T5Tokenizer", "extra_ids": 5})
    saved(folder, special=("<sep2>",), clean_up_tokenization_spaces=True)


def t5_once(folder: Path) -> None:
    spiece(**T5_PIECES)(folder, "t5", {"tokenizer_class": "T5Tokenizer", "extra_ids": 5})
    saved(folder, legacy=False)


def nllb(folder: Path) -> None:
    spiece("sentencepiece.bpe.model", "bpe")(folder, "m2m_100", {"tokenizer_class": "NllbTokenizer"})
    codes = [*made_by_4().NLLB_CODES, "myv_Cyrl"]
    write(folder / "special_tokens_map.json", {"additional_special_tokens": codes})


def mbart50(folder: Path) -> None:
    spiece("sentencepiece.bpe.model")(folder, "mbart", {"tokenizer_class": "MBart50Tokenizer", "src_lang": "de_DE"})
    saved(folder, special=("myv_XX",))


def bartpho(folder: Path) -> None:
    spiece("sentencepiece.bpe.model")(folder, "mbart", {"tokenizer_class": "BartphoTokenizer"})
    pieces = made_by_4().pieces_of(folder / "sentencepiece.bpe.model")[3::2]
    (folder / "dict.txt").write_text("".join(f"{piece} {len(pieces) - i}\n" for i, piece in enumerate(pieces)), "utf-8")


def pile_t5(folder: Path) -> None:
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": True, "legacy": False}
    make = spiece("tokenizer.model", "bpe", byte_fallback=True, character_coverage=0.98)
    make(folder, "umt5", settings | {"clean_up_tokenization_spaces": True})


def bert(folder: Path) -> None:
    """Write only a vocab.txt, like fnlp/bart-base-chinese."""
    pieces = (
        "[PAD] [UNK] [CLS] [SEP] [MASK] the house is ##s ##ing small . , ! ' s t n UPPER upper it 漢 字 a b c ##c d é"
    )
    (folder / "vocab.txt").write_text("\n".join(pieces.split()) + "\n", encoding="utf-8")
    write(folder / "config.json", {"model_type": "bart"})
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "clean_up_tokenization_spaces": True}
    write(folder / "tokenizer_config.json", settings)


def byt5(folder: Path) -> None:
    write(folder / "config.json", {"model_type": "t5"})
    write(folder / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125})


def bart(folder: Path) -> None:
    """Write a tokenizer.json with side files that add a prefix space, tokens, and a clean-up that BPE ignores."""
    made_by_4().bart(folder)
    saved(folder, fast=True, special=("<sep2>",), add_prefix_space=True, clean_up_tokenization_spaces=True)
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink(missing_ok=True)


def codet5(folder: Path) -> None:
    """Write the special tokens as a list of objects, as in CodeT5's files."""
    made_by_4().bart(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    flags = {"lstrip": True, "normalized": True, "rstrip": False, "single_word": False}
    extra = [f"<extra_id_{i}>" for i in range(2, -1, -1)]
    special = {
        "mask_token": {"content": "<mask>", **flags},
        "additional_special_tokens": [{"content": each, **flags} for each in extra],
    }
    write(folder / "special_tokens_map.json", special)
    write(folder / "vocab.json", vocabulary | {each: len(vocabulary) + i for i, each in enumerate(extra)})
    write(folder / "added_tokens.json", {})
    write(folder / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"})
    write(folder / "config.json", {"model_type": "t5"})


def t5_fast(folder: Path) -> None:
    """Write tokenizer.json and spiece.model, with additional tokens that appear only in the side files."""
    spiece(**T5_PIECES)(folder, "t5", {"tokenizer_class": "T5Tokenizer", "extra_ids": 5})
    AutoTokenizer.from_pretrained(folder, clean_up_tokenization_spaces=True).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    end = 1 + max(map(int, settings["added_tokens_decoder"]))
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": True, "special": False}
    settings["added_tokens_decoder"][str(end)] = {"content": "zahlwort", **flags}
    write(folder / "tokenizer_config.json", settings)


def mbart50_fast(folder: Path) -> None:
    spiece("sentencepiece.bpe.model")(folder, "mbart", {"tokenizer_class": "MBart50Tokenizer"})
    saved(folder, fast=True, special=("myv_XX",))


@dataclass(frozen=True)
class Layout:
    """A tokenizer folder. version: transformers' major version that is the reference. language: a language to test."""

    make: Callable[[Path], None]
    version: int = 4
    language: str = ""


LAYOUTS = {
    "mt5": Layout(mt5),
    "t5_flags": Layout(flags),
    "t5_added": Layout(t5_added),
    "t5_once": Layout(t5_once),
    "nllb_bare": Layout(nllb, language="myv_Cyrl"),
    "mbart50_added": Layout(mbart50, language="myv_XX"),
    "bartpho": Layout(bartpho),
    "pile_t5": Layout(pile_t5),
    "codet5": Layout(codet5),
    "bert": Layout(bert, 5),
    "byt5": Layout(byt5, 5),
    "bart_added": Layout(bart, 5),
    "t5_fast": Layout(t5_fast, 5),
    "mbart50_fast": Layout(mbart50_fast, 5, "myv_XX"),
}


def golden_of(folder: Path, language: str) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder, **({"use_fast": False} if VERSION < 5 else {}))
    settings = folder / "tokenizer_config.json"
    clean = json.loads(settings.read_text("utf-8")).get("clean_up_tokenization_spaces", False)
    # Whether to clean up follows 5.24, in which Pile-T5's tokenizer is a BPE model, without clean-up.
    choice = (
        {} if VERSION > 4 else {"clean_up_tokenization_spaces": clean and not (folder / "tokenizer.model").exists()}
    )

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True, **choice)

    added = list(tokenizer.get_added_vocab())
    texts = [each for each in HARD["HARD_TEXTS"] if len(each) <= LONGEST]
    records = []
    for text in texts + HARD["texts_with"](dict.fromkeys([*added[:3], *added[-5:]])):
        ids = list(tokenizer(text).input_ids)
        records.append([text, ids, None if language else list(tokenizer(text_target=text).input_ids), decode(ids)])
    rng = random.Random(0)
    known = sorted(set(tokenizer.get_vocab().values()))
    runs = [rng.choices(known, k=size) for size in (1, 2, 4, 12) for _ in range(8)]
    content: dict[str, Any] = {"texts": records, "decoded": [[run, decode(run)] for run in runs], "language": None}
    if language:
        if hasattr(tokenizer, "lang_code_to_id"):  # it does not include added languages; users register them like this
            tokenizer.lang_code_to_id[language] = tokenizer.convert_tokens_to_ids(language)
        tokenizer.src_lang = language
        content["language"] = [language, list(tokenizer(texts[3]).input_ids)]
    return content


def record_nllb() -> None:
    """Record ids for the folder "nllb" of make_tokenizer_goldens.py, which has a tokenizer.json."""
    folder = GOLDENS / "tokenizers" / "nllb"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    golden = json.loads((folder / "golden.json").read_text("utf-8"))
    for each in golden["texts"]:
        tokenizer.src_lang = each["language"] or "eng_Latn"
        each["ids"] = list(tokenizer(each["text"]).input_ids)
        each["output_ids"] = each["ids"][1:]  # without the language
        each["text_of_ids"] = tokenizer.decode(each["ids"], skip_special_tokens=True)
    write(folder / "golden.json", golden)


if __name__ == "__main__":
    for name, layout in LAYOUTS.items():
        folder = FOLDERS / name
        if VERSION < 5:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            layout.make(folder)
        if layout.version == VERSION:
            write(folder / "golden.json", golden_of(folder, layout.language))
            print(name, {path.name: path.stat().st_size for path in sorted(folder.iterdir())})
    if VERSION > 4:
        record_nllb()

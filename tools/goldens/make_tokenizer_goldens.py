"""Write a tiny tokenizer for each family, in the family's file format, with Hugging Face's encodings of sample texts.

    pip install transformers==4.46.3 sentencepiece==0.2.3 protobuf==7.36.2
    python make_tokenizer_goldens.py [FAMILY ...]

transformers 4 uses the families' SentencePiece models; version 5 converts all of them except M2M-100's and Marian's.
Each folder contains the tokenizer's files, a config.json whose model_type selects the tokenizer class, and golden.json:

    languages                     code -> id
    texts                         a list of
        text, language                the source and its language; null selects the default
        ids, output_ids               the text encoded as a source, and as an output (`text_target`) without language
                                      tokens
        text_of_ids                   the ids decoded without special tokens
"""

import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers.implementations import ByteLevelBPETokenizer
from transformers import (
    BartTokenizer,
    GemmaTokenizerFast,
    M2M100Tokenizer,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    NllbTokenizerFast,
    PegasusTokenizer,
    T5Tokenizer,
)
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M_CODES
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES as MBART_CODES
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART50_CODES
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_CODES

HERE = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"
FOLDERS = HERE / "tokenizers"
DATA = HERE.parents[2] / "data"
LINES = [line.split(": ", 1)[-1] for line in (DATA / "translation.txt").read_text("utf-8").split("\n")[:150]]
GERMAN = ["Die Methode gibt den Wert der Eigenschaft zurück.", "Größe und Länge sind über die Überschrift zu ändern."]
TEXTS = [
    *LINES[:4],
    *GERMAN,
    "",
    " ",
    "  two  spaces ",
    "naïve café — Ärger über Größe",
    "emoji 🎉 and 漢字.",
    "a\tb\nc",
    "the ﬁrst ﬁle",
    "50 % of 1,000.5",
]
RULES = "FB01\t66 69\n9\t20\nA\t20\n"  # ﬁ -> fi, tab and line feed -> space; SentencePiece's default rules take 240 kB
SIZE = 300


def train(path: Path, lines: list[str], model_type: str = "unigram", **options: Any) -> None:
    """Train a SentencePiece model; the result is deterministic."""
    rules = path.with_suffix(".rules")
    rules.write_text(RULES, encoding="utf-8")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=model_type,
        vocab_size=SIZE,
        normalization_rule_tsv=str(rules),
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    trained = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    trained.normalizer_spec.ClearField("normalization_rule_tsv")  # it contains a path; the compiled rules remain
    path.write_bytes(trained.SerializeToString())
    rules.unlink()


def pieces_of(path: Path) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(str(path))
    return [model.id_to_piece(index) for index in range(len(model))]


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def write_configs(folder: Path, model_type: str, tokenizer_config: dict[str, Any] | None) -> None:
    write(folder / "config.json", {"model_type": model_type})
    if tokenizer_config is not None:
        write(folder / "tokenizer_config.json", tokenizer_config)


def nllb(folder: Path) -> Any:
    """Write files as on the Hub: tokenizer.json contains the legacy template, which the tokenizer class replaces."""
    train(folder / "sentencepiece.bpe.model", LINES + GERMAN, "bpe")
    write_configs(folder, "m2m_100", {"src_lang": None, "tgt_lang": None, "tokenizer_class": "NllbTokenizer"})
    old = NllbTokenizerFast.from_pretrained(folder, legacy_behaviour=True)
    write(folder / "tokenizer.json", json.loads(old.backend_tokenizer.to_str()))
    return NllbTokenizer.from_pretrained(folder)


def mbart(folder: Path) -> Any:
    train(folder / "sentencepiece.bpe.model", LINES + GERMAN)
    write_configs(folder, "mbart", {"src_lang": "de_DE"})
    return MBartTokenizer.from_pretrained(folder)


def mbart50(folder: Path) -> Any:
    train(folder / "sentencepiece.bpe.model", LINES + GERMAN)
    write_configs(folder, "mbart", {"src_lang": None, "tgt_lang": None, "tokenizer_class": "MBart50Tokenizer"})
    return MBart50Tokenizer.from_pretrained(folder)


def m2m_100(folder: Path) -> Any:
    spm = folder / "sentencepiece.bpe.model"
    train(spm, LINES + GERMAN, "bpe")
    known = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(spm)[3:]]
    write(folder / "vocab.json", {piece: index for index, piece in enumerate(known)})
    write_configs(folder, "m2m_100", {"src_lang": None, "tgt_lang": None, "tokenizer_class": "M2M100Tokenizer"})
    special = [f"__{code}__" for code in M2M_CODES["m2m100"]]
    write(folder / "special_tokens_map.json", {"eos_token": "</s>", "additional_special_tokens": special})
    return M2M100Tokenizer.from_pretrained(folder)


def marian(folder: Path) -> Any:
    """Write two SentencePiece models with different pieces, and a vocabulary that both share."""
    english, german = folder / "source.spm", folder / "target.spm"
    train(english, LINES)
    train(german, GERMAN * 20 + ["Überall gibt es Äpfel, Öl und Straßen."] * 20)
    both = [piece for spm in (english, german) for piece in pieces_of(spm)[3:]]
    known = ["</s>", "<unk>", ">>deu<<", *dict.fromkeys(both), "<pad>"]
    write(folder / "vocab.json", {piece: index for index, piece in enumerate(known)})
    write_configs(folder, "marian", {"source_lang": "en", "target_lang": "de"})
    return MarianTokenizer.from_pretrained(folder)


def pegasus(folder: Path) -> Any:
    train(folder / "spiece.model", LINES + GERMAN, bos_id=-1, eos_id=1, unk_id=2, pad_id=0)
    write_configs(folder, "pegasus", {"model_max_length": 512})
    return PegasusTokenizer.from_pretrained(folder)


def t5(folder: Path) -> Any:
    """Write only a SentencePiece model, as in the oldest repositories."""
    train(folder / "spiece.model", LINES + GERMAN, bos_id=-1, eos_id=1, unk_id=2, pad_id=0)
    write_configs(folder, "t5", None)
    return T5Tokenizer.from_pretrained(folder, legacy=True)


def bart(folder: Path) -> Any:
    model = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    model.train_from_iterator(LINES + GERMAN, SIZE + 100, 2, special_tokens=special, show_progress=False)
    model.save_model(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    write(folder / "vocab.json", vocabulary | {"<mask>": len(vocabulary)})
    write_configs(folder, "bart", None)
    return BartTokenizer.from_pretrained(folder)


def t5gemma(folder: Path, model_type: str = "t5gemma", more: Sequence[str] = ()) -> Any:
    """Write a BPE tokenizer with byte fallback that encodes spaces as characters, and adds <bos> but no end token."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *more]
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Split("▁", "merged_with_next")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=SIZE + 256,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    raw.train_from_iterator(LINES + GERMAN, trainer)
    content = json.loads(raw.to_str())
    content["added_tokens"] = [each for each in content["added_tokens"] if each["content"] in special]
    raw = tokenizers.Tokenizer.from_str(json.dumps(content))
    decoders = tokenizers.decoders
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    raw.post_processor = tokenizers.processors.TemplateProcessing("<bos> $A", "<bos> $A <bos> $B", [("<bos>", 2)])
    write(folder / "tokenizer.json", json.loads(raw.to_str()))
    flags = {"add_bos_token": True, "add_eos_token": False, "padding_side": "left"}
    write_configs(folder, model_type, flags | {"tokenizer_class": "GemmaTokenizerFast"})
    return GemmaTokenizerFast.from_pretrained(folder)


def t5gemma2(folder: Path) -> Any:
    """Write Gemma 3's tokenizer, with special tokens around images."""
    return t5gemma(folder, "t5gemma2", ("<start_of_image>", "<end_of_image>"))


@dataclass(frozen=True)
class Family:
    """A family's tokenizer. more: a second language to test. form: the format of its language tokens."""

    make: Callable[[Path], Any]
    codes: Sequence[str] = ()
    form: str = "{}"
    more: str = ""


FAMILIES = {
    "nllb": Family(nllb, NLLB_CODES, more="deu_Latn"),
    "mbart": Family(mbart, MBART_CODES, more="en_XX"),
    "mbart50": Family(mbart50, MBART50_CODES, more="de_DE"),
    "m2m_100": Family(m2m_100, M2M_CODES["m2m100"], form="__{}__", more="de"),
    "marian": Family(marian),
    "pegasus": Family(pegasus),
    "t5": Family(t5),
    "bart": Family(bart),
    "t5gemma": Family(t5gemma),
    "t5gemma2": Family(t5gemma2),
}


def golden_of(tokenizer: Any, family: Family) -> dict[str, Any]:
    languages = {code: tokenizer.convert_tokens_to_ids(family.form.format(code)) for code in family.codes}
    assert len(set(languages.values())) == len(languages) and tokenizer.unk_token_id not in languages.values()
    if family.codes:
        tokenizer.tgt_lang = family.codes[-1]
    texts = []
    for language in [None, *([family.more] if family.more else [])]:
        if language is not None:
            tokenizer.src_lang = language
        for text in [*TEXTS, ">>deu<< a word"]:
            output = tokenizer(text_target=text).input_ids
            texts.append(
                {
                    "text": text,
                    "language": language,
                    "ids": (ids := tokenizer(text).input_ids),
                    "output_ids": [each for each in output if each not in languages.values()],
                    "text_of_ids": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
                }
            )
    return {"languages": languages, "texts": texts}


if __name__ == "__main__":
    for name in sys.argv[1:] or FAMILIES:
        folder = FOLDERS / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        write(folder / "golden.json", golden_of(FAMILIES[name].make(folder), FAMILIES[name]))
        print(name, {path.name: path.stat().st_size for path in sorted(folder.iterdir())})

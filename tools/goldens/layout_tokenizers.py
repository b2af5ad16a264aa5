"""The tokenizer files of published models, with small vocabularies. Needs transformers 4.46; see make_layouts.py."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers.implementations import ByteLevelBPETokenizer

DATA = Path(__file__).resolve().parents[2] / "data"
LINES = [line.split(": ", 1)[-1] for line in (DATA / "translation.txt").read_text("utf-8").split("\n")[:150]]
MORE_LINES = [
    "Die Methode gibt den Wert der Eigenschaft zurück. Größe und Länge sind über die Überschrift zu ändern.",
    "Bà ấy nói rằng ngôi nhà rất đẹp và tôi cũng thấy như vậy.",
    "Дом чудесный, и мы в нём живём.",
    "这 座 房子 很 漂亮 。 漢字 と カナ",
    "البيت رائع جدا",
    "הבית נפלא",
    "하 늘 이 맑다",
]
CORPUS = LINES + MORE_LINES * 3


def json_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


RULES = {  # some of T5's rules; the complete rules take 240 kB
    **{each: [0x20] for each in (9, 10, 13, 0xA0, 0x3000, 0x200B, 0x200D, 0xFEFF)},
    **{each: list[int]() for each in (1, 0x1F, 0x7F)},
    0xFB01: [0x66, 0x69],
    0xBD: [0x31, 0x2044, 0x32],
    0xB2: [0x32],
    0x2026: [0x2E, 0x2E, 0x2E],
    **{0xFF21 + i: [0x41 + i] for i in range(26)},
}
COMBINED = {(0x65, 0x301): [0xE9], (0x61, 0x308): [0xE4]}
T5_PIECES = {"bos_id": -1, "eos_id": 1, "unk_id": 2, "pad_id": 0}


def train(
    path: Path, model_type: str = "unigram", size: int = 320, lines: Sequence[str] = CORPUS, **options: Any
) -> None:
    """Train a SentencePiece model; the result is deterministic."""
    rules = path.with_suffix(".rules")
    rows = [((key,), value) for key, value in RULES.items()] + list(COMBINED.items())
    rules.write_text("".join(f"{points(key)}\t{points(value)}\n" for key, value in rows), encoding="utf-8")
    model = io.BytesIO()
    options = {"character_coverage": 1.0 if options.get("byte_fallback") is None else 0.98} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=model_type,
        vocab_size=size,
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


def points(characters: Iterable[int]) -> str:
    return " ".join(f"{each:X}" for each in characters)


def pieces_of(path: Path) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(str(path))
    return [model.id_to_piece(index) for index in range(len(model))]


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def token(text: str, **flags: bool) -> dict[str, Any]:
    return {"content": text} | dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False) | flags


EXTRA = [f"<extra_id_{i}>" for i in range(100)]
T5_MAP = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
T5_CONFIG = T5_MAP | {"extra_ids": 100, "additional_special_tokens": EXTRA}
BART_MAP = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>"}
BART_MAP |= {"cls_token": "<s>", "mask_token": token("<mask>", lstrip=True)}


def side_files(folder: Path, special: Mapping[str, Any] | None, settings: Mapping[str, Any] | None) -> None:
    if special is not None:
        write(folder / "special_tokens_map.json", special)
    if settings is not None:
        write(folder / "tokenizer_config.json", settings)


def t5_sentencepiece(folder: Path, **options: Any) -> None:
    train(folder / "spiece.model", **T5_PIECES | options)


def fast_json(folder: Path, name: str, vocab: str, **settings: Any) -> None:
    """Write the tokenizer.json that transformers 4.46 generates from a SentencePiece model."""
    fast = getattr(transformers, name)(str(folder / vocab), **settings)
    content = json.loads(fast.backend_tokenizer.to_str())
    write(folder / "tokenizer.json", content)


def t5_json(folder: Path) -> None:
    """Write tokenizer.json as in T5's repositories since 2020."""
    fast_json(folder, "T5TokenizerFast", "spiece.model", extra_ids=100)
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    metaspace = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    content["decoder"] = metaspace
    write(folder / "tokenizer.json", content)


def t5_2020(folder: Path) -> None:
    t5_sentencepiece(folder)
    t5_json(folder)


def flan(folder: Path) -> None:
    t5_2020(folder)
    settings = T5_CONFIG | {"model_max_length": 512, "name_or_path": "google/t5-v1_1-small", "sp_model_kwargs": {}}
    settings["tokenizer_class"] = "T5Tokenizer"
    side_files(folder, T5_MAP | {"additional_special_tokens": EXTRA}, settings)


def t5_v1_1(folder: Path) -> None:
    t5_sentencepiece(folder)
    side_files(folder, T5_MAP | {"additional_special_tokens": EXTRA}, T5_CONFIG)


def mt5(folder: Path) -> None:
    t5_sentencepiece(folder, size=600, byte_fallback=True)
    settings = T5_MAP | {"extra_ids": 0, "additional_special_tokens": None, "tokenizer_class": "T5Tokenizer"}
    side_files(folder, T5_MAP, settings | {"special_tokens_map_file": "special_tokens_map.json", "keep_accents": True})


def umt5(folder: Path) -> None:
    t5_sentencepiece(folder, size=600, byte_fallback=True)
    fast_json(folder, "T5TokenizerFast", "spiece.model", extra_ids=300)
    many = [f"<extra_id_{i}>" for i in range(300)]
    settings = T5_MAP | {"extra_ids": 300, "additional_special_tokens": many, "tokenizer_class": "T5Tokenizer"}
    settings |= {"clean_up_tokenization_spaces": True, "model_max_length": 1 << 60, "sp_model_kwargs": {}}
    side_files(folder, T5_MAP | {"additional_special_tokens": many}, settings)


def byt5(folder: Path) -> None:
    many = [f"<extra_id_{i}>" for i in range(125)]
    plain = {name: token(text, normalized=True) for name, text in T5_MAP.items()}
    settings = {"extra_ids": 125, "additional_special_tokens": many, "tokenizer_class": "ByT5Tokenizer"}
    side_files(folder, T5_MAP | {"additional_special_tokens": many}, plain | settings)


def madlad(folder: Path) -> None:
    codes = [f"<2{code}>" for code in ("en", "de", "fr", "zh")]
    train(folder / "spiece.model", size=640, byte_fallback=True, user_defined_symbols=["\n", *codes])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<s>"}
    fast_json(folder, "T5TokenizerFast", "spiece.model", extra_ids=0, **names)
    settings = names | {"extra_ids": 0, "additional_special_tokens": [], "tokenizer_class": "T5Tokenizer"}
    side_files(folder, names, settings | {"clean_up_tokenization_spaces": True, "sp_model_kwargs": {}})


def byte_level(folder: Path, special: Sequence[str], more: Sequence[str] = (), size: int = 420) -> None:
    """Write vocab.json and merges.txt."""
    model = ByteLevelBPETokenizer()
    model.train_from_iterator(CORPUS, size, 2, special_tokens=list(special), show_progress=False)
    model.save_model(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    for piece in more:
        vocabulary[piece] = len(vocabulary)
    write(folder / "vocab.json", vocabulary)


def bart_files(folder: Path) -> None:
    byte_level(folder, ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"])


def bart(folder: Path) -> None:
    """Write tokenizer.json without tokenizer_config.json, as in facebook/bart-base."""
    bart_files(folder)
    fast = transformers.BartTokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))
    write(folder / "tokenizer.json", json.loads(fast.backend_tokenizer.to_str()))


def distilbart(folder: Path) -> None:
    bart_files(folder)
    side_files(folder, None, {"model_max_length": 1024})


def codet5(folder: Path) -> None:
    """Write the special tokens as a list of objects, which transformers 5.24 cannot load."""
    extra = [f"<extra_id_{i}>" for i in range(99, -1, -1)]
    byte_level(folder, ["<pad>", "<s>", "</s>", "<unk>", "<mask>"], extra)
    special = {name: token(text, normalized=True) for name, text in BART_MAP.items() if name != "mask_token"}
    special |= {"mask_token": token("<mask>", lstrip=True, normalized=True)}
    special["additional_special_tokens"] = [token(each, lstrip=True, normalized=True) for each in extra]
    settings = {"add_prefix_space": False, "errors": "replace", "model_max_length": 512, "trim_offsets": True}
    side_files(folder, special, BART_MAP | {"mask_token": "<mask>", "tokenizer_class": "RobertaTokenizer"} | settings)
    write(folder / "added_tokens.json", {})


def codet5p(folder: Path) -> None:
    codet5(folder)
    special = json_of(folder / "special_tokens_map.json")
    special["additional_special_tokens"] = [each["content"] for each in special["additional_special_tokens"]]
    write(folder / "special_tokens_map.json", special)
    fast = transformers.RobertaTokenizerFast.from_pretrained(str(folder))
    write(folder / "tokenizer.json", json.loads(fast.backend_tokenizer.to_str()))


def llama(folder: Path) -> None:
    options: dict[str, Any] = {"remove_extra_whitespaces": False, "split_digits": True, "byte_fallback": True}
    train(folder / "tokenizer.model", "bpe", 600, allow_whitespace_only_pieces=True, **options)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>"}
    extra = [f"<extra_id_{i}>" for i in range(20)]
    settings = {"add_bos_token": False, "add_eos_token": True, "legacy": False, "tokenizer_class": "LlamaTokenizer"}
    settings |= {"clean_up_tokenization_spaces": False, "sp_model_kwargs": {}, "additional_special_tokens": extra}
    side_files(folder, names | {"additional_special_tokens": extra}, names | settings)


def wordpieces(folder: Path, *before: str) -> None:
    """Write a BERT vocabulary."""
    characters = sorted({each for line in CORPUS for each in line if not each.isspace()})
    words = sorted({word for line in LINES[:40] for word in line.lower().split() if word.isalpha()})[:120]
    special = ["[PAD]", *before, "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = dict.fromkeys([*special, *characters, *(f"##{each}" for each in characters if each.isalnum()), *words])
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")


BERT_MAP = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
BERT_MAP |= {"mask_token": "[MASK]"}


def bert_cased(folder: Path) -> None:
    wordpieces(folder)
    settings = {"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": True}
    side_files(folder, BERT_MAP, BERT_MAP | settings | {"tokenizer_class": "BertTokenizer"})


def bert_uncased(folder: Path) -> None:
    wordpieces(folder, "extra0", "extra1")
    side_files(folder, BERT_MAP, {"do_lower_case": True, "tokenizer_class": "BertTokenizer"} | BERT_MAP)


def bartpho(folder: Path) -> None:
    train(folder / "sentencepiece.bpe.model", size=400)
    known = [piece for piece in pieces_of(folder / "sentencepiece.bpe.model")[3:] if hash_of(piece) % 3]
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in known), encoding="utf-8")


def hash_of(text: str) -> int:
    return sum(map(ord, text))


def pegasus(folder: Path) -> None:
    t5_sentencepiece(folder)
    names = T5_MAP | {"mask_token": "<mask_2>"}
    unused = ["<mask_1>", *(f"<unk_{i}>" for i in range(2, 103))]
    settings = {"model_max_length": 512, "mask_token_sent": "<mask_1>", "offset": 103}
    side_files(folder, names | {"additional_special_tokens": unused}, names | settings)


def mbart50(folder: Path) -> None:
    train(folder / "sentencepiece.bpe.model")
    codes = module("mbart50.tokenization_mbart50").FAIRSEQ_LANGUAGE_CODES
    settings = {"src_lang": None, "tgt_lang": None, "tokenizer_class": "MBart50Tokenizer", "model_max_length": 1024}
    side_files(folder, BART_MAP | {"additional_special_tokens": codes}, settings | {"language_codes": "ML50"})


def mbart50_fast(folder: Path) -> None:
    mbart50(folder)
    fast_json(folder, "MBart50TokenizerFast", "sentencepiece.bpe.model")


def mbart_en_ro(folder: Path) -> None:
    train(folder / "sentencepiece.bpe.model")
    fast_json(folder, "MBartTokenizerFast", "sentencepiece.bpe.model")


def m2m_100(folder: Path) -> None:
    spm = folder / "sentencepiece.bpe.model"
    train(spm, "bpe")
    known = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(spm)[3:]]
    write(folder / "vocab.json", {piece: index for index, piece in enumerate(known)})
    codes = [f"__{code}__" for code in module("m2m_100.tokenization_m2m_100").FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>"}
    settings = {"src_lang": None, "tgt_lang": None, "num_madeup_words": 8, "tokenizer_class": "M2M100Tokenizer"}
    side_files(folder, names | {"additional_special_tokens": codes}, names | settings)


def nllb(folder: Path) -> None:
    train(folder / "sentencepiece.bpe.model", "bpe")
    codes = module("nllb.tokenization_nllb").FAIRSEQ_LANGUAGE_CODES
    fast_json(folder, "NllbTokenizerFast", "sentencepiece.bpe.model", legacy_behaviour=True)
    settings = {"src_lang": None, "tgt_lang": None, "tokenizer_class": "NllbTokenizer", "model_max_length": 1024}
    plain = {name: text for name, text in BART_MAP.items() if name != "mask_token"}
    special = BART_MAP | {"additional_special_tokens": codes}
    side_files(folder, special, settings | plain | {"mask_token": token("<mask>", lstrip=True, normalized=True)})


def marian(folder: Path, targets: Sequence[str] = (), special: bool = False) -> None:
    """Write two SentencePiece models with different pieces, and a vocabulary that both share."""
    train(folder / "source.spm")
    train(folder / "target.spm", lines=MORE_LINES * 20, size=240)
    both = [piece for side in ("source", "target") for piece in pieces_of(folder / f"{side}.spm")[3:]]
    known = ["</s>", "<unk>", *targets, *dict.fromkeys(both), "<pad>"]
    write(folder / "vocab.json", {piece: index for index, piece in enumerate(known)})
    if special:
        names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        more = {"source_lang": "eng", "target_lang": "mul", "separate_vocabs": False, "sp_model_kwargs": {}}
        side_files(folder, names, names | more | {"model_max_length": 512, "tokenizer_class": "MarianTokenizer"})
    else:
        side_files(folder, None, {"source_lang": "en", "target_lang": "de", "model_max_length": 512})


def gemma(folder: Path, *more: str) -> None:
    symbols = ["<mask>", *more, "<unused0>", "<unused1>", "\n", "\n\n", "▁▁", "▁▁▁"]
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "pad_piece": "<pad>", "eos_piece": "<eos>"}
    options: dict[str, Any] = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    options |= {"add_dummy_prefix": False, "split_digits": True, "bos_piece": "<bos>", "byte_fallback": True}
    train(folder / "tokenizer.model", "bpe", 640, user_defined_symbols=symbols, **ids, **options)
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    fast_json(folder, "GemmaTokenizerFast", "tokenizer.model")
    flags = {"add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False}
    settings = {
        "tokenizer_class": "GemmaTokenizer",
        "model_max_length": 1 << 60,
        "spaces_between_special_tokens": False,
    }
    added = json.loads((folder / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    decoder = {str(each["id"]): {key: value for key, value in each.items() if key != "id"} for each in added}
    special = {name: token(text) for name, text in names.items()}
    side_files(folder, special, names | flags | settings | {"added_tokens_decoder": decoder, "sp_model_kwargs": {}})


def module(name: str) -> Any:
    return __import__(f"transformers.models.{name}", fromlist=["*"])


LANGUAGES = (  # noqa: SIM905
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt "
    "la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc "
    "ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su"
).split()


def whisper_special(size: int, *, timestamps: bool = True) -> list[str]:
    """Return the special tokens, in order, of a Whisper with this vocabulary size."""
    codes = [*LANGUAGES, "yue"] if size == 51866 else LANGUAGES
    names = ["endoftext", "startoftranscript", *codes, "translate", "transcribe", "startoflm", "startofprev"]
    names += ["nospeech" if size == 51866 else "nocaptions", "notimestamps"]
    return [f"<|{name}|>" for name in [*names, *(f"{i / 50:.2f}" for i in range(1501 if timestamps else 0))]]


def whisper(folder: Path, size: int = 51865, *, fast: bool = True, timestamps: bool = True) -> None:
    """Write a small BPE vocabulary, padded to the real vocabulary's size."""
    special = whisper_special(size, timestamps=timestamps)
    end = size - len(whisper_special(size))
    byte_level(folder, [], size=500)
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    vocabulary |= {f"f{i}": i for i in range(len(vocabulary), end)}
    if end == 50256:  # GPT-2's vocabulary contains the end token
        vocabulary[special[0]] = end
    write(folder / "vocab.json", vocabulary)
    write(folder / "normalizer.json", {"colour": "color"})
    first = end + (end == 50256)
    write(folder / "added_tokens.json", {piece: end + i for i, piece in enumerate(special) if end + i >= first})
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>") | {"pad_token": "<|endoftext|>"}
    rest = {"additional_special_tokens": special[: 107 + (size == 51866)]}
    settings: dict[str, Any] = {"add_prefix_space": False, "add_bos_token": False, "errors": "replace"}
    settings |= {"model_max_length": 448, "return_attention_mask": False, "tokenizer_class": "WhisperTokenizer"}
    if fast:
        raw = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))._tokenizer
        flags = {"single_word": False, "lstrip": False, "rstrip": False}
        kinds = [not piece[2].isdigit() for piece in special]
        raw.add_tokens([tokenizers.AddedToken(piece, **flags, special=kind, normalized=not kind)
                        for piece, kind in zip(special, kinds, strict=True)])  # fmt: skip
        template = "<|startoftranscript|> <|notimestamps|> $A <|endoftext|>"
        used = [(piece, raw.token_to_id(piece)) for piece in template.split() if piece != "$A"]
        raw.post_processor = tokenizers.processors.TemplateProcessing(
            template, f"{template} $B:1 <|endoftext|>:1", used
        )
        write(folder / "tokenizer.json", json.loads(raw.to_str()))
        decoder = {end + i: token(piece, normalized=not kind, special=kind)
                   for i, (piece, kind) in enumerate(zip(special, kinds, strict=True))}  # fmt: skip
        settings |= {"added_tokens_decoder": decoder, "clean_up_tokenization_spaces": True}
    side_files(folder, names | rest, names | rest | settings)
    write(folder / "preprocessor_config.json", {"feature_size": 80, "chunk_length": 30, "sampling_rate": 16000})

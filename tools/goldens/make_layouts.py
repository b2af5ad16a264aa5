"""Write a tiny random model for each published layout, and record Hugging Face's results.

    pip install torch==2.13.0 transformers==4.46.3 sentencepiece==0.2.3 protobuf==7.36.2    (and the same with 5.24.0)
    python4 make_layouts.py WORK [NAME ...]
    python5 make_layouts.py WORK [NAME ...]    (both in turn, until nothing is missing)

A run writes the folders that its version of transformers makes, and records the results for which this version is the
reference. The last run packs tests/parity/goldens/layouts.tar.xz and layouts.json.gz. Folders and records are kept in
WORK between runs. Each layout given as NAME is written again.

References. Token ids: the slow classes in transformers 4.46 for folders whose only tokenizer is a SentencePiece model,
`AutoTokenizer` in 5.24 for all others. Decoded text: `decode` of the same tokenizer, with 5.24's clean-up of spaces.
Greedy tokens: 5.24, except for T5's relatives, which use 4.46 for the reasons given in make_goldens.py.

Weights are multiples of 1/64 to keep the archive small. Files of other frameworks contain only a few bytes.
"""

import gzip
import io
import json
import lzma
import shutil
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from layout_folders import VERSION, Maker, mlx_whisper, published, resaved, t5gemma, whisper_folder
from layout_models import (
    BART,
    BART_IDS,
    GATED,
    M2M,
    MARIAN,
    MBART,
    PEGASUS,
    SUMMARIES,
    T5,
    T5_GENERATION,
    T5_IDS,
    T5_TASKS,
    UMT5,
    Files,
    dequantized,
    openai_name,
)
from layout_tokenizers import (
    bart,
    bartpho,
    bert_cased,
    bert_uncased,
    byt5,
    codet5,
    codet5p,
    distilbart,
    flan,
    gemma,
    json_of,
    llama,
    m2m_100,
    madlad,
    marian,
    mbart50,
    mbart50_fast,
    mbart_en_ro,
    mt5,
    nllb,
    pegasus,
    t5_2020,
    t5_v1_1,
    umt5,
)
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, PreTrainedModel

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"
NEW_TOKENS = 10
LEAST_GAP = 0.002  # minimum difference between the best two logits for each greedy token
SOURCES = ["The house is wonderful, isn't it?", "Die Größe 12.5 % der 漢字 …"]  # source texts for the greedy tokens
TEXTS = [
    "The other columns are balanced, filling with equal amounts of text.",
    "He does n't know , do n't you ? I 'm sure they 've 3 . 5 ! it 's",
    "",
    " ",
    "  two  spaces ",
    " leading",
    "trailing ",
    "a\tb\nc\r\nd",
    "\n\nline\n",
    "naïve café — Ärger über Größe",
    "e\u0301 a\u0308 combined, \u00e9 \u00e4 composed",
    "emoji 🎉 and 👩‍👩‍👧 and 🇩🇪.",
    "שלום עולם مرحبا بالعالم",
    "漢字とカナ 한국어 这座房子很漂亮。",
    "zero\u200bwidth\u200d\ufeff no-break\u00a0and\u3000wide",
    "control \x01\x1f\x7f characters",
    "\uff26\uff35\uff2c\uff2c \ufb01rst ½ ² ™",
    "UPPER Case and lower",
    "say </s> and <s> and <unk>, <pad> or <mask>, [SEP] and <|endoftext|> inside",
    "<2de> translate >>deu<< it <extra_id_0> now",
    "x_1 = foo(bar[0]) // 100,000.5",
    "Das ▁ ist <0x41>",
    "letters" * 40,
]


@dataclass(frozen=True)
class Layout:
    """A published model, or a kind of fine-tune.

    make: writes all files.
    made_by: the version of transformers with which to run `make`.
    ids, tokens: the versions of transformers that are the references for token ids and for greedy tokens.
    junk: additional files that are not part of the model.
    source, target: the languages for the greedy tokens.
    vocabulary: for a model without a tokenizer, the layout whose vocabulary is used.
    """

    make: Maker
    made_by: int = 4
    ids: int = 5
    tokens: int = 5
    junk: Sequence[str] = ()
    source: str | None = None
    target: str | None = None
    vocabulary: str = ""


KERAS, FLAX, RUST = "tf_model.h5", "flax_model.msgpack", "rust_model.ot"
ONNX = ("onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx", "onnx/tokenizer.json")
TRAINING = ("training_args.bin", "optimizer.pt", "scheduler.pt", "trainer_state.json", "checkpoint-500/config.json",
            "checkpoint-500/model.safetensors", "runs/events.out.tfevents.1")  # fmt: skip
BOTH = Files(("safetensors", "bin"))
WHISPER_JUNK = (KERAS, FLAX, *ONNX)
LAYOUTS: Mapping[str, Layout] = {
    "google-t5/t5-small": Layout(
        published(t5_2020, T5 | T5_TASKS | {"architectures": ["T5WithLMHeadModel"]}, Files(("safetensors", "bin"),
                  legacy=True), rows=28, generation=T5_GENERATION,
                  extra={"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": (8, 2)}),
        tokens=4, junk=(KERAS, FLAX, RUST, *ONNX)),
    "google-t5/t5-11b": Layout(
        published(t5_2020, T5 | T5_TASKS | {"architectures": ["T5WithLMHeadModel"], "d_kv": 16, "num_heads": 3},
                  Files(legacy=True), rows=28), tokens=4, junk=(KERAS,)),
    "google/t5-v1_1-small": Layout(
        published(t5_v1_1, T5 | GATED | {"output_past": True}, Files(), rows=28), ids=4, tokens=4,
        junk=(KERAS, FLAX)),
    "google/flan-t5-small": Layout(
        published(flan, T5 | GATED | T5_TASKS, BOTH, rows=28, generation=T5_GENERATION), tokens=4,
        junk=(KERAS, FLAX)),
    "google/flan-t5-xl": Layout(
        published(flan, T5 | GATED | T5_TASKS, Files(("safetensors", "bin"), shards=2), rows=28,
                  generation=T5_GENERATION), tokens=4, junk=("tf_model-00001-of-00002.h5", KERAS + ".index.json")),
    "google/flan-ul2": Layout(
        published(flan, T5 | GATED | T5_TASKS, Files(shards=3), rows=28, generation=T5_GENERATION), tokens=4),
    "google/mt5-small": Layout(
        published(mt5, T5 | GATED | {"architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5",
                  "tokenizer_class": "T5Tokenizer"}, Files(), rows=12, generation=T5_GENERATION), ids=4, tokens=4,
        junk=(KERAS, FLAX, *ONNX)),
    "google/umt5-small": Layout(
        published(umt5, T5 | GATED | UMT5 | {"tokenizer_class": "T5Tokenizer"}, Files(), rows=4,
                  generation=T5_GENERATION), tokens=4),
    "google/byt5-small": Layout(
        published(byt5, T5 | GATED | {"tokenizer_class": "ByT5Tokenizer", "vocab_size": 384}, Files(),
                  generation=T5_GENERATION), tokens=4, junk=(KERAS, FLAX)),
    "google/madlad400-3b-mt": Layout(
        published(madlad, T5 | GATED | {"pad_token_id": 1, "eos_token_id": 2}, Files(("safetensors",), tables=(
                  "decoder.embed_tokens.weight", "lm_head.weight")), generation=T5_IDS | {"pad_token_id": 1,
                  "eos_token_id": 2}), tokens=4, junk=("model-q4k.gguf", "metadata.jsonl")),
    "Salesforce/codet5-base": Layout(
        published(codet5, T5 | {"eos_token_id": 2, "bos_token_id": 1, "feed_forward_proj": "relu", "n_positions": 512},
                  Files()), ids=4, tokens=4),
    "Salesforce/codet5p-220m": Layout(
        published(codet5p, T5 | {"eos_token_id": 2, "bos_token_id": 1, "feed_forward_proj": "relu"}, Files()),
        tokens=4),
    "EleutherAI/pile-t5-base": Layout(
        published(llama, T5 | GATED | UMT5 | {"eos_token_id": 2, "tokenizer_class": "LlamaTokenizer"}, Files(
                  ("safetensors",)), rows=4), ids=4, tokens=4),
    "uer/t5-base-chinese-cluecorpussmall": Layout(
        published(bert_uncased, T5 | {"eos_token_id": 1, "tokenizer_class": "BertTokenizer"}, Files()), tokens=4,
        junk=(KERAS,)),
    "facebook/bart-base": Layout(
        published(bart, BART | {"architectures": ["BartModel"], "forced_eos_token_id": 2, "no_repeat_ngram_size": 3,
                  "early_stopping": True, "num_beams": 4}, Files(("safetensors", "bin"), prefix="model.",
                  drop=("lm_head", "final_logits_bias"))), junk=(KERAS, FLAX, RUST)),
    "facebook/bart-large-cnn": Layout(
        published(bart, BART | SUMMARIES | {"prefix": " "}, Files(("safetensors", "bin"), drop=("lm_head",)),
                  generation=SUMMARIES | BART_IDS), junk=(FLAX, KERAS, RUST)),
    "sshleifer/distilbart-cnn-12-6": Layout(
        published(distilbart, BART | SUMMARIES, Files(legacy=True)), junk=(FLAX, RUST)),
    "fnlp/bart-base-chinese": Layout(
        published(bert_cased, BART | {"bos_token_id": 2, "pad_token_id": 0, "eos_token_id": 3,
                  "decoder_start_token_id": 3, "forced_eos_token_id": 3}, Files())),
    "vinai/bartpho-syllable": Layout(
        published(bartpho, MBART | {"tokenizer_class": "BartphoTokenizer", "forced_eos_token_id": 2,
                  "scale_embedding": False}, Files()), ids=4),
    "google/pegasus-xsum": Layout(
        published(pegasus, PEGASUS, Files(legacy=True), generation={"forced_eos_token_id": 1, "length_penalty": 0.6,
                  "max_length": 64, "num_beams": 8, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 0,
                  "decoder_start_token_id": 0}), ids=4, junk=(KERAS, FLAX)),
    "facebook/mbart-large-50-many-to-many-mmt": Layout(
        published(mbart50, MBART | {"tokenizer_class": "MBart50Tokenizer"}, BOTH, generation={"num_beams": 5,
                  "forced_eos_token_id": 2, "max_length": 200} | BART_IDS), ids=4, junk=(KERAS, FLAX, RUST),
        source="de_DE", target="fr_XX"),
    "facebook/mbart-large-50-one-to-many-mmt": Layout(
        published(mbart50_fast, MBART | {"tokenizer_class": "MBart50Tokenizer"}, Files(), generation={"num_beams": 5,
                  "forced_eos_token_id": 2, "max_length": 200} | BART_IDS), source="en_XX", target="de_DE"),
    "facebook/mbart-large-en-ro": Layout(
        published(mbart_en_ro, MBART | {"decoder_start_token_id": 338, "num_beams": 5, "max_length": 200}, Files()),
        junk=(KERAS,), source="en_XX"),
    "facebook/m2m100_418M": Layout(
        published(m2m_100, M2M, Files(), generation=BART_IDS | {"num_beams": 5, "max_length": 200,
                  "early_stopping": True}), ids=4, junk=(RUST,), source="en", target="de"),
    "facebook/nllb-200-distilled-600M": Layout(
        published(nllb, M2M | {"tokenizer_class": "NllbTokenizer"}, Files(), generation=BART_IDS | {"max_length": 200}),
        source="deu_Latn", target="fra_Latn"),
    "facebook/nllb-200-3.3B": Layout(
        published(nllb, M2M | {"tokenizer_class": "NllbTokenizer"}, Files(shards=3),
                  generation=BART_IDS | {"max_length": 200}), source="eng_Latn", target="deu_Latn"),
    "Helsinki-NLP/opus-mt-en-de": Layout(
        published(marian, MARIAN, Files(), generation={"num_beams": 6, "max_length": 512, "forced_eos_token_id": 0,
                  "eos_token_id": 0, "bos_token_id": 0, "renormalize_logits": True}), ids=4, junk=(KERAS, RUST)),
    "Helsinki-NLP/opus-mt-tc-big-en-ko": Layout(
        published(partial(marian, special=True), MARIAN, BOTH, generation={"num_beams": 4, "max_length": 512,
                  "forced_eos_token_id": 0, "eos_token_id": 0, "bos_token_id": 0}), ids=4, junk=(KERAS,)),
    "Helsinki-NLP/opus-mt-en-ROMANCE": Layout(
        published(partial(marian, targets=(">>fra<<", ">>deu<<")), MARIAN, Files(legacy=True)), ids=4,
        junk=(RUST, KERAS)),
    "google/t5gemma-2b-2b-ul2-it": Layout(t5gemma("t5gemma", shards=2), made_by=5),
    "google/t5gemma-2-270m-270m": Layout(t5gemma("t5gemma2"), made_by=5),
    "openai/whisper-tiny": Layout(whisper_folder(), junk=WHISPER_JUNK),
    "openai/whisper-tiny.en": Layout(whisper_folder(51864), junk=WHISPER_JUNK),
    "openai/whisper-large-v3": Layout(
        whisper_folder(51866, config={"num_mel_bins": 128}, files=Files(("safetensors", "bin"),
                       drop=("proj_out",), dtype=torch.float16)),
        junk=(FLAX, "model.fp32-00001-of-00002.safetensors", "model.fp32-00002-of-00002.safetensors",
              "model.safetensors.index.fp32.json", "pytorch_model.fp32-00001-of-00002.bin",
              "pytorch_model.bin.index.fp32.json")),
    "a Whisper fine-tuned in 2022": Layout(
        whisper_folder(fast=False, timestamps=False, new=False, files=Files()), junk=TRAINING),
    "distil-whisper/distil-large-v3": Layout(
        whisper_folder(51866, config={"num_mel_bins": 128, "encoder_layers": 3},
                       files=Files(("safetensors",), drop=("proj_out",))),
        junk=("model.fp32.safetensors", "ggml-distil-large-v3.bin", "ggml-distil-large-v3.fp32.bin", FLAX, *ONNX)),
    "kotoba-tech/kotoba-whisper-v1.0": Layout(
        whisper_folder(51866, config={"num_mel_bins": 128}, files=Files(("safetensors",), drop=("proj_out",)),
                       generation={"alignment_heads": [[7, 0], [10, 17], [12, 18], [13, 12]], "language": "ja",
                                   "task": "transcribe"}),
        junk=("training_args.bin",)),
    "mlx-community/whisper-tiny-mlx": Layout(
        mlx_whisper("openai/whisper-tiny", "weights.npz", None), vocabulary="openai/whisper-tiny"),
    "mlx-community/whisper-large-v3-turbo": Layout(
        mlx_whisper("openai/whisper-large-v3", "weights.safetensors", None), vocabulary="openai/whisper-large-v3"),
}  # fmt: skip
FINE_TUNES: Mapping[str, Layout] = {
    "FLAN-T5 saved by transformers 4": Layout(
        resaved("google/flan-t5-small", words=["<table>", "zahlwort"], special=["<sep2>"]), tokens=4, junk=TRAINING),
    "T5 v1.1 with resized embeddings": Layout(
        resaved("google/t5-v1_1-small", words=["→"], multiple=64), tokens=4, junk=TRAINING),
    "BART saved by transformers 4": Layout(
        resaved("facebook/bart-large-cnn", words=["<row>", " neu"], special=["<|sep|>"]), junk=TRAINING),
    "mBART-50 with a new language, by transformers 4": Layout(
        resaved("facebook/mbart-large-50-many-to-many-mmt", special=["myv_XX"]), junk=TRAINING, source="myv_XX",
        target="fr_XX"),
    "NLLB with a new language, by transformers 4": Layout(
        resaved("facebook/nllb-200-distilled-600M", special=["myv_Cyrl"]), junk=TRAINING, source="myv_Cyrl",
        target="deu_Latn"),
    "Pegasus saved by transformers 4": Layout(resaved("google/pegasus-xsum", words=["<n>"]), junk=TRAINING),
    "mT5 saved by transformers 4, slow tokenizer": Layout(
        resaved("google/mt5-small", words=["<table>"], special=["<sep2>"], slow=True), ids=4, tokens=4, junk=TRAINING),
    "T5 saved by transformers 4, slow tokenizer": Layout(
        resaved("google-t5/t5-small", words=["zahlwort", "<b>"], slow=True), ids=4, tokens=4, junk=TRAINING),
    "BART saved by transformers 4, slow tokenizer": Layout(
        resaved("facebook/bart-large-cnn", words=["<row>", " neu"], special=["<|sep|>"], slow=True), junk=TRAINING),
    "Pegasus saved by transformers 4, slow tokenizer": Layout(
        resaved("google/pegasus-xsum", words=["<n>"], slow=True), ids=4, junk=TRAINING),
    "mBART saved by transformers 4, slow tokenizer": Layout(
        resaved("facebook/mbart-large-en-ro", words=["<n>"], slow=True), ids=4, junk=TRAINING, source="en_XX"),
    "NLLB saved by transformers 4, slow tokenizer": Layout(
        resaved("facebook/nllb-200-distilled-600M", slow=True), ids=4, junk=TRAINING, source="deu_Latn",
        target="fra_Latn"),
    "Marian saved by transformers 4": Layout(
        resaved("Helsinki-NLP/opus-mt-en-de", words=["<x>"]), ids=4, junk=TRAINING),
    "BART by safetensors.torch.save_model": Layout(resaved("facebook/bart-large-cnn", whole=True)),
    "NLLB by safetensors.torch.save_model": Layout(
        resaved("facebook/nllb-200-distilled-600M", whole=True), source="eng_Latn", target="deu_Latn"),
    "Marian by safetensors.torch.save_model": Layout(resaved("Helsinki-NLP/opus-mt-en-de", whole=True), ids=4),
    "T5 by safetensors.torch.save_model": Layout(resaved("google-t5/t5-small", whole=True), tokens=4),
    "Whisper with added tokens, by transformers 4": Layout(
        resaved("openai/whisper-tiny", words=["<|domain|>", "Erzya"], files=["preprocessor_config.json"]),
        junk=TRAINING),
    "Whisper with padded embeddings, by transformers 4": Layout(
        resaved("openai/whisper-tiny", multiple=64, files=["preprocessor_config.json"]), junk=TRAINING),
    "FLAN-T5 saved by transformers 5": Layout(resaved("google/flan-t5-small"), made_by=5),
    "T5 with added tokens, by transformers 5": Layout(
        resaved("google-t5/t5-small", words=["<table>", "zahlwort"], special=["<sep2>"]), made_by=5),
    "umT5 saved by transformers 5": Layout(resaved("google/umt5-small"), made_by=5),
    "ByT5 saved by transformers 5": Layout(resaved("google/byt5-small"), made_by=5),
    "CodeT5+ saved by transformers 5": Layout(resaved("Salesforce/codet5p-220m", special=["<sep2>"]), made_by=5),
    "BART with a BERT vocabulary, by transformers 5": Layout(
        resaved("fnlp/bart-base-chinese", words=["zahlwort"]), made_by=5),
    "M2M-100 saved by transformers 5": Layout(
        resaved("facebook/m2m100_418M"), made_by=5, source="en", target="de"),
    "mBART-50 with a new language, by transformers 5": Layout(
        resaved("facebook/mbart-large-50-many-to-many-mmt", special=["myv_XX"]), made_by=5, source="myv_XX",
        target="fr_XX"),
    "BART saved by transformers 5": Layout(resaved("facebook/bart-large-cnn", words=["<row>", " neu"]), made_by=5),
    "NLLB saved by transformers 5": Layout(
        resaved("facebook/nllb-200-distilled-600M"), made_by=5, source="deu_Latn", target="eng_Latn"),
    "mBART-50 saved by transformers 5": Layout(
        resaved("facebook/mbart-large-50-many-to-many-mmt"), made_by=5, source="de_DE", target="fr_XX"),
    "Marian saved by transformers 5": Layout(resaved("Helsinki-NLP/opus-mt-en-de"), made_by=5, ids=4),
    "Whisper saved by transformers 5": Layout(
        resaved("openai/whisper-tiny", files=["preprocessor_config.json"]), made_by=5),
    "mlx-community/whisper-tiny-mlx-q4": Layout(
        mlx_whisper("wide Whisper", "weights.npz", 4), vocabulary="openai/whisper-tiny"),
}  # fmt: skip
# Bases for other layouts that are not published themselves.
PARTS: Mapping[str, Layout] = {
    "wide Whisper": Layout(
        whisper_folder(config={"d_model": 32, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
                       files=Files(("safetensors",), drop=("proj_out",)))),
}  # fmt: skip
ALL = {**PARTS, **LAYOUTS, **FINE_TUNES}


def reference_tokenizer(folder: Path) -> Any:
    if VERSION < 5:
        return AutoTokenizer.from_pretrained(folder, use_fast=False)
    return AutoTokenizer.from_pretrained(folder)


def decoder_of(tokenizer: Any, folder: Path) -> Callable[[Sequence[int]], str]:
    """Return a function that decodes ids to text with the clean-up of spaces of transformers 5.24."""
    if VERSION >= 5:
        return partial(tokenizer.decode, skip_special_tokens=True)
    clean = json_of(folder / "tokenizer_config.json").get("clean_up_tokenization_spaces") is True
    is_bpe = any((folder / name).exists() for name in ("merges.txt", "tokenizer.model"))
    return partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=clean and not is_bpe)


def record_outputs(own: Path, layout: Layout, work: Path, tokens: Sequence[Sequence[int]]) -> list[str]:
    """Decode greedy tokens to texts."""
    folder = work / layout.vocabulary if layout.vocabulary else own
    return [*map(decoder_of(reference_tokenizer(folder), folder), tokens)]


def record_ids(own: Path, layout: Layout, work: Path) -> dict[str, Any]:
    """Return texts, their ids, and the text to which these ids are decoded."""
    folder = work / layout.vocabulary if layout.vocabulary else own
    tokenizer = reference_tokenizer(folder)
    decode = decoder_of(tokenizer, folder)
    texts = [*TEXTS]
    added = list(tokenizer.get_added_vocab())
    is_whisper = json_of(folder / "config.json")["model_type"] == "whisper"
    known = list(dict.fromkeys([*added[:3], *added[-4:]]))
    if is_whisper:  # transcripts contain no special tokens
        texts = [text for text in texts if "<|" not in text]
        known = [each for each in known if not each.startswith("<|")]
    texts += [f"a {each} b{each}c  {each}" for each in known]
    if layout.source:
        tokenizer.src_lang = layout.source
    encode = partial(tokenizer, add_special_tokens=not is_whisper)
    ids = [list(encode(text).input_ids) for text in texts]
    content: dict[str, Any] = {"texts": texts, "ids": ids, "decoded": [decode(each) for each in ids]}
    if layout.source:
        codes = module_codes(folder, tokenizer)
        content["languages"] = codes
    if not is_whisper:
        content["sources"] = [list(tokenizer(text).input_ids) for text in SOURCES]
    return content


def module_codes(folder: Path, tokenizer: Any) -> int:
    """Return the number of languages."""
    pieces = tokenizer.additional_special_tokens if VERSION < 5 else tokenizer.extra_special_tokens
    return len({each for each in pieces if each.startswith("__") or "_" in each})


def frames_of(mel_bands: int) -> np.ndarray:
    """Return log-mel frames for a window, the same as in the test."""
    return (np.random.default_rng(7).standard_normal((3000, mel_bands)) * 0.5).astype(np.float32)


def load_model(folder: Path, layout: Layout, work: Path) -> PreTrainedModel:
    raw = json_of(folder / "config.json")
    if "n_mels" in raw:
        return openai_model(folder, layout, work)
    kind = AutoModelForSeq2SeqLM
    if raw["model_type"] == "whisper":
        kind = transformers.WhisperForConditionalGeneration
    if "save_model" in str(folder):  # some versions of transformers do not find a tied table that is stored only once
        from safetensors.torch import load_model as load_whole

        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager")
        model.generation_config = GenerationConfig.from_pretrained(folder)
        load_whole(model, folder / "model.safetensors")
        return model.eval()
    model, info = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    for key in ("missing_keys", "mismatched_keys"):
        assert not info.get(key), (folder, key, info[key])
    return model.eval()


def openai_model(folder: Path, layout: Layout, work: Path) -> PreTrainedModel:
    """Load a folder of mlx-whisper into the Hugging Face model from which it was written."""
    raw = json_of(folder / "config.json")
    bits = raw.get("quantization", {}).get("bits")
    base = work / (layout.vocabulary if bits is None else "wide Whisper")
    model = transformers.WhisperForConditionalGeneration.from_pretrained(base, attn_implementation="eager").eval()
    if (folder / "weights.npz").exists():
        arrays = dict(np.load(folder / "weights.npz"))
    else:
        from safetensors.numpy import load_file

        arrays = load_file(folder / "weights.safetensors")
    with torch.no_grad():
        for theirs, tensor in model.state_dict().items():
            ours = openai_name(theirs)
            if ours not in arrays:
                assert ours in ("proj_out.weight", "encoder.positional_embedding")
                continue
            array = arrays[ours]
            if array.dtype == np.uint32:
                layer = ours.removesuffix("weight")
                array = dequantized(array, arrays[f"{layer}scales"], arrays[f"{layer}biases"], bits)
            array = array.swapaxes(1, 2) if array.ndim == 3 else array
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(array.astype(np.float32))))
    model.generation_config.suppress_tokens = None  # mlx-community's folders have no generation_config.json
    model.generation_config.begin_suppress_tokens = None
    return model


def record_tokens(folder: Path, layout: Layout, work: Path, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return the greedy tokens that follow the start token, or for Whisper the prompt."""
    model = load_model(folder, layout, work)
    vocabulary = reference_tokenizer(work / layout.vocabulary if layout.vocabulary else folder)
    outputs, gap = [], float("inf")
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": NEW_TOKENS, "max_length": None}
    options |= {"early_stopping": False, "length_penalty": 1.0, "use_cache": False}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    if layout.target:
        form = (
            f"__{layout.target}__" if model.config.model_type == "m2m_100" and len(layout.target) < 4 else layout.target
        )
        options["forced_bos_token_id"] = vocabulary.convert_tokens_to_ids(form)
    if "sources" in ids:
        for source in ids["sources"]:
            source = torch.tensor([source])
            out = model.generate(source, attention_mask=torch.ones_like(source), **options)
            outputs.append(out.sequences[0, 1:].tolist())
            gap = min(gap, gap_of(out.scores))
        return {"tokens": outputs, "gap": gap}

    config = model.config
    end = config.decoder_start_token_id - 1
    is_english = config.vocab_size == 51864
    start = [end + 1] if is_english else [end + 1, end + 2, end + 102 + (config.vocab_size == 51866)]
    start.append(next(index for piece, index in vocabulary.get_vocab().items() if piece == "<|notimestamps|>"))
    features = torch.from_numpy(frames_of(config.num_mel_bins).T[None].copy())
    with torch.no_grad():
        encoded = model.model.encoder(features).last_hidden_state
        tokens = [*start]
        while len(tokens) - len(start) < NEW_TOKENS and tokens[-1] != end:
            logits = model(
                encoder_outputs=(encoded,), decoder_input_ids=torch.tensor([tokens]), use_cache=False
            ).logits[0, -1]
            logits[list(model.generation_config.suppress_tokens or [])] = -torch.inf
            if len(tokens) == len(start):
                logits[list(model.generation_config.begin_suppress_tokens or [])] = -torch.inf
            top = logits.topk(2).values
            gap = min(gap, float(top[0] - top[1]))
            tokens.append(int(logits.argmax()))
    return {"tokens": [tokens[len(start) :]], "prompt": start[1:], "gap": gap}


def gap_of(scores: Sequence[torch.Tensor]) -> float:
    """Return the smallest gap between the best two logits, ignoring forced tokens."""
    gaps = [float(top[0] - top[1]) for top in (step[0].topk(2).values for step in scores) if torch.isfinite(top[1])]
    return min(gaps, default=float("inf"))


def problems_of(found: Mapping[str, Any]) -> list[str]:
    """Return the reasons why the outputs would hide faults or depend on rounding."""
    outputs = found["tokens"]
    problems = {
        f"gap {found['gap']:.4f}": found["gap"] < LEAST_GAP,
        "short": any(len(each) < 4 for each in outputs),
        "repeats itself": min(len(set(each)) for each in outputs) < 4,
        "does not depend on the source": len(outputs) > 1 and outputs[0] == outputs[1],
    }
    return [problem for problem, holds in problems.items() if holds]


def folder_name(name: str) -> str:
    return name.replace("/", "--").replace(" ", "_").replace(",", "")


def make(name: str, layout: Layout, work: Path) -> None:
    """Write the folder of a layout, using the first seed for which `problems_of` reports no problems."""
    folder = work / "unfinished"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    layout.make(folder, work, 0)
    if name not in FINE_TUNES and not layout.vocabulary:
        ids = record_ids(folder, layout, work)
        for seed in range(1, 60):
            if not (problems := problems_of(record_tokens(folder, layout, work, ids))):
                break
            layout.make(folder, work, seed)
        print(f"{name}: seed {seed - 1} {', '.join(problems)}", flush=True)
    for junk in layout.junk:
        (folder / junk).parent.mkdir(parents=True, exist_ok=True)
        (folder / junk).write_bytes(f"not a part of the model: {junk}\n".encode())
    shutil.rmtree(work / name, ignore_errors=True)
    (work / name).parent.mkdir(exist_ok=True)
    folder.rename(work / name)


def pack(work: Path, records: Mapping[str, Any]) -> None:
    """Write the archive, in which similar files are next to each other, and the records."""
    names = [name for name in ALL if name not in PARTS]
    paths = [(name, path) for name in names for path in (work / name).rglob("*") if path.is_file()]
    paths.sort(key=lambda item: (item[1].suffix, item[1].name, names.index(item[0])))
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in paths:
            info = tarfile.TarInfo(f"{folder_name(name)}/{path.relative_to(work / name)}")
            info.size = path.stat().st_size
            archive.addfile(info, io.BytesIO(path.read_bytes()))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 27}]
    data = lzma.compress(raw.getvalue(), filters=filters)
    (GOLDENS / "layouts.tar.xz").write_bytes(data)
    text = json.dumps({name: records[name] for name in names}, ensure_ascii=False, separators=(",", ":"))
    packed = gzip.compress(text.encode(), mtime=0)
    (GOLDENS / "layouts.json.gz").write_bytes(packed)
    print(f"{len(names)} layouts; archive {len(data):,} bytes of {raw.tell():,}; records {len(packed):,} bytes")


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    work, chosen = Path(sys.argv[1]), sys.argv[2:]
    store = work / "records.json"
    records: dict[str, Any] = json.loads(store.read_text("utf-8")) if store.is_file() else {}
    if VERSION < 5:
        for part, more in (("t5gemma", ()), ("t5gemma2", ("<start_of_image>", "<end_of_image>", "<image_soft_token>"))):
            if not (work / "parts" / part).is_dir():
                (work / "parts" / part).mkdir(parents=True)
                gemma(work / "parts" / part, *more)
    for name, layout in ALL.items():
        if layout.made_by == min(VERSION, 5) and (name in chosen or not (work / name).is_dir()):
            make(name, layout, work)
            records.pop(name, None)
        if name in PARTS:
            continue
        found = records.setdefault(name, {"junk": list(layout.junk), "source": layout.source, "target": layout.target,
                                          "vocabulary": layout.vocabulary, "ids_by": layout.ids,
                                          "tokens_by": layout.tokens})  # fmt: skip
        if not (work / name).is_dir():
            continue
        if layout.ids == min(VERSION, 5) and "ids" not in found:
            found |= record_ids(work / name, layout, work)
        if layout.tokens == min(VERSION, 5) and "ids" in found and "tokens" not in found:
            found |= record_tokens(work / name, layout, work, found)
            if problems := problems_of(found):
                print(f"{name}: {', '.join(problems)}", found["tokens"])
        if layout.ids == min(VERSION, 5) and "tokens" in found and "outputs" not in found:
            found["outputs"] = record_outputs(work / name, layout, work, found["tokens"])
    store.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    missing = [name for name, found in records.items() if "outputs" not in found]
    print(f"{len(records) - len(missing)} recorded, {len(missing)} missing: {', '.join(missing[:5])} ...")
    if len(records) == len(ALL) - len(PARTS) and not missing:
        pack(work, records)


if __name__ == "__main__":
    main()

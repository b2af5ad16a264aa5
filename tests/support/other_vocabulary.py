"""The same model with other ids and other pieces: only the texts that it reads and writes are the same."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative_decoding.loading import manifest
from speculative_decoding.loading.tokenizer_base import FastTokenizer, read_backend
from speculative_decoding.models.base import EncoderDecoder
from tests.support.tiny import save_hugging_face

SPACE, OTHER_SPACE = "▁", "Ġ"


def permuted_model(model: EncoderDecoder, new_ids: list[int]) -> EncoderDecoder:
    """Return a T5 with tied embeddings in which token i has the id `new_ids[i]`. Further ids do not change."""
    config: Any = model.config
    ids = {name: new_ids[getattr(config, name)] for name in ("pad_token_id", "decoder_start_token_id")}
    ends = tuple(new_ids[token] for token in config.eos_token_ids)
    other = type(model)(replace(config, **ids, eos_token_ids=ends))  # type: ignore[call-arg]
    parameters: Any = dict(tree_flatten(model.parameters()))
    old_of = {new: old for old, new in enumerate(new_ids)}
    rows = mx.array([old_of.get(token, token) for token in range(config.vocab_size)])
    parameters["embedding.weight"] = parameters["embedding.weight"][rows]
    other.load_weights([*parameters.items()])
    other.finalize()
    return other


def permuted_tokenizer(folder: Path, seed: int = 1) -> tuple[bytes, list[int]]:
    """Return the tokenizer.json of a folder with permuted ids and renamed pieces, and the new ids of all tokens."""
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = content["model"]
    size = len(model["vocab"])
    new_ids = [*range(size)]
    random.Random(seed).shuffle(new_ids)
    special = {each["content"] for each in content["added_tokens"]}

    def renamed(piece: str) -> str:
        return f"{piece[:-1]}_of_another>" if piece in special else piece.replace(SPACE, OTHER_SPACE)

    vocabulary: list[Any] = [None] * size
    for old, (piece, score) in enumerate(model["vocab"]):
        vocabulary[new_ids[old]] = [renamed(piece), score]
    model["vocab"], model["unk_id"] = vocabulary, new_ids[model["unk_id"]]
    for each in content["added_tokens"]:
        each["id"], each["content"] = new_ids[each["id"]], renamed(each["content"])
    content["pre_tokenizer"]["pretokenizers"][-1]["replacement"] = OTHER_SPACE
    content["decoder"]["replacement"] = OTHER_SPACE
    text = json.dumps(content["post_processor"]).replace("</s>", renamed("</s>"))
    content["post_processor"] = json.loads(text)
    (end,) = content["post_processor"]["special_tokens"].values()
    end["ids"] = [new_ids[token] for token in end["ids"]]
    return json.dumps(content).encode(), new_ids


def with_other_vocabulary(model: EncoderDecoder, folder: Path) -> tuple[EncoderDecoder, FastTokenizer]:
    """Return a model of `folder` with another vocabulary, and its tokenizer."""
    data, new_ids = permuted_tokenizer(folder)
    other = permuted_model(model, new_ids)
    tokenizer = FastTokenizer(read_backend(data, folder))
    other.pieces = tokenizer.vocabulary.pieces
    return other, tokenizer


def save_with_other_vocabulary(model: EncoderDecoder, folder: Path, output: Path) -> Path:
    """Write such a model as a folder. Its manifest makes `tokenizers` read the tokenizer, as after a conversion."""
    data, new_ids = permuted_tokenizer(folder)
    other = permuted_model(model, new_ids)
    config = json.loads((folder / "config.json").read_text())
    config |= {name: getattr(other.config, name) for name in ("pad_token_id", "decoder_start_token_id")}
    save_hugging_face(other, output, config | {"eos_token_id": other.config.eos_token_ids[0]})
    (output / "tokenizer.json").write_bytes(data)
    manifest.write(output, tokenizer=FastTokenizer(read_backend(data, folder)).record())
    return output

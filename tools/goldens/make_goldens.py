"""Write a tiny random checkpoint for each T5 family, with Hugging Face's outputs for it.

    pip install torch==2.13.0 transformers==4.46.3 safetensors numpy
    python make_goldens.py [FAMILY ...]

Each family has a folder in tests/parity/goldens. The input is its config.json, which is a checkpoint's config from the
Hub with smaller sizes. model.safetensors has the same keys as on the Hub. golden.npz contains (ids: int32, other
arrays: float32):

    input_ids, attention_mask         (B, S)     right-padded with the family's pad id; every row ends with EOS
    decoder_input_ids                 (B, L)     the start token, then random tokens
    encoder_last_hidden_state         (B, S, D)
    logits                            (B, L, V)
    greedy_ids, greedy_lengths        (B, N), (B,)  new tokens including EOS; each row was decoded separately, unpadded

transformers 5 is not a valid reference for these models: it uses num_layers as the size of the decoder's cache, and
scales umT5's logits although the head is not tied. At least up to version 5.15, it also embeds MADLAD's source with the
head's table.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel

HERE = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"
NEW_TOKENS = 24
TARGET_LENGTH = 12
LOGIT_SCALE = 2.0  # standard deviation
TABLE_SCALE = 0.3  # standard deviation
FIRST_PLAIN_TOKEN = 3  # above every family's pad, start and EOS

SHARED = "shared.weight"
ENCODER_TABLE = "encoder.embed_tokens.weight"
DECODER_TABLE = "decoder.embed_tokens.weight"
HEAD = "lm_head.weight"
CROSS_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


@dataclass(frozen=True)
class Family:
    """A golden folder with its config.json. The seed is chosen so that `check_health` passes."""

    config: dict[str, Any]
    seed: int
    tables: tuple[str, ...] = (SHARED,)  # names of the input embedding in the file
    strays: tuple[str, ...] = ()  # biases that the file contains but the model ignores
    lengths: tuple[int, ...] = (24, 17, 11)  # of the sources
    # The config to use with transformers 4, if it differs.
    oracle: dict[str, Any] = field(default_factory=dict)

    @property
    def meaning(self) -> dict[str, Any]:
        return self.oracle or self.config


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((HERE / name / "config.json").read_text("utf-8"))
    return config


FAMILIES: Mapping[str, Family] = {
    # As published in 2020, before gated models: without fields for the feed-forward, the head, or the decoder's depth.
    "t5": Family(config_of("t5"), seed=55),
    "t5-11b": Family(config_of("t5-11b"), seed=291, strays=(CROSS_BIAS,)),
    "t5-v1_1": Family(config_of("t5-v1_1"), seed=29),
    # With so few buckets that a source of 30 tokens and an output of 24 tokens both reach the last bucket.
    "flan-t5": Family(
        config_of("flan-t5"), seed=1, tables=(SHARED, ENCODER_TABLE, DECODER_TABLE), lengths=(30, 21, 10)
    ),
    "mt5": Family(config_of("mt5"), seed=13),
    "umt5": Family(config_of("umt5"), seed=38, lengths=(30, 21, 10)),
    "byt5": Family(config_of("byt5"), seed=5, lengths=(28, 19, 12)),
    "madlad": Family(config_of("madlad"), seed=24, tables=(DECODER_TABLE,), lengths=(30, 21, 10)),
    # Tied, because there is no tie flag. Even so, the file contains four copies of the table, like pytorch_model.bin on
    # the Hub.
    "codet5": Family(config_of("codet5"), seed=151, tables=(SHARED, ENCODER_TABLE, DECODER_TABLE, HEAD)),
    # umT5's architecture with a Llama tokenizer, so the id of EOS is 2.
    "pile-t5": Family(config_of("pile-t5"), seed=7),
    # t5-v1_1 as saved by transformers 5.23.0, which always sets the tie flag to true.
    "t5-v1_1-resaved-by-transformers-5": Family(
        config_of("t5-v1_1-resaved-by-transformers-5"), seed=29, oracle=config_of("t5-v1_1")
    ),
}


def is_tied(config: Mapping[str, Any]) -> bool:
    return config.get("tie_word_embeddings", True)


def draw(name: str, shape: tuple[int, ...], config: Mapping[str, Any], rng: np.random.Generator) -> torch.Tensor:
    """Return random weights that differ from those of any initializer.

    The tables are small and the layers' outputs large; otherwise, a tied head would predict its own input token. The
    rows of `wo` sum to zero; otherwise, the ReLU's positive mean would lead to the same prediction for every token. The
    embedding of EOS has a large norm; otherwise, EOS would rarely be predicted.
    """
    noise = rng.standard_normal(shape)
    if name in (SHARED, HEAD):
        weight = TABLE_SCALE * noise
        weight[config["eos_token_id"]] *= 1.5
    elif "relative_attention_bias" in name:
        weight = 1.5 * noise
    elif name.endswith("norm.weight"):
        weight = 1 + 0.3 * noise
        if name == "decoder.final_layer_norm.weight":
            weight *= LOGIT_SCALE / TABLE_SCALE / (1 if is_tied(config) else config["d_model"] ** 0.5)
    elif name.endswith(("Attention.q.weight", "Attention.k.weight")):
        weight = 1.3 * noise / (shape[1] ** 0.5 * config["d_kv"] ** 0.25)
    else:
        gain = 3.0 if name.endswith((".o.weight", ".wo.weight")) else 1.0
        if name.endswith(".wo.weight"):
            noise -= noise.mean(1, keepdims=True)
        weight = gain * noise / shape[1] ** 0.5
    return torch.from_numpy(weight.astype(np.float32))


def make_checkpoint(family: Family) -> dict[str, torch.Tensor]:
    """Return the tensors, named as in the Hub's file."""
    config, rng = family.meaning, np.random.default_rng(family.seed)
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**config))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    shapes |= {name: (config["relative_attention_num_buckets"], config["num_heads"]) for name in family.strays}
    for copy in {ENCODER_TABLE, DECODER_TABLE} | ({HEAD} if is_tied(config) else set()):
        shapes.pop(copy)
    tensors = {name: draw(name, shapes[name], config, rng) for name in sorted(shapes)}
    table = tensors.pop(SHARED)
    return tensors | {name: table.clone() for name in family.tables}


def load_oracle(folder: Path, family: Family) -> PreTrainedModel:
    """Load the folder with Hugging Face, and check that the model contains every tensor in the file."""
    model, info = AutoModelForSeq2SeqLM.from_pretrained(
        folder, config=AutoConfig.for_model(**family.meaning), output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    loaded = model.eval().state_dict()
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert name in family.strays or torch.equal(tensor, loaded[name]), name
    return model


def make_golden(model: PreTrainedModel, family: Family) -> dict[str, np.ndarray]:
    config, rng = family.meaning, np.random.default_rng(family.seed)
    pad, rows = config["pad_token_id"], len(family.lengths)
    input_ids = np.full((rows, max(family.lengths)), pad)
    for row, length in zip(input_ids, family.lengths, strict=True):
        row[: length - 1] = rng.integers(FIRST_PLAIN_TOKEN, config["vocab_size"], length - 1)
        row[length - 1] = config["eos_token_id"]
    attention_mask = np.arange(max(family.lengths)) < np.array(family.lengths)[:, None]
    decoder_input_ids = rng.integers(FIRST_PLAIN_TOKEN, config["vocab_size"], (rows, TARGET_LENGTH))
    decoder_input_ids[:, 0] = config["decoder_start_token_id"]

    source, mask, target = map(torch.tensor, (input_ids, attention_mask.astype(np.int64), decoder_input_ids))
    out = model(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    outputs = [greedy(model, source[i : i + 1, :length]) for i, length in enumerate(family.lengths)]
    greedy_ids, greedy_lengths = padded(outputs, pad)
    batched = model.generate(source, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=NEW_TOKENS)
    assert np.array_equal(batched[:, 1:].numpy(), greedy_ids), "padding or batching changed the output"

    ids = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "decoder_input_ids": decoder_input_ids,
        "greedy_ids": greedy_ids,
        "greedy_lengths": greedy_lengths,
    }
    return {name: array.astype(np.int32) for name, array in ids.items()} | {
        "encoder_last_hidden_state": out.encoder_last_hidden_state.numpy(),
        "logits": out.logits.numpy(),
    }


def padded(outputs: list[list[int]], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the padded token ids, (B, N), and the number of tokens in each row."""
    ids = np.full((len(outputs), max(map(len, outputs))), pad)
    for row, tokens in zip(ids, outputs, strict=True):
        row[: len(tokens)] = tokens
    return ids, np.array([len(tokens) for tokens in outputs])


def greedy(model: PreTrainedModel, source: torch.Tensor) -> list[int]:
    mask = torch.ones_like(source)
    tokens = model.generate(source, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=NEW_TOKENS)
    return tokens[0, 1:].tolist()


def top_two_gap(model: PreTrainedModel, family: Family, golden: Mapping[str, np.ndarray]) -> float:
    """Return the smallest top-2 gap of any greedy token. Asserts that a pass without a cache yields the same tokens."""
    gaps = []
    for i, (source_length, length) in enumerate(zip(family.lengths, golden["greedy_lengths"], strict=True)):
        tokens = torch.tensor(golden["greedy_ids"][i, :length], dtype=torch.long)
        start = torch.tensor([family.meaning["decoder_start_token_id"]])
        source = torch.tensor(golden["input_ids"][i : i + 1, :source_length], dtype=torch.long)
        logits = model(input_ids=source, decoder_input_ids=torch.cat([start, tokens[:-1]])[None]).logits[0]
        assert torch.equal(logits.argmax(-1), tokens), "the cache changed the output"
        top = logits.topk(2).values
        gaps.append((top[:, 0] - top[:, 1]).min().item())
    return min(gaps)


def check_health(family: Family, golden: Mapping[str, np.ndarray], gap: float) -> None:
    """Reject outputs that would hide bugs: near-ties, loops, equal rows, EOS in no row, in all rows or too early."""
    eos, pad = family.meaning["eos_token_id"], family.meaning["pad_token_id"]
    outputs = [row[:length] for row, length in zip(golden["greedy_ids"], golden["greedy_lengths"], strict=True)]
    assert gap > 0.02, f"top-2 gap {gap:.4f}"
    assert 1 < golden["logits"].std() < 4, f"logits have standard deviation {golden['logits'].std():.2f}"
    assert any(eos in row for row in outputs) and not all(eos in row for row in outputs), (
        "EOS in no row, or in all of them"
    )
    assert all(len(row) > 3 and pad not in row for row in outputs), "a row ends immediately or holds padding"
    assert all(len(set(row)) > len(row) // 4 for row in outputs), "a row repeats itself"
    assert len({tuple(row[:3]) for row in outputs}) == len(outputs), "rows start with the same tokens"


def check_every_weight_matters(
    model: PreTrainedModel,
    golden: Mapping[str, np.ndarray],
    noise: float = 0.1,
    least: float = 0.01,
    is_idle: Callable[[str], bool] = lambda name: False,
) -> None:
    """Add noise to each tensor in turn, and check that the logits change unless `is_idle` is true for its name."""
    arguments = ("input_ids", "attention_mask", "decoder_input_ids")
    inputs = {name: torch.tensor(golden[name], dtype=torch.long) for name in arguments}
    expected = torch.tensor(golden["logits"])
    for name, parameter in model.named_parameters():
        kept = parameter.clone()
        parameter += noise * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
        change = (model(**inputs).logits - expected).abs().max().item()
        assert change < 1e-4 if is_idle(name) else change > least, f"{name} changes the logits by {change}"
        parameter.copy_(kept)


def write(name: str) -> None:
    folder, family = HERE / name, FAMILIES[name]
    save_file(make_checkpoint(family), folder / "model.safetensors", metadata={"format": "pt"})
    model = load_oracle(folder, family)
    golden = make_golden(model, family)
    gap = top_two_gap(model, family, golden)
    check_health(family, golden, gap)
    check_every_weight_matters(model, golden)
    np.savez(folder / "golden.npz", **golden)
    size = sum(path.stat().st_size for path in folder.iterdir())
    lengths = golden["greedy_lengths"].tolist()
    print(f"{name:34} gap {gap:.4f}  logits' std {golden['logits'].std():.2f}  greedy {lengths}  {size / 1000:.0f} kB")


def write_all(write: Callable[[str], None], names: Iterable[str]) -> None:
    """Write the families named on the command line, or all of them."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with torch.no_grad():
        for name in sys.argv[1:] or names:
            write(name)


if __name__ == "__main__":
    write_all(write, FAMILIES)

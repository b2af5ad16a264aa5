"""Write a tiny random checkpoint for each BART family, with Hugging Face's outputs for it.

    pip install torch==2.13.0 transformers==5.23.0 safetensors numpy
    python make_bart_goldens.py [FAMILY ...]

Folders and arrays are as in make_goldens.py, but the input also includes a generation_config.json as on the Hub, and
golden.npz also contains

    configured_ids, configured_lengths  like greedy_ids, but with the processors of generation_config.json
                                        (forced tokens, banned tokens, repeated n-grams, minimum length; one beam)

and, for mbart (as mBART-50) and m2m_100 (as NLLB-200),

    languages                            (3,) language tokens
    translated_ids, translated_lengths   (3, 3, N) and (3, 3): like configured_ids, for source i with language i as its
                                         first token, into each language (`forced_bos_token_id`)

greedy_ids use no processors. Outputs have at most `NEW_TOKENS` tokens. In configured_ids, the last possible token is a
forced EOS, except for m2m_100.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from make_goldens import (
    HERE,
    TARGET_LENGTH,
    Family,
    check_every_weight_matters,
    config_of,
    padded,
    top_two_gap,
    write_all,
)
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel

NEW_TOKENS = 40
TABLE = "model.shared.weight"
BIAS = "final_logits_bias"
COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")

FAMILIES: Mapping[str, Family] = {
    # Like facebook/bart-large-cnn, but with fewer encoder layers than decoder layers, and with a logits bias.
    "bart": Family(config_of("bart"), seed=0, strays=COPIES),
    "mbart": Family(config_of("mbart"), seed=3),
    "pegasus": Family(config_of("pegasus"), seed=34),
    # Like facebook/nllb-200-distilled-600M.
    "m2m_100": Family(config_of("m2m_100"), seed=54, strays=COPIES),
    # Like Helsinki-NLP/opus-mt-en-de: the padding token has the last id, and outputs start with it.
    "marian": Family(config_of("marian"), seed=123),
}
LANGUAGES = {"mbart": (97, 98, 99), "m2m_100": (100, 101, 102)}
IDS = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")


def draw(name: str, shape: tuple[int, ...], config: Mapping[str, Any], rng: np.random.Generator) -> torch.Tensor:
    """Return random weights that differ from those of any initializer; see make_goldens.py."""
    noise = rng.standard_normal(shape)
    if name == TABLE:
        weight = 0.15 * noise
        weight[config["eos_token_id"]] *= 1.5
    elif name == BIAS:
        weight = 0.3 * noise
    elif name.endswith("embed_positions.weight"):
        weight = 0.7 * noise
    elif "layer_norm" in name or "layernorm" in name:
        weight = 1 + 0.3 * noise if name.endswith("weight") else 0.1 * noise
        if name in (f"model.decoder.{last}.{kind}" for last in last_norms(config) for kind in ("weight", "bias")):
            weight *= 4.0
    elif name.endswith("bias"):
        weight = 0.1 * noise
    else:
        gain = 2.5 if "out_proj" in name or "fc2" in name else 2.0 if "q_proj" in name or "k_proj" in name else 1.0
        weight = gain * noise / shape[1] ** 0.5
    return torch.from_numpy(weight.astype(np.float32))


def last_norms(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the decoder's last norm: the stack's final norm, or the last layer's final norm."""
    is_behind = config["model_type"] in ("bart", "marian")
    return (f"layers.{config['decoder_layers'] - 1}.final_layer_norm",) if is_behind else ("layer_norm",)


def make_checkpoint(family: Family) -> dict[str, torch.Tensor]:
    """Return the tensors, named as in the Hub's file. Tied tables appear once, or under every name."""
    config, rng = family.config, np.random.default_rng(family.seed)
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**config))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in COPIES}
    if config["model_type"] in ("pegasus", "marian"):  # the file does not contain the sinusoidal positions
        shapes = {name: shape for name, shape in shapes.items() if "embed_positions" not in name}
    tensors = {name: draw(name, shapes[name], config, rng) for name in sorted(shapes)}
    return tensors | {name: tensors[TABLE].clone() for name in family.strays}


def load_oracle(name: str, family: Family) -> PreTrainedModel:
    model, info = AutoModelForSeq2SeqLM.from_pretrained(
        HERE / name, output_loading_info=True, attn_implementation="eager"
    )
    computed = {name for name in info.pop("missing_keys") if not name.endswith("embed_positions.weight")}
    assert not any(info.values()) and not computed, (info, computed)
    loaded = model.eval().state_dict()
    for tensor, value in load_file(HERE / name / "model.safetensors").items():
        assert torch.equal(value, loaded[tensor]), tensor
    return model


def generated(
    model: PreTrainedModel, rows: list[torch.Tensor], settings: GenerationConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Decode each row separately. Returns the new token ids, padded, (B, N), and the number of tokens in each row."""
    model.generation_config = settings
    outputs = []
    for row in rows:
        tokens = model.generate(row[None], attention_mask=torch.ones_like(row[None]), max_new_tokens=NEW_TOKENS)
        outputs.append(tokens[0, 1:].tolist())
    return padded(outputs, settings.pad_token_id)


def make_golden(model: PreTrainedModel, name: str, family: Family) -> dict[str, np.ndarray]:
    config, rng = family.config, np.random.default_rng(family.seed)
    longest, special = max(family.lengths), {config["pad_token_id"], config["eos_token_id"]}
    plain = np.array([token for token in range(2, config["vocab_size"]) if token not in special])
    input_ids = np.full((len(family.lengths), longest), config["pad_token_id"])
    for row, length in zip(input_ids, family.lengths, strict=True):
        row[: length - 1], row[length - 1] = rng.choice(plain, length - 1), config["eos_token_id"]
    attention_mask = np.arange(longest) < np.array(family.lengths)[:, None]
    decoder_input_ids = rng.choice(plain, (len(family.lengths), TARGET_LENGTH))
    decoder_input_ids[:, 0] = config["decoder_start_token_id"]
    source, mask, target = map(torch.tensor, (input_ids, attention_mask.astype(np.int64), decoder_input_ids))
    out = model(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    rows = [row[:length] for row, length in zip(source, family.lengths, strict=True)]
    ids = {each: config[each] for each in IDS if each in config}
    greedy_ids, greedy_lengths = generated(model, rows, GenerationConfig(**ids))
    configured = GenerationConfig.from_pretrained(HERE / name)
    configured.update(num_beams=1, early_stopping=None, length_penalty=None)
    configured_ids, configured_lengths = generated(model, rows, configured)
    arrays = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "decoder_input_ids": decoder_input_ids,
        "greedy_ids": greedy_ids,
        "greedy_lengths": greedy_lengths,
        "configured_ids": configured_ids,
        "configured_lengths": configured_lengths,
    }
    if name in LANGUAGES:
        arrays |= translated(model, name, rows, configured)
    return {key: array.astype(np.int32) for key, array in arrays.items()} | {
        "encoder_last_hidden_state": out.encoder_last_hidden_state.numpy(),
        "logits": out.logits.numpy(),
    }


def translated(
    model: PreTrainedModel, name: str, rows: list[torch.Tensor], settings: GenerationConfig
) -> dict[str, np.ndarray]:
    languages = LANGUAGES[name]
    sources = [torch.cat([torch.tensor([first]), row[1:]]) for first, row in zip(languages, rows, strict=True)]
    found = []
    for language in languages:
        settings.update(forced_bos_token_id=language)
        found.append(generated(model, sources, settings))
    ids = np.full((len(languages), len(languages), max(ids.shape[1] for ids, _ in found)), settings.pad_token_id)
    for i, (each, _) in enumerate(found):
        ids[:, i, : each.shape[1]] = each
    lengths = np.stack([lengths for _, lengths in found], axis=1)
    return {"languages": np.array(languages), "translated_ids": ids, "translated_lengths": lengths}


def adds_to_all_scores(name: str) -> bool:
    """Return whether a tensor adds the same value to all scores of a query, which softmax ignores."""
    return name.endswith("k_proj.bias")


def check_health(family: Family, golden: Mapping[str, np.ndarray], gap: float) -> None:
    """A weaker version of the check in make_goldens.py, because outputs are longer and need not end."""
    eos, pad = family.config["eos_token_id"], family.config["pad_token_id"]
    outputs = [row[:length] for row, length in zip(golden["greedy_ids"], golden["greedy_lengths"], strict=True)]
    assert gap > 0.005, f"top-2 gap {gap:.4f}"
    assert not all(eos in row for row in outputs), "EOS in all rows"
    assert all(len(row) > 3 and pad not in row for row in outputs), "a row ends immediately or holds padding"
    assert all(len(set(row)) > 2 for row in outputs), "a row repeats itself"
    assert len({tuple(row[:3]) for row in outputs}) == len(outputs), "rows start with the same tokens"


def write(name: str) -> None:
    folder, family = HERE / name, FAMILIES[name]
    save_file(make_checkpoint(family), folder / "model.safetensors", metadata={"format": "pt"})
    model = load_oracle(name, family)
    golden = make_golden(model, name, family)
    gap = top_two_gap(model, family, golden)
    check_health(family, golden, gap)
    check_every_weight_matters(model, golden, is_idle=adds_to_all_scores)
    differing = [
        not np.array_equal(a[:8], b[:8]) for a, b in zip(golden["greedy_ids"], golden["configured_ids"], strict=True)
    ]
    np.savez(folder / "golden.npz", **golden)
    size = sum(path.stat().st_size for path in folder.iterdir())
    lengths, configured = golden["greedy_lengths"].tolist(), golden["configured_lengths"].tolist()
    print(f"{name:10} gap {gap:.4f}  logits' std {golden['logits'].std():.2f}  greedy {lengths}  {configured}", end="")
    print(f"  differ {differing}  {size / 1000:.0f} kB")


if __name__ == "__main__":
    write_all(write, FAMILIES)

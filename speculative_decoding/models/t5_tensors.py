"""Which of a checkpoint's tensors each parameter of T5 and its relatives is made of."""

from __future__ import annotations

from collections.abc import Set

from .config import HEAD, embedding_table
from .t5_config import T5Config


def parameter_sources(config: T5Config, names: Set[str]) -> dict[str, tuple[str, ...]]:
    """See `EncoderDecoder.parameter_sources`."""
    sources: dict[str, tuple[str, ...]] = {"embedding.weight": (embedding_table(names),)}
    if not config.tie_word_embeddings:
        sources["head.weight"] = (HEAD,)
    bias = "layer.0.SelfAttention.relative_attention_bias"
    for stack, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
        tables = depth if config.bias_per_layer else 1
        own = {"norm": ["final_layer_norm"], "position_biases": [f"block.{i}.{bias}" for i in range(tables)]}
        for path, joined in layer_sources(config, has_cross_attention=stack == "decoder").items():
            own |= {f"layers.{i}.{path}": [f"block.{i}.layer.{name}" for name in joined] for i in range(depth)}
        for path, joined in own.items():
            sources[f"{stack}.{path}.weight"] = tuple(f"{stack}.{name}.weight" for name in joined)
    return sources


def layer_sources(config: T5Config, *, has_cross_attention: bool) -> dict[str, list[str]]:
    """Parameter path within a layer -> Hugging Face names within that layer, all without ".weight"."""
    sources = {
        "self_norm": ["0.layer_norm"],
        "self_attention.qkv": [f"0.SelfAttention.{part}" for part in "qkv"],
        "self_attention.o": ["0.SelfAttention.o"],
    }
    if has_cross_attention:
        sources |= {
            "cross_norm": ["1.layer_norm"],
            "cross_attention.q": ["1.EncDecAttention.q"],
            "cross_attention.kv": [f"1.EncDecAttention.{part}" for part in "kv"],
            "cross_attention.o": ["1.EncDecAttention.o"],
        }
    last = 2 if has_cross_attention else 1
    parts = ("wi_0", "wi_1") if config.is_gated else ("wi",)
    return sources | {
        "ff_norm": [f"{last}.layer_norm"],
        "ff.wi": [f"{last}.DenseReluDense.{part}" for part in parts],
        "ff.wo": [f"{last}.DenseReluDense.wo"],
    }

"""Which of a checkpoint's tensors each parameter of BART and its relatives is made of."""

from __future__ import annotations

from collections.abc import Iterator, Set

from .bart_config import LOGITS_BIAS, BartConfig, Family, prefix_of
from .config import HEAD, embedding_table


def parameter_sources(config: BartConfig, names: Set[str]) -> dict[str, tuple[str, ...]]:
    """See `EncoderDecoder.parameter_sources`."""
    prefix = prefix_of(names)
    sources: dict[str, tuple[str, ...]] = {"embedding.weight": (embedding_table(names, prefix),)}
    if not config.tie_word_embeddings:
        sources["head.weight"] = (HEAD,)
    if config.has_logits_bias:
        sources["logits_bias"] = (LOGITS_BIAS,)
    for stack, depth in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        own = dict(stack_sources(config.family))
        for path, joined in layer_sources(has_cross_attention=stack == "decoder"):
            own |= {f"layers.{i}.{path}": [f"layers.{i}.{name}" for name in joined] for i in range(depth)}
        for path, joined in own.items():
            for kind in ("weight", "bias"):
                sources[f"{stack}.{path}.{kind}"] = tuple(f"{prefix}{stack}.{name}.{kind}" for name in joined)
        if config.family.learned_positions:
            sources[f"{stack}.positions.weight"] = (f"{prefix}{stack}.embed_positions.weight",)
    return sources


def stack_sources(family: Family) -> Iterator[tuple[str, list[str]]]:
    """Path within a stack -> Hugging Face names there, all without ".weight" and ".bias"."""
    if family.embedding_norm:
        yield "embedding_norm", ["layernorm_embedding"]
    if family.norm_first:
        yield "norm", ["layer_norm"]


def layer_sources(*, has_cross_attention: bool) -> Iterator[tuple[str, list[str]]]:
    """Path within a layer -> Hugging Face names there, likewise."""
    yield "self_attention.qkv", [f"self_attn.{part}_proj" for part in "qkv"]
    yield "self_attention.o", ["self_attn.out_proj"]
    yield "self_norm", ["self_attn_layer_norm"]
    if has_cross_attention:
        yield "cross_attention.q", ["encoder_attn.q_proj"]
        yield "cross_attention.kv", [f"encoder_attn.{part}_proj" for part in "kv"]
        yield "cross_attention.o", ["encoder_attn.out_proj"]
        yield "cross_norm", ["encoder_attn_layer_norm"]
    yield "ff.wi", ["fc1"]
    yield "ff.wo", ["fc2"]
    yield "ff_norm", ["final_layer_norm"]

"""Which of a checkpoint's tensors each parameter of T5Gemma's stacks is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def layer_sources(block: str = "self", tensor: str = "self_attn") -> dict[str, Sequence[str]]:
    """Parameter path within a layer -> Hugging Face names within that layer, all without ".weight": an attention with
    its norms, and with self-attention the feed-forward.
    """
    sources: dict[str, Sequence[str]] = {
        f"{block}_norm": [f"pre_{tensor}_layernorm"],
        f"{block}_post_norm": [f"post_{tensor}_layernorm"],
        f"{block}_attention.q": [f"{tensor}.q_proj"],
        f"{block}_attention.kv": [f"{tensor}.k_proj", f"{tensor}.v_proj"],
        f"{block}_attention.o": [f"{tensor}.o_proj"],
    }
    if block == "self":
        sources |= {
            "ff_norm": ["pre_feedforward_layernorm"],
            "ff_post_norm": ["post_feedforward_layernorm"],
            "ff.wi": ["mlp.gate_proj", "mlp.up_proj"],
            "ff.wo": ["mlp.down_proj"],
        }
    return sources


def stack_sources(
    stack: str, prefix: str, depth: int, layer: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Of a whole stack; prefix: of its tensors."""
    sources: dict[str, tuple[str, ...]] = {f"{stack}.norm.weight": (f"{prefix}.norm.weight",)}
    for i in range(depth):
        for path, names in layer.items():
            sources[f"{stack}.layers.{i}.{path}.weight"] = tuple(f"{prefix}.layers.{i}.{n}.weight" for n in names)
    return sources

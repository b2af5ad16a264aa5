"""Whisper, a speech model (Radford et al. 2022, arXiv 2212.04356), and its distilled variants.

Two convolutions convert log-mel frames to half as many positions. The layers are BART's, with a norm before each block.
The key projections have no bias, and the output head is the decoder's embedding unless fine-tuning has untied them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints import Checkpoint, TensorInfo
from ..errors import CheckpointError
from ..sampling.values import Bool, Int
from .absolute_positions import LearnedPositions, sinusoids
from .architecture import Architecture
from .attention import window_softmax
from .backend import replaced_on_cpu
from .bart import DECODER_LAYER, ENCODER_LAYER, Stack, TransformerConfig
from .base import EncoderDecoder
from .cache import CrossAttentionCache
from .config import RawConfig, checked_fields, gelu, require
from .layers import DerivedWeight, Layer, Linear, matrix
from .source import AudioFrames, Source
from .tensors import Sources, TokenTables, named
from .whisper_tokens import MULTILINGUAL_SIZE, AudioConfig, config_by_layout, upper_half

KERNEL = 3  # frames that a convolution reads
DEFAULTS = {"pad_token_id": 50256, "eos_token_id": 50256, "decoder_start_token_id": 50257}


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(TransformerConfig):
    """The fields of config.json that the model reads, with their Hugging Face names and valid values."""

    num_mel_bins: Annotated[int, Int(1, 1 << 12)]
    max_source_positions: Annotated[int, Int(1, 1 << 20)] = 1500
    max_target_positions: Annotated[int, Int(1, 1 << 20)] = 448
    tie_word_embeddings: Annotated[bool, Bool()] = True

    @classmethod
    def from_dict(cls, raw: RawConfig, checkpoint: Checkpoint | None = None) -> WhisperConfig:
        """Read a parsed config.json. Raises `CheckpointError` for a missing or invalid field; ignores unknown ones."""
        config = cls(**checked_fields(cls, raw, DEFAULTS))
        config.check_heads()
        if config.vocab_size <= config.decoder_start_token_id + config.max_source_positions + 7:
            raise CheckpointError(
                f"config.json: 'vocab_size' has no room for timestamps (got {config.vocab_size}, expected more than "
                f"{config.decoder_start_token_id + config.max_source_positions + 7})"
            )
        if checkpoint is None:
            return config
        return replace(config, tie_word_embeddings=config.tie_word_embeddings and HEAD not in checkpoint)


class Convolution(DerivedWeight):
    """A convolution over time in one matmul: (B, T, inputs) -> (B, T / stride, outputs), zero-padded at both ends."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.weight = mx.zeros((outputs, inputs, KERNEL))
        self.bias = mx.zeros((outputs,))
        self.stride = stride

    def derive(self) -> mx.array:
        """Return the matrix for windows of `KERNEL` frames, (KERNEL * inputs, outputs)."""
        return mx.contiguous(self.weight.transpose(2, 1, 0).reshape(-1, self.weight.shape[0]))

    def __call__(self, x: mx.array) -> mx.array:
        batch, length, inputs = x.shape
        padded = mx.contiguous(mx.pad(x, [(0, 0), (1, 1), (0, 0)]))
        windows = mx.as_strided(
            padded,
            (batch, length // self.stride, KERNEL * inputs),
            ((length + 2) * inputs, self.stride * inputs, 1),
        )
        return mx.addmm(self.bias, windows, self.derived)


class Whisper(EncoderDecoder):
    config: WhisperConfig
    audio: AudioConfig
    source_softmax = staticmethod(window_softmax)

    def __init__(self, config: WhisperConfig, ranks: int = 1) -> None:
        super().__init__()
        self.config = config
        self.max_source_tokens = config.max_source_positions
        self.max_positions = config.max_target_positions
        width = config.d_model
        norm = partial(nn.LayerNorm, width)
        encoder = [Layer(config.encoder.shard(ranks), norm) for _ in range(config.encoder_layers)]
        decoder = [
            Layer(config.decoder.shard(ranks), norm, has_cross_attention=True) for _ in range(config.decoder_layers)
        ]
        for layer in decoder:
            layer.cross_attention.softmax = self.source_softmax
        self.convolutions = [Convolution(config.num_mel_bins, width, 1), Convolution(width, width, 2)]
        self.encoder = self._stack(encoder, config.max_source_positions)
        self.embedding = nn.Embedding(config.vocab_size, width)
        if not config.tie_word_embeddings:
            self.head = Linear(width, config.vocab_size, bias=False)
        self.decoder = self._stack(decoder, config.max_target_positions)
        self.audio = config_by_layout(
            config.vocab_size,
            config.max_source_positions,
            num_mel_bins=config.num_mel_bins,
            start=config.decoder_start_token_id,
            end=config.eos_token_ids[0],
            alignment_heads=upper_half(config.decoder_layers, config.decoder_attention_heads),
        )

    def _stack(self, layers: Sequence[nn.Module], positions: int) -> Stack:
        width = self.config.d_model
        table = LearnedPositions(positions, width, offset=0)
        return Stack(partial(nn.LayerNorm, width), layers, table, norm_first=True, embedding_norm=False)

    def encode(self, frames: mx.array, mask: mx.array | None = None) -> mx.array:
        """Log-mel frames (B, 2 * S, mel bands) -> encoder output (B, S, d_model).

        mask: (B, S), False on padding. Padding frames must be zero.
        """
        x = frames.astype(self.convolutions[0].bias.dtype)
        for convolution in self.convolutions:
            x = gelu(convolution(x))
        return self.encoder.encode(x, mask)

    def encode_rows(self, sources: Sequence[Source]) -> list[mx.array]:
        """Return each window's encoder output (1, S, d_model), which is computed only once; see `AudioFrames`.

        Windows are encoded one by one, because a single window already has enough positions for efficient matmuls.
        """
        windows = [source for source in sources if isinstance(source, AudioFrames)]
        return [window.encoder_output(self, self.config.num_mel_bins, self.encode_window) for window in windows]

    @replaced_on_cpu
    def encode_window(self, frames: mx.array) -> mx.array:
        """Log-mel frames of a window (T, mel bands) -> encoder output (1, S, d_model). Not differentiable on a CPU."""
        return self.encode(frames[None])

    @replaced_on_cpu
    def inference_projections(self, encoder_output: mx.array) -> Sequence[tuple[mx.array, mx.array]]:
        return self.cross_projections(encoder_output)

    def position_table(self, capacity: int) -> mx.array:
        return self.decoder.positions.table(capacity)

    def decoder_hidden(
        self,
        tokens: mx.array,
        positions: mx.array,
        position_table: mx.array,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        return self.decoder.decode(self.embed(tokens), positions, position_table, source_mask, layers)

    def final_states(self, hidden: mx.array) -> mx.array:
        return self.decoder.outputs(hidden)

    def cross_attention_weights(
        self, tokens: mx.array, encoder_output: mx.array, heads: Sequence[tuple[int, int]]
    ) -> tuple[mx.array, mx.array]:
        """Run the decoder on a complete output.

        Args:
            tokens: (1, L), beginning with the start token.
            encoder_output: (1, S, d_model).
            heads: (layer, head) pairs.

        Returns:
            The cross-attention scores before the softmax, (heads, L, S), and the input of the output head,
            (1, L, d_model).
        """
        projections = self.cross_projections(encoder_output)
        embedded, table = self.embed(tokens), self.position_table(tokens.shape[1])
        scores, x = self.decoder.cross_attention_scores(embedded, table, projections, heads, self.config.decoder.scale)
        return scores, self.final_states(x)[None]

    def head_weights(self, d_ff: int) -> dict[str, mx.array]:
        """Return the last layer's cross-attention and its strongest feed-forward units.

        The weights of the preceding norms are folded in; their biases are not. The draft head's state has about twice
        the magnitude of the layer's.
        """
        layer = self.decoder.layers[-1]
        attention = layer.cross_attention
        wi = matrix(layer.ff.wi) * layer.ff_norm.weight
        wo = matrix(layer.ff.wo)
        strongest = mx.argsort(-mx.linalg.norm(wi, axis=1) * mx.linalg.norm(wo, axis=0))[:d_ff]
        size = 0.65
        return {
            "q.weight": matrix(attention.q) * layer.cross_norm.weight * self.config.decoder.scale,
            "o.weight": matrix(attention.o) / size,
            "wi.weight": wi[strongest],
            "wo.weight": wo[:, strongest] / size,
        }

    @classmethod
    def parameter_sources(cls, config: WhisperConfig, names: Set[str]) -> Sources:
        suffixes = ("weight", "bias")
        sources = named(
            {"embedding": ["decoder.embed_tokens"]}
            | {f"{stack}.positions": [f"{stack}.embed_positions"] for stack in ("encoder", "decoder")},
            "",
            PREFIX,
        )
        if not config.tie_word_embeddings:
            sources["head.weight"] = (HEAD,)
        sources |= named({f"convolutions.{i}": [f"encoder.conv{i + 1}"] for i in range(2)}, "", PREFIX, suffixes)
        for stack, depth, layer in (
            ("encoder", config.encoder_layers, ENCODER_LAYER),
            ("decoder", config.decoder_layers, DECODER_LAYER),
        ):
            sources |= named({"norm": ["layer_norm"]}, f"{stack}.", f"{PREFIX}{stack}.", suffixes)
            for i in range(depth):
                sources |= named(layer, f"{stack}.layers.{i}.", f"{PREFIX}{stack}.layers.{i}.", suffixes)
        return sources


class NoiseFrames(AudioFrames):
    """A window of noise with any number of mel bins, used to measure and warm up models."""

    def of(self, num_mel_bins: int) -> mx.array:
        return mx.random.normal((len(self.frames), num_mel_bins), key=mx.random.key(0))


PREFIX = "model."
HEAD = "proj_out.weight"
EMBEDDING = f"{PREFIX}decoder.embed_tokens.weight"
TABLES = TokenTables(EMBEDDING, HEAD, stand_ins=(EMBEDDING, HEAD))
KEY_BIAS = ".k_proj.bias"


class WithKeyBiases(Checkpoint):
    """Adds zero biases to Whisper's key projections, which have none, so that one matmul computes keys and values."""

    def __init__(self, inner: Checkpoint) -> None:
        self._inner = inner
        biases = {
            name.replace(".v_proj.bias", KEY_BIAS): inner.info(name) for name in inner if name.endswith(".v_proj.bias")
        }
        super().__init__(inner, biases | {name: inner.info(name) for name in inner})

    def __getitem__(self, name: str) -> mx.array:
        if name in self._inner:
            return self._inner[name]
        info = self.info(name)
        return mx.zeros(info.shape, info.dtype)


class MLXWhisperCheckpoint(Checkpoint):
    """An mlx-whisper checkpoint with Hugging Face's tensor names.

    mlx-whisper uses OpenAI's names, transposes the convolutions, and does not store the encoder's sinusoids.
    """

    def __init__(self, inner: Checkpoint, raw: RawConfig) -> None:
        self._inner = inner
        self._names = {hugging_face_name(name): name for name in inner}
        self._shape = raw["max_source_positions"], raw["d_model"]
        infos = {name: inner.info(theirs) for name, theirs in self._names.items()}
        for name in CONVOLUTIONS & infos.keys():
            shape = infos[name].shape
            infos[name] = replace(infos[name], shape=(*shape[:1], *reversed(shape[1:])))
        infos[ENCODER_POSITIONS] = TensorInfo(self._shape, mx.float32)
        super().__init__(inner, infos)

    def __getitem__(self, name: str) -> mx.array:
        if name == ENCODER_POSITIONS:
            return mx.array(sinusoids(0, *self._shape, includes_longest=True))
        tensor = self._inner[self._names[name]]
        return tensor.swapaxes(1, 2) if name in CONVOLUTIONS else tensor


ENCODER_POSITIONS = "model.encoder.embed_positions.weight"
CONVOLUTIONS = {"model.encoder.conv1.weight", "model.encoder.conv2.weight"}
OPENAI_NAMES = {  # replaced in this order
    "token_embedding": "embed_tokens",
    "positional_embedding": "embed_positions.weight",
    "encoder.ln_post": "encoder.layer_norm",
    "decoder.ln.": "decoder.layer_norm.",
    ".blocks.": ".layers.",
    ".cross_attn_ln": ".encoder_attn_layer_norm",
    ".attn_ln": ".self_attn_layer_norm",
    ".mlp_ln": ".final_layer_norm",
    ".cross_attn.": ".encoder_attn.",
    ".attn.": ".self_attn.",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".out.": ".out_proj.",
    ".mlp1.": ".fc1.",
    ".mlp2.": ".fc2.",
}
OPENAI_SIZES = {
    "n_mels": "num_mel_bins",
    "n_vocab": "vocab_size",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_text_ctx": "max_target_positions",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
TOKENIZERS = {
    MULTILINGUAL_SIZE - 1: "openai/whisper-tiny.en",
    MULTILINGUAL_SIZE: "openai/whisper-tiny",
    MULTILINGUAL_SIZE + 1: "openai/whisper-large-v3",
}


def hugging_face_name(name: str) -> str:
    """Return a tensor's Hugging Face name, given OpenAI's name."""
    for theirs, ours in OPENAI_NAMES.items():
        name = name.replace(theirs, ours)
    return f"{PREFIX}{name}"


def hugging_face_config(raw: RawConfig) -> dict[str, Any]:
    """Return an mlx-whisper config.json with Hugging Face's field names. Raises `CheckpointError` for missing sizes."""
    sizes = {ours: require(theirs, Int(1, 1 << 24), raw.get(theirs)) for theirs, ours in OPENAI_SIZES.items()}
    widths = {f"{stack}_ffn_dim": 4 * sizes["d_model"] for stack in ("encoder", "decoder")}
    end = 50256 + (sizes["vocab_size"] >= MULTILINGUAL_SIZE)
    ids = {"eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": end + 1}
    return {"model_type": "whisper", **sizes, **widths, **{name: raw.get(name, each) for name, each in ids.items()}}


def adapted(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """Return config.json, and a checkpoint with every tensor under its name in `parameter_sources`."""
    if "encoder.ln_post.weight" in checkpoint:
        if (heads := "alignment_heads") in checkpoint:
            raw = {**raw, heads: checkpoint[heads].tolist()}
        checkpoint = MLXWhisperCheckpoint(checkpoint, raw)
    is_tied = raw.get("tie_word_embeddings") is not False
    return raw, WithKeyBiases(TABLES.without_duplicates(checkpoint, is_tied=is_tied))


ARCHITECTURE = Architecture(
    Whisper,
    WhisperConfig.from_dict,
    adapted,
    lambda _: TABLES,
    fits_float16=lambda _: True,  # the weights that OpenAI publishes are in float16
)

"""Write tiny random Whispers, with Hugging Face's outputs for them.

    pip install torch==2.13.0 transformers==4.56.2 safetensors numpy
    python make_whisper_goldens.py [NAME ...]

Each variant has a folder in tests/parity/goldens. Its config.json is the input. The vocabulary contains text tokens,
the end and start tokens, languages, 6 other tokens and 31 timestamps. model.safetensors has the same keys as on the
Hub. golden.npz contains

    input_features                (B, T, mel bands) float16  log-mel frames; Hugging Face takes them transposed
    attention_mask                (B, T / 2) int32           all ones
    decoder_input_ids             (B, L) int32               the start token, then random tokens
    encoder_last_hidden_state     (B, T / 2, D)
    logits                        (B, L, V)
    cross_attentions              (layers, B, H, L, T / 2)   after the softmax
    greedy_ids, greedy_lengths    (B, N), (B,) int32         new tokens including the end, without processors
"""

from collections.abc import Mapping

import numpy as np
import torch
from make_goldens import HERE, TARGET_LENGTH, config_of, padded, write_all
from safetensors.torch import load_file, save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

NEW_TOKENS = 24
ROWS = 2
TABLE = "model.decoder.embed_tokens.weight"
SEEDS = {"whisper": 1, "whisper-en": 4, "whisper-v3": 1, "whisper-distilled": 2}


def draw(name: str, shape: tuple[int, ...], end: int, rng: np.random.Generator) -> torch.Tensor:
    """Return random weights that differ from those of any initializer; see make_goldens.py."""
    noise = rng.standard_normal(shape)
    if name == TABLE:
        weight = 0.3 * noise
        weight[end] *= 1.5
    elif name.endswith("embed_positions.weight"):
        weight = 0.7 * noise
    elif "layer_norm" in name:
        weight = 1 + 0.3 * noise if name.endswith("weight") else 0.1 * noise
        if name.startswith("model.decoder.layer_norm"):
            weight *= 2.0
    elif name.endswith("bias"):
        weight = 0.1 * noise
    elif ".conv" in name:
        weight = 1.5 * noise / (shape[1] * shape[2]) ** 0.5
    else:
        gain = 2.5 if "out_proj" in name or "fc2" in name else 2.0 if "q_proj" in name or "k_proj" in name else 1.0
        weight = gain * noise / shape[1] ** 0.5
    return torch.from_numpy(weight.astype(np.float32))


def make_checkpoint(model: WhisperForConditionalGeneration, end: int, seed: int) -> dict[str, torch.Tensor]:
    """Return the tensors that the Hub's file contains. The encoder's positions remain sinusoids."""
    rng = np.random.default_rng(seed)
    tensors = {name: tensor for name, tensor in sorted(model.state_dict().items()) if name != "proj_out.weight"}
    kept = "model.encoder.embed_positions.weight"
    return {
        name: tensor if name == kept else draw(name, tuple(tensor.shape), end, rng) for name, tensor in tensors.items()
    }


def greedy(model: WhisperForConditionalGeneration, encoded: torch.Tensor) -> tuple[list[int], float]:
    """Return the new tokens for an encoder output (1, S, D), and the smallest gap between the best two logits."""
    config = model.config
    tokens, gap = [config.decoder_start_token_id], float("inf")
    while len(tokens) <= NEW_TOKENS and tokens[-1] != config.eos_token_id:
        logits = model(encoder_outputs=(encoded,), decoder_input_ids=torch.tensor([tokens]), use_cache=False).logits[
            0, -1
        ]
        top = logits.topk(2).values
        gap = min(gap, float(top[0] - top[1]))
        tokens.append(int(logits.argmax()))
    return tokens[1:], gap


def check_every_weight_matters(model: WhisperForConditionalGeneration, inputs: Mapping[str, torch.Tensor]) -> None:
    """Add noise to each tensor in turn, and check that the logits change."""
    expected = model(**inputs, use_cache=False).logits
    for name, parameter in model.named_parameters():
        kept = parameter.clone()
        parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
        change = (model(**inputs, use_cache=False).logits - expected).abs().max().item()
        assert change > 0.01, f"{name} changes the logits by {change}"
        parameter.copy_(kept)


def write(name: str) -> None:
    content, seed, folder = config_of(name), SEEDS[name], HERE / name
    end, rng = content["eos_token_id"], np.random.default_rng(seed)
    blank = WhisperForConditionalGeneration(WhisperConfig(**content))
    save_file(make_checkpoint(blank, end, seed), folder / "model.safetensors", metadata={"format": "pt"})
    model = WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    for tensor, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(value, model.state_dict()[tensor]), tensor

    positions = content["max_source_positions"]
    frames = (0.7 * rng.standard_normal((ROWS, 2 * positions, content["num_mel_bins"]))).astype(np.float16)
    decoder_ids = rng.integers(0, end, (ROWS, TARGET_LENGTH))
    decoder_ids[:, 0] = end + 1
    features = torch.from_numpy(frames.astype(np.float32)).transpose(1, 2)
    inputs = {"input_features": features, "decoder_input_ids": torch.from_numpy(decoder_ids)}
    out = model(**inputs, output_attentions=True, use_cache=False)
    check_every_weight_matters(model, inputs)
    encoded = out.encoder_last_hidden_state
    outputs, gaps = zip(*(greedy(model, encoded[i : i + 1]) for i in range(ROWS)), strict=True)
    greedy_ids, greedy_lengths = padded(list(outputs), end)
    assert min(gaps) > 0.02, f"top-2 gap {min(gaps):.4f}"
    assert all(len(row) > 3 and len(set(row)) > 2 for row in outputs) and outputs[0][:3] != outputs[1][:3], outputs
    assert not all(end in row for row in outputs), "all rows end"
    np.savez(
        folder / "golden.npz",
        input_features=frames,
        attention_mask=np.ones((ROWS, positions), np.int32),
        decoder_input_ids=decoder_ids.astype(np.int32),
        encoder_last_hidden_state=encoded.numpy(),
        logits=out.logits.numpy(),
        cross_attentions=torch.stack(out.cross_attentions).numpy(),
        greedy_ids=greedy_ids.astype(np.int32),
        greedy_lengths=greedy_lengths.astype(np.int32),
    )
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name:18} gap {min(gaps):.4f}  logits' std {out.logits.std():.2f}  greedy {outputs}  {size / 1000:.0f} kB")


if __name__ == "__main__":
    write_all(write, SEEDS)

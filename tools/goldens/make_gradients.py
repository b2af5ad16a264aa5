"""Write Hugging Face's gradients for the tiny models of make_goldens.py.

    pip install torch==2.13.0 transformers==4.46.3 safetensors numpy
    python make_gradients.py

For each of `FAMILIES`, gradients.npz contains

    FAMILY loss   the mean cross-entropy of the next tokens of `decoder_input_ids`, over all rows and positions
    FAMILY NAME   for every tensor of the checkpoint, the gradient of that loss, float32

To keep the file small, matrices with more than `NARROW` columns contribute only every (rows // 4)-th row.
"""

from pathlib import Path

import numpy as np
import torch
from make_goldens import FAMILIES as ALL
from make_goldens import load_oracle

HERE = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"
# ReLU, a tied head and shared position biases; gated GELU, a separate head and position biases per layer
FAMILIES = ("t5", "umt5")
NARROW = 8


def gradients(name: str) -> dict[str, np.ndarray]:
    golden = np.load(HERE / name / "golden.npz")
    model = load_oracle(HERE / name, ALL[name]).double()  # avoids rounding errors in the reference
    source, mask, target = (
        torch.tensor(golden[key].astype(np.int64)) for key in ("input_ids", "attention_mask", "decoder_input_ids")
    )
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    loss.backward()
    arrays = {f"{name} loss": np.array(loss.item(), np.float64)}
    for path, parameter in model.named_parameters():
        rows, *columns = parameter.shape
        step = rows // 4 if columns and columns[0] > NARROW else 1
        arrays[f"{name} {path}"] = parameter.grad.numpy()[::step].astype(np.float32)
    return arrays


def main() -> None:
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray] = {}
    for name in FAMILIES:
        arrays |= gradients(name)
    np.savez_compressed(HERE / "gradients.npz", **arrays)


if __name__ == "__main__":
    main()

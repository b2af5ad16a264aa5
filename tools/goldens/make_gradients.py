"""Write the gradients that Hugging Face computes for the tiny models of make_goldens.py.

    pip install torch==2.13.0 transformers==4.46.3 safetensors numpy
    python make_gradients.py

gradients.npz gets, for each of `FAMILIES`, "FAMILY loss": the mean cross-entropy, over all rows and positions of
golden.npz, of each next token of `decoder_input_ids`; and "FAMILY NAME" for every tensor of the checkpoint: the
gradient of that loss, float32; of matrices with more than `NARROW` columns every (rows // 4)-th row, so that the file
stays small.
"""

from pathlib import Path

import numpy as np
import torch
from make_goldens import FAMILIES as ALL
from make_goldens import load_oracle

HERE = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"
FAMILIES = ("t5", "umt5")  # relu, tied head, one table of biases; gated gelu, own head, a table in every layer
NARROW = 8


def gradients(name: str) -> dict[str, np.ndarray]:
    golden = np.load(HERE / name / "golden.npz")
    model = load_oracle(HERE / name, ALL[name]).double()  # so that the oracle itself rounds nothing
    source, mask, target = (
        torch.tensor(golden[key].astype(np.int64)) for key in ("input_ids", "attention_mask", "decoder_input_ids")
    )
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    loss.backward()
    found = {f"{name} loss": np.array(loss.item(), np.float64)}
    for path, parameter in model.named_parameters():
        rows, *columns = parameter.shape
        step = rows // 4 if columns and columns[0] > NARROW else 1
        found[f"{name} {path}"] = parameter.grad.numpy()[::step].astype(np.float32)
    return found


def main() -> None:
    torch.set_num_threads(1)
    np.savez_compressed(HERE / "gradients.npz", **{k: v for name in FAMILIES for k, v in gradients(name).items()})


if __name__ == "__main__":
    main()

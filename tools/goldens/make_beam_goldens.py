"""Record results of Hugging Face's beam search in float32.

beams.jsonl.gz contains the bundled target's results for the bundled prompts. beams_of_families.json contains the tiny
golden models' results, both with each model's generation_config.json and with other options.

Requires torch and transformers 4.46. `python tools/goldens/make_beam_goldens.py [COUNT [FILE]]` decodes the first COUNT
prompts (default: 10) of each task in groups of ten. If the file exists, it is continued.
"""

import gzip
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "models" / "t5-web-docs"
HERE = ROOT / "tests" / "parity" / "goldens"
FILE = HERE / "beams.jsonl.gz"
FAMILIES_FILE = HERE / "beams_of_families.json"
FAMILIES = ("t5", "flan-t5", "bart", "mbart", "pegasus", "m2m_100", "marian")
MORE: list[dict[str, Any]] = [  # options that override the folder's generation_config.json
    {},
    {"num_beams": 3, "repetition_penalty": 1.5, "length_penalty": -0.5},
    {"num_beams": 3, "no_repeat_ngram_size": 3, "min_new_tokens": 6, "early_stopping": "never"},
]
# Longer beams of the random m2m_100 would contain padding, for which Hugging Face numbers positions differently.
FAMILY_TOKENS = 10
TASKS = ("translation", "grammar", "describe")
GRID = list(product((2, 4, 8), (0.6, 1.0, 2.0), (False, True, "never")))  # beams, length_penalty, early_stopping
MAX_TOKENS = 64
TOGETHER = 10  # prompts


def bundled_target() -> T5ForConditionalGeneration:
    """Return the bundled target, which is stored in bfloat16 and computes in float32."""
    stored = np.load(FOLDER / "weights.npz")
    tensors = {name: torch.from_numpy(stored[name].view(np.int16).copy()).view(torch.bfloat16) for name in stored}
    model = T5ForConditionalGeneration(T5Config.from_pretrained(FOLDER)).eval()
    missing, unexpected = model.load_state_dict({name: each.float() for name, each in tensors.items()}, strict=False)
    tied = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    assert not unexpected and set(missing) <= tied, (missing, unexpected)
    return model


def found(model: T5ForConditionalGeneration, tokenizer: Any, prompts: list[str]) -> list[dict[str, Any]]:
    """Return for each prompt all sequences, and the indices and scores of each setting's results, best first."""
    batch = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    records: list[dict[str, Any]] = [{"prompt": prompt, "sequences": [], "found": {}} for prompt in prompts]
    for beams, penalty, stopping in GRID:
        with torch.no_grad():
            output = model.generate(
                **batch,
                num_beams=beams,
                num_return_sequences=beams,
                length_penalty=penalty,
                early_stopping=stopping,
                max_new_tokens=MAX_TOKENS,
                output_scores=True,
                return_dict_in_generate=True,
            )
        end = model.config.eos_token_id
        for i, (ids, score) in enumerate(zip(output.sequences.tolist(), output.sequences_scores.tolist(), strict=True)):
            record, tokens = records[i // beams], ids[1:]
            tokens = tokens[: tokens.index(end) + 1] if end in tokens else tokens[:MAX_TOKENS]
            if tokens not in record["sequences"]:
                record["sequences"].append(tokens)
            mine = record["found"].setdefault(f"{beams} {penalty} {stopping}", [[], []])
            mine[0].append(record["sequences"].index(tokens))
            mine[1].append(round(score, 6))
    return records


def of_families() -> dict[str, list[dict[str, Any]]]:
    """Return the sequences and scores for each family, setting and source. Sources are decoded one at a time."""
    made: dict[str, list[dict[str, Any]]] = {}
    for name in FAMILIES:
        model = AutoModelForSeq2SeqLM.from_pretrained(HERE / name).eval()
        golden = np.load(HERE / name / "golden.npz")
        start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
        for more in MORE:
            beams = more.get("num_beams") or max(2, model.generation_config.num_beams)
            own = {**more, "num_beams": beams, "num_return_sequences": beams, "max_new_tokens": FAMILY_TOKENS}
            found = []
            for source, mask in zip(golden["input_ids"], golden["attention_mask"].astype(bool), strict=True):
                ids = torch.tensor(source[mask][None], dtype=torch.long)
                with torch.no_grad():
                    output = model.generate(ids, **own, output_scores=True, return_dict_in_generate=True)
                rows = output.sequences.tolist()
                assert all(row[0] == start for row in rows)
                tokens = [np.trim_zeros(np.array(row[1:]) - pad, "b") + pad for row in rows]
                found.append([[each.tolist() for each in tokens], output.sequences_scores.tolist()])
            made.setdefault(name, []).append({"options": own, "found": found})
    return made


def opened(file: Path, mode: str) -> Any:
    return gzip.open(file, mode + "t") if file.suffix == ".gz" else file.open(mode, encoding="utf-8")


def main(count: int = 10, file: Path = FILE) -> None:
    torch.set_num_threads(1)
    FAMILIES_FILE.write_text(json.dumps(of_families(), separators=(",", ":")) + "\n", encoding="utf-8")
    model = bundled_target()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"), pad_token="<pad>")
    lines: list[str] = []
    if file.exists():
        with opened(file, "r") as known:
            lines = known.read().splitlines()
    if not lines:
        lines = [json.dumps({"transformers": transformers.__version__, "max_tokens": MAX_TOKENS})]
    prompts = [(ROOT / "data" / f"{task}.txt").read_text(encoding="utf-8").splitlines()[:count] for task in TASKS]
    chunks = [(task, i) for i in range(0, count, TOGETHER) for task in range(len(TASKS))]
    for task, start in chunks[(len(lines) - 1) // TOGETHER :]:
        records = found(model, tokenizer, prompts[task][start : start + TOGETHER])
        lines += [json.dumps({"task": TASKS[task], **record}, separators=(",", ":")) for record in records]
        with opened(file, "w") as written:
            written.write("\n".join(lines) + "\n")
        print(f"{TASKS[task]}: {start + len(records)}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *map(Path, sys.argv[2:3]))

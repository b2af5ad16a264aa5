"""Does speculation change anything? Decode prompts both ways and compare token by token.

`python -m speculative_decoding.verify` does it for the bundled prompts and ends with "600 of 600 identical".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from .cli import common, options
from .errors import InputError
from .generate import encode_prompt, generate
from .models.base import EncoderDecoder
from .sampling import SamplingParams

PROMPTS = Path(__file__).resolve().parent.parent / "data"


@dataclass(frozen=True)
class Divergence:
    """The first position at which two outputs differ, and how much the target preferred the regular one's token."""

    position: int
    regular: int | None
    speculative: int | None
    logit_gap: float | None = None


def first_divergence(
    model: EncoderDecoder, source: Sequence[int], regular: Sequence[int], speculative: Sequence[int]
) -> Divergence | None:
    """Compare two outputs of the same source; None if they are identical."""
    if list(regular) == list(speculative):
        return None
    shortest = min(len(regular), len(speculative))
    position = next((i for i in range(shortest) if regular[i] != speculative[i]), shortest)
    if position == shortest:
        return Divergence(position, *(ids[position] if len(ids) > position else None for ids in (regular, speculative)))
    cache = model.make_cache(model.encode(mx.array([list(source)])))
    prefix = [model.config.decoder_start_token_id, *regular[:position]]
    logits = model.decode(mx.array([prefix]), cache)[0, -1].astype(mx.float32)
    ours, theirs = regular[position], speculative[position]
    gap = logits[ours] - logits[theirs]
    return Divergence(position, ours, theirs, float(gap))


def read_prompt_files(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths or sorted(PROMPTS.glob("*.txt")):
        try:
            yield from path.read_text(encoding="utf-8").split("\n")  # other line breaks may be text
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"prompts {path}: not readable as UTF-8 text ({error})") from error


def verify(chosen: argparse.Namespace) -> int:
    """Exit status 0 if all outputs are identical, 1 if not."""
    prompts = [prompt for prompt in read_prompt_files(chosen.prompts) if prompt.strip()]
    pair = common.open_pair(chosen)
    if pair.draft is None or chosen.num_draft == 0:
        raise InputError(
            "--draft-model and a --num-draft above 0 are needed: there is nothing to compare without a draft"
        )
    pair.load_weights()
    target, tokenizer = pair.target.model, pair.target.tokenizer
    sampling = SamplingParams(temperature=chosen.temperature, seed=chosen.seed)
    if not sampling.is_greedy:
        raise InputError("--temperature must be 0: two samples of the same law need not be the same text")

    identical = 0
    for number, prompt in enumerate(prompts, start=1):
        limits = {"max_tokens": chosen.max_tokens, "allow_long_prompt": chosen.allow_long_prompt}
        regular = generate(target, tokenizer, prompt, **limits)
        speculative = generate(
            target,
            tokenizer,
            prompt,
            draft_model=pair.draft_model,
            num_draft=chosen.num_draft,
            delta=chosen.delta,
            **limits,
        )
        source = encode_prompt(target, tokenizer, prompt, chosen.allow_long_prompt)
        difference = first_divergence(target, source, regular.tokens, speculative.tokens)
        identical += difference is None
        if difference is not None:
            print(f"prompt {number}: {difference}")
        if number % 50 == 0:
            common.say(f"{number} of {len(prompts)} done")
    print(f"{identical} of {len(prompts)} identical")
    return 0 if identical == len(prompts) else 1


def main(argv: Sequence[str] | None = None) -> int:
    chosen = options.verify_parser().parse_args(argv)
    return common.run("verify", lambda: verify(chosen))


if __name__ == "__main__":
    sys.exit(main())

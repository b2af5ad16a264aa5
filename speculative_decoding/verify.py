"""Does speculation change anything? Decode prompts both ways and compare token by token.

`python -m speculative_decoding.verify` does it for the bundled prompts and ends with "600 of 600 identical".
`--drafter`, `--num-draft` and `--seed` take several values here, and every combination is tried.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx

from .acceptance import Coupled, Greedy, choose_rule
from .cli import common, drafting
from .cli.tool_options import verify_parser
from .draft_length import DraftLength
from .errors import InputError
from .models.base import EncoderDecoder
from .request import choose_length, encode_prompt, output_ids
from .sampling import SamplingParams
from .session import Session
from .tokenizer import Tokenizer

PROMPTS = Path(__file__).resolve().parent.parent / "data"


@dataclass(frozen=True)
class Divergence:
    """The first position at which two outputs differ, and how much the target preferred the regular one's token: in
    the logits, or whatever else decides. A gap of about 0 is a near-tie that another order of additions may flip.
    """

    position: int
    regular: int | None
    speculative: int | None
    logit_gap: float | None = None

    def text(self, tokenizer: Tokenizer) -> str:
        def name(token: int | None) -> str:
            return "the end" if token is None else f"{token} {tokenizer.vocabulary.pieces.get(token)!r}"

        gap = "" if self.logit_gap is None else f"; logit gap {self.logit_gap:.4g}"
        return (
            f"first divergence at token {self.position}: {name(self.regular)} without the draft, "
            f"{name(self.speculative)} with it{gap}"
        )


def first_divergence(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str,
    regular: Sequence[int],
    speculative: Sequence[int],
    request: Mapping[str, Any],
) -> Divergence | None:
    """Compare two outputs of a prompt; None if they are identical. `request`: the options of `generate` for both."""
    if list(regular) == list(speculative):
        return None
    shortest = min(len(regular), len(speculative))
    position = next((i for i in range(shortest) if regular[i] != speculative[i]), shortest)
    if position == shortest:
        return Divergence(position, *(ids[position] if len(ids) > position else None for ids in (regular, speculative)))
    sampling = request.get("sampling") or SamplingParams()
    rule = choose_rule(sampling, request.get("acceptance", "rejection"))
    assert isinstance(rule, Greedy | Coupled)
    source = encode_prompt(model, tokenizer, prompt, allow_long=True)
    cache = model.make_cache(model.encode(mx.array([source])))
    given = output_ids(model, tokenizer, request.get("prefix", ""), "prefix")
    prefix = mx.array([[model.config.decoder_start_token_id, *given, *regular[:position]]])
    logits = model.decode(prefix, cache)[:, -1:]
    scores = rule.scores(logits, sampling, prefix, prefix.shape[1])[0, 0].astype(mx.float32)
    ours, theirs = regular[position], speculative[position]
    return Divergence(position, ours, theirs, float(scores[ours] - scores[theirs]))


def is_comparable(request: Mapping[str, Any]) -> bool:
    """Only where no chance is left between the two must their tokens be the same."""
    return request["sampling"].temperature == 0 or request["acceptance"] == "coupled"


def require_comparable(request: Mapping[str, Any], who: str) -> None:
    if not is_comparable(request):
        raise InputError(
            f"{who} needs --temperature 0 or --acceptance coupled, not --temperature "
            f"{request['sampling'].temperature:g}: two samples of the same law need not be the same text"
        )


def read_prompt_files(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths or sorted(PROMPTS.glob("*.txt")):
        try:
            yield from path.read_text(encoding="utf-8").split("\n")  # other line breaks may be text
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"prompts {path}: not readable as UTF-8 text ({error})") from error


@dataclass(frozen=True)
class Way:
    """A way of decoding that is compared with regular decoding."""

    session: Session
    length: DraftLength
    seed: int
    name: str

    def tokens(self, prompt: str, request: Mapping[str, Any], **options: Any) -> list[int]:
        sampling = replace(request["sampling"], seed=self.seed)
        return self.session.generate(
            prompt, **{**request, "sampling": sampling, "num_draft": self.length, **options}
        ).tokens


def ways(chosen: argparse.Namespace, folders: common.Folders, sessions: ExitStack) -> list[Way]:
    """All combinations of --drafter, --num-draft and --seed, with one session for each drafter."""
    each_drafter = []
    for drafter in getattr(chosen, "drafter", [None]):
        one = argparse.Namespace(**{name: value for name, value in vars(chosen).items() if name != "drafter"})
        if drafter is not None:
            one.drafter = drafter
        one.num_draft = max((count for count in chosen.num_draft if isinstance(count, int)), default=1)
        drafting.settle(one, folders)
        if one.drafter == "none" and chosen.num_draft != [0]:
            raise InputError(
                "verify: there is nothing to compare without a draft; choose a --drafter, or name a --draft-model"
            )
        each_drafter.append(one)
    pair = common.open_pair(folders, chosen, use_draft=any(map(drafting.needs_draft, each_drafter)))
    found = []
    for one in each_drafter:
        session = sessions.enter_context(drafting.session(one, pair))
        lengths = {count: choose_length(count, session.model, session.draft_model) for count in chosen.num_draft}
        found += [
            Way(session, length, seed, f"drafter {one.drafter}, num-draft {count}, seed {seed}")
            for seed, (count, length) in product(chosen.seed, lengths.items())
        ]
    return found


def verify(chosen: argparse.Namespace) -> int:
    """Exit status 0 if all outputs are identical, 1 if not."""
    request = common.decoding_options(chosen)
    require_comparable(request, "verify")
    prompts = [prompt for prompt in read_prompt_files(chosen.prompts) if prompt.strip()]
    folders = common.choose(chosen)
    with ExitStack() as sessions:
        tried = ways(chosen, folders, sessions)
        identical = tokens = 0
        for number, prompt in enumerate(prompts, start=1):
            regular: dict[tuple[int, ...], list[int]] = {}
            for way in tried:
                # Without --strict regular decoding knows nothing of num_draft: once for each seed is enough.
                known = (way.seed, way.length.most) if chosen.strict else (way.seed,)
                if known not in regular:
                    regular[known] = way.tokens(prompt, request, drafter="none")
                found = way.tokens(prompt, request)
                tokens += len(found)
                at_seed = {**request, "sampling": replace(request["sampling"], seed=way.seed)}
                model, tokenizer = way.session
                difference = first_divergence(model, tokenizer, prompt, regular[known], found, at_seed)
                identical += difference is None
                if difference is not None:
                    print(f"prompt {number}, {way.name}: {difference.text(tokenizer)}", flush=True)
            if number % 50 == 0:
                common.say(f"{number} of {len(prompts)} prompts done")
    total = len(prompts) * len(tried)
    print(f"{identical} of {total} identical ({tokens} tokens)")
    return 0 if identical == total else 1


def main(argv: Sequence[str] | None = None) -> int:
    chosen = verify_parser().parse_args(argv)
    return common.run("verify", lambda: verify(chosen))


if __name__ == "__main__":
    sys.exit(main())

"""Does speculation change anything? Decode prompts both ways and compare token by token.

`python -m speculative_decoding.verify` does it for the bundled prompts and ends with "600 of 600 identical".
`--drafter`, `--num-draft`, `--seed` and `--slots` take several values here, and every combination is tried; with slots,
rows of batches are compared with regular decoding of each prompt alone.
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

from .cli import common, drafting
from .cli.tool_options import verify_parser
from .decoding.acceptance import Coupled, Greedy, choose_rule
from .decoding.request import choose_length, encode_prompt, output_ids
from .draft_length.schedules import DraftLength
from .errors import InputError
from .loading.tokenizer import Tokenizer
from .models.base import EncoderDecoder
from .sampling import SamplingParams
from .session import Session

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
    """A way of decoding that is compared with regular decoding. slots: of a batch; None: one prompt at a time."""

    session: Session
    length: DraftLength
    seed: int
    slots: int | None
    name: str

    def options(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {**request, "sampling": replace(request["sampling"], seed=self.seed), "num_draft": self.length}

    def outputs(self, prompts: Sequence[str], request: Mapping[str, Any]) -> Iterator[tuple[int, list[int]]]:
        """(a prompt's index, its tokens), as they are finished."""
        options = self.options(request)
        if self.slots is None:
            for index, prompt in enumerate(prompts):
                yield index, self.session.generate(prompt, **options).tokens
            return
        for each in self.session.batch(prompts, slots=self.slots, **options):
            if each.result is None:
                raise InputError(f"prompt {each.index + 1}: {each.error}")
            yield each.index, each.result.tokens


def ways(chosen: argparse.Namespace, folders: common.Folders, sessions: ExitStack) -> list[Way]:
    """All combinations of --drafter, --num-draft, --seed and --slots, with one session for each drafter."""
    each_drafter = []
    for drafter in getattr(chosen, "drafter", [None]):
        one = argparse.Namespace(**{name: value for name, value in vars(chosen).items() if name != "drafter"})
        if drafter is not None:
            one.drafter = drafter
        one.num_draft = max((count for count in chosen.num_draft if isinstance(count, int)), default=1)
        drafting.settle(one, folders)
        if one.drafter == "none" and chosen.num_draft != [0] and chosen.slots == [None]:
            raise InputError(
                "verify: there is nothing to compare without a draft; choose a --drafter, or name a --draft-model"
            )
        each_drafter.append(one)
    pair = common.open_pair(folders, chosen, use_draft=any(map(drafting.needs_draft, each_drafter)))
    found = []
    for one in each_drafter:
        session = sessions.enter_context(drafting.session(one, pair))
        for count, slots in product(chosen.num_draft, chosen.slots):
            length = choose_length(count, session.model, session.draft_model, slots or 1)
            at_once = "" if slots is None else f", slots {slots}"
            found += [
                Way(session, length, seed, slots, f"drafter {one.drafter}, num-draft {count}, seed {seed}{at_once}")
                for seed in chosen.seed
            ]
    return found


def verify(chosen: argparse.Namespace) -> int:
    """Exit status 0 if all outputs are identical, 1 if not."""
    request = common.decoding_options(chosen)
    require_comparable(request, "verify")
    prompts = [prompt for prompt in read_prompt_files(chosen.prompts) if prompt.strip()]
    folders = common.choose(chosen)
    identical = tokens = 0
    with ExitStack() as sessions:
        tried = ways(chosen, folders, sessions)
        # Without --strict regular decoding knows nothing of num_draft: once for each seed is enough.
        regular: dict[tuple[int, ...], list[list[int]]] = {}
        for way in tried:
            common.say(f"{way.name}: {len(prompts)} prompts")
            known = (way.seed, way.length.most) if chosen.strict else (way.seed,)
            if known not in regular:
                alone = {**way.options(request), "drafter": "none"}
                regular[known] = [way.session.generate(prompt, **alone).tokens for prompt in prompts]
            model, tokenizer = way.session
            for index, found in way.outputs(prompts, request):
                tokens += len(found)
                difference = first_divergence(
                    model, tokenizer, prompts[index], regular[known][index], found, way.options(request)
                )
                identical += difference is None
                if difference is not None:
                    print(f"prompt {index + 1}, {way.name}: {difference.text(tokenizer)}", flush=True)
    total = len(prompts) * len(tried)
    print(f"{identical} of {total} identical ({tokens} tokens)")
    return 0 if identical == total else 1


def main(argv: Sequence[str] | None = None) -> int:
    chosen = verify_parser().parse_args(argv)
    return common.run("verify", lambda: verify(chosen))


if __name__ == "__main__":
    sys.exit(main())

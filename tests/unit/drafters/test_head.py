"""Draft heads: drafts against a reference implementation, untrained or damaged heads, and their folders.

tests/integration/test_generate.py and test_streaming.py test the output of every drafter.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from speculative_decoding import CheckpointError, InputError, Session, load, models
from speculative_decoding.checkpoints import read_config
from speculative_decoding.drafters import BatchHeadDrafter, Draft, RequestView
from speculative_decoding.loading.draft_head import target_facts, write_draft_head
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import padding_mask
from speculative_decoding.models.draft_head import DraftHead, default_layers
from tests.integration.test_sampling_distribution import OPTIONS, check_counts, exact_distribution, outcomes, seeded
from tests.integration.test_sampling_distribution import TARGET as SMALL
from tests.parity.test_t5 import GOLDENS, load_golden
from tests.support.operations import counted
from tests.support.tiny import (
    CONFIG,
    EOS,
    SOURCES,
    VOCAB,
    head_drafter,
    run,
    save_hugging_face,
    source_for,
    tiny_head,
    tiny_model,
    tokens_of,
)
from tests.support.together import Letters, options_of, together

TARGET = tiny_model(num_layers=3)
HEAD = tiny_head(TARGET)
FREQUENT = (EOS, 2, 6, 12, 20)
BY_SOURCE = {source[0]: (7, 11 + i) for i, source in enumerate(SOURCES)}


def reference_draft(
    head: DraftHead, target: EncoderDecoder, source: Sequence[int], tokens: Sequence[int], count: int, first: int
) -> list[int]:
    """Compute the draft that follows `tokens`, without a cache and without compilation.

    first: the number of decoder tokens before the first round, when the target has not verified any.
    """
    encoder_output = target.encode(mx.array([list(source)]))
    keys, values = target.cross_projections(encoder_output)[-1]
    mask = padding_mask(mx.ones((1, len(source)), mx.bool_), mx.float32)
    hidden = target.teacher_forced_hidden(mx.array([list(tokens)]), encoder_output)
    state = head.start_state[None, None]
    if len(tokens) > first:
        state = head.features(mx.concatenate([hidden[layer][:, -2:-1] for layer in head.config.layers], axis=-1))
    others = [token for each in source for token in head.config.by_source.get(each, ())]
    allowed = sorted({*head.config.frequent, *source, *others}) if head.config.frequent else range(VOCAB)
    found, last = [], tokens[-1]
    for _ in range(count):
        state, _ = head.step(target.embed(mx.array([[last]])), state, keys, values, mask)
        logits = np.array(target.logits(head.outputs(state)))[0, 0]
        last = max(allowed, key=lambda each: logits[each])
        found.append(last)
    return found


class Checked(BatchHeadDrafter):
    """Compares every draft with the reference."""

    checked = 0

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        draft = super().propose(counts, slots)
        for row, count in counts.items():
            expected = reference_draft(self._head, self._target, row.source_tokens, row.decoder_tokens, count, 1)
            assert draft.tokens[row.slot, :count].tolist() == expected, "another draft"
            self.checked += 1
        return draft


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("slots", "frequent", "by_source"),
    [(1, (), {}), (3, (), {}), (3, FREQUENT, {}), (3, FREQUENT[:2], BY_SOURCE)],
    ids=["one slot", "whole", "trimmed", "by source"],
)
def test_drafts_equal_the_reference(
    slots: int, frequent: Sequence[int], by_source: Mapping[int, Sequence[int]]
) -> None:
    """Drafts are ragged. Rows end and slots are reused, so rows have different offsets."""
    drafter = Checked(HEAD.with_frequent(frequent, by_source), TARGET)
    requests = [(source, options_of(max_tokens=9 + 3 * i, num_draft_tokens=1 + i)) for i, source in enumerate(SOURCES)]
    told = together(TARGET, requests, drafter, slots)
    assert drafter.checked > 20
    for (source, options), one in zip(requests, told, strict=True):
        assert one.tokens == tokens_of(run(TARGET, source, max_tokens=options.max_tokens))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("rule", "frequent"), [("rejection", ()), ("block", (EOS, 2, 6)), ("coupled", (EOS, 2, 6))], ids=str
)
def test_sampled_outputs_follow_the_target_distribution(rule: str, frequent: Sequence[int]) -> None:
    check_distribution_of_head(rule, tiny_head(SMALL, frequent))


def check_distribution_of_head(rule: str, head: DraftHead) -> None:
    options, samples = OPTIONS[0] | {"acceptance": rule}, 450
    batch = [seeded(seed, **options) for seed in range(samples)]
    drafter = BatchHeadDrafter(head, SMALL)
    found = outcomes(drafter, batch, [1 + seed % 2 for seed in range(samples)])
    check_counts(Counter(found), exact_distribution(options), samples)


DAMAGES: dict[str, Callable[[mx.array], mx.array]] = {
    "no numbers": lambda each: each * mx.nan,
    "random": lambda each: mx.random.normal(each.shape, key=mx.random.key(1)),
}


def damaged(target: EncoderDecoder, damage: str) -> DraftHead:
    bad = tiny_head(target)
    bad.update(tree_map(DAMAGES[damage], bad.parameters()))
    return bad


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_head_changes_no_output(damage: str) -> None:
    for options in ({}, {"temperature": 1.0}):
        for source in SOURCES[:2]:
            rounds = run(TARGET, source, BatchHeadDrafter(damaged(TARGET, damage), TARGET), **options)
            assert tokens_of(rounds) == tokens_of(run(TARGET, source, **options))
    check_distribution_of_head("rejection", damaged(SMALL, damage))


@pytest.mark.usefixtures("device")
def test_keeping_layers_adds_no_operations_to_target_passes() -> None:
    found = []
    for kept in ((), (0, 2)):
        cache = TARGET.make_cache(TARGET.encode(mx.array([SOURCES[0]])))
        cache.recorded_layers = kept
        with counted() as seen:
            mx.eval(TARGET.states(mx.array([[0, 3]]), cache), *cache.hidden)
        found.append(seen.total())
        assert len(cache.hidden) == len(kept)
    assert found[0] == found[1]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_a_head_drafts_for_every_family(folder: Path) -> None:
    target, _ = load_golden(folder)
    source = source_for(target)
    baseline = tokens_of(run(target, source, max_tokens=12))
    assert tokens_of(run(target, source, head_drafter(target), max_tokens=12)) == baseline


# Folders of heads.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a target and a draft head for it."""
    folder = tmp_path_factory.mktemp("saved")
    target = save_hugging_face(TARGET, folder / "target", CONFIG | {"num_layers": 3, "vocab_size": VOCAB})
    opened, _ = load(target)
    write_draft_head(folder / "head", tiny_head(TARGET).with_frequent(FREQUENT, BY_SOURCE), opened, mx.float32)
    return target, folder / "head"


@pytest.fixture
def folders(saved: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Return the target, and a copy of the head that a test may change."""
    return saved[0], shutil.copytree(saved[1], tmp_path / "head", ignore=shutil.ignore_patterns("manifest.json"))


def test_a_saved_head_loads_unchanged(folders: tuple[Path, Path]) -> None:
    session = load(folders[0], draft=folders[1])
    assert isinstance(session.draft_model, DraftHead)
    assert (session.draft_model.config.frequent, session.draft_model.config.by_source) == (FREQUENT, BY_SOURCE)
    for name, array in session.draft_model.parameters().items():
        mine = tiny_head(TARGET, FREQUENT)[name]
        assert not isinstance(array, mx.array) or mx.array_equal(array, mine)
    ours = Session(session.model, Letters(), session.draft_model)
    for drafter in ("model", "auto"):
        found = ours.generate("abcab", drafter=drafter, num_draft_tokens=3, max_tokens=12)
        assert found.tokens == ours.generate("abcab", drafter="none", max_tokens=12).tokens
        assert drafter == "auto" or found.stats.drafted_tokens > 5
    assert ours.generate("abcab", drafter="model", num_draft_tokens="auto", max_tokens=12).tokens == found.tokens


@pytest.mark.parametrize("name", ["bart", "t5gemma-unequal", "t5gemma2"])
def test_a_draft_head_has_as_many_attention_heads_as_the_decoder(name: str) -> None:
    """The encoders of these models have other numbers of heads."""
    target = models.build(read_config(GOLDENS[0].parent / name))
    assert target_facts(target)["heads"] == tiny_head(target).config.heads


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"target": {"vocabulary": "0" * 64}}, "its vocabulary has other pieces"),
        ({"target": {"d_model": 17}}, "its d_model is 17, the target's is 16"),
        ({"target": None}, "does not say which target"),
        ({"d_ff": 0}, "'d_ff' must be a whole number, 1 to .*, not 0"),
        ({"layers": []}, "'layers' must not be empty"),
        ({"layers": [0, 100]}, "'layers' must be a list, each item a whole number, 0 to "),
        ({"by_source": {"3": [10**9]}}, "'by_source' must map ids of the target to lists"),
        ({"by_source": [3]}, "'by_source' must map ids of the target to lists"),
        ({"acceptance": [0.5, 2]}, "'acceptance' must be a list, each item a number, 0 to 1"),
        ({"d_ff": 7}, "'wi.weight' has shape"),
        ({"version": 1}, "written for another version of this package; train the head again"),
    ],
    ids=str,
)
def test_a_head_of_another_target_or_an_invalid_one_is_refused_in_one_line(
    folders: tuple[Path, Path], change: dict[str, Any], named: str
) -> None:
    path = folders[1] / "config.json"
    raw = json.loads(path.read_text())
    for name, value in change.items():
        raw[name] = raw[name] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match=named) as caught:
        load(folders[0], draft=folders[1])
    assert "\n" not in str(caught.value) and str(folders[1]) in str(caught.value)


def test_unknown_fields_of_a_folder_are_ignored(folders: tuple[Path, Path]) -> None:
    path = folders[1] / "config.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw | {"scales": {"state": "large"}}))
    assert isinstance(load(folders[0], draft=folders[1]).draft_model, DraftHead)


def test_weights_that_are_nan_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    write_draft_head(tmp_path / "bad", damaged(TARGET, "no numbers"), load(folders[0]).model, mx.float32)
    with pytest.raises(CheckpointError, match="contains NaN or infinity; train the head again"):
        load(folders[0], draft=tmp_path / "bad")


def test_a_head_drafts_for_the_bundled_target_in_other_dtypes(pair: Session, tmp_path: Path) -> None:
    target = pair.model
    made = DraftHead.for_target(target, default_layers(6)).with_frequent(range(2048))
    write_draft_head(tmp_path / "head", made, target, mx.bfloat16)
    text = "describe: restaurant name is Sino ; city is San Jose."
    for options in ({"dtype": "bfloat16"}, {"quantize": 8}):
        session = load(BUNDLED / "t5-web-docs", draft=tmp_path / "head", **options)
        strict = "dtype" in options
        found = session.generate(text, drafter="model", num_draft_tokens=4, max_tokens=16, strict=strict)
        baseline = session.generate(text, drafter="none", max_tokens=16, strict=strict)
        assert found.tokens == baseline.tokens and found.stats.drafted_tokens > 20

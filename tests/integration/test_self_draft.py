"""Drafts "self-4bit" and "self-8bit": copies of the target with a quantized decoder, which share everything else."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from speculative_decoding import InputError, Session, load
from speculative_decoding.checkpoints.mapped import MappedCheckpoint
from speculative_decoding.drafters import DraftModel, checked_draft, model_drafter
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import BUNDLED, Storage
from speculative_decoding.loading.pair import SELF_DRAFTS, fingerprint, open_pair
from speculative_decoding.models.base import EncoderDecoder, is_read_by_pass
from speculative_decoding.models.memory_budget import slots_within
from speculative_decoding.models.shared_encoder import CROSS_ATTENTION, share_all_but, shared_part
from speculative_decoding.models.source import Source
from tests.parity.test_scoring import Numbers
from tests.support.families import FAMILIES, save_family
from tests.support.tiny import audio_frames, noisy_copy, tiny_model, tiny_whisper

TARGET = BUNDLED / "t5-web-docs"
PROMPTS = ["w3 w5 w7 w11", "w2 w40 w9 w9 w1 w17 w23", "w8", " ".join(f"w{i}" for i in range(1, 41))]
LENGTHS = (4, 70, 1, 9, 33, 2, 100, 12)  # source tokens, on both sides of the steps in which buffers grow
SENTENCE = "translate English to German: The method returns the value of the property."


def arrays_of(model: EncoderDecoder) -> dict[str, mx.array]:
    parameters: Any = tree_flatten(model.parameters())
    return dict(parameters)


def copy_of(session: Session) -> EncoderDecoder:
    """Return a session's draft model, after forbidding it to encode or project a source."""
    draft = session.draft_model
    assert isinstance(draft, EncoderDecoder)
    for name in ("encode", "encode_rows", "make_cache"):
        setattr(draft, name, None)
    return draft


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    return {family: save_family(folder / family, family) for family in FAMILIES}


@pytest.fixture(scope="module", params=[*SELF_DRAFTS])
def bundled(request: pytest.FixtureRequest) -> Session:
    return load(TARGET, draft=request.param)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_drafts_for_itself_without_reading_a_source(family: str, folders: dict[str, Path]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes about fields of generation_config.json
        session = load(folders[family], draft="self-8bit", group_size=32, dtype="float32")
    audio = session.model.audio
    copy_of(session)
    prompts: list[Any] = [*PROMPTS]
    if audio is not None:
        prompts = [audio_frames(seed, audio.window_frames // 2, audio.num_mel_bins) for seed in range(3)]
    options: dict[str, Any] = {"max_tokens": 14, "strict": True}
    expected = [session.generate(prompt, drafter="none", **options).tokens for prompt in prompts]
    found = list(session.batch(prompts, drafter="model", num_draft_tokens=4, slots=2, **options))
    assert [each.result and each.result.tokens for each in found] == expected
    assert sum(each.result.stats.drafted_tokens for each in found if each.result) > 0
    sampled = options | {"temperature": 1.0, "seed": 2}
    text = session.generate(prompts[1], drafter="none", **sampled).tokens
    assert session.generate(prompts[1], drafter="auto", num_draft_tokens=3, **sampled).tokens == text


@pytest.mark.parametrize("draft", [*SELF_DRAFTS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_copy_adds_its_quantized_weights_to_the_memory_and_nothing_else(dtype: str, draft: str) -> None:
    pair = open_pair(TARGET, draft, dtype=dtype)
    assert pair.draft is not None
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    pair.load_weights()
    expected = pair.target.nbytes + pair.draft.nbytes
    assert mx.get_active_memory() - before < 1.01 * expected
    assert mx.get_peak_memory() - before < 1.1 * expected
    target, copy = arrays_of(pair.target.model), arrays_of(pair.draft.model)  # type: ignore[arg-type]
    own = {path: array for path, array in copy.items() if target.get(path) is not array}
    assert sum(array.nbytes for array in own.values()) == pair.draft.nbytes
    assert all(path.startswith(("decoder.", "head.")) for path in own) and "head.scales" in own
    assert not any("cross_attention.kv" in path or "norm" in path for path in own)


def test_a_copy_is_made_without_reading_the_checkpoint_again(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    getitem = MappedCheckpoint.__getitem__

    def reading(self: MappedCheckpoint, name: str) -> mx.array:
        read.append(name)
        return getitem(self, name)

    monkeypatch.setattr(MappedCheckpoint, "__getitem__", reading)
    load(folders["t5"], draft="self-4bit", group_size=32)
    once = sorted(read)
    read.clear()
    load(folders["t5"])
    assert once == sorted(read) and once


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("bits", SELF_DRAFTS.values())
def test_drafts_equal_those_of_a_copy_that_reads_the_sources_itself(bits: int) -> None:
    """Slots are reassigned, renumbered and grown while requests of different lengths come and go."""
    target = tiny_model(d_model=64, d_kv=32, d_ff=64, num_layers=2)
    draft = type(target)(target.config)
    linear = {path for path, module in target.named_modules() if isinstance(module, nn.Linear)}
    layers = {path for path in linear if is_read_by_pass(path, has_head=True)}
    share_all_but(draft, target, layers, bits, 64)
    prompts = [" ".join(str(2 + (7 * i + j * j) % 21) for j in range(length)) for i, length in enumerate(LENGTHS)]

    def drafted(session: Session) -> list[tuple[int, int, list[int]]]:
        outputs = []
        for slots in (3, 1):
            for each in session.batch(prompts, slots=slots, drafter="model", num_draft_tokens=4, max_tokens=40):
                assert each.result is not None
                stats = each.result.stats
                outputs.append((stats.drafted_tokens, stats.accepted_tokens, each.result.tokens))
        return outputs

    session, alone = (Session(target, Numbers(), draft) for _ in range(2))
    alone._make_model_drafter = lambda: model_drafter(DraftModel(draft), target)
    found = drafted(session)
    assert found == drafted(alone)
    least = {4: 0.1, 8: 0.5}[bits]  # random weights lose more in 4 bits than trained ones
    assert sum(accepted for _, accepted, _ in found) > least * sum(count for count, _, _ in found)


def test_a_copy_proposes_most_tokens_of_the_bundled_target(bundled: Session) -> None:
    expected = bundled.generate(SENTENCE, drafter="none").tokens
    result = bundled.generate(SENTENCE, drafter="model", num_draft_tokens=4)
    assert result.tokens == expected and result.stats.acceptance_rate > 0.7


def test_only_a_copy_of_this_target_reads_its_cross_attention(bundled: Session) -> None:
    model, copy = bundled.model, bundled.draft_model
    assert isinstance(copy, EncoderDecoder)
    other = load(TARGET).model
    assert checked_draft(copy, model).shares == CROSS_ATTENTION  # type: ignore[union-attr]
    assert shared_part(other, copy) == shared_part(model, other) == shared_part(model, noisy_copy(tiny_model())) == ""


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tied", [True, False])
def test_a_whisper_or_bart_has_a_quantized_head_of_its_own(bits: int, tied: bool) -> None:
    sizes = {"d_model": 64, "tie_word_embeddings": tied}
    whisper = {name: 64 for name in ("encoder_ffn_dim", "decoder_ffn_dim")} | sizes
    bart: dict[str, Any] = {
        "model_type": "bart", "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, **sizes,
    }  # fmt: skip
    sources: list[tuple[EncoderDecoder, Source]] = [
        (tiny_whisper(**whisper), audio_frames()), (tiny_model(**bart), [5, 9, 3, 1])
    ]  # fmt: skip
    for target, source in sources:
        draft = copy_shell(target)
        head = "embedding" if tied else "head"
        share_all_but(draft, target, ["decoder.layers.0.ff.wi", head], bits, 64)
        assert isinstance(draft.head, nn.QuantizedLinear) and draft.embedding is target.embedding
        assert isinstance(draft.decoder.layers[0].ff.wi, nn.QuantizedLinear)
        assert not isinstance(target.decoder.layers[0].ff.wi, nn.QuantizedLinear) and ("head" in target) is not tied
        encoder_output = target.encode_rows([source])[0]
        states = target.states(mx.array([[3, 4]], mx.uint32), target.make_cache(encoder_output))
        weight = mx.dequantize(draft.head.weight, draft.head.scales, draft.head.biases, 64, bits)
        bias = draft.logits_bias[0] if "logits_bias" in draft else 0.0
        assert mx.allclose(draft.logits(states), states @ weight.T + bias, atol=1e-4)


def copy_shell(target: EncoderDecoder) -> EncoderDecoder:
    return type(target)(target.config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": 4}, "^draft: 'self-4bit' needs a target that is not quantized; leave out quantize 4$"),
        ({"shard": lambda *_: None}, "^draft: 'self-4bit' needs a target in one process; choose a draft model or a"),
        (
            {"group_size": 128},
            "^draft: no layer of .*'s decoder has rows that divide into groups of 128; choose another draft$",
        ),
    ],
)
def test_targets_that_cannot_be_copied_are_refused_before_weights_load(
    options: dict[str, Any], message: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(InputError, match=message):
        open_pair(folders["t5"], "self-4bit", **options)


def test_a_folder_with_quantized_weights_is_refused(tmp_path: Path, folders: dict[str, Path]) -> None:
    convert(str(folders["t5"]), tmp_path / "small", Storage(quantize=8, group_size=32))
    with pytest.raises(InputError, match=r"^draft: .*small is quantized already; name the original model, or choose"):
        open_pair(tmp_path / "small", "self-8bit", group_size=32)


def test_runs_with_other_bits_are_told_apart() -> None:
    drafts = [open_pair(TARGET, draft).draft for draft in (*SELF_DRAFTS, None)]
    assert len({*(fingerprint(draft) for draft in drafts if draft), fingerprint(open_pair(TARGET).target)}) == 3


def test_shared_arrays_count_once_in_the_memory_limit(bundled: Session) -> None:
    model, draft = bundled.model, bundled.draft_model
    assert isinstance(draft, EncoderDecoder)
    separate = load(TARGET).model
    slots = [slots_within(0.5, 1000, model, each, 50) for each in (separate, draft, None)]
    assert slots[0] < slots[1] < slots[2]

"""A draft model with the target's encoder shares its weights and its output."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative_decoding import load
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.shared_encoder import ENCODER_OUTPUT, share_encoder, shared_part
from tests.support.tiny import CONFIG, noisy_copy, save_hugging_face, tiny_model

BARE = tiny_model()


def same_encoder(noise: float = 0.0) -> EncoderDecoder:
    """Make a noisy copy with a copy of the target's encoder.

    noise: added to the last array of the encoder.
    """
    copy = noisy_copy(BARE)
    own = {path: array + 0 for path, array in parameters(BARE).items() if not path.startswith(("decoder.", "head."))}
    last = max(own)
    own[last] = own[last] + noise
    copy.load_weights(list(own.items()), strict=False)
    return copy


def parameters(model: EncoderDecoder) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def test_an_almost_equal_encoder_is_not_shared() -> None:
    for draft in (same_encoder(1e-6), noisy_copy(BARE), tiny_model(num_layers=2)):
        before = parameters(draft)
        assert not share_encoder(BARE, draft) and not shared_part(BARE, draft)
        assert all(array is before[path] for path, array in parameters(draft).items())
    half = same_encoder()
    half.update({"encoder": {"norm": {"weight": half.encoder.norm.weight.astype(mx.float16)}}})
    assert not share_encoder(BARE, half)
    other = tiny_model(relative_attention_max_distance=21)
    other.load_weights(list(parameters(BARE).items()))
    assert not share_encoder(BARE, other)


def test_a_loaded_pair_shares_its_encoder(tmp_path: Path) -> None:
    draft = same_encoder()
    folders = save_hugging_face(BARE, tmp_path / "target", CONFIG), save_hugging_face(draft, tmp_path / "draft", CONFIG)
    session = load(folders[0], draft=folders[1])
    assert isinstance(session.draft_model, EncoderDecoder)
    assert shared_part(session.model, session.draft_model) == ENCODER_OUTPUT
    assert not shared_part(session.model, tiny_model())

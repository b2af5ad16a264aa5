"""Tests the audio formats of live speech."""

from __future__ import annotations

import av
import numpy as np
import pytest

from speculative_decoding.server.realtime_audio import BY_NAME, FORMATS, PCM, AudioFormat

CODECS = {"audio/pcm": "pcm_s16le", "audio/pcmu": "pcm_mulaw", "audio/pcma": "pcm_alaw"}


def decoded(data: bytes, audio_format: AudioFormat) -> list[int]:
    """Decode audio with FFmpeg."""
    codec = av.AudioCodecContext.create(CODECS[audio_format.name], "r")
    codec.sample_rate, codec.layout, codec.format = audio_format.rate, "mono", "s16"  # type: ignore[assignment]
    return [int(sample) for frame in codec.decode(av.Packet(data)) for sample in frame.to_ndarray().ravel()]


@pytest.mark.parametrize("audio_format", FORMATS, ids=lambda each: each.name)
def test_samples_equal_those_of_ffmpeg(audio_format: AudioFormat) -> None:
    """G.711 is compared for all bytes."""
    data = bytes(range(256)) + np.random.default_rng(0).bytes(1000)
    samples = audio_format.samples(data)
    assert samples.dtype == np.int16 and samples.tolist() == decoded(data, audio_format)
    assert audio_format.seconds(len(data)) == len(samples) / audio_format.rate


def test_names_are_those_of_openais_types() -> None:
    from openai.types.beta.realtime.transcription_session_update import Session
    from openai.types.realtime.realtime_audio_formats import AudioPCM, AudioPCMA, AudioPCMU

    for each, model in zip(FORMATS, (AudioPCM, AudioPCMU, AudioPCMA), strict=True):
        model.model_validate(each.content, strict=True)
        Session.model_validate({"input_audio_format": each.older_name})
        assert BY_NAME[each.name] is BY_NAME[each.older_name] is each
    assert PCM.content == {"type": "audio/pcm", "rate": 24_000}

"""Converts windows to engine requests, and outputs to `DecodedWindow`. Detects languages and aligns words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from ..decoding.prompt import DecoderPrompt
from ..decoding.request import Request
from ..models.base import EncoderDecoder
from ..models.source import AudioFrames
from ..models.threads import turn
from ..models.whisper_tokens import AudioConfig
from ..sampling import Constraints, GenerationOptions, token_logprobs
from ..sampling.random import sample_seed
from .draft_texts import WindowDrafts
from .options import TranscriptionOptions
from .segments import FRAMES_PER_POSITION, FRAMES_PER_SECOND, DecodedWindow, Window
from .speech_text import SpeechText
from .timestamp_rules import TimestampRules
from .transcription import Attempt
from .word_timestamps import TimedWord, align

MAX_POSITIONS = 448  # in every published Whisper model


@dataclass(eq=False)
class Evidence:
    """An `Observer` that collects the no-speech probability and the total log-probability of one request.

    Args:
        position: The number of forced decoder tokens after which the probability of `token` is measured.
        token: The token that indicates that there is no speech.

    Attributes:
        probability: The probability of `token`, (1,); lazy.
        sum_logprob: The log-probability of the output under its constraints at temperature 1; 0 with beam search.
    """

    position: int
    token: int
    probability: mx.array | None = field(init=False, default=None)
    sum_logprob: float = field(init=False, default=0.0)

    def prefilled(self, logits: mx.array) -> None:
        self.probability = mx.exp(token_logprobs(logits.astype(mx.float32), mx.array(self.token)))

    def committed(self, logits: np.ndarray, tokens: Sequence[int]) -> None:
        """Add the log-probabilities of the committed tokens. Computed on the host, where these tokens are listed.

        logits: (N, V) float32.
        """
        largest = logits.max(axis=-1)
        logsumexp = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=-1, dtype=np.float64))
        self.sum_logprob += float((logits[np.arange(len(tokens)), tokens] - logsumexp).sum())


@dataclass(frozen=True)
class WindowRequests:
    """Creates the requests for windows in one language, and converts their outputs.

    Args:
        model: A speech model.
        text: Encodes and decodes the model's text.
        language: The language of the speech.
        options: How to transcribe.
        decoding: How to decode: drafts, sampling, beams.
        first_frame: The recording's first frame within the whole recording of which it is a part; otherwise 0.
        drafts: Texts that the output may resemble.
    """

    model: EncoderDecoder
    text: SpeechText
    language: str
    options: TranscriptionOptions
    decoding: GenerationOptions
    first_frame: int = 0
    drafts: Sequence[WindowDrafts] = ()

    @property
    def audio(self) -> AudioConfig:
        return self.text.audio

    @property
    def start(self) -> list[int]:
        return self.audio.start_tokens(self.language, self.options.task)

    @property
    def max_positions(self) -> int:
        """The maximum number of decoder positions. Half of them are for the previous text, half for the output."""
        return self.model.max_positions or MAX_POSITIONS

    @property
    def max_previous(self) -> int:
        """The maximum number of tokens in the previous text, excluding the special token before it."""
        return self.max_positions // 2 - 1

    def decoder_prompt(self, attempt: Attempt) -> DecoderPrompt:
        """Return the prefix, the constraints and the options for decoding an attempt."""
        audio = self.audio
        previous = [audio.previous, *attempt.previous] if attempt.previous else []
        tokens = [*previous, *self.start]
        if self.options.without_timestamps:
            tokens.append(audio.no_timestamps)
        begin = len(tokens)
        rules = None
        never = self.text.suppressed
        if not self.options.without_timestamps:
            zero, added = audio.timestamp_begin, audio.timestamp_end
            added_from = added if added < self.model.config.vocab_size else None
            rules = TimestampRules(begin, audio.end, zero, zero + audio.max_initial_timestamp_index, added_from)
            never = [*never, audio.no_timestamps]
        constraints = Constraints(
            self.decoding.no_repeat_ngram_size or 0,
            banned=tuple((token,) for token in never),
            not_before=tuple((token, begin + 1) for token in self.text.blank),
            processor=rules,
        )
        positions = self.max_positions
        length = min(self.options.sample_len or positions // 2, positions + 1 - begin)  # the last token is not fed back
        temperature = attempt.temperature
        # Samples depend on the window's position and the temperature, but not on other requests or their order
        number = 1 + (self.first_frame + attempt.window.seek) * 1000 + round(100 * temperature)
        options = self.decoding.with_values(
            temperature=temperature,
            max_tokens=length,
            num_beams=1 if temperature else self.decoding.num_beams,
            seed=sample_seed(self.decoding.seed, number),
        )
        options = self.model.generation_config.with_defaults(options, begin)
        search = None
        if options.num_beams > 1:
            from .transcript_search import TranscriptBeamSearch

            assert options.length_penalty is not None and options.early_stopping is not None
            search = TranscriptBeamSearch(
                options.num_beams, options.length_penalty, options.early_stopping, length, {audio.end}, tokens
            )
        evidence = Evidence(len(previous) + 1, audio.no_speech)
        second = (self.first_frame + attempt.window.seek) / FRAMES_PER_SECOND
        drafts = [draft.window(attempt.transcript, second, rules is not None) for draft in self.drafts]
        return DecoderPrompt(options, tokens, {audio.end}, constraints, evidence, search, draft_texts=drafts)

    def decoded(self, request: Request, from_draft: Sequence[bool] = ()) -> DecodedWindow:
        """Return the output of a finished request. from_draft: whether each token is an accepted draft token."""
        evidence = request.observer
        assert isinstance(evidence, Evidence) and evidence.probability is not None
        sum_logprob = evidence.sum_logprob if request.search is None else request.search.sum_logprob
        tokens = request.tokens
        if tokens[-1:] == [self.audio.end]:
            tokens = tokens[:-1]
        return DecodedWindow(
            tokens,
            self.text.decode(tokens).strip(),
            request.options.temperature,
            sum_logprob / (len(tokens) + 1),
            float(evidence.probability),
            from_draft,
        )

    @turn()
    def align(self, window: Window, tokens: list[int]) -> list[TimedWord]:
        """Group text tokens into words, with their times in the window."""
        if not tokens:
            return []
        audio = self.audio
        read = [*self.start, audio.no_timestamps, *tokens, audio.end]
        encoder_output = self.model.encode_rows([window.audio])[0]
        scores, states = self.model.cross_attention_weights(mx.array([read]), encoder_output, audio.alignment_heads)
        first = len(self.start)
        logits = self.model.logits(states[0, first : first + len(tokens)]).astype(mx.float32)
        logits = mx.concatenate([logits[:, : audio.end], logits[:, audio.timestamp_end :]], axis=-1)  # text tokens only
        columns = [token if token < audio.end else token - audio.timestamp_end + audio.end for token in tokens]
        likely = mx.take_along_axis(mx.softmax(logits, axis=-1), mx.array(columns)[:, None], axis=-1)[:, 0]
        own = np.array(scores[..., : window.size // FRAMES_PER_POSITION].astype(mx.float32))
        return align(self.text.words([*tokens, audio.end], self.language), own, first, likely.tolist())  # type: ignore[arg-type]


@turn()
def detected_language(model: EncoderDecoder, audio: AudioConfig, frames: AudioFrames) -> str:
    """Return the code of the most probable language, predicted after startoftranscript. Runs one forward pass."""
    cache = model.make_cache(model.encode_rows([frames])[0])
    logits = model.decode(mx.array([[audio.start]]), cache)[0, -1].astype(mx.float32)
    best = mx.argmax(logits[mx.array([*audio.languages.values()])])
    return [*audio.languages][int(best.item())]  # type: ignore[arg-type]

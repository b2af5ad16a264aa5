"""The limits of requests and of the queue. The flags of the command are generated from the fields of `Limits`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated as A

from ..decoding.prompt import TOKEN_CHARACTERS
from ..engine import DEFAULT_SLOTS
from ..errors import InputError, Message
from ..sampling import GenerationOptions
from ..sampling.values import Int, Number
from .errors import ServerError

EXTRA_SLOTS = 1  # slots for the first outputs of recordings; see `Lane`
MAX_STOP_CHARACTERS = 256  # limits the time per token: each token is compared with all prefixes of a stop string
MAX_LIVE_AUDIO = 15 << 20  # maximum size of the audio in a message in bytes, as in OpenAI's API
MAX_MESSAGE = MAX_LIVE_AUDIO * 3 // 2  # maximum size of a message, whose audio is in base64, in part escaped
MAX_DRAFT_TEXTS = 4  # limits the time per token; lower than the number of prepared texts that a session keeps


@dataclass(frozen=True)
class Limits:
    """The limits of the server. Raises `InputError` for contradictory values."""

    slots: A[int, Int(1), "prompts to decode together"] = DEFAULT_SLOTS
    queue: A[int, Int(0), "prompts that may wait for a slot; further requests get status 429"] = 64
    max_body: A[int, Int(1 << 10), "bytes of a request"] = 1 << 20
    keep_files: A[float, Number(0, exclusive=True), "minutes for which a translated file can be downloaded"] = 10.0
    max_audio: A[int, Int(1 << 10), "bytes of a recording"] = 25 << 20
    max_audio_seconds: A[float, Number(0, exclusive=True), "duration of a recording"] = 3600.0
    max_live_seconds: A[float, Number(0, exclusive=True), "seconds of live speech that may wait to be decoded"] = 330.0
    max_idle: A[float, Number(0, exclusive=True), "seconds without a message, after which a socket is closed"] = 60.0
    max_connections: A[int, Int(1), "connections from one address; this machine has no limit"] = 100
    max_prompts: A[int, Int(1), "prompts of a request, each counted n times"] = 16
    max_prompt_tokens: A[int, Int(1), "tokens of a prompt, if the model does not have a lower limit"] = 1024
    max_output_tokens: A[int, Int(1), "largest max_tokens of a request"] = 1024
    max_stops: A[int, Int(0), "stop strings and end-of-sequence ids of a request"] = 16
    max_draft_text: A[int, Int(0), "characters of a request's prediction or draft texts together"] = 1 << 15
    max_seconds: A[float, Number(0, exclusive=True), "seconds before an unfinished request fails"] = 300.0
    grace: A[float, Number(0), "seconds to finish running requests when the server stops"] = 30.0

    def __post_init__(self) -> None:
        if self.max_prompts > self.slots + self.queue:
            raise InputError(
                Message(
                    "must be at most {slots} plus {queue} ({limit}), not {value}",
                    limit=self.slots + self.queue,
                    value=self.max_prompts,
                ),
                "max_prompts",
                Message("lower it, or raise {queue}"),
            )

    def check_options(self, options: GenerationOptions) -> None:
        """Check the limits that do not require the tokenizer. Raises a `ServerError` that names the field."""
        if isinstance(options.decoder_prefix, str):
            self.check_length("decoder_prefix", options.decoder_prefix)
        for name, values in (("stop", options.stop), ("eos_token_ids", options.eos_token_ids)):
            if len(values) > self.max_stops:
                raise ServerError.of_field(name, f"must have at most {self.max_stops} entries on this server")
        if any(len(stop) > MAX_STOP_CHARACTERS for stop in options.stop):
            raise ServerError.of_field("stop", f"strings must have at most {MAX_STOP_CHARACTERS} characters")

    def check_draft_texts(self, name: str, texts: Sequence[str]) -> None:
        """Refuse draft texts that would take too long to prepare, because the decoding thread prepares them."""
        if len(texts) > MAX_DRAFT_TEXTS:
            raise ServerError.of_field(name, f"must have at most {MAX_DRAFT_TEXTS} texts on this server")
        if (count := sum(map(len, texts))) > self.max_draft_text:
            problem = f"has {count} characters (at most {self.max_draft_text} on this server); shorten it"
            raise ServerError.of_field(name, problem)

    def check_length(self, name: str, text: str) -> None:
        """Refuse a text that is certain to exceed the token limit, because tokenizing it would take too long."""
        if len(text) > self.max_prompt_tokens * TOKEN_CHARACTERS:
            problem = f"has {len(text)} characters, too many for {self.max_prompt_tokens} tokens; shorten or split it"
            raise ServerError.of_field(name, problem)

    def check_tokens(self, name: str, count: int) -> None:
        if count > self.max_prompt_tokens:
            problem = f"has {count} tokens (at most {self.max_prompt_tokens} on this server); shorten or split it"
            raise ServerError.of_field(name, problem)

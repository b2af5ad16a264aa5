"""What a client may ask for, and how many may ask at once. Their flags are made from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as A

from ..decoding.prompt import TOKEN_CHARACTERS
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.values import Int, Number
from .errors import ServerError

STOP_CHARACTERS = 256  # of each stop string: all that may be the beginning of one is looked at for each token


@dataclass(frozen=True)
class Limits:
    """Raises `InputError` for limits that contradict each other."""

    slots: A[int, Int(1), "prompts that are decoded together"] = 8
    queue: A[int, Int(0), "prompts that may wait for a slot; what comes beyond them is answered 429"] = 64
    max_body: A[int, Int(1 << 10), "bytes of a request"] = 1 << 20
    max_prompts: A[int, Int(1), "prompts of a request, each counted n times"] = 16
    max_prompt_tokens: A[int, Int(1), "tokens of a prompt, where the model does not take fewer"] = 1024
    max_output_tokens: A[int, Int(1), "the most that a request's max_tokens may be"] = 1024
    max_stops: A[int, Int(0), "stop strings of a request, and ids that end a text"] = 16
    max_seconds: A[float, Number(0, exclusive=True), "from taking a request to its end; then it ends with an error"] = (
        300.0
    )
    grace: A[float, Number(0), "seconds that running requests have to finish when the server is to end"] = 30.0

    def __post_init__(self) -> None:
        if self.max_prompts > self.slots + self.queue:
            raise InputError(
                f"--max-prompts {self.max_prompts}: slots and queue take {self.slots + self.queue} prompts; "
                "choose fewer, or a longer --queue"
            )

    def check(self, prompt: str, options: GenerationOptions) -> None:
        """All that needs no tokenizer. Raises `ServerError` that names the field."""
        self.check_length("prompt", prompt)
        if isinstance(options.decoder_prefix, str):
            self.check_length("decoder_prefix", options.decoder_prefix)
        if options.max_tokens > self.max_output_tokens:
            raise ServerError(400, f"max_tokens must be at most {self.max_output_tokens} here", "max_tokens")
        for name, given in (("stop", options.stop), ("eos_token_ids", options.eos_token_ids)):
            if len(given) > self.max_stops:
                raise ServerError(400, f"{name} must have at most {self.max_stops} entries here", name)
        if any(len(stop) > STOP_CHARACTERS for stop in options.stop):
            raise ServerError(400, f"stop strings must have at most {STOP_CHARACTERS} characters", "stop")

    def check_length(self, name: str, text: str) -> None:
        """Before it is cut into tokens, which takes long for what is much too long."""
        if len(text) > self.max_prompt_tokens * TOKEN_CHARACTERS:
            raise ServerError(
                400,
                f"{name} has {len(text)} characters, too many for a text within the limit of "
                f"{self.max_prompt_tokens} tokens; shorten or split it",
                name,
            )

    def check_tokens(self, name: str, count: int) -> None:
        if count > self.max_prompt_tokens:
            raise ServerError(
                400,
                f"{name} has {count} tokens; here are taken at most {self.max_prompt_tokens}; shorten or split it",
                name,
            )

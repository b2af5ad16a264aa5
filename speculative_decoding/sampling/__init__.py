"""What may be asked of decoding, and the distribution that tokens are drawn from. Knows no model and no draft."""

from .distribution import MAX_SEED, SamplingParams, Use, is_whole, key, token_logprobs
from .options import GenerationOptions

__all__ = ["MAX_SEED", "GenerationOptions", "SamplingParams", "Use", "is_whole", "key", "token_logprobs"]

"""What speculation should gain, from what its parts cost (Leviathan et al. 2023, section 3). Pure functions."""

from __future__ import annotations

from speculative_decoding.draft_length.costs import Costs


def expected_tokens(alpha: float, num_draft: int) -> float:
    """E(alpha, g) = 1 + alpha + ... + alpha^g: tokens per round if each is accepted with probability alpha."""
    return sum(alpha**i for i in range(num_draft + 1))


def predicted_speedup(tokens_per_round: float, num_draft: int, costs: Costs) -> float:
    """S(g) = E / (t(g + 1) + s + g c + h), in units of t(1): tokens in the time of a bare target pass."""
    return tokens_per_round * costs.pass_seconds(1) / costs.round_seconds(num_draft)


def predicted_gain(tokens_per_round: float, num_draft: int, costs: Costs) -> float:
    """S(g) / S(0): against plain decoding, whose rounds cost 1 + h."""
    return predicted_speedup(tokens_per_round, num_draft, costs) / predicted_speedup(1.0, 0, costs)


def efficiency(measured_gain: float, tokens_per_round: float, num_draft: int, costs: Costs) -> float:
    """S_measured / S(g), both against plain decoding: 1 if a round costs no more than its parts."""
    return measured_gain / predicted_gain(tokens_per_round, num_draft, costs)


def share_of_limit(bytes_per_token: float, bytes_per_second: float, seconds_per_token: float) -> float:
    """Of the time that a token takes, the part in which its weights could be read at full bandwidth."""
    return bytes_per_token / bytes_per_second / seconds_per_token

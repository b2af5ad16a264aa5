"""openai-whisper's beam search. Imported only if `num_beams` is greater than 1, because it requires beam_search/."""

from __future__ import annotations

from collections.abc import Sequence

from ..beam_search.search import BeamSearch, Continuation, Hypothesis, in_parent_order


class TranscriptBeamSearch(BeamSearch):
    """Beam search as in openai-whisper 20250625 (`BeamSearchDecoder` and `MaximumLikelihoodRanker` in decoding.py).

    The search stops once `num_beams` outputs are complete. A score is an output's log-probability divided by its
    length; the end token contributes to the log-probability, but not to the length.
    """

    normalizes_after_constraints = True

    def step(self, continuations: Sequence[Continuation]) -> list[int]:
        followed = []
        for each in continuations:
            if each.token not in self.ends:
                followed.append(each)
                if len(followed) == self.num_beams:
                    break
            else:
                self._finish(each.score, [*self.beams[each.beam], each.token])
        self.is_done = len(self.finished) == self.num_beams
        followed = in_parent_order(followed)
        self.beams = [[*self.beams[each.beam], each.token] for each in followed]
        self.scores = [each.score for each in followed]
        if self.length == self.max_tokens:
            for score, tokens in sorted(zip(self.scores, self.beams, strict=True), reverse=True):
                self._finish(score, tokens)
        return [each.beam for each in followed]

    def best(self, count: int) -> list[Hypothesis]:
        """Return the best outputs, best first. Outputs with equal scores are in the order in which they ended."""
        return sorted(self.finished, key=lambda each: -each.score)[:count]

    def _finish(self, score: float, tokens: Sequence[int]) -> None:
        own = list(tokens[len(self.prefix) :])
        if len(self.finished) < self.num_beams:
            self.finished.append(Hypothesis(score / self.length_of(own), own))

    def length_of(self, tokens: Sequence[int]) -> int:
        return len(tokens) - (tokens[-1] in self.ends)

    @property
    def sum_logprob(self) -> float:
        """The log-probability of the best output."""
        best = self.best(1)[0]
        return best.score * self.length_of(best.tokens)

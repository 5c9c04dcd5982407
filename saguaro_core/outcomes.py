"""What verification outcomes were like so far: how often drafted tokens stood, and which guess was the bonus.

Every quantity is a *hazard*, the chance of an event given that all before it went the other way: token i accepted
given that those before it were; candidate c the bonus given that no likelier one was. Hazards can be counted
honestly though much is never seen (tokens behind a rejected one, bonus tokens beyond the fan-out). Each starts from a
prior worth a few observations and forgets slowly, so that it follows the text. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence

PRIOR_ACCEPTANCE = 0.6
PRIOR_FIRST = {False: 0.20, True: 0.50}  # chance of the first candidate after a rejection, after full acceptance
PRIOR_WEIGHT = 6.0
MEMORY = 300.0  # observations after which an old one weighs 1/e
BINS = 10


class Hazard:
    """A probability, estimated from successes and failures."""

    __slots__ = ("seen", "succeeded")

    def __init__(self):
        self.seen = self.succeeded = 0.0

    def add(self, success: bool) -> None:
        self.seen += 1 - self.seen / MEMORY
        self.succeeded += success - self.succeeded / MEMORY

    def value(self, prior: float) -> float:
        return (self.succeeded + PRIOR_WEIGHT * prior) / (self.seen + PRIOR_WEIGHT)


class _ByKind:
    """Speculations of one kind: from the cache, or not."""

    def __init__(self):
        self.all = Hazard()
        self.at: list[Hazard] = []  # by position in the speculation
        self.of: list[Hazard] = [Hazard() for _ in range(BINS)]  # by the draft's confidence

    def acceptance(self, position: int) -> float:
        prior = self.all.value(PRIOR_ACCEPTANCE)
        return self.at[position].value(prior) if position < len(self.at) else prior


class Outcomes:
    """Statistics of one way of decoding. Speculations from the cache (`hit`) and others are counted apart, as are
    bonus tokens after a rejection and after a speculation that was accepted whole (`full`)."""

    def __init__(self):
        self._kinds = {True: _ByKind(), False: _ByKind()}
        self._ranks: dict[bool, list[Hazard]] = {False: [], True: []}

    def add(self, hit: bool, confidence: Sequence[float | None], accepted: int) -> None:
        """A speculation of `len(confidence)` tokens, the draft's probabilities for them (None where unknown), of which
        `accepted` stood."""
        kind = self._kinds[hit]
        for i, probability in enumerate(confidence[: accepted + 1]):
            if i == len(kind.at):
                kind.at.append(Hazard())
            stood = i < accepted
            kind.all.add(stood)
            kind.at[i].add(stood)
            if probability is not None:
                kind.of[_bin(probability)].add(stood)

    def add_rank(self, full: bool, rank: int | None, width: int) -> None:
        """The bonus was candidate `rank` of the `width` of its fork, None where it was none of them."""
        hazards = self._ranks[full]
        hazards += [Hazard() for _ in range(width - len(hazards))]
        for i in range(width if rank is None else rank + 1):
            hazards[i].add(i == rank)

    def acceptance(self, hit: bool, position: int) -> float:
        """Chance that drafted token `position` (0-based) stands, if those before it do."""
        return self._kinds[hit].acceptance(position)

    def mean_acceptance(self, hit: bool) -> float:
        return self._kinds[hit].all.value(PRIOR_ACCEPTANCE)

    def calibrated(self, hit: bool, position: int, confidence: float | None) -> float:
        """The same chance for a token that the draft gave the probability `confidence`."""
        if confidence is None:
            return self.acceptance(hit, position)
        bin = _bin(confidence)
        return self._kinds[hit].of[bin].value(min(0.95, max(0.05, (bin + 0.5) / BINS)))

    def histogram(self, hit: bool, k: int) -> list[float]:
        """P_0..P_K: how likely each number of accepted tokens is for a speculation of `k` tokens."""
        return outcome_probabilities([self.acceptance(hit, i) for i in range(k)])

    def curve(self, full: bool, width: int) -> list[float]:
        """How likely each of the `width` likeliest candidates of a fork is the bonus, likeliest first."""
        hazards, result, left = self._ranks[full], [], 1.0
        for i in range(width):
            prior = PRIOR_FIRST[full] / (1 + i)
            hazard = hazards[i].value(prior) if i < len(hazards) else prior
            result.append(left * hazard)
            left -= result[-1]
        return sorted(result, reverse=True)

    def probabilities(self, hit: bool, confidence: Sequence[float | None], width: int) -> list[list[float]]:
        """`[k][c]`: the chance that `k` tokens stand and candidate c is the bonus, as `fan_out.best_first` wants it."""
        forks = outcome_probabilities([self.calibrated(hit, i, p) for i, p in enumerate(confidence)])
        corrections, bonuses = self.curve(False, width), self.curve(True, width)
        return [[p * w for w in corrections] for p in forks[:-1]] + [[forks[-1] * w for w in bonuses]]


def outcome_probabilities(acceptance: Sequence[float]) -> list[float]:
    """P_0..P_K from the chance of each token to stand given that those before it do."""
    left, result = 1.0, []
    for a in acceptance:
        result.append(left * (1 - a))
        left *= a
    return [*result, left]


def _bin(probability: float) -> int:
    return min(BINS - 1, int(probability * BINS))

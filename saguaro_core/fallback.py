"""Fallback: what a sequence goes on with whose speculation is not ready when its outcome is known.

Only sequences without a ready speculation are drafted for; the others keep what they have, but as one verification
serves the whole batch they wait too. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

BY_SIZE, AUTO = "size", "auto"
LARGEST_BATCHED = 16


class FallbackStrategy(StrEnum):
    IMMEDIATE_RETRY = "immediate_retry"  # draft just in time for each missing row, one after another
    BATCHED_RETRY = "batched_retry"  # draft just in time for all missing rows together
    PARTIAL_ACCEPT = "partial_accept"  # go on with what the interrupted tree has for the row, else without a draft


FALLBACKS = (*(strategy.value for strategy in FallbackStrategy), BY_SIZE, AUTO)


@dataclass(frozen=True)
class MissInfo:
    """A round for which some rows have too few drafted tokens. `gain`: the tokens that one more drafted token for each
    such row is expected to add. `step_s`: what it takes, in seconds. `rate`: tokens a second of all rows so far. Either
    is 0 where nothing has been measured."""

    gain: float
    step_s: float = 0.0
    rate: float = 0.0

    @property
    def forgone(self) -> float:
        """The tokens that the batch makes in the time of such a step, and forgoes by waiting for it."""
        return self.rate * self.step_s


def gain_of_one_token(acceptance: Sequence[float]) -> float:
    """The chance that a drafted token stands: of every token before it, and of itself, given those before it."""
    return prod(acceptance)


def adaptive_fallback(miss_info: MissInfo, batch_size: int, policy: str = BY_SIZE) -> FallbackStrategy:
    """The strategy for the missing rows of a batch of `batch_size`, by `policy`:

    "size": alone at once, up to 16 together, above not at all, since all hits would wait for a few misses. "auto": wait
    only where one more token is expected to add more than the batch makes in that time at its present rate (the
    marginal rule for the highest rate; what a longer speculation does to later hits is left out). Else a strategy's
    name: that one. A batch of one has nothing to put together.
    """
    if policy == BY_SIZE:
        strategy = FallbackStrategy.PARTIAL_ACCEPT if batch_size > LARGEST_BATCHED else FallbackStrategy.BATCHED_RETRY
    elif policy == AUTO:
        waiting_pays = miss_info.gain >= miss_info.forgone
        strategy = FallbackStrategy.BATCHED_RETRY if waiting_pays else FallbackStrategy.PARTIAL_ACCEPT
    else:
        strategy = FallbackStrategy(policy)
    alone = strategy is FallbackStrategy.BATCHED_RETRY and batch_size == 1
    return FallbackStrategy.IMMEDIATE_RETRY if alone else strategy

"""Fan-out: how many guesses of the bonus token each fork of the speculation gets, out of a budget of M.

Fork k is the outcome in which k drafted tokens are accepted. Every allocator spends exactly the budget, is
deterministic, and knows nothing of tokens: that a correction is never the rejected token is the drafter's business.
Standard library only.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import log

EVEN, GEOMETRIC, MEASURED, BEST_FIRST = "uniform", "geometric", "measured", "best-first"
ALLOCATORS = (EVEN, GEOMETRIC, MEASURED, BEST_FIRST)


def uniform(k: int) -> list[float]:
    """The histogram [K + 1] that knows nothing: every fork is equally likely."""
    return [1 / (k + 1)] * (k + 1)


def capped_geometric(alpha: float, k: int) -> list[float]:
    """The histogram [K + 1] of accepted tokens if each were accepted with probability `alpha`, independently."""
    return [alpha**i * (1 - alpha) for i in range(k)] + [alpha**k]


def allocate(histogram: Sequence[float], budget: int, r: float = 1.0) -> tuple[int, ...]:
    """F_k proportional to P_k^(1 / (1 + r)), which has the fewest misses where a fork of fan-out F misses with
    probability F^(-r); rounded so that the sum is `budget`, ties to the earlier fork.

    `histogram` [K + 1]: P_k, how likely each fork is; fed with `capped_geometric` it is Theorem 12 of the paper.
    Stationarity of sum_k P_k F_k^(-r) under the budget gives the general form.
    """
    weights = [max(p, 0.0) ** (1 / (1 + r)) for p in histogram]
    total = sum(weights)
    if total == 0:
        raise ValueError("the histogram of accepted tokens is empty")
    shares = [budget * weight / total for weight in weights]
    widths = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda fork: (widths[fork] - shares[fork], fork))
    for fork in by_remainder[: budget - sum(widths)]:
        widths[fork] += 1
    return tuple(widths)


def best_first(forks: Sequence[Sequence[float]], budget: int) -> list[tuple[int, int]]:
    """The `budget` likeliest `(fork, candidate)` pairs, likeliest first; fewer where there are not so many.

    `forks[k][c]`: probability that k tokens are accepted and candidate c of that fork is the bonus, not increasing in
    c. The order for a smaller budget is a prefix of the order for a larger one. Ties go to the earlier fork.
    """
    heads = [(-candidates[0], fork, 0) for fork, candidates in enumerate(forks) if candidates]
    heapq.heapify(heads)
    chosen = []
    while heads and len(chosen) < budget:
        _, fork, candidate = heads[0]
        chosen.append((fork, candidate))
        if candidate + 1 < len(forks[fork]):
            heapq.heapreplace(heads, (-forks[fork][candidate + 1], fork, candidate + 1))
        else:
            heapq.heappop(heads)
    return chosen


def rank_by_rank(widths: Sequence[int]) -> list[tuple[int, int]]:
    """All `(fork, candidate)` pairs of a fan-out `widths` [K + 1]: first candidates first."""
    return [(fork, c) for c in range(max(widths, default=0)) for fork, width in enumerate(widths) if c < width]


def power_law_exponent(curve: Sequence[float]) -> float:
    """The r of 1 - hit(F) = c * F^(-r) that fits best (least squares of logarithms) a `curve` whose entry F - 1 is how
    likely the F-th candidate is the bonus; at fan-outs 1, 2, 4, ... Definition 11 of the paper has c = 1."""
    points, left = [], 1.0
    for f, p in enumerate(curve, 1):
        left -= p
        if f & (f - 1) == 0 and left > 0:
            points.append((log(f), log(left)))
    if len(points) < 2:
        return 1.0
    x, y = (sum(column) / len(points) for column in zip(*points, strict=True))
    slope = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return max(0.0, -slope)

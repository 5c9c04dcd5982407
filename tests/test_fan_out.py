"""Allocators: exact budget, determinism, optimality on small cases; and that no fork ever prepares the rejected token."""

from __future__ import annotations

import itertools
import random

import pytest

from saguaro_core.events import Lookup, Verify
from saguaro_core.fan_out import (
    ALLOCATORS,
    allocate,
    best_first,
    capped_geometric,
    power_law_exponent,
    rank_by_rank,
    uniform,
)
from saguaro_core.outcomes import Outcomes

from .toy import TabularModel, run


def histograms():
    rng = random.Random(0)
    yield from (uniform(4), capped_geometric(0.7, 6), capped_geometric(0.0, 3), capped_geometric(1.0, 3))
    for _ in range(50):
        weights = [rng.random() ** 3 for _ in range(rng.randrange(1, 9))]
        yield [w / sum(weights) for w in weights]


@pytest.mark.parametrize("budget", [1, 5, 16, 24])
@pytest.mark.parametrize("r", [0.0, 0.3, 1.0, 2.0])
def test_the_budget_is_spent_exactly_and_the_same_way_each_time(budget, r):
    for histogram in histograms():
        widths = allocate(histogram, budget, r)
        assert sum(widths) == budget and min(widths) >= 0 and len(widths) == len(histogram)
        assert widths == allocate(list(histogram), budget, r)


def misses(histogram, widths, r):
    return sum(p * f**-r for p, f in zip(histogram, widths, strict=True))


@pytest.mark.parametrize("r", [0.5, 1.0, 2.0])
def test_no_whole_numbered_allocation_does_much_better(r):
    """All allocations with at least one candidate a fork; rounding costs little, and a wrong exponent is noticed."""
    wrong = 0
    for histogram in ([0.4, 0.2, 0.1, 0.3], [0.6, 0.2, 0.05, 0.15], uniform(3)):
        budget = 20
        allocations = [w for w in itertools.product(range(1, budget), repeat=4) if sum(w) == budget]
        best = min(misses(histogram, widths, r) for widths in allocations)
        assert misses(histogram, allocate(histogram, budget, r), r) <= 1.01 * best
        wrong = max(wrong, misses(histogram, [max(1, f) for f in allocate(histogram, budget, -0.5)], r) / best)
    assert wrong > 1.05


def test_theorem_12():
    """F_k = F_0 alpha^(k / (1 + r)) up to the last fork, which gets (1 - alpha)^(-1 / (1 + r)) more."""
    alpha, r, k = 0.8, 1.0, 4
    widths = allocate(capped_geometric(alpha, k), 100_000, r)
    for i in range(1, k):
        assert widths[i] / widths[0] == pytest.approx(alpha ** (i / (1 + r)), rel=1e-3)
    assert widths[k] / widths[0] == pytest.approx(alpha ** (k / (1 + r)) * (1 - alpha) ** (-1 / (1 + r)), rel=1e-3)


def test_an_impossible_histogram():
    with pytest.raises(ValueError, match="empty"):
        allocate([0.0, 0.0], 4)


def test_best_first_is_optimal():
    """Against every choice of candidates that takes each fork from its front."""
    rng = random.Random(1)
    for _ in range(20):
        forks = [sorted((rng.random() for _ in range(5)), reverse=True) for _ in range(3)]
        chosen = best_first(forks, 6)
        gain = sum(forks[fork][c] for fork, c in chosen)
        widths = [w for w in itertools.product(range(6), repeat=3) if sum(w) == 6]
        assert gain == pytest.approx(max(sum(sum(f[:w]) for f, w in zip(forks, each)) for each in widths))
        gains = [forks[fork][c] for fork, c in chosen]
        assert gains == sorted(gains, reverse=True) and len(set(chosen)) == 6
        assert best_first(forks, 4) == chosen[:4]


def test_best_first_with_few_candidates():
    assert best_first([[0.5], [], [0.5, 0.1]], 9) == [(0, 0), (2, 0), (2, 1)]


def test_rank_by_rank():
    assert rank_by_rank((2, 0, 3)) == [(0, 0), (2, 0), (0, 1), (2, 1), (2, 2)]


def test_the_exponent_of_a_power_law_is_found():
    r = 0.7
    left = [f**-r for f in range(1, 65)]
    curve = [1 - 0.9, *(0.9 * (a - b) for a, b in itertools.pairwise(left))]  # 1 - hit(F) = 0.9 F^-r
    assert power_law_exponent(curve) == pytest.approx(r)


@pytest.mark.parametrize("fan_out", ALLOCATORS)
@pytest.mark.parametrize("k", [1, 3])
def test_the_drafter_prepares_the_budget_and_never_the_rejected_token(fan_out, k):
    """Whatever the rule, through the shipped drafter: M candidates where the toy vocabulary has them, no repetition."""
    ids = tuple(range(9))
    target, draft = TabularModel(3, ids), TabularModel(4, ids)
    expected, _ = run("ar", target, draft, max_new_tokens=24)
    output, events = run("ssd", target, draft, k=k, fan_out=fan_out, budget=7, max_new_tokens=24)
    assert output == expected
    drafted = {event.round + 1: event.drafted for event in events if isinstance(event, Verify)}
    lookups = [event for event in events if isinstance(event, Lookup) and event.round > 1]
    assert len(lookups) > 5
    for lookup in lookups:
        pairs = [candidate[:2] for candidate in lookup.candidates]
        assert len(pairs) == len(set(pairs)) == 7
        for fork, token in pairs:
            assert drafted[lookup.round][fork : fork + 1] != (token,)


# ---------------------------------------------------------------------------------------------- statistics


def test_hazards_are_counted_right_though_much_is_unseen():
    """Speculations of random length, ranks beyond a random width: the estimates find the law they were drawn from."""
    rng = random.Random(2)
    outcomes, acceptance = Outcomes(), (0.8, 0.5, 0.3)
    ranks = [0.5, 0.2, 0.1, 0.05]  # and .15 beyond
    for _ in range(4000):
        length, width = rng.randrange(1, 4), rng.randrange(1, 5)
        accepted = 0
        while accepted < length and rng.random() < acceptance[accepted]:
            accepted += 1
        outcomes.add(True, [None] * length, accepted)
        rank = rng.choices(range(5), [*ranks, 0.15])[0]
        outcomes.add_rank(False, rank if rank < width else None, width)
    assert [outcomes.acceptance(True, i) for i in range(3)] == pytest.approx(acceptance, abs=0.08)
    assert outcomes.curve(False, 4) == pytest.approx(ranks, abs=0.06)
    assert outcomes.histogram(True, 3) == pytest.approx([0.2, 0.4, 0.28, 0.12], abs=0.07)


def test_hits_and_misses_are_counted_apart():
    outcomes = Outcomes()
    for _ in range(300):
        outcomes.add(True, [0.95, 0.95], 2)
        outcomes.add(False, [0.95, 0.95], 0)
    assert outcomes.acceptance(True, 0) > 0.95 and outcomes.acceptance(False, 0) < 0.05
    assert outcomes.calibrated(True, 0, 0.95) > 0.95 and outcomes.calibrated(False, 0, 0.95) < 0.05
    assert outcomes.calibrated(True, 0, 0.05) < 0.3  # another confidence has its own count


def test_probabilities_of_outcomes_sum_to_less_than_one_and_decrease():
    forks = Outcomes().probabilities(False, [None, 0.3], 8)
    assert len(forks) == 3 and 0.3 < sum(map(sum, forks)) < 1
    assert all(fork == sorted(fork, reverse=True) for fork in forks)

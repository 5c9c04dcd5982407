"""Which outcomes the cache is filled for, and what it holds. Expected guesses are computed by sorting, not by topk."""

from __future__ import annotations

import math

import pytest
import torch

from saguaro_core.cache import PreSpeculatedResult, SaguaroCache
from saguaro_core.fan_out import rank_by_rank
from saguaro_core.noise import Noise
from saguaro_core.rules import Coupled
from saguaro_core.sampling import warp
from saguaro_core.settings import make_settings

NONE = -math.inf


def at(columns: list[int], width: int) -> torch.Tensor:
    """One column of each row is the drafted token's."""
    return torch.tensor(columns, dtype=torch.int64)[:, None] == torch.arange(width)


def by_hand(scores: torch.Tensor, drafted: list[int], chosen: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    orders = []
    for fork, row in enumerate(scores.tolist()):
        refused = drafted[fork] if fork < len(drafted) else None
        able = [column for column, score in enumerate(row) if column != refused and score > NONE]
        orders.append(sorted(able, key=lambda column: -row[column]))
    return [(fork, c, orders[fork][c]) for fork, c in chosen if c < len(orders[fork])]


@pytest.mark.parametrize("k", [0, 1, 3])
def test_guesses_are_the_best_columns_without_the_drafted_token(k):
    draws = torch.Generator().manual_seed(k)
    for _ in range(20):
        scores = torch.randn(k + 1, 12, generator=draws)
        drafted = scores[:k].argmax(-1).tolist()  # the worst case: the draft's own favourites
        chosen = rank_by_rank([5, 2, 0, 3][: k + 1])
        got = SaguaroCache.predict(scores, at(drafted, 12), chosen)
        assert got == by_hand(scores, drafted, chosen) and len(got) == len(chosen)
        assert not any(fork < k and column == drafted[fork] for fork, _, column in got)


def test_after_full_acceptance_any_token_may_be_the_bonus():
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    assert SaguaroCache.predict(scores, at([0], 3), [(0, 0), (1, 0), (1, 1)]) == [(0, 0, 1), (1, 0, 2), (1, 1, 1)]


def test_the_order_is_the_one_that_was_chosen():
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    chosen = [(1, 1), (0, 2), (1, 0), (0, 0)]
    assert SaguaroCache.predict(scores, at([3], 4), chosen) == [(1, 1, 2), (0, 2, 2), (1, 0, 3), (0, 0, 0)]


def test_a_column_the_target_cannot_choose_is_no_guess():
    scores = torch.tensor([[5.0, NONE, 4.0, NONE], [NONE, NONE, NONE, 1.0]])
    chosen = rank_by_rank([4, 4])
    assert SaguaroCache.predict(scores, at([0], 4), chosen) == [(0, 0, 2), (1, 0, 3)]


def test_more_candidates_than_columns():
    scores = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert SaguaroCache.predict(scores, at([1], 2), rank_by_rank([9, 9])) == [(0, 0, 0), (1, 0, 0), (1, 1, 1)]
    assert SaguaroCache.predict(scores, at([1], 2), []) == []


def test_under_coupled_the_guess_is_the_winner_of_the_race():
    """With the target's own logits, the best guess after full acceptance is the target's token."""
    settings = make_settings("ssd", temperature=1.0, top_k=5, seed=7)
    logits, ids = torch.randn(2, 30, generator=torch.Generator().manual_seed(1)), torch.arange(30)
    rule = Coupled(settings, ids)
    (guess,) = SaguaroCache.predict(rule.scores(logits, [11, 12]), at([4], 30), [(1, 0)])
    race = warp(logits, 1.0, 5, 1.0) + Noise(7, ids).rows([11, 12])
    assert guess == (1, 0, int(race[1].argmax()))
    assert rule.verify(logits, [int(race[0].argmax())], None, 11, None).bonus == guess[2]
    assert len(SaguaroCache.predict(rule.scores(logits, [11, 12]), at([4], 30), rank_by_rank([0, 9]))) == 5  # top-k


def test_sequences_do_not_share_branches():
    cache = SaguaroCache(2)
    branches = [PreSpeculatedResult(row, row, None, [10 + row]) for row in range(2)]
    for seq, branch in enumerate(branches):
        cache.store((seq, 1, 7), branch)
    assert [cache.lookup((seq, 1, 7)) for seq in range(3)] == [*branches, None]
    assert cache.candidates(1) == ((1, 7, (11,)),)
    cache.clear()
    assert cache.lookup((0, 1, 7)) is None and len(cache) == 0

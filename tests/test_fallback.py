"""Fallback strategies and the size of the cache: the rules, and that the drafter follows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from saguaro_core import drafting
from saguaro_core.cache import PreSpeculatedResult, SaguaroCache
from saguaro_core.capacity import COVERAGE, entry_bytes, optimal_cache_size
from saguaro_core.events import DraftStep, Fallback, Lookup, Verify
from saguaro_core.fallback import FallbackStrategy, MissInfo, adaptive_fallback, gain_of_one_token
from saguaro_core.sampling import Stream
from saguaro_core.settings import make_settings

from .toy import TabularModel, run, run_batch

IMMEDIATE, BATCHED, PARTIAL = FallbackStrategy


def test_by_size():
    miss = MissInfo(gain=0.5)
    chosen = {size: adaptive_fallback(miss, size) for size in (1, 2, 16, 17, 64)}
    assert chosen == {1: IMMEDIATE, 2: BATCHED, 16: BATCHED, 17: PARTIAL, 64: PARTIAL}


def test_by_measured_cost():
    """Ten tokens a second are made while it takes 30 ms to draft one: worth it from a gain of 0.3 on."""
    miss = MissInfo(gain=0.31, step_s=0.03, rate=10)
    assert miss.forgone == pytest.approx(0.3)
    assert adaptive_fallback(miss, 1, "auto") is IMMEDIATE and adaptive_fallback(miss, 4, "auto") is BATCHED
    assert adaptive_fallback(replace(miss, gain=0.29), 1, "auto") is PARTIAL
    assert adaptive_fallback(MissInfo(gain=0.1), 1, "auto") is IMMEDIATE  # nothing measured yet


def test_by_name():
    for strategy in FallbackStrategy:
        assert adaptive_fallback(MissInfo(0.5), 8, strategy.value) is strategy
    assert adaptive_fallback(MissInfo(0.5), 1, "batched_retry") is IMMEDIATE
    with pytest.raises(ValueError):
        adaptive_fallback(MissInfo(0.5), 1, "hope")


def test_gain():
    assert gain_of_one_token([0.5]) == 0.5 and gain_of_one_token([0.9, 0.8, 0.5]) == pytest.approx(0.36)


def play(rows=1, **case):
    settings = make_settings("ssd", k=2, fan_out=(1, 0, 1), max_new_tokens=24, **case)
    prompts = [(0, 1), (1, 0), (2,), (0, 2, 1)][:rows]
    return run_batch(TabularModel(1), TabularModel(2), prompts, [settings] * rows)[1]


def used(events):
    return {event.strategy for event in events if isinstance(event, Fallback)}


def test_the_event_names_what_was_really_done():
    assert used(play()) == {"immediate_retry"}
    assert used(play(rows=3)) == {"batched_retry"}
    assert used(play(rows=3, fallback="immediate_retry")) == {"immediate_retry"}
    assert used(play(rows=3, fallback="partial_accept")) == {"partial_accept"}


def test_only_missing_rows_are_drafted_for():
    """A row whose speculation was ready gets exactly that one, whatever the others are given."""
    for fallback in ("batched_retry", "immediate_retry", "partial_accept"):
        events = play(rows=4, fallback=fallback)
        drafted = {(e.seq, e.round): e.drafted for e in events if isinstance(e, Verify)}
        hits = 0
        for e in events:
            if isinstance(e, Lookup) and (e.seq, e.round) in drafted:
                ready = next((tokens for k, t, tokens in e.candidates if (k, t) == (e.k, e.bonus)), ())
                if e.hit:
                    assert drafted[e.seq, e.round] == ready[: len(drafted[e.seq, e.round])]
                    hits += 1
                elif fallback == "partial_accept":
                    assert drafted[e.seq, e.round] == ()
        assert hits > 3


def test_one_by_one_costs_a_forward_for_each():
    def steps(fallback):
        events = play(rows=4, fallback=fallback)
        misses = sum(isinstance(e, Fallback) for e in events)
        return sum(isinstance(e, DraftStep) for e in events), misses

    (together, misses), (alone, same) = steps("batched_retry"), steps("immediate_retry")
    assert misses == same == alone and together < alone
    assert steps("partial_accept")[0] == 0


def test_auto_weighs_a_slow_draft(monkeypatch):
    """The same measurements, but the draft takes a thousand times as long as it does."""
    shipped = drafting.MissInfo

    def slow(gain, step_s, rate):
        return shipped(gain, step_s * 1000, rate)

    assert "immediate_retry" in used(play(fallback="auto"))
    monkeypatch.setattr(drafting, "MissInfo", slow)
    assert "partial_accept" in used(play(fallback="auto"))


# ------------------------------------------------------------------------------------------------------ the cache


def test_bytes_of_an_entry():
    assert entry_bytes(3, 0) == 4 * 8
    assert entry_bytes(3, 8192) == 4 * 8 + 3 * 8192 * 4


def test_more_of_everything_matters():
    def size(batch=1, hit_rate=0.8, memory=10**9, **kwargs):
        return optimal_cache_size(batch, hit_rate, memory, **({"bytes_per_entry": 10**5, "entries": 16} | kwargs))

    assert size() == 30  # 16 * ln(0.05) / ln(0.2) = 29.8
    assert size(hit_rate=0.6) > size(hit_rate=0.8) > size(hit_rate=0.95) == 16
    assert size(batch=8) > 8 * size()  # each row must hit more often, for all to hit
    assert size(memory=10**6) == 10 and size(memory=10**6, bytes_per_entry=10**4) == 30
    assert size(hit_rate=0) == 10**4 and size(hit_rate=1, batch=4) == 64
    assert size(memory=0, batch=4) == 4


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_the_coverage_is_reached_and_not_by_much(batch):
    h, entries = 0.7, 16
    n = optimal_cache_size(batch, h, 10**12, bytes_per_entry=1, entries=entries) // batch

    def all_hit(n):
        return (1 - (1 - h) ** (n / entries)) ** batch

    assert all_hit(n) >= COVERAGE > all_hit(n - 1)


@pytest.mark.parametrize("wrong", [(0, 0.5, 1), (1, 1.5, 1), (1, -0.1, 1), (1, 0.5, -1)])
def test_sizes_that_make_no_sense(wrong):
    with pytest.raises(ValueError):
        optimal_cache_size(*wrong, bytes_per_entry=1)


def test_a_full_cache_takes_no_more():
    cache = SaguaroCache(2)
    for bonus in range(2):
        cache.store((0, 0, bonus), PreSpeculatedResult(0, bonus, Stream(0)))
    with pytest.raises(OverflowError):
        cache.store((0, 0, 2), PreSpeculatedResult(0, 2, Stream(0)))
    assert len(cache) == 2 and cache.lookup((0, 0, 1)).candidate == 1 and cache.lookup((0, 0, 2)) is None


def test_memory_limits_the_tree(monkeypatch):
    """Room for two entries with their distributions: two outcomes are prepared; without distributions all are."""
    monkeypatch.setattr(drafting, "MEMORY_LIMIT", 2 * entry_bytes(2, 3))

    def prepared(verification):
        _, events = run("ssd", TabularModel(1), TabularModel(2), k=2, fan_out=(2, 2, 2), max_new_tokens=16,
                        temperature=1.0, verification=verification)  # fmt: skip
        return max(len(event.candidates) for event in events if isinstance(event, Lookup))

    assert prepared("token") == 2
    assert prepared("coupled") > 2

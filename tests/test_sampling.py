"""Temperature, top-k, top-p and the streams of draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from saguaro_core.sampling import Stream, Streams, warp


def nucleus(probs, top_p):
    """The smallest set of likeliest tokens with mass of at least top_p, the plain way."""
    kept, mass = set(), 0.0
    for token in np.argsort(-np.array(probs)):
        if mass >= top_p:
            break
        kept.add(int(token))
        mass += probs[token]
    return kept


@pytest.mark.parametrize("spread", [0.01, 2.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.95])
def test_top_p(spread, top_p):
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * spread
    kept = warp(logits, 1.0, top_p=top_p) > -torch.inf
    for row, mask in zip(logits.softmax(-1).tolist(), kept, strict=True):
        assert set(mask.nonzero().flatten().tolist()) == nucleus(row, top_p)


def test_top_k_and_temperature():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    assert warp(logits, 0.5, top_k=2).tolist() == [[-np.inf, 6.0, 4.0, -np.inf]]
    assert warp(logits, 2.0).tolist() == [[0.5, 1.5, 1.0, 0.0]]
    assert warp(logits, 1.0, top_k=9, top_p=1.0).tolist() == logits.tolist()


def test_streams_are_independent_and_repeatable():
    probs = torch.full((1000,), 1 / 1000)

    def draws(stream):
        return [stream.choose(probs) for _ in range(20)]

    keys = [s for seed in (0, 1) for r in (1, 2) for s in (
        Streams(seed).target(r), Streams(seed).just_in_time(r), Streams(seed).branch(r, 0, 0),
        Streams(seed).branch(r, 0, 1), Streams(seed).branch(r, 1, 0), Streams(seed).branch(r, -1, 0))]  # fmt: skip
    assert len({tuple(draws(stream)) for stream in keys}) == len(keys)
    assert draws(Streams(5).target(3)) == draws(Streams(5).target(3))


def test_choose_never_draws_the_impossible():
    stream = Stream(0)
    assert {stream.choose(torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])) for _ in range(500)} == {1, 3}


def test_choose_follows_the_distribution():
    stream, p = Stream(3), torch.tensor([0.1, 0.2, 0.7])
    counts = np.bincount([stream.choose(p) for _ in range(20_000)], minlength=3)
    assert np.abs(counts / 20_000 - p.numpy()).max() < 0.015

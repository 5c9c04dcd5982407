"""From logits to the distribution that is really sampled: temperature, top-k, top-p; and the streams that draw."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def warp(logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Logits [N, V] divided by the temperature, with everything outside top-k and the top-p nucleus at -inf.

    Float32 at least. `top_k` 0 and `top_p` 1 switch a filter off. A nucleus is the smallest set of likeliest tokens
    whose mass reaches `top_p`; ties at its edge stay in.
    """
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    if 0 < top_k < logits.shape[-1]:
        smallest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if top_p < 1:
        logits = logits.masked_fill(logits < _nucleus_edge(logits, top_p), -torch.inf)
    return logits


def _nucleus_edge(logits: Tensor, top_p: float) -> Tensor:
    """The smallest logit [N, 1] in each row's nucleus. A full sort of a large vocabulary costs as much as a
    verification, so the likeliest tokens are tried first."""
    total = logits.logsumexp(-1, keepdim=True)
    for count in (min(1024, logits.shape[-1]), logits.shape[-1]):
        ordered = logits.topk(count, dim=-1).values
        mass = (ordered - total).exp().cumsum(-1)
        if count == logits.shape[-1] or bool((mass[:, -1] >= top_p).all()):
            break
    mass_before = mass.roll(1, dims=-1)
    mass_before[:, 0] = 0
    return ordered.masked_fill(mass_before >= top_p, torch.inf).min(-1, keepdim=True).values


class Stream:
    """One independent source of draws."""

    def __init__(self, *key: int):
        self._key, self._generator = key, None

    def choose(self, probs: Tensor) -> int:
        """An index drawn from `probs` [n] (they sum to 1). An index of probability 0 is never drawn."""
        if self._generator is None:
            self._generator = np.random.default_rng(self._key)
        cumulative = np.cumsum(probs.double().cpu().numpy())
        index = int(np.searchsorted(cumulative, self._generator.random() * cumulative[-1], side="right"))
        return min(index, int(np.searchsorted(cumulative, cumulative[-1])))


class Streams:
    """The streams of one sequence, keyed by what they draw for, so that no two roles share randomness and a branch
    that is never looked up cannot shift the draws of another (ssd-algorithm note, 6.2)."""

    def __init__(self, seed: int):
        self._seed = seed % 2**64

    def target(self, round: int) -> Stream:
        return Stream(self._seed, 1, round)

    def just_in_time(self, round: int) -> Stream:
        return Stream(self._seed, 2, round)

    def branch(self, round: int, fork: int, candidate: int) -> Stream:
        return Stream(self._seed, 3, round, fork + 1, candidate)

"""Noise keyed by (seed, position, token id): the shared randomness of `coupled` verification.

Target and draft race with the same noise (drafter-invariant speculative decoding: Daliri, Musco, Suresh, arXiv
2408.07978): a token is argmax p_i / E_i with E_i ~ Exp(1), that is argmax log p_i + G_i with the Gumbel noise
G_i = -log E_i. The noise is a counter-based hash, so every method, device and process draws the same.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def hash32(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """A 32-bit hash of (seed, position, token id) for each id: uint32 [n]. Rounds of the murmur3 finaliser, a
    bijection of 32-bit words, keyed between the rounds by two words mixed from seed and position."""
    key = np.random.SeedSequence((seed % 2**64, position)).generate_state(2, np.uint32)
    words = ids.astype(np.uint32) ^ key[0]
    words = _mix(words)
    words ^= key[1]
    return _mix(words)


def _mix(words: np.ndarray) -> np.ndarray:
    words ^= words >> np.uint32(16)
    words *= np.uint32(0x85EBCA6B)
    words ^= words >> np.uint32(13)
    words *= np.uint32(0xC2B2AE35)
    words ^= words >> np.uint32(16)
    return words


class Noise:
    """Gumbel noise for a fixed list of token `ids` (int64 [V]), memoised per position: a position is met in up to K
    rounds and only new rows are computed."""

    def __init__(self, seed: int, ids: Tensor):
        self._seed, self._device = seed, ids.device
        self._ids = ids.cpu().numpy()
        self._rows: dict[int, Tensor] = {}

    def rows(self, positions: list[int]) -> Tensor:
        """Float32 [len(positions), V]. Rows far behind the newest position are forgotten."""
        if len(self._rows) > 256:
            newest = max(positions)
            self._rows = {p: row for p, row in self._rows.items() if p > newest - 64}
        return torch.stack([self._row(position) for position in positions])

    def _row(self, position: int) -> Tensor:
        row = self._rows.get(position)
        if row is None:
            words = torch.from_numpy(hash32(self._seed, position, self._ids).astype(np.float32))
            uniform = (words + 0.5) * 2.0**-32  # float32 resolves the small values, where the race is decided
            row = self._rows[position] = (-torch.log(-torch.log1p(-uniform))).to(self._device)
        return row

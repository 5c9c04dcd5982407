"""Verification: what of a speculation the target keeps, and the token it chooses next. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class VerificationOutcome:
    """`k` drafted tokens accepted, then `bonus` chosen by the target (a correction where k < K)."""

    k: int
    bonus: int
    tokens: tuple[int, ...]
    """the accepted tokens and the bonus: what the round emits"""


def match(choices: Sequence[int], drafted: Sequence[int]) -> VerificationOutcome:
    """Accept while the drafted token equals the target's own choice. `choices` has one more entry than `drafted`.

    Lossless for any drafts whatever, as the output is the target's choices alone: argmax for `greedy`, a draw with
    noise keyed by position for `coupled`.
    """
    k = 0
    while k < len(drafted) and drafted[k] == choices[k]:
        k += 1
    return VerificationOutcome(k, choices[k], tuple(choices[: k + 1]))


def speculative_sampling(
    p: Tensor, q: Tensor, drafted: Sequence[int], choose: Callable[[Tensor], int]
) -> VerificationOutcome:
    """Token-by-token speculative sampling (Leviathan, Kalman, Matias, ICML 2023, Algorithm 1).

    `p` [K + 1, V]: the target's distributions. `q` [K, V]: the distributions that the drafted tokens were really
    drawn from. `choose(probs)` draws an index. A drafted token x is accepted with min(1, p(x) / q(x)); the first
    rejected one is replaced by a draw from the normalised (p - q)+; after K acceptances the bonus is drawn from p_K.
    """
    for i, token in enumerate(drafted):
        accept = (p[i, token] / q[i, token]).clamp(max=1)
        if choose(torch.stack((accept, 1 - accept))) != 0:
            residual = (p[i] - q[i]).clamp(min=0)
            mass = residual.sum()
            correction = choose(residual / mass if mass > 0 else p[i])
            return VerificationOutcome(i, correction, (*drafted[:i], correction))
    bonus = choose(p[len(drafted)])
    return VerificationOutcome(len(drafted), bonus, (*drafted, bonus))

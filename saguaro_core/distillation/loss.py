"""What the student minimises, and how its agreement with the target is measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Labels:
    """The target's distributions at n positions, as far as the student's head can say them.

    `columns` int64 [n, 16]: the head's columns of the target's likeliest tokens, likeliest first, -1 for a token
    outside the head; `probs` float [n, 16]: their probabilities.
    """

    columns: Tensor
    probs: Tensor

    @property
    def inside(self) -> Tensor:
        """`probs`, 0 outside the head: [n, 16]."""
        return self.probs.masked_fill(self.columns < 0, 0)


def label(ids: Tensor, probs: Tensor, column_of: Tensor) -> Labels:
    """`ids`, `probs` [n, 16] over the target's vocabulary; `column_of` int64 [vocabulary]: a token's column or -1."""
    return Labels(column_of[ids.long()], probs.float())


def log_likelihoods(logits: Tensor, labels: Labels) -> Tensor:
    """log q [n, 16] of the labelled tokens under `logits` [n, columns]; arbitrary outside the head."""
    logits = logits.float()
    return logits.gather(1, labels.columns.clamp_min(0)) - logits.logsumexp(-1, keepdim=True)


def divergence(log_q: Tensor, labels: Labels, total_variation: float) -> Tensor:
    """Mean over positions of `(1 - w) KL(p || q) + w TV(p, q)`, with w = `total_variation`.

    1 - TV is the probability that a token drafted from q is accepted (Leviathan, Kalman, Matias, 2023, section 3.3);
    its use as a loss: Zhou et al., DistillSpec, 2024. Sums run over the target's likeliest tokens inside the head.
    """
    p = labels.inside
    kl = (torch.xlogy(p, p) - p * log_q).sum(-1)
    tv = p.sum(-1) - torch.minimum(p, log_q.exp()).sum(-1)
    return ((1 - total_variation) * kl + total_variation * tv).mean()


@torch.no_grad()
def agreement(logits: Tensor, log_q: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
    """Of each position: whether both would choose the same token greedily (bool [n]), and the probability that a
    token drawn from q is accepted, sum of min(p, q) (float [n])."""
    same = logits.argmax(-1) == labels.columns[:, 0]
    return same, torch.minimum(labels.inside, log_q.exp()).sum(-1)


def accepted_per_round(same: list[bool], lookahead: int) -> tuple[int, int]:
    """`(tokens, rounds)` that greedy speculative decoding makes of an answer.

    `same`: for each token of the answer, whether the draft agrees given the tokens before it. As a drafted token only
    counts while all before it were right, these teacher-forced answers say exactly what real rounds would do.
    """
    at = rounds = 0
    while at < len(same):
        rounds += 1
        taken = 0
        while taken < lookahead and at + taken < len(same) and same[at + taken]:
            taken += 1
        at += taken + 1
    return min(at, len(same)), rounds

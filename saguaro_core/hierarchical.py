"""Hierarchical speculative decoding (HSD): lossless verification of a whole speculation at once.

Zhou et al., "Overcoming Joint Intractability with Lossless Hierarchical Speculative Decoding", ICLR 2026 (arXiv
2601.05724), with capped prefix ratios (Eqs. 16-20). For one draft a round this is block verification (Sun et al.,
arXiv 2403.10444): a token may be accepted although it is unlikely, if the tokens before it had ratio to spare, so
that no lossless rule for one draft accepts more. It differs from token-by-token verification only for K >= 2.

In terms of b_t = min(1, b_{t-1} p(x_t) / q(x_t)), b_0 = 1, which is the probability that at least t drafted tokens are
accepted, nothing is a product of many probabilities, so float32 is enough. Rows are counted from 0: p_t is the target's
distribution after t drafted tokens, and token t + 1 was drawn from q_t.

    residual_t = max(b_t p_t - q_t, 0) for t < K,  p_K for t = K;   S_t: its sum
    h_t = S_t / (S_t + 1 - b_t) for 0 < t < K,  h_K = b_K,  h_0 = 1: accept exactly t, if not more
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .verification import VerificationOutcome


def prefix_acceptance(p: Tensor, q: Tensor, drafted: Tensor, lengths: Tensor) -> Tensor:
    """b [N, K + 1]: the probability that at least t tokens are accepted, given the draft. Arguments as in `law`."""
    column = drafted[..., None]
    ratios = p[:, :-1].gather(2, column).log() - q.gather(2, column).log()
    beyond = torch.arange(q.shape[1], device=q.device) >= lengths[:, None]
    prefix = ratios.squeeze(2).masked_fill(beyond, 0).cumsum(1)
    peak = prefix.clamp(min=0).cummax(1).values
    return torch.cat((torch.ones_like(p[:, :1, 0]), (prefix - peak).exp()), dim=1)


def law(p: Tensor, q: Tensor, drafted: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """How many tokens are accepted, and what follows: `(accepted [N, K + 1], residual [N, K + 1, V])`.

    `p` [N, K + 1, V] and `q` [N, K, V] float32 or float64; `drafted` [N, K] int64, of which the first `lengths` [N]
    count. `accepted`: the probability of accepting exactly t tokens. `residual`: the next token's distribution after
    t accepted ones, not normalised.
    """
    b = prefix_acceptance(p, q, drafted, lengths)
    steps = torch.arange(b.shape[1], device=b.device)
    last = steps == lengths[:, None]
    owed = torch.cat((q, torch.zeros_like(p[:, :1])), dim=1).masked_fill(last[..., None], 0)
    share = b.masked_fill(last, 1)
    residual = (share[..., None] * p - owed).clamp(min=0)
    spare = residual.sum(-1)
    h = torch.where(spare + 1 - b > 0, spare / (spare + 1 - b), 1)
    h = torch.where(last, b, h).masked_fill(steps > lengths[:, None], 0)
    h[:, 0] = 1
    not_more = (1 - h).flip(1).cumprod(1).flip(1)  # [N, t]: nothing from t on was accepted
    return h * torch.cat((not_more[:, 1:], torch.ones_like(h[:, :1])), dim=1), residual


def hierarchical_verification(
    p: Tensor, q: Tensor, drafted: Sequence[Sequence[int]], choose: Sequence[Callable[[Tensor], int]]
) -> list[VerificationOutcome]:
    """Verify N speculations of at most K tokens each, which may differ in length.

    `p` [N, K + 1, V]: the target's distributions; rows behind a speculation's end are ignored, one after its last
    token is the bonus's. `q` [N, K, V]: the very distributions that the drafted tokens were drawn from.
    `choose[n](probs)` draws an index for speculation n; its draws must be independent of the draft's.
    """
    p, q = (x if x.dtype == torch.float64 else x.float() for x in (p, q))
    lengths = torch.tensor([len(tokens) for tokens in drafted], device=p.device)
    padded = [[*tokens, *[0] * (q.shape[1] - len(tokens))] for tokens in drafted]
    accepted, residual = law(p, q, torch.tensor(padded, dtype=torch.int64, device=p.device), lengths)
    outcomes = []
    for n, tokens in enumerate(drafted):
        k = choose[n](accepted[n])
        row = residual[n, k]
        mass = row.sum()
        bonus = choose[n](row / mass if mass > 0 else p[n, k])  # no mass: rounding only
        outcomes.append(VerificationOutcome(k, bonus, (*tokens[:k], bonus)))
    return outcomes

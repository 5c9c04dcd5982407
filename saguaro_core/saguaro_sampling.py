"""Saguaro sampling: draft from a distribution that makes the next bonus easier to foresee, at some cost in acceptance.

What a rejection leaves to the target is (p - q)+, so taking probability q away from the tokens that the cache will hold
moves corrections onto them. Both forms here map the draft's own distribution q to another, q', from which the draft
then really draws and which verification then uses as the proposal, in min(1, p / q') and in (p - q')+ alike. So the
output stays exactly the target's (ssd-algorithm note, 3.3 and 3.5); verifying with q instead would not.

Neither form changes which corrections are likeliest: with the draft as the estimate of the target the residual is
(q - q')+, and its order is that of q, so candidates go on being ranked by q.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHOICES = (1.0, 0.8, 0.6, 0.4)  # of C, among which `OnlineC` chooses
LARGEST_ODDS = 1e6


def down_weighted(q: Tensor, width: int, c: float) -> Tensor:
    """The paper's form (Definition 14): the `width` + 1 likeliest tokens of each row of `q` [N, H] at `c` times their
    probability, renormalised. One more than the fan-out `width`, because the drafted token is no candidate. `c` 1 is
    plain sampling; a row whose mass is all on those tokens stays as it is, as must one where `c` is 0."""
    top = q.topk(
        min(width + 1, q.shape[-1]), dim=-1
    ).indices  # on one device only: the target gets q', so ties are safe
    return _normalised(q.scatter(-1, top, c * q.gather(-1, top)), q)


def second_choice(q: Tensor) -> Tensor:
    """The draft's own estimate of the residual, from `q` [N, H] alone: the law of the second of two draws from a row
    that must differ. The residual itself needs the target's distribution, which is not known when drafting.

    r(t) = q(t) * sum over x other than t of q(x) / (1 - q(x))."""
    odds = (q / (1 - q)).nan_to_num(LARGEST_ODDS).clamp(max=LARGEST_ODDS)
    top, at = odds.max(-1, keepdim=True)  # kept out of the sum, where it would swallow the others
    others = odds.scatter(-1, at, 0).sum(-1, keepdim=True)
    return _normalised(q * (others + top - odds).scatter(-1, at, others).clamp(min=0), q)


def saguaro_sampling(draft_probs: Tensor, residual_probs: Tensor) -> Tensor:
    """The geometric-mean form: q' proportional to sqrt(q * r), for distributions [N, H] of the draft and of the
    residual as far as the draft can estimate it (`second_choice`). Where the product is 0 everywhere, q."""
    return _normalised((draft_probs * residual_probs).sqrt(), draft_probs)


def _normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, otherwise)


class OnlineC:
    """Chooses C from round to round, by what speculations drawn with each C have given.

    A C is worth its tokens a round over the time of a round, 1 + miss rate * `wait`: how many tokens stood, and how
    often the next bonus was then not foreseen. `MATURITY` rounds of the average over all C count with its own, so that
    a few rounds decide little. Every `EXPLORE`-th round goes to the C tried least. Only the draft needs to know C: it
    sends the distributions. The choice uses past outcomes only, so nothing is biased.
    """

    EXPLORE, MATURITY = 6, 8

    def __init__(self):
        self.c = CHOICES[0]
        self._verified: float | None = None  # the C that the speculation under verification was drawn with
        self._rounds = 0
        self._seen = {c: [0, 0, 0] for c in CHOICES}  # rounds, tokens, misses

    def outcome(self, accepted: int | None, hit: bool, wait: float) -> None:
        """Of the speculation before `accepted` tokens stood (None: there was none), and the next one was prepared
        (`hit`) or not. `wait`: the time of drafting one just in time, in verifications."""
        if accepted is not None and self._verified is not None:
            seen = self._seen[self._verified]
            for i, count in enumerate((1, 1 + accepted, not hit)):
                seen[i] += count
        self._rounds += 1
        prepared_with, self.c = self.c, self._choose(wait)
        self._verified = prepared_with if hit else self.c

    def _choose(self, wait: float) -> float:
        tried = min(CHOICES, key=lambda c: self._seen[c][0])
        if self._rounds % self.EXPLORE == 0 or self._seen[tried][0] == 0:
            return tried
        rounds, tokens, misses = map(sum, zip(*self._seen.values(), strict=True))
        share = self.MATURITY / rounds

        def worth(c: float) -> float:
            n, t, m = self._seen[c]
            return (t + share * tokens) / (n + share * rounds + wait * (m + share * misses))

        return max(CHOICES, key=worth)

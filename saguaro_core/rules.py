"""A verification rule, seen from both sides: how the draft proposes and ranks, how the target verifies.

Columns of draft logits are positions in `ids` (the target ids of the draft's output head); columns of target logits
are target ids. All rules are lossless: the output follows the target's law whatever the draft does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from .hierarchical import hierarchical_verification
from .noise import Noise
from .saguaro_sampling import OnlineC, down_weighted, saguaro_sampling, second_choice
from .sampling import Stream, warp
from .settings import AUTO, PLAIN, SAGUARO, Settings
from .verification import VerificationOutcome, match, speculative_sampling


class Rule(Protocol):
    sends_q: bool
    """whether verification needs the draft's distributions"""

    def propose(
        self, logits: Tensor, positions: list[int], streams: Sequence[Stream], width: int = 0
    ) -> tuple[list[int], Tensor | None]:
        """Draft logits [N, H] for the tokens at `positions`: N columns drafted, and the distributions [N, H] they
        were drawn from where `sends_q`. `width`: how many corrections will be foreseen if the token is rejected."""

    def scores(self, logits: Tensor, positions: list[int]) -> Tensor:
        """Draft logits [N, H]: scores [N, H], highest for the column the target will likeliest choose there."""

    def verify(
        self, logits: Tensor, drafted: Sequence[int], q: Tensor | None, position: int, stream: Stream
    ) -> VerificationOutcome:
        """Target logits [K + 1, V] at `position`, `position + 1`, ...; q [K, V] over target ids where `sends_q`."""

    def outcome(self, accepted: int | None, hit: bool, wait: float) -> None:
        """Told to the draft's side once a round: see `OnlineC.outcome`."""


def _argmax(logits: Tensor) -> list[int]:
    """Ties go to the lowest id. In float32: the bf16 kernel is many times slower on CPUs."""
    return logits.float().argmax(-1).tolist()


class Greedy:
    """Temperature 0: the token is the argmax. Hierarchical verification gives the same, so `hsd` runs as this."""

    sends_q = False

    def outcome(self, accepted, hit, wait):
        pass

    def propose(self, logits, positions, streams, width=0):
        return _argmax(logits), None

    def scores(self, logits, positions):
        return logits.float()

    def verify(self, logits, drafted, q, position, stream):
        return match(_argmax(logits), drafted)


class Coupled:
    """Both sides race with the same noise (see `noise`): the sampled text does not depend on the draft at all."""

    sends_q = False

    def __init__(self, settings: Settings, ids: Tensor):
        self._settings, self._noise = settings, Noise(settings.seed, ids)

    def outcome(self, accepted, hit, wait):
        pass

    def scores(self, logits, positions):
        s = self._settings
        return warp(logits, s.temperature, s.top_k, s.top_p) + self._noise.rows(positions)

    def propose(self, logits, positions, streams, width=0):
        return _argmax(self.scores(logits, positions)), None

    def verify(self, logits, drafted, q, position, stream):
        positions = list(range(position, position + len(logits)))
        return match(_argmax(self.scores(logits, positions)), drafted)


class Token:
    """Speculative sampling: independent draws on both sides, the draft's distributions cross. They are the true
    proposals, whichever form of Saguaro sampling they are drawn from."""

    sends_q = True

    def __init__(self, settings: Settings):
        self._settings = settings
        self._online = OnlineC() if settings.proposal == SAGUARO and settings.saguaro_c == AUTO else None
        self._propose = _proposal(settings, self._online)

    def outcome(self, accepted, hit, wait):
        if self._online:
            self._online.outcome(accepted, hit, wait)

    def _probs(self, logits: Tensor) -> Tensor:
        s = self._settings
        return warp(logits, s.temperature, s.top_k, s.top_p).softmax(-1)

    def propose(self, logits, positions, streams, width=0):
        q = self._propose(self._probs(logits), width)
        return [stream.choose(row) for stream, row in zip(streams, q, strict=True)], q

    def scores(self, logits, positions):
        """The order of the draft's estimate of the residual too, under every proposal (see `saguaro_sampling`)."""
        return logits.float()

    def verify(self, logits, drafted, q, position, stream):
        return speculative_sampling(self._probs(logits), q, drafted, stream.choose)


class Block(Token):
    """The same draws, verified as a whole: hierarchical verification, of which one draft a round is block
    verification."""

    def verify(self, logits, drafted, q, position, stream):
        if q is None:
            q = logits.new_zeros(0, logits.shape[-1])
        (outcome,) = hierarchical_verification(self._probs(logits)[None], q[None], [drafted], [stream.choose])
        return outcome


def _proposal(settings: Settings, online: OnlineC | None) -> Callable[[Tensor, int], Tensor]:
    """From the draft's distributions [N, H] and the fan-out to the ones drawn from."""
    if settings.proposal == PLAIN:
        return lambda q, width: q
    if settings.proposal == SAGUARO:
        return lambda q, width: down_weighted(q, width, online.c if online else settings.saguaro_c)
    return lambda q, width: saguaro_sampling(q, second_choice(q))


def make_rule(settings: Settings, ids: Tensor) -> Rule:
    """The rule of these settings for a device whose logit columns are the target ids `ids` (int64 [H])."""
    if settings.verification == "greedy":
        return Greedy()
    if settings.verification == "coupled":
        return Coupled(settings, ids)
    return Block(settings) if settings.verification == "block" else Token(settings)


def over_target_ids(q: Tensor, ids: Tensor, vocabulary: int) -> Tensor:
    """Draft distributions [K, H] over `ids` as distributions [K, V] over all target ids, 0 elsewhere."""
    return torch.zeros(len(q), vocabulary, dtype=q.dtype, device=q.device).index_copy_(1, ids, q)

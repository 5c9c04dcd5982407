"""A verification rule, seen from both sides: how the draft proposes and ranks, how the target verifies.

Columns of draft logits are positions in `ids` (the target ids of the draft's output head); columns of target logits
are target ids. All rules are lossless: the output follows the target's law whatever the draft does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .noise import Noise
from .sampling import Stream, warp
from .settings import Settings
from .verification import VerificationOutcome, match, speculative_sampling


class Rule(Protocol):
    sends_q: bool
    """whether verification needs the draft's distributions"""

    def propose(
        self, logits: Tensor, positions: list[int], streams: Sequence[Stream]
    ) -> tuple[list[int], Tensor | None]:
        """Draft logits [N, H] for the tokens at `positions`: N columns drafted, and the distributions [N, H] they
        were drawn from where `sends_q`."""

    def scores(self, logits: Tensor, positions: list[int]) -> Tensor:
        """Draft logits [N, H]: scores [N, H], highest for the column the target will likeliest choose there."""

    def verify(
        self, logits: Tensor, drafted: Sequence[int], q: Tensor | None, position: int, stream: Stream
    ) -> VerificationOutcome:
        """Target logits [K + 1, V] at `position`, `position + 1`, ...; q [K, V] over target ids where `sends_q`."""


def _argmax(logits: Tensor) -> list[int]:
    """Ties go to the lowest id. In float32: the bf16 kernel is many times slower on CPUs."""
    return logits.float().argmax(-1).tolist()


class Greedy:
    """Temperature 0: the token is the argmax."""

    sends_q = False

    def propose(self, logits, positions, streams):
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

    def scores(self, logits, positions):
        s = self._settings
        return warp(logits, s.temperature, s.top_k, s.top_p) + self._noise.rows(positions)

    def propose(self, logits, positions, streams):
        return _argmax(self.scores(logits, positions)), None

    def verify(self, logits, drafted, q, position, stream):
        positions = list(range(position, position + len(logits)))
        return match(_argmax(self.scores(logits, positions)), drafted)


class Token:
    """Speculative sampling: independent draws on both sides, the draft's distributions cross."""

    sends_q = True

    def __init__(self, settings: Settings):
        self._settings = settings

    def _probs(self, logits: Tensor) -> Tensor:
        s = self._settings
        return warp(logits, s.temperature, s.top_k, s.top_p).softmax(-1)

    def propose(self, logits, positions, streams):
        q = self._probs(logits)
        return [stream.choose(row) for stream, row in zip(streams, q, strict=True)], q

    def scores(self, logits, positions):
        return logits.float()

    def verify(self, logits, drafted, q, position, stream):
        return speculative_sampling(self._probs(logits), q, drafted, stream.choose)


def make_rule(settings: Settings, ids: Tensor) -> Rule:
    """The rule of these settings for a device whose logit columns are the target ids `ids` (int64 [H])."""
    if settings.verification == "greedy":
        return Greedy()
    return Coupled(settings, ids) if settings.verification == "coupled" else Token(settings)


def over_target_ids(q: Tensor, ids: Tensor, vocabulary: int) -> Tensor:
    """Draft distributions [K, H] over `ids` as distributions [K, V] over all target ids, 0 elsewhere."""
    return torch.zeros(len(q), vocabulary, dtype=q.dtype, device=q.device).index_copy_(1, ids, q)

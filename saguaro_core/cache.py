"""The speculation cache: which outcomes the draft prepares for, and what it prepared, keyed by the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .sampling import Stream

Key = tuple[int, int, int]  # (sequence, accepted tokens k, bonus); k = -1 for guesses of the first token
Guess = tuple[int, int, int]  # (accepted tokens k, rank of the bonus in its fork, column of its logit)


@dataclass
class PreSpeculatedResult:
    """One branch: the speculation prepared for its key. `tokens` grows while the tree does; `q` holds the row [H]
    each token was drawn from, where the verification needs it. `row`: its row in the tree. `candidate`: rank of the
    bonus in its fork. `stream`: its own source of draws."""

    row: int
    candidate: int
    stream: Stream
    tokens: list[int] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)


class SaguaroCache:
    """At most `capacity` branches of one round, of all sequences, by outcome. It holds no keys or values: it survives
    anything that happens to the KV store, and a branch that never matches costs nothing more. `capacity`: see
    `capacity.optimal_cache_size`."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._branches: dict[Key, PreSpeculatedResult] = {}

    @staticmethod
    def predict(scores: Tensor, drafted: Tensor, chosen: Sequence[tuple[int, int]]) -> list[Guess]:
        """The bonus tokens to prepare for: one for each of the `(fork, candidate)` pairs `chosen`, in their order.

        `scores` [K + 1, H]: a row for each number of accepted tokens, highest for the column that the target will
        likeliest choose there (`Rule.scores`; under `coupled` the race itself). `drafted` [K, H]: True at the column of
        each drafted token, which is never its own correction. Candidate c of a fork is the c-th best column, from 0; a
        pair whose fork has no such column, or none that the target can choose (-inf), is left out.
        """
        if not chosen:
            return []
        scores = torch.cat((scores[:-1].masked_fill(drafted, -torch.inf), scores[-1:]))
        values, columns = scores.topk(min(max(c for _, c in chosen) + 1, scores.shape[1]))
        known, columns = (values > -torch.inf).sum(-1).tolist(), columns.tolist()
        return [(fork, c, columns[fork][c]) for fork, c in chosen if c < known[fork]]

    def store(self, key: Key, branch: PreSpeculatedResult) -> None:
        """Raises OverflowError where the cache is full."""
        if len(self._branches) >= self.capacity:
            raise OverflowError(f"the speculation cache holds no more than {self.capacity} branches")
        self._branches[key] = branch

    def lookup(self, key: Key) -> PreSpeculatedResult | None:
        return self._branches.get(key)

    def clear(self) -> None:
        self._branches = {}

    def __len__(self) -> int:
        return len(self._branches)

    def candidates(self, seq: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """`(fork, token, prepared tokens)` of every branch of sequence `seq`, in the order they were stored."""
        items = self._branches.items()
        return tuple((k, bonus, tuple(branch.tokens)) for (of, k, bonus), branch in items if of == seq)

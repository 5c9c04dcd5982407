"""The speculation cache: what the draft prepared, keyed by the outcome it prepared for."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from .sampling import Stream

Key = tuple[int, int, int]  # (sequence, accepted tokens k, bonus); k = -1 for guesses of the first token


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

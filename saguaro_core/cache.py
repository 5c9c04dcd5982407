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
    """Branches of one round, by outcome. It holds no keys or values: it survives anything that happens to the KV
    store, and a branch that never matches costs nothing more."""

    def __init__(self):
        self._branches: dict[Key, PreSpeculatedResult] = {}

    def store(self, key: Key, branch: PreSpeculatedResult) -> None:
        self._branches[key] = branch

    def lookup(self, key: Key) -> PreSpeculatedResult | None:
        return self._branches.get(key)

    def clear(self) -> None:
        self._branches = {}

    def __len__(self) -> int:
        return len(self._branches)

    def candidates(self) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """`(fork, token, prepared tokens)` of every branch, in the order they were stored."""
        return tuple((k, bonus, tuple(branch.tokens)) for (_, k, bonus), branch in self._branches.items())

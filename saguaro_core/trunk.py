"""A sequence as one model holds it: which tokens have keys and values, and how to add to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

PREFILL_CHUNK = 256


@dataclass(frozen=True)
class Rows:
    """New rows of one sequence in a forward: `tokens`, whose keys and values go to slots `slot`, `slot + 1`, ...

    `positions`: for the rotary embedding. `visible`: bool [q, slot + q], the slots each row attends to; None is
    causal (row i sees slots 0 .. slot + i). `keep`: only the last `keep` rows of logits are wanted, 0 = all.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    slot: int
    visible: Tensor | None = None
    keep: int = 0
    seq: int = 0


class Model(Protocol):
    """One forward over preallocated stores of keys and values; the only thing a toy model replaces."""

    context: int
    """positions the model may be asked for: 0 .. context - 1"""
    ids: Tensor
    """int64 [H]: the target ids of the logit columns"""

    def forward(self, batch: Sequence[Rows]) -> list[Tensor]:
        """Rows of one or more sequences, each at most once: logits [q, H] for each."""

    def reserve(self, sequences: int) -> bool:
        """Make room for so many sequences. Whether what was stored is lost by that."""


class Trunk:
    """Tokens of sequence `seq` at slots 0, 1, ...: position equals slot. Rollback is forgetting the end of the list."""

    def __init__(self, model: Model, seq: int = 0):
        self.model, self.seq = model, seq
        self.tokens: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def keep(self, length: int) -> None:
        """Forget what is stored at slot `length` and after."""
        del self.tokens[length:]

    def extend(self, tokens: Sequence[int], min_rows: int = 1, keep: int = 0) -> Tensor:
        """`extend_all` for this sequence alone."""
        return extend_all([(self, tokens)], min_rows, keep)[0]

    def prefill(
        self, prompt: Sequence[int], reuse: int | None, min_rows: int = 1, stop: Callable[[], bool] = lambda: False
    ) -> tuple[Tensor | None, int]:
        """Read the prompt in chunks, keeping what an earlier turn left of it: `(logits [1, H] of its last token,
        tokens reused)`. `reuse`: how many tokens at most may be kept, None for all. The last token is always read,
        as its logits are wanted. `stop()` is asked between chunks; where it says so, the logits are None."""
        reused = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        reused = reused if reuse is None else min(reused, reuse)
        self.keep(reused)
        logits = None
        for at in range(reused, len(prompt), PREFILL_CHUNK):
            if stop():
                return None, reused
            logits = self.extend(prompt[at : at + PREFILL_CHUNK], min_rows, keep=1)
        return logits, reused


def provide(trunks: list[Trunk], model: Model, sequences: int) -> None:
    """Make `trunks` of `model` as many as `sequences`, or leave them. They are empty where room had to be made."""
    if model.reserve(sequences):
        for trunk in trunks:
            trunk.keep(0)
    trunks += [Trunk(model, seq) for seq in range(len(trunks), sequences)]


def extend_all(new: Sequence[tuple[Trunk, Sequence[int]]], min_rows: int = 1, keep: int = 0) -> list[Tensor]:
    """One causal forward over new tokens of several sequences, after what is stored of each: logits [len(tokens), H]
    for each, or their last `keep` rows.

    A forward of fewer than `min_rows` tokens in all is padded with rows that nobody sees: their slots lie behind the
    trunk.
    """
    padding = max(0, min_rows - sum(len(tokens) for _, tokens in new))
    batch = []
    for number, (trunk, tokens) in enumerate(new):
        pad = 0 if number else padding
        rows = [*tokens, *[tokens[-1]] * pad]
        start = len(trunk)
        positions = [min(p, trunk.model.context - 1) for p in range(start, start + len(rows))]
        batch.append(Rows(rows, positions, start, keep=keep and keep + pad, seq=trunk.seq))
    logits = new[0][0].model.forward(batch)
    for trunk, tokens in new:
        trunk.tokens += tokens
    return [logits[0][: len(logits[0]) - padding], *logits[1:]]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length

"""A sequence as one model holds it: which tokens have keys and values, and how to add to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

PREFILL_CHUNK = 256


class Model(Protocol):
    """One forward over a preallocated store of keys and values; the only thing a toy model replaces."""

    context: int
    """positions the model may be asked for: 0 .. context - 1"""
    ids: Tensor
    """int64 [H]: the target ids of the logit columns"""

    def forward(
        self, tokens: Sequence[int], positions: Sequence[int], slot: int, visible: Tensor | None = None, keep: int = 0
    ) -> Tensor:
        """Write keys and values of `tokens` at slots `slot`, `slot + 1`, ... and return logits [q, H].

        `positions`: for the rotary embedding. `visible`: bool [q, slot + q], the slots each row attends to; None is
        causal (row i sees slots 0 .. slot + i). `keep`: only the last `keep` rows of logits are returned, 0 = all.
        """


class Trunk:
    """Tokens at slots 0, 1, ...: position equals slot. Rollback is forgetting the end of the list."""

    def __init__(self, model: Model):
        self.model = model
        self.tokens: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def keep(self, length: int) -> None:
        """Forget what is stored at slot `length` and after."""
        del self.tokens[length:]

    def extend(self, tokens: Sequence[int], min_rows: int = 1, keep: int = 0) -> Tensor:
        """One causal forward over `tokens` after what is stored: logits [len(tokens), H], or the last `keep` rows.

        Fewer than `min_rows` tokens are padded with rows that nobody sees: their slots lie behind the trunk.
        """
        padding = max(0, min_rows - len(tokens))
        rows = [*tokens, *[tokens[-1]] * padding]
        start = len(self.tokens)
        positions = [min(p, self.model.context - 1) for p in range(start, start + len(rows))]
        logits = self.model.forward(rows, positions, start, keep=keep and keep + padding)
        self.tokens += tokens
        return logits[: len(logits) - padding]

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


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length

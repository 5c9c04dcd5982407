"""The speculation tree: M branches that grow from forks of the trunk, one forward a step.

Slots behind the trunk are scratch: branch m at step d lives at slot `S + d * M + m`, where S is the trunk's length.
A branch sees the trunk up to its fork and its own column, nothing else (ssd-algorithm note, 1.4 and 1.5).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .trunk import Rows, Trunk


class Tree:
    """`forks` [M]: how many trunk tokens each branch continues, which is also the position of its first token.
    `steps`: how many steps the tree may grow."""

    def __init__(self, trunk: Trunk, forks: Sequence[int], steps: int):
        self._seq, self._start, self._forks, self._width = trunk.seq, len(trunk), list(forks), len(forks)
        device = trunk.model.ids.device
        sees_trunk = torch.arange(self._start, device=device) < torch.tensor(self._forks, device=device)[:, None]
        own_column = torch.eye(self._width, dtype=torch.bool, device=device).repeat(1, steps)
        self._visible = torch.cat((sees_trunk, own_column), dim=1)  # [M, S + steps * M]

    def positions(self, rows: Sequence[int], depth: int) -> list[int]:
        """Positions of the tokens fed at step `depth`; the tokens drafted there stand one further."""
        return [self._forks[m] + depth for m in rows]

    def rows(self, tokens: Sequence[int], rows: Sequence[int], depth: int) -> Rows:
        """What to feed the model: adjacent branches `rows`, which hold `depth` drafted tokens each, and their newest
        token. Its logits [len(rows), H] are for their next ones."""
        slot = self._start + depth * self._width + rows[0]
        visible = self._visible[rows[0] : rows[-1] + 1, : slot + len(rows)]
        return Rows(tokens, self.positions(rows, depth), slot, visible, seq=self._seq)

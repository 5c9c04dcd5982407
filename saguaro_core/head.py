"""The output head of a draft that knows the target's frequent tokens only, and in each run those of its prompts too.

Answers repeat the names, numbers and words of what they answer, which are rare elsewhere. Their columns cost nothing to
learn: the draft's layers predict the target's own output embedding, so any row of it can be added at any time.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from .packing import pack

MOST = 512  # columns added in a run
STEP = 64  # they are computed in multiples of this, so that most runs share the shapes that kernels are compiled for


class CutHead(nn.Linear):
    """The rows `ids` (int64 [H]) of the target's output head `whole` [vocabulary, hidden], which is kept where it was
    read: for a safetensors checkpoint that is the file's own pages, whatever device the rows go to."""

    def __init__(self, whole: Tensor, ids: Tensor, dtype: torch.dtype):
        super().__init__(whole.shape[1], len(ids), bias=False, device="meta")
        self.weight = nn.Parameter(whole[ids].to(dtype), requires_grad=False)
        self.whole = whole.detach()


class RunHead(nn.Module):
    """A cut head in the engine. Logits [..., H], behind them those of the run's own tokens, then padding."""

    def __init__(self, cut: CutHead, ids: Tensor):
        super().__init__()
        self.frequent, self.own = linear(cut.weight), None
        self._whole, self._ids, self._known = cut.whole, ids, frozenset(ids.tolist())
        self._place = {"device": cut.weight.device, "dtype": cut.weight.dtype}

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Replace the last run's own tokens by those of `prompts`: the target ids of all columns, int64 [H + own]."""
        new = torch.tensor(tokens_outside(self._known, prompts), dtype=torch.int64)
        self.own = None
        if len(new):
            self.own = linear(pad(self._whole[new].to(**self._place), (0, 0, 0, -len(new) % STEP)))
            pack(self)
        return torch.cat((self._ids, new.to(self._ids.device)))

    def forward(self, hidden: Tensor) -> Tensor:
        logits = self.frequent(hidden)
        return logits if self.own is None else torch.cat((logits, self.own(hidden)), -1)


def tokens_outside(known: Container[int], prompts: Sequence[Sequence[int]], most: int = MOST) -> list[int]:
    """The distinct tokens of all prompts that are not `known`. Where they are more than `most`, those that come latest
    in their prompts."""
    latest_first = (token for row in zip_longest(*map(reversed, prompts)) for token in row)
    return list(dict.fromkeys(token for token in latest_first if token is not None and token not in known))[:most]


def linear(weight: Tensor) -> nn.Linear:
    """`x @ weight.T` for `weight` [out, in], without a copy of it."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer

"""Are the target's logits independent of how many rows a forward has? Measured at load, in under a second."""

from __future__ import annotations

import torch

from .attention import BLOCK
from .settings import EXACT_ROWS
from .transformers_model import TransformersModel

CONTEXTS = (100, 600, 2040)
ROWS = (9, 6, EXACT_ROWS)


@torch.inference_mode()
def probe_exactness(model: TransformersModel) -> bool:
    """Whether rows of joint forwards (9, 6 and 4 rows) are bitwise equal to one another and to forwards that start
    in their middle, at three context lengths. Keys and values of the context are random: the question is about
    kernels, not text. These are the two rules of the architecture note, section 5, checked where we run."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(min(1000, len(model.ids)), (ROWS[0],), generator=generator).tolist()
    model.forward(tokens, range(len(tokens)), 0)  # allocates the store
    for layer in model.store.layers:
        for states in (layer.keys, layer.values):
            noise = torch.randn(states[..., :256, :].shape, generator=generator).to(states)
            for at in range(0, states.shape[2], 256):
                states[..., at : at + 256, :] = noise[..., : states.shape[2] - at, :]
    return all(_exact_at(model, tokens, at) for at in CONTEXTS if at + ROWS[0] + BLOCK <= model.context)


def _exact_at(model: TransformersModel, tokens: list[int], at: int) -> bool:
    def rows(first: int, count: int) -> torch.Tensor:
        start = at + first
        return model.forward(tokens[first : first + count], range(start, start + count), start)

    joint = rows(0, ROWS[0])
    same = all(torch.equal(rows(0, count), joint[:count]) for count in ROWS[1:])
    rows(0, ROWS[0])
    return same and all(
        torch.equal(rows(first, EXACT_ROWS)[0], joint[first]) for first in (1, 3, ROWS[0] - EXACT_ROWS)
    )

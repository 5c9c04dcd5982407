"""How many rows must a target forward have so that its logits do not depend on the other rows? Measured at load.

Kernels choose another order of summation for a single row than for several, and for another number of keys, and bf16
near-ties flip. With enough rows, and each row attending to as many slots as its own position asks for (the next
multiple of 128; `attention.Masks.causal`), a row's logits are bitwise the same whatever stands beside it; then any K,
cut-short speculations and `ar` agree byte for byte (architecture note, section 5).
"""

from __future__ import annotations

import torch

from .attention import BLOCK
from .transformers_model import TransformersModel
from .trunk import Rows

MIN_ROWS = (2, 4)  # tried in this order
CONTEXTS = (100, 123, 600, 762, 2043)  # among them rows on both sides of a multiple of 128
JOINT = 17  # the largest K and the token before it


def probe_exact_rows(model: TransformersModel) -> int | None:
    """The smallest of `MIN_ROWS` with which rows of forwards of 17, 12, 9, ... rows are bitwise equal to one another,
    and to forwards that start in their middle, at several context lengths; None where there is none. Keys and values of
    the context are random: the question is about kernels, not text."""
    tokens = fill_with_noise(model)
    contexts = [at for at in CONTEXTS if at + JOINT + BLOCK <= model.context] or [8]
    return next((rows for rows in MIN_ROWS if all(_exact_at(model, tokens, at, rows) for at in contexts)), None)


@torch.inference_mode()
def fill_with_noise(model: TransformersModel) -> list[int]:
    """Fill the store with random keys and values; returns tokens to probe with."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(min(1000, len(model.ids)), (JOINT,), generator=generator).tolist()
    model.forward([Rows(tokens, range(len(tokens)), 0)])  # allocates the store
    for layer in model.store.layers:
        for states in (layer.keys, layer.values):
            noise = torch.randn(states[..., :256, :].shape, generator=generator).to(states)
            for at in range(0, states.shape[2], 256):
                states[..., at : at + 256, :] = noise[..., : states.shape[2] - at, :]
    return tokens


def _exact_at(model: TransformersModel, tokens: list[int], at: int, min_rows: int) -> bool:
    def rows(first: int, count: int) -> torch.Tensor:
        start = at + first
        return model.forward([Rows(tokens[first : first + count], range(start, start + count), start)])[0]

    joint = rows(0, JOINT)
    counts = [count for count in (12, 9, 6, 5, 4, 3, 2) if count >= min_rows]
    if not all(torch.equal(rows(0, count), joint[:count]) for count in counts):
        return False
    rows(0, JOINT)  # keys and values as the joint forward made them
    return all(torch.equal(rows(first, min_rows)[0], joint[first]) for first in (1, 3, 5, JOINT - min_rows))

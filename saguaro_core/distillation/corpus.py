"""Training text on disk: shards of conversations with the target's distributions, and batches of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .selfplay import Conversation

FIELDS = ("tokens", "kinds", "ids", "probs")


def save_shard(path: Path, conversations: Sequence[Conversation]) -> None:
    """Write a shard; it appears complete or not at all."""
    columns = {name: np.concatenate([getattr(one, name) for one in conversations]) for name in FIELDS}
    lengths = np.array([len(one.tokens) for one in conversations], np.int32)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        np.savez_compressed(file, lengths=lengths, **columns)
    os.replace(part, path)


def load_shard(path: Path) -> list[Conversation]:
    with np.load(path) as data:
        ends = np.cumsum(data["lengths"])[:-1]
        columns = [np.split(data[name], ends) for name in FIELDS]
    return [Conversation(*one) for one in zip(*columns, strict=True)]


def shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("text-*.npz"))

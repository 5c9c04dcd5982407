"""Tensors from one device to the other: the one way that draft distributions cross, and how long it takes.

SSD itself moves no keys and values between the devices: each model has its own. `measure_kv_transfer` exists to show
what that saves, and only measures.
"""

from __future__ import annotations

import time

import torch
import torch.multiprocessing  # lets a tensor cross a connection as a handle on the same memory
from torch import Tensor

SHARED, PINNED, PEER = "shared memory", "pinned memory", "peer copy"


def path_between(source: torch.device, target: torch.device) -> str:
    """How tensors go from `source` to `target`."""
    if source.type == target.type == "cpu":
        return SHARED
    if source.type == target.type == "cuda":
        same = source.index == target.index
        if same or torch.cuda.can_device_access_peer(target.index or 0, source.index or 0):
            return PEER
    return PINNED


def allocate(
    rows: int, columns: int, source: torch.device, target: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Room for [rows, columns] that this process, on device `source`, writes. Sent over a connection it is
    the same memory in the receiving process, which works on device `target`."""
    if path_between(source, target) == PEER:
        return torch.empty(rows, columns, dtype=dtype, device=source)
    buffer = torch.empty(rows, columns, dtype=dtype).share_memory_()
    if PINNED == path_between(source, target):
        pin(buffer)
    return buffer


def rows_in(room: Tensor, rows: int, columns: int) -> Tensor:
    """[rows, columns] at the beginning of `room`, whatever width it was made for: runs differ in theirs."""
    return room.view(-1)[: rows * columns].view(rows, columns)


def pin(buffer: Tensor) -> None:
    """Lock the pages of host memory so that GPUs copy to and from it directly; each process does so for itself."""
    if not buffer.is_cuda and torch.cuda.is_available():
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0))


def transfer(source: Tensor, into: Tensor) -> int:
    """Copy `source` [N, H] into the first rows of `into`, and wait for it: the bytes that were moved."""
    into[: len(source)].copy_(source)
    for device in {source.device, into.device}:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
    return source.nbytes


def measure_kv_transfer(keys: Tensor, values: Tensor, target: torch.device) -> dict[str, float | int | str]:
    """Move keys and values, [1, H_kv, n, D] each, the way distributions go: `{"bytes", "seconds", "path"}`.

    A measurement for the reader. Nothing in SSD does this: the two models share no keys and values.
    """
    rows = torch.cat((keys.reshape(-1, keys.shape[-1]), values.reshape(-1, values.shape[-1])))
    room = allocate(*rows.shape, rows.device, target, rows.dtype)
    arrived = room if target.type == "cpu" else torch.empty_like(rows, device=target)
    t0 = time.perf_counter()
    moved = transfer(rows, room)
    if arrived is not room:
        transfer(room, arrived)
    seconds = time.perf_counter() - t0
    return {"bytes": moved, "seconds": seconds, "path": path_between(rows.device, target)}

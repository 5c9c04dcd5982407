"""Which cores and how many threads each worker gets."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Placement:
    """`cores` is empty where the worker is not pinned."""

    device: str
    threads: int
    cores: tuple[int, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """For the worker's process, before it imports torch. Waiting threads sleep: spinning would slow the other
        worker where both share the machine."""
        threads = str(self.threads)
        return {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OMP_WAIT_POLICY": "PASSIVE",
            "KMP_BLOCKTIME": "0",
        }


def place(
    target_device: str, draft_device: str, target_threads: int | None = None, draft_threads: int | None = None
) -> tuple[Placement, Placement, str | None]:
    """Placements of the target and of the draft, and a notice where they have to share.

    `target_device` may be several with commas between: the target is split over them. Two CPU workers get disjoint
    cores: by default the draft a quarter of them (at least one) and the target the rest.
    Raises ValueError for a device string that is not `cpu` or `cuda:N`.
    """
    for device in (*split(target_device), draft_device):
        check_device(device)
    names = split(target_device)
    if len({name.partition(":")[0] for name in names}) > 1 or (len(set(names)) < len(names) and names[0] != "cpu"):
        raise ValueError(f"a target is split over several GPUs or several shares of the CPU, not {target_device!r}")
    for threads in (target_threads, draft_threads):
        if threads is not None and threads < 1:
            raise ValueError(f"a worker needs at least one thread, not {threads}")
    cores = available_cores()
    on_cpu = names[0] == "cpu"
    both_on_cpu = on_cpu and draft_device == "cpu"
    draft_share = max(1, len(cores) // 4) if both_on_cpu else len(cores)
    d = draft_threads or (draft_share if draft_device == "cpu" else 1)
    t = target_threads or (max(1, len(cores) - d) if both_on_cpu else len(cores) if on_cpu else 1)
    if not both_on_cpu:
        return Placement(target_device, t), Placement(draft_device, d), None
    if t + d > len(cores):
        notice = f"{t} + {d} threads on {len(cores)} cores: the two devices share cores, so their lanes slow each other"
        return Placement("cpu", t), Placement("cpu", d), notice
    if not hasattr(os, "sched_setaffinity"):
        return Placement("cpu", t), Placement("cpu", d), "this system does not pin threads to cores; timings may jitter"
    return Placement("cpu", t, tuple(cores[:t])), Placement("cpu", d, tuple(cores[t : t + d])), None


def split(device: str) -> list[str]:
    """The devices that a device string names: one, or several with commas between."""
    return [name.strip() for name in device.split(",")]


def check_device(device: str) -> None:
    """Raise ValueError for a device string that is not `cpu` or `cuda:N`, or a GPU that is not there."""
    if device == "cpu":
        return
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        raise ValueError(f"unknown device {device!r}; use cpu or cuda:N")
    import torch

    if int(match[1] or 0) >= (torch.cuda.device_count() if torch.cuda.is_available() else 0):
        raise ValueError(f"there is no device {device!r} on this machine that torch can use")


def available_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def hardware() -> dict[str, Any]:
    """The machine, for the record."""
    return {
        "cpu": _cpu_name(),
        "cores": len(available_cores()),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()

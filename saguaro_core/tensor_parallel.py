"""A target split over several devices: tensor parallelism by transformers' own plan, one process a device.

Rank 0 is the target worker itself; it alone talks to the draft and to the main process. The other ranks hold their
share of the weights, keys and values, and join every call that rank 0 announces. The engine starts them; under
`torchrun` they are the processes it started, whose command line calls `follow`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig

from .devices import split
from .messages import Load
from .models import check_divides, load_target
from .transformers_model import TransformersModel
from .trunk import Rows


class SplitModel(TransformersModel):
    """The target as rank 0 runs it: a `trunk.Model` like any other. Raises ModelError where it cannot be split."""

    def __init__(self, load: Load):
        check_divides(load.target, len(split(load.device)))
        self._ranks = [] if under_torchrun() else start_ranks(split(load.device))
        self._group = join()
        self._announce(load)
        super().__init__(share(load), context=load.context)

    def forward(self, batch: Sequence[Rows]) -> list[Tensor]:
        self._announce(("forward", tuple(batch)))
        return super().forward(batch)

    def reserve(self, sequences: int) -> bool:
        self._announce(("reserve", sequences))
        return super().reserve(sequences)

    def _announce(self, what: Any) -> None:
        dist.broadcast_object_list([what], src=0, group=self._group)


def follow() -> NoReturn:
    """Be a rank other than 0, until rank 0 is gone; then end the process, with status 0."""
    with torch.inference_mode():
        group = join()
        load: Load = heard(group)
        model = TransformersModel(share(load), context=load.context)
        while True:
            try:
                name, argument = heard(group)
            except RuntimeError:  # the connection is closed
                os._exit(0)  # not by returning: the group's threads still run, and tearing them down may abort
            getattr(model, name)(argument)


def heard(group: dist.ProcessGroup) -> Any:
    """What rank 0 announces next."""
    box = [None]
    dist.broadcast_object_list(box, src=0, group=group)
    return box[0]


def join() -> dist.ProcessGroup:
    """Join the group of ranks; returns a group for announcements, which are made on the CPU."""
    dist.init_process_group()
    return dist.new_group(backend="gloo", timeout=timedelta(days=365))  # silent until the next run


def share(load: Load) -> PreTrainedModel:
    """This rank's share of the target, on this rank's device."""
    names = split(load.device)
    return load_target(
        load.target, names[dist.get_rank()], getattr(torch, load.dtype), DistributedConfig(tp_size=len(names))
    )


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def start_ranks(names: Sequence[str]) -> list[subprocess.Popen]:
    """Make this process rank 0 and start one for each other device. They end when this one does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(names))}
    if names[0] == "cpu":
        common["CUDA_VISIBLE_DEVICES"] = ""  # transformers would take the GPUs
    local = [name.partition(":")[2] or str(rank) for rank, name in enumerate(names)]
    ranks = [common | {"RANK": str(rank), "LOCAL_RANK": index} for rank, index in enumerate(local)]
    os.environ |= ranks[0]
    return [
        subprocess.Popen([sys.executable, "-m", __name__], env=os.environ | each, stdin=subprocess.PIPE, stdout=2)
        for each in ranks[1:]
    ]


def end_with_rank_0() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_rank_0, daemon=True).start()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    follow()

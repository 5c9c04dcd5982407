"""The draft's process: loads the draft, then answers the target's messages run after run."""

from __future__ import annotations

import gc
from multiprocessing import current_process
from multiprocessing.connection import Client, Connection

import torch
from torch import Tensor

from .drafting import Drafter, Speculation
from .events import DRAFT, TARGET, Transfer, Wait
from .messages import Begin, Connect, Done, End, Load, Ready, Reply, Speculate
from .models import load_config, load_draft
from .recorder import Recorder
from .rules import make_rule
from .sampling import Streams
from .settings import LARGEST_K
from .transfer import allocate, path_between, transfer
from .transformers_model import TransformersModel
from .trunk import Trunk
from .worker import Inbox


def serve(main: Connection, inbox: Inbox) -> None:
    load: Load = inbox.get()
    dtype = getattr(torch, load.dtype)
    hf, head_ids = load_draft(load.draft, load.target, load.device, dtype)
    vocabulary = load_config(load.target).get_text_config().vocab_size
    model = TransformersModel(hf, head_ids, context=load.context, vocabulary=vocabulary)
    trunk = Trunk(model)
    warm_up(trunk)
    gc.freeze()
    connect: Connect = inbox.get()
    target = Client(connect.address, authkey=current_process().authkey)
    target.send(model.ids.cpu().numpy())
    target.recv()  # from here on the target counts on this draft
    main.send(Ready({}))
    drafter, record, outbox = None, None, Outbox(model.device, torch.device(load.other_device))
    while True:
        t0 = record.now() if record else 0.0
        try:
            message = target.recv()
        except (EOFError, OSError):
            return  # the target is gone; main starts both anew
        if isinstance(message, Begin):
            record = Recorder(message.run, message.start, main.send)
            rule = make_rule(message.settings, model.ids)
            drafter = Drafter(trunk, rule, message.settings, Streams(message.settings.seed), record)
            drafter.begin(message.prompt, message.reuse, target.poll)
        elif isinstance(message, Speculate):
            record.add(Wait, t0, lane=DRAFT, on=TARGET)
            speculation = drafter.speculate(message.k, message.bonus, message.round, message.limit)
            outbox.send(target, speculation, record)
            drafter.prepare(target.poll)
            record.flush()
        elif isinstance(message, End):
            record.flush(force=True)
            main.send(Done(message.run))
            record = None


class Outbox:
    """Sends speculations from device `source` to the target's device; their distributions through memory that both
    processes see."""

    def __init__(self, source: torch.device, target: torch.device):
        self._source, self._target = source, target
        self._room: Tensor | None = None

    def send(self, connection: Connection, speculation: Speculation, record: Recorder) -> None:
        q, room, rows = speculation.q, None, 0
        if q is not None:
            t0, rows = record.now(), len(q)
            if self._room is None or len(self._room) < rows:
                room = self._room = allocate(max(rows, LARGEST_K), q.shape[1], self._source, self._target)
            moved = transfer(q, self._room)
            record.add(Transfer, t0, bytes=moved, path=path_between(self._source, self._target))
        connection.send(Reply(speculation.tokens, rows, room))


def warm_up(trunk: Trunk) -> None:
    """First forwards allocate and compile; the first run should not pay for it."""
    trunk.extend([0] * 8)
    trunk.extend([0])
    trunk.keep(0)

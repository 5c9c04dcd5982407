"""The draft's process: loads the draft, then answers the target's messages run after run."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from multiprocessing import current_process
from multiprocessing.connection import Client, Connection

import torch
from torch import Tensor

from .controller import Controller
from .devices import split
from .drafting import Drafter, DraftSequence, Speculation
from .events import DRAFT, TARGET, Transfer, Wait
from .messages import Begin, Connect, Done, End, Load, Ready, Reply, Speculate
from .models import load_config, load_draft
from .recorder import Recorder
from .rules import make_rule
from .sampling import Streams
from .settings import LARGEST_K
from .transfer import allocate, path_between, rows_in, transfer
from .transformers_model import TransformersModel
from .trunk import Trunk, provide
from .worker import Inbox


def serve(main: Connection, inbox: Inbox) -> None:
    load: Load = inbox.get()
    dtype = getattr(torch, load.dtype)
    hf, head_ids = load_draft(load.draft, load.target, load.device, dtype)
    vocabulary = load_config(load.target).get_text_config().vocab_size
    model = TransformersModel(hf, head_ids, context=load.context, vocabulary=vocabulary)
    trunks = [Trunk(model)]
    warm_up(trunks[0])
    gc.freeze()
    connect: Connect = inbox.get()
    target = Client(connect.address, authkey=current_process().authkey)
    target.recv()  # from here on the target counts on this draft
    main.send(Ready({}))
    controller, replied = Controller(), None
    drafter, record, outbox = None, None, Outbox(model.device, torch.device(split(load.other_device)[0]))
    while True:
        t0 = record.now() if record else 0.0
        try:
            message = target.recv()
        except (EOFError, OSError):
            return  # the target is gone; main starts both anew
        if isinstance(message, Begin):
            record = Recorder(message.run, message.start, main.send)
            drafter = Drafter(begin_sequences(message, model, trunks), message.settings[0], record, controller)
            replied = None
            drafter.begin(message.prompts, message.reuse, target.poll)
        elif isinstance(message, Speculate):
            record.add(Wait, t0, lane=DRAFT, on=TARGET)
            if replied:
                rows = sum(len(sequence.drafted) + 1 for sequence in drafter.active)
                controller.verified(rows, message.sent - replied)
            outbox.send(target, drafter.speculate(message.outcomes, message.round), model.ids, record)
            replied = time.perf_counter()
            drafter.prepare(target.poll)
            record.flush()
        elif isinstance(message, End):
            record.flush(force=True)
            main.send(Done(message.run))
            record = None


def begin_sequences(message: Begin, model: TransformersModel, trunks: list[Trunk]) -> list[DraftSequence]:
    """The sequences of a run, on as many of `trunks` as it takes; new ones are made where they do not suffice."""
    provide(trunks, model, len(message.prompts))
    model.begin(message.prompts)
    return [
        DraftSequence(trunk, make_rule(settings, model.ids), Streams(settings.seed))
        for trunk, settings in zip(trunks, message.settings, strict=False)
    ]


class Outbox:
    """Sends speculations from device `source` to the target's device; their distributions through memory that both
    processes see."""

    def __init__(self, source: torch.device, target: torch.device):
        self._source, self._target = source, target
        self._room: Tensor | None = None
        self._ids: Tensor | None = None

    def send(self, connection: Connection, speculations: Sequence[Speculation], ids: Tensor, record: Recorder) -> None:
        """`ids` int64 [H]: the target ids of the columns of the distributions."""
        qs = [speculation.q for speculation in speculations if speculation.q is not None]
        room = columns = None
        if qs:
            t0, q = record.now(), qs[0] if len(qs) == 1 else torch.cat(qs)
            if self._room is None or self._room.numel() < q.numel():
                rows = max(len(q), LARGEST_K * len(speculations))
                room = self._room = allocate(rows, q.shape[1], self._source, self._target)
            if self._ids is not ids:
                self._ids, columns = ids, ids.cpu().numpy()
            moved = transfer(q, rows_in(self._room, *q.shape))
            record.add(Transfer, t0, bytes=moved, path=path_between(self._source, self._target))
        rows = [0 if speculation.q is None else len(speculation.q) for speculation in speculations]
        tokens = [speculation.tokens for speculation in speculations]
        connection.send(Reply(tuple(zip(tokens, rows, strict=True)), room, columns))


def warm_up(trunk: Trunk) -> None:
    """First forwards allocate and compile; the first run should not pay for it."""
    trunk.extend([0] * 8)
    trunk.extend([0])
    trunk.keep(0)

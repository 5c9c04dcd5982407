"""The target's process: loads the target, accepts the draft's connection, performs runs one after another."""

from __future__ import annotations

import gc
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import current_process
from multiprocessing.connection import Connection, Listener

import torch

from .baselines import Stock, generate
from .decoding import TargetSequence, decode
from .devices import split
from .drafting import Outcome, Speculation
from .events import DRAFT_LOST, Notice, Transfer
from .exact_rows import MIN_ROWS, probe_exact_rows
from .messages import Begin, Done, End, Listening, Load, Perform, Ready, Reply, Speculate
from .models import load_target
from .recorder import Recorder
from .rules import make_rule
from .sampling import Streams
from .transfer import path_between, pin, rows_in, transfer
from .transformers_model import TransformersModel
from .trunk import Trunk, provide
from .worker import Inbox

DRAFT_SECONDS = 10.0  # a draft that is silent for so long is given up
PREFILL_SECONDS = 120.0  # likewise for its first answer, before which it reads the prompt


@dataclass
class Draft:
    """A draft process that has connected. `device`: the target's. `room` and `ids`: the newest, see `messages.Reply`."""

    connection: Connection
    device: str
    room: torch.Tensor | None = None
    ids: torch.Tensor | None = None


class RemoteDraft:
    """A `decoding.Speculator` at the other end of a connection. When the draft is lost it says so once and hands
    out empty speculations: the run goes on with the target alone."""

    def __init__(
        self,
        draft: Draft | None,
        perform: Perform,
        record: Recorder,
        cancelled: Callable[[], bool],
    ):
        self.lost, self._cancelled = False, cancelled
        self._draft, self._perform, self._record = draft, perform, record
        if draft is None:
            self._give_up("The draft is not running")

    @property
    def ids(self) -> torch.Tensor:
        return self._draft.ids

    def begin(self, prompts: Sequence[Sequence[int]]) -> None:
        p = self._perform
        self._send(Begin(p.run, p.start, p.prompts, p.settings, p.reuse))

    def speculate(self, outcomes: Sequence[Outcome], round: int) -> list[Speculation]:
        self._send(Speculate(tuple(outcomes), round, time.perf_counter()))
        reply = None if self.lost else self._reply(round)
        if reply is None:
            return [Speculation()] * len(outcomes)
        q = self._arrived(reply)
        at, speculations = 0, []
        for tokens, rows in reply.speculations:
            speculations.append(Speculation(tokens, q[at : at + rows] if rows else None))
            at += rows
        return speculations

    def _reply(self, round: int) -> Reply | None:
        """The draft's answer; None where there will be none."""
        try:
            seconds = DRAFT_SECONDS if round > 1 else PREFILL_SECONDS
            deadline = time.monotonic() + seconds
            while not self._draft.connection.poll(0.25):
                if self._cancelled():
                    return self._give_up("The draft had not answered when the run was stopped")
                if time.monotonic() > deadline:
                    return self._give_up(f"The draft did not answer for {seconds:.0f} seconds")
            return self._draft.connection.recv()
        except (EOFError, OSError):
            return self._give_up("The draft stopped")

    def _arrived(self, reply: Reply) -> torch.Tensor | None:
        """The draft's distributions on this device; on a CPU they are read where the draft wrote them."""
        draft = self._draft
        if reply.ids is not None:
            draft.ids = torch.from_numpy(reply.ids).to(draft.device)
        if reply.room is not None:
            draft.room = reply.room
            if draft.ids.is_cuda:
                pin(reply.room)
        rows = sum(rows for _, rows in reply.speculations)
        if not rows:
            return None
        q = rows_in(draft.room, rows, len(draft.ids))
        if q.device == draft.ids.device:
            return q
        t0 = self._record.now()
        here = torch.empty_like(q, device=draft.ids.device)
        moved = transfer(q, here)
        self._record.add(Transfer, t0, bytes=moved, path=path_between(q.device, here.device))
        return here

    def end(self) -> None:
        self._send(End(self._perform.run))

    def _send(self, message) -> None:
        if not self.lost:
            try:
                self._draft.connection.send(message)
            except OSError:
                self._give_up("The draft stopped")

    def _give_up(self, why: str) -> None:
        self.lost = True
        self._record.add(Notice, text=f"{why}; the answer goes on with the target alone.", code=DRAFT_LOST)
        if self._draft is not None:
            self._draft.connection.close()


class TargetWorker:
    def __init__(self, main: Connection, inbox: Inbox):
        self._main, self._inbox = main, inbox
        self._load: Load = inbox.get()
        self._draft: Draft | None = None
        self._listen()
        self._model = make_model(self._load)
        self._trunks = [Trunk(self._model)]
        self._stock = Stock(self._load)
        exact_rows = probe_exact_rows(self._model)
        self._min_rows = exact_rows or MIN_ROWS[-1]
        gc.freeze()
        exact = exact_rows is not None
        self._main.send(Ready({"context": self._model.context, "exact": exact, "min_rows": self._min_rows}))

    def _listen(self) -> None:
        """Accept the draft, and after a restart the next one."""
        key = current_process().authkey
        listener = Listener(authkey=key)

        def accept():
            while True:
                try:
                    connection = listener.accept()
                    self._draft = Draft(connection, split(self._load.device)[0])
                    connection.send("welcome")
                except Exception:
                    continue  # a draft that died while it connected; main starts another

        threading.Thread(target=accept, daemon=True).start()
        self._main.send(Listening(listener.address))

    def serve(self) -> None:
        while True:
            perform: Perform = self._inbox.get()
            record = Recorder(perform.run, perform.start, self._main.send)
            lost, reasons, error = False, (), ""
            try:
                if perform.baseline:
                    cancelled = partial(self._inbox.cancelled, perform.run, 0)
                    reasons = (generate(self._stock, perform, record, cancelled),)
                else:
                    reasons, lost = self._decode(perform, record)
            except Exception as problem:
                traceback.print_exc()
                error = f"the target worker failed: {type(problem).__name__}: {problem}".splitlines()[0]
                self._forget()
            record.flush(force=True)
            self._main.send(Done(perform.run, reasons, error, lost))

    def _decode(self, perform: Perform, record: Recorder) -> tuple[tuple[str, ...], bool]:
        settings = perform.settings[0]
        cancelled = partial(self._inbox.cancelled, perform.run)
        speculator = None
        if settings.speculates:
            every = range(len(perform.prompts))
            speculator = RemoteDraft(self._draft, perform, record, lambda: all(map(cancelled, every)))
        provide(self._trunks, self._model, len(perform.prompts))
        sequences = [
            TargetSequence(prompt, trunk, make_rule(each, self._model.ids), Streams(each.seed), each.max_new_tokens)
            for prompt, trunk, each in zip(perform.prompts, self._trunks, perform.settings, strict=False)
        ]
        try:
            reasons = decode(
                sequences,
                record,
                speculator=speculator,
                reuse=perform.reuse,
                min_rows=self._min_rows if settings.padded else 1,
                eos=perform.eos,
                cancelled=cancelled,
            )
        finally:
            if speculator:
                speculator.end()
                if speculator.lost:
                    self._draft = None
            if not settings.padded:
                self._forget()  # these keys and values are not the ones other methods would have made
        return tuple(reasons), bool(speculator and speculator.lost)

    def _forget(self) -> None:
        for trunk in self._trunks:
            trunk.keep(0)


def make_model(load: Load) -> TransformersModel:
    if len(split(load.device)) > 1:
        from .tensor_parallel import SplitModel

        return SplitModel(load)
    return TransformersModel(load_target(load.target, load.device, getattr(torch, load.dtype)), context=load.context)


def serve(main: Connection, inbox: Inbox) -> None:
    TargetWorker(main, inbox).serve()

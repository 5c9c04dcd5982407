"""One run as its reader sees it: events as they come, the text so far, a way to stop."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .events import Event, Lookup, Notice, RunFinished, RunStarted, Tokens, TokenTexts, Verify
from .summary import summarise
from .text import Detokenizer, StopStrings


class Run:
    """Iterate it for events until the last, `RunFinished`; or `poll` for what is new. Made by `SaguaroSSD.generate`.

    Text is made here, in the reader's process: `Tokens.text` is what became complete with those tokens, and the texts
    of all `Tokens` events concatenate to `text`.
    """

    def __init__(
        self,
        name: str,
        tokenizer,
        stop: tuple[str, ...],
        prompt_tokens: int,
        on_cancel: Callable[[Run], None],
        seq: int = 0,
    ):
        self.name, self.seq, self.prompt_tokens = name, seq, prompt_tokens
        self.start = 0.0  # set when the run leaves the queue
        self.events: list[Event] = []
        self.ids: list[int] = []
        self.text = ""
        self._tokenizer = tokenizer
        self._named: set[int] = set()  # token ids whose text has been sent
        self._detokenizer, self._stop, self._on_cancel = Detokenizer(tokenizer), StopStrings(stop), on_cancel
        self._stopped_by_string = False
        self._cancelled = threading.Event()
        self._finished = threading.Event()
        self._queue: queue.Queue[Event] = queue.Queue()
        self._last_seen = False

    # ---- for the reader

    def poll(self, timeout: float = 0.1) -> list[Event]:
        """Events that came since the last poll; waits up to `timeout` seconds for the first of them."""
        if self._last_seen:
            return []
        events = []
        try:
            events.append(self._queue.get(timeout=timeout))
            while True:
                events.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        self._last_seen = any(isinstance(event, RunFinished) for event in events)
        return events

    def __iter__(self) -> Iterator[Event]:
        while not self._last_seen:
            yield from self.poll()

    def cancel(self) -> None:
        """Stop after the round at hand. The run still ends with `RunFinished`; what was generated stays."""
        if not self._cancelled.is_set():
            self._cancelled.set()
            self._on_cancel(self)

    def wait(self) -> Run:
        """Block until the run has ended."""
        self._finished.wait()
        return self

    @property
    def finished(self) -> bool:
        return self._finished.is_set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def result(self) -> RunFinished | None:
        return self.events[-1] if self.finished else None

    @property
    def summary(self) -> dict[str, Any]:
        return self.result.summary if self.result else summarise(self.events)

    # ---- for the engine

    def begin(self, started: RunStarted, notices: list[str]) -> None:
        """The run leaves the queue: its clock starts."""
        self.start = time.perf_counter()
        self._put(started)
        for text in notices:
            self._put(Notice(run=self.name, seq=self.seq, text=text))

    def receive(self, event: Event) -> None:
        """Take an event from a worker. What comes after a stop string is dropped."""
        if isinstance(event, Tokens):
            if self._stopped_by_string:
                return
            pieces = []
            for id in event.ids:
                piece, self._stopped_by_string = self._stop.push(self._detokenizer.push((id,)))
                pieces.append(piece)
            event = self._spoken(event, pieces)
            if self._stopped_by_string:
                self.cancel()
        self._name_tokens(event)
        self._put(event)

    def finish(self, reason: str, error: str = "") -> None:
        """End the run: release held-back text, then the last event."""
        if not self._stopped_by_string:
            text, stopped = self._stop.push(self._detokenizer.finish())
            text += "" if stopped else self._stop.finish()
            self._stopped_by_string = stopped
            if text:
                last = next(e for e in reversed(self.events) if isinstance(e, Tokens))
                self._put(self._spoken(dataclasses.replace(last, ids=(), state=()), (), text))
        if self._stopped_by_string:
            reason = "stop"
        now = time.perf_counter() - self.start
        last_round = max((e.round for e in self.events), default=0)
        self._put(
            RunFinished(
                run=self.name,
                seq=self.seq,
                round=last_round,
                t0=now,
                t1=now,
                reason=reason,
                error=error,
                summary=summarise(self.events),
            )
        )

    def _spoken(self, event: Tokens, pieces: Sequence[str], text: str = "") -> Tokens:
        text = "".join(pieces) + text
        self.ids += event.ids
        self.text += text
        return dataclasses.replace(event, text=text, pieces=tuple(pieces))

    def _name_tokens(self, event: Event) -> None:
        new = sorted(set(_named(event)) - self._named)
        if new:
            self._named.update(new)
            texts = tuple(self._tokenizer.decode([id], clean_up_tokenization_spaces=False) for id in new)
            self._put(
                TokenTexts(
                    run=self.name,
                    seq=event.seq,
                    round=event.round,
                    t0=event.t0,
                    t1=event.t0,
                    ids=tuple(new),
                    texts=texts,
                )
            )

    def _put(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, RunFinished):
            self._finished.set()
        self._queue.put(event)


class Batch:
    """The runs of one batch, in the order of its prompts. Made by `SaguaroSSD.generate_batch`.

    All are queued, decoded and ended together; each can be read, or stopped, alone. What a device did for several of
    them at once (drafting steps, trees) stands among the events of the first."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = list(runs)

    def wait(self) -> Batch:
        """Block until all have ended."""
        for run in self.runs:
            run.wait()
        return self

    def cancel(self) -> None:
        for run in self.runs:
            run.cancel()

    @property
    def events(self) -> list[Event]:
        return [event for run in self.runs for event in run.events]

    @property
    def summary(self) -> dict[str, Any]:
        """`summary.summarise` over all runs."""
        return summarise(self.events)


def _named(event: Event) -> Iterator[int]:
    """The token ids a reader may want to see as text."""
    if isinstance(event, Verify):
        yield from (*event.drafted, event.bonus)
    elif isinstance(event, Lookup):
        yield event.bonus
        for _, token, prepared in event.candidates:
            yield from (token, *prepared)

"""One worker's notebook: events of the run at hand, stamped on the system-wide monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from .events import Event

SHIP_SECONDS = 0.1  # a reader wakes at most this often: on a small machine its work is taken from the devices


class Recorder:
    """Collects events and hands them to `ship(events)` in batches. `start`: the run's zero on `time.perf_counter`,
    which is one clock for all processes of a machine (CLOCK_MONOTONIC)."""

    def __init__(self, run: str, start: float, ship: Callable[[list[Event]], None]):
        self.run, self.start, self.round = run, start, 0
        self.watch: Callable[[Event], None] = lambda event: None  # sees each event as it is recorded
        self._ship, self._events, self._shipped = ship, [], 0.0

    def now(self) -> float:
        """Seconds since the run started."""
        return time.perf_counter() - self.start

    def add(self, kind: type[Event], t0: float | None = None, t1: float | None = None, **fields) -> float:
        """Record what began at `t0` (None: an instant) and ended at `t1` (None: now). Returns its end."""
        t1 = self.now() if t1 is None else t1
        event = kind(run=self.run, round=self.round, t0=t1 if t0 is None else t0, t1=t1, **fields)
        self._events.append(event)
        self.watch(event)
        return t1

    def flush(self, force: bool = False) -> None:
        """Ship what was collected, unless the last shipment is recent. Call it where nobody waits for this worker."""
        now = time.perf_counter()
        if self._events and (force or now - self._shipped >= SHIP_SECONDS):
            events, self._events, self._shipped = self._events, [], now
            self._ship(events)

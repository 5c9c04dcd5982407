"""What every tab of the page is built on: the engine (which may still be loading, or absent) and recorded traces."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .deltas import Feeds

LOADING, READY, FAILED, ABSENT = "loading", "ready", "failed", "absent"


def one_line(error: BaseException) -> str:
    """What an error says, for a reader."""
    return " ".join(str(error).split()) or type(error).__name__


class EngineSlot:
    """Where the engine (anything with `generate`, `info` and `close` as `SaguaroSSD` has them) will be. The page is
    served before the models are loaded, so whoever wants the engine asks here each time."""

    def __init__(self, engine: Any = None):
        self.engine, self.error = engine, ""
        self.state = ABSENT if engine is None else READY
        self._since = time.monotonic()
        self._closed = False
        self._lock = threading.Lock()

    def load(self, make: Callable[[], Any]) -> threading.Thread:
        """Call `make()` on a thread of its own; its result is the engine, its exception the reason why there is none."""
        self.state, self._since = LOADING, time.monotonic()
        thread = threading.Thread(target=self._load, args=(make,), name="saguaro-load", daemon=True)
        thread.start()
        return thread

    def _load(self, make: Callable[[], Any]) -> None:
        try:
            engine = make()
        except Exception as error:
            self.error = one_line(error)
            self.state = FAILED
            print(f"The models could not be loaded: {self.error}", file=sys.stderr, flush=True)
            return
        with self._lock:
            if not self._closed:
                self.engine, self.state = engine, READY
                return
        engine.close()

    @property
    def seconds(self) -> float:
        """How long the models have been loading."""
        return time.monotonic() - self._since

    def get(self) -> Any:
        """The engine. Raises ValueError with a sentence for the visitor while there is none."""
        if self.state == READY:
            return self.engine
        raise ValueError(
            {
                LOADING: "The models are still loading. Try again in a moment.",
                FAILED: f"The models could not be loaded: {self.error}",
            }.get(self.state, "This page plays recorded runs; there is no model behind it.")
        )

    def close(self) -> None:
        """Close the engine, or see to it that one that is still loading is closed as soon as it is there."""
        with self._lock:
            self._closed = True
        if self.state == READY:
            self.engine.close()


@dataclass
class Context:
    """`traces`: recorded runs by name, at least one. `feeds`: rows on their way to timelines."""

    slot: EngineSlot
    traces: dict[str, Path]
    feeds: Feeds = field(default_factory=Feeds)

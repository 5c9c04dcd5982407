"""Recorded runs in the chat: the answer, its numbers and its timeline, and what AR and SD took for the same prompt."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from saguaro_core import events as ev
from saguaro_core import trace

from .pace import Pace, shared

BASELINES = ("ar", "sd")


def find(path: str | Path) -> dict[str, Path]:
    """The traces at `path`, a file or a folder of *.jsonl, by name. Raises ValueError where there is none."""
    path = Path(path)
    if path.is_file():
        return {path.name: path}
    found = {file.name: file for file in sorted(path.glob("*.jsonl"))} if path.is_dir() else {}
    if not found:
        raise ValueError(f"no trace (*.jsonl) at {path}")
    return found


def load(path: Path | None) -> list[ev.Event]:
    """The events of the first run in a trace. Raises ValueError with a sentence."""
    if path is None:
        raise ValueError("There is no such recorded run.")
    try:
        events = trace.load(path)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    later = [n for n, event in enumerate(events) if isinstance(event, ev.RunStarted)][1:]
    return events[: later[0]] if later else events


def baselines(run: Pace, others: Iterable[Pace]) -> dict[str, Pace]:
    """Those of AR and SD among `others` that have the same prompt and begin with the same text as `run`, by method."""
    found: dict[str, Pace] = {}
    for other in others if run.prompt else ():
        if other.prompt == run.prompt and other.method in BASELINES and shared(run, other) > 1:
            found.setdefault(other.method, other)
    return {name: found[name] for name in BASELINES if name in found and name != run.method}


def first(traces: dict[str, Path]) -> str:
    """The run to begin with: one of SSD whose prompt AR and SD were recorded with as well, else just one."""
    known = dict(zip(traces, paces(traces.values()), strict=True))
    for wanted in (2, 1, 0):
        for name, pace in known.items():
            if pace.method == "ssd" and len(baselines(pace, known.values())) >= wanted:
                return name
    return next(iter(traces))


def paces(traces: Iterable[Path]) -> list[Pace]:
    return [_pace(path) for path in traces]


@lru_cache(maxsize=64)
def _pace(path: Path) -> Pace:
    """Empty for a file that holds no run."""
    try:
        return Pace().add(load(path))
    except ValueError:
        return Pace()

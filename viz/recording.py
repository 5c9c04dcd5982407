"""Recorded runs as they come from outside: somebody else's trace file, checked before anything is drawn from it."""

from __future__ import annotations

import json
import math
import types
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from saguaro_core import events as ev
from saguaro_core import trace

MOST_BYTES = 24 * 2**20
MOST_EVENTS = 250_000
MOST_SECONDS = 24 * 3600.0
MOST_NUMBER = 2**53  # what JavaScript holds exactly

Recording = tuple[ev.Event, ...]


def read(path: str | Path) -> list[Recording]:
    """The runs of a trace file, split at every `run_started`. Raises ValueError with a sentence for the reader."""
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path.name} is larger than {MOST_BYTES // 2**20} MB.")
        events = trace.load(path)
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not a text file.") from None
    except RecursionError:
        raise ValueError(f"{path.name} nests too deeply to be a trace.") from None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror or 'unknown reason'}.") from None
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), path.name)[:300]) from None
    if len(events) > MOST_EVENTS:
        raise ValueError(f"{path.name} holds more than {MOST_EVENTS} events.")
    for number, event in enumerate(events, 1):
        if wrong := fault(event):
            raise ValueError(f"{path.name}, event {number} ({event.kind}): {wrong}.")
    runs = split(events)
    if not runs:
        raise ValueError(f"{path.name} holds no run.")
    return runs


def split(events: Iterable[ev.Event]) -> list[Recording]:
    """One recording per `run_started`; events before the first start a recording of their own."""
    runs: list[list[ev.Event]] = []
    for event in events:
        if not runs or isinstance(event, ev.RunStarted):
            runs.append([])
        runs[-1].append(event)
    return [tuple(run) for run in runs]


def fault(event: ev.Event) -> str:
    """What is wrong with an event's fields, "" where nothing is."""
    for name, kind in _hints(type(event)).items():
        if not _fits(getattr(event, name), kind):
            return f"the field {name} does not hold what it should"
    if event.t1 < event.t0:
        return "it ends before it begins"
    sizes = (len(event.state), len(event.pieces) or len(event.ids)) if isinstance(event, ev.Tokens) else ()
    if any(size != len(event.ids) for size in sizes):
        return "its tokens, states and pieces differ in number"
    if isinstance(event, ev.Verify) and not 0 <= event.accepted <= len(event.drafted):
        return "it accepts more tokens than were drafted"
    return ""


@cache
def _hints(cls: type) -> dict[str, Any]:
    return {name: kind for name, kind in get_type_hints(cls).items() if name != "kind"}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an event field's type, with numbers that a browser can hold."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if inner[-1] is Ellipsis:
            return all(_fits(item, inner[0]) for item in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if origin is dict:
        return isinstance(value, dict)
    if kind is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value) and 0 <= value <= MOST_SECONDS
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_NUMBER
    return isinstance(value, kind)


def started(run: Sequence[ev.Event]) -> ev.RunStarted:
    """The run's first event; an empty one where the recording has none."""
    return next((event for event in run if isinstance(event, ev.RunStarted)), ev.RunStarted(run=""))


def method(run: Sequence[ev.Event]) -> str:
    """The method the run says it used, shortened: it may be anything in somebody else's file."""
    return str(started(run).settings.get("method", ""))[:24] or "unknown"


def ids(run: Sequence[ev.Event]) -> tuple[int, ...]:
    return tuple(id for event in run if isinstance(event, ev.Tokens) for id in event.ids)


def pieces(run: Sequence[ev.Event]) -> list[str]:
    """The text that became complete with each token. An older trace that has only the text of an event gives it to
    the event's last token, and text without a token goes to the last one before it."""
    made: list[str] = []
    for event in run:
        if not isinstance(event, ev.Tokens):
            continue
        if event.pieces:
            made += event.pieces
        elif event.ids:
            made += [""] * (len(event.ids) - 1) + [event.text]
        elif made:
            made[-1] += event.text
    return made


def dumps(runs: Iterable[Sequence[ev.Event]]) -> str:
    """JSON lines of one run or several, one after another."""
    return "".join(trace.dumps(event) + "\n" for run in runs for event in run)


def pack(runs: Iterable[Sequence[ev.Event]]) -> bytes:
    """Runs in little memory, as a session holds them."""
    return zlib.compress(dumps(runs).encode())


def unpack(packed: bytes) -> list[Recording]:
    lines = zlib.decompress(packed).decode().splitlines() if packed else []
    return split(ev.from_dict(json.loads(line)) for line in lines)

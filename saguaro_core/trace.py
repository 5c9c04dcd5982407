"""A trace: the events of a run as JSON lines, one object a line, that reload to equal objects."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from .events import Event, from_dict


def dumps(event: Event) -> str:
    return json.dumps(event.to_dict(), ensure_ascii=False, separators=(",", ":"))


def save(path: str | Path, events: Iterable[Event]) -> None:
    """Write the events to `path`, one JSON object a line."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(dumps(event) + "\n" for event in events)


def load(path: str | Path) -> list[Event]:
    """The events of a trace file. Raises ValueError naming the line that is not an event."""
    events = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    events.append(from_dict(json.loads(line)))
                except (ValueError, AttributeError, TypeError) as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None
    return events

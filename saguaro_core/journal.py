"""What a benchmark has measured so far, on disk: JSON lines, a heading first, then one conversation a line.

A line is written when its conversation is complete, so an interrupted benchmark loses at most the conversation that
was going on; `resume` reads the others back, if the heading says that they were measured in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .bench import Played

FORMAT = 1


class Journal:
    """`heading`: a JSON object that must be equal on resuming. Raises ValueError with one line where the file exists
    and `resume` is false, where there is nothing to resume, or where it was measured in another way."""

    def __init__(self, path: Path, heading: dict[str, Any], resume: bool = False):
        self.path = path
        self.played: list[Played] = []
        self.engines: dict[str, dict[str, Any]] = {}
        self._pending: list[dict[str, Any]] = []  # written with the first conversation: no file for nothing
        heading = json.loads(json.dumps({"format": FORMAT, **heading}))
        if resume:
            self._read(heading)
        elif path.exists():
            raise ValueError(f"{path} exists already; --resume goes on from there, or choose another folder")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._pending.append({"heading": heading})

    def add(self, turns: Sequence[Played]) -> None:
        """Keep a complete conversation."""
        lines = [*self._pending, {"turns": [asdict(turn) for turn in turns]}]
        self._pending = []
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

    def started(self, resources: str, info: dict[str, Any]) -> None:
        """Keep what the engine of a phase said about itself. Raises ValueError where an earlier one was another."""
        info = json.loads(json.dumps(info))
        before = self.engines.setdefault(resources, info)
        if before != info:
            raise ValueError(f"{self.path}: measured with another engine: {_differences(before, info)}")
        self._pending.append({"engine": resources, "info": info})

    def _read(self, heading: dict[str, Any]) -> None:
        try:
            text = self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"nothing to resume: {self.path}: {error.strerror}") from None
        whole, _, torn = text.rpartition("\n")
        lines = [self._parsed(line, number) for number, line in enumerate(whole.splitlines(), 1)]
        before = lines[0].get("heading") if lines else None
        if before != heading:
            different = _differences(before, heading) if isinstance(before, dict) else "it has no heading"
            raise ValueError(f"{self.path}: measured in another way: {different}")
        if torn:  # the process ended in the middle of a line
            self.path.write_text(whole + "\n", encoding="utf-8")
        for line in lines[1:]:
            if "engine" in line:
                self.engines[line["engine"]] = line["info"]
            else:
                self.played += [Played(**_tuples(turn)) for turn in line["turns"]]

    def _parsed(self, line: str, number: int) -> dict[str, Any]:
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError):
            raise ValueError(f"{self.path}, line {number} is not a journal's") from None


def _tuples(turn: dict[str, Any]) -> dict[str, Any]:
    rows = tuple(map(tuple, turn.get("rows", ())))
    return turn | {"rows": rows} | {name: tuple(turn[name]) for name in ("ids", "gaps_ms")}


def _differences(before: dict[str, Any], now: dict[str, Any], under: str = "") -> str:
    """Names of what differs, with both values where they are short."""
    found = []
    for name in sorted(before.keys() | now.keys()):
        a, b = before.get(name), now.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found.append(_differences(a, b, f"{under}{name}."))
        elif a != b:
            values = f" was {a!r}, is {b!r}"
            found.append(f"{under}{name}{values if len(values) < 120 else ''}")
    return "; ".join(filter(None, found))

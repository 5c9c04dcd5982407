"""When the tokens of a run came, and how much faster one run was than another over the same tokens.

    speedup at token n = t_base(n) / t_run(n), both counted from the run's own first token

so reading the prompt is in neither, as in decode tok/s. Nothing is extrapolated: where one run has no such token, or
the two texts have parted, there is no number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from saguaro_core import events as ev

from .deltas import method_of


@dataclass
class Pace:
    """`ids` and `times` (seconds since the first token) of a run's tokens, folded event by event."""

    method: str = ""
    prompt: str = ""
    reused: int = 0  # tokens of an earlier turn that the target did not have to read again
    verification: str = ""
    machine: str = ""
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    reason: str = ""  # why the run ended
    _first: float = 0.0

    def add(self, events: Iterable[ev.Event]) -> Pace:
        for event in events:
            match event:
                case ev.RunStarted():
                    self.method, self.prompt = method_of(event), event.prompt
                    self.verification = str(event.settings.get("verification", ""))
                    self.machine = _machine(event.hardware)
                case ev.Prefill(lane=ev.TARGET):
                    self.reused = event.reused
                case ev.Tokens() if event.ids:
                    self._first = self._first if self.ids else event.t1
                    self.ids += event.ids
                    self.times += [event.t1 - self._first] * len(event.ids)
                case ev.RunFinished():
                    self.reason = event.reason
        return self

    def __len__(self) -> int:
        return len(self.ids)


def _machine(hardware: dict[str, Any]) -> str:
    """The machine in a few words, as the run reported it."""
    cpu, cores = str(hardware.get("cpu", ""))[:60], hardware.get("cores")
    devices = {str(hardware.get(name, ""))[:20] for name in ("target_device", "draft_device")}
    if devices - {"", "cpu"}:
        return " and ".join(sorted(devices - {""}))
    return f"{cores} cores of {cpu}" if cpu and isinstance(cores, int) else cpu


SAME_TEXT = ("greedy", "coupled")  # verifications under which every method writes the same text


def shared(run: Pace, base: Pace) -> int:
    """How many tokens the two can be compared over: those both begin with; under a rule that promises only the same
    law, as many as the shorter has."""
    if run.verification and run.verification not in SAME_TEXT:
        return min(len(run), len(base))
    same = 0
    for one, other in zip(run.ids, base.ids):
        if one != other:
            break
        same += 1
    return same


def parted(run: Pace, base: Pace) -> int | None:
    """The number of the first token in which two texts differ that should be the same; None where there is none."""
    n = shared(run, base)
    return n + 1 if n < min(len(run), len(base)) else None


def speedup(run: Pace, base: Pace) -> float | None:
    """Of `run` over `base` at the last token that they share; None before there are two such tokens."""
    n = shared(run, base)
    if n < 2 or run.times[n - 1] <= 0:
        return None
    return base.times[n - 1] / run.times[n - 1]


def tracks(run: Pace, bases: Iterable[Pace]) -> dict[str, list[float]]:
    """For the picture: by method the times (ms) of the tokens that it shares with `run`."""
    made = {run.method: [round(t * 1e3, 1) for t in run.times]}
    for base in bases:
        made[base.method] = [round(t * 1e3, 1) for t in base.times[: shared(run, base)]]
    return made

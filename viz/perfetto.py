"""Runs as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A process per run; in it a thread per device with slices that nest (a round's work, and in it each forward), a thread
with the look-ups, and a counter of the tokens. Flow arrows go from the work that made a speculation (the tree of the
round before, or steps drafted just in time) to the verification that used it. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from saguaro_core import events as ev

from .comparison import label
from .recording import Recording, method, started

THREADS = {ev.TARGET: 1, ev.DRAFT: 2, "look-ups": 3}
AHEAD = (ev.Glue, ev.TreeStep)


def dump(runs: Sequence[Recording]) -> dict[str, Any]:
    """The trace of all runs, each on its own clock from 0."""
    flows = count(1)
    made = [entry for pid, run in enumerate(runs, 1) for entry in _process(pid, run, flows)]
    return {"displayTimeUnit": "ms", "traceEvents": made}


def _process(pid: int, run: Recording, flows: Iterator[int]) -> Iterator[dict[str, Any]]:
    start = started(run)
    yield _meta(pid, 0, "process_name", name=f"{label(method(run))} {start.run}".strip())
    yield _meta(pid, 0, "process_sort_index", sort_index=pid)
    for name, tid in THREADS.items():
        yield _meta(pid, tid, "thread_name", name=name)
        yield _meta(pid, tid, "thread_sort_index", sort_index=tid)
    for lane in (ev.TARGET, ev.DRAFT):
        yield from _lane(pid, THREADS[lane], [event for event in run if _lane_of(event) == lane])
    yield from _marks(pid, run)
    yield from _flows(pid, run, flows)


def _lane_of(event: ev.Event) -> str | None:
    match event:
        case ev.Verify():
            return ev.TARGET
        case ev.Glue() | ev.TreeStep() | ev.DraftStep():
            return ev.DRAFT
        case ev.Prefill() | ev.Wait():
            return ev.DRAFT if event.lane == ev.DRAFT else ev.TARGET
    return None


def _lane(pid: int, tid: int, events: list[ev.Event]) -> Iterator[dict[str, Any]]:
    """Slices that nest: neighbours with one purpose lie in a slice around them."""
    group: list[ev.Event] = []
    for event in [*sorted(events, key=lambda event: (event.t0, event.t1)), None]:
        if group and (event is None or _purpose(event) != _purpose(group[0])):
            end = group[-1].t1 if event is None else min(group[-1].t1, event.t0)
            if len(group) > 1:
                yield _slice(pid, tid, _purpose(group[0]), group[0].t0, end, {"round": group[0].round})
            for one, following in zip(group, [*group[1:], None], strict=True):
                until = min(one.t1, following.t0 if following else end)
                yield _slice(pid, tid, _name(one), one.t0, until, _arguments(one))
            group = []
        if event is not None:
            group.append(event)


def _purpose(event: ev.Event) -> str:
    match event:
        case ev.Glue() | ev.TreeStep():
            return f"prepare for round {event.round + 1}"
        case ev.DraftStep():
            return f"draft for round {event.round}"
        case ev.Prefill():
            return event.kind
        case ev.Wait() if event.lane == ev.DRAFT:
            return f"{event.kind} {event.round}"
    return f"round {event.round}"


def _name(event: ev.Event) -> str:
    match event:
        case ev.TreeStep():
            return f"tree step {event.depth + 1}"
        case ev.DraftStep():
            return f"draft step {event.i + 1}"
        case ev.Wait():
            return f"wait for {event.on}"
    return event.kind


def _arguments(event: ev.Event) -> dict[str, Any]:
    return {name: value for name, value in event.to_dict().items() if name not in ("event", "run", "t0", "t1")}


def _marks(pid: int, run: Recording) -> Iterator[dict[str, Any]]:
    made = 0
    for event in run:
        common = {"pid": pid, "ts": _us(event.t1)}
        match event:
            case ev.Lookup():
                about = {"round": event.round, "k": event.k, "bonus": event.bonus, "rank": event.rank}
                name = "hit" if event.hit else "miss"
                yield {"ph": "i", "s": "t", "name": name, "tid": THREADS["look-ups"], "args": about, **common}
            case ev.Tokens() if event.ids:
                made += len(event.ids)
                yield {"ph": "C", "name": "tokens", "tid": 0, "args": {"tokens": made}, **common}


def _flows(pid: int, run: Recording, flows: Iterator[int]) -> Iterator[dict[str, Any]]:
    ahead = {event.round: event for event in run if isinstance(event, AHEAD)}  # the last of each round
    steps = {event.round: event for event in run if isinstance(event, ev.DraftStep)}
    hits = {event.round for event in run if isinstance(event, ev.Lookup) and event.hit}
    for verify in run:
        if not isinstance(verify, ev.Verify) or not verify.drafted:
            continue
        sources = [("hit", ahead.get(verify.round - 1))] if verify.round in hits else []
        sources.append(("just in time", steps.get(verify.round)))
        for name, source in sources:
            if source is None or source.t1 > verify.t1:
                continue
            id = next(flows)
            common = {"cat": "speculation", "name": name, "id": id, "pid": pid}
            yield {"ph": "s", "tid": THREADS[ev.DRAFT], "ts": _us((source.t0 + source.t1) / 2), **common}
            yield {"ph": "f", "bp": "e", "tid": THREADS[ev.TARGET], "ts": _us((verify.t0 + verify.t1) / 2), **common}


def _meta(pid: int, tid: int, what: str, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": arguments}


def _slice(pid: int, tid: int, name: str, t0: float, t1: float, arguments: dict[str, Any]) -> dict[str, Any]:
    start = _us(t0)
    return {
        "ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": max(0.0, round(_us(t1) - start, 3)), "name": name,
        "args": arguments,
    }  # fmt: skip


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)

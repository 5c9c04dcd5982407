"""Events as what the timeline draws: compact rows, sent in numbered chunks that survive lost updates.

A row is `[code, round, t0, dt, ...]`, times in whole microseconds since the run started. It holds numbers and a few
fixed words, never token text. Codes and what follows the four common fields:

    start  method                                    pf  lane, tokens, reused
    ds     i                                         g   rows
    ts     depth, rows                               v   rows, drafted, accepted
    w      lane, on                                  lk  hit, k, rank or -1, prepared tokens, candidates
    fb     strategy                                  tk  tokens, of them accepted drafts
    nt                                               end reason

Lanes are 0 (target) and 1 (draft). Events that have no place on the picture give no row.

The browser may see only the last of several updates, so a value carries the last few chunks, each with a number that
goes up by one. Whoever finds the first of them further than one ahead asks `Feeds.since` for what is missing. A chunk
travels as one JSON text: Gradio's front end walks every array element of a value through proxies, several times per
update, which with nested arrays cost five times as much as drawing them.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from saguaro_core import events as ev

from .rounds import Rounds

CHUNKS_IN_VALUE = 10  # a second of updates at ten a second
ROWS_KEPT = 20_000  # rows a feed remembers for gaps, about a minute and a half of decoding
ROWS_IN_CHUNK = 2_000
FEEDS_KEPT = 16

LANES = {ev.TARGET: 0, ev.DRAFT: 1}
METHODS = ("ar", "sd", "hsd", "ssd", "ssd+hsd", "hf-ar", "hf-assisted")
REASONS = ("eos", "length", "stop", "cancelled", "error")
Row = list[Any]


def row(event: ev.Event) -> Row | None:
    """The row of one event, None where the timeline does not draw it."""
    fields = _fields(event)
    if fields is None:
        return None
    code, rest = fields[0], fields[1:]
    t0 = round(event.t0 * 1e6)
    return [code, event.round, t0, max(0, round(event.t1 * 1e6) - t0), *rest]


def rows(events: Iterable[ev.Event]) -> list[Row]:
    return [made for event in events if (made := row(event)) is not None]


def _fields(event: ev.Event) -> tuple | None:
    match event:
        case ev.Verify():
            return "v", event.rows, len(event.drafted), event.accepted
        case ev.TreeStep():
            return "ts", event.depth, event.rows
        case ev.Glue():
            return "g", event.rows
        case ev.DraftStep():
            return "ds", event.i
        case ev.Wait():
            return "w", LANES.get(event.lane, 0), LANES.get(event.on, 1)
        case ev.Lookup():
            rank = -1 if event.rank is None else event.rank
            return "lk", int(event.hit), event.k, rank, prepared(event), len(event.candidates)
        case ev.Tokens():
            return "tk", len(event.ids), sum(state == ev.ACCEPTED for state in event.state)
        case ev.Prefill():
            return "pf", LANES.get(event.lane, 0), event.tokens, event.reused
        case ev.Fallback():
            return "fb", _word(event.strategy)
        case ev.RunStarted():
            return "start", method_of(event)
        case ev.RunFinished():
            return "end", event.reason if event.reason in REASONS else "error"
        case ev.Notice():
            return ("nt",)
    return None


def prepared(event: ev.Lookup) -> int:
    """How many drafted tokens the looked-up branch held: 0 on a miss."""
    if not event.hit:
        return 0
    return next((len(ready) for fork, token, ready in event.candidates if (fork, token) == (event.k, event.bonus)), 0)


def method_of(event: ev.RunStarted) -> str:
    """The method the run says it uses, "" where it names none that we know."""
    method = str(event.settings.get("method", ""))
    return method if method in METHODS else ""


def _word(text: str) -> str:
    """A strategy name and nothing else: a trace is somebody else's file."""
    return "".join(char for char in str(text)[:32] if char.isascii() and (char.isalnum() or char in "_- "))


class Feed:
    """The rows of one run on their way to one browser, and its rounds in words for whoever opens one. One writer;
    `since` and `round` may be called from other threads."""

    def __init__(self, token: str | None = None):
        self.token = token or secrets.token_hex(8)  # not the run's own id: it must not be guessable by other visitors
        self.chunks: deque[tuple[int, int, str]] = deque()  # number, rows, their JSON
        self.last = 0
        self.done = False
        self._kept = 0
        self._rounds = Rounds()
        self._lock = threading.Lock()

    def push(self, events: Iterable[ev.Event]) -> None:
        """Append the events' rows as the next chunk or chunks."""
        events = list(events)
        fresh = rows(events)
        self.done = self.done or any(made[0] == "end" for made in fresh)
        with self._lock:
            self._rounds.add(events)
            for start in range(0, len(fresh), ROWS_IN_CHUNK):
                chunk = fresh[start : start + ROWS_IN_CHUNK]
                self.last += 1
                self.chunks.append((self.last, len(chunk), json.dumps(chunk, separators=(",", ":"))))
                self._kept += len(chunk)
            while len(self.chunks) > 1 and self._kept > ROWS_KEPT:
                self._kept -= self.chunks.popleft()[1]

    def value(self) -> dict[str, Any]:
        """What the timeline component gets: `chunks` maps a number to rows, both as text."""
        with self._lock:
            recent = list(islice(reversed(self.chunks), CHUNKS_IN_VALUE))[::-1]
        return {
            "feed": self.token,
            "last": self.last,
            "done": self.done,
            "chunks": {str(n): text for n, _, text in recent},
        }

    def since(self, after: int) -> dict[str, str]:
        with self._lock:
            return {str(number): text for number, _, text in self.chunks if number > after}

    def round(self, number: int) -> dict[str, Any]:
        """A round as `Rounds.describe` tells it."""
        with self._lock:
            return self._rounds.describe(number)


EMPTY: dict[str, Any] = {"feed": "", "last": 0, "done": True, "chunks": {}}


class Feeds:
    """The latest feeds of all visitors, found by their secret token."""

    def __init__(self) -> None:
        self._feeds: OrderedDict[str, Feed] = OrderedDict()
        self._lock = threading.Lock()

    def open(self) -> Feed:
        feed = Feed()
        with self._lock:
            self._feeds[feed.token] = feed
            while len(self._feeds) > FEEDS_KEPT:
                self._feeds.popitem(last=False)
        return feed

    def since(self, token: Any, after: Any) -> dict[str, str]:
        """The chunks after number `after`; {} for a feed that is gone or a malformed request."""
        feed = self._feeds.get(token) if isinstance(token, str) else None
        return feed.since(after) if feed is not None and isinstance(after, int) else {}

    def round(self, token: Any, number: Any) -> dict[str, Any]:
        """What happened in a round; {} for a feed or a round that is gone or a malformed request."""
        feed = self._feeds.get(token) if isinstance(token, str) else None
        return feed.round(number) if feed is not None and isinstance(number, int) else {}

"""The tokens of an answer as the token view shows them, kept on the server until a browser asks.

A row is `[text, state, round, hit, ms]`: the text that became complete with the token ("" where it is held back until
a later one), where the token came from (a letter of `STATES`), the round that brought it, whether the speculation it
was drafted in had been waiting in the cache (1), had to be made (0) or there was no look-up (-1), and when it came,
in ms since the first token. Rows are pulled, not pushed: a view that nobody looks at costs nothing.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from saguaro_core import events as ev

STATES = {ev.ACCEPTED: "a", ev.CORRECTION: "c", ev.BONUS: "b", ev.PLAIN: "p"}
KEPT = 16
Row = list[Any]


class TokenLog:
    """The rows of one run. One writer; `since` may be called from another thread."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.rows: list[Row] = []
        self._hits: dict[int, int] = {}
        self._first = 0.0

    def add(self, events: Iterable[ev.Event]) -> None:
        for event in events:
            if isinstance(event, ev.Lookup):
                self._hits[event.round] = int(event.hit)
            elif isinstance(event, ev.Tokens):
                self._add(event)

    def _add(self, event: ev.Tokens) -> None:
        if not event.ids:  # text that was held back, and no further token
            self.rows.append([event.text, "", event.round, -1, self.rows[-1][4] if self.rows else 0])
            return
        self._first = self._first if self.rows else event.t1
        pieces = event.pieces or (event.text,)  # traces of before there were pieces
        hit, ms = self._hits.get(event.round, -1), round((event.t1 - self._first) * 1e3, 1)
        for i in range(len(event.ids)):
            state = STATES.get(event.state[i] if i < len(event.state) else ev.PLAIN, "p")
            self.rows.append([str(pieces[i]) if i < len(pieces) else "", state, event.round, hit, ms])

    def since(self, after: int) -> str:
        """The rows after the first `after`, as JSON."""
        return json.dumps(self.rows[max(0, after) :], separators=(",", ":"))


class TokenLogs:
    """The latest logs of all visitors, found by their secret token."""

    def __init__(self) -> None:
        self._logs: OrderedDict[str, TokenLog] = OrderedDict()
        self._lock = threading.Lock()

    def open(self) -> TokenLog:
        log = TokenLog()
        with self._lock:
            self._logs[log.token] = log
            while len(self._logs) > KEPT:
                self._logs.popitem(last=False)
        return log

    def since(self, token: Any, after: Any) -> str:
        """`TokenLog.since`; "" for a log that is gone or a malformed request."""
        log = self._logs.get(token) if isinstance(token, str) else None
        return log.since(after) if log is not None and isinstance(after, int) else ""

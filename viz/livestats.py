"""The numbers of a run that is still going, from its events alone. Definitions as in the run summary:

    ttft_s            from the start of the run to the first token
    decode_tok_s      tokens after the first, over the time from the first token to the last
    tokens_per_round  tokens that came out of verifications, over the rounds that brought some
    acceptance        accepted / tested; tested counts up to and including the first refusal of a round
    hit_rate          hits / lookups, over all rounds after the first

A number that is not defined (yet) is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from saguaro_core import events as ev

from .choices import LABELS, VERIFICATIONS
from .deltas import method_of

Against = dict[str, tuple[float | None, str]]


class Tally:
    """Folds events one by one; `summary()` at any time."""

    def __init__(self) -> None:
        self.method = ""
        self.rule = ""  # verification and lookahead, in words
        self.tokens = 0
        self.rounds = 0
        self.finished: ev.RunFinished | None = None
        self._first: ev.Tokens | None = None
        self._last = 0.0
        self._round_tokens = 0
        self._emitting: set[int] = set()
        self._accepted = self._tested = 0
        self._hits = self._lookups = 0
        self.alone = False  # a speculative method whose draft was lost

    def add(self, events: Iterable[ev.Event]) -> Tally:
        for event in events:
            self._add(event)
        return self

    def _add(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self.method, self.rule = method_of(event), _rule(event)
            case ev.Tokens() if event.ids:
                self.tokens += len(event.ids)
                if event.round > 0:
                    self._round_tokens += len(event.ids)
                    self._emitting.add(event.round)
                self._first = self._first or event
                self._last = event.t1
            case ev.Verify():
                self.rounds += 1
                self._accepted += event.accepted
                self._tested += min(event.accepted + 1, len(event.drafted))
            case ev.Lookup() if event.round > 1:
                self._lookups += 1
                self._hits += event.hit
            case ev.Notice(code=ev.DRAFT_LOST):
                self.alone = True
            case ev.RunFinished():
                self.finished = event

    def summary(self) -> dict[str, Any]:
        first = self._first
        span = self._last - first.t1 if first else 0.0
        return {
            "ttft_s": first.t1 if first else None,
            "decode_tok_s": (self.tokens - len(first.ids)) / span if span > 0 else None,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "tokens_per_round": _ratio(self._round_tokens, len(self._emitting)),
            "acceptance": _ratio(self._accepted, self._tested),
            "hit_rate": _ratio(self._hits, self._lookups),
        }


def _rule(event: ev.RunStarted) -> str:
    """A trace is somebody else's file, so only what is known is said."""
    verification, k = event.settings.get("verification"), event.settings.get("k")
    rule = verification if verification in VERIFICATIONS else ""
    looks_ahead = f"K {k}" if isinstance(k, int) and 0 < k < 100 else ""
    if looks_ahead and event.settings.get("auto"):
        looks_ahead = "K auto"
    return ", ".join(filter(None, (rule, looks_ahead)))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# ---------------------------------------------------------------------------------------------------------------
# The strip under the answer

BLANK = {"method": "", "state": "idle", "cells": {}}
STATES = {"eos": "done", "length": "length limit", "stop": "stop string", "cancelled": "stopped", "error": "failed"}


def strip(tally: Tally, asked: str = "", against: Against | None = None, state: str = "") -> dict[str, Any]:
    """What the stats strip shows: ready-made words, so that the browser only has to place them. `asked` is the method
    that was requested, shown until the run says which one it uses; `against`: by baseline the speedup over it (None
    while there is none) and a word about it; `state`: instead of how the run ended."""
    numbers = tally.summary()
    method = label(tally.method or asked)
    finished = tally.finished
    versus = {}
    for name, (speedup, word) in (against or {}).items():
        versus |= {f"vs_{name}": _number(speedup, "{:.2f}"), f"note_{name}": word}
    return {
        "method": f"{method} \N{RIGHTWARDS ARROW} AR" if tally.alone else method,
        "rule": tally.rule,
        "state": state or (STATES.get(finished.reason, "failed") if finished else "running"),
        "cells": {
            "speed": _number(numbers["decode_tok_s"], "{:.1f}"),
            "ttft": _number(numbers["ttft_s"], "{:.0f}", 1000),
            "tokens": str(numbers["tokens"]),
            "per_round": _number(numbers["tokens_per_round"], "{:.2f}"),
            "acceptance": _number(numbers["acceptance"], "{:.0f}", 100),
            "hits": _number(numbers["hit_rate"], "{:.0f}", 100),
        }
        | versus,
    }


def label(method: str) -> str:
    return LABELS.get(method, method.upper())


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else form.format(value * scale)

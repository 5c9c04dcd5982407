"""A stand-in for the engine, for the page's tests only: it plays made-up events with plausible timing.

Same interface as `SaguaroSSD` as far as the page uses it. It computes nothing, so nothing it shows is a measurement.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from saguaro_core import events as ev
from saguaro_core.summary import summarise

WORDS = (
    "The target model checks several guesses in one forward pass, and while it does so the draft model has already "
    "begun to prepare the next guesses for every outcome that it thinks likely. **When the outcome was among them**, "
    "the next round starts at once.\n\n- a hit costs nothing\n- a miss costs a few draft steps\n\n"
    "```python\ndef speed(tokens, seconds):\n    return tokens / seconds if seconds > 0 else None\n```\n\n"
).split(" ")
INFO = {
    "target": "SmolLM2-135M-Instruct, dequantised from 4 bit", "draft": "the shipped 4-layer draft",
    "target_device": "cpu", "draft_device": "cpu", "dtype": "bfloat16", "exact": True,
}  # fmt: skip


FIRST_ID = 1000
WRONG = ("A ", "draft ", "many ", "is ", "never ", "token, ", "and ", "whose ", "runs ", "later ", "every ", "now ")
ALONE = ("ar", "hf-ar")  # methods without a draft


def play(
    method: str = "ssd",
    tokens: int = 60,
    text: str | None = None,
    seed: int = 0,
    k: int = 3,
    wrong: Sequence[str] = WRONG,
) -> list[ev.Event]:
    """The events of a whole run, in the order in which an engine would report them. `wrong`: what refused drafts and
    branches that did not happen read as."""
    return list(_Script(method, tokens, text, random.Random(seed), k, wrong).events())


class _Script:
    def __init__(self, method: str, tokens: int, text: str | None, rng: random.Random, k: int, wrong: Sequence[str]):
        self.method, self.limit, self.rng, self.k, self.wrong = method, tokens, rng, k, wrong
        pieces = [text[i : i + 3] for i in range(0, len(text), 3)] if text else None
        self.pieces = pieces or [WORDS[i % len(WORDS)] + " " for i in range(tokens)]
        self.limit = len(self.pieces)
        self.made = 0
        self.vocabulary: dict[str, int] = {}
        for piece in self.pieces:  # first, so that every method gives a piece the same id
            self._id(piece)

    def events(self) -> Iterator[ev.Event]:
        seen: list[ev.Event] = []
        named: set[int] = set()
        for event in self._events():
            new = sorted(set(_named(event)) - named)
            if new:
                named.update(new)
                texts = list(self.vocabulary)
                seen.append(
                    ev.TokenTexts(
                        run="stub", round=event.round, t0=event.t0, t1=event.t0, ids=tuple(new),
                        texts=tuple(texts[id - FIRST_ID] for id in new),
                    )
                )  # fmt: skip
                yield seen[-1]
            seen.append(event)
            yield event
        last = seen[-1].t1
        yield ev.RunFinished(run="stub", t0=last, t1=last, reason="length", summary=summarise(seen))

    def _id(self, text: str) -> int:
        return self.vocabulary.setdefault(text, FIRST_ID + len(self.vocabulary))

    def _next(self, ahead: int) -> int:
        """The id of the token that comes `ahead` tokens after what has been made."""
        at = self.made + ahead
        return self._id(self.pieces[at]) if at < len(self.pieces) else self._wrong()

    def _wrong(self, *but: int) -> int:
        """A token that is none of `but`."""
        return self._others(*but)[0]

    def _others(self, *but: int) -> list[int]:
        """All wrong tokens but these, in any order."""
        return [id for id in map(self._id, self.rng.sample(self.wrong, len(self.wrong))) if id not in but]

    def _events(self) -> Iterator[ev.Event]:
        uniform, now = self.rng.uniform, 0.0
        settings = {"method": self.method, "k": self.k}
        yield ev.RunStarted(run="stub", models=dict(INFO), settings=settings, exact=True)
        prefill = uniform(0.10, 0.12)
        yield ev.Prefill(run="stub", lane=ev.TARGET, tokens=34, t0=0.001, t1=prefill)
        if self.method not in ALONE:
            yield ev.Prefill(run="stub", lane=ev.DRAFT, tokens=34, t0=0.001, t1=0.018)
        now = prefill
        newest = self._next(0)
        yield self._tokens(0, now, (ev.PLAIN,))
        round, hit, accepted = 1, False, -1
        while self.made < self.limit:
            drafted, t = (), now
            if self.method not in ALONE:
                right = min(self.k, self.rng.choice((0, 0, 0, 1, 1, 2, 3)))
                drafted = tuple(self._next(i) if i < right else self._wrong(self._next(i)) for i in range(self.k))
                yield from self._before(round, now, hit, accepted, newest, drafted)
                t, accepted = self.ready, right
            verify = uniform(0.0235, 0.0265)
            if self.method == "ssd":
                yield from self._beside(round, t)
            done = t + verify
            newest = self._next(max(accepted, 0))
            yield ev.Verify(
                run="stub", round=round, t0=t, t1=done, rows=max(4, len(drafted) + 1), drafted=drafted,
                accepted=max(accepted, 0), bonus=newest,
            )  # fmt: skip
            last = ev.PLAIN if not drafted else ev.BONUS if accepted == len(drafted) else ev.CORRECTION
            now = done + 0.0003
            yield self._tokens(round, now, (ev.ACCEPTED,) * max(accepted, 0) + (last,))
            hit, round = self.rng.random() < 0.62, round + 1

    def _before(
        self, round: int, now: float, hit: bool, accepted: int, newest: int, drafted: tuple[int, ...]
    ) -> Iterator[ev.Event]:
        """From an outcome to the next speculation: a look-up, and drafting just in time where that failed."""
        t = now + 0.0004
        if self.method == "ssd":
            rank = self.rng.randrange(4) if hit else None
            yield ev.Lookup(
                run="stub", round=round, t0=t, t1=t, k=accepted, bonus=newest, hit=hit, rank=rank,
                candidates=self._candidates(accepted, newest, rank, drafted),
            )  # fmt: skip
        if self.method != "ssd" or not hit:
            if self.method == "ssd":
                why = "the bonus was not among the candidates"
                yield ev.Fallback(run="stub", round=round, t0=t, t1=t, strategy="immediate_retry", why=why)
            for i in range(self.k):
                took = self.rng.uniform(0.003, 0.0034)
                yield ev.DraftStep(run="stub", round=round, i=i, t0=t, t1=t + took)
                t += took
        self.ready = t + 0.0003
        yield ev.Wait(run="stub", round=round, lane=ev.TARGET, on=ev.DRAFT, t0=now, t1=self.ready)

    def _candidates(self, k: int, bonus: int, rank: int | None, drafted: tuple[int, ...]) -> tuple:
        """Branches for every outcome, five a fork; the one that happened has `rank` in its fork."""
        made = []
        for fork in range(self.k + 1) if k >= 0 else (-1,):
            others = self._others(bonus)
            for candidate, token in enumerate(others[:5]):
                if fork == k and candidate == rank:
                    made.append((fork, bonus, drafted))
                else:
                    made.append((fork, token, tuple(self._wrong() for _ in range(self.k - candidate % 2))))
        return tuple(made)

    def _beside(self, round: int, t: float) -> Iterator[ev.Event]:
        took = self.rng.uniform(0.0036, 0.0042)
        yield ev.Glue(run="stub", round=round, rows=self.k + 1, t0=t, t1=t + took)
        t += took
        for depth in range(self.k):
            took = self.rng.uniform(0.0050, 0.0062)
            yield ev.TreeStep(run="stub", round=round, depth=depth, rows=24, t0=t, t1=t + took)
            t += took
        yield ev.Wait(run="stub", round=round, lane=ev.DRAFT, on=ev.TARGET, t0=t, t1=t + 0.002)

    def _tokens(self, round: int, t: float, states: tuple[str, ...]) -> ev.Tokens:
        states = states[: self.limit - self.made]
        pieces = tuple(self.pieces[self.made : self.made + len(states)])
        self.made += len(states)
        return ev.Tokens(
            run="stub", round=round, t0=t, t1=t, ids=tuple(map(self._id, pieces)), state=states, text="".join(pieces),
            pieces=pieces,
        )  # fmt: skip


def _named(event: ev.Event) -> tuple[int, ...]:
    """The ids that an engine names by text before the event, as `saguaro_core.run` does."""
    if isinstance(event, ev.Verify):
        return *event.drafted, event.bonus
    if isinstance(event, ev.Lookup):
        return event.bonus, *(id for _, token, ready in event.candidates for id in (token, *ready))
    return ()


class StubRun:
    """Hands out the events when their time has come."""

    def __init__(self, events: list[ev.Event], speed: float, release: Callable[[], None]):
        self._left, self._speed, self._release = deque(events), speed, release
        self._began = time.monotonic()
        self._cancelled = threading.Event()
        self._seen: list[ev.Event] = []
        self.finished = False

    def poll(self, timeout: float = 0.1) -> list[ev.Event]:
        deadline = time.monotonic() + timeout
        while not self.finished:
            now = (time.monotonic() - self._began) * self._speed
            if self._cancelled.is_set():
                return self._take(
                    [ev.RunFinished(run="stub", t0=now, t1=now, reason="cancelled", summary=summarise(self._seen))]
                )
            ready = []
            while self._left and self._left[0].t1 <= now:
                ready.append(self._left.popleft())
            if ready:
                return self._take(ready)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.005)
        return []

    def _take(self, events: list[ev.Event]) -> list[ev.Event]:
        self._seen += events
        if isinstance(events[-1], ev.RunFinished):
            self.finished = True
            self._release()
        return events

    def cancel(self) -> None:
        self._cancelled.set()
        self.cancelled_at = self.cancelled_at if hasattr(self, "cancelled_at") else time.monotonic()
        self._release()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def text(self) -> str:
        return "".join(event.text for event in self._seen if isinstance(event, ev.Tokens))

    @property
    def ids(self) -> list[int]:
        return [i for event in self._seen if isinstance(event, ev.Tokens) for i in event.ids]

    @property
    def summary(self) -> dict[str, Any]:
        return summarise(self._seen)

    def __iter__(self) -> Iterator[ev.Event]:
        while not self.finished:
            yield from self.poll()


class StubEngine:
    """`text`: what every answer says; None for stock text. `wrong`: see `play`. `fail`: an exception for the next
    `generate`, or a sentence with which the next run ends. `notice`: said early in every run."""

    def __init__(self, text: str | None = None, speed: float = 1.0, wrong: Sequence[str] = WRONG):
        self.text, self.speed, self.wrong = text, speed, wrong
        self.fail: Exception | str | None = None
        self.notice = ""
        self.info = dict(INFO)
        self.runs: list[StubRun] = []
        self.calls: list[tuple[Any, dict[str, Any]]] = []
        self.busy = 0
        self.closed = False

    def generate(
        self,
        prompt: Any,
        method: str = "ssd",
        max_new_tokens: int = 256,
        k: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> StubRun:
        self.calls.append(
            (prompt, {"method": method, "max_new_tokens": max_new_tokens, "k": k, "seed": seed, **options})
        )
        fail, self.fail = self.fail, None
        if isinstance(fail, Exception):
            raise fail
        events = play(method, max_new_tokens, self.text, seed, 3 if k is None else k, self.wrong)
        events[0] = replace(events[0], prompt=prompt if isinstance(prompt, str) else prompt[-1]["content"])
        if self.notice:
            events.insert(1, ev.Notice(run="stub", text=self.notice))
        if fail:
            kept = [event for event in events if event.t1 < 0.05]
            events = [*kept, ev.RunFinished(run="stub", t0=0.05, t1=0.05, reason="error", error=fail)]
        self.busy += 1
        run = StubRun(events, self.speed, self._once(self._free))
        self.runs.append(run)
        return run

    def _free(self) -> None:
        self.busy -= 1

    @staticmethod
    def _once(call: Callable[[], None]) -> Callable[[], None]:
        lock = threading.Lock()

        def once() -> None:
            if lock.acquire(blocking=False):
                call()

        return once

    def close(self) -> None:
        self.closed = True

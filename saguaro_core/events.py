"""Typed events: the one contract between the engine and everything that draws, measures or stores a run.

Every event says which run, sequence and round it belongs to and when it happened: `t0` and `t1` are seconds since
the run started, on the system-wide monotonic clock, taken around the real work by the process that did it. A span
of a forward ends when its result is on the host (the chosen tokens, the candidates of a fork), so it is the true end
of the work on a GPU too, where launching returns at once. An instant has `t0 == t1`. Round 0 is the prefill and the first token; rounds 1, 2, ... are verifications, and what the
draft prepares while round `n` is verified carries round `n`.

Events are frozen and JSON-serialisable. This module imports nothing outside the standard library.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

TARGET, DRAFT = "target", "draft"  # the two lanes
ACCEPTED, CORRECTION, BONUS, PLAIN = "accepted", "correction", "bonus", "plain"  # where a token came from
DRAFT_LOST = "draft_lost"


@dataclass(frozen=True, kw_only=True)
class Event:
    """What every event carries. `t0`, `t1`: seconds since the run started."""

    kind: ClassVar[str] = "event"
    run: str
    seq: int = 0
    round: int = 0
    t0: float = 0.0
    t1: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """`prompt`: the newest user message. `exact`: whether the load-time probe found target logits independent of the
    number of rows, so that methods agree byte for byte (None where no probe ran, as on a toy model)."""

    kind: ClassVar[str] = "run_started"
    models: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    prompt: str = ""
    exact: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Prefill(Event):
    """One device read the prompt: `tokens` computed now, `reused` taken from an earlier turn's keys and values."""

    kind: ClassVar[str] = "prefill"
    lane: str
    tokens: int
    reused: int = 0


@dataclass(frozen=True, kw_only=True)
class DraftStep(Event):
    """Drafted token `i` (0-based) was made just in time, while the target waited."""

    kind: ClassVar[str] = "draft_step"
    lane: str = DRAFT
    i: int = 0


@dataclass(frozen=True, kw_only=True)
class Glue(Event):
    """One draft forward over the newest token and the speculation: `rows` rows to fork from."""

    kind: ClassVar[str] = "glue"
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class TreeStep(Event):
    """One draft forward over `rows` branches; afterwards each holds `depth + 1` drafted tokens."""

    kind: ClassVar[str] = "tree_step"
    depth: int = 0
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class Verify(Event):
    """One target forward over `rows` tokens (padding included) and the verification of the `drafted` tokens:
    `accepted` of them stand, then the target chose `bonus` (a correction where `accepted < len(drafted)`)."""

    kind: ClassVar[str] = "verify"
    rows: int = 0
    drafted: tuple[int, ...] = ()
    accepted: int = 0
    bonus: int = 0


@dataclass(frozen=True, kw_only=True)
class Wait(Event):
    """`lane` had nothing to do until `on` (the other lane) answered."""

    kind: ClassVar[str] = "wait"
    lane: str
    on: str


@dataclass(frozen=True, kw_only=True)
class Lookup(Event):
    """The outcome `(k, bonus)` was looked up among the branches prepared during the round before.

    `candidates`: `(fork, token, prepared tokens)` of every branch, likeliest first within a fork. `rank`: place of
    `bonus` among the candidates of fork `k` (0 = first), None where it was not there. `hit`: the branch was there
    with at least one drafted token. `k` is -1 for the first lookup, whose forks come from the prompt alone.
    """

    kind: ClassVar[str] = "lookup"
    k: int = 0
    bonus: int = 0
    hit: bool = False
    rank: int | None = None
    candidates: tuple[tuple[int, int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fallback(Event):
    """A miss was answered by `strategy` (a `FallbackStrategy` value, the one really used); `why` it was a miss."""

    kind: ClassVar[str] = "fallback"
    strategy: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Transfer(Event):
    """Draft distributions were copied on their way from one device to the other: `bytes` over `path` ("shared
    memory", "pinned memory" or "peer copy", see `transfer`)."""

    kind: ClassVar[str] = "transfer"
    bytes: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Tokens(Event):
    """New output: token `ids`, where each came from (`state`), and the `text` that became complete with them;
    `pieces`: the part of it that became complete with each token (all of `text`, except at the end of a run, when
    text that was held back comes with no further token)."""

    kind: ClassVar[str] = "tokens"
    ids: tuple[int, ...] = ()
    state: tuple[str, ...] = ()
    text: str = ""
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TokenTexts(Event):
    """What the token `ids` that later events of this run name read as, each alone (incomplete UTF-8 as U+FFFD).
    Sent once for each id, before the first event that names it as drafted, chosen or foreseen."""

    kind: ClassVar[str] = "token_texts"
    ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Controller(Event):
    """The controller chose lookahead `k` and budget `m` for the next round."""

    kind: ClassVar[str] = "controller"
    k: int
    m: int
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Notice(Event):
    """Something the reader should know, in one sentence. `code`: `DRAFT_LOST` where the target goes on alone."""

    kind: ClassVar[str] = "notice"
    text: str
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The last event of a run. `reason`: "eos", "length", "stop", "cancelled" or "error"; `error` is the sentence
    for the reader. `summary` is what `summary.summarise` computes from the events before this one."""

    kind: ClassVar[str] = "run_finished"
    reason: str
    error: str = ""
    summary: dict[str, Any] = field(default_factory=dict)


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RunStarted, Prefill, DraftStep, Glue, TreeStep, Verify, Wait, Lookup, Fallback, Transfer, Tokens,
        TokenTexts, Controller, Notice, RunFinished,
    )
}  # fmt: skip


def from_dict(data: dict[str, Any]) -> Event:
    """The event that `to_dict` wrote. Raises ValueError for an unknown kind or fields that do not fit."""
    values = dict(data)
    kind = values.pop("event", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"unknown event kind {kind!r}")
    cls = KINDS[kind]
    known = {f.name: f for f in fields(cls)}
    unknown = values.keys() - known.keys()
    if unknown:
        raise ValueError(f"event {kind}: unknown fields {sorted(unknown)}")
    try:
        return cls(**{name: _tuples(value) if isinstance(value, list) else value for name, value in values.items()})
    except TypeError as error:
        raise ValueError(f"event {kind}: {error}") from None


def _tuples(value: Any) -> Any:
    """JSON arrays back to the tuples that event fields hold."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value

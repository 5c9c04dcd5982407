"""What the processes say to one another. All messages are small and pickled by `multiprocessing.connection`.

main -> worker: `Load`, then `Perform`, `Cancel` (target) and `Connect` (draft); a closed connection means exit.
worker -> main: `Listening` (target), `Ready` or `Failed`, then lists of events and `Done`.
target -> draft: `Begin`, `Speculate`, `End`; draft -> target: a `Reply` for each `Speculate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .drafting import Outcome
from .settings import Settings


@dataclass(frozen=True)
class Load:
    target: Any  # models.Source
    draft: Any
    device: str
    other_device: str  # of the other worker
    dtype: str  # "bfloat16", "float32", ...
    context: int


@dataclass(frozen=True)
class Listening:
    address: Any


@dataclass(frozen=True)
class Connect:
    address: Any


@dataclass(frozen=True)
class Ready:
    info: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """The model cannot be used; `text` is one line for the user."""

    text: str


@dataclass(frozen=True)
class Perform:
    """One run over one or more sequences, with settings each. `start`: its zero on the monotonic clock. `reuse`: see
    `Trunk.prefill`."""

    run: str
    start: float
    prompts: tuple[tuple[int, ...], ...]
    settings: tuple[Settings, ...]
    eos: frozenset[int]
    reuse: int | None
    baseline: str | None = None  # "hf-ar" or "hf-assisted": transformers' own generate instead of our loop


@dataclass(frozen=True)
class Cancel:
    """End this sequence of a run."""

    run: str
    seq: int


@dataclass(frozen=True)
class Done:
    """This worker has shipped its last event of the run. `reasons`: why each sequence ended (target only).
    `lost_draft`: the target gave the draft up."""

    run: str
    reasons: tuple[str, ...] = ()
    error: str = ""
    lost_draft: bool = False


@dataclass(frozen=True)
class Begin:
    run: str
    start: float
    prompts: tuple[tuple[int, ...], ...]
    settings: tuple[Settings, ...]
    reuse: int | None


@dataclass(frozen=True)
class Speculate:
    """`sent`: when, on `time.perf_counter` (one clock for all processes of a machine)."""

    outcomes: tuple[Outcome, ...]
    round: int
    sent: float


@dataclass(frozen=True)
class Reply:
    """A speculation for each outcome: its tokens, and how many rows of distributions come with them (none where
    verification needs none). The rows stand one behind the other at the beginning of the newest `room` that a reply
    brought, float32, memory that both processes see. Their columns are the newest `ids` that one brought: a NumPy int64
    [H] of target ids."""

    speculations: tuple[tuple[tuple[int, ...], int], ...]
    room: Tensor | None = None
    ids: Any = None


@dataclass(frozen=True)
class End:
    run: str

"""The target's half of a run: the round loop, the same for every method and any number of sequences.

`ar` verifies nothing and draws one token a round; `sd` and `ssd` verify what the speculator hands out. The loop knows
no devices and no processes: `Speculator` may be a draft in this process or at the other end of a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .drafting import FIRST, Outcome, Speculation
from .events import ACCEPTED, BONUS, CORRECTION, DRAFT, PLAIN, TARGET, Prefill, Tokens, Verify, Wait
from .recorder import Recorder
from .rules import Rule, over_target_ids
from .sampling import Streams
from .trunk import Trunk, extend_all
from .verification import VerificationOutcome


class Speculator(Protocol):
    """Where speculations come from."""

    ids: Tensor
    """int64 [H]: the target ids of the columns of `q`"""

    def begin(self, prompts: Sequence[Sequence[int]]) -> None:
        """Start reading the prompts, one a sequence; returns at once."""

    def speculate(self, outcomes: Sequence[Outcome], round: int) -> list[Speculation]:
        """The speculations that follow these outcomes, one each; `round` will verify them."""


@dataclass
class TargetSequence:
    """One sequence of a run on the target: what it is asked, and where it stands."""

    prompt: Sequence[int]
    trunk: Trunk
    rule: Rule
    streams: Streams
    max_new_tokens: int
    outcome: VerificationOutcome | None = None
    drafted: tuple[int, ...] = ()
    k: int = FIRST
    produced: int = 0
    reason: str | None = None

    @property
    def left(self) -> int:
        """Tokens that may still be output."""
        return min(self.max_new_tokens, self.trunk.model.context - len(self.prompt)) - self.produced

    def end(self, reason: str) -> None:
        """The same keys and values stay whatever the method, so that the next turn reads the same tokens anew."""
        self.reason = reason
        self.trunk.keep(len(self.prompt) + self.produced - 1)


def decode(
    sequences: Sequence[TargetSequence],
    record: Recorder,
    *,
    speculator: Speculator | None = None,
    reuse: int | None = None,
    min_rows: int = 1,
    eos: frozenset[int] = frozenset(),
    cancelled: Callable[[int], bool] = lambda seq: False,
) -> list[str]:
    """Generate after every prompt, recording events; returns why each sequence ended: "eos", "length" or "cancelled".

    A sequence that has ended leaves the batch. `speculator` None is plain autoregressive decoding. `reuse`: see
    `Trunk.prefill`. `min_rows`: rows a target forward is padded to (see `exact_rows`). `cancelled(seq)` is asked once a
    round. Requires that every prompt is shorter than the context.
    """
    if speculator:
        speculator.begin([sequence.prompt for sequence in sequences])
    for sequence in sequences:
        prefill(sequence, record, reuse, min_rows, cancelled)
        emit(sequence, record, eos, cancelled)
        record.flush(force=True)
    while active := [sequence for sequence in sequences if sequence.reason is None]:
        record.round += 1
        distributions = draft(active, record, speculator)
        verify(active, record, distributions, min_rows)
        for sequence in active:
            emit(sequence, record, eos, cancelled)
        record.flush()
    return [sequence.reason for sequence in sequences]


def prefill(sequence: TargetSequence, record: Recorder, reuse: int | None, min_rows: int, cancelled) -> None:
    """Read the prompt and choose the first token."""
    trunk, t0 = sequence.trunk, record.now()
    logits, reused = trunk.prefill(sequence.prompt, reuse, min_rows, lambda: cancelled(trunk.seq))
    if logits is None:
        sequence.reason = "cancelled"
        return
    sequence.outcome = sequence.rule.verify(logits, (), None, len(sequence.prompt), sequence.streams.target(0))
    record.add(Prefill, t0, seq=trunk.seq, lane=TARGET, tokens=len(sequence.prompt) - reused, reused=reused)


def emit(sequence: TargetSequence, record: Recorder, eos: frozenset[int], cancelled) -> None:
    """Output what the round chose, as far as the text goes."""
    if sequence.reason:
        return
    emitted, reason = cut(sequence.outcome.tokens, eos, sequence.left)
    came_from = states(sequence.outcome, len(sequence.drafted))[: len(emitted)]
    record.add(Tokens, seq=sequence.trunk.seq, ids=emitted, state=came_from)
    sequence.produced += len(emitted)
    if reason is None and cancelled(sequence.trunk.seq):
        reason = "cancelled"
    if reason:
        sequence.end(reason)


def draft(active: Sequence[TargetSequence], record: Recorder, speculator: Speculator | None) -> list[Tensor | None]:
    """Have every sequence's next tokens drafted; returns the distributions they were drawn from, [K, V] each."""
    if speculator is None:
        return [None] * len(active)
    t0 = record.now()
    outcomes = [Outcome(s.trunk.seq, s.k, s.outcome.bonus, s.left - 1) for s in active]
    speculations = speculator.speculate(outcomes, record.round)
    record.add(Wait, t0, lane=TARGET, on=DRAFT)
    for sequence, speculation in zip(active, speculations, strict=True):
        sequence.drafted = speculation.tokens
    columns = len(active[0].trunk.model.ids)
    return [None if s.q is None else over_target_ids(s.q, speculator.ids, columns) for s in speculations]


def verify(
    active: Sequence[TargetSequence], record: Recorder, distributions: Sequence[Tensor | None], min_rows: int
) -> None:
    """One target forward over what was drafted for all sequences, and the verification of each."""
    t0 = record.now()
    positions = [len(s.trunk) + 1 for s in active]
    logits = extend_all([(s.trunk, [s.outcome.bonus, *s.drafted]) for s in active], min_rows)
    for sequence, rows, q, position in zip(active, logits, distributions, positions, strict=True):
        stream = sequence.streams.target(record.round)
        sequence.outcome = sequence.rule.verify(rows, sequence.drafted, q, position, stream)
        sequence.k = sequence.outcome.k
        sequence.trunk.keep(position + sequence.k)
    t1 = record.now()
    for sequence in active:
        rows = max(len(sequence.drafted) + 1, min_rows if len(active) == 1 else 1)
        outcome = sequence.outcome
        record.add(
            Verify, t0, t1, seq=sequence.trunk.seq, rows=rows, drafted=sequence.drafted, accepted=outcome.k,
            bonus=outcome.bonus,
        )  # fmt: skip


def cut(tokens: Sequence[int], eos: frozenset[int], left: int) -> tuple[tuple[int, ...], str | None]:
    """The tokens of a round that are output, and why the run ends with them (None where it goes on)."""
    for i, token in enumerate(tokens[:left]):
        if token in eos:
            return tuple(tokens[: i + 1]), "eos"
    return tuple(tokens[:left]), "length" if len(tokens) >= left else None


def states(outcome: VerificationOutcome, drafted: int) -> tuple[str, ...]:
    """Where each token of a round came from."""
    last = PLAIN if drafted == 0 else BONUS if outcome.k == drafted else CORRECTION
    return (ACCEPTED,) * outcome.k + (last,)

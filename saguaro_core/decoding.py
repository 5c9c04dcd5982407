"""The target's half of a run: the round loop, the same for every method.

`ar` verifies nothing and draws one token a round; `sd` and `ssd` verify what the speculator hands out. The loop knows
no devices and no processes: `Speculator` may be a draft in this process or at the other end of a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from .drafting import FIRST, Speculation
from .events import ACCEPTED, BONUS, CORRECTION, DRAFT, PLAIN, TARGET, Prefill, Tokens, Verify, Wait
from .recorder import Recorder
from .rules import Rule, over_target_ids
from .sampling import Streams
from .settings import Settings
from .trunk import Trunk
from .verification import VerificationOutcome


class Speculator(Protocol):
    """Where speculations come from."""

    ids: Tensor
    """int64 [H]: the target ids of the columns of `q`"""

    def begin(self, prompt: Sequence[int]) -> None:
        """Start reading the prompt; returns at once."""

    def speculate(self, k: int, bonus: int, round: int, limit: int) -> Speculation:
        """The speculation that follows this outcome, at most `limit` tokens."""


def decode(
    prompt: Sequence[int],
    trunk: Trunk,
    rule: Rule,
    settings: Settings,
    streams: Streams,
    record: Recorder,
    *,
    speculator: Speculator | None = None,
    reuse: int | None = None,
    min_rows: int = 1,
    eos: frozenset[int] = frozenset(),
    cancelled: Callable[[], bool] = lambda: False,
    seq: int = 0,
) -> str:
    """Generate after `prompt`, recording events; returns why it ended: "eos", "length" or "cancelled".

    `speculator` None is plain autoregressive decoding. `reuse`: see `Trunk.prefill`. `min_rows`: rows a target
    forward is padded to (see `probe`). Requires len(prompt) < trunk.model.context.
    """
    if speculator:
        speculator.begin(prompt)
    t0 = record.now()
    logits, reused = trunk.prefill(prompt, reuse, min_rows, cancelled)
    if logits is None:
        return "cancelled"
    outcome = rule.verify(logits, (), None, len(prompt), streams.target(seq, 0))
    record.add(Prefill, t0, lane=TARGET, tokens=len(prompt) - reused, reused=reused)
    limit = min(settings.max_new_tokens, trunk.model.context - len(prompt))
    drafted, k, round, produced = (), FIRST, 0, 0

    while True:
        emitted, reason = cut(outcome.tokens, eos, limit - produced)
        record.add(Tokens, ids=emitted, state=states(outcome, len(drafted))[: len(emitted)])
        record.flush(force=round == 0)
        produced += len(emitted)
        if reason is None and cancelled():
            reason = "cancelled"
        if reason:
            # the same keys and values stay whatever the method, so that the next turn reads the same tokens anew
            trunk.keep(len(prompt) + produced - 1)
            return reason

        round += 1
        record.round = round
        drafted, q = (), None
        if speculator:
            t0 = record.now()
            speculation = speculator.speculate(k, outcome.bonus, round, limit - produced - 1)
            record.add(Wait, t0, lane=TARGET, on=DRAFT)
            drafted = speculation.tokens
            if speculation.q is not None:
                q = over_target_ids(speculation.q, speculator.ids, len(trunk.model.ids))

        t0 = record.now()
        position = len(trunk) + 1
        logits = trunk.extend([outcome.bonus, *drafted], min_rows)
        outcome = rule.verify(logits, drafted, q, position, streams.target(seq, round))
        k = outcome.k
        trunk.keep(position + k)
        rows = max(min_rows, len(drafted) + 1)
        record.add(Verify, t0, rows=rows, drafted=drafted, accepted=k, bonus=outcome.bonus)


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

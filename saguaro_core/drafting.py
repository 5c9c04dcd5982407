"""The draft's half of a run: answer each outcome at once if it was foreseen, then foresee the next ones.

`begin` reads the prompt; `speculate` answers an outcome (from the cache, or drafted just in time on a miss);
`prepare` uses the time of the target's verification to fork and grow the speculation tree, and may be interrupted
between any two steps. Under method `sd` nothing is foreseen, so every speculation is drafted just in time.
Source: Kumar, Dao, May, ICLR 2026; round protocol in ssd-algorithm note, section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from .cache import PreSpeculatedResult, SaguaroCache
from .events import DRAFT, DraftStep, Fallback, Glue, Lookup, Prefill, TreeStep
from .recorder import Recorder
from .rules import Rule
from .sampling import Streams
from .settings import Settings
from .tree import Tree
from .trunk import Trunk

FIRST = -1  # the `k` of the outcome that precedes every speculation: the first token


class FallbackStrategy(StrEnum):
    IMMEDIATE_RETRY = "immediate_retry"  # draft just in time for the missing row
    BATCHED_RETRY = "batched_retry"  # draft just in time for all missing rows of a batch together
    PARTIAL_ACCEPT = "partial_accept"  # go on with what there is, or without a draft


@dataclass(frozen=True)
class Speculation:
    """Drafted `tokens` (at most K; none where the draft has no room) and, where the verification needs them, the
    distributions `q` [len(tokens), H] they were drawn from."""

    tokens: tuple[int, ...] = ()
    q: Tensor | None = None


class Drafter:
    """One run on the draft's device. `trunk` outlives the run: the next turn of a chat reuses its keys and values."""

    def __init__(
        self, trunk: Trunk, rule: Rule, settings: Settings, streams: Streams, recorder: Recorder, seq: int = 0
    ):
        self.trunk, self.rule, self.settings, self.streams, self.record = trunk, rule, settings, streams, recorder
        self.seq = seq
        self.cache = SaguaroCache()
        self.ids: list[int] = []  # the committed tokens, the newest target-chosen one included
        self.drafted: tuple[int, ...] = ()  # the speculation under verification
        self._rows: list[Tensor] = []  # logits [1, H] already known of the rows to fork from
        self._tree: Tree | None = None

    def begin(self, prompt: Sequence[int], reuse: int | None, interrupted: Callable[[], bool]) -> None:
        """Read the prompt. Then guess the first token and speculate behind it while the target still reads."""
        self.ids = list(prompt)
        if len(prompt) >= self.trunk.model.context:
            return
        t0 = self.record.now()
        logits, reused = self.trunk.prefill(prompt, reuse)
        guesses = self._guess(FIRST, logits, (), sum(self.settings.fan_out))
        self.record.add(Prefill, t0, lane=DRAFT, tokens=len(prompt) - reused, reused=reused)
        if self.settings.method == "ssd" and self._room() > 0:
            self._grow(guesses, interrupted)

    def speculate(self, k: int, bonus: int, round: int, limit: int) -> Speculation:
        """The outcome `(k, bonus)` of the speculation before, `k` = `FIRST` for the first token: the next
        speculation of at most `limit` tokens, which round `round` will verify."""
        self.record.round = round
        self.ids += [*self.drafted[: max(k, 0)], bonus]
        self.trunk.keep(len(self.ids) - 1)
        limit = min(limit, self.settings.k, self._room())
        branch = self._lookup(k, bonus) if self.settings.method == "ssd" and limit > 0 else None
        self._rows = []
        if limit <= 0:
            speculation = Speculation()
        elif branch is None:
            speculation = self._just_in_time(min(limit, self.settings.patience))
        else:
            self._finish(branch, min(limit, self.settings.patience))
            speculation = Speculation(tuple(branch.tokens[:limit]), torch.stack(branch.q[:limit]) if branch.q else None)
        self.drafted = speculation.tokens
        self.cache.clear()
        return speculation

    def prepare(self, interrupted: Callable[[], bool]) -> None:
        """Foresee the outcomes of the speculation just handed out, until `interrupted()` says that one is known."""
        if self.settings.method != "ssd" or self._room() <= len(self.drafted):
            return
        t0 = self.record.now()
        missing = [*self.ids, *self.drafted][len(self.trunk) :]
        self._rows.append(self.trunk.extend(missing)[-(len(self.drafted) + 1 - len(self._rows)) :])
        guesses = self._fork(torch.cat(self._rows))
        self.record.add(Glue, t0, rows=len(missing))
        self._grow(guesses, interrupted)

    def _room(self) -> int:
        """Tokens that can still be drafted before the draft's context ends."""
        return self.trunk.model.context - len(self.ids)

    def _lookup(self, k: int, bonus: int) -> PreSpeculatedResult | None:
        """The branch prepared for the outcome, if it holds at least one drafted token."""
        branch = self.cache.lookup((self.seq, k, bonus))
        hit = branch is not None and bool(branch.tokens)
        self.record.add(
            Lookup,
            k=k,
            bonus=bonus,
            hit=hit,
            rank=branch.candidate if branch else None,
            candidates=self.cache.candidates(),
        )
        if hit:
            return branch
        self.record.add(
            Fallback,
            strategy=FallbackStrategy.IMMEDIATE_RETRY.value,
            why="the branch was not started in time" if branch else "the bonus was not among the candidates",
        )
        return None

    def _just_in_time(self, limit: int) -> Speculation:
        """Draft `limit` tokens one after another, while the target waits."""
        stream = self.streams.just_in_time(self.seq, self.record.round)
        tokens, qs = [], []
        for i in range(limit):
            t0 = self.record.now()
            logits = self.trunk.extend([*self.ids, *tokens][len(self.trunk) :], keep=1)
            (column,), q = self.rule.propose(logits, [len(self.ids) + i], [stream])
            tokens.append(int(self.trunk.model.ids[column]))
            self._rows.append(logits)
            if q is not None:
                qs.append(q)
            self.record.add(DraftStep, t0, i=i)
        return Speculation(tuple(tokens), torch.cat(qs) if qs else None)

    def _fork(self, logits: Tensor) -> list[tuple[int, int, int]]:
        """Rows [K + 1, H] that predict each outcome's bonus: the guesses `(k, candidate, column)` of all forks. A
        shorter speculation has fewer forks; the last one gets what the missing ones would have had."""
        last = len(self.drafted)
        guesses = []
        for k in range(last + 1):
            excluded = self.drafted[k : k + 1]  # a correction is never the rejected token
            width = self.settings.fan_out[k] if k < last else sum(self.settings.fan_out[last:])
            guesses += self._guess(k, logits[k : k + 1], excluded, width)
        return guesses

    def _guess(self, k: int, logits: Tensor, excluded: Sequence[int], width: int) -> list[tuple[int, int, int]]:
        """The `width` likeliest bonus tokens after `k` accepted ones: `(k, candidate, column)`."""
        scores = self.rule.scores(logits, [len(self.ids) + max(k, 0)])[0]
        for token in excluded:
            scores = scores.masked_fill(self.trunk.model.ids == token, -torch.inf)
        values, columns = scores.topk(min(width, len(scores)))
        columns = columns[values > -torch.inf].tolist()
        return [(k, candidate, column) for candidate, column in enumerate(columns)]

    def _grow(self, guesses: Sequence[tuple[int, int, int]], interrupted: Callable[[], bool]) -> None:
        """One branch a guess, up to K steps deep: each step goes on with the likelier half of every fork, because a
        likely branch is worth more tokens. Branches that go further have the lower rows."""
        ids, k_max = self.trunk.model.ids, self.settings.k
        guesses = sorted(guesses, key=lambda guess: guess[1])
        newest = ids[[column for _, _, column in guesses]].tolist() if guesses else []
        branches = []
        for row, ((k, candidate, _), bonus) in enumerate(zip(guesses, newest, strict=True)):
            stream = self.streams.branch(self.seq, self.record.round, k, candidate)
            branches.append(PreSpeculatedResult(row, candidate, stream))
            self.cache.store((self.seq, k, bonus), branches[-1])
        if not branches or self._room() <= 2 * k_max:
            return
        self._tree = Tree(self.trunk, [len(self.ids) + max(k, 0) for k, _, _ in guesses], k_max)
        for depth in range(k_max):
            if interrupted():
                break
            t0 = self.record.now()
            newest = self._step(newest, branches)
            self.record.add(TreeStep, t0, depth=depth, rows=len(branches))
            branches = branches[: -(-len(branches) // 2)]
            newest = newest[: len(branches)]

    def _finish(self, branch: PreSpeculatedResult, limit: int) -> None:
        """Go on with this branch alone where the tree was interrupted, while the target waits."""
        while len(branch.tokens) < limit:
            t0 = self.record.now()
            self._step([branch.tokens[-1]], [branch])
            self.record.add(DraftStep, t0, i=len(branch.tokens) - 1)

    def _step(self, newest: Sequence[int], branches: Sequence[PreSpeculatedResult]) -> list[int]:
        """One forward over adjacent branches of equal length, fed their `newest` tokens: each gets one more token."""
        rows, depth = [branch.row for branch in branches], len(branches[0].tokens)
        logits = self._tree.step(newest, rows, depth)
        positions = self._tree.positions(rows, depth + 1)
        columns, q = self.rule.propose(logits, positions, [branch.stream for branch in branches])
        tokens = self.trunk.model.ids[columns].tolist()
        for i, (branch, token) in enumerate(zip(branches, tokens, strict=True)):
            branch.tokens.append(token)
            if q is not None:
                branch.q.append(q[i])
        return tokens

"""The draft's half of a run: answer each outcome at once if it was foreseen, then foresee the next ones.

`begin` reads the prompt; `speculate` answers an outcome (from the cache, or drafted just in time on a miss);
`prepare` uses the time of the target's verification to fork and grow the speculation tree, and may be interrupted
between any two steps. Under method `sd` nothing is foreseen, so every speculation is drafted just in time.
Source: Kumar, Dao, May, ICLR 2026; round protocol in ssd-algorithm note, section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .cache import Guess, PreSpeculatedResult, SaguaroCache
from .capacity import MEMORY_LIMIT, entry_bytes, optimal_cache_size
from .controller import Controller
from .events import DRAFT, DraftStep, Fallback, Glue, Lookup, Prefill, TreeStep
from .events import Controller as Chosen
from .fallback import FallbackStrategy, MissInfo, adaptive_fallback, gain_of_one_token
from .recorder import Recorder
from .rules import Rule
from .sampling import Streams
from .settings import Settings
from .tree import Tree
from .trunk import Trunk, extend_all

FIRST = -1  # the `k` of the outcome that precedes every speculation: the first token
UNMEASURED_WAIT = 0.3  # time of a retry in verifications, until both are known


@dataclass(frozen=True)
class Outcome:
    """What became of the speculation before: `k` drafted tokens of sequence `seq` were accepted (`FIRST`: there was
    none), then the target chose `bonus`. At most `limit` drafted tokens are wanted next."""

    seq: int
    k: int
    bonus: int
    limit: int


@dataclass(frozen=True)
class Speculation:
    """Drafted `tokens` (at most K; none where the draft has no room) and, where the verification needs them, the
    distributions `q` [len(tokens), H] they were drawn from."""

    tokens: tuple[int, ...] = ()
    q: Tensor | None = None


def holds(branch: PreSpeculatedResult | None) -> int:
    """Drafted tokens that are ready."""
    return len(branch.tokens) if branch else 0


def groups(rows: list, alone: bool) -> list[list]:
    """The rows that are drafted for together."""
    return [[row] for row in rows] if alone else [rows]


def speculation_of(branch: PreSpeculatedResult, limit: int) -> Speculation:
    """The first `limit` tokens of a branch."""
    return Speculation(tuple(branch.tokens[:limit]), torch.stack(branch.q[:limit]) if branch.q else None)


@dataclass
class DraftSequence:
    """One sequence of a run on the draft. `trunk` outlives the run: the next turn of a chat reuses its keys and
    values. `ids`: the committed tokens, the newest target-chosen one included. `drafted`: the speculation under
    verification, which came from the cache if `hit`; `confidence`: the draft's probability of each of its tokens, None
    where unknown. `known`: logits [1, H] of rows to fork from that drafting just in time has already computed."""

    trunk: Trunk
    rule: Rule
    streams: Streams
    ids: list[int] = field(default_factory=list)
    drafted: tuple[int, ...] = ()
    hit: bool = False
    confidence: list[float | None] = field(default_factory=list)
    known: list[Tensor] = field(default_factory=list)
    tree: Tree | None = None

    @property
    def room(self) -> int:
        """Tokens that can still be drafted before the draft's context ends."""
        return self.trunk.model.context - len(self.ids)


class Drafter:
    """One run on the draft's device, over one or more sequences: a forward serves all of them."""

    def __init__(
        self,
        sequences: Sequence[DraftSequence],
        settings: Settings,
        recorder: Recorder,
        controller: Controller | None = None,
    ):
        self.sequences = {sequence.trunk.seq: sequence for sequence in sequences}
        self.settings, self.record = settings, recorder
        self.controller = controller or Controller()
        why = self.controller.begin(settings)
        self.record.watch = self.controller.see
        if settings.auto:
            self.record.add(Chosen, k=self.controller.plan.k, m=self.controller.plan.m, why=why)
        self.active: list[DraftSequence] = list(sequences)
        self.model = sequences[0].trunk.model
        self._began: float | None = None  # when the first tokens were known
        self._output = 0  # tokens of all sequences since then
        self._lookups = self._hits = 0
        self.cache = SaguaroCache(0)

    def begin(self, prompts: Sequence[Sequence[int]], reuse: int | None, interrupted: Callable[[], bool]) -> None:
        """Read the prompts. Then guess each first token and speculate behind it while the target still reads."""
        guesses = []
        for sequence, prompt in zip(self.active, prompts, strict=True):
            sequence.ids = list(prompt)
            if sequence.room <= 0:
                continue
            t0 = self.record.now()
            logits, reused = sequence.trunk.prefill(prompt, reuse)
            guesses.append((sequence, self._guess_first(sequence, logits)))
            tokens = len(prompt) - reused
            self.record.add(Prefill, t0, seq=sequence.trunk.seq, lane=DRAFT, tokens=tokens, reused=reused)
        if self.settings.foresees:
            self._grow(guesses, interrupted)

    def speculate(self, outcomes: Sequence[Outcome], round: int) -> list[Speculation]:
        """The next speculation after each outcome, which round `round` will verify. Sequences that are not asked for
        have ended."""
        self.record.round = round
        self.active = [self.sequences[outcome.seq] for outcome in outcomes]
        plan = self.controller.plan
        limits, branches = [], []
        if self._began is None:
            self._began = self.record.now()
        else:
            self._output += sum(outcome.k + 1 for outcome in outcomes)
        for sequence, outcome in zip(self.active, outcomes, strict=True):
            self.controller.outcome(sequence.hit, sequence.confidence, outcome.k)
            sequence.ids += [*sequence.drafted[: max(outcome.k, 0)], outcome.bonus]
            sequence.trunk.keep(len(sequence.ids) - 1)
            limits.append(min(outcome.limit, plan.k, sequence.room))
            foreseen = self.settings.foresees and limits[-1] > 0
            branches.append(self._lookup(sequence, outcome.k, outcome.bonus) if foreseen else None)
            if foreseen:
                sequence.rule.outcome(outcome.k if sequence.drafted else None, holds(branches[-1]) > 0, self._wait)
            sequence.known = []
        late = self._fall_back(limits, branches)
        speculations = []
        for sequence, limit, branch in zip(self.active, limits, branches, strict=True):
            hit = holds(branch) > 0
            speculation = speculation_of(branch, limit) if hit else late.get(sequence.trunk.seq, Speculation())
            sequence.drafted, sequence.hit = speculation.tokens, hit
            sequence.confidence = [None] * len(sequence.drafted)
            speculations.append(speculation)
        self.cache.clear()
        return speculations

    def prepare(self, interrupted: Callable[[], bool]) -> None:
        """Foresee the outcomes of the speculations just handed out, until `interrupted()` says that they are known."""
        t0 = self.record.now()
        if why := self.controller.decide(len(self.active)):
            self.record.add(Chosen, t0, k=self.controller.plan.k, m=self.controller.plan.m, why=why)
        able = [sequence for sequence in self.active if sequence.room > len(sequence.drafted)]
        if not self.settings.foresees or not able:
            return
        t0 = self.record.now()
        missing = [(s.trunk, [*s.ids, *s.drafted][len(s.trunk) :]) for s in able]
        guesses = []
        for sequence, logits in zip(able, extend_all(missing), strict=True):
            wanted = len(sequence.drafted) + 1 - len(sequence.known)
            rows = torch.cat((*sequence.known, logits[len(logits) - wanted :]))
            guesses.append((sequence, self._fork(sequence, rows)))
        self.record.add(Glue, t0, rows=sum(len(tokens) for _, tokens in missing))
        self._grow(guesses, interrupted)

    def _lookup(self, sequence: DraftSequence, k: int, bonus: int) -> PreSpeculatedResult | None:
        """The branch prepared for the outcome; a hit if it holds at least one drafted token."""
        seq = sequence.trunk.seq
        branch = self.cache.lookup((seq, k, bonus))
        rank, candidates = branch.candidate if branch else None, self.cache.candidates(seq)
        if k != FIRST:
            self.controller.rank(k == len(sequence.drafted), rank, sum(fork == k for fork, *_ in candidates))
        hit = holds(branch) > 0
        self._lookups += 1
        self._hits += hit
        self.record.add(Lookup, seq=seq, k=k, bonus=bonus, hit=hit, rank=rank, candidates=candidates)
        return branch

    def _fall_back(
        self, limits: Sequence[int], branches: Sequence[PreSpeculatedResult | None]
    ) -> dict[int, Speculation]:
        """Draft, while the target waits, for sequences with fewer tokens than patience allows, as the strategy has it:
        finish branches that were begun, and return the speculations of sequences without, by sequence."""
        patience = self.controller.plan.patience
        rows = [(s, b, min(limit, patience)) for s, limit, b in zip(self.active, limits, branches, strict=True)]
        short = [(sequence, branch, limit) for sequence, branch, limit in rows if holds(branch) < limit]
        if not short:
            return {}
        strategy = adaptive_fallback(self._miss_info(short), len(self.active), self.settings.fallback)
        missing = [(sequence, limit) for sequence, branch, limit in short if not holds(branch)]
        for sequence, branch, _ in short:
            if self.settings.foresees and not holds(branch):
                why = "the branch was not started in time" if branch else "the bonus was not among the candidates"
                self.record.add(Fallback, seq=sequence.trunk.seq, strategy=strategy.value, why=why)
        if strategy is FallbackStrategy.PARTIAL_ACCEPT:
            return {}
        alone = strategy is FallbackStrategy.IMMEDIATE_RETRY
        late = [each for group in groups(missing, alone) for each in self._just_in_time(group)]
        for group in groups([row for row in short if holds(row[1])], alone):
            self._finish(group)
        return {s.trunk.seq: speculation for (s, _), speculation in zip(missing, late, strict=True)}

    def _miss_info(self, short: Sequence[tuple[DraftSequence, PreSpeculatedResult | None, int]]) -> MissInfo:
        outcomes, costs = self.controller.experience.outcomes, self.controller.experience.costs
        gain = 0.0
        for _, branch, _ in short:
            acceptance = [outcomes.acceptance(holds(branch) > 0, i) for i in range(holds(branch) + 1)]
            gain += gain_of_one_token(acceptance)
        step_s = costs.step.ms(1) / 1e3 if costs.step.known else 0.0
        return MissInfo(gain, step_s, self._output / max(self.record.now() - self._began, 1e-9))

    @property
    def _wait(self) -> float:
        """The time of drafting just in time, in verifications."""
        costs, plan = self.controller.experience.costs, self.controller.plan
        if not (costs.step.known and costs.verify.known):
            return UNMEASURED_WAIT
        return plan.patience * costs.step.ms(1) / costs.verify.ms(len(self.active) * (plan.k + 1))

    def _just_in_time(self, missing: Sequence[tuple[DraftSequence, int]]) -> list[Speculation]:
        """Draft tokens one after another while the target waits: at most so many for each sequence, one forward a
        step for all that want more."""
        streams = [sequence.streams.just_in_time(self.record.round) for sequence, _ in missing]
        tokens: list[list[int]] = [[] for _ in missing]
        qs: list[list[Tensor]] = [[] for _ in missing]
        for i in range(max((limit for _, limit in missing), default=0)):
            t0 = self.record.now()
            wanting = [n for n, (_, limit) in enumerate(missing) if i < limit]
            new = [(missing[n][0], tokens[n]) for n in wanting]
            rows = extend_all([(s.trunk, [*s.ids, *drafted][len(s.trunk) :]) for s, drafted in new], keep=1)
            for n, logits in zip(wanting, rows, strict=True):
                sequence = missing[n][0]
                (column,), q = sequence.rule.propose(logits, [len(sequence.ids) + i], [streams[n]], self._width(i))
                tokens[n].append(int(self.model.ids[column]))
                sequence.known.append(logits)
                if q is not None:
                    qs[n].append(q)
            self.record.add(DraftStep, t0, i=i)
        return [Speculation(tuple(t), torch.cat(q) if q else None) for t, q in zip(tokens, qs, strict=True)]

    def _fork(self, sequence: DraftSequence, logits: Tensor) -> list[Guess]:
        """Rows [K + 1, H] that predict each outcome's bonus: the guesses worth preparing, the ones that deserve more
        depth first. A correction is never the rejected token."""
        positions = range(len(sequence.ids), len(sequence.ids) + len(logits))
        scores = sequence.rule.scores(logits, list(positions))
        drafted = torch.tensor(sequence.drafted, device=scores.device)[:, None] == self.model.ids
        if self.controller.needs_confidence:
            sequence.confidence = (scores[:-1].softmax(-1) * drafted).sum(-1).tolist()
        return self.cache.predict(scores, drafted, self.controller.candidates(sequence.hit, sequence.confidence))

    def _guess_first(self, sequence: DraftSequence, logits: Tensor) -> list[Guess]:
        """The likeliest first tokens, by logits [1, H] behind the prompt."""
        scores = sequence.rule.scores(logits, [len(sequence.ids)])
        chosen = [(0, candidate) for candidate in range(self.controller.plan.m)]
        guesses = self.cache.predict(scores, scores[:0].bool(), chosen)
        return [(FIRST, candidate, column) for _, candidate, column in guesses]

    def _capacity(self) -> int:
        """How many outcomes of all sequences may be prepared. The hit rate says so only where nobody asked for more;
        two lookups, one of them a hit, stand for what is not known yet."""
        plan, columns = self.controller.plan, len(self.model.ids) if self.active[0].rule.sends_q else 0
        hit_rate = (self._hits + 1) / (self._lookups + 2) if "m" in self.settings.auto else 0
        size = entry_bytes(plan.k, columns)
        return optimal_cache_size(
            len(self.active), hit_rate, MEMORY_LIMIT, bytes_per_entry=size, entries=max(1, plan.m)
        )

    def _width(self, i: int) -> int:
        """How many corrections of drafted token `i` (0-based) will be foreseen, on average where that depends on more."""
        plan, fan_out = self.controller.plan, self.settings.fan_out
        return fan_out[i] if fan_out else -(-plan.m // (plan.k + 1))

    def _grow(self, guesses: Sequence[tuple[DraftSequence, list[Guess]]], interrupted: Callable[[], bool]) -> None:
        """One branch a guess, up to K steps deep: each step goes on with the first half of the branches, because a
        likely branch is worth more tokens. Branches that go further have the lower rows."""
        ids, k_max = self.model.ids, self.controller.plan.k
        growing: list[tuple[DraftSequence, list[PreSpeculatedResult], list[int]]] = []
        self.cache.capacity = self._capacity()
        for sequence, guessed in guesses:
            guessed = guessed[: self.cache.capacity // len(self.active)]
            newest = ids[[column for _, _, column in guessed]].tolist() if guessed else []
            branches = []
            for row, ((k, candidate, _), bonus) in enumerate(zip(guessed, newest, strict=True)):
                stream = sequence.streams.branch(self.record.round, k, candidate)
                branches.append(PreSpeculatedResult(row, candidate, stream))
                self.cache.store((sequence.trunk.seq, k, bonus), branches[-1])
            if branches and sequence.room > 2 * k_max:
                forks = [len(sequence.ids) + max(k, 0) for k, _, _ in guessed]
                sequence.tree = Tree(sequence.trunk, forks, k_max)
                growing.append((sequence, branches, newest))
        for depth in range(k_max if growing else 0):
            if interrupted():
                break
            t0 = self.record.now()
            tokens = self._step(growing)
            self.record.add(TreeStep, t0, depth=depth, rows=sum(len(branches) for _, branches, _ in growing))
            halves = [-(-len(branches) // 2) for _, branches, _ in growing]
            growing = [
                (sequence, branches[:half], newest[:half])
                for (sequence, branches, _), newest, half in zip(growing, tokens, halves, strict=True)
            ]

    def _finish(self, begun: Sequence[tuple[DraftSequence, PreSpeculatedResult, int]]) -> None:
        """Go on with these branches alone where the tree was interrupted, while the target waits."""
        while begun := [(s, branch, limit) for s, branch, limit in begun if len(branch.tokens) < limit]:
            t0 = self.record.now()
            i = min(len(branch.tokens) for _, branch, _ in begun)
            self._step([(sequence, [branch], [branch.tokens[-1]]) for sequence, branch, _ in begun])
            self.record.add(DraftStep, t0, i=i)

    def _step(self, growing: Sequence[tuple[DraftSequence, list[PreSpeculatedResult], list[int]]]) -> list[list[int]]:
        """One forward over branches of every sequence, adjacent and of equal length within one, fed their newest
        tokens: each gets one more token."""
        rows = [[branch.row for branch in branches] for _, branches, _ in growing]
        depths = [len(branches[0].tokens) for _, branches, _ in growing]
        batch = [s.tree.rows(newest, r, d) for (s, _, newest), r, d in zip(growing, rows, depths, strict=True)]
        chosen = []
        for (sequence, branches, _), r, d, logits in zip(growing, rows, depths, self.model.forward(batch), strict=True):
            streams = [branch.stream for branch in branches]
            columns, q = sequence.rule.propose(logits, sequence.tree.positions(r, d + 1), streams, self._width(d))
            tokens = self.model.ids[columns].tolist()
            for i, (branch, token) in enumerate(zip(branches, tokens, strict=True)):
                branch.tokens.append(token)
                if q is not None:
                    branch.q.append(q[i])
            chosen.append(tokens)
        return chosen

"""The controller: chooses lookahead K, budget M and patience from what the run itself has measured.

Every few rounds it predicts, for its setting and all settings one step away, tokens and time of a round with the
period model (`predict`), and moves where more tokens a second are expected. It looks at times and at past outcomes
only, never at tokens not yet verified, so the choice of K cannot bias what is sampled (ssd-algorithm note, 6.2).
It runs beside the draft, which is where all of it is seen. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

from . import fan_out
from .costs import Costs
from .events import Event, Lookup, Verify
from .fan_out import BEST_FIRST, EVEN, GEOMETRIC
from .outcomes import Outcomes
from .settings import AUTO, FIXED, LARGEST_AUTO_K, Settings
from .summary import summarise

BUDGETS = (4, 8, 12, 16, 24, 32, 48)
PATIENCES = (1, 2, 3, 4, 6, 8)
EVERY = 12  # rounds from one decision to the next
GAIN = 1.02  # predicted speedup below which it is not worth a change
SETTLING = 8  # turns of the chain of rounds that `predict` follows


@dataclass(frozen=True)
class Plan:
    """What a round does: draft at most `k` tokens, prepare `m` outcomes, let the target wait for `patience` tokens."""

    k: int
    m: int
    patience: int


@dataclass(frozen=True)
class Forecast:
    """What a plan is expected to do. `tokens` a round of `period_ms`; `prepare_ms`: glue and tree beside a whole
    speculation's verification of `verify_ms`."""

    plan: Plan
    tokens: float
    period_ms: float
    hit_rate: float
    verify_ms: float
    prepare_ms: float

    @property
    def tok_s(self) -> float:
        return 1e3 * self.tokens / self.period_ms


class Experience:
    """What was learnt under one way of decoding, and the plan it led to."""

    def __init__(self):
        self.costs, self.outcomes = Costs(), Outcomes()
        self.plan: Plan | None = None

    def ready(self, tree: bool) -> bool:
        costs = self.costs
        needed = (costs.verify, costs.glue, costs.tree) if tree else (costs.verify, costs.step)
        return all(cost.known for cost in needed)


class Lesson:
    """What there is to learn from the events of a finished run of one sequence."""

    def __init__(self, events: Sequence[Event]):
        self._events, self._summary = events, summarise(events)

    def outcomes(self, into: Outcomes) -> None:
        """Add every speculation and the rank of every bonus."""
        lookups = {event.round: event for event in self._events if isinstance(event, Lookup)}
        for event in self._events:
            if isinstance(event, Verify):
                came = lookups.get(event.round)
                into.add(came is not None and came.hit, [None] * len(event.drafted), event.accepted)
                following = lookups.get(event.round + 1)
                if following:
                    width = sum(fork == event.accepted for fork, *_ in following.candidates)
                    into.add_rank(event.accepted == len(event.drafted), following.rank, width)

    def costs(self, into: Costs) -> None:
        """Add every forward; a round's overhead counts as part of its verification."""
        overhead = self._summary["overhead_ms"] or 0.0
        for event in self._events:
            into.see(event)
            if isinstance(event, Verify):
                into.verify.add(len(event.drafted) + 1, (event.t1 - event.t0) * 1e3 + overhead)


class Controller:
    """Outlives runs: under the same method, verification and temperature the next run goes on with what was learnt.
    `begin` each run; tell it what happens by `see`, `verified`, `outcome` and `rank`; ask it `plan`,
    `candidates` and, where the target is busy, `decide`."""

    def __init__(self):
        self._experience: dict[tuple, Experience] = {}

    def begin(self, settings: Settings) -> str:
        """A run begins with the present `plan`; returns why, in one sentence."""
        self._settings, self._batch, self._rounds = settings, 1, 0
        law = (settings.method, settings.verification, settings.temperature, settings.proposal, settings.saguaro_c)
        self.experience = self._experience.setdefault(law, Experience())
        plans = all_plans(settings)
        if self.experience.plan in plans:
            self.plan = self.experience.plan
            return "what the run before had come to"
        self.plan = cold_start(plans)
        return "a start from which to measure" if settings.auto else "as asked"

    # ---- what happens

    def see(self, event: Event) -> None:
        """Learn what a draft forward cost, from the event that the draft records of it."""
        self.experience.costs.see(event)

    def verified(self, rows: int, seconds: float) -> None:
        """The target took so long from a speculation to its next request, over `rows` rows of all sequences."""
        self.experience.costs.verify.add(rows, seconds * 1e3)

    def outcome(self, hit: bool, confidence: Sequence[float | None], accepted: int) -> None:
        """See `Outcomes.add`."""
        self.experience.outcomes.add(hit, confidence, accepted)

    def rank(self, full: bool, rank: int | None, width: int) -> None:
        """See `Outcomes.add_rank`."""
        self.experience.outcomes.add_rank(full, rank, width)

    # ---- what to do

    @property
    def needs_confidence(self) -> bool:
        """Whether `candidates` looks at the draft's own probabilities."""
        return self._settings.allocation in (BEST_FIRST, AUTO)

    def candidates(self, hit: bool, confidence: Sequence[float | None]) -> list[tuple[int, int]]:
        """The outcomes to prepare for a speculation of `len(confidence)` tokens: `(fork, candidate)`, the ones that
        deserve more depth first. `confidence`: the draft's probability of
        each token, None where unknown."""
        k, m, s, outcomes = len(confidence), self.plan.m, self._settings, self.experience.outcomes
        if self.needs_confidence:
            return fan_out.best_first(outcomes.probabilities(hit, confidence, m), m)
        if s.allocation == FIXED:  # a shorter speculation has fewer forks; the last gets what the others would have had
            return fan_out.rank_by_rank((*s.fan_out[:k], sum(s.fan_out[k:])))
        if s.allocation == EVEN:
            histogram = fan_out.uniform(k)
        elif s.allocation == GEOMETRIC:
            histogram = fan_out.capped_geometric(outcomes.mean_acceptance(hit), k)
        else:
            histogram = outcomes.histogram(hit, k)
        return fan_out.rank_by_rank(
            fan_out.allocate(histogram, m, fan_out.power_law_exponent(outcomes.curve(False, 32)))
        )

    def decide(self, batch: int = 1) -> str | None:
        """To be asked once a round of `batch` sequences. Moves to a better plan if there is one and it is time to look
        for it; returns why, in one sentence."""
        self._batch, self._rounds = batch, self._rounds + 1
        if not self._settings.auto or self._rounds <= EVERY or not self._ready:
            return None
        self._rounds = 0
        now, *others = self._forecasts([self.plan, *neighbours(self.plan, self._settings)])
        best = max(others, key=lambda forecast: forecast.tok_s, default=now)
        if best.tok_s <= GAIN * now.tok_s:
            return None
        self.plan = self.experience.plan = best.plan
        return explain(best, now)

    def forecast(self, plan: Plan | None = None) -> Forecast:
        """What this plan, or else the present one, is expected to do."""
        return self._forecasts([plan or self.plan])[0]

    @property
    def _ready(self) -> bool:
        return self.experience.ready(self._settings.foresees)

    def _forecasts(self, plans: Iterable[Plan]) -> list[Forecast]:
        model = PeriodModel(self.experience, self._batch)
        return [model.predict(plan) if self._settings.foresees else model.predict_sd(plan) for plan in plans]


class PeriodModel:
    """Predictions from one state of experience. A round's state is how many of its tokens came from the cache, 0 on a
    miss: from it follow how long the next verification is, how deep the tree gets beside it, and with what chances
    the next round is in which state. The prediction is the mean over the states in the long run."""

    def __init__(self, experience: Experience, batch: int = 1):
        self._costs, self._outcomes, self._batch = experience.costs, experience.outcomes, batch
        self._foreseen: dict[tuple[bool, int], list[float]] = {}
        self._expected: dict[tuple[bool, int], float] = {}
        self._step_ms = self._costs.step.ms(1) if self._costs.step.known else self._costs.tree.ms(1)

    def predict(self, plan: Plan) -> Forecast:
        """SSD with this plan."""
        rounds = [self._round(state, plan) for state in range(plan.k + 1)]
        weights = [1.0] + [0.0] * plan.k
        for _ in range(SETTLING):
            following = [0.0] * (plan.k + 1)
            for weight, (*_, chances) in zip(weights, rounds, strict=True):
                for state, chance in enumerate(chances):
                    following[state] += weight * chance
            weights = following
        mean = [sum(w * r[i] for w, r in zip(weights, rounds, strict=True)) for i in range(3)]
        tokens, busy_ms, wait_ms = mean
        if self._batch > 1:  # one sequence that has to wait holds up all
            waits = [(w, r[2]) for w, r in zip(weights, rounds, strict=True)]
            none = sum(w for w, wait in waits if wait == 0)
            wait_ms = (1 - none**self._batch) * max(wait for _, wait in waits)
        verify_ms, (_, prepare_ms) = self._verify_ms(plan.k), self._tree(plan.k, plan)
        return Forecast(plan, tokens, busy_ms + wait_ms, 1 - weights[0], verify_ms, prepare_ms)

    @property
    def plain_ms(self) -> float:
        """A round without drafted tokens."""
        return self._verify_ms(0)

    def predict_sd(self, plan: Plan) -> Forecast:
        """SD: K tokens drafted one after another, then verified."""
        tokens, verify_ms = self._tokens(False, plan.k), self._verify_ms(plan.k)
        return Forecast(plan, tokens, verify_ms + plan.k * self._step_ms, 0.0, verify_ms, 0.0)

    def _round(self, state: int, plan: Plan) -> tuple[float, float, float, list[float]]:
        """`(tokens, ms busy, ms waiting before it, chance of each following state)` of a round in `state`."""
        length = max(state, min(plan.patience, plan.k))
        widths, prepare_ms = self._tree(length, plan)
        foreseen = self._foresee(state > 0, length)
        at_least = [foreseen[min(width, len(foreseen) - 1)] for width in widths] + [0.0]  # tokens in its branch
        reached = [a - b for a, b in pairwise(at_least)]
        chances = [1 - at_least[0], *reached] + [0.0] * (plan.k - len(reached))
        busy_ms = max(self._verify_ms(length), prepare_ms)
        return self._tokens(state > 0, length), busy_ms, (length - state) * self._step_ms, chances

    def _tree(self, length: int, plan: Plan) -> tuple[list[int], float]:
        """Rows of the tree's steps beside the verification of `length` tokens, and the time they take: steps begin
        until the outcome is known, each with half the branches of the one before."""
        verify_ms, clock = self._verify_ms(length), self._costs.glue.ms(self._batch * (length + 1))
        widths, width = [], plan.m
        while len(widths) < plan.k and clock < verify_ms:
            clock += self._costs.tree.ms(self._batch * width)
            widths.append(width)
            width = -(-width // 2)
        return widths, clock

    def _verify_ms(self, length: int) -> float:
        return self._costs.verify.ms(self._batch * (length + 1))

    def _tokens(self, hit: bool, length: int) -> float:
        key = hit, length
        if key not in self._expected:
            chances = accumulate((self._outcomes.acceptance(hit, i) for i in range(length)), lambda a, b: a * b)
            self._expected[key] = 1 + sum(chances)
        return self._expected[key]

    def _foresee(self, hit: bool, length: int) -> list[float]:
        """`[m]`: the chance that the outcome is among the m likeliest."""
        key = hit, length
        if key not in self._foreseen:
            most = BUDGETS[-1]
            forks = self._outcomes.probabilities(hit, [None] * length, most)
            chosen = fan_out.best_first(forks, most)
            self._foreseen[key] = [0.0, *accumulate(forks[fork][candidate] for fork, candidate in chosen)]
        return self._foreseen[key]


def cold_start(plans: Sequence[Plan]) -> Plan:
    """The plan before anything is measured."""
    return min(plans, key=lambda plan: (abs(plan.k - 3), abs(plan.m - 16), plan.patience))


def all_plans(settings: Settings) -> list[Plan]:
    """Every plan these settings leave to the controller."""
    ks = range(1, LARGEST_AUTO_K + 1) if "k" in settings.auto else (settings.k,)
    if not settings.foresees:
        return [Plan(k, 0, k) for k in ks]
    budgets = BUDGETS if "m" in settings.auto else (settings.budget,)
    patiences = PATIENCES if "patience" in settings.auto else (settings.patience,)
    return [Plan(k, m, min(patience, k)) for k, m, patience in product(ks, budgets, patiences) if patience <= k]


def neighbours(plan: Plan, settings: Settings) -> list[Plan]:
    """The plans that differ by one step at most in K, M and patience."""

    def near(a: int, b: int, scale: Sequence[int]) -> bool:
        return abs(scale.index(a) - scale.index(b)) <= 1 if a in scale and b in scale else True

    return [
        other
        for other in all_plans(settings)
        if other != plan and abs(other.k - plan.k) <= 1 and near(other.m, plan.m, BUDGETS)
        and near(other.patience, plan.patience, PATIENCES)
    ]  # fmt: skip


def explain(best: Forecast, now: Forecast) -> str:
    """Why the first is better than the second."""
    k, m = best.plan.k, best.plan.m
    if m == 0:
        return (
            f"verifying {k} drafted tokens takes {best.verify_ms:.1f} ms and gives {best.tokens:.2f} tokens a round: "
            f"{best.tok_s:.3g} tok/s expected, against {now.tok_s:.3g} with K = {now.plan.k}"
        )
    fits = "fits inside" if best.prepare_ms <= best.verify_ms else "exceeds"
    return (
        f"preparing {m} outcomes up to {k} tokens deep takes {best.prepare_ms:.1f} ms, which {fits} the verification of "
        f"{best.verify_ms:.1f} ms; hit rate {best.hit_rate:.2f} and {best.tokens:.2f} tokens a round: "
        f"{best.tok_s:.3g} tok/s expected, against {now.tok_s:.3g} with K = {now.plan.k}, M = {now.plan.m}"
    )

"""The controller: its model against an independent simulation, convergence to the best setting, and losslessness."""

from __future__ import annotations

import random

import pytest

from saguaro_core.controller import BUDGETS, Controller, Lesson, PeriodModel, Plan, all_plans
from saguaro_core.costs import Line
from saguaro_core.drafting import Drafter
from saguaro_core.events import Controller as Chosen
from saguaro_core.events import DraftStep, Glue, TreeStep, Verify
from saguaro_core.settings import make_settings

from .toy import TabularModel, enumerate_law, run, total_variation

EOS = frozenset({2})
RANKS = {False: 0.25, True: 0.6}  # chance of each next candidate after a rejection, after full acceptance


class World:
    """A pair of made-up devices and texts: round after round by the rules of the engine, timed by the given costs in
    ms. Nothing of the controller's model is used."""

    def __init__(self, verify, row, glue, tree, branch, step, acceptance, seed=0):
        self.verify_ms = lambda length: verify + row * (length + 1)
        self.tree_ms = lambda rows: tree + branch * rows
        self.glue_ms, self.step_ms, self.acceptance = glue, step, acceptance
        self.rng = random.Random(seed)

    def play(self, controller: Controller, rounds: int) -> float:
        """Tokens per ms."""
        plan, rng = controller.plan, self.rng
        hit, length, tokens, ms = False, min(plan.patience, plan.k), 0, 0.0
        for _ in range(rounds):
            controller.decide()
            plan = controller.plan
            chosen = controller.candidates(hit, [None] * length)
            verify, clock = self.verify_ms(length), self.glue_ms
            controller.see(Glue(run="", rows=length + 1, t1=self.glue_ms / 1e3))
            widths, width = [], len(chosen)
            while len(widths) < plan.k and clock < verify:
                clock += self.tree_ms(width)
                controller.see(TreeStep(run="", rows=width, t1=self.tree_ms(width) / 1e3))
                widths.append(width)
                width = -(-width // 2)
            controller.verified(length + 1, verify / 1e3)
            ms += max(verify, clock)
            accepted = 0
            while accepted < length and rng.random() < self.acceptance:
                accepted += 1
            tokens += accepted + 1
            full, rank = accepted == length, 0
            while rank < 99 and rng.random() > RANKS[full] / (1 + rank / 4):
                rank += 1
            row = chosen.index((accepted, rank)) if (accepted, rank) in chosen else None
            offered = sum(fork == accepted for fork, _ in chosen)
            controller.outcome(hit, [None] * length, accepted)
            controller.rank(full, rank if row is not None else None, offered)
            depth = sum(row < width for width in widths) if row is not None else 0
            hit, length = depth > 0, max(depth, min(plan.patience, plan.k))
            for _ in range(length - depth):
                ms += self.step_ms
                controller.see(DraftStep(run="", t1=self.step_ms / 1e3))
        return tokens / ms


WORLDS = {
    "as measured on two cores": dict(verify=16.6, row=0.65, glue=3.6, tree=3.3, branch=0.06, step=3.4, acceptance=0.5),
    "a fast draft that agrees": dict(verify=30, row=0.3, glue=1, tree=1, branch=0.02, step=1, acceptance=0.85),
    "rows cost much": dict(verify=5, row=3.0, glue=1, tree=0.8, branch=0.15, step=0.8, acceptance=0.6),
    "a slow draft": dict(verify=20, row=0.2, glue=8, tree=7, branch=0.3, step=7, acceptance=0.6),
}


def settled(world: dict, plan: Plan) -> float:
    """Speed of a fixed plan, once what the allocator needs is known."""
    controller, simulated = Controller(), World(**world)
    controller.begin(make_settings("ssd", k=plan.k, patience=plan.patience, fan_out="best-first", budget=plan.m))
    simulated.play(controller, 150)
    return simulated.play(controller, 900)


@pytest.mark.parametrize("name", WORLDS)
def test_from_a_cold_start_to_the_best_setting(name):
    """Brute force over all K and M (with the better of two patiences), each simulated; the controller, in the same
    world, ends within 5 % of the best, and does much better than the worst."""
    world = WORLDS[name]
    speeds = {
        (k, m): max(settled(world, Plan(k, m, p)) for p in {1, min(k, 3)}) for k in range(1, 9) for m in BUDGETS[::2]
    }
    controller = Controller()
    controller.begin(make_settings("ssd", k="auto"))
    World(**world).play(controller, 1500)
    got, best = settled(world, controller.plan), max(speeds.values())
    assert got >= 0.95 * best, (controller.plan, max(speeds, key=speeds.get))
    assert got >= 1.1 * min(speeds.values())


def test_the_period_model_predicts_the_simulation():
    world = WORLDS["as measured on two cores"]
    controller = Controller()
    for k, m in ((3, 16), (5, 32), (2, 8)):
        controller.begin(make_settings("ssd", k=k, patience=1, fan_out="best-first", budget=m))
        World(**world).play(controller, 700)
    model = PeriodModel(controller.experience)
    for plan in (Plan(1, 8, 1), Plan(3, 16, 1), Plan(4, 24, 2), Plan(6, 48, 1)):
        assert model.predict(plan).tok_s / 1e3 == pytest.approx(settled(world, plan), rel=0.06)


def test_sd_has_a_controller_too():
    """K by the SD formula: brute force over K with the true constants."""

    def speed(k, acceptance=0.8, verify=20.0, row=0.2, step=2.0):
        return sum(acceptance**i for i in range(k + 1)) / (verify + row * (k + 1) + k * step)

    controller, rng = Controller(), random.Random(0)
    controller.begin(make_settings("sd", k="auto"))
    for _ in range(1500):
        controller.decide()
        k = controller.plan.k
        controller.verified(k + 1, (20.0 + 0.2 * (k + 1)) / 1e3)
        controller.see(DraftStep(run="", t1=0.002))
        accepted = next((i for i in range(k) if rng.random() > 0.8), k)
        controller.outcome(False, [None] * k, accepted)
    assert speed(controller.plan.k) >= 0.97 * max(map(speed, range(1, 9)))


def test_it_says_why():
    controller = Controller()
    controller.begin(make_settings("ssd", k="auto"))
    simulated, reasons = World(**WORLDS["a fast draft that agrees"]), []
    decide = controller.decide
    controller.decide = lambda: reasons.append(decide()) or reasons[-1]
    simulated.play(controller, 200)
    why = next(filter(None, reasons))
    assert "tok/s expected" in why and "hit rate" in why and "ms" in why
    assert sum(map(bool, reasons)) < 20  # it settles


def test_what_was_learnt_stays_for_the_next_run():
    controller = Controller()
    controller.begin(make_settings("ssd", k="auto"))
    World(**WORLDS["a fast draft that agrees"]).play(controller, 400)
    plan = controller.plan
    controller.begin(make_settings("ssd", k="auto", temperature=1.0))
    assert controller.plan != plan  # another law: it knows nothing of that yet
    controller.begin(make_settings("ssd", k="auto"))
    assert controller.plan == plan
    controller.begin(make_settings("ssd", k=2))
    assert controller.plan.k == 2


def test_what_is_asked_for_is_what_is_done():
    """The controller chooses only what is left to it."""
    assert all_plans(make_settings("ssd", k=3, fan_out=(8, 3, 1, 4))) == [Plan(3, 16, 1)]
    assert {plan.k for plan in all_plans(make_settings("ssd", k=4, fan_out="auto"))} == {4}
    assert {plan.m for plan in all_plans(make_settings("ssd", k="auto", fan_out="measured", budget=20))} == {20}
    assert {plan.patience for plan in all_plans(make_settings("ssd", k="auto", patience=2))} == {2}


@pytest.mark.parametrize(
    "wrong, words",
    [
        (dict(k="auto", fan_out=4), "chosen too"),
        (dict(k="many"), "K must be"),
        (dict(fan_out="widest"), "unknown fan-out"),
        (dict(fan_out="uniform", budget=0), "budget"),
        (dict(fan_out=(1, 1, 1, 1), budget=5), "budget of 5"),
    ],
)
def test_settings_that_make_no_sense(wrong, words):
    with pytest.raises(ValueError, match=words):
        make_settings("ssd", **wrong)


def test_a_stumble_of_the_machine_does_not_mislead_the_line():
    line, rng = Line(0.02), random.Random(0)
    for i in range(200):
        rows = rng.choice((2, 4, 8, 16))
        line.add(rows, 3 + 0.1 * rows if i % 20 else 500)
    assert line.ms(4) == pytest.approx(3.4, rel=0.15) and line.ms(16) == pytest.approx(4.6, rel=0.15)


def test_a_slope_not_seen_is_the_one_assumed():
    line = Line(0.03)
    for _ in range(20):
        line.add(4, 20.0)
    assert line.ms(4) == pytest.approx(20) and line.ms(8) == pytest.approx(22.4)


def test_a_lesson_learns_what_the_drafter_does():
    """From the events of a run the same statistics follow as the drafter collected while it went."""
    controller = Controller()
    ids = tuple(range(6))
    _, events = run(
        "ssd", TabularModel(3, ids), TabularModel(4, ids), controller=lambda: controller, k=3, fan_out="uniform", budget=8,
        max_new_tokens=60,
    )  # fmt: skip
    learnt = Controller()
    learnt.begin(make_settings("ssd"))
    Lesson(events).outcomes(learnt.experience.outcomes)
    Lesson(events).costs(learnt.experience.costs)
    ours, theirs = controller.experience.outcomes, learnt.experience.outcomes
    for i in range(3):
        assert theirs.acceptance(True, i) == pytest.approx(ours.acceptance(True, i), abs=0.08)
    assert theirs.curve(False, 4) == pytest.approx(ours.curve(False, 4), abs=0.05)
    assert learnt.experience.costs.tree.count == controller.experience.costs.tree.count > 0


# ------------------------------------------------------------------------------------------- losslessness


class Restless(Controller):
    """Changes everything every round, by what was accepted so far (the past only)."""

    def begin(self, settings):
        self.past = 0
        return super().begin(settings)

    def outcome(self, hit, confidence, accepted):
        super().outcome(hit, confidence, accepted)
        self.past += accepted + 1

    def decide(self, batch=1):
        k = 1 + self.past % 2
        self.plan = Plan(k, 2 + self.past % 4, 1 + self.past % k)
        return "restless"


@pytest.mark.parametrize("steps", [None, 1])
@pytest.mark.parametrize("verification", ["token", "coupled"])
def test_a_k_that_changes_from_round_to_round_is_lossless(verification, steps):
    case = dict(k=2, fan_out="best-first", budget=3, temperature=1.0, verification=verification)
    if verification == "token":
        law = enumerate_law(eos=EOS, rounds=2, steps=steps, controller=Restless, **case)
        assert total_variation(law, EOS) < 1e-12
        return
    target, draft = TabularModel(1), TabularModel(2)
    for seed in range(300):
        common = dict(max_new_tokens=8, seed=seed, eos=EOS, temperature=1.0)
        expected, _ = run("ar", target, draft, **common)
        assert run("ssd", target, draft, steps=steps, controller=Restless, **(case | common))[0] == expected


def test_the_length_does_change():
    _, events = run(
        "ssd", TabularModel(1), TabularModel(2), k=2, fan_out="best-first", budget=3, max_new_tokens=40,
        controller=Restless,
    )  # fmt: skip
    assert {len(event.drafted) for event in events if isinstance(event, Verify)} >= {1, 2}
    assert {event.m for event in events if isinstance(event, Chosen)} >= {2, 3}


def test_a_k_chosen_by_looking_at_the_drafted_token_is_noticed(monkeypatch):
    """The negative control: a speculation that is cut where its own token looks bad is biased, and the proof sees it."""
    shipped = Drafter.speculate

    def cut(self, outcomes, round):
        speculations = shipped(self, outcomes, round)
        for i, speculation in enumerate(speculations):
            if speculation.tokens and speculation.tokens[0] == 1:
                speculations[i] = type(speculation)()
                self.active[i].drafted = ()
        return speculations

    monkeypatch.setattr(Drafter, "speculate", cut)
    law = enumerate_law("sd", eos=EOS, rounds=1, k=1, verification="token", temperature=1.0)
    assert total_variation(law, EOS) > 1e-3


def test_auto_runs_in_the_toy():
    """The shipped controller in the shipped drafter, by the clock: the text stays that of plain decoding."""
    ids = tuple(range(8))
    target, draft = TabularModel(5, ids, context=512), TabularModel(6, ids, context=512)
    expected, _ = run("ar", target, draft, max_new_tokens=200)
    for method in ("ssd", "sd"):
        output, events = run(method, target, draft, max_new_tokens=200, k="auto")
        assert output == expected and any(isinstance(event, Chosen) for event in events)

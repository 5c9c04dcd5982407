"""The probe command on a tiny pair, and its verdict on made-up measurements."""

from __future__ import annotations

import pytest

from saguaro_core import SaguaroSSD, probe
from saguaro_core.controller import Forecast, Plan
from saguaro_core.events import Lookup, Verify

from .tiny import tiny_draft, tiny_model


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    with SaguaroSSD(str(tiny_model(folder / "target")), str(tiny_draft(folder / "draft")), context=256) as engine:
        return probe.measure(engine, 16)


def test_everything_was_measured(report):
    assert set(report["verify_ms"]) >= {1, 2, 3, 5, 9}
    assert set(report["tree_step_ms"]) >= {48, 16}  # later steps have fewer rows, where there is time for them
    assert all(ms > 0 for ms in (*report["verify_ms"].values(), *report["tree_step_ms"].values()))
    assert report["draft_step_ms"] > 0 and report["glue_ms"] > 0
    assert all(0 <= p <= 1 for p in report["acceptance"]["sd"].values())
    within = list(report["bonus_within"]["after a rejection"].values())
    assert within == sorted(within) and 0 <= within[0] <= within[-1] <= 1
    assert 1 <= report["best"]["sd"]["k"] <= 8 and 1 <= report["best"]["ssd"]["k"] <= 8
    for ratios in (report["predicted"], report["measured"]):
        assert ratios["ssd/sd"] == pytest.approx(ratios["ssd/ar"] / ratios["sd/ar"])
    assert report["verdict"].startswith(("SSD pays", "SSD does not pay"))


def test_the_table_says_what_the_report_holds(report):
    text = probe.table(report)
    assert report["verdict"] in text and "tree step, ms by rows" in text
    assert f"K {report['best']['ssd']['k']}, M {report['best']['ssd']['m']}" in text


def forecast(tokens, period, k=3, m=16, hit_rate=0.6, verify=20.0, prepare=15.0):
    return Forecast(Plan(k, m, 1), tokens, period, hit_rate, verify, prepare)


@pytest.mark.parametrize(
    "sd, ssd, acceptance, words",
    [
        (forecast(2, 25), forecast(2.2, 21), 0.6, ("SSD pays", "1.31 times SD")),
        (forecast(2, 21), forecast(2, 20.5), 0.6, ("does not pay", "SD spends only 5%")),
        (forecast(2, 25), forecast(2, 25, prepare=25.0), 0.6, ("does not pay", "longer than the verification")),
        (forecast(2, 25), forecast(2, 24.9, hit_rate=0.2), 0.6, ("does not pay", "only 20% of the outcomes")),
        (forecast(1, 25), forecast(1, 22), 0.1, ("does not pay", "only 10% of the draft's tokens")),
        (forecast(2, 90), forecast(2, 80, verify=80.0), 0.6, ("does not pay", "verifying 3 drafted tokens takes 80")),
    ],
)
def test_the_verdict_names_the_reason(sd, ssd, acceptance, words):
    text = probe.verdict(sd, ssd, 20.0, acceptance)
    assert all(word in text for word in words), text


def test_what_was_not_seen_is_not_claimed():
    """A fork of two candidates says nothing about the first four."""
    run = [
        Verify(run="", round=1, drafted=(5, 6), accepted=1, bonus=9),
        Lookup(run="", round=2, k=1, bonus=9, hit=True, rank=1, candidates=((1, 8, ()), (1, 9, (3,)), (2, 4, ()))),
        Verify(run="", round=2, drafted=(3,), accepted=1, bonus=7),
    ]
    assert probe.bonus_within([run], full=False) == {1: 0.0, 2: 1.0}
    assert probe.bonus_within([run], full=True) == {}
    assert probe.acceptance([run]) == {1: 1.0, 2: 0.0}

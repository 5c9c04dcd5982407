"""Events, traces and the summary: exact numbers from hand-made events; the light imports stay light."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from saguaro_core import trace
from saguaro_core.events import (
    ACCEPTED,
    BONUS,
    CORRECTION,
    DRAFT,
    KINDS,
    PLAIN,
    TARGET,
    DraftStep,
    Glue,
    Lookup,
    Notice,
    Prefill,
    RunFinished,
    RunStarted,
    Tokens,
    TreeStep,
    Verify,
    from_dict,
)  # fmt: skip
from saguaro_core.summary import summarise

HOSTILE = '<img src=x onerror=alert(1)></script>${alert(1)}`\\u{1F600}\u202e"\n'


def at(kind, round, t0, t1, **fields):
    return kind(run="r", round=round, t0=t0, t1=t1, **fields)


def hand_made():
    """Two rounds by hand: a hit that accepts one of two drafts and corrects, then a miss that accepts all of one."""
    return [
        at(RunStarted, 0, 0.0, 0.0, models={"target": HOSTILE}, settings={"k": 2, "fan_out": [1, 1, 1]}, exact=True),
        at(Prefill, 0, 0.0, 0.5, lane=TARGET, tokens=10),
        at(Prefill, 0, 0.0, 0.1, lane=DRAFT, tokens=10),
        at(Tokens, 0, 0.5, 0.5, ids=(7,), state=(PLAIN,), text=HOSTILE),
        at(Lookup, 1, 0.5, 0.5, k=-1, bonus=7, hit=True, rank=0, candidates=((-1, 7, (8, 9)),)),
        at(Verify, 1, 0.5, 0.7, rows=4, drafted=(8, 9), accepted=1, bonus=5),
        at(Glue, 1, 0.5, 0.55, rows=3),
        at(TreeStep, 1, 0.55, 0.65, depth=0, rows=6),
        at(Tokens, 1, 0.7, 0.7, ids=(8, 5), state=(ACCEPTED, CORRECTION), text="b"),
        at(Lookup, 2, 0.71, 0.71, k=1, bonus=5, hit=False, rank=None, candidates=((0, 1, (2,)),)),
        at(DraftStep, 2, 0.71, 0.75, i=0),
        at(Verify, 2, 0.76, 0.96, rows=4, drafted=(3,), accepted=1, bonus=2),
        at(TreeStep, 2, 0.76, 1.1, depth=0, rows=6),
        at(Tokens, 2, 1.0, 1.0, ids=(3, 2), state=(ACCEPTED, BONUS), text="c"),
    ]


def test_every_kind_survives_json():
    events = hand_made() + [cls(run="r", **required(cls)) for cls in KINDS.values()]
    for event in events:
        assert from_dict(json.loads(trace.dumps(event))) == event


def required(cls):
    examples = {"lane": TARGET, "tokens": 3, "on": DRAFT, "strategy": "immediate_retry", "bytes": 4, "path": "socket",
                "text": HOSTILE, "k": 2, "m": 8, "reason": "eos"}  # fmt: skip
    missing = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    return {name: examples[name] for name in missing if name != "run"}


def test_trace_file(tmp_path):
    path = tmp_path / "run.jsonl"
    trace.save(path, hand_made())
    assert trace.load(path) == hand_made()
    for bad in (
        '{"event": "nonsense"}',
        "not json",
        "[]",
        '{"event": "glue", "run": "r", "surprise": 1}',
        '{"event": "glue"}',
    ):
        path.write_text(trace.dumps(hand_made()[0]) + "\n" + bad + "\n")
        with pytest.raises(ValueError, match="line 2"):
            trace.load(path)


def test_events_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        hand_made()[0].run = "other"


def test_summary_of_hand_made_events():
    summary = summarise(hand_made())
    near = pytest.approx
    assert summary["ttft_s"] == 0.5
    assert summary["tokens"] == 5 and summary["rounds"] == 2
    assert summary["decode_tok_s"] == near(4 / 0.5)
    assert summary["tokens_per_round"] == 2
    assert (summary["tokens_per_round_hit"], summary["tokens_per_round_miss"]) == (2, 2)
    assert summary["acceptance"] == near(2 / 3)  # tested: both of round 1 (one rejected), one of round 2
    assert summary["acceptance_by_position"] == [1.0, 0.0]
    assert (summary["drafted"], summary["accepted"]) == (3, 2)
    assert summary["hit_rate"] == 0 and summary["lookups"] == 1  # the first round is not counted
    assert summary["bonus_rank"] == {"none": 1}
    assert summary["verify_ms"] == near(200) and summary["glue_ms"] == near(50)
    assert summary["tree_step_ms"] == near((100 + 340) / 2) and summary["draft_step_ms"] == near(40)
    # decode window 0.5 .. 1.0; target busy 0.2 + 0.2; draft 0.05 + 0.1 + 0.04 + (0.76 .. 1.0)
    assert summary["busy"] == {TARGET: near(0.4 / 0.5), DRAFT: near(0.43 / 0.5)}
    assert summary["overlap"] == near((0.15 + 0.2) / 0.5)
    # period 0.26, longer of verification (0.2) and draft's work (0.15), then 0.04 of drafting waited for
    assert summary["overhead_ms"] == near(20)
    assert summary["period_miss_ms"] == near(260) and summary["period_hit_ms"] is None


def test_summary_of_nothing():
    for events in ([], [at(Notice, 0, 0, 0, text="x")], [at(RunFinished, 0, 0, 0, reason="cancelled")]):
        summary = summarise(events)
        assert summary["tokens"] == 0 and summary["decode_tok_s"] is None and summary["hit_rate"] is None


def test_replay_needs_neither_torch_nor_transformers():
    code = (
        "import sys; import saguaro_core, saguaro_core.events, saguaro_core.trace, saguaro_core.summary; "
        "print([m for m in ('torch', 'transformers', 'gradio', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_engine_imports_no_user_interface():
    code = (
        "import sys; import saguaro_core.engine, saguaro_core.bench; "
        "import saguaro_core.target_worker, saguaro_core.draft_worker; "
        "print([m for m in ('gradio', 'plotly', 'viz') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"

"""The chat without a browser: settings, recorded runs, who was how fast, tokens by origin."""

from __future__ import annotations

import json

import pytest

from saguaro_core import events as ev
from saguaro_core import trace
from saguaro_core.settings import make_settings
from viz import choices, deltas, pace, replay, tokenlog

from .stub_engine import play
from .test_viz import HOSTILE, TRACES

# ---------------------------------------------------------------------------------------------------------------
# Settings


def form(**changes) -> dict:
    made = choices.DEFAULTS | changes
    return {name: made[name] for name in choices.NAMES if name != "compare"}


@pytest.mark.parametrize("method", choices.METHODS)
@pytest.mark.parametrize("temperature", (0, 0.8))
def test_a_form_gives_keywords_that_the_engine_takes(method, temperature):
    made = choices.keywords(**form(method=method, temperature=temperature))
    assert make_settings(**made).method == method == made["method"]
    assert made["k"] is None and made["fan_out"] is None and made["verification"] is None


def test_settings_are_checked_with_a_sentence():
    assert choices.numbers("10, 6/4 4") == [10, 6, 4, 4] and choices.numbers(" 8 ") == 8
    assert choices.lookahead(" 3 ") == 3 and choices.lookahead("") is None and choices.lookahead(None) is None
    assert choices.lookahead("Auto") == choices.numbers("auto") == "auto"
    for wrong, said in (
        ({"k": "-1"}, "whole number"),
        ({"k": "99"}, "K must be"),
        ({"fan_out": "ten"}, "Fan-out"),
        ({"fan_out": "1, 2", "k": "3"}, "fan-out"),
        ({"method": "xyz"}, "method"),
        ({"verification": "token"}, "does not fit"),
        ({"top_p": 0}, "top-p"),
    ):
        with pytest.raises(ValueError, match=said):
            choices.keywords(**form(**wrong))


def test_an_address_is_read_and_what_makes_no_sense_is_left_out():
    assert choices.from_address({}) == (choices.DEFAULTS, [])
    query = {"method": "SD", "k": "2", "temperature": "0.5", "seed": "7", "compare": "0", "max_new_tokens": "32"}
    made, complaints = choices.from_address(query)
    assert made == choices.DEFAULTS | {
        "method": "sd", "k": "2", "temperature": 0.5, "seed": 7, "compare": False, "max_new_tokens": 32,
    } and not complaints  # fmt: skip
    made, complaints = choices.from_address({"verification": "token", "seed": "3"})
    assert made == choices.DEFAULTS | {"seed": 3} and "does not fit" in choices.complaint(complaints)


@pytest.mark.parametrize("bad", (*HOSTILE, "", "nan", "inf", "-1", "9" * 400, "1e999", "\u0661", "\x00"))
def test_a_hostile_address_changes_nothing_and_is_not_quoted(bad):
    made, complaints = choices.from_address(dict.fromkeys(choices.NAMES, bad))
    assert made == choices.DEFAULTS and len(complaints) >= len(choices.NAMES) - 2  # K and fan-out may be blank
    assert not bad.strip() or bad not in choices.complaint(complaints)


# ---------------------------------------------------------------------------------------------------------------
# Pace


def run(times: list[float], ids: list[int] | None = None, verification: str = "greedy") -> pace.Pace:
    events: list[ev.Event] = [ev.RunStarted(run="r", settings={"method": "ssd", "verification": verification})]
    for n, t in enumerate(times):
        id = n if ids is None else ids[n]
        events.append(ev.Tokens(run="r", round=n, t0=t, t1=t, ids=(id,), state=("plain",)))
    return pace.Pace().add(events)


def test_a_speedup_is_over_the_same_tokens_and_from_the_first_one_on():
    fast, slow = run([5.0, 5.1, 5.2, 5.3]), run([1.0, 1.3, 1.6, 1.9, 2.9])
    assert pace.speedup(fast, slow) == pytest.approx(3.0) and pace.speedup(slow, fast) == pytest.approx(1 / 3)
    assert pace.speedup(fast, run([1.0])) is None and pace.speedup(run([]), slow) is None
    early = run([5.0, 5.1, 5.2])  # of a run that is still going
    assert pace.speedup(early, slow) == pytest.approx(3.0)


def test_texts_that_part_are_compared_only_up_to_there():
    one, other = run([0, 1, 2, 3], [7, 8, 9, 4]), run([0, 2, 4, 10], [7, 8, 9, 5])
    assert pace.speedup(one, other) == pytest.approx(2.0) and pace.parted(one, other) == 4
    assert pace.parted(one, run([0, 1], [7, 8])) is None
    sampled = run([0, 1, 2, 3], [7, 8, 9, 4], "token")  # promises the same law, not the same text
    assert pace.speedup(sampled, other) == pytest.approx(10 / 3) and pace.parted(sampled, other) is None


def test_the_shipped_runs_begin_with_one_that_ar_and_sd_were_measured_on():
    traces = replay.find(TRACES)
    first = pace.Pace().add(replay.load(traces[replay.first(traces)]))
    bases = replay.baselines(first, replay.paces(traces.values()))
    assert first.method == "ssd" and list(bases) == ["ar", "sd"] and first.machine
    assert all(pace.shared(first, base) > 50 for base in bases.values())


def test_traces_are_found_and_refused_with_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="no trace"):
        replay.find(tmp_path)
    trace.save(tmp_path / "a.jsonl", [*play("ssd", 20), *play("ar", 20)])
    (tmp_path / "b.jsonl").write_text('{"event": "nonsense"}\n')
    found = replay.find(tmp_path)
    assert list(found) == ["a.jsonl", "b.jsonl"] and replay.find(tmp_path / "a.jsonl") == {
        "a.jsonl": tmp_path / "a.jsonl"
    }
    assert replay.load(found["a.jsonl"]) == play("ssd", 20), "the first run of several"
    assert replay.first(found) == "a.jsonl"
    for path in (found["b.jsonl"], None, tmp_path / "gone.jsonl"):
        with pytest.raises(ValueError):
            replay.load(path)


# ---------------------------------------------------------------------------------------------------------------
# Tokens by origin


@pytest.mark.parametrize("method", ("ar", "sd", "ssd"))
def test_token_rows_say_where_each_token_came_from(method):
    events = play(method, 40)
    logs = tokenlog.TokenLogs()
    log = logs.open()
    for start in range(0, len(events), 7):
        log.add(events[start : start + 7])
    rows = json.loads(logs.since(log.token, 0))
    tokens = [event for event in events if isinstance(event, ev.Tokens)]
    assert "".join(row[0] for row in rows) == "".join(event.text for event in tokens)
    assert [row[1] for row in rows] == [state[0] for event in tokens for state in event.state]
    hits = {event.round: int(event.hit) for event in events if isinstance(event, ev.Lookup)}
    assert [row[3] for row in rows] == [hits.get(event.round, -1) for event in tokens for _ in event.ids]
    assert rows[0][4] == 0 and rows[-1][4] == pytest.approx((tokens[-1].t1 - tokens[0].t1) * 1e3, abs=0.1)
    assert json.loads(logs.since(log.token, 30)) == rows[30:]


def test_token_rows_cope_with_traces_without_pieces_and_text_that_was_held_back():
    log = tokenlog.TokenLog()
    log.add([ev.Tokens(run="r", ids=(1, 2), state=("accepted", "bonus"), text="ab"), ev.Tokens(run="r", text="!")])
    assert [row[:2] for row in log.rows] == [["ab", "a"], ["", "b"], ["!", ""]]


def test_token_logs_answer_only_for_their_token_and_are_bounded():
    logs = tokenlog.TokenLogs()
    first = logs.open()
    first.add(play("ar", 5))
    for token, after in (("", 0), (None, 0), ([], 0), (first.token, "0"), ("nobody", 0)):
        assert logs.since(token, after) == ""
    for _ in range(tokenlog.KEPT):
        logs.open()
    assert logs.since(first.token, 0) == ""


def test_what_a_model_thinks_is_folded_away():
    from viz import handlers

    def shown(text: str, note: str = "") -> list:
        return handlers.view([{"role": "assistant", "text": text, "note": note}])

    thought, answer = shown("<think>2 < 3</think>\n\nYes")
    assert thought["metadata"]["status"] == "done" and thought["content"] == "2 &lt; 3" and answer["content"] == "Yes"
    assert [part["metadata"]["status"] for part in shown("<think>still")] == ["pending"]
    assert shown("<think>cut", "stopped")[-1]["content"].strip() == "*stopped*"
    assert shown("a <think> b")[0]["content"] == "a &lt;think> b"


def test_every_row_of_a_feed_reaches_the_page_of_a_recorded_run():
    from viz.context import Context, EngineSlot
    from viz.handlers import OUTPUTS, Desk

    traces = replay.find(TRACES)
    desk = Desk(Context(EngineSlot(), traces))
    for name, path in traces.items():
        shown = dict(zip(OUTPUTS, desk.show(name), strict=True))
        assert sum(len(json.loads(chunk)) for chunk in shown["timeline"]["chunks"].values()) == len(
            deltas.rows(replay.load(path))
        )
        assert shown["timeline"]["done"] and shown["stats"]["state"] == "recorded" and shown["answer"]["done"]
        assert "Measured on" in shown["notice"]["text"]
    assert dict(zip(OUTPUTS, desk.show("../" + name), strict=True))["notice"]["level"] == "error"

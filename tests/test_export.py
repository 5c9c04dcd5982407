"""Traces of strangers, races among recorded runs, and what is written for others: Perfetto JSON and slides."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from saguaro_core import events as ev
from saguaro_core import trace
from viz import comparison, perfetto, recording

from .stub_engine import play
from .test_viz import HOSTILE

SHIPPED = sorted((Path(__file__).parent.parent / "assets" / "traces").glob("*.jsonl"))
METHODS = ("ar", "sd", "ssd")
GOOD = {"event": "glue", "run": "r", "rows": 4, "t0": 0.1, "t1": 0.2}


def runs(*methods: str, tokens: int = 40, **options) -> list[recording.Recording]:
    return [tuple(play(method, tokens, **options)) for method in methods or METHODS]


# ---------------------------------------------------------------------------------------------------------------
# Somebody else's file


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_traces_are_read_and_kept_as_they_are(path):
    (run,) = recording.read(path)
    assert list(run) == trace.load(path)
    assert recording.unpack(recording.pack([run])) == [run]
    assert len(recording.pieces(run)) == len(recording.ids(run))
    assert "".join(recording.pieces(run)) == "".join(event.text for event in run if isinstance(event, ev.Tokens))


def test_a_file_of_several_runs_is_split(tmp_path):
    made = runs()
    file = tmp_path / "race.jsonl"
    file.write_text(recording.dumps(made), encoding="utf-8")
    assert recording.read(file) == made


BAD = {
    "empty": b"",
    "binary": bytes(range(256)),
    "not json": b"hello\n",
    "an array": b"[1, 2]\n",
    "deep": b"[" * 200_000 + b"\n",
    "deep settings": b'{"event":"run_started","run":"r","settings":'
    + b'{"a":' * 50_000
    + b"1"
    + b"}" * 50_000
    + b"}\n",
    "unknown kind": b'{"event": "<img src=x onerror=alert(1)>"}\n',
    "unknown field": json.dumps(GOOD | {"more": 1}).encode(),
    "a word for a time": json.dumps(GOOD | {"t0": "0.1"}).encode(),
    "not a number": json.dumps(GOOD | {"t1": float("nan")}).encode(),
    "infinite": b'{"event": "glue", "run": "r", "rows": 1, "t0": 0, "t1": 1e999}\n',
    "backwards": json.dumps(GOOD | {"t0": 3}).encode(),
    "before the start": json.dumps(GOOD | {"t0": -1}).encode(),
    "years": json.dumps(GOOD | {"t1": 1e9}).encode(),
    "huge integer": json.dumps(GOOD | {"rows": 10**400}).encode(),
    "boolean": json.dumps(GOOD | {"rows": True}).encode(),
    "ids that are words": b'{"event": "tokens", "run": "r", "ids": ["1"], "state": ["plain"], "text": "a"}\n',
    "fewer states": b'{"event": "tokens", "run": "r", "ids": [1, 2], "state": ["plain"], "text": "a"}\n',
    "more pieces": b'{"event": "tokens", "run": "r", "ids": [1], "state": ["plain"], "text": "ab", "pieces": ["a", "b"]}\n',
    "text that is a number": b'{"event": "tokens", "run": "r", "ids": [1], "state": ["plain"], "text": 7}\n',
    "more accepted than drafted": b'{"event": "verify", "run": "r", "drafted": [1], "accepted": 2}\n',
    "crooked candidates": b'{"event": "lookup", "run": "r", "candidates": [[0, 1]]}\n',
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_a_sentence(tmp_path, name):
    file = tmp_path / "theirs.jsonl"
    file.write_bytes(BAD[name])
    with pytest.raises(ValueError, match="theirs.jsonl") as refusal:
        recording.read(file)
    said = str(refusal.value)
    assert str(tmp_path) not in said and "\n" not in said and len(said) <= 300


def test_a_good_event_is_not_refused(tmp_path):
    file = tmp_path / "theirs.jsonl"
    file.write_text(json.dumps(GOOD))
    assert recording.read(file) == [(ev.from_dict(GOOD),)]


def test_size_and_number_of_events_are_limited(tmp_path, monkeypatch):
    file = tmp_path / "long.jsonl"
    trace.save(file, play("ssd", 40))
    monkeypatch.setattr(recording, "MOST_EVENTS", 50)
    with pytest.raises(ValueError, match="more than 50 events"):
        recording.read(file)
    monkeypatch.setattr(recording, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="larger than"):
        recording.read(file)
    with pytest.raises(ValueError, match=r"gone\.jsonl cannot be read"):
        recording.read(tmp_path / "gone.jsonl")


# ---------------------------------------------------------------------------------------------------------------
# Races


def test_a_race_holds_the_runs_own_numbers():
    made = runs("ssd", "ar", "sd")
    race = comparison.compare(made)
    assert [run["label"] for run in race["runs"]] == ["AR", "SD", "SSD"] and race["bases"] == {"ar": 0, "sd": 1}
    for run in race["runs"]:
        source = next(one for one in made if recording.method(one) == run["method"])
        tokens = [event for event in source if isinstance(event, ev.Tokens) and event.ids]
        assert len(run["at"]) == len(run["pieces"]) == len(run["state"]) == 40
        assert run["at"][0] == 0 and run["first"] == round(tokens[0].t1 * 1e6)
        assert run["at"][-1] == pytest.approx((tokens[-1].t1 - tokens[0].t1) * 1e6, abs=2)
        assert run["numbers"]["decode_tok_s"] == pytest.approx(39 / (run["at"][-1] / 1e6), rel=1e-4)
        assert run["numbers"] == {name: source[-1].summary[name] for name in comparison.NUMBERS}
    assert race["identical"] and race["agreed"] == 40 and not race["notices"]
    json.dumps(race)


def test_texts_that_differ_are_said_to_differ():
    ar, sd, ssd = runs()
    index = [i for i, event in enumerate(ssd) if isinstance(event, ev.Tokens)][5]
    other = ev.from_dict(ssd[index].to_dict() | {"ids": tuple(id + 1 for id in ssd[index].ids)})
    before = sum(len(event.ids) for event in ssd[:index] if isinstance(event, ev.Tokens))
    race = comparison.compare([ar, sd, (*ssd[:index], other, *ssd[index + 1 :])])
    assert not race["identical"] and race["agreed"] == before
    assert f"agree for {before} tokens" in race["notices"][0]
    shorter = comparison.compare([ar, *runs("sd", tokens=30)])
    assert not shorter["identical"] and shorter["agreed"] == 30 and "the shortest" in shorter["notices"][0]


def test_runs_of_one_method_are_told_apart_and_odd_races_refused():
    race = comparison.compare([*runs("ssd", "ssd", seed=1), *runs("ar")])
    assert [run["label"] for run in race["runs"]] == ["AR", "SSD 1", "SSD 2"]
    with pytest.raises(ValueError, match="no run with a token"):
        comparison.compare([(ev.RunStarted(run="r"),)])
    with pytest.raises(ValueError, match="at most 8"):
        comparison.compare(runs(*["ar"] * 9, tokens=4))


def test_traces_of_one_prompt_and_one_setting_make_a_race(tmp_path):
    for number, (method, prompt, seed) in enumerate(
        [("ar", "One", 0), ("ssd", "One", 0), ("sd", "One", 1), ("ar", "Two", 0), ("sd", "Two", 0), ("sd", "Two", 0)]
    ):
        start, *rest = play(method, 8)
        settings = start.settings | {"seed": seed}
        trace.save(tmp_path / f"{number}.jsonl", [ev.RunStarted(run="r", prompt=prompt, settings=settings), *rest])
    (tmp_path / "9.jsonl").write_text("nonsense")
    found = comparison.races({path.name: path for path in sorted(tmp_path.iterdir())})
    assert {name: [path.name for path in paths] for name, paths in found.items()} == {
        "One (AR, SSD)": ["0.jsonl", "1.jsonl"],
        "Two (AR, SD)": ["3.jsonl", "4.jsonl"],
    }


def test_there_is_a_shipped_race_of_three_methods():
    races = comparison.races({path.name: path for path in SHIPPED})
    best = [comparison.compare([run for path in paths for run in recording.read(path)]) for paths in races.values()]
    assert any({"ar", "sd", "ssd"} <= {run["method"] for run in race["runs"]} and race["identical"] for race in best)


# ---------------------------------------------------------------------------------------------------------------
# Perfetto


def _check_perfetto(made: list[recording.Recording]) -> dict:
    """The format's rules, on the text as it is written."""
    data = json.loads(json.dumps(perfetto.dump(made), allow_nan=False))
    entries = data["traceEvents"]
    slices: dict[tuple, list[dict]] = {}
    flows: dict[int, list[dict]] = {}
    for entry in entries:
        assert {"ph", "pid", "tid", "ts", "name"} <= entry.keys() and entry["ts"] >= 0
        assert entry["ph"] in "XMiCsf"
        if entry["ph"] == "X":
            assert entry["dur"] >= 0
            slices.setdefault((entry["pid"], entry["tid"]), []).append(entry)
        if entry["ph"] in "sf":
            flows.setdefault(entry["id"], []).append(entry)
    for lane in slices.values():  # strictly nested
        ends: list[float] = []
        for entry in sorted(lane, key=lambda entry: (entry["ts"], -entry["dur"])):
            while ends and ends[-1] <= entry["ts"] + 1e-6:
                ends.pop()
            end = entry["ts"] + entry["dur"]
            assert not ends or end <= ends[-1] + 2e-3, entry
            ends.append(end)
    for id, (start, end) in flows.items():
        assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e") and start["ts"] <= end["ts"], id
        for entry in (start, end):
            around = [
                one for one in slices[entry["pid"], entry["tid"]] if one["ts"] <= entry["ts"] <= one["ts"] + one["dur"]
            ]
            assert around, "a flow must begin and end inside a slice"
        inner = [
            one["name"] for one in slices[end["pid"], end["tid"]] if one["ts"] <= end["ts"] <= one["ts"] + one["dur"]
        ]
        assert "verify" in inner
    return data


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_perfetto_of_shipped_traces_is_valid_and_complete(path):
    (run,) = recording.read(path)
    entries = _check_perfetto([run])["traceEvents"]
    verifies = [event for event in run if isinstance(event, ev.Verify)]
    named = [entry for entry in entries if entry["ph"] == "X" and entry["name"] == "verify"]
    assert [(entry["ts"], entry["dur"]) for entry in named] == [
        (pytest.approx(event.t0 * 1e6, abs=1e-2), pytest.approx((event.t1 - event.t0) * 1e6, abs=1e-2))
        for event in verifies
    ]
    used = {event.round for event in verifies if event.drafted}
    hits = used & {event.round for event in run if isinstance(event, ev.Lookup) and event.hit}
    arrows = [entry for entry in entries if entry["ph"] == "s"]
    assert sum(entry["name"] == "hit" for entry in arrows) == len(hits)
    assert {entry["id"] for entry in arrows} == {entry["id"] for entry in entries if entry["ph"] == "f"}
    threads = {entry["args"]["name"] for entry in entries if entry["name"] == "thread_name"}
    assert threads == {"target", "draft", "look-ups"}


def test_a_hit_is_joined_to_the_tree_that_made_it():
    common = {"run": "r"}
    run = (
        ev.RunStarted(run="r", settings={"method": "ssd"}),
        ev.Glue(round=1, t0=0.1, t1=0.11, **common),
        ev.TreeStep(round=1, t0=0.11, t1=0.13, **common),
        ev.Verify(round=1, t0=0.1, t1=0.14, drafted=(1,), accepted=1, **common),
        ev.Lookup(round=2, t0=0.14, t1=0.14, hit=True, **common),
        ev.Verify(round=2, t0=0.15, t1=0.19, drafted=(2,), **common),
        ev.Lookup(round=3, t0=0.19, t1=0.19, hit=False, **common),
        ev.DraftStep(round=3, t0=0.2, t1=0.21, **common),
        ev.Verify(round=3, t0=0.21, t1=0.25, drafted=(3,), **common),
    )
    entries = _check_perfetto([run])["traceEvents"]
    arrows = {
        (start["name"], start["ts"], end["ts"])
        for start in entries
        for end in entries
        if start["ph"] == "s" and end["ph"] == "f" and start["id"] == end["id"]
    }
    assert arrows == {("hit", 120000.0, 170000.0), ("just in time", 205000.0, 230000.0)}
    around = next(entry for entry in entries if entry["name"] == "prepare for round 2")
    assert (around["ts"], around["dur"]) == (100000.0, 30000.0)


def test_flows_of_several_runs_do_not_share_ids():
    entries = _check_perfetto(runs())["traceEvents"]
    starts = [entry["id"] for entry in entries if entry["ph"] == "s"]
    assert len(starts) == len(set(starts)) > 10
    assert {entry["pid"] for entry in entries} == {1, 2, 3}


# ---------------------------------------------------------------------------------------------------------------
# Slides

pytest.importorskip("gradio")


def _hostile_runs() -> list[recording.Recording]:
    made = []
    for start, *rest in runs(tokens=400, text=" ".join(HOSTILE)):
        made.append(
            (ev.RunStarted(run="r", prompt=HOSTILE[1], settings=start.settings, models={"target": HOSTILE[1]}), *rest)
        )
    return made


def test_a_slide_is_one_file_that_asks_for_nothing():
    from viz import export

    text = export.slide_text(_hostile_runs())
    assert text.count("</script") == text.count("<script") == 2, "data must not end or begin a script"
    assert not re.search(r"(?:src|href)\s*=|https?://|@import|url\(", text.split('id="data">')[0])
    assert "default-src 'none'" in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    race = json.loads(json.loads(data)["race"])
    assert "".join(race["runs"][0]["pieces"]) == " ".join(HOSTILE) and race["prompt"] == HOSTILE[1]


def test_file_names_are_plain():
    from viz import export

    assert re.fullmatch(r"[a-z0-9-]+", export.file_name(_hostile_runs()))
    odd = (ev.RunStarted(run="r", prompt="../../etc/passwd \u202e", settings={"method": "../x"}),)
    assert export.file_name([odd]) == "etc-passwd-x"
    assert export.file_name([(ev.RunStarted(run="r"),)]) == "unknown"

"""The benchmark: what it measures in which order, its numbers, interruption and resuming, its files; then the command
line on a tiny pair. Numbers are checked against values computed by hand."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace

import pytest

from saguaro_core import bench, results_file
from saguaro_core import events as ev
from saguaro_core.bench import UNPADDED, Conversation, Plan, Played, gaps_ms, measure
from saguaro_core.journal import Journal
from saguaro_core.prompts import TASKS, Prompt, load_prompts, load_tasks
from saguaro_core.results import comparable, percentile, results, row, to_csv
from saguaro_core.settings import METHODS

from .stub_engine import StubEngine
from .test_cli import command, mistake, models  # noqa: F401
from .test_viz import HOSTILE

EVIL = " ".join(HOSTILE)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(bench, "PAUSE_S", 0.0)


def plan(prompts=2, turns=1, methods=("ar", "sd", "ssd"), **changes) -> Plan:
    made = [Prompt(f"p{i}", ("math", "code")[i % 2], ("first", "second")) for i in range(prompts)]
    return Plan(prompts=tuple(made), turns=turns, methods=methods, settings={"max_new_tokens": 6}, **changes)


def run(engine, made: Plan, played=None, **options) -> list[Played]:
    played = [] if played is None else played
    for _ in measure(engine, made, played, **options):
        pass
    return played


class Strict(StubEngine):
    """Refuses conversations that are longer than the context, as the engine does."""

    longest = 10**6
    fails: tuple = ()  # (method, prompt's first words) whose run ends in an error

    def generate(self, prompt, method="ssd", **options):
        if not isinstance(prompt, str):
            if sum(len(message["content"]) for message in prompt) > self.longest:
                raise ValueError("the prompt has 99 tokens; the context holds 64, the answer included")
            if (method, len(prompt)) in self.fails:
                self.fail = "The target worker stopped."
        return super().generate(prompt, method, **options)


# ---------------------------------------------------------------------------------------------------------------
# What is measured, in which order


def test_prompt_sets_are_there():
    for task in TASKS:
        prompts = load_tasks([task])
        assert len(prompts) >= 12 and {prompt.category for prompt in prompts} == {task}
        assert len({prompt.name for prompt in prompts}) == len(prompts)
    assert any(len(prompt.turns) > 1 for prompt in load_tasks(["all"]))
    assert [prompt.name for prompt in load_tasks(["code", "math"], 2)] == ["math-1", "math-8", "code-1", "code-8"]
    with pytest.raises(ValueError, match="unknown task 'poetry'"):
        load_tasks(["poetry"])


def test_methods_rotate_and_every_conversation_is_measured_once():
    made = plan(2, temperatures=(0.0, 1.0), repeat=2)
    order = made.conversations()
    assert len(order) == len(set(order)) == 2 * 2 * 2 * 4
    assert made.order(bench.SPLIT) == ["ar", "sd", "ssd", UNPADDED]
    assert [c.method for c in order[:4]] == ["ar", "sd", "ssd", UNPADDED]
    assert [c.method for c in order[8:12]] == ["sd", "ssd", UNPADDED, "ar"]  # the next prompt
    assert [c.temperature for c in order[:8]] == [0.0] * 4 + [1.0] * 4


def test_resources_all_adds_the_methods_whose_devices_take_turns():
    made = plan(methods=("ar", "sd", "ssd", "hf-ar"), resources="all")
    assert made.phases == ("split", "all")
    assert made.order("all") == ["ar", "sd", "hf-ar", UNPADDED]
    assert bench.threads_of_all({"target_threads": 3, "draft_threads": 1}) == 4
    with pytest.raises(ValueError, match="take turns"):
        plan(methods=("ssd",), resources="all")


def test_plans_that_make_no_sense():
    for changes in ({"prompts": 0}, {"repeat": 0}, {"turns": 0}, {"temperatures": ()}, {"methods": ()}):
        with pytest.raises(ValueError, match="needs at least"):
            plan(**changes)
    with pytest.raises(ValueError, match="unknown method 'magic'"):
        plan(methods=("magic",))


def test_a_rule_for_sampling_is_not_asked_of_greedy_runs():
    made = Plan(
        prompts=(Prompt("p", "", ("x",)),), methods=("sd",), temperatures=(0.0, 1.0), settings={"verification": "token"}
    )
    assert made.at(0.0)["verification"] is None and made.at(1.0)["verification"] == "token"


def test_each_method_answers_its_own_earlier_answer():
    engine = StubEngine(speed=1000)
    played = run(engine, plan(1, turns=2, methods=("sd",)))
    first, second = engine.calls[-2:]
    assert [message["role"] for message in second[0]] == ["user", "assistant", "user"]
    assert (first[1]["reuse"], second[1]["reuse"]) == (0, None)
    assert [p.turn for p in played] == [0, 1] and all(p.summary["tokens"] == 6 for p in played)


# ---------------------------------------------------------------------------------------------------------------
# Numbers


def turn(
    method: str, number: int = 0, *, task="math", speed=10.0, seconds=2.0, ids=(1, 2), rule="greedy", **changes
) -> Played:
    """A played turn whose numbers are known."""
    summary = {key: None for key in ("ttft_s", "acceptance", "verify_ms", "overhead_ms", "overlap", "glue_ms", "tree_step_ms",
               "draft_step_ms", "period_hit_ms", "period_miss_ms", "period_over_work_hit", "hit_rate",
               "tokens_per_round_hit", "tokens_per_round_miss", "tokens_per_round")}  # fmt: skip
    summary |= dict.fromkeys(("rounds", "drafted", "accepted", "hits", "lookups"), 0)
    summary |= {"tokens": 21, "decode_tok_s": speed, "decode_s": seconds} | changes.pop("summary", {})
    where = {"resources": "split", "repetition": 0, "temperature": 0.0, "turn": 0} | changes
    return Played(
        task=task,
        prompt=f"p{number}",
        number=number,
        method=method,
        verification=rule,
        ids=ids,
        summary=summary,
        **where,
    )


def numbers(*played: Played, **options):
    made = results(played, {"split": {"exact": True}}, {"settings": {}}, **options)
    assert results_file.loads(json.dumps(made)) == json.loads(json.dumps(made))  # nothing is lost on the way back
    return made


def test_speed_is_all_tokens_over_all_time():
    made = numbers(turn("ar", 0, speed=10, seconds=1), turn("ar", 1, speed=40, seconds=2))
    assert made["methods"]["ar"]["decode_tok_s"] == (10 + 80) / 3
    assert made["methods"]["ar"]["decode_tok_s_median"] == 25


def test_ratios_take_the_faster_ar_and_only_common_turns():
    made = numbers(
        turn("ar", 0, speed=10), turn("ar", 1, speed=10), turn(UNPADDED, 0, speed=16), turn(UNPADDED, 1, speed=12),
        turn("ssd", 0, speed=28),
    )  # fmt: skip
    assert made["ratios"] == {"ssd/ar": 28 / 16}
    assert made["ratios_median"] == {"ssd/ar": 28 / 16}
    both = numbers(
        *(
            turn(m, i, speed=s)
            for m, speeds in {"sd": (10, 40, 30), "ssd": (20, 40, 90)}.items()
            for i, s in enumerate(speeds)
        )
    )
    assert both["ratios"]["ssd/sd"] == 150 / 80 and both["ratios_median"]["ssd/sd"] == 2


def test_resource_matched_ratios():
    made = numbers(turn("ssd", speed=30), turn("ar", speed=10), turn("ar", speed=15, resources="all"),
                   turn("sd", speed=20, resources="all"))  # fmt: skip
    assert made["ratios"]["ssd/ar@all"] == 2 and made["ratios"]["ssd/sd@all"] == 1.5
    assert made["ratios"]["sd@all/ar@all"] == 20 / 15 and made["ratios"]["ssd/ar"] == 3


def test_gaps_are_between_emissions():
    def tokens(t, *ids):
        return ev.Tokens(run="r", t1=t, t0=t, ids=ids)

    events = [tokens(0.1, 1), tokens(0.13, 2, 3), tokens(0.13, 4), tokens(0.2), tokens(0.23, 5)]
    assert gaps_ms(events) == (30.0, 100.0)


def test_percentiles_are_nearest_rank():
    values = [float(i) for i in range(1, 101)]
    assert percentile(values, 50) == 50 and percentile(values, 99) == 99
    assert percentile([7.0], 99) == 7 and percentile([], 50) is None
    assert percentile([1.0, 2.0, 3.0], 50) == 2 and percentile([1.0, 2.0, 3.0], 99) == 3
    made = numbers(turn("ar", 0, gaps_ms=(1.0, 9.0)), turn("ar", 1, gaps_ms=(2.0,)))
    assert (made["methods"]["ar"]["gap_p50_ms"], made["methods"]["ar"]["gap_p99_ms"]) == (2.0, 9.0)


def test_groups_and_tasks():
    made = numbers(
        turn("ar", 0, speed=10), turn("ar", 1, task="code", speed=30), turn("ar", 0, speed=50, temperature=1.0)
    )
    assert [group["temperature"] for group in made["groups"]] == [0.0, 1.0]
    assert made["methods"] == made["groups"][0]["methods"]
    tasks = made["groups"][0]["by_task"]
    assert {task: part["methods"]["ar"]["decode_tok_s"] for task, part in tasks.items()} == {"math": 10, "code": 30}


def test_identical_is_claimed_only_where_it_is_promised():
    made = numbers(
        turn("ar", 0), turn("ar", 1), turn("sd", 0), turn("sd", 1, ids=(1, 3)),
        turn("hsd", 0, ids=(5,), rule="block"), turn("ssd", 0),
    )  # fmt: skip
    same = made["identical"]
    assert (same["of"], same["sd"], same["ssd"], same["hsd"]) == (2, 1, 1, None)
    assert same["differ"] == [["sd", 0, 1, 0, 1]] and same["compared"] == {"ssd": 1}


def test_identity_of_all_cores_is_against_ar_on_all_cores():
    made = numbers(turn("ar"), turn("sd"), turn("ar", ids=(8,), resources="all"), turn("sd", ids=(8,), resources="all"))
    assert made["identical"]["sd"] == made["identical"]["sd@all"] == 1


def test_every_method_is_told():
    made = numbers(*(turn(method) for method in METHODS))
    assert {f"{method}/ar" for method in METHODS if method != "ar"} <= made["ratios"].keys()
    assert {"ssd/sd", "ssd+hsd/hsd", "ssd/hsd"} <= made["ratios"].keys() and "sd/ssd" not in made["ratios"]


# ---------------------------------------------------------------------------------------------------------------
# What goes wrong


def test_a_turn_that_does_not_fit_ends_its_conversation_for_all():
    engine = Strict(speed=1000)
    engine.longest = len("first") + 20  # the answer makes the second turn too long
    played = run(engine, plan(1, turns=2, methods=("ar", "ssd")))
    assert [(p.method, p.turn, bool(p.skipped)) for p in played] == [
        (method, number, number == 1) for method in ("ar", "ssd", UNPADDED) for number in (0, 1)
    ]
    made = numbers(*played)
    assert {method: part["runs"] for method, part in made["methods"].items()} == {"ar": 1, "ssd": 1, UNPADDED: 1}
    assert made["runs"][1]["status"] == "skipped" and "context" in made["runs"][1]["why"]


def test_a_turn_skipped_by_one_method_counts_for_none():
    played = [turn("ar", turn=0), turn("ar", turn=1), turn("sd", turn=0),
              Played(task="math", prompt="p0", resources="split", repetition=0, number=0, temperature=0.0, method="sd",
                     turn=1, skipped="too long"), turn("ar", 1, turn=1)]  # fmt: skip
    assert [(p.method, p.number, p.turn) for p in comparable(played)] == [("ar", 0, 0), ("sd", 0, 0), ("ar", 1, 1)]


def test_a_first_turn_that_does_not_fit_is_skipped():
    engine = Strict(speed=1000)
    engine.longest = 3
    made = numbers(*run(engine, plan(1, methods=("sd",))))
    assert made["methods"] == {} and [r["status"] for r in made["runs"]] == ["skipped"]


def test_a_run_that_fails_is_recorded_and_the_next_goes_on():
    engine = Strict(speed=1000)
    engine.fails = (("sd", 1),)
    made = numbers(*run(engine, plan(4, methods=("sd", "ssd"))))
    assert [r["status"] for r in made["runs"] if r["method"] == "sd"] == ["failed"] * 4
    assert made["methods"].keys() == {"ssd"} and made["methods"]["ssd"]["runs"] == 4


def test_when_nothing_works_any_more_the_benchmark_ends():
    engine, played = Strict(speed=1000), []
    engine.fails = tuple((method, 1) for method in METHODS)
    with pytest.raises(RuntimeError, match="3 runs in a row failed; the last: The target worker stopped."):
        run(engine, plan(4), played)
    assert len(played) == 3


def test_a_lost_draft_is_no_measurement():
    engine = StubEngine(speed=1000)
    generate = engine.generate

    def losing(prompt, method="ssd", **options):
        made = generate(prompt, method, **options)
        if method == "ssd":
            made._left.insert(3, ev.Notice(run="stub", text="The draft was lost.", code=ev.DRAFT_LOST))
        return made

    engine.generate = losing
    played = run(engine, plan(2, methods=("sd", "ssd")))
    assert {p.method: p.error for p in played} == {"sd": "", "ssd": "The draft was lost."}


# ---------------------------------------------------------------------------------------------------------------
# Interruption


def test_closing_the_measurement_cancels_the_run():
    engine, played = StubEngine(speed=0.01), []
    steps = measure(engine, plan(), played)
    next(steps), next(steps)
    steps.close()
    assert engine.runs[-1].cancelled and engine.busy == 0 and played == []


def test_what_was_measured_is_not_measured_again():
    made, whole = plan(3, turns=2), run(StubEngine(speed=1000), plan(3, turns=2))
    order = made.conversations()
    kept = [p for p in whole if p.conversation in order[:5]]
    engine = StubEngine(speed=1000)
    again = run(engine, made, list(kept))
    assert [p.conversation for p in again] == [p.conversation for p in whole] and again[: len(kept)] == kept
    measured = [call for call in engine.calls if not isinstance(call[0], str)]  # without the warm-up
    assert len(measured) == 2 * (len(order) - 5)
    engine.calls.clear()
    assert run(engine, made, list(whole)) == whole and engine.calls == []


def test_journal(tmp_path):
    path, heading = tmp_path / "out" / "runs.jsonl", {"plan": {"k": 3, "deep": {"a": (1, 2)}}}
    first = Journal(path, heading)
    first.started("split", {"dtype": "float32"})
    assert not path.exists()  # nothing for nothing
    first.add([turn("ar", gaps_ms=(1.5,)), turn("ar", turn=1)])
    first.add([turn("sd", batch_size=2, rows=((1, 2), (3,)))])
    with open(path, "a") as file:
        file.write('{"turns": [{"task": "ma')  # it was killed here
    again = Journal(path, heading, resume=True)
    batch = turn("sd", batch_size=2, rows=((1, 2), (3,)))
    assert again.played == [turn("ar", gaps_ms=(1.5,)), turn("ar", turn=1), batch]
    assert again.engines == {"split": {"dtype": "float32"}}
    again.started("split", {"dtype": "float32"})
    again.add([turn("ssd")])
    assert len(Journal(path, heading, resume=True).played) == 4
    with pytest.raises(ValueError, match="--resume"):
        Journal(path, heading)
    with pytest.raises(ValueError, match="another way: plan.deep.a was .1, 2., is 3; plan.k was 3, is 4"):
        Journal(path, {"plan": {"k": 4, "deep": {"a": 3}}}, resume=True)
    with pytest.raises(ValueError, match="another engine: dtype was 'float32', is 'bfloat16'"):
        again.started("split", {"dtype": "bfloat16"})
    with pytest.raises(ValueError, match="nothing to resume"):
        Journal(tmp_path / "absent.jsonl", heading, resume=True)
    path.write_text("[1]\nx\n")
    with pytest.raises(ValueError, match="is not a journal's"):
        Journal(path, heading, resume=True)


# ---------------------------------------------------------------------------------------------------------------
# Files


def test_csv_holds_one_line_a_run_and_no_formula():
    made = numbers(turn("ar"), turn("sd", 1, task="=HYPERLINK(1)"))
    rows = list(csv.DictReader(io.StringIO(to_csv(made))))
    assert [r["method"] for r in rows] == ["ar", "sd"] and rows[0]["decode_tok_s"] == "10.0"
    assert rows[1]["task"] == "'=HYPERLINK(1)" and rows[1]["status"] == "ok"


def break_it(data, path, value):
    *way, last = path
    for key in way:
        data = data[key]
    data[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("groups",), {}),
        (("groups", 0, "temperature"), "<b>"),
        (("groups", 0, "temperature"), True),
        (("groups", 0, "batch_size"), -1),
        (("groups", 0, "methods", "ar", "decode_tok_s"), "fast"),
        (("groups", 0, "methods", "ar", "decode_tok_s"), 1e300),
        (("groups", 0, "methods", "ar"), []),
        (("groups", 0, "methods", "x" * 301), {}),
        (("groups", 0, "ratios", "a/b"), None),
        (("groups", 0, "by_task", "math"), 3),
        (("groups", 0, "predictions"), [{"name": "x", "points": [[1]]}]),
        (("runs", 0, "why"), 5),
        (("runs", 0, "turn"), 0.5),
        (("runs",), None),
        (("engine",), {"a": {"b": {"c": {"d": {"e": {}}}}}}),
        (("stopped",), ["x"]),
    ],
)
def test_results_from_outside_are_checked(path, value):
    data = json.loads(json.dumps(results([turn("ar")], {}, {})))
    break_it(data, path, value)
    with pytest.raises(ValueError, match="does not hold the results"):
        results_file.loads(json.dumps(data))


def test_other_files_are_no_results():
    for text in ("", "{", "[1]", "null", '{"groups": NaN}', "[" * 100_000, '{"groups": [{}]}'):
        with pytest.raises(ValueError, match="The file"):
            results_file.loads(text)


def test_unknown_keys_do_not_come_in():
    data = json.loads(json.dumps(results([turn("ar")], {}, {})))
    data["extra"] = data["groups"][0]["methods"]["ar"]["extra"] = data["runs"][0]["extra"] = EVIL
    assert "extra" not in json.dumps(results_file.loads(json.dumps(data)))


def test_rows_say_what_happened():
    assert row(turn("ar"))["status"] == "ok"
    failed = Played(
        task="", prompt="", resources="all", repetition=0, number=0, temperature=1.0, method="sd", error="gone"
    )
    assert (row(failed)["status"], row(failed)["why"], row(failed)["tokens"]) == ("failed", "gone", None)
    assert failed.conversation == Conversation("all", 0, 0, 1.0, "sd")


# ---------------------------------------------------------------------------------------------------------------
# The command line on a tiny pair


def bench_command(out, models, *more):
    return ["bench", "--tasks", "math,chat", "--limit", "2", "--methods", "ar,sd,ssd", "--max-new-tokens", "8", "--out",
            str(out), *more, *models]  # fmt: skip


def test_command_writes_a_folder(models, command, mistake, tmp_path):
    out = tmp_path / "out"
    status, output, error = command(
        *bench_command(out, models, "--temperatures", "0,1", "--resources", "all", "--json")
    )
    assert status == 0, error
    printed = json.loads(output.splitlines()[-1])
    made = results_file.loads((out / "results.json").read_text())
    assert made["ratios"] == printed["ratios"] and "runs" not in printed
    assert [group["temperature"] for group in made["groups"]] == [0.0, 1.0] and made["complete"]
    assert {"ssd/ar", "ssd/ar@all", "sd@all/ar@all"} <= made["ratios"].keys()
    assert made["groups"][0]["by_task"].keys() == {"math", "chat"}
    assert made["methods"]["ssd"]["gap_p50_ms"] <= made["methods"]["ssd"]["gap_p99_ms"]
    assert made["engines"]["all"]["target_threads"] == made["engines"]["all"]["draft_threads"]
    assert made["engines"]["all"]["target_threads"] == sum(
        made["engines"]["split"][f"{d}_threads"] for d in ("target", "draft")
    )
    if made["exact"]:
        for group in made["groups"]:
            assert group["identical"]["sd"] == group["identical"]["ssd"] == 4
    assert len((out / "results.csv").read_text().splitlines()) == 1 + len(made["runs"]) == 1 + 4 * 2 * (4 + 3)
    assert "<h1>" in (out / "report.html").read_text()
    mistake(*bench_command(out, models), says="--resume")
    mistake(*bench_command(out, models, "--resume"), says="temperatures")


def test_command_is_interrupted_and_resumed(models, command, tmp_path):
    out = tmp_path / "out"
    words = bench_command(out, models, "--repeat", "3")
    process = subprocess.Popen(
        [sys.executable, "-m", "saguaro_core", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not (out / "runs.jsonl").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in said, said
    partial = results_file.loads((out / "results.json").read_text())
    assert not partial["complete"] and partial["stopped"] == "interrupted" and 0 < len(partial["runs"]) < 4 * 3 * 4
    assert "Not complete: interrupted" in (out / "report.html").read_text()
    before = (out / "runs.jsonl").read_text()
    status, _, error = command(*words, "--resume")
    assert status == 0, error
    made = results_file.loads((out / "results.json").read_text())
    assert made["complete"] and len(made["runs"]) == 4 * 3 * 4
    assert (out / "runs.jsonl").read_text().startswith(before) and made["runs"][: len(partial["runs"])] == partial[
        "runs"
    ]


def test_command_skips_what_does_not_fit(models, command, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        json.dumps({"turns": ["Hi", "long " * 600]}) + "\n" + json.dumps({"prompt": "long " * 600}) + "\n"
    )
    status, _, error = command(
        "bench", "--prompts", prompts, "--turns", 2, "--max-new-tokens", 8, "--json", "--out", tmp_path / "out", *models
    )
    assert status == 0, error
    made = results_file.loads((tmp_path / "out" / "results.json").read_text())
    assert made["methods"]["ssd"]["runs"] == 1
    assert [r["status"] for r in made["runs"] if r["method"] == "sd"] == ["ok", "skipped", "skipped"]


def test_command_mistakes(mistake):
    mistake("bench", "--tasks", "poetry", says="poetry")
    mistake("bench", "--tasks", "math", "--temperatures", "hot", says="hot")
    mistake("bench", "--tasks", "math", "--methods", "ssd", "--resources", "all", says="take turns")
    mistake("bench", "--tasks", "math", "--resume", says="--out")
    assert (
        load_prompts(os.path.join(os.path.dirname(bench.__file__), "..", "assets", "prompts", "math.jsonl"), 1)[0].name
        == "math-1"
    )


# ---------------------------------------------------------------------------------------------------------------
# Batches


class Batching(StubEngine):
    """Keeps what batches it was asked for."""

    def generate_batch(self, prompts, method, **settings):
        self.batches = [*getattr(self, "batches", []), (method, [p[0]["content"] for p in prompts if p != "Hello!"])]
        runs = [self.generate(prompt, method, **settings) for prompt in prompts]
        for seq, run in enumerate(runs):
            run._left = deque(replace(event, seq=seq) for event in run._left)
        return type("Batch", (), {"runs": runs})


def test_a_batch_takes_consecutive_prompts_and_wraps_around():
    made = plan(3, batch_sizes=(1, 2, 4), methods=("ar", "hf-ar"))
    assert [[p.name for p in made.batch(i, 2)] for i in range(2)] == [["p0", "p1"], ["p2", "p0"]]
    assert [p.name for p in made.batch(0, 4)] == ["p0", "p1", "p2", "p0"]
    counts = {size: sum(c.batch_size == size for c in made.conversations()) for size in (1, 2, 4)}
    assert counts == {1: 3 * 3, 2: 2 * 2, 4: 1 * 2}  # hf-ar runs alone only
    assert made.to_dict()["batch_sizes"] == [1, 2, 4]
    with pytest.raises(ValueError, match="hf-ar: one prompt at a time"):
        plan(batch_sizes=(2,), methods=("ar", "hf-ar"))
    with pytest.raises(ValueError, match="whole numbers from 1"):
        plan(batch_sizes=(0,))


def test_first_turns_are_played_together():
    engine = Batching(speed=1000)
    played = run(engine, plan(3, turns=2, batch_sizes=(2,), methods=("sd",)))
    assert [texts for _, texts in engine.batches if texts] == [["first", "first"]] * 2
    assert [(p.prompt, p.task, p.batch_size, len(p.rows)) for p in played] == [
        ("p0 .. p1", "mixed", 2, 2), ("p2 .. p0", "math", 2, 2)
    ]  # fmt: skip


def test_batches_are_compared_row_by_row_and_told_apart():
    made = numbers(
        turn("ar", batch_size=2, rows=((1, 2), (3, 4)), ids=(), speed=30, summary={"tok_s_per_sequence": 16}),
        turn("sd", batch_size=2, rows=((1, 2), (3, 5)), ids=(), speed=60, summary={"tok_s_per_sequence": 31}),
        turn("ar", speed=20), turn("sd", speed=25),
    )  # fmt: skip
    alone, both = made["groups"]
    assert (alone["batch_size"], alone["ratios"], alone["identical"]["sd"]) == (1, {"sd/ar": 1.25}, 1)
    assert (both["batch_size"], both["ratios"]) == (2, {"sd/ar": 2.0})
    assert both["identical"] == {"of": 2, "sd": 1, "differ": [["sd", 0, 0, 0, 1, 1]]}
    assert both["methods"]["sd"]["decode_tok_s"] == 60 and both["methods"]["sd"]["tok_s_per_sequence"] == 31
    assert [r["tok_s_per_sequence"] for r in made["runs"]][:2] == [16, 31]


def test_command_measures_batches(models, command, tmp_path):
    out = tmp_path / "out"
    status, _, error = command("bench", "--tasks", "math,chat", "--limit", 2, "--methods", "ar,ssd", "--max-new-tokens",
                               8, "--batch-size", "1,2", "--out", out, *models)  # fmt: skip
    assert status == 0, error
    made = results_file.loads((out / "results.json").read_text())
    alone, both = made["groups"]
    assert (alone["batch_size"], both["batch_size"]) == (1, 2) and {"ar", "ssd", UNPADDED} == both["methods"].keys()
    assert all(both["methods"][m]["tok_s_per_sequence"] for m in both["methods"])
    if made["exact"]:
        assert both["identical"]["ssd"] == both["identical"]["of"] == 4
    assert "Total speed against speed per request" in (out / "report.html").read_text()

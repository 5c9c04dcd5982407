"""`python -m saguaro_core bench`: options -> plan -> engines -> results on the screen and in a folder."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import trace
from .bench import ALL, SPLIT, Plan, Played, measure, threads_of_all
from .journal import Journal
from .options import make_engine, run_settings
from .prompts import TASKS, load_prompts, load_tasks
from .results import results, running_line, table, to_csv

ENGINE_OPTIONS = (
    "target", "draft", "target_device", "draft_device", "target_threads", "draft_threads", "dtype", "context",
)  # fmt: skip


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--tasks", metavar="NAMES", help=f"the prompts that come along: {','.join(TASKS)}, or all")
    asked.add_argument("--prompts", metavar="FILE", help="JSON lines with 'turns' or 'prompt'")
    parser.add_argument("--methods", default="ar,sd,ssd", help="comma-separated (default ar,sd,ssd)")
    parser.add_argument("--temperatures", metavar="T,...", help="comma-separated, instead of --temperature")
    parser.add_argument(
        "--batch-size", default="1", metavar="B,...", help="prompts decoded together, comma-separated (default 1)"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="take N prompts at even spacing (of each task, with --tasks)"
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="R", help="go through the prompts R times")
    parser.add_argument("--turns", type=int, default=1, metavar="N", help="turns of each prompt to play (default 1)")
    parser.add_argument(
        "--resources", choices=(SPLIT, ALL), default=SPLIT,
        help="all: measure ar, sd, ... also with the cores of both devices, as 'ar@all' (two CPU devices)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", help="write results.json, results.csv and report.html there")
    parser.add_argument("--resume", action="store_true", help="go on with what DIR holds from an interrupted run")


def bench(args: argparse.Namespace) -> int:
    plan = make_plan(args)
    out = Path(args.out) if args.out else None
    if args.resume and out is None:
        raise ValueError("--resume needs --out, the folder to go on with")
    journal = Journal(out / "runs.jsonl", _heading(args, plan), args.resume) if out else None
    played: list[Played] = journal.played if journal else []
    engines = journal.engines if journal else {}
    events: list = []
    problem: BaseException | None = None
    try:
        for phase in plan.phases:
            _phase(args, plan, phase, played, journal, engines, events)
    except (KeyboardInterrupt, SystemExit, RuntimeError) as caught:  # what has been measured is kept
        problem = caught
    stopped = "" if problem is None else str(problem) if isinstance(problem, RuntimeError) else "interrupted"
    found = results(played, engines, plan.to_dict(), stopped)
    if played:
        _show(args, found, out)
    if args.trace:
        trace.save(args.trace, events)
    if problem is not None:
        raise problem
    return (
        1
        if any(not any(run["status"] == "ok" for run in found["runs"] if run["method"] == m) for m in plan.methods)
        else 0
    )


def make_plan(args: argparse.Namespace) -> Plan:
    """Raises ValueError with one line for options that make no sense."""
    if args.resources == ALL and not args.target_device == args.draft_device == "cpu":
        raise ValueError("--resources all is for two CPU devices")
    settings = run_settings(args)
    temperature = settings.pop("temperature")
    try:
        temperatures = [float(t) for t in _words(args.temperatures)] if args.temperatures else [temperature]
    except ValueError:
        raise ValueError(f"--temperatures are numbers with commas between, not {args.temperatures!r}") from None
    try:
        batch_sizes = sorted({int(size) for size in _words(args.batch_size)})
    except ValueError:
        raise ValueError(f"--batch-size is whole numbers with commas between, not {args.batch_size!r}") from None
    prompts = load_tasks(_words(args.tasks), args.limit) if args.tasks else load_prompts(args.prompts, args.limit)
    return Plan(
        prompts=tuple(prompts),
        methods=tuple(dict.fromkeys(_words(args.methods))),
        temperatures=tuple(sorted(set(temperatures))),
        batch_sizes=tuple(batch_sizes),
        repeat=args.repeat,
        turns=args.turns,
        resources=args.resources,
        settings=settings,
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _heading(args: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    from .devices import hardware

    models = {name: getattr(args, name, None) for name in ENGINE_OPTIONS}
    return {"plan": plan.to_dict(), "models": models, "hardware": hardware()}


def _phase(args, plan: Plan, phase: str, played: list[Played], journal: Journal | None, engines, events: list) -> None:
    known = {turn.conversation for turn in played}
    if known.issuperset(plan.conversations(phase)):
        return
    if phase == ALL:
        threads = threads_of_all(engines[SPLIT])
        args = argparse.Namespace(**vars(args) | {"target_threads": threads, "draft_threads": threads})
    from tqdm import tqdm

    with make_engine(args) as engine:
        if journal:
            journal.started(phase, engine.info)
        engines.setdefault(phase, engine.info)
        seen = len(known.intersection(plan.conversations(phase)))
        with tqdm(
            total=len(plan.conversations(phase)), initial=seen, unit="run", desc=phase, file=sys.stderr,
            dynamic_ncols=True, mininterval=1.0 if sys.stderr.isatty() else 30.0,
        ) as bar:  # fmt: skip
            for progress in measure(
                engine,
                plan,
                played,
                phase,
                on_run=events.extend if args.trace else lambda run: None,
                on_conversation=journal.add if journal else lambda turns: None,
            ):
                if progress.done > bar.n:
                    bar.set_postfix_str(running_line(played), refresh=False)
                    bar.update(progress.done - bar.n)


def _show(args: argparse.Namespace, found: dict[str, Any], out: Path | None) -> None:
    from .devices import hardware

    found |= {"hardware": hardware(), "measured_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
    print(table(found))
    if out is not None:
        from .report import page

        (out / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (out / "results.csv").write_text(to_csv(found), encoding="utf-8")
        (out / "report.html").write_text(page(found), encoding="utf-8")
        print(f"written to {out}: results.json, results.csv, report.html", file=sys.stderr)
    if found["stopped"]:
        on = " Go on with --resume." if out else ""
        print(f"not complete: {found['stopped']}.{on}", file=sys.stderr)
    if args.json:
        print(json.dumps({key: value for key, value in found.items() if key != "runs"}))

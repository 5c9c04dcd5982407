"""`python -m saguaro_core probe`: does SSD pay for this pair of models on these devices?

Measures, in the engine's own workers, what forwards cost by rows and what outcomes are like on a few prompts; predicts
with the controller's period model the best K and M and the gains of SD and SSD; then runs these settings to see.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from .controller import Experience, Forecast, Lesson, PeriodModel, all_plans
from .events import DraftStep, Event, Glue, Lookup, TreeStep, Verify
from .fan_out import BEST_FIRST, EVEN
from .options import add_engine_options, make_engine
from .settings import make_settings

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the largest number of a list.",
    "A shirt costs 24 euros after a discount of 20 percent. What did it cost before?",
    "Give me three tips for a good night's sleep.",
)
WIDE = {"k": 2, "fan_out": EVEN, "budget": 48}
DEEP = {"k": 4, "fan_out": EVEN, "budget": 16}
WORTHWHILE = 1.03
WIDTHS = (1, 2, 4, 8, 16)


def add_probe_options(parser: argparse.ArgumentParser) -> None:
    add_engine_options(parser)
    parser.add_argument("--max-new-tokens", type=int, default=48, metavar="N", help="length of each run (48)")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def probe(args: argparse.Namespace) -> int:
    with make_engine(args) as engine:
        report = measure(engine, args.max_new_tokens, lambda text: print(text, file=sys.stderr))
    print(table(report))
    if args.json:
        print(json.dumps(report))
    return 0


def measure(engine, max_new_tokens: int, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The report (see `table` for what is in it). Times in ms. Raises RuntimeError where a run fails."""

    def play(method: str, prompt: int, tokens: int = max_new_tokens, **settings) -> list[Event]:
        text = PROMPTS[prompt % len(PROMPTS)]
        run = engine.generate(text, method, max_new_tokens=tokens, reuse=0, **settings).wait()
        if run.result.error:
            raise RuntimeError(run.result.error)
        return run.events

    for method in ("ar", "sd", "ssd"):
        play(method, 0, 8)
    progress("measuring verification and drafting by rows")
    ar = [play("ar", 0, padded=False)]
    sd = [play("sd", i, k=k) for i, k in enumerate((1, 2, 3, 4, 5, 6, 7, 8))]
    progress("measuring trees and outcomes")
    ssd = [play("ssd", i, **settings) for i in range(len(PROMPTS)) for settings in (WIDE, DEEP)]

    everything = [event for run in (*ar, *sd, *ssd) for event in run]
    experience = {name: learnt(runs, (*sd, *ssd)) for name, runs in (("sd", sd), ("ssd", ssd))}
    ar_ms = PeriodModel(learnt(ar, ar)).plain_ms
    best_sd = best("sd", experience["sd"])
    best_ssd = best("ssd", experience["ssd"])

    progress(f"trying SD with K = {best_sd.plan.k}, SSD with K = {best_ssd.plan.k} and M = {best_ssd.plan.m}")
    plan = best_ssd.plan
    chosen = {
        "ar": {"padded": False},
        "sd": {"k": best_sd.plan.k},
        "ssd": {"k": plan.k, "patience": plan.patience, "fan_out": BEST_FIRST, "budget": plan.m},
    }
    speeds = {name: [] for name in chosen}
    for i in range(len(PROMPTS)):
        for name, settings in chosen.items():
            summary = play(name, i, **settings)[-1].summary
            if summary["decode_s"]:
                speeds[name].append((summary["decode_tok_s"] * summary["decode_s"], summary["decode_s"]))
    tok_s = {name: sum(n for n, _ in runs) / sum(s for _, s in runs) for name, runs in speeds.items() if runs}
    outcomes = experience["ssd"].outcomes
    return {
        "engine": engine.info,
        "verify_ms": by_rows(everything, Verify),
        "draft_step_ms": spans_median(everything, DraftStep),
        "glue_ms": spans_median(everything, Glue),
        "tree_step_ms": by_rows(everything, TreeStep),
        "acceptance": {"sd": acceptance(sd), "ssd": acceptance(ssd)},
        "bonus_within": {
            "after a rejection": bonus_within(ssd, full=False),
            "all accepted": bonus_within(ssd, full=True),
        },
        "best": {"sd": described(best_sd), "ssd": described(best_ssd)},
        "predicted": ratios({"ar": 1e3 / ar_ms, "sd": best_sd.tok_s, "ssd": best_ssd.tok_s}),
        "measured": ratios(tok_s),
        "verdict": verdict(best_sd, best_ssd, ar_ms, outcomes.mean_acceptance(False)),
    }


def learnt(runs: Iterable[list[Event]], timed: Iterable[list[Event]]) -> Experience:
    """Outcomes of `runs`, costs of `timed`."""
    experience = Experience()
    for run in runs:
        Lesson(run).outcomes(experience.outcomes)
    for run in timed:
        Lesson(run).costs(experience.costs)
    return experience


def best(method: str, experience: Experience) -> Forecast:
    """The fastest plan of all."""
    model = PeriodModel(experience)
    predict = model.predict if method == "ssd" else model.predict_sd
    return max((predict(plan) for plan in all_plans(make_settings(method, k="auto"))), key=lambda f: f.tok_s)


def verdict(sd: Forecast, ssd: Forecast, ar_ms: float, acceptance: float) -> str:
    """One sentence: whether SSD is expected to be faster than SD here, and why."""
    gain, over_ar = ssd.tok_s / sd.tok_s, ssd.tok_s * ar_ms / 1e3
    share = 1 - sd.verify_ms / sd.period_ms
    if gain >= WORTHWHILE and over_ar >= WORTHWHILE:
        return (
            f"SSD pays: {gain:.2f} times SD and {over_ar:.2f} times plain decoding are expected, because SD spends "
            f"{share:.0%} of a round drafting and {ssd.hit_rate:.0%} of the outcomes can be foreseen."
        )
    if over_ar < WORTHWHILE:
        why = (
            f"only {acceptance:.0%} of the draft's tokens stand" if acceptance < 0.4 else
            f"verifying {ssd.plan.k} drafted tokens takes {ssd.verify_ms:.1f} ms, a plain step {ar_ms:.1f} ms"
        )  # fmt: skip
        return f"SSD does not pay: {over_ar:.2f} times plain decoding is expected, because {why}."
    if share < 0.1:
        why = f"SD spends only {share:.0%} of a round drafting, and there is no more than that to hide"
    elif ssd.prepare_ms > ssd.verify_ms:
        why = (
            f"preparing even {ssd.plan.m} outcomes takes {ssd.prepare_ms:.1f} ms, longer than the verification of "
            f"{ssd.verify_ms:.1f} ms"
        )
    else:
        why = f"only {ssd.hit_rate:.0%} of the outcomes can be foreseen"
    return f"SSD does not pay: {gain:.2f} times SD is expected, because {why}."


def acceptance(runs: Sequence[list[Event]]) -> dict[int, float]:
    """Accepted over tested, by position (from 1)."""
    tested, accepted = Counter(), Counter()
    for event in (event for run in runs for event in run if isinstance(event, Verify)):
        tested.update(range(1, min(event.accepted + 1, len(event.drafted)) + 1))
        accepted.update(range(1, event.accepted + 1))
    return {position: accepted[position] / count for position, count in sorted(tested.items())}


def bonus_within(runs: Sequence[list[Event]], full: bool) -> dict[int, float]:
    """How often the bonus was among the F likeliest candidates of its fork, among forks that had so many; after a
    speculation that was accepted whole (`full`), or not."""
    seen, found = Counter(), Counter()
    for run in runs:
        verified = {event.round: event for event in run if isinstance(event, Verify)}
        for lookup in (event for event in run if isinstance(event, Lookup) and event.round > 1):
            if (lookup.k == len(verified[lookup.round - 1].drafted)) == full:
                width = sum(fork == lookup.k for fork, *_ in lookup.candidates)
                seen.update(f for f in WIDTHS if f <= width)
                found.update(f for f in WIDTHS if lookup.rank is not None and lookup.rank < f <= width)
    return {f: found[f] / count for f, count in sorted(seen.items())}


def ratios(tok_s: dict[str, float]) -> dict[str, float]:
    pairs = [(a, b) for a, b in (("sd", "ar"), ("ssd", "ar"), ("ssd", "sd")) if a in tok_s and b in tok_s]
    return {f"{name} tok/s": speed for name, speed in tok_s.items()} | {
        f"{a}/{b}": tok_s[a] / tok_s[b] for a, b in pairs
    }


def described(forecast: Forecast) -> dict[str, Any]:
    plan = forecast.plan
    return {
        "k": plan.k, "m": plan.m, "patience": plan.patience, "tokens_per_round": forecast.tokens,
        "period_ms": forecast.period_ms, "hit_rate": forecast.hit_rate, "verify_ms": forecast.verify_ms,
        "prepare_ms": forecast.prepare_ms,
    }  # fmt: skip


def by_rows(events: Iterable[Event], kind: type[Event]) -> dict[int, float]:
    """Median ms of forwards by rows."""
    spans = defaultdict(list)
    for event in events:
        if isinstance(event, kind):
            spans[event.rows].append((event.t1 - event.t0) * 1e3)
    return {rows: median(values) for rows, values in sorted(spans.items())}


def spans_median(events: Iterable[Event], kind: type[Event]) -> float | None:
    values = [(event.t1 - event.t0) * 1e3 for event in events if isinstance(event, kind)]
    return median(values) if values else None


def table(report: dict[str, Any]) -> str:
    """The report as plain text."""

    def line(label: str, values: Iterable[tuple[Any, float]], form: str) -> str:
        return f"{label:34}" + "  ".join(f"{key} {value:{form}}" for key, value in values)

    info, best_of = report["engine"], report["best"]
    sd, ssd = best_of["sd"], best_of["ssd"]
    target, draft = (f"{role} {info[role]} on {info[f'{role}_device']}" for role in ("target", "draft"))
    lines = [
        f"{target}, {draft}, {info['dtype']}",
        line("verify, ms by rows", report["verify_ms"].items(), ".1f"),
        line("tree step, ms by rows", report["tree_step_ms"].items(), ".1f"),
        line("draft forwards, ms", [("step", report["draft_step_ms"]), ("glue", report["glue_ms"])], ".1f"),
    ]
    lines += [line(f"acceptance by position, {k}", v.items(), ".2f") for k, v in report["acceptance"].items()]
    lines += [line(f"bonus in F, {k}", v.items(), ".2f") for k, v in report["bonus_within"].items()]
    lines += [
        f"{'best SD':34}K {sd['k']}: {sd['tokens_per_round']:.2f} tokens in {sd['period_ms']:.1f} ms",
        f"{'best SSD':34}K {ssd['k']}, M {ssd['m']}, patience {ssd['patience']}: "
        + f"{ssd['tokens_per_round']:.2f} tokens in {ssd['period_ms']:.1f} ms, hit rate {ssd['hit_rate']:.2f}",
        f"{'':34}preparing takes {ssd['prepare_ms']:.1f} ms, verifying {ssd['verify_ms']:.1f} ms",
        line("predicted", report["predicted"].items(), ".2f"),
        line("measured with these settings", report["measured"].items(), ".2f"),
        report["verdict"],
    ]
    return "\n".join(lines)

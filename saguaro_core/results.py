"""The numbers of a benchmark: from `Played` turns to one JSON object. Standard library only.

Definitions beyond those of `summary`: decode tok/s of a method is all its tokens after the first of each run over all
its decode time. A ratio of two methods counts only the turns that both have. A turn that one method had to skip (too
long for the context) counts for none. Percentiles are nearest rank, over all gaps of all runs (`bench.gaps_ms`).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from . import theory
from .bench import ALL, UNPADDED, Played
from .settings import METHODS

MEDIANS = (
    "ttft_s", "verify_ms", "glue_ms", "tree_step_ms", "draft_step_ms", "prepare_ms", "backup_ms", "overhead_ms",
    "period_hit_ms", "period_miss_ms", "period_over_work_hit", "overlap",
)  # fmt: skip
SPECULATIVE = tuple(method for method in METHODS if method != "ar")
BASES = ("ar", "sd", "hsd", "ssd", "hf-ar", "hf-assisted")
SAME_TEXT = ("greedy", "coupled")  # rules under which every method gives the same tokens
COLUMNS = (
    "task", "prompt", "turn", "repetition", "temperature", "batch_size", "resources", "method", "verification",
    "status", "why", "tokens", "decode_tok_s", "tok_s_per_sequence", "ttft_s", "tokens_per_round", "acceptance", "hit_rate", "overlap",
    "verify_ms",
)  # fmt: skip

Runs = dict[str, dict[tuple[int, int, int], Played]]  # by method, then by (repetition, prompt number, turn)


def name(played: Played) -> str:
    """The method as the results name it: `sd@all` is `sd` with the cores of both devices."""
    return played.method + ("@all" if played.resources == ALL else "")


def results(
    played: Sequence[Played], engines: Mapping[str, dict[str, Any]], plan: Mapping[str, Any], stopped: str = ""
) -> dict[str, Any]:
    """Everything a benchmark measured. `engines`: the `info` of each phase's engine. `stopped`: why it is not
    complete. `groups` holds one entry a temperature and batch size; `methods`, `ratios`, `ratios_median` and `identical` at the top
    are those of the first. See the README for the keys."""
    groups = [
        {"temperature": temperature, "batch_size": batch}
        | _group([p for p in played if _at(p) == (temperature, batch)])
        for temperature, batch in sorted({_at(p) for p in played})
    ]
    first = groups[0] if groups else _group([])
    engine = dict(engines.get("split") or next(iter(engines.values()), {}))
    return {
        **{key: first[key] for key in ("methods", "ratios", "ratios_median", "identical")},
        "exact": engine.get("exact"),
        "engine": engine,
        "settings": dict(plan.get("settings", {})),
        "plan": dict(plan),
        "engines": {phase: dict(info) for phase, info in engines.items()},
        "complete": not stopped,
        "stopped": stopped,
        "groups": groups,
        "runs": [row(p) for p in played],
    }


def row(p: Played) -> dict[str, Any]:
    """One turn, flat, with the keys of COLUMNS."""
    summary = p.summary or {}
    about = {key: getattr(p, key, None) for key in COLUMNS[:9]}
    status = "skipped" if p.skipped else "failed" if p.error else "ok"
    return about | {"status": status, "why": p.skipped or p.error} | {key: summary.get(key) for key in COLUMNS[11:]}


def to_csv(results: Mapping[str, Any]) -> str:
    """One line a run. Words that a spreadsheet would take for a formula get an apostrophe in front."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for run in results["runs"]:
        writer.writerow({key: _inert(value) for key, value in run.items()})
    return text.getvalue()


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") and value else value


# ---------------------------------------------------------------------------------------------------------------
# Aggregates


def _at(p: Played) -> tuple[float, int]:
    return p.temperature, p.batch_size


def _group(played: Sequence[Played]) -> dict[str, Any]:
    kept = comparable(played)
    tasks = list(dict.fromkeys(p.task for p in kept if p.summary))
    return _compared(kept) | {
        "identical": _identical(_runs(kept)),
        "by_task": {task: _compared([p for p in kept if p.task == task]) for task in tasks},
        "predictions": _predictions(_runs(kept)),
    }


def _compared(played: Sequence[Played]) -> dict[str, Any]:
    runs = _runs(played)
    failed = {method: sum(bool(p.error) for p in played if name(p) == method) for method in runs}
    methods = {
        method: aggregate(list(turns.values())) | {"failed": failed[method]} for method, turns in runs.items() if turns
    }
    pairs = [(a, b) for a, b in _pairs(methods) if _common(runs, a, b)]
    totals = {f"{a}/{b}": _ratio(_speed(runs, a, b), _speed(runs, b, a)) for a, b in pairs}
    medians = {f"{a}/{b}": _paired(runs, a, b) for a, b in pairs}
    return {
        "methods": methods,
        "ratios": {pair: value for pair, value in totals.items() if value},
        "ratios_median": {pair: value for pair, value in medians.items() if value},
    }


def comparable(played: Sequence[Played]) -> list[Played]:
    """Without the turns that a method had to skip, nor what comes after them, for all methods alike."""
    ends: dict[tuple, int] = {}
    for p in played:
        if p.skipped:
            key = (*_at(p), p.repetition, p.number)
            ends[key] = min(ends.get(key, p.turn), p.turn)
    return [p for p in played if p.turn < ends.get((*_at(p), p.repetition, p.number), p.turn + 1)]


def _runs(played: Iterable[Played]) -> Runs:
    runs: Runs = {}
    for p in played:
        turns = runs.setdefault(name(p), {})
        if p.summary:
            turns[p.repetition, p.number, p.turn] = p
    return runs


def aggregate(turns: Sequence[Played]) -> dict[str, Any]:
    """The numbers of one method over its runs; None where there is nothing to measure."""
    rows = [p.summary for p in turns]
    timed = [row for row in rows if row["decode_s"]]
    total = {
        key: sum(row[key] or 0 for row in rows)
        for key in ("tokens", "rounds", "drafted", "accepted", "hits", "lookups")
    }
    after_first = sum(row["decode_tok_s"] * row["decode_s"] for row in timed)
    medians = {key: _median(row.get(key) for row in rows) for key in MEDIANS}
    gaps = sorted(gap for p in turns for gap in p.gaps_ms)
    return {
        "decode_tok_s": total_tok_s(rows),
        "decode_tok_s_median": _median(row["decode_tok_s"] for row in timed),
        "tok_s_per_sequence": _median(row.get("tok_s_per_sequence") for row in rows),
        "runs": len(rows),
        **total,
        "tokens_per_round": _mean(row["tokens_per_round"] for row in rows)
        if any(p.batch_size > 1 for p in turns)  # of one sequence; `rounds` are the batch's
        else _ratio(after_first, total["rounds"]),
        "tokens_per_round_hit": _mean(row["tokens_per_round_hit"] for row in rows),
        "tokens_per_round_miss": _mean(row["tokens_per_round_miss"] for row in rows),
        "acceptance": _mean(row["acceptance"] for row in rows),
        "hit_rate": _ratio(total["hits"], total["lookups"]),
        "gap_p50_ms": percentile(gaps, 50),
        "gap_p99_ms": percentile(gaps, 99),
        **medians,
        "overhead": _ratio(medians["overhead_ms"], medians["verify_ms"]),
        "decode_tok_s_by_category": _by_category(turns),
    }


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Nearest rank: the smallest value that at least `percent` % of the values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else None


def _by_category(turns: Sequence[Played]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for p in turns:
        if p.summary["decode_tok_s"]:
            groups.setdefault(p.task, []).append(p.summary["decode_tok_s"])
    return {category: mean(values) for category, values in sorted(groups.items())}


# ---------------------------------------------------------------------------------------------------------------
# Methods against one another


def _pairs(methods: Iterable[str]) -> list[tuple[str, str]]:
    """Which ratios are told: a speculative method over every base, transformers' own over one another, and SSD, which
    needs two devices, over what one method makes of the cores of both."""
    known = set(methods)
    pairs = [
        (a, b) for a in reversed(SPECULATIVE) for b in BASES if a != b and (b, a) not in (("ssd", "sd"), ("ssd", "hsd"))
    ]
    pairs += [("ar", "hf-ar"), ("hf-assisted", "hf-ar")]
    pairs += [(a, f"{b}@all") for a in (*reversed(SPECULATIVE), "ar") for b in BASES]
    pairs += [(f"{a}@all", f"{b}@all") for a in SPECULATIVE for b in ("ar", "sd") if a != b]
    return [(a, b) for a, b in pairs if a in known and b in known]


def _forms(method: str, runs: Runs) -> list[str]:
    """`ar` has two, of which the faster counts."""
    unpadded = {"ar": UNPADDED, "ar@all": f"{UNPADDED}@all"}.get(method)
    return [form for form in (method, unpadded) if runs.get(form)]


def _common(runs: Runs, *methods: str) -> list[tuple[int, int, int]]:
    """The turns that all of these have, in order."""
    every = [runs[form].keys() for method in methods for form in _forms(method, runs)]
    return sorted(set.intersection(*map(set, every))) if every else []


def _speed(runs: Runs, method: str, other: str) -> float | None:
    keys = _common(runs, method, other)
    speeds = [total_tok_s(runs[form][key].summary for key in keys) for form in _forms(method, runs)]
    return max(filter(None, speeds), default=None)


def total_tok_s(summaries: Iterable[Mapping[str, Any]]) -> float | None:
    """Decode tok/s of runs one after another: all tokens after the first of each over all decode time."""
    timed = [row for row in summaries if row["decode_s"]]
    return _ratio(sum(row["decode_tok_s"] * row["decode_s"] for row in timed), sum(row["decode_s"] for row in timed))


def _paired(runs: Runs, a: str, b: str) -> float | None:
    """The median over runs of the ratio of decode speeds on the same turn in the same repetition; less moved than the
    ratio of totals when the machine stumbles."""

    def fastest(method: str, key: tuple[int, int, int]) -> float:
        return max(runs[form][key].summary["decode_tok_s"] or 0.0 for form in _forms(method, runs))

    speeds = [(fastest(a, key), fastest(b, key)) for key in _common(runs, a, b)]
    return _median(x / y for x, y in speeds if x and y)


def _identical(runs: Runs) -> dict[str, Any]:
    """For how many outputs each speculative method gave the very tokens of `ar` on the same cores, `of` how many, and
    which differ, where first, and in a batch in which row. None under a rule that promises the same law and not the same text (`token`, `block`)."""
    counts: dict[str, Any] = {}
    for suffix in ("", "@all"):
        expected = runs.get(f"ar{suffix}")
        if not expected:
            continue
        counts.setdefault("of", sum(len(_outputs(p)) for p in expected.values()))
        for method in SPECULATIVE:
            got = runs.get(method + suffix)
            if not got:
                continue
            pairs = [(key, got[key], expected[key]) for key in sorted(got.keys() & expected.keys())]
            if any(p.verification not in SAME_TEXT for _, *both in pairs for p in both):
                counts[method + suffix] = None
                continue
            texts = [
                (key, [row] if a.rows else [], *both)
                for key, a, b in pairs
                for row, both in enumerate(zip(_outputs(a), _outputs(b), strict=True))
            ]
            wrong = [text for text in texts if text[2] != text[3]]
            counts[method + suffix] = len(texts) - len(wrong)
            if len(texts) < counts["of"]:
                counts.setdefault("compared", {})[method + suffix] = len(texts)
            counts.setdefault("differ", []).extend(
                [method + suffix, *key, _first_difference(a, b), *row] for key, row, a, b in wrong
            )
    return counts


def _outputs(p: Played) -> Sequence[tuple[int, ...]]:
    return p.rows or (p.ids,)


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _per_sequence(p: Played) -> dict[str, Any]:
    """The summary with the speed of one sequence, as `theory` counts, on average over the batch."""
    speed = p.summary["decode_tok_s"]
    return p.summary | {"decode_tok_s": speed and speed / p.batch_size}


def _predictions(runs: Runs) -> list[dict[str, Any]]:
    """Every formula of `theory` against the measured ratios, a point a turn: `[predicted, measured]`. The formula's
    `error` is the median over turns of predicted over measured, minus 1; `violated` counts exceeded bounds."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for key in _common(runs, "ssd", "sd", "ar") if {"ssd", "sd", "ar"} <= runs.keys() else ():
        try:
            of = [runs[method][key] for method in ("ssd", "sd", "ar")]
            made = theory.predictions(*map(_per_sequence, of), batch=of[0].batch_size)
        except (ValueError, KeyError):  # too short a run to predict from
            continue
        for p in made:
            about = {"name": p.name, "ratio": p.ratio, "bound": p.bound, "source": p.source, "note": p.note}
            found.setdefault((p.name, p.ratio), about | {"points": []})["points"].append([p.predicted, p.measured])
    for formula in found.values():
        formula["error"] = median(predicted / measured - 1 for predicted, measured in formula["points"])
        formula["violated"] = sum(formula["bound"] and m > p for p, m in formula["points"])
    return list(found.values())


# ---------------------------------------------------------------------------------------------------------------
# As text


def running_line(played: Sequence[Played]) -> str:
    """The speeds so far, in one line."""
    parts = []
    for method, turns in _runs(played).items():
        speed = total_tok_s(p.summary for p in turns.values())
        parts.append(f"{method} {speed:.1f}" if speed else method)
    return ", ".join(parts) + " tok/s" if parts else ""


def table(results: Mapping[str, Any]) -> str:
    """The results as plain text."""
    return "\n\n".join(_text(group, results["exact"]) for group in results["groups"]) or "nothing was measured"


def _text(group: Mapping[str, Any], exact: Any) -> str:
    columns = (
        "decode_tok_s", "tok_s_per_sequence", "ttft_s", "gap_p50_ms", "gap_p99_ms", "tokens_per_round", "acceptance", "hit_rate",
        "verify_ms", "overlap", "overhead",
    )  # fmt: skip
    lines = [f"temperature {group['temperature']:g}, batch size {group['batch_size']}"]
    lines += [f"{'method':16}" + "".join(f"{column:>20}" for column in columns)]
    for method, row in group["methods"].items():
        cells = [f"{row[column]:20.3f}" if row[column] is not None else f"{'-':>20}" for column in columns]
        lines.append(f"{method:16}" + "".join(cells) + (f"  {row['failed']} failed" if row["failed"] else ""))
    for key, label in (("ratios", "ratios of totals"), ("ratios_median", "median ratios per prompt")):
        lines.append(f"{label}: " + ", ".join(f"{name} {value:.3f}" for name, value in group[key].items()))
    if group["identical"]:
        counts = {key: value for key, value in group["identical"].items() if key != "differ"}
        lines.append(f"identical to ar: {counts}; exact: {exact}")
    return "\n".join(lines)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _median(values: Iterable[float | None]) -> float | None:
    values = [value for value in values if value is not None]
    return median(values) if values else None


def _mean(values: Iterable[float | None]) -> float | None:
    values = [value for value in values if value is not None]
    return mean(values) if values else None

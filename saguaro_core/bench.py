"""The benchmark: methods measured one after another on the same prompts, interleaved so that drift hits all alike.

For each prompt every method runs alone on the machine, the order rotating from prompt to prompt; then the next prompt.
Natural end of text, chat template, prefill apart. `ar` is measured twice, padded as the bit-exactness rules want and
unpadded; the identity check uses the padded one, ratios the faster one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from .engine import SaguaroSSD
from .prompts import Prompt

OURS = ("ar", "sd", "ssd")
UNPADDED = "ar-unpadded"
MEDIANS = ("ttft_s", "verify_ms", "glue_ms", "tree_step_ms", "draft_step_ms", "overhead_ms", "period_hit_ms",
           "period_miss_ms", "period_over_work_hit", "overlap")  # fmt: skip


@dataclass
class Measured:
    """All runs of one method: a summary each, and their output ids by (repetition, prompt number, turn)."""

    summaries: list[dict[str, Any]] = field(default_factory=list)
    outputs: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)
    categories: list[str] = field(default_factory=list)


def bench(
    engine: SaguaroSSD,
    prompts: Sequence[Prompt],
    methods: Sequence[str],
    *,
    repeat: int = 1,
    turns: int = 1,
    progress: Callable[[str], None] = lambda text: None,
    on_run: Callable[[Any], None] = lambda run: None,
    **settings,
) -> dict[str, Any]:
    """Run the benchmark and return the report (see README for its keys). `settings` go to `generate`; `turns`: how
    many turns of each prompt are played, every method answering its own earlier answer. `on_run(run)` sees each
    finished run. Raises RuntimeError where a run fails."""
    if not methods or repeat < 1 or turns < 1:
        raise ValueError("a benchmark needs at least one method, one repetition and one turn")
    order = list(dict.fromkeys([*methods, UNPADDED] if "ar" in methods else methods))
    measured = {method: Measured() for method in order}
    warm_up(engine, order, settings)
    for repetition in range(repeat):
        for number, prompt in enumerate(prompts):
            shift = (number + repetition) % len(order)
            for method in order[shift:] + order[:shift]:
                _measure(engine, prompt, (repetition, number), method, turns, settings, measured[method], on_run)
            done = repetition * len(prompts) + number + 1
            progress(f"{done}/{repeat * len(prompts)} prompts: {running_line(measured)}")
    return report(measured, engine.info, settings)


def warm_up(engine: SaguaroSSD, methods: Iterable[str], settings: dict[str, Any]) -> None:
    for method in methods:
        _run(engine, "Hello!", method, settings | {"max_new_tokens": 8})


def _measure(engine, prompt, key, method, turns, settings, into: Measured, on_run) -> None:
    messages: list[dict[str, str]] = []
    for turn, text in enumerate(prompt.turns[:turns]):
        messages.append({"role": "user", "content": text})
        # the first turn starts from nothing; later ones keep the conversation's keys and values, as a chat does
        run = _run(engine, messages, method, settings | {"reuse": None if turn else 0})
        messages.append({"role": "assistant", "content": run.text})
        into.summaries.append(run.summary)
        into.categories.append(prompt.category)
        into.outputs[*key, turn] = run.ids
        on_run(run)


def _run(engine, prompt, method, settings):
    if method == UNPADDED:
        method, settings = "ar", settings | {"padded": False}
    run = engine.generate(prompt, method, **settings).wait()
    if run.result.error:
        raise RuntimeError(run.result.error)
    return run


def report(measured: dict[str, Measured], info: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Aggregates. Decode tok/s of a method: all its tokens after the first over all its decode time."""
    methods = {method: _aggregate(runs) for method, runs in measured.items() if runs.summaries}
    speeds = {method: row["decode_tok_s"] for method, row in methods.items()}
    if "ar" in speeds:
        speeds["ar"] = max(filter(None, (speeds["ar"], speeds[UNPADDED])), default=None)
    pairs = [(a, b) for a in ("ssd", "sd") for b in ("ar", "sd", "hf-ar", "hf-assisted") if a != b]
    pairs += [("ar", "hf-ar"), ("hf-assisted", "hf-ar")]
    pairs = [(a, b) for a, b in pairs if speeds.get(a) and speeds.get(b)]
    return {
        "methods": methods,
        "ratios": {f"{a}/{b}": speeds[a] / speeds[b] for a, b in pairs},
        "ratios_median": {f"{a}/{b}": _paired(measured, a, b) for a, b in pairs},
        "identical": _identical(measured),
        "exact": info["exact"],
        "engine": info,
        "settings": {key: value for key, value in settings.items() if value is not None},
    }


def _paired(measured: dict[str, Measured], a: str, b: str) -> float | None:
    """The median over runs of the ratio of decode speeds on the same prompt in the same repetition; less moved than
    the ratio of totals when the machine stumbles. Against `ar`, the faster of its two runs counts."""

    def speeds(method: str) -> list[float]:
        return [row["decode_tok_s"] or 0.0 for row in measured[method].summaries]

    def fastest(method: str) -> list[float]:
        return list(map(max, speeds(method), speeds(UNPADDED))) if method == "ar" else speeds(method)

    return _median([x / y for x, y in zip(fastest(a), fastest(b), strict=True) if x and y])


def _aggregate(runs: Measured) -> dict[str, Any]:
    rows = runs.summaries
    timed = [row for row in rows if row["decode_s"]]
    decode_s = sum(row["decode_s"] for row in timed)
    total = {
        key: sum(row[key] or 0 for row in rows)
        for key in ("tokens", "rounds", "drafted", "accepted", "hits", "lookups")
    }
    after_first = sum(row["decode_tok_s"] * row["decode_s"] for row in timed)
    medians = {key: _median([row[key] for row in rows if row[key] is not None]) for key in MEDIANS}
    return {
        "decode_tok_s": after_first / decode_s if decode_s else None,
        "decode_tok_s_median": _median([row["decode_tok_s"] for row in timed]),
        "runs": len(rows),
        **total,
        "tokens_per_round": after_first / total["rounds"] if total["rounds"] else None,
        "tokens_per_round_hit": _mean([row["tokens_per_round_hit"] for row in rows]),
        "tokens_per_round_miss": _mean([row["tokens_per_round_miss"] for row in rows]),
        "acceptance": _mean([row["acceptance"] for row in rows]),
        "hit_rate": total["hits"] / total["lookups"] if total["lookups"] else None,
        **medians,
        "overhead": medians["overhead_ms"] / medians["verify_ms"]
        if medians["overhead_ms"] and medians["verify_ms"]
        else None,
        "decode_tok_s_by_category": _by_category(runs),
    }


def _by_category(runs: Measured) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for category, row in zip(runs.categories, runs.summaries, strict=True):
        if row["decode_tok_s"]:
            groups.setdefault(category, []).append(row["decode_tok_s"])
    return {category: mean(values) for category, values in sorted(groups.items())}


def _identical(measured: dict[str, Measured]) -> dict[str, Any]:
    """For how many outputs each speculative method gave the very tokens of `ar`, and which differ, where first."""
    if "ar" not in measured:
        return {}
    expected = measured["ar"].outputs
    result: dict[str, Any] = {"of": len(expected)}
    for method in OURS[1:]:
        if method in measured:
            got = measured[method].outputs
            result[method] = sum(got[key] == ids for key, ids in expected.items())
            result.setdefault("differ", []).extend(
                [method, *key, _first_difference(got[key], ids)] for key, ids in expected.items() if got[key] != ids
            )
    return result


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def running_line(measured: dict[str, Measured]) -> str:
    parts = []
    for method, runs in measured.items():
        speed = _aggregate(runs)["decode_tok_s"]
        parts.append(f"{method} {speed:.1f}" if speed else method)
    return ", ".join(parts) + " tok/s"


def table(report: dict[str, Any]) -> str:
    """The report as a plain text table."""
    columns = (
        "decode_tok_s",
        "ttft_s",
        "tokens_per_round",
        "acceptance",
        "hit_rate",
        "verify_ms",
        "overlap",
        "overhead",
    )
    lines = [f"{'method':13}" + "".join(f"{column:>18}" for column in columns)]
    for method, row in report["methods"].items():
        cells = [f"{row[column]:18.3f}" if row[column] is not None else f"{'-':>18}" for column in columns]
        lines.append(f"{method:13}" + "".join(cells))
    for key, label in (("ratios", "ratios of totals"), ("ratios_median", "median ratios per prompt")):
        lines.append(f"{label}: " + ", ".join(f"{name} {value:.3f}" for name, value in report[key].items() if value))
    if report["identical"]:
        counts = {key: value for key, value in report["identical"].items() if key != "differ"}
        lines.append(f"identical to ar: {counts}; exact: {report['exact']}")
    return "\n".join(lines)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _mean(values: Sequence[float | None]) -> float | None:
    values = [value for value in values if value is not None]
    return mean(values) if values else None

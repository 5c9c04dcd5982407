"""What the lessons play and say: pieces of recorded runs and the numbers read off them.

`Library.lesson(name)` gives everything a browser needs for the eight steps, as plain JSON values. Every number is
computed here from a trace (or in the browser from these); the sentences around them are in strings/*.json, whose
placeholders name a path into `numbers`. Token text goes through `rounds.visible`, so that it is inert and has no
invisible sign.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any

from saguaro_core import events as ev
from saguaro_core import theory
from saguaro_core.summary import summarise

from . import deltas, replay
from .components.header import _SIZE as SIZE
from .rounds import visible
from .tokenlog import TokenLog

ASSETS = Path(__file__).parent.parent / "assets"
STRINGS = Path(__file__).parent / "strings"
LANGUAGES = ("en", "zh")
ROLES = ("ar", "sd", "ssd")
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
ROWS_PLAYED = 6000  # of a long trace only the beginning is played
TOKENS_PLAYED = 400
ROUNDS_TOLD = 60
BATCHES = (1, 2, 4, 8, 16)


def strings() -> dict[str, Any]:
    """All sentences of the lessons, by language."""
    return {code: json.loads((STRINGS / f"{code}.json").read_text(encoding="utf-8")) for code in LANGUAGES}


def distribution() -> dict[str, Any] | None:
    """The recorded next-token distributions of step 6 (see assets/lessons/record.py)."""
    try:
        found = json.loads((ASSETS / "lessons" / "distribution.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found | {"tokens": [token | {"text": visible(token["text"])} for token in found["tokens"]]}


@dataclass(frozen=True, eq=False)
class Recorded:
    """One run out of a trace file."""

    name: str
    events: Sequence[ev.Event]

    @cached_property
    def started(self) -> ev.RunStarted:
        return next((e for e in self.events if isinstance(e, ev.RunStarted)), ev.RunStarted(run=""))

    @cached_property
    def summary(self) -> dict[str, Any]:
        return summarise(self.events)

    @property
    def method(self) -> str:
        return deltas.method_of(self.started)

    def of(self, kind: type[ev.Event]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind) and e.seq == 0]

    @property
    def usable(self) -> bool:
        return self.method in ROLES and bool(self.summary["decode_tok_s"]) and bool(self.summary["verify_ms"])

    @property
    def told(self) -> bool:
        """Whether its token ids come with what they read as."""
        return any(isinstance(e, ev.TokenTexts) for e in self.events)


class Library:
    """Recorded runs to take lessons from: the page's own `traces`, and the shipped ones where those do not do."""

    def __init__(self, traces: Mapping[str, Path]):
        shipped = {file.name: file for file in sorted((ASSETS / "traces").glob("*.jsonl"))}
        self._given, self._files = list(traces), shipped | dict(traces)
        self._made: dict[str, dict[str, Any]] = {}

    @cached_property
    def runs(self) -> dict[str, Recorded]:
        """Those that can be played, by name."""
        found = {}
        for name, path in self._files.items():
            try:
                run = Recorded(name, replay.load(path))
                if run.usable:
                    found[name] = run
            except (ValueError, TypeError, AttributeError, ZeroDivisionError):  # somebody else's file
                continue
        return found

    @cached_property
    def default(self) -> str | None:
        """The SSD run with the most company: other methods on the same prompt, and among equals one that was given
        and tells what its tokens read as."""
        ssd = [run for run in self.runs.values() if run.method == "ssd"]
        company = {run.name: len({other.method for other in self._same_prompt(run)}) for run in ssd}
        best = max(ssd, key=lambda r: (company[r.name], r.name in self._given, r.told), default=None)
        return best.name if best else next(iter(self.runs), None)

    def cast(self, name: Any) -> dict[str, Recorded | None]:
        """The run to play for each method, around the run `name`."""
        order = [self.runs[key] for key in (name, self.default) if isinstance(key, str) and key in self.runs]
        pool = [other for run in order for other in (run, *self._same_prompt(run))] + list(self.runs.values())
        return {role: next((run for run in pool if run.method == role), None) for role in ROLES}

    def lesson(self, name: Any) -> dict[str, Any]:
        """Everything for the browser, around the run `name`; around the default where there is no such run."""
        key = name if isinstance(name, str) and name in self.runs else self.default or ""
        if key not in self._made:
            self._made[key] = self._lesson(key)
        return self._made[key] | {"unknown": bool(name) and key != name}

    def _lesson(self, name: str) -> dict[str, Any]:
        cast = self.cast(name)
        ssd = cast["ssd"]
        return {
            "chosen": name,
            "names": [run.name for run in self.runs.values() if run.method == "ssd"],
            "runs": {role: _played(run) for role, run in cast.items() if run},
            "numbers": numbers(cast),
            "rounds": told_rounds(ssd, cast.values()) if ssd else [],
            "ranks": [[e.k, -1 if e.rank is None else e.rank] for e in _later_lookups(ssd)] if ssd else [],
            "by_f": by_fan_out(ssd) if ssd else [],
            "distribution": distribution(),
        }

    def _same_prompt(self, run: Recorded) -> list[Recorded]:
        prompt = run.started.prompt
        return [r for r in self.runs.values() if prompt and r.started.prompt == prompt and r is not run]


# ---------------------------------------------------------------------------------------------------------------
# What is played


def _played(run: Recorded) -> dict[str, Any]:
    log = TokenLog()
    log.add(run.of(ev.Tokens))
    emitted = [e for e in run.of(ev.Tokens) for _ in e.ids or (0,)]
    words = [[e.t1, visible_word(row[0]), row[1]] for e, row in zip(emitted, log.rows, strict=True)]
    return {
        "name": visible(run.name),
        "prompt": visible(str(run.started.prompt)),
        "models": _models(run),
        "rows": json.dumps(deltas.rows(e for e in run.events if e.seq == 0)[:ROWS_PLAYED], separators=(",", ":")),
        "words": words[:TOKENS_PLAYED],
    }


def visible_word(text: str) -> str:
    """`visible`, but an ordinary word keeps its leading space."""
    return "" if text == "" else " " + visible(text[1:]) if text[0] == " " and text.strip() else visible(text)


def _models(run: Recorded) -> str:
    models, hardware = run.started.models, run.started.hardware
    cpu = hardware.get("cpu") if hardware.get("target_device", "cpu") == "cpu" else hardware.get("target_device")
    return ", ".join(visible(str(part)) for part in (models.get("target"), cpu, hardware.get("dtype")) if part)


def told_rounds(run: Recorded, others: Iterable[Recorded | None]) -> list[dict[str, Any]]:
    """The first rounds that end in a look-up, for step 4: the tokens under check, what was prepared beside, how the
    check ended, and whether that was among it. `found`: `[fork, candidate]` of the branch that happened."""
    texts = _texts([run, *filter(None, others)])
    read = lambda id: visible(texts[id]) if id in texts else f"#{id}"
    verifies = {e.round: e for e in run.of(ev.Verify)}
    rounds = []
    for lookup in _later_lookups(run):
        verify = verifies.get(lookup.round - 1)
        if verify is None or not verify.drafted or not lookup.candidates:
            continue
        forks: dict[int, list] = defaultdict(list)
        for fork, token, ready in lookup.candidates:
            forks[fork].append([read(token), [read(id) for id in ready], (fork, token) == (lookup.k, lookup.bonus)])
        rounds.append(
            {
                "round": verify.round,
                "drafted": [read(id) for id in verify.drafted],
                "k": lookup.k,
                "bonus": read(lookup.bonus),
                "hit": lookup.hit,
                "forks": [{"k": fork, "branches": forks[fork]} for fork in sorted(forks)],
            }
        )
        if len(rounds) == ROUNDS_TOLD:
            break
    return rounds


def _texts(runs: Iterable[Recorded]) -> dict[int, str]:
    """What token ids read as: said by the trace, or seen where a token came out alone."""
    texts: dict[int, str] = {}
    for run in runs:
        for e in run.events:
            if isinstance(e, ev.TokenTexts):
                texts.update(zip(e.ids, e.texts, strict=False))
            elif isinstance(e, ev.Tokens) and len(e.ids) == 1 and e.text:
                texts.setdefault(e.ids[0], e.text)
    return texts


# ---------------------------------------------------------------------------------------------------------------
# What is said


def numbers(cast: Mapping[str, Recorded | None]) -> dict[str, Any]:
    """What the placeholders of the strings name: `ar`, `sd`, `ssd` (each `of_run`), `ratio`, `many`, `weights`, `fan`,
    `batch`, `expect`, `distribution`. A value that cannot be read off the traces is None or absent, and its sentence is left out."""
    said: dict[str, Any] = {role: of_run(run) for role, run in cast.items() if run}
    said["ratio"] = ratios(cast)
    said["many"] = many_rows(cast)
    said["weights"] = weights(cast["ar"]) if cast["ar"] else None
    said["batch"] = batch(said["ssd"]) if cast["ssd"] else None
    said["expect"] = expected(said)
    said["fan"] = fan(cast["ssd"]) if cast["ssd"] else None
    said["distribution"] = _about(distribution())
    return said


def of_run(run: Recorded) -> dict[str, Any]:
    """The run's summary with what the lessons need beside it. Times in ms, shares as fractions."""
    summary, settings = run.summary, run.started.settings
    waits = _waits(run)
    lookups = _later_lookups(run)
    plain = {key: value for key, value in summary.items() if isinstance(value, int | float | None)}
    return plain | {
        "k": settings.get("k") if isinstance(settings.get("k"), int) else None,
        "rows": median([e.rows for e in run.of(ev.Verify)]),
        "wait_share": sum(sum(ms) for ms in waits.values()) / 1e3 / summary["decode_s"],
        "wait_hit_ms": _median(waits[True]),
        "wait_miss_ms": _median(waits[False]),
        "misses": summary["lookups"] - summary["hits"],
        "unforeseen": sum(e.rank is None for e in lookups),
        "branches": mean([len(e.candidates) for e in lookups]) if lookups else None,
        "forks": max((len({fork for fork, *_ in e.candidates}) for e in lookups), default=None),
    }


def _later_lookups(run: Recorded) -> list[ev.Lookup]:
    return [e for e in run.of(ev.Lookup) if e.round > 1]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _waits(run: Recorded) -> dict[bool, list[float]]:
    """The target's waiting for each round after the first, in ms, by whether the round's look-up hit."""
    hit = {e.round: e.hit for e in run.of(ev.Lookup)}
    waited: dict[int, float] = defaultdict(float)
    for e in run.of(ev.Wait):
        if e.lane == ev.TARGET and e.round > 1:
            waited[e.round] += (e.t1 - e.t0) * 1e3
    return {wanted: [ms for r, ms in waited.items() if hit.get(r, False) is wanted] for wanted in (True, False)}


def ratios(cast: Mapping[str, Recorded | None]) -> dict[str, float | None]:
    """Measured ratios of decode speeds, where both runs answer the same prompt on the same machine."""

    def ratio(one: str, other: str) -> float | None:
        runs = [cast[one], cast[other]]
        if not all(runs) or runs[0].started.prompt != runs[1].started.prompt:
            return None
        if runs[0].started.hardware.get("cpu") != runs[1].started.hardware.get("cpu"):
            return None
        return runs[0].summary["decode_tok_s"] / runs[1].summary["decode_tok_s"]

    return {"sd_ar": ratio("sd", "ar"), "ssd_ar": ratio("ssd", "ar"), "ssd_sd": ratio("ssd", "sd")}


def many_rows(cast: Mapping[str, Recorded | None]) -> dict[str, Any] | None:
    """The verification of the most guesses that was recorded at least five times, against a forward without any."""
    spans: dict[tuple[int, str], list[float]] = defaultdict(list)
    for role in ("sd", "ssd"):
        for e in cast[role].of(ev.Verify) if cast[role] else ():
            spans[len(e.drafted), role].append((e.t1 - e.t0) * 1e3)
    often = [(drafted, median(ms), role) for (drafted, role), ms in spans.items() if drafted and len(ms) >= 5]
    if not often or not cast["ar"]:
        return None
    drafted, ms, role = max(often)
    alone = cast["ar"].summary["verify_ms"]
    bars = [[0, alone, "AR"]] + [[d, m, r.upper()] for d, m, r in sorted(often, key=lambda row: (row[2], row[0]))]
    return {"drafted": drafted, "ms": ms, "ratio": ms / alone, "method": role.upper(), "bars": bars}


def weights(run: Recorded) -> dict[str, float] | None:
    """Bytes of weights that a forward reads, where the model's name tells its size."""
    size = SIZE.search(str(run.started.models.get("target", "")))
    width = BYTES.get(str(run.started.hardware.get("dtype")))
    if not size or not width:
        return None
    count = float(size[1]) * {"M": 1e6, "B": 1e9}[size[2]]
    gigabytes = count * width / 1e9
    return {"millions": count / 1e6, "gb": gigabytes, "gb_s": gigabytes / run.summary["verify_ms"] * 1e3}


def batch(ssd: Mapping[str, Any]) -> dict[str, Any] | None:
    """Corollary 16 and Theorem 17 fed with the run: drafting just in time against going on without a guess."""
    p, hit, miss = ssd["hit_rate"], ssd["tokens_per_round_hit"], ssd["tokens_per_round_miss"]
    if not p or p == 1 or not hit or not miss or ssd["backup_ms"] is None or ssd["prepare_ms"] is None:
        return None
    neural, fast = (miss, ssd["backup_ms"] / ssd["verify_ms"]), (1.0, 0.0)
    prepare = ssd["prepare_ms"] / ssd["verify_ms"]
    best = theory.best_backup_batch(p, hit, neural, fast, prepare)
    return {
        "p": p, "hit": hit, "miss": miss, "backup": neural[1], "prepare": prepare,
        "all8": p**8,
        "from": max(1, int(best) + 1) if 1 <= best < 64 else None,
        "always": best < 1 or None,
        "never": best >= 64 or None,
    }  # fmt: skip


def expected(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the formulas make of the measured numbers, the public summary's included (see `theory`)."""
    ssd, sd, ar = (said.get(role) for role in ("ssd", "sd", "ar"))
    needed = ("hit_rate", "tokens_per_round_hit", "tokens_per_round_miss", "backup_ms", "prepare_ms")
    if not ssd or any(ssd.get(key) is None for key in needed):
        return None
    p, verify = ssd["hit_rate"], ssd["verify_ms"]
    x, prepare = ssd["backup_ms"] / verify, ssd["prepare_ms"] / verify
    theorem = theory.ssd_speedup(p, ssd["tokens_per_round_hit"], ssd["tokens_per_round_miss"], prepare, x)
    return {
        "p": p, "x": x, "prepare": prepare, "tokens": ssd["tokens_per_round"],
        "theorem": theorem,
        "ssd_sd": theory.ssd_over_sd(p, x),
        "most": 1 + x,
        "sd": theory.sd_speedup(sd["tokens_per_round"], sd["backup_ms"] / sd["verify_ms"]) if sd and sd["backup_ms"] else None,
        "wrong": theory.summary_speedup(p, x),
        "wrong_perfect": theory.summary_speedup(1.0, x),
        "bound": theory.summary_bound(ar["verify_ms"], ssd["backup_ms"], verify) if ar else None,
    }  # fmt: skip


def by_fan_out(run: Recorded) -> list[dict[str, float]]:
    """For F = 1, 2, ...: look-ups whose bonus was among the first F candidates of its fork, and the mean number of
    branches that takes. Candidates are recorded likeliest first, so this is what narrower forks would have held."""
    lookups = _later_lookups(run)
    sizes = [list(_fork_sizes(e).values()) for e in lookups]
    widest = max((max(s, default=0) for s in sizes), default=0)
    return [
        {
            "f": f,
            "hits": sum(e.rank is not None and e.rank < f for e in lookups),
            "branches": mean([sum(min(f, n) for n in s) for s in sizes]),
        }
        for f in range(1, widest + 1)
    ]


def fan(run: Recorded) -> dict[str, Any] | None:
    """The ends of `by_fan_out` as shares of the look-ups."""
    steps, lookups = by_fan_out(run), run.summary["lookups"]
    if not steps or not lookups:
        return None
    return {"first": steps[0]["hits"] / lookups, "all": steps[-1]["hits"] / lookups, "widest": len(steps)}


def _about(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """A distribution without its tokens; `kept`: how many of each model were kept."""
    if found is None:
        return None
    kept = sum(token["p"] is not None for token in found["tokens"])
    return {key: found[key] for key in ("beginning", "mass")} | {"kept": kept}


def _fork_sizes(lookup: ev.Lookup) -> dict[int, int]:
    sizes: dict[int, int] = defaultdict(int)
    for fork, *_ in lookup.candidates:
        sizes[fork] += 1
    return sizes

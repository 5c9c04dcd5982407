"""The numbers of a run, computed from its events alone.

Definitions (architecture note, section 3): TTFT is the time from the start to the first token. Decode tok/s counts
the tokens after the first over the time from the first to the last (in a batch: from when every sequence has its
first). Acceptance is accepted over *tested*: a drafted token behind a rejected one was never tested. Hit rate is hits
over lookups after the first round. The overhead of a round is its period (verification start to verification start)
minus the longer of the verification and what the draft did beside it, minus the drafting just in time that the next
round waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from .events import DRAFT, TARGET, DraftStep, Event, Glue, Lookup, Prefill, Tokens, TreeStep, Verify

BUSY = {TARGET: (Verify,), DRAFT: (DraftStep, Glue, TreeStep)}


def summarise(events: Iterable[Event]) -> dict[str, Any]:
    """Fixed keys; None where a run has nothing to measure. Times in ms unless the key says otherwise."""
    events = list(events)
    tokens = [e for e in events if isinstance(e, Tokens) and e.ids]
    verifies = [e for e in events if isinstance(e, Verify)]
    lookups = {(e.seq, e.round): e for e in events if isinstance(e, Lookup)}
    firsts = [e.t1 for e in tokens if e.round == 0]
    start, end = max(firsts, default=0.0), max((e.t1 for e in tokens), default=0.0)
    decode_s = end - start
    emitted = {(e.seq, e.round): len(e.ids) for e in tokens if e.round > 0}
    hits = [n for key, n in emitted.items() if key in lookups and lookups[key].hit]
    misses = [n for key, n in emitted.items() if key in lookups and not lookups[key].hit]
    later = [e for e in lookups.values() if e.round > 1]
    tested, accepted = _acceptance(verifies)
    window = (start, end) if decode_s > 0 else None
    periods, overheads, prepare, backup = _rounds(events, verifies, lookups)
    return {
        "ttft_s": min(firsts, default=None),
        "decode_tok_s": sum(emitted.values()) / decode_s if decode_s > 0 else None,
        "decode_s": decode_s or None,
        "sequences": len({e.seq for e in tokens}),
        "tok_s_per_sequence": _median(_speeds(tokens)),
        "tokens": sum(len(e.ids) for e in tokens),
        "rounds": len({e.round for e in verifies}),
        "tokens_per_round": _mean(list(emitted.values())),
        "tokens_per_round_hit": _mean(hits),
        "tokens_per_round_miss": _mean(misses),
        "acceptance": sum(accepted) / sum(tested) if sum(tested) else None,
        "acceptance_by_position": [a / t if t else None for a, t in zip(accepted, tested, strict=True)],
        "drafted": sum(len(e.drafted) for e in verifies),
        "accepted": sum(accepted),
        "lookups": len(later),
        "hits": sum(e.hit for e in later),
        "hit_rate": sum(e.hit for e in later) / len(later) if later else None,
        "bonus_rank": _ranks(later),
        "busy": {lane: _busy(events, window, kinds) for lane, kinds in BUSY.items()} if window else None,
        "overlap": _overlap(events, window) if window else None,
        "verify_ms": _median_ms(verifies),
        "glue_ms": _median_ms(e for e in events if isinstance(e, Glue)),
        "tree_step_ms": _median_ms(e for e in events if isinstance(e, TreeStep)),
        "draft_step_ms": _median_ms(e for e in events if isinstance(e, DraftStep)),
        "prefill_ms": {e.lane: (e.t1 - e.t0) * 1e3 for e in events if isinstance(e, Prefill)},
        "period_hit_ms": _median([p for p, hit in periods if hit]),
        "period_miss_ms": _median([p for p, hit in periods if not hit]),
        "period_over_work_hit": _median([r for r in overheads["ratio_hit"]]),
        "overhead_ms": _median(overheads["ms"]),
        "prepare_ms": _median(prepare),
        "backup_ms": _median(backup),
    }


def _acceptance(verifies: Sequence[Verify]) -> tuple[list[int], list[int]]:
    """Drafted tokens tested and accepted at each position of a speculation."""
    longest = max((len(e.drafted) for e in verifies), default=0)
    tested, accepted = [0] * longest, [0] * longest
    for e in verifies:
        for i in range(len(e.drafted)):
            tested[i] += i <= e.accepted
            accepted[i] += i < e.accepted
    return tested, accepted


def _ranks(lookups: Sequence[Lookup]) -> dict[str, int]:
    """How often the bonus was the first, second, ... candidate of its fork; "none" where it was not among them."""
    counts: dict[str, int] = defaultdict(int)
    for e in lookups:
        counts["none" if e.rank is None else str(e.rank)] += 1
    return dict(sorted(counts.items(), key=lambda item: (item[0] == "none", len(item[0]), item[0])))


def _rounds(events, verifies, lookups):
    """Periods of the rounds `[(ms, hit)]` and their overheads in ms; `hit`: all of the round's speculations were
    foreseen. Then what the draft did beside each verification, and before one whose speculation was not foreseen."""
    beside, just_in_time = defaultdict(float), defaultdict(float)
    for e in events:
        if isinstance(e, (Glue, TreeStep)):
            beside[e.round] += e.t1 - e.t0
        elif isinstance(e, DraftStep):
            just_in_time[e.round] += e.t1 - e.t0
    missed = {e.round for e in lookups.values() if not e.hit}
    known = {e.round for e in lookups.values()}
    rounds = list({e.round: e for e in verifies}.values())
    periods, overheads = [], {"ms": [], "ratio_hit": []}
    for this, following in zip(rounds, rounds[1:]):
        period = following.t0 - this.t0
        work = max(this.t1 - this.t0, beside[this.round])
        hit = following.round in known and following.round not in missed
        periods.append((period * 1e3, hit))
        overheads["ms"].append((period - work - just_in_time[following.round]) * 1e3)
        if hit:
            overheads["ratio_hit"].append(period / work)
    prepare = [seconds * 1e3 for round, seconds in beside.items() if round > 0]
    backup = [s * 1e3 for round, s in just_in_time.items() if round in missed or round not in known]
    return periods, overheads, prepare, backup


def _speeds(tokens: Sequence[Tokens]) -> list[float]:
    """Decode tok/s of each sequence, as its reader sees it."""
    times: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for e in tokens:
        times[e.seq].append((e.t1, len(e.ids)))
    return [
        sum(count for _, count in of[1:]) / (of[-1][0] - of[0][0])
        for of in times.values()
        if len(of) > 1 and of[-1][0] > of[0][0]
    ]


def _spans(events, window, kinds) -> list[tuple[float, float]]:
    start, end = window
    spans = {(max(e.t0, start), min(e.t1, end)) for e in events if isinstance(e, kinds)}
    return sorted(span for span in spans if span[0] < span[1])


def _busy(events, window, kinds) -> float:
    """Fraction of the decode window in which a lane computed (its events never overlap one another)."""
    return sum(t1 - t0 for t0, t1 in _spans(events, window, kinds)) / (window[1] - window[0])


def _overlap(events, window) -> float:
    """Fraction of the decode window in which both lanes computed."""
    target, draft = (_spans(events, window, BUSY[lane]) for lane in (TARGET, DRAFT))
    both, i, j = 0.0, 0, 0
    while i < len(target) and j < len(draft):
        both += max(0.0, min(target[i][1], draft[j][1]) - max(target[i][0], draft[j][0]))
        if target[i][1] <= draft[j][1]:
            i += 1
        else:
            j += 1
    return both / (window[1] - window[0])


def _median_ms(events: Iterable[Event]) -> float | None:
    return _median([(e.t1 - e.t0) * 1e3 for e in events])


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

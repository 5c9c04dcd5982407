"""Formulas for the speed of speculative decoding, and how far each is from a measured run.

Unless said otherwise times are in units of one verification, T_V, and a step of plain decoding takes one unit too.
"Tokens" are expected tokens of a round, the target's own included. Sources: Kumar, Dao, May, *Speculative speculative
decoding*, ICLR 2026 (arXiv 2603.03251); Leviathan et al., ICML 2023. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

SUMMARY_SPEEDUP = "Speedup = (T_D/T_V) / (1 - P_hit + (T_D/T_V) P_hit)"
SUMMARY_BOUND = "Speedup <= T_AR / (T_D + T_V)"
WHY_THEY_MISLEAD = {
    SUMMARY_SPEEDUP: (
        "With a perfect cache (P_hit = 1) it gives exactly 1, no gain, and with no cache T_D/T_V; where drafting is "
        "cheaper than verifying it never exceeds 1. It has no tokens per round in it and no overlap: it looks like "
        "Amdahl's law with a numerator and a denominator swapped. At equal tokens per round the gain over SD is "
        "(1 + x) / (1 + (1 - P_hit) x), with x = T_D/T_V."
    ),
    SUMMARY_BOUND: (
        "It counts one token a round, so with T_AR about T_V it says that every speculative method is slower than "
        "plain decoding; and it still pays T_D, the very time that SSD hides. The bound is "
        "tokens on a hit * T_AR / max(T_V, preparation)."
    ),
}


def sd_speedup(tokens: float, draft: float) -> float:
    """SD over AR: a round drafts for `draft`, then verifies for 1. Leviathan et al., Theorem 3.8."""
    return tokens / (1 + draft)


def ssd_speedup(p_hit: float, tokens_hit: float, tokens_miss: float, prepare: float, backup: float) -> float:
    """SSD over AR, Theorem 7: preparing the cache (`prepare`) runs beside the verification; a miss drafts for `backup`
    while the target waits. It counts no overhead, and no overrun of the preparation on a miss."""
    return ssd_speedup_batch(1, p_hit, tokens_hit, tokens_miss, prepare, backup)


def ssd_speedup_batch(
    batch: int, p_hit: float, tokens_hit: float, tokens_miss: float, prepare: float, backup: float
) -> float:
    """Corollary 16: a batch goes on at once only if all its rows hit. Speedup of each row over AR at that batch."""
    all_hit = p_hit**batch
    return mixed(p_hit, tokens_hit, tokens_miss) / (all_hit * max(1.0, prepare) + (1 - all_hit) * (1 + backup))


def best_backup_batch(
    p_hit: float, tokens_hit: float, neural: tuple[float, float], fast: tuple[float, float], prepare: float = 0.0
) -> float:
    """Theorem 17: the batch size above which the `fast` backup beats the `neural` one, each `(tokens, time)`; inf
    where it never does, 0 where it always does. Closed form derived from Corollary 16. Requires 0 < p_hit < 1."""
    tokens = [mixed(p_hit, tokens_hit, backup[0]) for backup in (neural, fast)]
    gain = tokens[1] * (1 + neural[1]) - tokens[0] * (1 + fast[1])
    if gain <= 0:
        return float("inf")
    all_hit = gain / (gain + max(1.0, prepare) * (tokens[0] - tokens[1]))
    return max(0.0, log(all_hit) / log(p_hit)) if 0 < all_hit < 1 else 0.0


def ssd_over_sd(p_hit: float, draft: float) -> float:
    """SSD over SD at equal tokens per round, with the SD draft as backup and a preparation that fits inside the
    verification: Amdahl's law on the draft's share of a round. At most 1 + `draft` (Corollary 9)."""
    return (1 + draft) / (1 + (1 - p_hit) * draft)


def pays_for_its_devices(speedup_over_sd: float, target_devices: int, draft_devices: int) -> bool:
    """Whether SSD's gain exceeds its share of more devices: the same devices could serve more replicas of SD."""
    return speedup_over_sd >= (target_devices + draft_devices) / target_devices


def period(verify: float, prepare: float, wait: float, overhead: float = 0.0) -> float:
    """One round of an engine, in the unit of its arguments: the longer of `verify` and `prepare`, which run side by
    side, then `wait` (what is drafted while the target waits) and `overhead` (messages, bookkeeping). Unlike Theorem 7
    it has the overhead and the preparation's overrun on a miss."""
    return max(verify, prepare) + wait + overhead


def mixed(p_hit: float, hit: float, miss: float) -> float:
    """The mean over rounds of what is `hit` after a hit and `miss` after a miss."""
    return p_hit * hit + (1 - p_hit) * miss


def summary_speedup(p_hit: float, draft: float) -> float:
    """`SUMMARY_SPEEDUP` of a public summary of the paper, for comparison only: see `WHY_THEY_MISLEAD`."""
    return draft / (1 - p_hit + draft * p_hit)


def summary_bound(autoregressive: float, draft: float, verify: float) -> float:
    """`SUMMARY_BOUND` of the same summary, for comparison only: see `WHY_THEY_MISLEAD`."""
    return autoregressive / (draft + verify)


@dataclass(frozen=True)
class Prediction:
    """What a formula says about a measured ratio of decode speeds. `ratio`: "sd/ar", "ssd/ar" or "ssd/sd"; `error`:
    predicted over measured, minus 1; `bound`: the formula claims an upper bound, so only a positive violation counts
    against it; `source`: where it comes from; `note`: what it leaves out."""

    name: str
    ratio: str
    predicted: float
    measured: float
    bound: bool
    source: str
    note: str

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def violated(self) -> bool:
        """A bound that the measurement exceeds."""
        return self.bound and self.measured > self.predicted


def predictions(
    ssd: Mapping[str, Any], sd: Mapping[str, Any], ar: Mapping[str, Any], batch: int = 1
) -> list[Prediction]:
    """Every formula against three measured runs of one prompt (`summary.summarise`), fed with the times, the hit rate
    and the tokens per round of those runs. The overhead of the period model is the SD run's, so that nothing of the
    SSD run's own periods goes in. Raises ValueError where a run is too short to have measured them."""
    needed = {
        "ar": (ar, ("decode_tok_s", "verify_ms")),
        "sd": (sd, ("decode_tok_s", "verify_ms", "tokens_per_round", "backup_ms", "overhead_ms")),
        "ssd": (ssd, ("decode_tok_s", "verify_ms", "hit_rate", "prepare_ms")),
    }
    for name, (run, keys) in needed.items():
        missing = [key for key in keys if run.get(key) is None]
        if missing:
            raise ValueError(f"the {name} run is too short to predict from: it has no {', '.join(missing)}")
    t_v, p = ssd["verify_ms"], ssd["hit_rate"]
    hit = ssd["tokens_per_round_hit"] or ssd["tokens_per_round"]
    miss = ssd["tokens_per_round_miss"] or ssd["tokens_per_round"]
    backup = ssd.get("backup_ms") or 0.0
    x_sd, x_ssd = sd["backup_ms"] / sd["verify_ms"], ssd["prepare_ms"] / t_v
    sd_tok_s = sd["tokens_per_round"] / period(sd["verify_ms"], 0.0, sd["backup_ms"], sd["overhead_ms"])
    ssd_tok_s = mixed(p, hit, miss) / period(t_v, ssd["prepare_ms"], (1 - p**batch) * backup, sd["overhead_ms"])
    ar_tok_s = ar["decode_tok_s"] / 1e3  # tokens a millisecond
    over_ar = sd_speedup(sd["tokens_per_round"], x_sd)
    theorem = ssd_speedup_batch(batch, p, hit, miss, x_ssd, backup / t_v)
    t_d = sd["backup_ms"]
    rows = [
        ("SD formula", "sd/ar", over_ar, False, "Leviathan et al. 2023, Theorem 3.8", "no overhead"),
        ("period model", "sd/ar", sd_tok_s / ar_tok_s, False, "ours", "overhead of the SD run"),
        ("Theorem 7" if batch == 1 else "Corollary 16", "ssd/ar", theorem, False, "Kumar et al. 2026",
         "no overhead; no overrun of the preparation on a miss"),
        ("period model", "ssd/ar", ssd_tok_s / ar_tok_s, False, "ours", "overhead of the SD run"),
        ("ceiling", "ssd/ar", max(hit, miss) * ar["verify_ms"] / max(t_v, ssd["prepare_ms"]), True, "Kumar et al. 2026, Corollary 9",
         "as if every round hit and gave the more tokens of the two kinds"),
        ("summary's bound", "ssd/ar", summary_bound(ar["verify_ms"], t_d, t_v), True, "a public summary of the paper",
         WHY_THEY_MISLEAD[SUMMARY_BOUND]),
        ("Theorem 7 over SD", "ssd/sd", theorem / over_ar, False, "Kumar et al. 2026", "no overhead"),
        ("period model", "ssd/sd", ssd_tok_s / sd_tok_s, False, "ours", "overhead of the SD run"),
        ("Amdahl", "ssd/sd", ssd_over_sd(p, t_d / t_v), False, "derived from Theorem 7",
         "as if a round of SD and one of SSD gave equally many tokens"),
        ("summary's speedup", "ssd/sd", summary_speedup(p, t_d / t_v), False, "a public summary of the paper",
         WHY_THEY_MISLEAD[SUMMARY_SPEEDUP]),
    ]  # fmt: skip
    speeds = {"ar": ar["decode_tok_s"], "sd": sd["decode_tok_s"], "ssd": ssd["decode_tok_s"]}
    measured = {f"{a}/{b}": speeds[a] / speeds[b] for a, b in (("sd", "ar"), ("ssd", "ar"), ("ssd", "sd"))}
    return [
        Prediction(name, ratio, value, measured[ratio], bound, source, note)
        for name, ratio, value, bound, source, note in rows
    ]

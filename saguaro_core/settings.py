"""What one run is asked to do, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .fallback import FALLBACKS, FallbackStrategy
from .fan_out import ALLOCATORS

METHODS = ("ar", "sd", "hsd", "ssd", "ssd+hsd")
WITH_CACHE = ("ssd", "ssd+hsd")
WITH_BLOCK = ("hsd", "ssd+hsd")  # `sd` and `ssd` with the rule "block"
VERIFICATIONS = ("greedy", "token", "block", "coupled")
PLAIN, SAGUARO, GEOMETRIC = PROPOSALS = ("plain", "saguaro", "geometric")  # see `saguaro_sampling`
# the fastest of each on the embedded pair, two cores; below K = 2 "block" is "token"
DEFAULT_K = {"ar": 0, "sd": 1, "hsd": 2, "ssd": 3, "ssd+hsd": 3}
DEFAULT_FALLBACK = FallbackStrategy.BATCHED_RETRY.value
DEFAULT_PATIENCE = 1
LARGEST_K = 16
DEFAULT_BUDGET = 16
LARGEST_TREE = 960  # scratch slots of keys and values that a tree may take
LARGEST_AUTO_K = 8
AUTO, FIXED = "auto", "fixed"
AUTO_IS_DEFAULT = False  # whether `ssd` leaves K and the fan-out to the controller where neither is given


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`k`: lookahead K. `patience`: tokens that may be drafted while the target waits, after a miss or an interrupted
    tree; a speculation from the cache may be longer, as its tokens cost no time. `fan_out`: F_0..F_K, candidates per
    fork of the speculation tree, where `allocation` is "fixed"; else it says how the `budget` of M candidates is shared
    out among the forks (see `fan_out`). `auto`: what the controller chooses as it goes ("k", "m", "patience"), up to
    the K given here and whatever M and patience are. `padded`: whether target forwards have the rows that make methods
    agree bit for bit (see `exact_rows`); without, `ar` is a little faster and may differ in near-ties. `proposal`: what
    drafted tokens are drawn from (see `saguaro_sampling`), with the constant `saguaro_c`, or "auto". `fallback`: a
    strategy's name, or a policy's (see `fallback`)."""

    method: str
    verification: str
    k: int
    patience: int
    fan_out: tuple[int, ...]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_new_tokens: int
    padded: bool = True
    allocation: str = FIXED
    budget: int = 0
    auto: tuple[str, ...] = ()
    proposal: str = PLAIN
    saguaro_c: float | str = AUTO
    fallback: str = DEFAULT_FALLBACK

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"fan_out": list(self.fan_out), "auto": list(self.auto)}

    @property
    def speculates(self) -> bool:
        return self.method != "ar" and self.k > 0

    @property
    def foresees(self) -> bool:
        """Whether the draft prepares for outcomes while the target verifies."""
        return self.method in WITH_CACHE


def make_settings(
    method: str = "ssd",
    *,
    verification: str | None = None,
    k: int | str | None = None,
    patience: int | None = None,
    fan_out: int | Sequence[int] | str | None = None,
    budget: int | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    max_new_tokens: int = 256,
    padded: bool = True,
    proposal: str = PLAIN,
    saguaro_c: float | str | None = None,
    fallback: str = DEFAULT_FALLBACK,
) -> Settings:
    """Settings with every default filled in. Raises ValueError with one clear line where a value makes no sense.

    `verification` None means "greedy" at temperature 0 and "coupled" above. Methods `hsd` and `ssd+hsd` have their own
    rule whatever is given: "block", and at temperature 0 "greedy", which then gives the same. `patience` None means all
    K tokens under `sd`, where the target always waits, and at most `DEFAULT_PATIENCE` under `ssd`. `fan_out` is one
    number for all K + 1 forks or a list of K + 1 numbers, None for the default of this K; or the name of one of
    `fan_out.ALLOCATORS`, which shares out `budget` candidates. `k` "auto" and `fan_out` "auto" leave the choice to the
    controller, with patience where that is None. `saguaro_c` None means "auto". What belongs to the tree (patience,
    fan-out, budget, proposal, fallback) is left aside for methods without one.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    if method in WITH_BLOCK:
        verification = "greedy" if temperature == 0 else "block"
    elif verification is None:
        verification = "greedy" if temperature == 0 else "coupled"
    if verification not in VERIFICATIONS:
        raise ValueError(f"unknown verification {verification!r}; choose one of {', '.join(VERIFICATIONS)}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be 0 or more, not {temperature}")
    if (verification == "greedy") != (temperature == 0):
        raise ValueError(
            f"verification {verification!r} does not fit temperature {temperature:g}: "
            "greedy is for temperature 0, token, block and coupled for temperatures above 0"
        )
    if not 0 < top_p <= 1:
        raise ValueError(f"top-p must be above 0 and at most 1, not {top_p}")
    if top_k < 0:
        raise ValueError(f"top-k must be 0 (off) or more, not {top_k}")
    if max_new_tokens < 1:
        raise ValueError(f"max-new-tokens must be 1 or more, not {max_new_tokens}")
    tree = method in WITH_CACHE
    if AUTO_IS_DEFAULT and tree and k is None and fan_out is None:
        k = AUTO
    auto = []
    if k == AUTO and method != "ar":
        auto, k = ["k"], LARGEST_AUTO_K
        fan_out = AUTO if fan_out is None else fan_out
        if not isinstance(fan_out, str):
            raise ValueError("a K chosen automatically needs a fan-out that is chosen too: auto or the name of a rule")
    k = DEFAULT_K[method] if k is None or method == "ar" else k
    if not isinstance(k, int):
        raise ValueError(f'K must be a number or "auto", not {k!r}')
    if not tree:
        patience = fan_out = budget = saguaro_c = None
        proposal, fallback = PLAIN, DEFAULT_FALLBACK
    if not 0 <= k <= LARGEST_K:
        raise ValueError(f"K must be between 0 and {LARGEST_K}, not {k}")
    patience_is_free = patience is None
    if patience is None:
        patience = min(k, DEFAULT_PATIENCE) if tree else k
    if not min(k, 1) <= patience <= k:
        raise ValueError(f"patience must be between 1 and K = {k}, not {patience}")
    if tree and fan_out == AUTO and budget is None:
        auto.append("m")
    if tree and auto and patience_is_free:
        auto.append("patience")
    allocation, widths, budget = _candidates(fan_out, budget, k)
    if fallback not in FALLBACKS:
        raise ValueError(f"unknown fallback {fallback!r}; choose one of {', '.join(FALLBACKS)}")
    return Settings(
        method=method,
        verification=verification,
        k=k,
        patience=patience,
        fan_out=widths,
        temperature=float(temperature),
        top_k=int(top_k),
        top_p=float(top_p),
        seed=int(seed),
        max_new_tokens=int(max_new_tokens),
        padded=padded,
        allocation=allocation,
        budget=budget,
        auto=tuple(auto),
        proposal=proposal,
        saguaro_c=_saguaro_c(proposal, saguaro_c, verification),
        fallback=fallback,
    )


def _saguaro_c(proposal: str, c: float | str | None, verification: str) -> float | str:
    if proposal not in PROPOSALS:
        raise ValueError(f"unknown proposal {proposal!r}; choose one of {', '.join(PROPOSALS)}")
    if proposal != PLAIN and verification not in ("token", "block"):
        raise ValueError(
            f"proposal {proposal!r} needs verification token or block, which use the draft's distributions"
        )
    if c is None or c == AUTO:
        return AUTO
    if proposal != SAGUARO:
        raise ValueError("C belongs to proposal saguaro")
    if isinstance(c, str) or not 0 <= c <= 1:
        raise ValueError(f'C must be between 0 and 1, or "auto", not {c!r}')
    return float(c)


def _candidates(
    fan_out: int | Sequence[int] | str | None, budget: int | None, k: int
) -> tuple[str, tuple[int, ...], int]:
    """`(allocation, F_0..F_K or nothing, M)`."""
    if not isinstance(fan_out, str):
        widths = _fan_out(fan_out, k)
        if budget not in (None, sum(widths)):
            raise ValueError(f"the fan-out sums to {sum(widths)}, not to a budget of {budget}")
        return FIXED, widths, sum(widths)
    if fan_out not in (AUTO, *ALLOCATORS):
        raise ValueError(f"unknown fan-out {fan_out!r}; numbers, auto, or one of {', '.join(ALLOCATORS)}")
    budget = DEFAULT_BUDGET if budget is None else budget
    if not 1 <= budget <= 256 or k * budget > LARGEST_TREE:
        raise ValueError(f"the budget must be between 1 and {min(256, LARGEST_TREE // max(k, 1))}, not {budget}")
    return fan_out, (), budget


PER_ROW = ("temperature", "top_k", "top_p", "seed", "max_new_tokens")


def settings_of_rows(rows: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of `make_settings` for each row of a batch. Those in `PER_ROW` may be lists of one value a row;
    a rule of verification that differs between temperatures 0 and above is chosen for each. Raises ValueError for a
    list of another length."""
    lists = {name: value for name, value in settings.items() if name in PER_ROW and isinstance(value, (list, tuple))}
    for name, values in lists.items():
        if len(values) != rows:
            raise ValueError(f"{name} has {len(values)} values for {rows} prompts")
    return [settings | {name: values[row] for name, values in lists.items()} for row in range(rows)]


def _fan_out(fan_out: int | Sequence[int] | None, k: int) -> tuple[int, ...]:
    if fan_out is None:  # most outcomes are a correction of the first token, then "all accepted"
        return (8, 3, *(1,) * (k - 2), 4) if k >= 2 else (16,) if k == 0 else (10, 6)
    if isinstance(fan_out, int):
        fan_out = (fan_out,) * (k + 1)
    if len(fan_out) != k + 1:
        raise ValueError(f"fan-out needs K + 1 = {k + 1} numbers, got {len(fan_out)}")
    if any(f < 0 for f in fan_out) or not 1 <= sum(fan_out) <= 256:
        raise ValueError("fan-out numbers must be 0 or more and sum to between 1 and 256")
    if k * sum(fan_out) > LARGEST_TREE:
        raise ValueError(f"K times the sum of the fan-out must be at most {LARGEST_TREE}, not {k * sum(fan_out)}")
    return tuple(int(f) for f in fan_out)

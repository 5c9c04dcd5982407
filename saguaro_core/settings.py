"""What one run is asked to do, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

METHODS = ("ar", "sd", "ssd")
VERIFICATIONS = ("greedy", "token", "coupled")
DEFAULT_K = {"ar": 0, "sd": 1, "ssd": 3}  # the fastest of each on the embedded pair, two cores
DEFAULT_PATIENCE = 1
LARGEST_K = 16
LARGEST_TREE = 960  # scratch slots of keys and values that a tree may take


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`k`: lookahead K. `patience`: tokens that may be drafted while the target waits, after a miss or an interrupted
    tree; a speculation from the cache may be longer, as its tokens cost no time. `fan_out`: F_0..F_K, candidates per
    fork of the speculation tree. `padded`: whether target forwards have the rows that make methods agree bit for bit
    (see `probe`); without, `ar` is a little faster and may differ in near-ties."""

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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"fan_out": list(self.fan_out)}

    @property
    def speculates(self) -> bool:
        return self.method != "ar" and self.k > 0


def make_settings(
    method: str = "ssd",
    *,
    verification: str | None = None,
    k: int | None = None,
    patience: int | None = None,
    fan_out: int | Sequence[int] | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    max_new_tokens: int = 256,
    padded: bool = True,
) -> Settings:
    """Settings with every default filled in. Raises ValueError with one clear line where a value makes no sense.

    `verification` None means "greedy" at temperature 0 and "coupled" above. `patience` None means all K tokens under
    `sd`, where the target always waits, and at most `DEFAULT_PATIENCE` under `ssd`. `fan_out` is one number for all
    K + 1 forks or a list of K + 1 numbers, None for the default of this K.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    if verification is None:
        verification = "greedy" if temperature == 0 else "coupled"
    if verification not in VERIFICATIONS:
        raise ValueError(f"unknown verification {verification!r}; choose one of {', '.join(VERIFICATIONS)}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be 0 or more, not {temperature}")
    if (verification == "greedy") != (temperature == 0):
        raise ValueError(
            f"verification {verification!r} does not fit temperature {temperature:g}: "
            "greedy is for temperature 0, token and coupled for temperatures above 0"
        )
    if not 0 < top_p <= 1:
        raise ValueError(f"top-p must be above 0 and at most 1, not {top_p}")
    if top_k < 0:
        raise ValueError(f"top-k must be 0 (off) or more, not {top_k}")
    if max_new_tokens < 1:
        raise ValueError(f"max-new-tokens must be 1 or more, not {max_new_tokens}")
    k = DEFAULT_K[method] if k is None or method == "ar" else k
    if method != "ssd":  # they belong to the tree, which only ssd has
        patience = fan_out = None
    if not 0 <= k <= LARGEST_K:
        raise ValueError(f"K must be between 0 and {LARGEST_K}, not {k}")
    if patience is None:
        patience = k if method == "sd" else min(k, DEFAULT_PATIENCE)
    if not min(k, 1) <= patience <= k:
        raise ValueError(f"patience must be between 1 and K = {k}, not {patience}")
    return Settings(
        method=method,
        verification=verification,
        k=k,
        patience=patience,
        fan_out=_fan_out(fan_out, k),
        temperature=float(temperature),
        top_k=int(top_k),
        top_p=float(top_p),
        seed=int(seed),
        max_new_tokens=int(max_new_tokens),
        padded=padded,
    )


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

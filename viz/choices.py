"""What the visitor can choose for a run: the form's fields, their place in the page's address, the engine's keywords.

The form holds what people type (blank for "the engine's default"); `keywords` turns it into what `generate` takes. An
address is somebody else's text: `from_address` keeps what makes sense and says what does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from saguaro_core import settings as core

LABELS = {"ar": "AR", "sd": "SD", "hsd": "HSD", "ssd": "SSD", "ssd+hsd": "SSD+HSD"}
METHODS = tuple(name for name in LABELS if name in core.METHODS)
AUTO = "auto"
VERIFICATIONS = (AUTO, *core.VERIFICATIONS)
LONGEST = 1024  # new tokens that a visitor can ask for
HOTTEST = 1.5
DEFAULTS: dict[str, Any] = {
    "method": "ssd", "verification": AUTO, "k": "", "fan_out": "", "temperature": 0.0, "top_k": 0, "top_p": 1.0,
    "seed": 0, "max_new_tokens": 256, "compare": True,
}  # fmt: skip
NAMES = tuple(DEFAULTS)
LONGEST_PROMPT = 4000  # characters of a prompt in an address


def keywords(**form: Any) -> dict[str, Any]:
    """The engine's keywords for a form. Raises ValueError with a sentence for a value that makes no sense."""
    method = str(form["method"]).lower()
    if method not in METHODS:
        raise ValueError(f"Unknown method. Choose one of {', '.join(METHODS)}.")
    verification = str(form["verification"] or AUTO).lower()
    if verification not in VERIFICATIONS:
        raise ValueError(f"Unknown verification. Choose one of {', '.join(VERIFICATIONS)}.")
    made = {
        "verification": None if verification == AUTO else verification,
        "k": lookahead(form["k"]),
        "fan_out": numbers(form["fan_out"]),
        "temperature": float(form["temperature"] or 0.0),
        "top_k": int(form["top_k"] or 0),
        "top_p": float(form["top_p"]),
        "seed": int(form["seed"] or 0),
        "max_new_tokens": int(form["max_new_tokens"] or DEFAULTS["max_new_tokens"]),
    }
    core.make_settings(method, **made)
    return {"method": method, **made}


def lookahead(text: Any) -> int | str | None:
    """K as a whole number, "auto" for what the controller chooses as it goes, blank as None."""
    word = str("" if text is None else text).strip().lower()
    if word in ("", AUTO):
        return word or None
    if not _whole(word):
        raise ValueError("Lookahead K is a whole number, auto, or blank for the engine's default.")
    return int(word)


def numbers(text: Any) -> int | str | list[int] | None:
    """ "10, 6, 4, 4" or "10/6/4/4" as a list, a single number and "auto" as itself, blank as None."""
    line = str(text or "").strip().lower()
    if line == AUTO:
        return AUTO
    words = [word for word in re.split(r"[\s,/;]+", line) if word]
    if not all(map(_whole, words)):
        raise ValueError("Fan-out is auto, one number, or one number per fork such as 10, 6, 4, 4.")
    if len(words) < 2:
        return int(words[0]) if words else None
    return [int(word) for word in words]


def _whole(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10


# ---------------------------------------------------------------------------------------------------------------
# The address


def from_address(query: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """`(form, complaints)`: the form that the address asks for, defaults for what is absent or makes no sense."""
    form, complaints = dict(DEFAULTS), []
    for name in NAMES:
        if name in query:
            try:
                form[name] = _READ[name](query[name].strip())
            except ValueError:
                complaints.append(name)
    try:
        keywords(**{name: form[name] for name in NAMES if name != "compare"})
    except ValueError as error:
        kept = {name: form[name] for name in ("method", "seed", "max_new_tokens", "compare")}
        return DEFAULTS | kept, [*complaints, str(error)]
    return form, complaints


def complaint(complaints: list[str]) -> str:
    """A sentence for the visitor; it quotes nothing from the address."""
    if not complaints:
        return ""
    return f"Settings in the address that make no sense were left out: {'; '.join(complaints)}."


def _one_of(known: tuple[str, ...]):
    def read(word: str) -> str:
        if word.lower() not in known:
            raise ValueError
        return word.lower()

    return read


def _between(kind: type, low: float, high: float):
    def read(word: str) -> Any:
        if not word.isascii():
            raise ValueError
        value = kind(word)
        if not low <= value <= high:  # also refuses nan
            raise ValueError
        return value

    return read


def _typed(check):
    def read(word: str) -> str:
        check(word)
        return word

    return read


_READ = {
    "method": _one_of(METHODS),
    "verification": _one_of(VERIFICATIONS),
    "k": _typed(lookahead),
    "fan_out": _typed(numbers),
    "temperature": _between(float, 0, HOTTEST),
    "top_k": _between(int, 0, 100_000),
    "top_p": _between(float, 0.01, 1),
    "seed": _between(int, 0, 2**31),
    "max_new_tokens": _between(int, 1, LONGEST),
    "compare": lambda word: _one_of(("0", "1", "true", "false"))(word) in ("1", "true"),
}

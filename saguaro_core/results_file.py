"""Somebody's `results.json`, every value checked before anything is drawn from it. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .results import COLUMNS, aggregate

MOST_BYTES = 16 * 2**20
MOST_NUMBER = 2**53  # what JavaScript holds exactly
LONGEST = 300  # characters of a name or a sentence


def loads(text: str) -> dict[str, Any]:
    """The results that somebody's `results.json` holds, every value checked. Raises ValueError with a sentence."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"The file is larger than {MOST_BYTES // 2**20} MB.")
    try:
        data = json.loads(text, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(word)))
    except (ValueError, RecursionError):
        raise ValueError("The file is not JSON.") from None
    try:
        return _results(data)
    except (_Wrong, RecursionError) as wrong:
        raise ValueError(f"The file does not hold the results of a benchmark: {wrong}.") from None


class _Wrong(Exception):
    """What does not fit, without a word from the file."""


def _results(data: Any) -> dict[str, Any]:
    groups = [_checked_group(item) for item in _list(_dict(data, "the whole").get("groups"), "groups", 64)]
    runs = [_fields(item, _RUN, "runs") for item in _list(data.get("runs"), "runs", 100_000)]
    first = groups[0] if groups else _checked_group({"temperature": 0.0, "batch_size": 1})
    return {
        **{key: first[key] for key in ("methods", "ratios", "ratios_median", "identical")},
        "exact": data.get("exact") if isinstance(data.get("exact"), bool) else None,
        "engine": _tree(data.get("engine", {}), "engine"),
        "settings": _tree(data.get("settings", {}), "settings"),
        "plan": _tree(data.get("plan", {}), "plan"),
        "engines": _tree(data.get("engines", {}), "engines"),
        "complete": bool(data.get("complete", True)),
        "stopped": _word(data.get("stopped", ""), "stopped"),
        **({"hardware": _tree(data["hardware"], "hardware")} if "hardware" in data else {}),
        **({"measured_at": _word(data["measured_at"], "measured_at")} if "measured_at" in data else {}),
        "groups": groups,
        "runs": runs,
    }


def _checked_group(data: Any) -> dict[str, Any]:
    data = _dict(data, "groups")
    by_task = _dict(data.get("by_task", {}), "by_task", 64)
    return {
        "temperature": _number(data.get("temperature"), "temperature"),
        "batch_size": _whole(data.get("batch_size"), "batch_size"),
        **_checked_comparison(data),
        "identical": _tree(data.get("identical", {}), "identical"),
        "by_task": {
            _word(task, "a task"): _checked_comparison(_dict(item, "by_task")) for task, item in by_task.items()
        },
        "predictions": [_prediction(item) for item in _list(data.get("predictions", []), "predictions", 64)],
    }


def _checked_comparison(data: dict[str, Any]) -> dict[str, Any]:
    methods = _dict(data.get("methods", {}), "methods", 64)
    return {
        "methods": {_word(method, "a method"): _method(item) for method, item in methods.items()},
        **{
            key: {
                _word(pair, "a ratio"): _number(value, "a ratio")
                for pair, value in _dict(data.get(key, {}), key).items()
            }
            for key in ("ratios", "ratios_median")
        },
    }


def _method(data: Any) -> dict[str, Any]:
    data = _dict(data, "a method")
    by_category = _dict(data.get("decode_tok_s_by_category", {}), "a method", 64)
    numbers = [key for key in aggregate([]) | {"failed": 0} if key != "decode_tok_s_by_category"]
    return {key: _maybe(data.get(key), key) for key in numbers} | {
        "decode_tok_s_by_category": {_word(k, "a category"): _number(v, "a speed") for k, v in by_category.items()},
    }


def _prediction(data: Any) -> dict[str, Any]:
    data = _dict(data, "a prediction")
    points = [
        [_number(x, "a point") for x in _list(p, "a point", 2)] for p in _list(data.get("points"), "points", 20_000)
    ]
    if not points or any(len(point) != 2 for point in points):
        raise _Wrong("a prediction has no points")
    words = {key: _word(data.get(key, ""), key, 2000) for key in ("name", "ratio", "source", "note")}
    return words | {
        "bound": bool(data.get("bound")),
        "points": points,
        "error": _number(data.get("error"), "error"),
        "violated": _whole(data.get("violated"), "violated"),
    }


_NUMBERS = ("temperature", *COLUMNS[11:])
_WHOLES = ("turn", "repetition", "batch_size")
_RUN = {key: "number" if key in _NUMBERS else "whole" if key in _WHOLES else "word" for key in COLUMNS}


def _fields(data: Any, kinds: Mapping[str, str], where: str) -> dict[str, Any]:
    data = _dict(data, where)
    check = {"number": _maybe, "whole": _whole, "word": _word}
    return {key: check[kind](data.get(key), key) for key, kind in kinds.items()}


def _dict(data: Any, where: str, most: int = 1000) -> dict[str, Any]:
    if not isinstance(data, dict) or len(data) > most:
        raise _Wrong(f"{where} should be an object of at most {most} entries")
    return data


def _list(data: Any, where: str, most: int) -> list[Any]:
    if not isinstance(data, list) or len(data) > most:
        raise _Wrong(f"{where} should be a list of at most {most} entries")
    return data


def _word(value: Any, where: str, most: int = LONGEST) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise _Wrong(f"{where} should be a text of at most {most} characters")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MOST_NUMBER:
        raise _Wrong(f"{where} should be a number")
    return value


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_NUMBER:
        raise _Wrong(f"{where} should be a whole number")
    return value


def _maybe(value: Any, where: str) -> float | None:
    return None if value is None else _number(value, where)


def _tree(value: Any, where: str, depth: int = 4) -> Any:
    """Any JSON of a bounded size."""
    if isinstance(value, dict) and depth:
        return {_word(k, where): _tree(v, where, depth - 1) for k, v in _dict(value, where).items()}
    if isinstance(value, list) and depth:
        return [_tree(item, where, depth - 1) for item in _list(value, where, 100_000)]
    if value is None or isinstance(value, bool):
        return value
    return _word(value, where, 2000) if isinstance(value, str) else _number(value, where)

"""Several runs of one prompt as what the race component plays: plain JSON, computed from the events alone.

Each run's clock starts at its first token, so that reading the prompt is not in it. With `t_m(n)` the time at which
method m had n tokens on that clock, its speedup after n tokens is `t_AR(n) / t_m(n)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from saguaro_core import events as ev
from saguaro_core.summary import summarise

from . import choices, recording
from .deltas import rows
from .recording import Recording

LABELS = choices.LABELS | {"hf-ar": "HF generate", "hf-assisted": "HF assisted"}
LETTERS = {ev.ACCEPTED: "a", ev.CORRECTION: "c", ev.BONUS: "b", ev.PLAIN: "p"}
MOST_RUNS, MOST_TOKENS = 8, 20_000
NUMBERS = ("decode_tok_s", "ttft_s", "decode_s", "tokens", "tokens_per_round", "acceptance", "hit_rate")


def label(method: str) -> str:
    return LABELS.get(method, method.upper())


def compare(runs: Sequence[Recording], measured: bool = False, notices: Sequence[str] = ()) -> dict[str, Any]:
    """The race of these runs. `measured`: whether they were made on this page just now. Raises ValueError with a
    sentence where there is nothing to play or too much."""
    runs = sorted((run for run in runs if recording.ids(run)), key=lambda run: place(recording.method(run)))
    if not runs:
        raise ValueError("There is no run with a token in it.")
    if len(runs) > MOST_RUNS:
        raise ValueError(f"A race takes at most {MOST_RUNS} runs, not {len(runs)}.")
    if any(len(recording.ids(run)) > MOST_TOKENS for run in runs):
        raise ValueError(f"A race takes runs of at most {MOST_TOKENS} tokens.")
    lanes = [_runner(run) for run in runs]
    for lane, name in zip(lanes, _names([recording.method(run) for run in runs]), strict=True):
        lane["label"] = name
    agreed = shared([recording.ids(run) for run in runs])
    whole = agreed == max(len(recording.ids(run)) for run in runs)
    return {
        "measured": measured,
        "prompt": recording.started(runs[0]).prompt,
        "about": _about(runs),
        "agreed": agreed,
        "identical": whole,
        "notices": [*notices, *_notices(runs, agreed, whole)],
        "bases": {name: _find(runs, name) for name in ("ar", "sd")},
        "runs": lanes,
    }


def _runner(run: Recording) -> dict[str, Any]:
    """`at`: microseconds from the first token to each token. `state`: one letter a token."""
    tokens = [event for event in run if isinstance(event, ev.Tokens) and event.ids]
    first = round(tokens[0].t1 * 1e6)
    at = [max(0, round(event.t1 * 1e6) - first) for event in tokens for _ in event.ids]
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1])
    numbers = summarise(run)
    finished = next((event for event in run if isinstance(event, ev.RunFinished)), None)
    return {
        "method": recording.method(run),
        "first": first,
        "at": at,
        "state": "".join(LETTERS.get(state, "p") for event in tokens for state in event.state),
        "pieces": recording.pieces(run),
        "rows": [row for row in rows(run) if row[0] in ("v", "pf", "ds", "g", "ts", "w", "lk", "tk")],
        "numbers": {name: numbers[name] for name in NUMBERS},
        "reason": finished.reason if finished else "",
    }


def shared(texts: Sequence[Sequence[int]]) -> int:
    """How many tokens from the start are the same in all texts."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False)))


def place(method: str) -> tuple[int, str]:
    """Sorts methods in the order of their labels, unknown ones last."""
    known = list(LABELS)
    return (known.index(method) if method in known else len(known), method)


def _names(methods: Sequence[str]) -> list[str]:
    """A label each; where a method ran more than once, with a number."""
    return [
        label(method) + (f" {methods[: i + 1].count(method)}" if methods.count(method) > 1 else "")
        for i, method in enumerate(methods)
    ]


def _find(runs: Sequence[Recording], name: str) -> int | None:
    return next((i for i, run in enumerate(runs) if recording.method(run) == name), None)


def _about(runs: Sequence[Recording]) -> str:
    """Models, machine and settings, as the first run reports them."""
    first = recording.started(runs[0])
    models, machine, settings = first.models, first.hardware, first.settings
    parts = [
        ", ".join(f"{role} {models[role]}" for role in ("target", "draft") if models.get(role)),
        ", ".join(
            [*(str(machine[name]) for name in ("cpu", "gpu") if machine.get(name))]
            + [f"{machine['cores']} cores" for _ in (0,) if machine.get("cores")]
        ),
        str(machine.get("dtype") or ""),
        f"temperature {settings.get('temperature')}" if settings.get("temperature") is not None else "",
        str(machine.get("date") or ""),
    ]
    return " \N{MIDDLE DOT} ".join(part[:160] for part in parts if part)


def _notices(runs: Sequence[Recording], agreed: int, whole: bool) -> list[str]:
    said = []
    if len({recording.started(run).prompt for run in runs}) > 1:
        said.append("These runs answer different prompts; their speeds can hardly be compared.")
    elif not whole and any(len(recording.ids(run)) > agreed for run in runs):
        said.append(_difference(runs, agreed))
    return said


def _difference(runs: Sequence[Recording], agreed: int) -> str:
    """Why the texts are not one text, as far as the runs say."""
    shortest = min(len(recording.ids(run)) for run in runs)
    if agreed == shortest:
        return f"The texts agree as far as the shortest goes, {agreed} tokens; the others go on."
    start = f"The texts agree for {agreed} tokens and then differ, so they are shown side by side. "
    settings = [recording.started(run).settings for run in runs]
    if any(one.get("verification") == "token" for one in settings):
        return start + "Token verification keeps the distribution of the text, not the text itself."
    if any(recording.method(run).startswith("hf-") for run in runs):
        return start + "transformers computes in another order: where two tokens are nearly tied, rounding decides."
    if any(recording.started(run).exact is False for run in runs):
        return (
            start
            + "This pair's results depend on the number of rows: where two tokens are nearly tied, rounding decides."
        )
    return start + "Speeds are compared by the number of tokens."


# ---------------------------------------------------------------------------------------------------------------
# Races among recorded traces


def races(traces: dict[str, Path]) -> dict[str, list[Path]]:
    """Traces that answer one prompt with the same settings by different methods, by a name for the visitor. Files
    that are no traces are left out."""
    groups: dict[tuple, dict[str, Path]] = {}
    for path in traces.values():
        try:
            (run,) = recording.read(path)
        except ValueError:
            continue
        start = recording.started(run)
        same = tuple(
            str(start.settings.get(name)) for name in ("temperature", "top_k", "top_p", "seed", "max_new_tokens")
        )
        groups.setdefault((start.prompt, str(start.models), *same), {}).setdefault(recording.method(run), path)
    found: dict[str, list[Path]] = {}
    for key, methods in groups.items():
        if len(methods) > 1:
            ordered = sorted(methods, key=place)
            found[f"{key[0][:60]} ({', '.join(map(label, ordered))})"] = [methods[name] for name in ordered]
    return found

"""Prompt files: JSON lines `{"question_id", "category", "turns": [...]}` (as in Spec-Bench) or `{"prompt": ...}`.

Four sets come along, in `assets/prompts`: TASKS.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "assets" / "prompts"
TASKS = ("math", "code", "chat", "summarization")


@dataclass(frozen=True)
class Prompt:
    name: str
    category: str
    turns: tuple[str, ...]


def load_tasks(names: Sequence[str], limit: int | None = None) -> list[Prompt]:
    """The prompts of these tasks, "all" for every one; with `limit`, that many of each. Raises ValueError for an
    unknown task."""
    for name in names:
        if name not in (*TASKS, "all"):
            raise ValueError(f"unknown task {name!r}; choose from {', '.join(TASKS)}, or all")
    chosen = [task for task in TASKS if task in names or "all" in names]
    return [prompt for task in chosen for prompt in load_prompts(FOLDER / f"{task}.jsonl", limit)]


def load_prompts(path: str | Path, limit: int | None = None) -> list[Prompt]:
    """The prompts of a file; with `limit`, that many at even spacing. Raises ValueError naming a bad line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the prompt file {path}: {error}") from None
    prompts = [_prompt(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ValueError(f"the prompt file {path} holds no prompts")
    if limit is None or limit >= len(prompts):
        return prompts
    if limit < 1:
        raise ValueError(f"--limit must be 1 or more, not {limit}")
    return [prompts[i * len(prompts) // limit] for i in range(limit)]


def _prompt(line: str, number: int, path: str | Path) -> Prompt:
    try:
        data = json.loads(line)
        turns = data["turns"] if "turns" in data else [data["prompt"]]
        if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ValueError(f'{path}, line {number}: expected {{"turns": [text, ...]}} or {{"prompt": text}}') from None
    return Prompt(str(data.get("question_id", number)), str(data.get("category", "")), tuple(turns))

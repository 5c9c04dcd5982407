"""The top of the page: name, what SSD is in a sentence, and which models answer.

Value: `{"models": str, "caution": str, "state": "" | "loading" | "failed"}`.
"""

from __future__ import annotations

import re
from typing import Any

from .base import Part

_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([MB])(?![a-zA-Z0-9])")


class Header(Part):
    name = "header"


def loading(seconds: float) -> dict[str, str]:
    """The header's value while the models are loaded."""
    rest = "Recorded runs and the lessons can be used meanwhile."
    return {"state": "loading", "caution": f"Loading the models, {seconds:.0f} s.", "models": rest}


def describe(info: dict[str, Any]) -> dict[str, str]:
    """The header's value for an engine's `info`."""
    target, draft = str(info.get("target", "?")), str(info.get("draft", "?"))
    where = f"Target: {target} on {info.get('target_device', '?')}. Draft: {draft} on {info.get('draft_device', '?')}"
    if info.get("dtype"):
        where += f" ({info['dtype']})"
    size = _SIZE.search(target)
    if not size:
        return {"models": where, "caution": ""}
    article = "an" if size[1].split(".")[0] in ("8", "11", "18") else "a"
    caution = f"Answers come from {article} {size[1]}{size[2]}-parameter model"
    small = size[2] == "M" or float(size[1]) < 3
    advice = ": watch the speed, not the words." if small else "."
    return {"models": where, "caution": caution + advice}

"""Recorded runs of one prompt, played side by side at the speed at which they were made.

Value: `{"race": text}`, the JSON of `comparison.compare` as one text (Gradio's front end walks every element of a
nested value), "" for none; `"autoplay"`: whether to start at once, unless the visitor asked for less motion.
"""

from __future__ import annotations

import json
from typing import Any

from .base import Part

EMPTY = {"race": "", "autoplay": False}


class Race(Part):
    name = "race"
    shared = ("lanes",)


def shown(race: dict[str, Any], autoplay: bool = False) -> dict[str, Any]:
    return {"race": json.dumps(race, separators=(",", ":")), "autoplay": autoplay}

"""How far the measuring of a race has come: one line per method.

Value: `[{"label": str, "state": "waiting" | "running" | "done" | "failed" | "left out", "tokens": int, "of": int,
"said": str}]`, [] for nothing to show.
"""

from __future__ import annotations

from .base import Part


class Racing(Part):
    name = "racing"

"""The last hit and the last miss of a timeline, large and still, and its last two seconds in slow motion.

Value: `{"source": str}`, the `elem_id` of the timeline. Everything shown comes from the rows that the timeline has.
"""

from __future__ import annotations

from typing import Any

from .base import Part


class Magnifier(Part):
    name = "magnifier"
    shared = ("lanes",)

    def __init__(self, source: str = "timeline", **options: Any):
        super().__init__({"source": source}, **options)

"""One round of a timeline, opened up: what was looked up, what had been prepared, what was checked, the numbers.

Value: `{"source": str}`, the `elem_id` of the timeline. `describe` tells a round by feed token and number
(`deltas.Feeds.round`): token text travels only for the round that somebody opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import Part


class Inspector(Part):
    name = "inspector"
    shared = ("lanes",)

    def __init__(self, describe: Callable[[Any, Any], dict] | None = None, source: str = "timeline", **options: Any):
        def story(request: Any) -> dict:
            """What a browser asks for: `{"feed": token, "round": number}`."""
            return describe(request.get("feed"), request.get("round")) if describe and isinstance(request, dict) else {}

        super().__init__({"source": source}, server_functions=[story], **options)

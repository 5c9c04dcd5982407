"""The two lanes on one wall clock, drawn on a canvas in the browser from rows of `deltas`.

Value: `Feed.value()`. `since` answers a browser that missed chunks. A magnifier and an inspector that name this
timeline's `elem_id` show its rounds; the three meet in the browser (see lanes.js).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..deltas import EMPTY
from .base import Part


class Timeline(Part):
    name = "timeline"
    shared = ("lanes",)

    def __init__(self, since: Callable[[Any, Any], dict] | None = None, **options: Any):
        def missed(request: Any) -> dict:
            """What a browser asks for: `{"feed": token, "after": number}`."""
            return since(request.get("feed"), request.get("after")) if since and isinstance(request, dict) else {}

        super().__init__(EMPTY, server_functions=[missed], **options)

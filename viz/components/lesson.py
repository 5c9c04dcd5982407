"""The eight lessons: one question a screen, played from recorded runs, in two languages; the same component fills the
window in present mode (`?view=present&lesson=N&trace=NAME&lang=zh`).

It has no value. Once it is visible it asks the server for `Library.lesson(name)` and the strings, and does the rest in
the browser: scenes.js draws a step, curves.js its charts, chances.js does the sums of step 6.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .base import Part


class Lesson(Part):
    name = "lesson"
    shared = ("lanes", "chances", "curves", "scenes")

    def __init__(self, fetch: Callable[[Any], dict[str, Any]], **options: Any):
        def lesson(request: Any) -> str:
            """What a browser asks for: `{"trace": name or ""}`. JSON as one text: Gradio would proxy every element."""
            name = request.get("trace") if isinstance(request, dict) else None
            return json.dumps(fetch(name), ensure_ascii=False)

        super().__init__({}, server_functions=[lesson], **options)

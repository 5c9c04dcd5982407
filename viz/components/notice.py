"""One line under the input for what the reader should know: an empty prompt, an error, a notice of the engine.

Value: `{"text": str, "level": "" | "info" | "error"}`. The line keeps its place when it is empty.
"""

from __future__ import annotations

from .base import Part


class Notice(Part):
    name = "notice"


def note(text: str = "", level: str = "info") -> dict[str, str]:
    return {"text": text, "level": level if text else ""}

"""Four prompts to try, with a line why each is fast or slow.

Value: `[{"title": str, "prompt": str, "why": str}, ...]`. Event `chosen`, `{"n": index}`.
"""

from __future__ import annotations

from .base import Part


class Examples(Part):
    name = "examples"

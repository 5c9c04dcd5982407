"""The strip of numbers under the chat. Fixed places and widths: nothing moves while the numbers run.

Value: `livestats.strip(...)`; a cell with no text is not defined (yet).
"""

from __future__ import annotations

from .base import Part


class Stats(Part):
    name = "stats"

"""The Learn tab, which is also present mode: one component, fed from the page's recorded runs."""

from __future__ import annotations

from . import lessons
from .components.lesson import Lesson
from .context import Context


def build(context: Context) -> None:
    """Lay the tab out in the current Blocks."""
    library = lessons.Library(context.traces)
    Lesson(lambda name: library.lesson(name) | {"strings": lessons.strings()}, elem_id="lesson")

"""The page's own parts. Each is a gr.HTML subclass whose html, css and js lie beside it.

The templates are static on purpose: gr.HTML evaluates a template as a JavaScript literal, so data in it would be code.
Data goes through `value`, and the js places it with `textContent` or on a canvas.
"""

from .answer import Answer
from .examples import Examples
from .header import Header
from .inspector import Inspector
from .magnifier import Magnifier
from .notice import Notice
from .stats import Stats
from .timeline import Timeline

__all__ = ["Answer", "Examples", "Header", "Inspector", "Magnifier", "Notice", "Stats", "Timeline"]

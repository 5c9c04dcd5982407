"""Lines of text and tables of words.

Value: `{"lines": [str], "tables": [{"title": str, "head": [str], "rows": [[str]], "note": str, "words": bool}]}`;
`words`: the columns are text, not numbers.
"""

from __future__ import annotations

from .base import Part


class Tables(Part):
    name = "table"

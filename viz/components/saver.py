"""Hands the browser a file to save, made in the browser from the text: nothing is left on the server.

Value: `{"number": int, "name": str, "kind": media type, "text": str}`; a new `number` saves.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from .base import Part

_numbers = count(1)


class Saver(Part):
    name = "saver"


def saved(name: str, kind: str, text: str) -> dict[str, Any]:
    return {"number": next(_numbers), "name": name, "kind": kind, "text": text}

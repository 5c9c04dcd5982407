"""The last answer token by token, coloured by origin, and how far other methods had come at the same moment.

Value, see `handlers`: `log` and `rows` (which token log, how many rows it has), `count` (tokens), `asked` (the prompt), `done`, `limit`
(most new tokens), `now` (ms of the newest token), `names` (methods of the tracks, the answer's own first), `labels`,
`notes` (words for a track without times), `tracks` (JSON text: method -> ms of each shared token). Times are counted
from each run's first token. Who chooses a token opens its round in the inspector of `timeline`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import Part

NO_ANSWER: dict[str, Any] = {"log": "", "rows": 0, "count": 0, "done": False}


class Answer(Part):
    name = "answer"
    shared = ("lanes",)

    def __init__(self, since: Callable[[Any, Any], str], **options: Any):
        def tokens(request: Any) -> str:
            """Rows after number `after` of a token log, as JSON: `{"log": token, "after": number}`."""
            return since(request.get("log"), request.get("after")) if isinstance(request, dict) else ""

        super().__init__(NO_ANSWER, server_functions=[tokens], **options)

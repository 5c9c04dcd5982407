"""How the tabs that measure are wired: events without a progress overlay, and their three buttons."""

from __future__ import annotations

from typing import Any

import gradio as gr

QUIET = {"show_progress": "hidden", "api_visibility": "private"}


def buttons(state: str) -> dict[str, Any]:
    """`leave` gives up a place in the queue, `stop` ends the measurement; they look alike."""
    return {
        "start": gr.update(visible=state == "idle"),
        "leave": gr.update(visible=state == "waiting"),
        "stop": gr.update(visible=state == "running"),
    }

"""A component out of three static files, `NAME.html`, `NAME.css` and `NAME.js`, and a JSON value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

FOLDER = Path(__file__).parent


class Part(gr.HTML):
    """`name`: which files. `shared`: further js files, put before the component's own. The value never reaches the
    template."""

    name = ""
    shared: tuple[str, ...] = ()

    def __init__(self, value: Any = None, *, server_functions: list[Callable] | None = None, **options: Any):
        super().__init__(
            value,
            html_template=static(self.name, "html"),
            css_template=static(self.name, "css"),
            js_on_load="\n".join(static(name, "js") for name in (*self.shared, self.name)),
            apply_default_css=False,
            server_functions=server_functions,
            **options,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}


def static(name: str, kind: str) -> str:
    """One of the component's files. Raises ValueError for text that the template evaluator would run or choke on."""
    text = (FOLDER / f"{name}.{kind}").read_text(encoding="utf-8")
    if kind != "js" and any(sign in text for sign in ("${", "{{", "`", "\\")):
        raise ValueError(f"{name}.{kind} is not static")
    return text

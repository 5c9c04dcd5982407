"""The whole page for an engine, and how it is served."""

from __future__ import annotations

from typing import Any

import gradio as gr

from . import chat, theme
from .components import Header
from .components.header import describe
from .handlers import Desk

QUEUE_SIZE = 32


def build(engine: Any) -> gr.Blocks:
    """The page on an engine (anything with `generate` and `info` as `SaguaroSSD` has them)."""
    desk = Desk(engine)
    with gr.Blocks(title="Saguaro", analytics_enabled=False, fill_width=True) as page:
        Header(describe(engine.info), elem_id="header")
        chat.build(desk)
        page.unload(desk.close_session)
    page.queue(max_size=QUEUE_SIZE)
    return page


def launch(page: gr.Blocks, host: str = "127.0.0.1", port: int | None = None, **options: Any) -> str:
    """Serve the page in the background; returns its address. Nothing is shared, counted or kept."""
    _, url, _ = page.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        share=False,
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        quiet=True,
        show_error=False,
        footer_links=[],
        theme=theme.theme(),
        head=theme.head(),
        **options,
    )
    return url

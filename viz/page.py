"""The whole page: header, tabs, and how it is served. One page for live and for recorded runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from . import chat, lab, learn, race, theme
from .components import Header
from .components.header import describe, loading
from .context import FAILED, LOADING, READY, Context
from .recording import MOST_BYTES

TABS = {"chat": chat, "race": race, "learn": learn, "lab": lab}
QUEUE_SIZE = 32
LOADING_S = 0.5  # how often a page that waits for the models looks again


def build(context: Context) -> gr.Blocks:
    """The page on `context`, whose engine may be there, still loading, or absent."""
    with gr.Blocks(title="Saguaro", analytics_enabled=False, fill_width=True) as page:
        header = Header(_heading(context), elem_id="header")
        with gr.Tabs(selected="chat", elem_id="tabs") as tabs:
            for name, part in TABS.items():
                with gr.Tab(name.title(), id=name, elem_id=f"tab-{name}"):
                    part.build(context)

        async def wait_for_models() -> AsyncIterator[dict[str, Any]]:
            while context.slot.state == LOADING:
                yield _heading(context)
                await asyncio.sleep(LOADING_S)
            yield _heading(context)

        page.load(
            wait_for_models, None, header, concurrency_limit=None, show_progress="hidden", api_visibility="private"
        )
        page.load(_chosen, None, tabs, queue=False, show_progress="hidden", api_visibility="private")
    page.queue(max_size=QUEUE_SIZE)
    return page


def _chosen(request: gr.Request) -> Any:
    """The tab that the address names (`?tab=race`)."""
    name = request.query_params.get("tab", "")
    if request.query_params.get("view") == "present":
        name = "learn"
    return gr.Tabs(selected=name) if name in TABS else gr.skip()


def _heading(context: Context) -> dict[str, Any]:
    slot = context.slot
    if slot.state == READY:
        return describe(slot.engine.info)
    if slot.state == LOADING:
        return loading(slot.seconds)
    if slot.state == FAILED:
        return {"state": FAILED, "caution": f"The models could not be loaded: {slot.error}", "models": ""}
    return {"caution": "Recorded runs.", "models": "Played back from trace files; nothing is computed now."}


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
        max_file_size=MOST_BYTES,  # of an uploaded trace
        theme=theme.theme(),
        head=theme.head(),
        **options,
    )
    return url

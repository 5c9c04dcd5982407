"""The page on recorded traces: no engine, no model. It draws what the file says and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from saguaro_core import events as ev
from saguaro_core import trace

from . import livestats, safetext
from .components import Header, Notice, Stats, Timeline
from .components.notice import note
from .deltas import EMPTY, Feeds


def find(path: str | Path) -> dict[str, Path]:
    """The traces at `path`, a file or a folder of *.jsonl, by name. Raises ValueError where there is none."""
    path = Path(path)
    if path.is_file():
        return {path.name: path}
    found = {file.name: file for file in sorted(path.glob("*.jsonl"))} if path.is_dir() else {}
    if not found:
        raise ValueError(f"no trace (*.jsonl) at {path}")
    return found


def build(traces: dict[str, Path]) -> gr.Blocks:
    feeds = Feeds()

    def show(name: str) -> tuple:
        return open_trace(traces.get(name), feeds)

    with gr.Blocks(title="Saguaro, recorded runs", analytics_enabled=False, fill_width=True) as page:
        Header(
            {"caution": "Recorded runs", "models": "played back from trace files: nothing is computed now."},
            elem_id="header",
        )
        chosen = gr.Dropdown(list(traces), value=next(iter(traces)), label="Recorded run", elem_id="trace")
        answer = gr.Chatbot(
            show_label=False, elem_id="chat", height=280, allow_tags=False, buttons=["copy"], feedback_options=None
        )
        notice = Notice(note(), elem_id="notice")
        stats = Stats(livestats.BLANK, elem_id="stats")
        timeline = Timeline(feeds.since, elem_id="timeline")
        outputs: list[Any] = [answer, stats, timeline, notice]
        for event in (page.load, chosen.change):
            event(show, [chosen], outputs, show_progress="hidden", queue=False, api_visibility="private")
    return page


def open_trace(path: Path | None, feeds: Feeds) -> tuple:
    """What the page shows for a trace: answer, numbers, timeline, notice."""
    try:
        if path is None:
            raise ValueError("there is no such trace")
        events = trace.load(path)
    except (OSError, ValueError) as error:
        return [], livestats.BLANK, EMPTY, note(str(error), "error")
    feed = feeds.open()
    feed.push(events)
    tally = livestats.Tally().add(events)
    text = "".join(event.text for event in events if isinstance(event, ev.Tokens))
    said = [event.text for event in events if isinstance(event, ev.Notice)]
    asked = next((event.prompt for event in events if isinstance(event, ev.RunStarted)), "")
    messages = [{"role": "user", "content": safetext.literal(asked)}] if asked else []
    messages.append({"role": "assistant", "content": safetext.markdown(text)})
    return messages, livestats.strip(tally), feed.value() | {"done": True}, note(" ".join(said))

"""The chat area: answer, input, numbers and the timeline. Layout and wiring only; what happens is in handlers.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from .components import Notice, Stats, Timeline
from .components.notice import note
from .handlers import OUTPUTS, Desk
from .livestats import BLANK

METHOD_CHOICES = [("AR", "ar"), ("SD", "sd"), ("SSD", "ssd")]
METHOD_INFO = "AR: one token at a time. SD: draft, then verify. SSD: draft while verifying."
LATEX = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]  # single dollars are prices
QUIET = {"show_progress": "hidden", "api_visibility": "private"}


@dataclass
class Area:
    """The components of the area, by the names that the handlers use."""

    parts: dict[str, Any]

    def outputs(self) -> list[Any]:
        return [self.parts[name] for name in OUTPUTS]

    def choices(self) -> list[Any]:
        return [self.parts[name] for name in ("method", "k", "fan_out", "temperature", "seed", "max_new_tokens")]


def build(desk: Desk) -> Area:
    """Lay the area out in the current Blocks and connect it to the desk."""
    parts: dict[str, Any] = {"turns": gr.State([]), "ticket": gr.State("")}
    parts["chatbot"] = gr.Chatbot(
        show_label=False,
        elem_id="chat",
        height=320,
        sanitize_html=True,
        allow_tags=False,
        latex_delimiters=LATEX,
        buttons=["copy", "copy_all"],
        feedback_options=None,
        layout="bubble",
        placeholder="Ask something short. The picture below shows both devices at work on the answer.",
    )
    _composer(parts)
    _settings(parts)
    parts["stats"] = Stats(BLANK, elem_id="stats")
    parts["timeline"] = Timeline(desk.feeds.since, elem_id="timeline")
    area = Area(parts)
    _wire(desk, area)
    return area


def _composer(parts: dict[str, Any]) -> None:
    with gr.Row(elem_id="composer", equal_height=True):
        parts["prompt"] = gr.Textbox(
            placeholder="Write a message",
            label="Message",
            show_label=False,
            container=False,
            lines=1,
            max_lines=8,
            scale=8,
            min_width=180,
            autofocus=True,
            elem_id="prompt",
        )
        parts["send"] = gr.Button("Send", variant="primary", elem_id="send", min_width=96, scale=1)
        parts["leave"] = gr.Button("Stop", variant="stop", elem_id="leave", visible=False, min_width=96, scale=1)
        parts["stop"] = gr.Button("Stop", variant="stop", elem_id="stop", visible=False, min_width=96, scale=1)
    with gr.Row(elem_id="actions"):
        parts["method"] = gr.Radio(
            METHOD_CHOICES,
            value="ssd",
            label="Method",
            show_label=False,
            container=False,
            elem_id="method",
            scale=0,
            min_width=240,
        )
        parts["notice"] = Notice(note(), elem_id="notice", scale=4, min_width=260)
        parts["retry"] = gr.Button("Retry", elem_id="retry", interactive=False, scale=0, min_width=90, size="md")
        parts["clear"] = gr.Button("Clear", elem_id="clear", interactive=False, scale=0, min_width=90, size="md")


def _settings(parts: dict[str, Any]) -> None:
    with gr.Accordion("Settings", open=False, elem_id="settings"), gr.Row():
        parts["k"] = gr.Textbox(  # not a gr.Number: its front end turns a blank into 0
            "",
            label="Lookahead K",
            info="Drafted tokens per round. Blank: default.",
            placeholder="default",
            min_width=180,
            max_lines=1,
            elem_id="k",
        )
        parts["fan_out"] = gr.Textbox(
            "",
            label="Fan-out",
            info="Candidates per fork, as 10, 6, 4, 4. Blank: default.",
            placeholder="default",
            min_width=180,
            max_lines=1,
            elem_id="fan-out",
        )
        parts["temperature"] = gr.Slider(
            0.0, 1.5, 0.0, step=0.05, label="Temperature", info="0 is greedy.", min_width=180
        )
        parts["seed"] = gr.Number(
            0, label="Seed", info="For temperatures above 0.", precision=0, minimum=0, min_width=180
        )
        parts["max_new_tokens"] = gr.Slider(
            16, 1024, 256, step=16, label="Most new tokens", min_width=180, elem_id="limit"
        )


def _wire(desk: Desk, area: Area) -> None:
    parts, outputs = area.parts, area.outputs()
    started = [*outputs, parts["ticket"]]
    # Through the queue, though without a limit: Gradio reports changed states (the ticket) only on queued events.
    gr.on(
        [parts["prompt"].submit, parts["send"].click],
        desk.begin,
        [parts["prompt"], parts["turns"]],
        started,
        concurrency_limit=None,
        **QUIET,
    )
    parts["retry"].click(desk.again, [parts["turns"]], started, concurrency_limit=None, **QUIET)
    # A new ticket, and nothing else, starts the engine. The queue's place is shown on the notice line.
    answering = parts["ticket"].change(
        _with_request(desk),
        [parts["turns"], *area.choices()],
        outputs,
        concurrency_id="engine",
        concurrency_limit=1,
        show_progress="minimal",
        show_progress_on=parts["notice"],
        api_visibility="private",
    )
    parts["stop"].click(desk.stop, None, None, queue=False, **QUIET)
    parts["leave"].click(desk.leave, [parts["turns"]], outputs, queue=False, cancels=[answering], **QUIET)
    parts["clear"].click(desk.clear, None, outputs, queue=False, **QUIET)
    gr.api(desk.chat, api_name="chat", concurrency_id="engine", concurrency_limit=1)


def _with_request(desk: Desk):
    def answer(turns, method, k, fan_out, temperature, seed, max_new_tokens, request: gr.Request):
        yield from desk.answer(turns, method, k, fan_out, temperature, seed, max_new_tokens, request=request)

    return answer

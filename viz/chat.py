"""The chat: question and answer at the left, numbers at the right, the timeline below. Layout and wiring only; what
happens is in handlers.py."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from . import choices, export, livestats, replay
from .components import Answer, Examples, Inspector, Magnifier, Notice, Stats, Timeline
from .components.notice import note
from .context import ABSENT, Context
from .handlers import MEASURED, OUTPUTS, SETTLED, STREAMED, Desk, frame
from .wiring import QUIET

METHOD_CHOICES = [(choices.LABELS[name], name) for name in choices.METHODS]
LATEX = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]  # single dollars are prices
EXAMPLES = [
    {
        "title": "Code",
        "prompt": "Write a Python function that returns the first n prime numbers.",
        "why": "Code repeats itself: the draft often guesses right.",
    },
    {
        "title": "A list",
        "prompt": "List the planets of the solar system with one sentence about each.",
        "why": "Every line has the same form, which helps the draft.",
    },
    {
        "title": "A story",
        "prompt": "Tell a short story about a cactus that wanted to see the sea.",
        "why": "Many words would do, so more guesses are refused.",
    },
    {
        "title": "Arithmetic",
        "prompt": "Work out 487 times 362 step by step.",
        "why": "A small draft cannot calculate: digits are hard to guess.",
    },
]


def build(context: Context) -> None:
    """Lay the chat out in the current Blocks and connect it to a desk."""
    desk = Desk(context)
    live = context.slot.state != ABSENT
    parts: dict[str, Any] = {"turns": gr.State([]), "ticket": gr.State(""), "held": gr.State(b"")}
    parts["outcome"] = gr.State({})
    with gr.Row(elem_id="chat-top"):
        with gr.Column(scale=7, min_width=340, elem_id="talk"):
            _conversation(desk, parts)
            _composer(parts, live)
            parts["notice"] = Notice(note(), elem_id="notice")
        with gr.Column(scale=5, min_width=320, elem_id="facts"):
            parts["stats"] = Stats(livestats.BLANK, elem_id="stats")
            parts["compare"] = gr.Checkbox(
                choices.DEFAULTS["compare"],
                label="Measure AR and SD after each answer (runs the prompt twice more)",
                elem_id="compare",
                container=False,
                visible=live,
            )
            parts["examples"] = Examples(EXAMPLES, elem_id="examples", visible=live)
            _settings(context, parts, live)
    parts["timeline"] = Timeline(context.feeds.since, elem_id="timeline")
    Magnifier("timeline", elem_id="magnifier")
    Inspector(context.feeds.round, "timeline", elem_id="inspector")
    export.build(desk.play, parts["held"], [parts[name] for name in OUTPUTS], elem_id="chat-files")
    _wire(desk, parts)


def _conversation(desk: Desk, parts: dict[str, Any]) -> None:
    parts["chatbot"] = gr.Chatbot(
        show_label=False,
        elem_id="chat",
        height=226,
        sanitize_html=True,
        allow_tags=False,
        latex_delimiters=LATEX,
        buttons=["copy", "copy_all"],
        feedback_options=None,
        layout="bubble",
        placeholder="Ask something short. The picture below shows both devices at work on the answer.",
    )
    parts["answer"] = Answer(desk.logs.since, elem_id="answer")


def _composer(parts: dict[str, Any], live: bool) -> None:
    with gr.Row(elem_id="composer", equal_height=True, visible=live):
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
        parts["send"] = gr.Button("Send", variant="primary", elem_id="send", min_width=80, scale=1)
        parts["leave"] = gr.Button("Stop", variant="stop", elem_id="leave", visible=False, min_width=80, scale=1)
        parts["stop"] = gr.Button("Stop", variant="stop", elem_id="stop", visible=False, min_width=80, scale=1)
    with gr.Row(elem_id="actions", visible=live):
        parts["method"] = gr.Radio(
            METHOD_CHOICES,
            value=choices.DEFAULTS["method"],
            label="Method",
            show_label=False,
            container=False,
            elem_id="method",
            scale=1,
            min_width=240,
        )
        for name in ("retry", "undo", "clear"):
            parts[name] = gr.Button(name.title(), elem_id=name, interactive=False, scale=0, min_width=72, size="md")


def _settings(context: Context, parts: dict[str, Any], live: bool) -> None:
    defaults = choices.DEFAULTS
    if not live:
        _recorded(context, parts)
    with gr.Accordion("Settings and recorded runs", open=False, elem_id="settings", visible=live), gr.Row():
        small = {"min_width": 150}
        parts["verification"] = gr.Dropdown(
            list(choices.VERIFICATIONS),
            value=defaults["verification"],
            label="Verification",
            info="auto: greedy at temperature 0, coupled above.",
            elem_id="verification",
            **small,
        )
        parts["k"] = gr.Textbox(  # not a gr.Number: its front end turns a blank into 0
            defaults["k"], label="Lookahead K", info="Drafted tokens a round, or auto.", placeholder="default", max_lines=1,
            elem_id="k", **small,
        )  # fmt: skip
        parts["fan_out"] = gr.Textbox(
            defaults["fan_out"], label="Fan-out", info="Per fork: 8, 3, 1, 4; or auto.", placeholder="default",
            max_lines=1, elem_id="fan-out", **small,
        )  # fmt: skip
        parts["temperature"] = gr.Slider(
            0.0, choices.HOTTEST, defaults["temperature"], step=0.05, label="Temperature", info="0 is greedy.",
            elem_id="temperature", **small,
        )  # fmt: skip
        parts["top_k"] = gr.Number(
            defaults["top_k"], label="Top-k", info="0 is off.", precision=0, minimum=0, elem_id="top-k", **small
        )
        parts["top_p"] = gr.Slider(
            0.05, 1.0, defaults["top_p"], step=0.05, label="Top-p", info="1 is off.", elem_id="top-p", **small
        )
        parts["seed"] = gr.Number(
            defaults["seed"], label="Seed", info="For temperatures above 0.", precision=0, minimum=0, elem_id="seed",
            **small,
        )  # fmt: skip
        parts["max_new_tokens"] = gr.Slider(
            16, choices.LONGEST, defaults["max_new_tokens"], step=16, label="Most new tokens", elem_id="limit", **small
        )
        if live:
            _recorded(context, parts)


def _recorded(context: Context, parts: dict[str, Any]) -> None:
    parts["trace"] = gr.Dropdown(
        list(context.traces),
        value=replay.first(context.traces),
        label="Show a recorded run",
        elem_id="trace",
        min_width=150,
    )


# ---------------------------------------------------------------------------------------------------------------
# Wiring


def _wire(desk: Desk, parts: dict[str, Any]) -> None:
    outputs, streamed, settled, measured = (
        [parts[name] for name in names] for names in (OUTPUTS, STREAMED, SETTLED, MEASURED)
    )
    started = [*outputs, parts["ticket"]]
    form = [parts[name] for name in choices.NAMES]
    # Through the queue, though without a limit: Gradio reports changed states (the ticket) only on queued events.
    free = {"concurrency_limit": None, **QUIET}
    gr.on([parts["prompt"].submit, parts["send"].click], desk.begin, [parts["prompt"], parts["turns"]], started, **free)
    parts["retry"].click(desk.again, [parts["turns"]], started, **free)
    parts["examples"].chosen(_example(desk), [parts["turns"]], started, **free)
    # A new ticket, and nothing else, starts the engine. The queue's place is shown on the notice line.
    engine = {"concurrency_id": "engine", "concurrency_limit": 1, "api_visibility": "private"}
    answering = parts["ticket"].change(
        _with_request(desk),
        [parts["turns"], *form],
        streamed,
        show_progress="minimal",
        show_progress_on=parts["notice"],
        **engine,
    )
    answered = answering.then(desk.settle, [parts["outcome"]], settled, **free)
    answered.then(desk.measure, [parts["compare"]], measured, show_progress="hidden", **engine)
    parts["stop"].click(desk.stop, None, None, queue=False, **QUIET)
    parts["leave"].click(desk.leave, [parts["turns"]], outputs, queue=False, cancels=[answering], **QUIET)
    parts["undo"].click(desk.undo, [parts["turns"]], outputs, **free)
    parts["clear"].click(desk.clear, None, outputs, queue=False, **QUIET)
    parts["trace"].input(desk.show, [parts["trace"]], outputs, **free)
    _address(desk, parts, form, outputs)
    gr.context.Context.root_block.unload(desk.close_session)
    gr.api(desk.chat, api_name="chat", concurrency_id="engine", concurrency_limit=1)


def _with_request(desk: Desk):
    def answer(request: gr.Request, turns, *form):  # the request comes first: Gradio looks for it by place
        yield from desk.answer(turns, *form, request=request)

    return answer


def _example(desk: Desk):
    def chosen(turns: list, event: gr.EventData, request: gr.Request) -> tuple:
        n = event._data.get("n")
        example = EXAMPLES[n] if n in range(len(EXAMPLES)) else EXAMPLES[0]
        return desk.begin(example["prompt"], turns, request)

    return chosen


# ---------------------------------------------------------------------------------------------------------------
# The page's address


def _address(desk: Desk, parts: dict[str, Any], form: list[Any], outputs: list[Any]) -> None:
    """Settings are read from the address when the page opens and written to it when they change."""

    def opened(request: gr.Request) -> tuple:
        query = dict(request.query_params)
        values, complaints = choices.from_address(query)
        name = query.get("trace", "")
        if name not in desk.context.traces:
            complaints += ["trace"] if name else []
            name = replay.first(desk.context.traces)
        shown = dict(zip(OUTPUTS, desk.show(name), strict=True))
        if complaints:
            shown["notice"] = note(choices.complaint(complaints), "error")
        if prompt := query.get("prompt", ""):
            shown["prompt"] = prompt[: choices.LONGEST_PROMPT]
        return *frame(**shown), name, *(values[field] for field in choices.NAMES)

    block = gr.context.Context.root_block
    block.load(opened, None, [*outputs, parts["trace"], *form], concurrency_limit=None, **QUIET)
    gr.on([part.change for part in form], None, form, None, js=_WRITE_ADDRESS, **QUIET)


_USUAL = [
    str(int(value)) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    for value in choices.DEFAULTS.values()
]
_WRITE_ADDRESS = (
    f"(...values) => {{ const names = {json.dumps(choices.NAMES)}, usual = {json.dumps(_USUAL)};"
    """
  const address = new URL(location.href);
  names.forEach((name, i) => {
    const value = typeof values[i] === "boolean" ? String(Number(values[i])) : String(values[i] ?? "");
    if (value === usual[i]) address.searchParams.delete(name); else address.searchParams.set(name, value);
  });
  if (address.href !== location.href) history.replaceState(history.state, "", address);
}"""
)

"""The menu "Open / export": somebody else's trace in; the runs that are shown out as trace, Perfetto JSON or a slide."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from . import perfetto, recording, slide_html
from .comparison import compare
from .components.notice import Notice, note
from .components.saver import Saver, saved
from .recording import Recording
from .wiring import QUIET

MOST_FILES = 8


def build(
    show: Callable[[list[Recording]], Sequence[Any]],
    held: gr.State,
    outputs: Sequence[Any],
    traces: dict[str, Path] | None = None,
    **options: Any,
) -> None:
    """Lay the menu out in the current Blocks. `show`: from opened runs to the values of `outputs`; it may raise
    ValueError with a sentence. `held`: the runs that are shown, as `recording.pack` makes it. `traces`: recorded runs
    that can be opened here as well. `options`: of the accordion."""
    with gr.Accordion("Open / export", open=False, elem_classes="sg-files", **options):
        with gr.Row():
            upload = gr.UploadButton(
                "Open trace files", file_types=[".jsonl"], file_count="multiple", min_width=150, size="md"
            )
            shipped = gr.Dropdown(
                list(traces or ()), value=None, label="Open a recorded run", min_width=220, filterable=False,
                visible=bool(traces),
            )  # fmt: skip
        with gr.Row():
            buttons = [gr.Button(f"Save {name}", min_width=150, size="md") for name in WRITERS]
        said = Notice(note())
        saver = Saver(None)

    def opened(files: Sequence[str]) -> tuple:
        return _opened(files, show, len(outputs))

    def recorded(name: str | None) -> tuple:
        if name not in (traces or ()):
            return (*[gr.skip()] * len(outputs), note())
        return _opened([str(traces[name])], show, len(outputs))

    def uploaded(files: Sequence[str]) -> tuple:
        try:
            return opened(files)
        finally:
            for file in files or ():  # somebody's own file is not kept
                Path(file).unlink(missing_ok=True)

    upload.upload(uploaded, [upload], [*outputs, said], concurrency_limit=2, **QUIET)
    shipped.input(recorded, [shipped], [*outputs, said], concurrency_limit=2, **QUIET)
    for button, name in zip(buttons, WRITERS, strict=True):
        button.click(_writer(name), [held], [saver, said], concurrency_limit=2, **QUIET)


def _opened(files: Sequence[str], show: Callable, count: int) -> tuple:
    try:
        if not files or len(files) > MOST_FILES:
            raise ValueError(f"Choose between one and {MOST_FILES} trace files.")
        values = show([run for file in files for run in recording.read(file)])
    except ValueError as error:
        return (*[gr.skip()] * count, note(str(error), "error"))
    return (*values, note(f"Opened {', '.join(Path(file).name for file in files)}."))


def trace_text(runs: list[Recording]) -> str:
    return recording.dumps(runs)


def perfetto_text(runs: list[Recording]) -> str:
    return json.dumps(perfetto.dump(runs), ensure_ascii=False, separators=(",", ":"))


def slide_text(runs: list[Recording]) -> str:
    return slide_html.page(compare(runs))


WRITERS: dict[str, tuple[str, str, Callable[[list[Recording]], str]]] = {
    "trace (JSONL)": (".jsonl", "application/jsonl", trace_text),
    "for Perfetto (JSON)": (".perfetto.json", "application/json", perfetto_text),
    "slide (HTML)": (".html", "text/html", slide_text),
}


def _writer(name: str) -> Callable[[bytes], tuple]:
    ending, kind, write = WRITERS[name]

    def make(held: bytes) -> tuple:
        runs = recording.unpack(held)
        if not runs:
            return gr.skip(), note("There is nothing to save yet.")
        try:
            return saved(file_name(runs) + ending, kind, write(runs)), note()
        except ValueError as error:
            return gr.skip(), note(str(error), "error")

    return make


def file_name(runs: Sequence[Recording]) -> str:
    """From the prompt and the methods, in letters that every system takes."""
    words = re.findall(r"[a-z0-9]+", recording.started(runs[0]).prompt.lower())[:4]
    methods = [re.sub(r"[^a-z0-9]+", "-", recording.method(run).lower()).strip("-") for run in runs]
    return "-".join(word[:20] for word in (*words, *methods[:8]) if word) or "run"

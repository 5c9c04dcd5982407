"""The race: one prompt, several methods, each measured alone and one after another; then all are played back in step.

The tab is never empty: it opens with a recorded race. A visitor's runs are held by their session alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr

from saguaro_core import events as ev
from saguaro_core.settings import METHODS

from . import export, recording
from .comparison import compare, label, place, races
from .components.notice import Notice, note
from .components.race import EMPTY, Race, shown
from .components.racing import Racing
from .context import ABSENT, Context
from .handlers import drain
from .livestats import Tally
from .recording import Recording
from .wiring import QUIET, buttons

BASELINES = ("hf-ar", "hf-assisted")
CHOICES = tuple(sorted({*METHODS, *BASELINES}, key=place))
AT_FIRST = ["ar", "sd", "ssd"]
PROMPT = "Explain how a rainbow forms."
WARM_UP_TOKENS = 4  # a short run before each measurement: buffers and, for transformers, the model itself
OUTPUTS = ("race", "held", "racing", "notice", "start", "leave", "stop", "shipped")


def frame(**changes: Any) -> tuple:
    """The outputs in order; what is not named stays as it is."""
    return tuple(changes.get(name, gr.skip()) for name in OUTPUTS)


def build(context: Context) -> None:
    """Lay the tab out in the current Blocks."""
    track = Track(context)
    recorded = races(context.traces)
    parts: dict[str, Any] = {"held": gr.State(b"")}
    with gr.Column(visible=context.slot.state != ABSENT, elem_id="race-ask"):
        with gr.Row(elem_id="race-composer", equal_height=True):
            prompt = gr.Textbox(
                PROMPT, label="Prompt", show_label=False, container=False, lines=1, max_lines=6, scale=8,
                min_width=180, elem_id="race-prompt", placeholder="What shall all methods answer?",
            )  # fmt: skip
            parts["start"] = gr.Button("Race", variant="primary", elem_id="race-start", min_width=96, scale=1)
            parts["leave"] = gr.Button(
                "Stop", variant="stop", elem_id="race-leave", min_width=96, scale=1, visible=False
            )
            parts["stop"] = gr.Button("Stop", variant="stop", elem_id="race-stop", min_width=96, scale=1, visible=False)
        methods = gr.CheckboxGroup(
            [(label(name), name) for name in CHOICES], value=AT_FIRST, show_label=False, container=False,
            label="Methods", elem_id="race-methods",
        )  # fmt: skip
        with gr.Accordion("Settings", open=False, elem_id="race-settings"), gr.Row():
            tokens = gr.Slider(16, 1024, 120, step=8, label="Most new tokens", min_width=180, elem_id="race-tokens")
            temperature = gr.Slider(0.0, 1.5, 0.0, step=0.05, label="Temperature", info="0 is greedy.", min_width=180)
            seed = gr.Number(0, label="Seed", info="For temperatures above 0.", precision=0, minimum=0, min_width=180)
    parts["notice"] = Notice(note(), elem_id="race-notice")
    parts["racing"] = Racing([], elem_id="race-racing")
    parts["shipped"] = gr.Dropdown(
        list(recorded), value=next(iter(recorded), None), label="Recorded race", filterable=False,
        visible=len(recorded) > 1, elem_id="race-shipped",
    )  # fmt: skip
    parts["race"] = Race(EMPTY, elem_id="race")
    outputs = [parts[name] for name in OUTPUTS]
    export.build(_opened, parts["held"], [parts["race"], parts["held"]], context.traces, elem_id="race-files")

    def show(name: str | None) -> tuple:
        return frame(**_recorded(recorded.get(name)))

    for event in (gr.context.Context.root_block.load, parts["shipped"].input):
        event(show, [parts["shipped"]], outputs, concurrency_limit=4, **QUIET)

    def measure(prompt, methods, tokens, temperature, seed, request: gr.Request):
        yield from track.measure(prompt, methods, tokens, temperature, seed, request.session_hash or "")

    asked = [prompt, methods, tokens, temperature, seed]
    waiting = gr.on([parts["start"].click, prompt.submit], track.begin, asked[:2], outputs, queue=False, **QUIET)
    measuring = waiting.then(
        measure, asked, outputs, concurrency_id="engine", concurrency_limit=1, show_progress="minimal",
        show_progress_on=parts["notice"], api_visibility="private",
    )  # fmt: skip
    parts["stop"].click(track.stop, None, None, queue=False, **QUIET)
    parts["leave"].click(track.leave, None, outputs, queue=False, cancels=[measuring], **QUIET)
    gr.context.Context.root_block.unload(track.stop)


def _recorded(paths: Sequence[Path] | None) -> dict[str, Any]:
    if not paths:
        return {"notice": note("There is no recorded race here. Open trace files below, or run a race.")}
    try:
        runs = [run for path in paths for run in recording.read(path)]
        return {"race": shown(compare(runs)), "held": recording.pack(runs), "notice": note()}
    except ValueError as error:
        return {"race": EMPTY, "held": b"", "notice": note(str(error), "error")}


def _opened(runs: list[Recording]) -> tuple:
    return shown(compare(runs)), recording.pack(runs)


@dataclass
class Measurement:
    """One session's race while it is measured."""

    run: Any = None
    stopped: bool = False


@dataclass
class Track:
    """Measures races on the engine, one method after another."""

    context: Context
    going: dict[str, Measurement] = field(default_factory=dict)  # by session

    def begin(self, prompt: str, methods: list[str]) -> tuple:
        """Show the place in the queue, unless there is nothing to measure."""
        if refusal := self._refusal(prompt, methods):
            return frame(notice=note(refusal))
        return frame(notice=note(), **buttons("waiting"))

    def _refusal(self, prompt: str, methods: Sequence[str]) -> str:
        if not (prompt or "").strip():
            return "Type a prompt first."
        if not methods:
            return "Choose at least one method."
        try:
            self.context.slot.get()
        except ValueError as error:
            return str(error)
        return ""

    def measure(
        self, prompt: str, methods: list[str], tokens: Any, temperature: Any, seed: Any, session: str
    ) -> Iterator[tuple]:
        """Run each method alone and yield frames; the last one holds the race."""
        if self._refusal(prompt, methods):
            yield frame(**buttons("idle"))
            return
        options = {
            "temperature": float(temperature or 0.0),
            "seed": int(seed or 0),
            "max_new_tokens": int(tokens or 120),
        }
        lines = [_line(name, options["max_new_tokens"]) for name in CHOICES if name in methods]
        mine = self.going[session] = Measurement()
        done, failures = [], []
        yield frame(racing=_copy(lines), notice=note(), **buttons("running"))
        try:
            for line in lines:
                if mine.stopped:
                    line["state"] = "left out"
                    continue
                try:
                    yield from self._run(mine, lines, line, prompt, options | {"max_new_tokens": WARM_UP_TOKENS}, False)
                    run = yield from self._run(mine, lines, line, prompt, options, True)
                except Exception as error:  # whatever it is, the others have their turn
                    failures.append(_failed(line, str(error) or type(error).__name__))
                    continue
                end = run[-1]
                if end.reason == "error":
                    failures.append(_failed(line, end.error or "The run ended without saying why."))
                elif end.reason == "cancelled":
                    line.update(state="left out", said="stopped")
                else:
                    line["state"] = "done"
                    done.append(run)
        finally:  # a closed tab arrives here as GeneratorExit
            if self.going.get(session) is mine:
                del self.going[session]
        yield _ended(lines, done, failures, mine.stopped)

    def _run(
        self, mine: Measurement, lines: list[dict], line: dict, prompt: str, options: dict[str, Any], counts: bool
    ) -> Generator[tuple, None, Recording]:
        """One run, with the line's progress; returns its events. `counts`: not a warm-up."""
        line.update(state="running", said="" if counts else "warming up")
        run = mine.run = self.context.slot.get().generate(prompt, method=line["method"], reuse=0, **options)
        if mine.stopped:
            run.cancel()
        tally, events = Tally(), []
        try:
            for batch in drain(run):
                events += batch
                tally.add(batch)
                speed = tally.summary()["decode_tok_s"]
                if counts:
                    line.update(tokens=tally.tokens, said=f"{speed:.1f} tok/s" if speed else "")
                yield frame(racing=_copy(lines))
        finally:
            if not run.finished:
                run.cancel()
        if not events or not isinstance(events[-1], ev.RunFinished):
            raise RuntimeError("The run ended without saying why.")
        return tuple(events)

    def stop(self, request: gr.Request) -> None:
        """End the measurement; what has been measured is raced. Also called when a browser is gone for certain."""
        mine = self.going.get(request.session_hash or "")
        if mine is not None:
            mine.stopped = True
            if mine.run is not None:
                mine.run.cancel()

    def leave(self, request: gr.Request) -> tuple:
        """Stop pressed before the measurement began."""
        self.stop(request)
        return frame(notice=note("Left the queue."), racing=[], **buttons("idle"))


def _line(method: str, tokens: int) -> dict[str, Any]:
    return {"method": method, "label": label(method), "state": "waiting", "tokens": 0, "of": tokens, "said": ""}


def _copy(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(line) for line in lines]


def _failed(line: dict[str, Any], why: str) -> str:
    line.update(state="failed", said="failed")
    return f"{line['label']}: {' '.join(why.split())}"


def _ended(lines: list[dict], done: list[Recording], failures: list[str], stopped: bool) -> tuple:
    said = note(" ".join(failures), "error") if failures else note("Stopped." if stopped else "")
    changes = {"racing": _copy(lines) if failures or stopped else [], "notice": said, **buttons("idle")}
    if done:
        race = compare(done, measured=True)
        changes |= {"race": shown(race, autoplay=True), "held": recording.pack(done), "shipped": gr.update(value=None)}
    return frame(**changes)

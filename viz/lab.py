"""The lab: the benchmark from the page. Choose what to measure, watch how far it has come, keep the report.

It measures with `saguaro_core.bench` on the engine that everybody shares, and shows what `saguaro_core.report` makes of
the results. Results that somebody brings along are checked before anything is drawn. Without an engine the tab shows
recorded results.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gradio as gr

from saguaro_core import bench, report, results_file
from saguaro_core.devices import hardware
from saguaro_core.prompts import TASKS, load_tasks
from saguaro_core.results import name, results, to_csv
from saguaro_core.settings import METHODS

from .components.notice import Notice, note
from .components.racing import Racing
from .components.saver import Saver, saved
from .components.table import Tables
from .context import ABSENT, Context, one_line
from .wiring import QUIET, buttons

RECORDED = Path(__file__).parent.parent / "assets" / "results"
CHOICES = (*METHODS, *bench.BASELINES)
TEMPERATURES = ("0", "0.6", "1")
LIMITS = {"prompts": (1, 12, 2), "tokens": (16, 512, 96), "repeat": (1, 5, 1)}  # smallest, largest, at first
MOST_FIGURES = 10
FRAME_S = 0.25
OUTPUTS = (
    "tables",
    "more",
    "held",
    "racing",
    "notice",
    "start",
    "leave",
    "stop",
    "shipped",
    *map(str, range(MOST_FIGURES)),
)
NOTHING = "Nothing has been measured here yet. A results.json of an earlier run can be opened above."


def frame(**changes: Any) -> tuple:
    """The outputs in order; what is not named stays as it is."""
    return tuple(changes.get(output, gr.skip()) for output in OUTPUTS)


# ---------------------------------------------------------------------------------------------------------------
# Layout


def build(context: Context) -> None:
    """Lay the tab out in the current Blocks."""
    desk, shipped = Desk(context), recorded()
    parts: dict[str, Any] = {"held": gr.State(b"")}
    with gr.Column(visible=context.slot.state != ABSENT, elem_id="lab-ask"):
        form = _form(parts)
    parts["notice"] = Notice(note(), elem_id="lab-notice")
    parts["racing"] = Racing([], elem_id="lab-racing")
    with gr.Row(elem_id="lab-files"):
        upload = gr.UploadButton(
            "Open results.json", file_types=[".json"], min_width=150, size="md", elem_id="lab-open"
        )
        savers = [gr.Button(f"Save {kind}", min_width=150, size="md") for kind in WRITERS]
    saver = Saver(None)
    parts["shipped"] = gr.Dropdown(
        list(shipped), value=None, label="Recorded results", filterable=False, visible=bool(shipped),
        elem_id="lab-shipped",
    )  # fmt: skip
    parts["tables"] = Tables({"lines": [NOTHING], "tables": []}, elem_id="lab-tables")
    with gr.Column(elem_id="lab-figures"):
        for number in range(MOST_FIGURES):
            parts[str(number)] = gr.Plot(visible=False, elem_classes="lab-figure")
    parts["more"] = Tables({}, elem_id="lab-more")
    outputs = [parts[output] for output in OUTPUTS]

    def at_first() -> tuple:
        choice = next(iter(shipped), None)
        return frame(**shown_file(shipped[choice]), shipped=choice) if choice else frame()

    def show(choice: str | None) -> tuple:
        return frame(**shown_file(shipped[choice])) if choice in shipped else frame()

    def opened(file: str) -> tuple:
        try:
            return frame(**shown_file(Path(file)), shipped=None)
        finally:  # somebody's own file is not kept
            Path(file).unlink(missing_ok=True)

    def measure(tasks, methods, temperatures, prompts, tokens, repeat, request: gr.Request):
        numbers = {"prompts": prompts, "tokens": tokens, "repeat": repeat}
        yield from desk.measure(tasks, methods, temperatures, numbers, request.session_hash or "")

    gr.context.Context.root_block.load(at_first, None, outputs, concurrency_limit=4, **QUIET)
    parts["shipped"].input(show, [parts["shipped"]], outputs, concurrency_limit=4, **QUIET)
    upload.upload(opened, [upload], outputs, concurrency_limit=2, **QUIET)
    for button, kind in zip(savers, WRITERS, strict=True):
        button.click(_writer(kind), [parts["held"]], [saver, parts["notice"]], concurrency_limit=2, **QUIET)
    waiting = parts["start"].click(desk.begin, form[:3], outputs, queue=False, **QUIET)
    measuring = waiting.then(
        measure, form, outputs, concurrency_id="engine", concurrency_limit=1, show_progress="minimal",
        show_progress_on=parts["notice"], api_visibility="private",
    )  # fmt: skip
    parts["stop"].click(desk.stop, None, None, queue=False, **QUIET)
    parts["leave"].click(desk.leave, None, outputs, queue=False, cancels=[measuring], **QUIET)
    gr.context.Context.root_block.unload(desk.stop)


def _form(parts: dict[str, Any]) -> list[Any]:
    with gr.Row():
        tasks = gr.CheckboxGroup(list(TASKS), value=list(TASKS), label="Tasks", elem_id="lab-tasks", min_width=300)
        temperatures = gr.CheckboxGroup(
            [("0 (greedy)", "0"), "0.6", "1"], value=["0"], label="Temperatures", elem_id="lab-temperatures",
            min_width=240,
        )  # fmt: skip
    methods = gr.CheckboxGroup(
        [(report.label(method), method) for method in CHOICES], value=["ar", "sd", "ssd"], label="Methods",
        elem_id="lab-methods",
    )  # fmt: skip
    with gr.Row():
        numbers = [
            gr.Slider(low, high, at_first, step=1, label=label, elem_id=f"lab-{key}", min_width=180)
            for (key, (low, high, at_first)), label in zip(
                LIMITS.items(), ("Prompts of each task", "Most new tokens", "Repetitions"), strict=True
            )
        ]
    with gr.Row():
        parts["start"] = gr.Button("Measure", variant="primary", elem_id="lab-start", min_width=120)
        parts["leave"] = gr.Button("Stop", variant="stop", elem_id="lab-leave", min_width=120, visible=False)
        parts["stop"] = gr.Button("Stop", variant="stop", elem_id="lab-stop", min_width=120, visible=False)
    return [tasks, methods, temperatures, *numbers]


# ---------------------------------------------------------------------------------------------------------------
# Results on the page


def recorded() -> dict[str, Path]:
    """The results that come along, by name."""
    return {path.stem: path for path in sorted(RECORDED.glob("*.json"))}


def shown_file(path: Path) -> dict[str, Any]:
    """Outputs that show a results file, or say what is wrong with it."""
    try:
        if path.stat().st_size > results_file.MOST_BYTES:
            raise ValueError(f"The file is larger than {results_file.MOST_BYTES // 2**20} MB.")
        found = results_file.loads(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError:
        return {"notice": note("The file is not a text file.", "error")}
    except (OSError, ValueError) as error:
        return {"notice": note(str(error), "error")}
    return shown(found) | {"notice": note(), "racing": []}


def shown(found: dict[str, Any]) -> dict[str, Any]:
    """Outputs that show results."""
    lines = [report.about(found)]
    lines += [f"Not complete: {report.inert(found['stopped'])}."] if found["stopped"] else []
    tables = report.tables(found)
    figures = report.figures(found)[:MOST_FIGURES]
    plots = {str(number): gr.update(value=None, visible=False) for number in range(MOST_FIGURES)}
    for number, (title, figure) in enumerate(figures):
        plots[str(number)] = gr.update(value=figure, visible=True, label=title)
    return {
        "tables": {"lines": lines, "tables": [_inert(table) for table in tables if not table.words]},
        "more": {"tables": [_inert(table) for table in tables if table.words]},
        "held": pack(found),
        **plots,
    }


def _inert(table: report.Table) -> dict[str, Any]:
    made = table._asdict() | {"rows": [[report.inert(cell) for cell in row] for row in table.rows]}
    return made | {"head": [report.inert(cell) for cell in table.head], "note": report.inert(table.note)}


def pack(found: dict[str, Any]) -> bytes:
    """Results as a session holds them on the server."""
    return zlib.compress(json.dumps(found).encode())


def unpack(held: bytes) -> dict[str, Any] | None:
    return json.loads(zlib.decompress(held)) if held else None


WRITERS = {
    "report (HTML)": ("report.html", "text/html", report.page),
    "results.json": ("results.json", "application/json", lambda found: json.dumps(found, indent=1)),
    "results.csv": ("results.csv", "text/csv", to_csv),
}


def _writer(kind: str):
    name, media, write = WRITERS[kind]

    def make(held: bytes) -> tuple:
        found = unpack(held)
        if found is None:
            return gr.skip(), note("There is nothing to save yet.")
        return saved(name, media, write(found)), note()

    return make


# ---------------------------------------------------------------------------------------------------------------
# Measuring


@dataclass
class Going:
    """One session's measurement while it goes on."""

    stopped: bool = False


@dataclass
class Desk:
    """Measures on the shared engine, one session after another."""

    context: Context
    going: dict[str, Going] = field(default_factory=dict)  # by session

    def begin(self, tasks: list[str], methods: list[str], temperatures: list[str]) -> tuple:
        """Show the place in the queue, unless there is nothing to measure."""
        if refusal := self._refusal(tasks, methods, temperatures):
            return frame(notice=note(refusal))
        return frame(notice=note(), racing=[], **buttons("waiting"))

    def _refusal(self, *chosen: Sequence[str]) -> str:
        for words, known, kind in zip(chosen, (TASKS, CHOICES, TEMPERATURES), ("task", "method", "temperature")):
            if not words or any(word not in known for word in words):
                return f"Choose at least one {kind}."
        try:
            self.context.slot.get()
        except ValueError as error:
            return str(error)
        return ""

    def measure(
        self, tasks: list[str], methods: list[str], temperatures: list[str], numbers: dict[str, Any], session: str
    ) -> Iterator[tuple]:
        """Measure and yield frames; the last one holds tables and figures of what was measured."""
        if self._refusal(tasks, methods, temperatures):
            yield frame(**buttons("idle"))
            return
        engine, plan, played, problem = self.context.slot.get(), _plan(tasks, methods, temperatures, numbers), [], ""
        mine = self.going[session] = Going()
        steps = bench.measure(engine, plan, played)
        yield frame(racing=_lines(plan, played, None), **buttons("running"))
        drawn = time.monotonic()
        try:
            for progress in steps:
                if mine.stopped:
                    break
                if time.monotonic() - drawn > FRAME_S:
                    yield frame(racing=_lines(plan, played, progress.at), notice=note(_said(plan, progress)))
                    drawn = time.monotonic()
        except Exception as error:  # whatever it is, what has been measured is shown
            problem = one_line(error)
        finally:  # a closed tab arrives here as GeneratorExit
            steps.close()
            if self.going.get(session) is mine:
                del self.going[session]
        stopped = problem or ("stopped by the visitor" if mine.stopped else "")
        yield frame(**_ended(plan, played, engine, stopped, bool(problem)), **buttons("idle"))

    def stop(self, request: gr.Request) -> None:
        """End the measurement; what has been measured is shown. Also called when a browser is gone for certain."""
        if mine := self.going.get(request.session_hash or ""):
            mine.stopped = True

    def leave(self, request: gr.Request) -> tuple:
        """Stop pressed before the measurement began."""
        self.stop(request)
        return frame(notice=note("Left the queue."), racing=[], **buttons("idle"))


def _plan(tasks: list[str], methods: list[str], temperatures: list[str], numbers: dict[str, Any]) -> bench.Plan:
    kept = {key: min(max(int(numbers[key] or first), low), high) for key, (low, high, first) in LIMITS.items()}
    return bench.Plan(
        prompts=tuple(load_tasks(tasks, kept["prompts"])),
        methods=tuple(method for method in CHOICES if method in methods),
        temperatures=tuple(sorted(map(float, set(temperatures)))),
        repeat=kept["repeat"],
        settings={"max_new_tokens": kept["tokens"]},
    )


def _lines(plan: bench.Plan, played: list[bench.Played], at: bench.Conversation | None) -> list[dict[str, Any]]:
    """How far each method has come."""
    of = len(plan.prompts) * plan.repeat * len(plan.temperatures)
    done = Counter(name(turn) for turn in played)
    lines = []
    for method in plan.order(bench.SPLIT):
        speeds = [turn.summary["decode_tok_s"] for turn in played if turn.method == method and turn.summary]
        speed = f", {sum(speeds) / len(speeds):.1f} tok/s" if speeds and all(speeds) else ""
        state = "running" if at and at.method == method else "done" if done[method] == of else "waiting"
        said = f"{done[method]} of {of}{speed}"
        lines.append({"label": report.label(method), "state": state, "tokens": done[method], "of": of, "said": said})
    return lines


def _said(plan: bench.Plan, progress: bench.Progress) -> str:
    if progress.at is None:
        return f"{progress.done} of {progress.total} runs."
    prompt, law = plan.prompts[progress.at.number], f"temperature {progress.at.temperature:g}"
    return (
        f"{progress.done} of {progress.total} runs; now {prompt.name} with {report.label(progress.at.method)}, {law}."
    )


def _ended(plan: bench.Plan, played: list[bench.Played], engine: Any, stopped: str, wrong: bool) -> dict[str, Any]:
    said = note(f"Not complete: {stopped}." if stopped else "", "error" if wrong else "info")
    if not played:
        return {"notice": said, "racing": []}
    found = results(played, {bench.SPLIT: dict(engine.info)}, plan.to_dict(), stopped)
    found |= {"hardware": hardware(), "measured_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
    return shown(json.loads(json.dumps(found))) | {"notice": said, "racing": [], "shipped": None}

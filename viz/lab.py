"""The lab: the benchmark from the page. Choose what to measure, watch how far it has come, keep the report.

It measures with `saguaro_core.bench` on the engine that everybody shares, and shows what `saguaro_core.report` makes of
the results. Results that somebody brings along are checked before anything is drawn. Without an engine the tab shows
recorded results.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

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
BATCH_SIZES = ("1", "8", "16", "32")
LIMITS = {"prompts": (1, 12, 2), "tokens": (16, 512, 96), "repeat": (1, 5, 1)}  # smallest, largest, at first
SHOWN_FIRST = "methods"  # how the name of the recorded results begins that a visitor sees first
MOST_FIGURES = 16
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


class Chosen(NamedTuple):
    """What the form says, in its order; the first four are words of TASKS, CHOICES, TEMPERATURES, BATCH_SIZES."""

    tasks: list[str]
    methods: list[str]
    temperatures: list[str]
    batch_sizes: list[str]
    prompts: float | None
    tokens: float | None
    repeat: float | None


def build(context: Context) -> None:
    """Lay the tab out in the current Blocks."""
    desk, shipped = Desk(context), recorded()
    parts: dict[str, Any] = {"held": gr.State(b"")}
    with gr.Column(visible=context.slot.state != ABSENT, elem_id="lab-ask"):
        form, cost_line = _form(parts)
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

    def cost(*form: Any) -> dict[str, Any]:
        return note(cost_of(Chosen(*form)))

    def begin(*form: Any) -> tuple:
        return desk.begin(Chosen(*form))

    def measure(tasks, methods, temperatures, batch_sizes, prompts, tokens, repeat, request: gr.Request):
        chosen = Chosen(tasks, methods, temperatures, batch_sizes, prompts, tokens, repeat)
        yield from desk.measure(chosen, request.session_hash or "")

    gr.context.Context.root_block.load(at_first, None, outputs, concurrency_limit=4, **QUIET)
    gr.on(
        [gr.context.Context.root_block.load, *(part.change for part in form)], cost, form, cost_line,
        queue=False, trigger_mode="always_last", **QUIET,
    )  # fmt: skip
    parts["shipped"].input(show, [parts["shipped"]], outputs, concurrency_limit=4, **QUIET)
    upload.upload(opened, [upload], outputs, concurrency_limit=2, **QUIET)
    for button, kind in zip(savers, WRITERS, strict=True):
        button.click(_writer(kind), [parts["held"]], [saver, parts["notice"]], concurrency_limit=2, **QUIET)
    waiting = parts["start"].click(begin, form, outputs, queue=False, **QUIET)
    measuring = waiting.then(
        measure, form, outputs, concurrency_id="engine", concurrency_limit=1, show_progress="minimal",
        show_progress_on=parts["notice"], api_visibility="private",
    )  # fmt: skip
    parts["stop"].click(desk.stop, None, None, queue=False, **QUIET)
    parts["leave"].click(desk.leave, None, outputs, queue=False, cancels=[measuring], **QUIET)
    gr.context.Context.root_block.unload(desk.stop)


def _form(parts: dict[str, Any]) -> tuple[list[Any], Notice]:
    """What `Chosen` is read from, and the line that says what it costs."""
    with gr.Row():
        tasks = gr.CheckboxGroup(
            list(TASKS), value=list(TASKS), label="Tasks", elem_id="lab-tasks", min_width=300, scale=5
        )
        temperatures = gr.CheckboxGroup(
            [("0 (greedy)", "0"), "0.6", "1"], value=["0"], label="Temperatures", elem_id="lab-temperatures",
            min_width=240, scale=3,
        )  # fmt: skip
        batch_sizes = gr.CheckboxGroup(
            [("1 (alone)", "1"), *BATCH_SIZES[1:]], value=["1"], label="Batch sizes",
            elem_id="lab-batch-sizes", min_width=240, scale=4,
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
    cost_line = Notice(note(), elem_id="lab-cost")
    with gr.Row():
        parts["start"] = gr.Button("Measure", variant="primary", elem_id="lab-start", min_width=120)
        parts["leave"] = gr.Button("Stop", variant="stop", elem_id="lab-leave", min_width=120, visible=False)
        parts["stop"] = gr.Button("Stop", variant="stop", elem_id="lab-stop", min_width=120, visible=False)
    return [tasks, methods, temperatures, batch_sizes, *numbers], cost_line


# ---------------------------------------------------------------------------------------------------------------
# Results on the page


def recorded() -> dict[str, Path]:
    """The results that come along, by name; those of the methods first."""
    found = sorted(RECORDED.glob("*.json"), key=lambda path: (not path.stem.startswith(SHOWN_FIRST), path.stem))
    return {path.stem: path for path in found}


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
    figures = report.figures(found)
    if len(figures) > MOST_FIGURES:
        lines.append(f"{len(figures) - MOST_FIGURES} more figures are in the report.")
    plots = {str(number): gr.update(value=None, visible=False) for number in range(MOST_FIGURES)}
    for number, (title, figure) in enumerate(figures[:MOST_FIGURES]):
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

    def begin(self, chosen: Chosen) -> tuple:
        """Show the place in the queue, unless there is nothing to measure."""
        if refusal := self._refusal(chosen):
            return frame(notice=note(refusal))
        return frame(notice=note(), racing=[], **buttons("waiting"))

    def _refusal(self, chosen: Chosen) -> str:
        try:
            plan_of(chosen)
            self.context.slot.get()
        except ValueError as error:
            return str(error)
        return ""

    def measure(self, chosen: Chosen, session: str) -> Iterator[tuple]:
        """Measure and yield frames; the last one holds tables and figures of what was measured."""
        if self._refusal(chosen):
            yield frame(**buttons("idle"))
            return
        engine, plan, played, problem = self.context.slot.get(), plan_of(chosen), [], ""
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


def plan_of(chosen: Chosen) -> bench.Plan:
    """Raises ValueError with a sentence where there is nothing to measure."""
    kinds = {"task": TASKS, "method": CHOICES, "temperature": TEMPERATURES, "batch size": BATCH_SIZES}
    for words, (kind, known) in zip(chosen, kinds.items(), strict=False):
        if not words or any(word not in known for word in words):
            raise ValueError(f"Choose at least one {kind}.")
    kept = {key: min(max(int(getattr(chosen, key) or first), low), high) for key, (low, high, first) in LIMITS.items()}
    return bench.Plan(
        prompts=tuple(load_tasks(chosen.tasks, kept["prompts"])),
        methods=tuple(method for method in CHOICES if method in chosen.methods),
        temperatures=tuple(sorted(map(float, set(chosen.temperatures)))),
        batch_sizes=tuple(sorted(map(int, set(chosen.batch_sizes)))),
        repeat=kept["repeat"],
        settings={"max_new_tokens": kept["tokens"]},
    )


def cost_of(chosen: Chosen) -> str:
    """How much measuring this takes, in words; what is missing where it makes no plan."""
    try:
        plan = plan_of(chosen)
    except ValueError as error:
        return str(error)
    runs, prompts = plan.conversations(), len(plan.prompts)
    tokens = sum(run.batch_size for run in runs) * plan.settings["max_new_tokens"]
    ways = [_together(size, math.ceil(prompts / size)) for size in plan.batch_sizes]
    methods = [report.label(method) + _aside(method, plan) for method in plan.methods]
    parts = [
        f"{_counted(prompts, 'prompt')} {_listed(ways)}",
        f"with {_listed(methods)}",
        f"at {len(plan.temperatures)} temperatures" if len(plan.temperatures) > 1 else "",
        f"{plan.repeat} times over" if plan.repeat > 1 else "",
    ]
    said = f"{_counted(len(runs), 'run')}, up to {tokens:,} new tokens: {', '.join(filter(None, parts))}."
    filled = all(prompts % size == 0 for size in plan.batch_sizes)
    return said + ("" if filled else " A batch that the prompts do not fill repeats some.")


def _aside(method: str, plan: bench.Plan) -> str:
    """What else there is to say of a method's runs."""
    if method == "ar":
        return " (padded and unpadded)"
    return " (one by one only)" if method in bench.BASELINES and len(plan.batch_sizes) > 1 else ""


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _together(size: int, batches: int) -> str:
    return "one by one" if size == 1 else f"in {batches} batches of {size}" if batches > 1 else f"in a batch of {size}"


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("s" if number != 1 else "")


def _lines(plan: bench.Plan, played: list[bench.Played], at: bench.Conversation | None) -> list[dict[str, Any]]:
    """How far each method has come, and its speed at the number of sequences that is measured now."""
    of = Counter(conversation.method for conversation in plan.conversations())
    done = Counter(name(turn) for turn in played)
    size = at.batch_size if at else plan.batch_sizes[-1]
    lines = []
    for method in plan.order(bench.SPLIT):
        turns = [turn for turn in played if turn.method == method and turn.batch_size == size and turn.summary]
        speeds = [turn.summary["decode_tok_s"] for turn in turns]
        speed = f", {sum(speeds) / len(speeds):.1f} tok/s" if speeds and all(speeds) else ""
        state = "running" if at and at.method == method else "done" if done[method] == of[method] else "waiting"
        said = f"{done[method]} of {of[method]}{speed}" + (f", {size} together" if speed and size > 1 else "")
        lines.append(
            {"label": report.label(method), "state": state, "tokens": done[method], "of": of[method], "said": said}
        )
    return lines


def _said(plan: bench.Plan, progress: bench.Progress) -> str:
    at = progress.at
    if at is None:
        return f"{progress.done} of {progress.total} runs."
    names = [prompt.name for prompt in plan.batch(at.number, at.batch_size)]
    what = names[0] if len(names) == 1 else f"{len(names)} together, {names[0]} to {names[-1]},"
    law = f"temperature {at.temperature:g}"
    return f"{progress.done} of {progress.total} runs; now {what} with {report.label(at.method)}, {law}."


def _ended(plan: bench.Plan, played: list[bench.Played], engine: Any, stopped: str, wrong: bool) -> dict[str, Any]:
    said = note(f"Not complete: {stopped}." if stopped else "", "error" if wrong else "info")
    if not played:
        return {"notice": said, "racing": []}
    found = results(played, {bench.SPLIT: dict(engine.info)}, plan.to_dict(), stopped)
    found |= {"hardware": hardware(), "measured_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
    return shown(json.loads(json.dumps(found))) | {"notice": said, "racing": [], "shipped": None}

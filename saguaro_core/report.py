"""The results of a benchmark as tables, Plotly figures and one self-contained HTML page that opens offline.

Pure functions of what `results.results` makes (or `results_file.loads` has checked). Names in results may be
anybody's text: it is escaped for HTML and for Plotly's own markup, and bidirectional controls are spelt out. The
colours stand out from white and from black alike, and text takes its colour from the page (`STYLE`), so that one
figure fits light and dark.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

LABELS = {
    "ar": "AR", "ar-unpadded": "AR, unpadded", "sd": "SD", "hsd": "HSD", "ssd": "SSD", "ssd+hsd": "SSD+HSD",
    "hf-ar": "HF generate", "hf-assisted": "HF assisted",
}  # fmt: skip
COLOURS = {
    "ar": "#6f7b8f", "sd": "#c86b16", "hsd": "#a45cc8", "ssd": "#159a80", "ssd+hsd": "#4c7ce6", "hf-ar": "#868f16",
    "hf-assisted": "#d8508a",
}  # fmt: skip
OTHERS = ("#6f7b8f", "#c86b16", "#a45cc8", "#159a80")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "pentagon")
PATTERNS = ("", "/", "x", ".", "\\", "-", "|", "+")
CONFIG = {"showSendToCloud": False, "displaylogo": False, "responsive": True}
STYLE = (  # Plotly writes colours into the elements; the page's own win
    ".js-plotly-plot .main-svg text{fill:var(--ink)!important}"
    ".js-plotly-plot .main-svg .hovertext text{fill:#fff!important}"
    ".js-plotly-plot .gridlayer path,.js-plotly-plot .zerolinelayer path{stroke:var(--line)!important}"
)
DEFINITIONS = (
    ("tok/s", ("decode speed: all tokens after the first of each run, over all the time from the first token to the last; "
              "reading the prompt is apart. AR counts with the faster of its padded and unpadded form")),
    ("tok/s per request", "decode speed of one sequence of a batch, as its reader sees it (median); tok/s is the total of all"),
    ("over AR, over SD", "ratio of decode speeds over the turns that both methods have"),
    ("tokens per round", "tokens after the first, over verifications of the target"),
    ("acceptance", "drafted tokens accepted, over drafted tokens tested"),
    ("hit rate", "outcomes whose continuation waited in the cache, over all lookups after the first round"),
    ("both busy", "share of the decode time in which both devices computed (median over runs)"),
    ("TTFT", "time from the start of a run to its first token (median over runs)"),
    ("gap p50, p99", ("inter-token latency: time from one emission to the next, over all runs. The tokens of one round "
                     "come out together and count as one emission; percentiles are nearest rank")),
    ("same as AR", ("outputs equal to AR's token for token, of how many; no claim is made (n/a) for rules that promise "
                   "the same law and not the same text")),
    ("@all", "the method with the cores of both devices, measured with an engine of its own, after the rest"),
)  # fmt: skip


class Table(NamedTuple):
    """Words only, as they are shown; the first column names the row, the others are numbers unless `words`."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""
    words: bool = False


def label(method: str) -> str:
    base, at, resources = method.partition("@")
    return f"{LABELS.get(base, base)}, all cores" if at and resources == "all" else LABELS.get(method, method)


# ---------------------------------------------------------------------------------------------------------------
# Tables


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Everything the figures show, and more, as words."""
    made = [table for group in results["groups"] for table in (_methods(group), _tasks(group), _formulas(group))]
    return [table for table in [*made, _left_out(results)] if table.rows]


def _at(group: Mapping[str, Any]) -> str:
    law = "greedy" if group["temperature"] == 0 else f"temperature {group['temperature']:g}"
    return law if group["batch_size"] == 1 else f"{law}, {group['batch_size']} sequences together"


def _methods(group: Mapping[str, Any]) -> Table:
    head = ["Method", "tok/s", "over AR", "over SD", "tokens per round", "acceptance", "hit rate", "both busy",
            "TTFT ms", "gap p50 ms", "gap p99 ms", "same as AR", "runs"]  # fmt: skip
    together = group["batch_size"] > 1
    if together:
        head.insert(2, "tok/s per request")
    rows = []
    for method, row in group["methods"].items():
        rows.append([
            label(method),
            _number(row["decode_tok_s"], 1),
            *([_number(row["tok_s_per_sequence"], 1)] if together else []),
            _number(group["ratios"].get(f"{method}/ar"), 2),
            _number(group["ratios"].get(f"{method}/sd"), 2),
            _number(row["tokens_per_round"], 2),
            _percent(row["acceptance"]),
            _percent(row["hit_rate"]),
            _percent(row["overlap"]) if row["hit_rate"] is not None else "",
            _number(row["ttft_s"], 0, 1e3),
            _number(row["gap_p50_ms"], 1),
            _number(row["gap_p99_ms"], 1),
            _same(group["identical"], method),
            f"{row['runs']:g}" + (f", {row['failed']:g} failed" if row["failed"] else ""),
        ])  # fmt: skip
    matched = {pair: value for pair, value in group["ratios"].items() if "@" in pair}
    note = "; ".join(f"{' over '.join(map(label, pair.split('/')))} {value:.2f}" for pair, value in matched.items())
    return Table(f"Methods, {_at(group)}", head, rows, f"Resource-matched: {note}." if note else "")


def _same(identical: Mapping[str, Any], method: str) -> str:
    if method not in identical or method == "of":
        return ""
    compared = identical.get("compared")
    of = compared.get(method) if isinstance(compared, dict) else None
    same = identical[method]
    return "n/a" if same is None else f"{same} of {identical.get('of') if of is None else of}"


def _tasks(group: Mapping[str, Any]) -> Table:
    tasks = list(group["by_task"])
    rows = [
        [
            label(method),
            *(_number(group["by_task"][task]["methods"].get(method, {}).get("decode_tok_s"), 1) for task in tasks),
        ]
        for method in group["methods"]
    ]
    return Table(f"tok/s by task, {_at(group)}", ["Method", *map(_task, tasks)], rows if len(tasks) > 1 else [])


def _task(name: str) -> str:
    return name or "no category"


def _formulas(group: Mapping[str, Any]) -> Table:
    rows = [
        [
            p["name"],
            " over ".join(label(method) for method in p["ratio"].split("/")),
            f"{100 * p['error']:+.0f} %" + (f", exceeded in {p['violated']}" if p["violated"] else ""),
            str(len(p["points"])),
            p["source"],
            p["note"],
        ]
        for p in group["predictions"]
    ]
    head = ["Formula", "ratio", "median error", "turns", "source", "what it leaves out"]
    note = "Each formula is fed with the times, the hit rate and the tokens per round of the same turn."
    return Table(f"Predicted against measured, {_at(group)}", head, rows, note, words=True)


def _left_out(results: Mapping[str, Any]) -> Table:
    rows = [
        [
            run["prompt"],
            str(run["turn"] + 1),
            label(run["method"]),
            f"{run['temperature'] or 0:g}",
            run["status"],
            run["why"],
        ]
        for run in results["runs"]
        if run["status"] != "ok"
    ]
    head = ["Prompt", "turn", "method", "temperature", "status", "why"]
    return Table("Skipped and failed", head, rows, "A skipped turn ends its conversation for all methods.", words=True)


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    return "" if value is None else f"{value * scale:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


# ---------------------------------------------------------------------------------------------------------------
# Figures


def figures(results: Mapping[str, Any]) -> list[tuple[str, go.Figure]]:
    """`(title, figure)` of what these results can show."""
    groups = results["groups"]
    made = [(f"Speed by task, {_at(group)}", _by_task(group)) for group in groups]
    for parameter, title, axis in (
        ("temperature", "Speed by temperature", "temperature"),
        ("batch_size", "Speed by batch size", "sequences together"),
    ):
        made.append((title, _over(groups, parameter, axis)))
    made.append(("Total speed against speed per request, by batch size", _total_per_request(groups)))
    made.append(("Acceptance and hit rate", _rates(groups)))
    made += [(f"Predicted against measured, {_at(group)}", _predicted(group)) for group in groups]
    return [(title, figure) for title, figure in made if figure is not None]


def _shown(methods: Mapping[str, Any]) -> list[str]:
    """AR is one bar, its faster form."""
    return [method for method in methods if not method.startswith("ar-unpadded")]


def _fastest(methods: Mapping[str, Any], method: str) -> float | None:
    return max((methods[form]["decode_tok_s"] or 0 for form in _forms(method) if form in methods), default=0) or None


def _forms(method: str) -> tuple[str, ...]:
    return (method, method.replace("ar", "ar-unpadded", 1)) if method in ("ar", "ar@all") else (method,)


def _by_task(group: Mapping[str, Any]) -> go.Figure | None:
    by_task = dict(group["by_task"])
    if len(by_task) != 1:
        by_task["all prompts"] = group
    methods = _shown(group["methods"])
    if not methods or (group["batch_size"] > 1 and list(by_task) == ["mixed"]):  # batches across tasks have one bar
        return None
    figure = _figure(90 + len(by_task) * (14 + 20 * len(methods)))
    for method in methods:
        speeds = [_fastest(part["methods"], method) for part in by_task.values()]
        figure.add_bar(
            y=[_plain(_task(task)) for task in by_task], x=speeds, orientation="h", name=_plain(label(method)),
            text=[_number(speed, 1) for speed in speeds], textposition="outside", cliponaxis=False,
            marker=_marker(method, methods), hovertemplate="%{x:.1f} tok/s<extra></extra>",
        )  # fmt: skip
    top = max((speed for trace in figure.data for speed in trace.x if speed), default=1)
    figure.update_xaxes(title="decode tok/s", range=[0, top * 1.14])
    figure.update_yaxes(autorange="reversed")
    return figure.update_layout(barmode="group", bargap=0.18)


def _over(groups: Sequence[Mapping[str, Any]], parameter: str, axis: str) -> go.Figure | None:
    if len({group[parameter] for group in groups}) < 2:
        return None
    other = "batch_size" if parameter == "temperature" else "temperature"
    some = [group for group in groups if group[other] == groups[0][other]]
    methods = list(dict.fromkeys(method for group in some for method in _shown(group["methods"])))
    figure = _figure(340)
    for method in methods:
        points = [
            (group[parameter], _fastest(group["methods"], method)) for group in some if method in group["methods"]
        ]
        marker = {"symbol": SYMBOLS[_place(method, methods) % len(SYMBOLS)], "size": 10}
        figure.add_scatter(
            x=[x for x, _ in points], y=[y for _, y in points], mode="lines+markers", name=_plain(label(method)),
            line={"color": _colour(method, methods)}, marker=marker, hovertemplate="%{y:.1f} tok/s<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title=axis, tickvals=sorted({group[parameter] for group in some}))
    return figure.update_yaxes(title="decode tok/s", rangemode="tozero")


def _total_per_request(groups: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """One curve a method, one point a batch size, at the first temperature."""
    some = [group for group in groups if group["temperature"] == groups[0]["temperature"]]
    if len(some) < 2:
        return None
    methods = list(dict.fromkeys(method for group in some for method in _shown(group["methods"])))
    figure = _figure(380)
    for method in methods:
        points = []
        for group in some:
            forms = [row for name, row in group["methods"].items() if name in _forms(method)]
            row = max(forms, key=lambda row: row["decode_tok_s"] or 0, default={})
            if row.get("decode_tok_s") and row["tok_s_per_sequence"]:
                points.append((row["tok_s_per_sequence"], row["decode_tok_s"], f"{group['batch_size']:g}"))
        if len(points) < 2:
            continue
        marker = {"symbol": SYMBOLS[_place(method, methods) % len(SYMBOLS)], "size": 10}
        figure.add_scatter(
            x=[x for x, _, _ in points], y=[y for _, y, _ in points], text=[size for _, _, size in points],
            mode="lines+markers+text", textposition="top center", name=_plain(label(method)),
            line={"color": _colour(method, methods)}, marker=marker,
            hovertemplate="%{text} together: %{y:.1f} tok/s in total, %{x:.1f} per request<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="tok/s per request (the numbers are batch sizes)", rangemode="tozero")
    figure.update_yaxes(title="total tok/s", rangemode="tozero")
    return figure if figure.data else None


def _rates(groups: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    several = len(groups) > 1
    rows = [
        (label(method) + (f", {_at(group)}" if several else ""), row)
        for group in groups
        for method, row in group["methods"].items()
        if row["acceptance"] is not None
    ]
    if not rows:
        return None
    figure = _figure(100 + 56 * len(rows))
    for name, key, colour, pattern in (
        ("acceptance", "acceptance", OTHERS[1], "/"),
        ("hit rate", "hit_rate", OTHERS[3], ""),
    ):
        values = [None if row[key] is None else 100 * row[key] for _, row in rows]
        figure.add_bar(
            y=[_plain(name) for name, _ in rows], x=values, orientation="h", name=name, cliponaxis=False,
            text=["" if value is None else f"{value:.0f} %" for value in values], textposition="outside",
            marker=_pattern(colour, pattern), hovertemplate="%{x:.1f} %<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="%", range=[0, 108])
    figure.update_yaxes(autorange="reversed")
    return figure.update_layout(barmode="group", bargap=0.25)


def _predicted(group: Mapping[str, Any]) -> go.Figure | None:
    shown = [p for p in group["predictions"] if not p["bound"] and "summary" not in p["name"]]
    if not shown:
        return None
    figure = _figure(420)
    values = [value for p in shown for point in p["points"] for value in point]
    low, high = min(values) * 0.95, max(values) * 1.05
    figure.add_scatter(
        x=[low, high], y=[low, high], mode="lines", name="exact", line={"color": OTHERS[0], "dash": "dash"},
        hoverinfo="skip",
    )  # fmt: skip
    names = list(dict.fromkeys(p["ratio"] for p in shown))
    for number, p in enumerate(shown):
        ratio = " over ".join(label(method) for method in p["ratio"].split("/"))
        colour = list(COLOURS.values())[1:][names.index(p["ratio"]) % 6]
        figure.add_scatter(
            x=[measured for _, measured in p["points"]], y=[predicted for predicted, _ in p["points"]],
            mode="markers", name=_plain(f"{ratio}: {p['name']}"), opacity=0.85,
            marker={"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9, "color": colour},
            hovertemplate="measured %{x:.2f}, predicted %{y:.2f}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="measured ratio of speeds")
    return figure.update_yaxes(title="predicted")


def _figure(height: int) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="none", height=height, autosize=True, margin={"l": 8, "r": 12, "t": 8, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", font={"size": 14, "color": "#6f7b8f"},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom"},
        showlegend=True, hoverlabel={"bgcolor": "#1b2230", "font": {"color": "#ffffff"}}, dragmode=False,
    )  # fmt: skip
    axis = {"automargin": True, "gridcolor": "#c8ced8", "zerolinecolor": "#c8ced8", "fixedrange": True}
    return figure.update_layout(xaxis=axis, yaxis=axis | {"ticklabelstandoff": 6}).update_layout(
        xaxis_title_font_size=14, yaxis_title_font_size=14
    )


def _place(method: str, methods: Sequence[str]) -> int:
    """A method looks the same in every figure; one that is not ours, or has other cores, gets what its place gives."""
    return list(COLOURS).index(method) if method in COLOURS else list(methods).index(method)


def _colour(method: str, methods: Sequence[str]) -> str:
    return COLOURS.get(method.partition("@")[0], OTHERS[_place(method, methods) % len(OTHERS)])


def _marker(method: str, methods: Sequence[str]) -> dict[str, Any]:
    return _pattern(_colour(method, methods), PATTERNS[_place(method, methods) % len(PATTERNS)])


def _pattern(colour: str, shape: str) -> dict[str, Any]:
    return {
        "color": colour,
        "line": {"color": colour, "width": 1},
        "pattern": {"shape": shape, "bgcolor": f"{colour}66", "fgcolor": colour, "size": 7, "solidity": 0.4},
    }


def inert(text: str) -> str:
    """Controls, among them those that turn the direction of writing, spelt out."""
    return "".join(f"\u2039U+{ord(c):04X}\u203a" if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in text)


def _plain(text: str) -> str:
    """Text that Plotly shows as it is: it takes tags and entities for markup."""
    return html.escape(inert(text[:80]), quote=False)


# ---------------------------------------------------------------------------------------------------------------
# The page

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_CSS = """
:root{color-scheme:light dark;--ink:#171c26;--paper:#fff;--muted:#566072;--line:#d5dbe4;--head:#f3f5f9}
@media (prefers-color-scheme:dark){:root{--ink:#eef1f6;--paper:#151922;--muted:#a6b0c0;--line:#39424f;--head:#1d222c}}
body{margin:0 auto;padding:20px 16px 48px;max-width:1120px;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}h2{font-size:19px;margin:32px 0 8px}
p,dd{color:var(--muted);margin:4px 0}dt{font-weight:700;margin-top:10px}dd{margin-left:0}.warning{color:var(--ink);font-weight:700}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:10px}
.scroll:focus-visible{outline:2px solid #4c7ce6}
table{border-collapse:collapse;width:100%;font-size:14.5px;font-variant-numeric:tabular-nums}
th,td{padding:7px 11px;text-align:right;white-space:nowrap;border-top:1px solid var(--line)}
thead th{background:var(--head);border-top:0;font-weight:700}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
thead th:first-child{background:var(--head)}
.words td,.words th{text-align:left}.words td:last-child{white-space:normal;min-width:420px}
figure{margin:0}
@media print{.scroll{overflow:visible}}
"""


def about(results: Mapping[str, Any]) -> str:
    """Models, devices and machine in a sentence."""
    engine, machine = results.get("engine") or {}, results.get("hardware") or {}
    parts = [
        f"{engine['target']} with {engine['draft']}" if {"target", "draft"} <= engine.keys() else "",
        f"{engine['target_device']} ({engine.get('target_threads', '?')} threads) and {engine.get('draft_device')} "
        f"({engine.get('draft_threads', '?')} threads), {engine.get('dtype')}"
        if "target_device" in engine
        else "",
        f"{machine['cpu']}, {machine.get('cores')} cores" if "cpu" in machine else "",
        f"measured {results['measured_at']}" if results.get("measured_at") else "",
    ]
    return " \u00b7 ".join(inert(part)[:400] for part in parts if part)


def page(results: Mapping[str, Any]) -> str:
    """One HTML file with everything in it, plotly.js included: it asks no other host for anything."""
    plots = [_plot(number, title, figure) for number, (title, figure) in enumerate(figures(results))]
    parts = [
        f"<h1>Speculative decoding, measured</h1><p>{_escape(about(results))}</p>",
        f"<p>{_escape(_settings(results))}</p>",
        f'<p class="warning">Not complete: {_escape(results["stopped"])}.</p>' if not results["complete"] else "",
        *(_table(table) for table in tables(results) if not table.words),
        *plots,
        *(_table(table) for table in tables(results) if table.words),
        "<h2>What the numbers mean</h2><dl>",
        *(f"<dt>{_escape(word)}</dt><dd>{_escape(meaning)}.</dd>" for word, meaning in DEFINITIONS),
        "</dl>",
    ]
    script = f"<script>{get_plotlyjs()}</script>" if plots else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><link rel="icon" href="data:,">'
        f"<title>Saguaro benchmark</title><style>{_CSS}{STYLE}</style>{script}</head><body><main>{''.join(parts)}"
        "</main></body></html>\n"
    )


def _settings(results: Mapping[str, Any]) -> str:
    plan = results.get("plan") or {}
    said = [f"{name.replace('_', ' ')} {plan[name]}" for name in ("prompts", "turns", "repeat") if name in plan]
    said += [f"{name.replace('_', ' ')} {value}" for name, value in (results.get("settings") or {}).items()]
    return ", ".join(said)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_escape(cell)}</th>' for cell in table.head)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in table.rows)
    title, kind = _escape(table.title), ' class="words"' if table.words else ""
    return (
        f'<h2>{title}</h2><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        + (f"<p>{_escape(table.note)}</p>" if table.note else "")
    )


def _row(cells: Sequence[str]) -> str:
    return f'<th scope="row">{_escape(cells[0])}</th>' + "".join(f"<td>{_escape(cell)}</td>" for cell in cells[1:])


def _plot(number: int, title: str, figure: go.Figure) -> str:
    drawn = figure.to_html(
        full_html=False, include_plotlyjs=False, config=CONFIG, div_id=f"figure-{number}", default_height="100%"
    )
    return f"<h2>{_escape(title)}</h2><figure>{drawn}</figure>"


def _escape(text: str) -> str:
    return html.escape(inert(text))

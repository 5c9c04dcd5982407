"""The lab in a real browser on the stub engine, and the report as a file with the network blocked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from saguaro_core import bench, report, results_file
from saguaro_core.bench import Plan, measure
from saguaro_core.prompts import Prompt
from saguaro_core.results import results

from .browsing import set_slider, watched
from .stub_engine import StubEngine
from .test_bench import Batching
from .test_page import Site, browser, until  # noqa: F401
from .test_viz import HOSTILE

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
pytest.importorskip("gradio")

EVIL = " ".join(HOSTILE)[:70]
SHOWN_EVIL = report.inert(EVIL)
TIMEOUT_MS = 20_000


def measured(task: str = "math", temperatures=(0.0, 1.0), engine=None) -> dict:
    """Results of the stub, which measures nothing: for the page's tests only."""
    engine = engine or StubEngine(speed=1000)
    prompts = tuple(Prompt(f"{task} {i}", name, ("x",)) for i, name in enumerate((task, "code")))
    plan = Plan(
        prompts=prompts, methods=("ar", "sd", "ssd"), temperatures=temperatures, settings={"max_new_tokens": 16}
    )
    played: list = []
    for _ in measure(engine, plan, played):
        pass
    return json.loads(json.dumps(results(played, {"split": engine.info}, plan.to_dict())))


class Visitor:
    """A browser tab on the lab. Notes what must never happen: dialogs, errors, foreign requests."""

    def __init__(self, browser, url: str, home: str = "", width: int = 1280, scheme: str = "light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(TIMEOUT_MS)
        self.bad = watched(self.tab, home or url)
        self.tab.goto(url)

    def tables(self) -> list[str]:
        return [item.text_content() for item in self.tab.query_selector_all(".tables h3")]

    def plots(self) -> int:
        return self.tab.evaluate("document.querySelectorAll('.js-plotly-plot .main-svg').length")

    def upload(self, path: Path) -> None:
        self.tab.wait_for_selector("#lab-open")
        self.tab.set_input_files("#lab-files input[type=file]", path)

    def wait_said(self, words: str) -> None:
        self.tab.wait_for_function(
            "words => document.querySelector('#lab-notice')?.textContent.includes(words)", arg=words
        )

    def wait_cost(self, words: str) -> None:
        self.tab.wait_for_function(
            "words => document.querySelector('#lab-cost')?.textContent.includes(words)", arg=words
        )

    def choose(self, group: str, words) -> None:
        """Tick these words and no others."""
        self.tab.wait_for_selector(f"#lab-{group} input")
        for box in self.tab.query_selector_all(f"#lab-{group} input"):
            if box.is_checked() != (box.evaluate("box => box.closest('label').textContent.trim()") in words):
                box.click()

    def measure(self, tasks=("math",), prompts: int = 1, tokens: int = 16) -> None:
        self.tab.wait_for_selector("#lab-start")
        self.choose("tasks", tasks)
        for name, value in (("prompts", prompts), ("tokens", tokens)):
            set_slider(self.tab, f"#lab-{name}", value)
        self.tab.click("#lab-start")


@pytest.fixture
def visit(browser):
    opened: list[Visitor] = []

    def open_tab(url: str, **options) -> Visitor:
        opened.append(Visitor(browser, url, **options))
        return opened[-1]

    yield open_tab
    for visitor in opened:
        visitor.context.close()
        assert not visitor.bad, visitor.bad


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    from viz import lab

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "RECORDED", tmp_path_factory.mktemp("nothing"))  # the tab is empty at first
        site = Site(Batching(speed=50))
    yield site
    site.close()


@pytest.fixture
def lab(site: Site, visit) -> Visitor:
    site.engine.speed, site.engine.fail, site.engine.text = 50, None, None
    site.engine.runs.clear()
    return visit(f"{site.url}?tab=lab", home=site.url)


# ---------------------------------------------------------------------------------------------------------------


def test_the_lab_needs_no_torch():
    code = "import sys; import viz.lab; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_measure_see_and_save(lab: Visitor, tmp_path):
    lab.measure(prompts=2)
    lab.tab.wait_for_selector("#lab-racing li")
    lab.tab.wait_for_selector(".lab-figure .js-plotly-plot .main-svg", timeout=30_000)
    assert lab.tables() == ["Methods, greedy", "Predicted against measured, greedy"]
    assert lab.plots() >= 2
    head, *rows = [line.inner_text().split("\t") for line in lab.tab.query_selector_all("#lab-tables tr")]
    assert [row[0] for row in rows] == ["AR", "SD", "SSD", "AR, unpadded"] and head[-1] == "runs"
    assert all(row[-1] == "2" for row in rows)
    saved = {}
    for name in ("report (HTML)", "results.json", "results.csv"):
        with lab.tab.expect_download() as download:
            lab.tab.click(f"button:has-text('Save {name}')")
        saved[download.value.suggested_filename] = Path(download.value.path()).read_text(encoding="utf-8")
    made = results_file.loads(saved["results.json"])
    assert made["complete"] and made["plan"]["methods"] == ["ar", "sd", "ssd"] and len(made["runs"]) == 8
    assert f"{made['methods']['ssd']['decode_tok_s']:.1f}" == rows[2][1]
    assert saved["results.csv"].count("\n") == 9 and "<h1>" in saved["report.html"]


def test_stop_keeps_what_was_measured(lab: Visitor, site: Site):
    lab.measure(tasks=("math", "code"), prompts=12, tokens=64)
    until(lambda: len(site.engine.runs) > 8, 30)
    lab.tab.click("#lab-stop")
    lab.wait_said("stopped by the visitor")
    until(lambda: site.engine.busy == 0, 2)
    lab.tab.wait_for_selector("#lab-start", state="visible")
    assert "Methods, greedy" in lab.tables()


def test_nothing_chosen(lab: Visitor):
    lab.measure(tasks=())
    lab.wait_said("Choose at least one task.")


def test_batches(lab: Visitor, site: Site):
    lab.choose("batch-sizes", ("1 (alone)", "8"))
    lab.choose("methods", ("AR", "SSD", "HF generate"))
    lab.measure(prompts=9)
    lab.wait_cost("42 runs, up to 1,344 new tokens: 9 prompts one by one and in 2 batches of 8, with")
    lab.tab.wait_for_selector(".lab-figure .js-plotly-plot .main-svg", timeout=30_000)
    assert [title for title in lab.tables() if title.startswith("Methods")] == [
        "Methods, greedy",
        "Methods, greedy, 8 sequences together",
    ]
    runs = [line.inner_text().split("\t")[-1] for line in lab.tab.query_selector_all("#lab-tables tr")]
    assert runs == ["runs", "9", "9", "9", "9", "runs", "2", "2", "2"]
    sizes = {(method, len(texts)) for method, texts in site.engine.batches if texts}
    assert sizes == {("ar", 8), ("ssd", 8)}  # transformers' own runs alone only


def test_a_batch_that_is_stopped(lab: Visitor, site: Site):
    site.engine.speed = 0.05
    lab.choose("batch-sizes", ("8",))
    lab.measure(prompts=8)
    until(lambda: site.engine.busy == 8, 10)
    lab.tab.click("#lab-stop")
    until(lambda: site.engine.busy == 0, 2)


def test_what_it_costs_is_said_before(lab: Visitor):
    lab.wait_cost("32 runs, up to 3,072 new tokens: 8 prompts one by one, with AR (padded and unpadded), SD and SSD.")
    lab.choose("batch-sizes", ())
    lab.wait_cost("Choose at least one batch size.")
    lab.choose("batch-sizes", ("16",))
    lab.wait_cost("A batch that the prompts do not fill repeats some.")
    lab.choose("methods", ("SSD", "HF assisted"))
    lab.wait_cost("hf-assisted: one prompt at a time")
    lab.tab.click("#lab-start")
    lab.wait_said("hf-assisted: one prompt at a time")
    assert lab.tab.is_visible("#lab-start")


def test_the_cost_is_the_number_of_runs_that_are_made():
    from viz.lab import Chosen, cost_of, plan_of

    chosen = Chosen(["math", "code"], ["ar", "sd", "hf-ar"], ["0", "1"], ["1", "8"], 3, 20, 2)
    played: list = []
    for _ in measure(Batching(speed=1e6), plan_of(chosen), played):
        pass
    said = cost_of(chosen)
    assert said.startswith(
        f"{len(played)} runs, up to {20 * sum(len(p.rows or (p.ids,)) for p in played):,} new tokens"
    )


def test_a_closed_tab_frees_the_engine(lab: Visitor, site: Site):
    site.engine.speed = 0.05
    lab.measure()
    until(lambda: site.engine.busy == 1, 10)
    lab.tab.close()
    until(lambda: site.engine.busy == 0, 2)


def test_an_engine_that_fails(lab: Visitor, site: Site):
    site.engine.fail = RuntimeError(EVIL)
    lab.measure()
    lab.wait_said(EVIL.split()[0])
    lab.tab.wait_for_selector("#lab-start", state="visible")


def test_hostile_results_are_shown_as_written(lab: Visitor, tmp_path):
    made = measured(EVIL)
    made["engine"]["target"] = made["stopped"] = EVIL
    for group in made["groups"]:
        for part in (group, *group["by_task"].values()):
            part["methods"][EVIL] = part["methods"]["ssd"]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(made))
    before = lab.tab.evaluate("document.querySelectorAll('script, img, iframe, a:not(.modebar-btn)').length")
    lab.upload(path)
    lab.tab.wait_for_function(  # the recorded results stood there before
        "[...document.querySelectorAll('#lab-tables th')].some((cell) => cell.textContent.includes('onerror'))"
    )
    lab.tab.wait_for_selector(".lab-figure .js-plotly-plot .main-svg", timeout=30_000)
    cells = [cell.text_content() for cell in lab.tab.query_selector_all("#lab-tables th")]
    assert SHOWN_EVIL in cells
    drawn = lab.tab.evaluate(
        "[...document.querySelectorAll('.lab-figure .main-svg text')].map(text => text.textContent)"
    )
    squeezed = ["".join(text.split()) for text in drawn]
    assert "".join(SHOWN_EVIL.split()) in squeezed, drawn[:20]
    assert lab.tab.evaluate("document.querySelectorAll('script, img, iframe, a:not(.modebar-btn)').length") == before


def test_files_that_are_no_results(lab: Visitor, tmp_path):
    path = tmp_path / "results.json"
    for text in (EVIL, '{"groups": [{"temperature": "' + "<b>" + '"}]}'):
        path.write_text(text)
        lab.upload(path)
        lab.wait_said("The file")
        lab.tab.wait_for_timeout(300)
    assert lab.plots() == 0


@pytest.fixture
def replaying(tmp_path, monkeypatch) -> Iterator:
    """Serves the page without an engine, on the recorded results that it is given."""
    from viz import lab

    monkeypatch.setattr(lab, "RECORDED", tmp_path)
    sites: list[Site] = []

    def serve(**recorded: dict) -> Site:
        for name, made in recorded.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(made))
        sites.append(Site())
        return sites[-1]

    yield serve
    for site in sites:
        site.close()


def test_without_an_engine_recorded_results_are_shown(replaying, visit):
    site = replaying(measured=measured())
    visitor = visit(f"{site.url}?tab=lab", home=site.url, width=390, scheme="dark")
    visitor.tab.wait_for_selector(".lab-figure .js-plotly-plot .main-svg", timeout=30_000)
    assert not visitor.tab.is_visible("#lab-start") and "Methods, greedy" in visitor.tables()
    assert visitor.tab.evaluate("document.documentElement.scrollWidth") == 390
    box = visitor.tab.query_selector(".lab-figure .js-plotly-plot").bounding_box()
    assert box["width"] > 250 and box["height"] > 200


def test_the_comparison_of_methods_is_shown_first(replaying, visit):
    site = replaying(batches=measured(temperatures=(1.0,)), methods=measured(), sequences=measured(temperatures=(1.0,)))
    visitor = visit(f"{site.url}?tab=lab", home=site.url)
    visitor.tab.wait_for_selector("#lab-tables h3")
    assert visitor.tab.input_value("#lab-shipped input") == "methods" and visitor.tables()[0] == "Methods, greedy"


def test_without_anything_recorded_the_tab_says_so(replaying, visit):
    site = replaying()
    visitor = visit(f"{site.url}?tab=lab", home=site.url)
    visitor.tab.wait_for_function(
        "document.querySelector('#lab-tables')?.textContent.includes('Nothing has been measured')"
    )
    assert visitor.tab.is_visible("#lab-open")


# ---------------------------------------------------------------------------------------------------------------
# The report as a file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_opens_offline(browser, tmp_path, scheme):
    made = measured(EVIL)
    made["stopped"], made["complete"] = EVIL, False
    path = tmp_path / "report.html"
    path.write_text(report.page(made), encoding="utf-8")
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme, offline=True)
    tab, bad = context.new_page(), []
    tab.on("dialog", lambda dialog: (bad.append(dialog.message), dialog.dismiss()))
    tab.on("pageerror", lambda error: bad.append(str(error)))
    tab.on("console", lambda line: bad.append(line.text))
    tab.on(
        "request", lambda request: bad.append(request.url) if not request.url.startswith(("file:", "data:")) else None
    )
    tab.goto(path.as_uri())
    tab.wait_for_selector(".js-plotly-plot .main-svg")
    tab.wait_for_timeout(500)
    assert tab.evaluate("document.querySelectorAll('.js-plotly-plot').length") == len(report.figures(made)) >= 4
    assert SHOWN_EVIL in tab.inner_text("thead >> nth=1") or SHOWN_EVIL in tab.text_content("main")
    assert tab.evaluate("document.querySelectorAll('img, iframe').length") == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    ink = tab.evaluate("getComputedStyle(document.querySelector('.main-svg text')).fill")
    assert ink == {"light": "rgb(23, 28, 38)", "dark": "rgb(238, 241, 246)"}[scheme]
    context.close()
    assert bad == []


def test_figures_show_what_was_measured():
    made = measured()
    titles = [title for title, _ in report.figures(made)]
    assert {"Speed by task, greedy", "Speed by temperature", "Acceptance and hit rate"} <= set(titles)
    bars = {bar.name: bar for bar in report.figures(made)[0][1].data}
    speeds = made["groups"][0]["by_task"]["math"]["methods"]
    assert bars["SSD"].x[0] == speeds["ssd"]["decode_tok_s"] and bars["SSD"].y[0] == "math"
    assert bars["AR"].x[0] == max(speeds[m]["decode_tok_s"] for m in ("ar", bench.UNPADDED))
    assert "Speed by temperature" not in [title for title, _ in report.figures(measured(temperatures=(0.0,)))]
    assert report.figures(json.loads(json.dumps(results([], {}, {})))) == []

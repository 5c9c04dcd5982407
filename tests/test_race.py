"""The race tab in a real browser, on the stub engine and on recorded traces."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from saguaro_core import events as ev
from saguaro_core import trace

from .browsing import save, set_slider, upload, watched
from .stub_engine import StubEngine, StubRun, play
from .test_export import SHIPPED
from .test_page import Site, browser, until  # noqa: F401
from .test_viz import HOSTILE

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
pytest.importorskip("gradio")

EVIL = " ".join(HOSTILE)
SHOWN_EVIL = EVIL.replace("\u202e", "\u2039U+202E\u203a").replace("\u202c", "\u2039U+202C\u203a")
TIMEOUT_MS = 20_000


class Racing(StubEngine):
    """The stub, with the prompt in the events, as the engine has it."""

    def generate(self, prompt, **options) -> StubRun:
        run = super().generate(prompt, **options)
        start = run._left.popleft()
        run._left.appendleft(ev.RunStarted(run=start.run, models=start.models, settings=start.settings, prompt=prompt))
        return run


class Visitor:
    """A browser tab on the race. Notes what must never happen: dialogs, errors, foreign requests."""

    def __init__(self, browser, url: str, width: int = 1280, query: str = "", reduced: bool = False):
        motion = "reduce" if reduced else "no-preference"
        self.context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion=motion)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(TIMEOUT_MS)
        self.bad = watched(self.tab, url)
        self.tab.goto(f"{url}?tab=race{query}")
        self.wait("race.labels.length > 0")

    def race(self) -> dict:
        return self.tab.evaluate("document.querySelector('.race').sgRace()")

    def wait(self, condition: str, seconds: float = 10) -> None:
        """Until `condition` on `race` (the state) and `text(selector)` holds."""
        self.tab.wait_for_function(
            "() => { const root = document.querySelector('.race'); if (!root?.sgRace) return false;"
            " const race = root.sgRace(), text = (name) => document.querySelector(name)?.textContent ?? '';"
            f" return {condition}; }}",
            timeout=seconds * 1000,
        )

    def ask(self, prompt: str, tokens: int | None = None) -> None:
        if tokens is not None:
            self.tab.click("#race-settings > button")
            set_slider(self.tab, "#race-tokens", tokens)
        self.tab.fill("#race-prompt textarea", prompt)
        self.tab.click("#race-start")

    def click(self, act: str) -> None:
        self.tab.click(f".race [data-act={act}]")

    def scrub(self, share: float) -> None:
        self.tab.locator(".rc-scrub").fill(str(round(share * 1000)))

    def colours(self, canvas: str) -> int:
        return self.tab.evaluate(
            """(name) => { const c = document.querySelector(name);
            return new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size; }""",
            canvas,
        )

    def save(self, name: str) -> tuple[str, str]:
        return save(self.tab, "#race-files", name)

    def upload(self, *files: Path) -> None:
        upload(self.tab, "#race-files", *files)

    def said(self) -> str:
        return " ".join(item.text_content() for item in self.tab.query_selector_all("#race-files .sg-notice"))


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
def stub_site() -> Iterator[Site]:
    site = Site(Racing(speed=4))
    yield site
    site.close()


@pytest.fixture
def site(stub_site: Site) -> Site:
    engine = stub_site.engine
    engine.text, engine.speed, engine.fail = None, 4, None
    engine.runs.clear()
    engine.calls.clear()
    return stub_site


@pytest.fixture(scope="module")
def replay_site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


# ---------------------------------------------------------------------------------------------------------------
# A recorded race


def test_without_an_engine_a_recorded_race_plays(visit, replay_site):
    visitor = visit(replay_site.url)
    race = visitor.race()
    assert {"AR", "SD", "SSD"} <= set(race["labels"]) and race["now"] == 0 and not race["playing"]
    assert visitor.tab.text_content(".rc-source") == "recorded run" and not visitor.tab.is_visible("#race-start")
    assert "identical, token for token" in visitor.tab.text_content(".rc-verdict")
    visitor.click("play")
    visitor.wait("race.playing && race.now > 0.3")
    began, first = time.monotonic(), visitor.race()["now"]
    time.sleep(0.8)
    passed, moved = time.monotonic() - began, visitor.race()["now"] - first
    assert moved == pytest.approx(passed, abs=0.2), "a race plays at its true speed"
    visitor.wait("!race.playing && race.now === race.length")
    assert all(count == visitor.race()["counts"][0] for count in visitor.race()["counts"])
    assert visitor.tab.text_content(".rc-play") == "Again"
    draws = visitor.race()["draws"]
    time.sleep(0.4)
    assert visitor.race()["draws"] == draws, "nothing is drawn while nothing happens"


def test_what_is_shown_at_a_moment_is_what_the_traces_say(visit, replay_site):
    visitor = visit(replay_site.url)
    traces = {path.stem: trace.load(path) for path in SHIPPED}
    runs = {
        run[0].settings["method"].upper(): [event for event in run if isinstance(event, ev.Tokens) and event.ids]
        for run in traces.values()
        if run[0].prompt == visitor.tab.text_content(".rc-prompt") and run[0].settings["temperature"] == 0
    }
    for share in (0.31, 0.77):
        visitor.scrub(share)
        race = visitor.race()
        for label, count in zip(race["labels"], race["counts"], strict=True):
            tokens = runs[label]
            wanted = sum(len(event.ids) for event in tokens if event.t1 - tokens[0].t1 <= race["now"] + 1e-6)
            assert count == wanted and 1 < count
        words = visitor.tab.locator(".rc-row").nth(race["labels"].index("SSD")).inner_text()

        def at(tokens, count):
            made, first = 0, tokens[0].t1
            for event in tokens:
                made += len(event.ids)
                if made >= count:
                    return event.t1 - first
            return None

        count = race["counts"][race["labels"].index("SSD")]
        assert f"{at(runs['AR'], count) / at(runs['SSD'], count):.2f}×" in words
        assert visitor.tab.locator(".rc-text .t.all").count() == min(race["counts"])
        assert visitor.tab.locator(".rc-text .t.some").count() == max(race["counts"]) - min(race["counts"])


def test_keys_step_by_a_token_and_speeds_are_kept(visit, replay_site):
    visitor = visit(replay_site.url)
    visitor.tab.focus(".race")
    seen = [visitor.race()["counts"]]
    for _ in range(4):
        visitor.tab.keyboard.press("ArrowRight")
        seen.append(visitor.race()["counts"])
    assert all(sum(after) > sum(before) for before, after in pairwise(seen))
    visitor.tab.keyboard.press("ArrowLeft")
    assert visitor.race()["counts"] == seen[3]
    visitor.tab.keyboard.press("End")
    assert visitor.race()["now"] == visitor.race()["length"]
    visitor.tab.keyboard.press("Home")
    assert visitor.race()["now"] == 0
    visitor.tab.click("[data-speed='0.25']")
    visitor.tab.keyboard.press(" ")
    began = time.monotonic()
    visitor.wait("race.now > 0.05")
    first, at = visitor.race()["now"], time.monotonic()
    time.sleep(1)
    share = (visitor.race()["now"] - first) / (time.monotonic() - at)
    assert share == pytest.approx(0.25, abs=0.06), began
    visitor.tab.keyboard.press(" ")
    assert not visitor.race()["playing"]


def test_both_views_and_the_pictures(visit, replay_site):
    visitor = visit(replay_site.url)
    visitor.scrub(0.4)  # before the fastest has ended
    visitor.tab.wait_for_function("document.querySelector('.rc-lanes').getAttribute('aria-label')?.includes('tokens')")
    boxes = [visitor.tab.locator(".rc-cursor i").nth(i).bounding_box() for i in range(3)]
    assert len({(box["x"], box["y"]) for box in boxes}) == 3, "three cursors stand at three places"
    tags = [visitor.tab.locator(".rc-cursor b").nth(i).bounding_box() for i in range(3)]
    for i, one in enumerate(tags):
        for other in tags[i + 1 :]:
            apart = one["x"] + one["width"] <= other["x"] + 1 or other["x"] + other["width"] <= one["x"] + 1
            assert apart or abs(one["y"] - other["y"]) > 10, "labels lie over one another"
    assert visitor.colours(".rc-lanes") > 12 and visitor.colours(".rc-curves") > 12
    visitor.tab.click("[data-view=panes]")
    race = visitor.race()
    whole = "".join(visitor.tab.locator(".rc-text .t").all_text_contents())
    shown = visitor.tab.locator(".rc-pane div").all_text_contents()
    assert race["view"] == "panes" and all(whole.startswith(text) for text in shown)
    assert len(shown[0]) < len(shown[-1]) < len(whole)
    visitor.scrub(0.2)
    assert all(
        len(now) < len(before)
        for now, before in zip(visitor.tab.locator(".rc-pane div").all_text_contents(), shown, strict=True)
    )


def test_a_long_race_follows_the_leader_and_says_who_is_behind(visit, site):
    visitor = visit(site.url, width=390)
    site.engine.speed = 40
    visitor.ask("Hello", 800)
    visitor.wait("text('.rc-source').includes('measured')", 20)
    visitor.scrub(0.6)
    box = visitor.tab.locator(".rc-one").bounding_box()
    for _ in range(3):  # the view holds still
        places = [visitor.tab.locator(".rc-cursor b").nth(i).bounding_box()["y"] for i in range(3)]
        assert all(box["y"] - 1 <= y <= box["y"] + box["height"] for y in places), places
        visitor.click("forward")
    assert visitor.tab.locator(".rc-cursor b").all_text_contents() == ["AR \u2191", "SD \u2191", "SSD"]
    visitor.tab.evaluate("document.querySelector('.rc-one').scrollTop = 0")
    visitor.tab.wait_for_function("!document.querySelector('.rc-text').textContent.includes('AR \u2191')")
    assert visitor.tab.evaluate("document.querySelector('.rc-one').scrollTop") == 0, "the reader's own scrolling stands"


def test_less_motion_means_no_play_of_its_own(visit, site):
    visitor = visit(site.url, reduced=True)
    visitor.ask("Hello", 16)
    visitor.wait("text('.rc-source').includes('measured')")
    time.sleep(0.3)
    assert not visitor.race()["playing"] and visitor.race()["now"] == 0
    visitor.click("forward")
    assert visitor.race()["now"] > 0


# ---------------------------------------------------------------------------------------------------------------
# Measuring


def test_three_methods_are_measured_one_after_another_and_then_race(visit, site):
    visitor = visit(site.url)
    visitor.ask("Tell me about races.", 64)
    visitor.tab.wait_for_selector("#race-stop", state="visible")
    visitor.tab.wait_for_function("document.querySelectorAll('.racing li.running').length === 1")
    assert visitor.tab.locator(".racing li").all_inner_texts()[0].startswith("AR")
    most = 0
    while not visitor.tab.is_visible("#race-start"):
        most = max(most, site.engine.busy)
        time.sleep(0.02)
    assert most == 1, "each method is measured alone"
    visitor.wait("text('.rc-source').includes('measured') && race.playing")
    visitor.wait("race.now === race.length")
    asked = [(call["method"], call["max_new_tokens"]) for _, call in site.engine.calls]
    assert asked == [(method, tokens) for method in ("ar", "sd", "ssd") for tokens in (4, 64)]
    assert all(call["reuse"] == 0 and prompt == "Tell me about races." for prompt, call in site.engine.calls)
    assert visitor.race()["counts"] == [64, 64, 64] and visitor.tab.text_content(".rc-prompt") == "Tell me about races."
    summary = site.engine.runs[-1].summary
    cells = visitor.tab.locator(".rc-table tbody tr").nth(2).locator("td").all_text_contents()
    assert cells[0] == f"{summary['decode_tok_s']:.1f} tok/s" and cells[3] == f"{summary['ttft_s'] * 1000:.0f} ms"
    assert cells[-1] == f"{summary['hit_rate'] * 100:.0f} %"
    assert visitor.tab.locator(".racing li").count() == 0


def test_nothing_is_run_for_no_prompt_or_no_method(visit, site):
    visitor = visit(site.url)
    visitor.ask("   ")
    visitor.wait("text('#race-notice .sg-notice').includes('Type a prompt')")
    for name in ("ar", "sd", "ssd"):
        visitor.tab.click(f"#race-methods label:has(input[name='{name}'])")
    visitor.ask("Hello")
    visitor.wait("text('#race-notice .sg-notice').includes('at least one method')")
    assert not site.engine.calls and visitor.tab.is_visible("#race-start")


def test_a_method_that_fails_leaves_the_others_their_race(visit, site):
    visitor = visit(site.url)
    site.engine.fail = ValueError(f"no such method {HOSTILE[0]}")
    visitor.ask("Hello", 16)
    visitor.wait("text('.rc-source').includes('measured')")
    assert visitor.race()["labels"] == ["SD", "SSD"]
    said = visitor.tab.text_content("#race-notice .sg-notice")
    assert f"AR: no such method {HOSTILE[0]}" in said
    assert "failed" in visitor.tab.locator(".racing li").nth(0).inner_text()


def test_stop_ends_the_measurement_and_keeps_what_there_is(visit, site):
    visitor = visit(site.url)
    visitor.ask("Hello", 400)
    visitor.tab.wait_for_function("document.querySelectorAll('.racing li.done').length === 1", timeout=20000)
    visitor.tab.wait_for_function("document.querySelectorAll('.racing li.running').length === 1")
    visitor.tab.click("#race-stop")
    began = time.monotonic()
    visitor.tab.wait_for_selector("#race-start", state="visible")
    assert time.monotonic() - began < 1.5
    visitor.wait("text('.rc-source').includes('measured')")
    assert visitor.race()["labels"] == ["AR"] and site.engine.busy == 0
    assert {call["method"] for _, call in site.engine.calls} == {"ar", "sd"}


def test_a_closed_tab_frees_the_engine(visit, site):
    visitor = visit(site.url)
    visitor.ask("Hello", 1024)
    visitor.tab.wait_for_function("document.querySelectorAll('.racing li.running').length === 1")
    until(lambda: site.engine.calls and site.engine.calls[-1][1]["max_new_tokens"] == 1024)
    visitor.tab.close()
    until(lambda: site.engine.runs[-1].cancelled, 2.0)
    assert site.engine.busy == 0
    time.sleep(0.3)
    assert {call["method"] for _, call in site.engine.calls} == {"ar"}


def test_two_visitors_queue_and_see_only_their_own(visit, site):
    first, second = visit(site.url), visit(site.url)
    first.ask("Mine", 200)
    first.tab.wait_for_selector("#race-stop", state="visible")
    second.ask("Yours", 16)
    second.tab.wait_for_selector("#race-leave", state="visible")
    second.tab.wait_for_function("/queue: ?1/i.test(document.querySelector('#race-notice').innerText)")
    assert second.tab.locator(".racing li").count() == 0
    second.wait("text('.rc-source').includes('measured')", 25)
    first.wait("text('.rc-source').includes('measured')")
    assert first.tab.text_content(".rc-prompt") == "Mine" and second.tab.text_content(".rc-prompt") == "Yours"
    first_file, second_file = first.save("trace")[1], second.save("trace")[1]
    assert "Yours" not in first_file and "Mine" not in second_file


def test_leaving_the_queue(visit, site):
    first, second = visit(site.url), visit(site.url)
    first.ask("Mine", 400)
    first.tab.wait_for_selector("#race-stop", state="visible")
    second.ask("Yours", 16)
    second.tab.click("#race-leave")
    second.tab.wait_for_selector("#race-start", state="visible")
    assert not site.engine.runs[-1].cancelled
    first.tab.click("#race-stop")
    first.tab.wait_for_selector("#race-start", state="visible")
    time.sleep(0.3)
    assert "Yours" not in [prompt for prompt, _ in site.engine.calls]


# ---------------------------------------------------------------------------------------------------------------
# Text of others


def _elements(visitor: Visitor) -> list[str]:
    return visitor.tab.evaluate(
        """() => [...document.querySelectorAll('.race *')].map((e) => e.tagName.toLowerCase())
        .filter((name) => ['img', 'script', 'iframe', 'style', 'a', 'form', 'video', 'math', 'pre'].includes(name))"""
    )


def test_hostile_text_is_shown_and_does_nothing(visit, site):
    visitor = visit(site.url)
    site.engine.text, site.engine.speed = EVIL, 20
    visitor.ask(EVIL)
    visitor.wait("text('.rc-source').includes('measured')", 20)
    visitor.tab.focus(".race")
    visitor.tab.keyboard.press("End")
    assert "".join(visitor.tab.locator(".rc-text .t").all_text_contents()) == SHOWN_EVIL
    assert visitor.tab.text_content(".rc-prompt") == SHOWN_EVIL
    visitor.tab.click("[data-view=panes]")
    assert visitor.tab.locator(".rc-pane div").all_text_contents() == [SHOWN_EVIL] * 3
    assert _elements(visitor) == []


# ---------------------------------------------------------------------------------------------------------------
# Open and export


def test_exports_hold_what_was_raced(visit, replay_site, tmp_path):
    from viz import recording

    visitor = visit(replay_site.url)
    name, text = visitor.save("trace")
    assert name.endswith("-ar-sd-ssd.jsonl")
    (tmp_path / name).write_text(text, encoding="utf-8")
    saved = recording.read(tmp_path / name)
    originals = [tuple(trace.load(path)) for path in SHIPPED]
    assert len(saved) == len(visitor.race()["labels"]) and all(run in originals for run in saved)
    name, text = visitor.save("for Perfetto")
    entries = json.loads(text)["traceEvents"]
    assert name.endswith(".perfetto.json")
    assert sum(entry["name"] == "verify" for entry in entries) == sum(
        isinstance(event, ev.Verify) for run in saved for event in run
    )
    name, text = visitor.save("slide")
    assert name.endswith(".html") and '<section class="race"' in text


def test_a_slide_plays_offline_and_is_inert(browser, tmp_path):
    from viz import export

    runs = []
    for method in ("ar", "sd", "ssd"):
        start, *rest = play(method, text=EVIL)
        runs.append((ev.RunStarted(run=EVIL, prompt=EVIL, settings=start.settings, models={"target": EVIL}), *rest))
    file = tmp_path / "slide.html"
    file.write_text(export.slide_text(runs), encoding="utf-8")
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    tab, bad = context.new_page(), []
    tab.on("dialog", lambda dialog: (bad.append(dialog.message), dialog.dismiss()))
    tab.on("pageerror", lambda error: bad.append(str(error)))
    tab.on("console", lambda line: bad.append(line.text) if line.type in ("error", "warning") else None)
    tab.on("request", lambda request: bad.append(request.url) if not request.url.startswith("file:") else None)
    tab.goto(file.as_uri())
    tab.keyboard.press(" ")
    tab.wait_for_function("document.querySelector('.race').sgRace().playing")
    tab.keyboard.press("End")
    assert tab.evaluate("document.querySelector('.race').sgRace().labels") == ["AR", "SD", "SSD"]
    assert "".join(tab.locator(".rc-text .t").all_text_contents()) == SHOWN_EVIL
    assert tab.text_content(".rc-prompt") == SHOWN_EVIL and tab.locator("img, iframe").count() == 0
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.click(".slide-theme")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before
    context.close()
    assert not bad, bad


def test_opened_traces_race_and_bad_ones_are_refused(visit, replay_site, tmp_path):
    visitor = visit(replay_site.url)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"event": "<img src=x onerror=alert(1)>"}\n')
    visitor.upload(bad)
    visitor.tab.wait_for_function("document.querySelector('#race-files .sg-notice.error')")
    assert "bad.jsonl, line 1" in visitor.said() and visitor.race()["labels"] == ["AR", "SD", "SSD"]
    files = []
    for method, text in (("ar", EVIL), ("ssd", EVIL + " and more")):
        start, *rest = play(method, text=text)
        settings = start.settings | {"method": method if method == "ar" else HOSTILE[0]}
        files.append(tmp_path / f"{method}.jsonl")
        trace.save(files[-1], [ev.RunStarted(run="r", prompt=EVIL, settings=settings), *rest])
    visitor.upload(*files)
    visitor.wait("race.labels.length === 2")
    assert visitor.race()["labels"] == ["AR", HOSTILE[0][:24].upper()]
    assert visitor.race()["view"] == "panes" and "the others go on" in visitor.tab.text_content(".rc-notice")
    assert not visitor.tab.is_visible("[data-view=one]")
    visitor.tab.focus(".race")
    visitor.tab.keyboard.press("End")
    assert visitor.tab.locator(".rc-pane div").all_text_contents() == [SHOWN_EVIL, SHOWN_EVIL + " and more"]
    assert _elements(visitor) == []


# ---------------------------------------------------------------------------------------------------------------
# Looks


@pytest.mark.parametrize("mode", ("light", "dark"))
@pytest.mark.parametrize("width", (1280, 390))
def test_light_and_dark_wide_and_narrow_fit(visit, replay_site, mode, width):
    visitor = visit(replay_site.url, width=width, query=f"&__theme={mode}")
    assert visitor.tab.evaluate("document.documentElement.scrollWidth") <= width
    visitor.scrub(0.5)
    visitor.tab.click("[data-view=panes]")
    assert visitor.tab.evaluate("document.documentElement.scrollWidth") <= width
    for button in visitor.tab.locator(".race button:visible").all():
        box = button.bounding_box()
        assert min(box["width"], box["height"]) >= 40
    before = visitor.tab.evaluate("document.querySelector('.rc-lanes').toDataURL()")
    visitor.tab.evaluate("document.body.classList.toggle('dark')")
    visitor.tab.wait_for_function("(before) => document.querySelector('.rc-lanes').toDataURL() !== before", arg=before)

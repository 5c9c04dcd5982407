"""The page in a real browser. Most tests run on the stub engine; those marked `real` do the same on the real pair.

Needs Chromium (SAGUARO_CHROMIUM, or `chromium` on the path). Without one the tests are skipped, unless CI is set.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from saguaro_core import events as ev
from saguaro_core import trace
from viz import deltas, recording

from .browsing import chromium, save, set_slider, upload, watched
from .stub_engine import WORDS, StubEngine, play
from .test_viz import HOSTILE

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
pytest.importorskip("gradio")

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
EVIL = " ".join(HOSTILE[:7])
TIMEOUT_MS = 20_000
TRACES = Path(__file__).parent.parent / "assets" / "traces"
QUERY = "?compare=0"  # most tests count what reaches the engine


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}, and CI is set")
    print(f"browser tests skipped: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    path = chromium()
    if path is None:
        _missing("no Chromium found")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


class Site:
    """A served page and its engine. `slot`: where the engine will be, for a page that is served before it is there."""

    def __init__(self, engine=None, traces=TRACES, slot=None):
        from viz import page, replay
        from viz.context import Context, EngineSlot

        self.engine, self.slot = engine, slot or EngineSlot(engine)
        self._blocks = page.build(Context(self.slot, replay.find(traces)))
        self.url = page.launch(self._blocks)

    def close(self) -> None:
        self._blocks.close(verbose=False)


@pytest.fixture(scope="module")
def stub_site() -> Iterator[Site]:
    site = Site(StubEngine())
    yield site
    site.close()


@pytest.fixture
def site(stub_site: Site) -> Site:
    """The stub's page with the stub as new."""
    engine = stub_site.engine
    engine.text, engine.speed, engine.fail, engine.notice = None, 1.0, None, ""
    engine.runs.clear()
    engine.calls.clear()
    return stub_site


@pytest.fixture(scope="module")
def real_site(engine) -> Iterator[Site]:
    site = Site(engine)
    yield site
    site.close()


class Visitor:
    """A browser tab and what a person does in it. Notes what must never happen: dialogs, errors, foreign requests."""

    def __init__(self, browser, url: str, width: int = 1280, height: int = 900, query: str = QUERY):
        self.tab = browser.new_page(viewport={"width": width, "height": height})
        self.tab.set_default_timeout(TIMEOUT_MS)
        self.bad = watched(self.tab, url)
        self.tab.goto(url + query)
        self.tab.wait_for_selector(".tl-stage")
        self.tab.wait_for_function("document.querySelector('#notice .sg-notice')?.textContent")  # the page is filled

    def send(self, text: str) -> None:
        self.tab.fill("#prompt textarea", text)
        self.tab.press("#prompt textarea", "Enter")

    def wait_running(self) -> None:
        self.tab.wait_for_selector("#stop", state="visible")
        self.tab.wait_for_function(
            """() => { const said = (who) => document.querySelectorAll(`#chat .${who} .md`);
            return said("bot").length && said("bot").length === said("user").length
                && document.querySelector("#stats [data-key=state]").textContent === "running"; }"""
        )  # not the recorded conversation any more

    def wait_idle(self, seconds: float = 15) -> None:
        self.tab.wait_for_selector("#send", state="visible", timeout=seconds * 1000)

    def ask(self, text: str, seconds: float = 15) -> None:
        self.send(text)
        self.tab.wait_for_selector("#send", state="hidden")
        self.wait_idle(seconds)

    def said(self, role: str) -> list[str]:
        return [item.inner_text() for item in self.tab.query_selector_all(f"#chat .{role} .md")]

    def cell(self, key: str) -> str:
        return self.tab.inner_text(f'#stats [data-key="{key}"]')

    def notice(self) -> str:
        return self.tab.inner_text("#notice .sg-notice")

    def pick(self, method: str) -> None:
        self.tab.click(f"#method label:has(input[value='{method}'])")

    def timeline(self) -> dict:
        return self.tab.evaluate("document.querySelector('.tl').sgState()")

    def inked(self) -> int:
        """How many different colours the canvas shows."""
        return self.tab.evaluate(
            """() => { const c = document.querySelector('.tl canvas');
            const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
            return new Set(d).size; }"""
        )

    def limit(self, tokens: int) -> None:
        """Most new tokens, through the settings."""
        if not self.tab.is_visible("#limit input[type=number]"):
            self.tab.click("#settings > button")
        set_slider(self.tab, "#limit", tokens)

    def close(self) -> None:
        self.tab.close()


@pytest.fixture
def visit(browser):
    opened: list[Visitor] = []

    def open_tab(url: str, **options) -> Visitor:
        opened.append(Visitor(browser, url, **options))
        return opened[-1]

    yield open_tab
    for visitor in opened:
        if not visitor.tab.is_closed():
            visitor.close()
        assert not visitor.bad, visitor.bad


def until(condition, seconds: float = 2.0) -> float:
    """Wait for a condition; how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - began


# ---------------------------------------------------------------------------------------------------------------
# What both engines must do


def stream_and_stop(visitor: Visitor) -> None:
    visitor.send("Write a long story about a cactus.")
    visitor.wait_running()
    visitor.tab.wait_for_function("document.querySelector('#chat .bot .md').innerText.length > 40")
    assert visitor.cell("state") == "running" and visitor.cell("method") == "SSD"
    before = visitor.said("bot")[-1]
    began = time.monotonic()
    visitor.tab.click("#stop")
    visitor.wait_idle(2)
    assert time.monotonic() - began < 1.0
    after = visitor.said("bot")[-1]
    assert after.startswith(before[:30]) and after.rstrip().endswith("stopped")
    assert visitor.cell("state") == "stopped" and float(visitor.cell("speed")) > 0
    time.sleep(0.4)
    assert visitor.said("bot")[-1] == after, "text arrived after the stop"


def switch_methods(visitor: Visitor) -> None:
    visitor.limit(32)
    for method in ("ar", "sd", "ssd"):
        visitor.pick(method)
        visitor.ask("Name three colours.")
        assert visitor.cell("method") == method.upper()
        assert (visitor.cell("hits") != "") == (method == "ssd")
        assert visitor.timeline()["bars"][0] > 0 and visitor.timeline()["done"]
    assert len(visitor.said("user")) == 3 and len(visitor.said("bot")) == 3
    assert visitor.inked() > 8


@pytest.mark.real
def test_real_stream_and_stop(visit, real_site):
    stream_and_stop(visit(real_site.url))


@pytest.mark.real
def test_real_methods(visit, real_site):
    switch_methods(visit(real_site.url))


def test_an_answer_streams_and_stops_within_a_second(visit, site):
    stream_and_stop(visit(site.url))
    until(lambda: site.engine.runs[-1].cancelled)


def test_methods_switch_between_turns(visit, site):
    visitor = visit(site.url)
    switch_methods(visitor)
    assert [call[1]["method"] for call in site.engine.calls] == ["ar", "sd", "ssd"]
    assert [message["role"] for message in site.engine.calls[-1][0]] == ["user", "assistant"] * 2 + ["user"]


# ---------------------------------------------------------------------------------------------------------------
# The chat, on the stub


def test_empty_prompt_says_so_and_runs_nothing(visit, site):
    visitor = visit(site.url)
    visitor.send("   ")
    visitor.tab.wait_for_function("document.querySelector('#notice .sg-notice').textContent.includes('Type a message')")
    assert not site.engine.calls and visitor.tab.is_visible("#send")
    assert visitor.tab.input_value("#prompt textarea") == "   "


def test_retry_and_clear(visit, site):
    visitor = visit(site.url)
    visitor.limit(16)
    visitor.ask("First")
    visitor.pick("sd")
    visitor.tab.click("#retry")
    visitor.tab.wait_for_selector("#send", state="hidden")
    visitor.wait_idle()
    assert len(visitor.said("user")) == 1 and len(visitor.said("bot")) == 1
    assert site.engine.calls[0][0] == site.engine.calls[1][0] and visitor.cell("method") == "SD"
    visitor.tab.click("#clear")
    visitor.tab.wait_for_function(
        "document.querySelectorAll('#chat .md').length === 0 || !document.querySelector('#chat .bot')"
    )
    assert visitor.cell("method") == "none yet" and visitor.timeline()["bars"] == [0, 0]
    visitor.ask("Second")
    assert len(site.engine.calls[-1][0]) == 1, "the old conversation is forgotten on the server as well"


@pytest.mark.parametrize("fail", (ValueError("The prompt is longer than the context."), "The target worker stopped."))
def test_an_error_is_shown_and_the_prompt_kept(visit, site, fail):
    visitor = visit(site.url)
    site.engine.fail = fail
    visitor.send("Keep this")
    visitor.tab.wait_for_selector("#notice .sg-notice.error")
    assert str(fail) in visitor.notice()
    visitor.wait_idle()
    assert visitor.tab.input_value("#prompt textarea") == "Keep this" and not visitor.said("user")
    visitor.limit(16)
    visitor.tab.press("#prompt textarea", "Enter")
    visitor.tab.wait_for_function("document.querySelector('#stats [data-key=state]').textContent === 'length limit'")
    visitor.wait_idle()
    assert visitor.said("user") == ["Keep this"] and visitor.cell("state") == "length limit" and not visitor.notice()


def test_a_notice_of_the_engine_is_shown(visit, site):
    visitor = visit(site.url)
    site.engine.notice = "The draft stopped; the target goes on alone. " + HOSTILE[0]
    visitor.limit(16)
    visitor.ask("Hello")
    assert visitor.notice() == site.engine.notice


def test_settings_reach_the_engine(visit, site):
    visitor = visit(site.url)
    visitor.limit(16)
    visitor.ask("Hello")
    assert site.engine.calls[-1][1] == {
        "method": "ssd",
        "max_new_tokens": 16,
        "k": None,
        "seed": 0,
        "fan_out": None,
        "temperature": 0.0,
        "verification": None,
        "top_k": 0,
        "top_p": 1.0,
    }
    visitor.tab.fill("#fan-out input, #fan-out textarea", "ten")
    visitor.send("Hello again")
    visitor.tab.wait_for_selector("#notice .sg-notice.error")
    assert "Fan-out" in visitor.notice() and len(site.engine.calls) == 1


def test_hostile_prompts_are_shown_as_typed(visit, site):
    visitor = visit(site.url)
    site.engine.text, site.engine.speed = "ok", 5
    texts, before = [*HOSTILE, "line one\n\n\nline four   end"], len(site.engine.calls)
    for number, text in enumerate(texts, 1):
        visitor.tab.fill("#prompt textarea", text)
        visitor.tab.click("#send")
        while len(site.engine.calls) < before + number:  # the recorded run stands there until the first answer
            visitor.tab.wait_for_timeout(20)
        visitor.tab.wait_for_function(f"document.querySelectorAll('#chat .bot .md').length === {number}")
        visitor.wait_idle()
    assert [_plain(shown) for shown in visitor.said("user")] == [_plain(text) for text in texts]
    assert _elements(visitor) == []
    assert [turn["content"] for turn in site.engine.calls[-1][0] if turn["role"] == "user"] == texts


def _plain(text: str) -> str:
    """What is seen: the renderer may break lines in its own way and shows blanks as no-break blanks."""
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


def _elements(visitor: Visitor) -> list[str]:
    """Elements in messages that no Markdown of ours makes."""
    return visitor.tab.evaluate(
        """(wrong) => [...document.querySelectorAll('#chat .md *')].map((e) => e.tagName.toLowerCase())
        .filter((name) => wrong.includes(name))""",
        ["img", "script", "iframe", "style", "object", "form", "input", "h1", "table", "video", "math", "pre"],
    )


def test_a_hostile_answer_and_model_name_stay_inert(visit, browser):
    engine = StubEngine(text="start " + EVIL + " `<b>` end\n\n```html\n<img src=x onerror=alert(1)>\n```\n", speed=3)
    engine.info["target"] = EVIL
    site = Site(engine)
    try:
        visitor = visit(site.url)
        assert EVIL in visitor.tab.inner_text(".sg-who")
        visitor.ask("Say something evil")
        shown = visitor.said("bot")[0]
        for wanted in (HOSTILE[0], HOSTILE[1], "${alert(1)}", "{{value}}", "<b>", "end"):
            assert wanted in shown
        assert shown.count(HOSTILE[0]) == 2 and _elements(visitor) == ["pre"]
    finally:
        site.close()


def test_undo_takes_the_last_exchange_back(visit, site):
    visitor = visit(site.url)
    visitor.limit(16)
    visitor.ask("First")
    visitor.ask("Second")
    visitor.tab.click("#undo")
    visitor.tab.wait_for_function("document.querySelectorAll('#chat .user .md').length === 1")
    assert visitor.tab.input_value("#prompt textarea") == "Second" and visitor.said("user") == ["First"]
    visitor.ask("Third")
    assert [turn["content"] for turn in site.engine.calls[-1][0]][::2] == ["First", "Third"]


def test_an_example_is_asked_at_once(visit, site):
    visitor = visit(site.url)
    visitor.limit(16)
    visitor.tab.click("#examples .ex-card >> nth=2")
    visitor.tab.wait_for_function("document.querySelector('#stats [data-key=state]').textContent === 'length limit'")
    assert "story" in site.engine.calls[-1][0][-1]["content"]


THINKING = "<think>2 < 3 & **so**</think>\n\nYes. \u0645\u0631\u062d\u0628\u0627 \u4f60\u597d \U0001f335 \\(x^2\\) $5 and $6 `vector<int>`"


def test_thoughts_scripts_emoji_formulas_and_code_render(visit, site):
    visitor = visit(site.url)
    site.engine.text, site.engine.speed = THINKING, 3
    visitor.ask("Think")
    visitor.tab.wait_for_function("[...document.querySelectorAll('#chat .bot .md')].at(-1)?.innerText")
    answer = visitor.said("bot")[-1]
    for wanted in ("Yes.", "\u0645\u0631\u062d\u0628\u0627", "\u4f60\u597d", "\U0001f335", "$5 and $6", "vector<int>"):
        assert wanted in answer
    assert "<think>" not in answer and visitor.tab.locator("#chat .katex").count() == 1
    assert "Thinking" in visitor.tab.inner_text("#chat")


# ---------------------------------------------------------------------------------------------------------------
# Tokens, and AR and SD on the same prompt


def _measured(visitor: Visitor, seconds: float = 20) -> None:
    visitor.tab.wait_for_function(
        "['vs_ar', 'vs_sd'].every((key) => document.querySelector(`#stats [data-key=${key}]`).textContent)",
        timeout=seconds * 1000,
    )


def answer_state(visitor: Visitor) -> dict:
    return visitor.tab.evaluate("document.querySelector('.an').sgState()")


def compares(visitor: Visitor, seconds: float = 20) -> None:
    visitor.limit(48)
    visitor.send("Name three colours.")
    visitor.wait_running()
    assert visitor.cell("vs_ar") == "" and visitor.cell("note_ar").startswith("measuring"), "a guess, or no word"
    _measured(visitor, seconds)
    assert float(visitor.cell("vs_ar")) > 0.3 and float(visitor.cell("vs_sd")) > 0.3
    assert visitor.cell("note_ar").startswith("AR: ") and visitor.cell("method") == "SSD"
    assert answer_state(visitor)["times"] == ["ssd", "ar", "sd"]


@pytest.mark.real
def test_real_comparison(visit, real_site):
    compares(visit(real_site.url, query=""), 60)


def test_ar_and_sd_are_measured_after_the_answer(visit, site):
    visitor = visit(site.url, query="")
    compares(visitor)
    answered, ar, sd = (run._seen for run in site.engine.runs)
    assert [call[1]["method"] for call in site.engine.calls] == ["ssd", "ar", "sd"]
    assert all(call[0] == site.engine.calls[0][0] and call[1]["reuse"] == 0 for call in site.engine.calls[1:])
    for events, key in ((ar, "vs_ar"), (sd, "vs_sd")):
        expected = _decode_s(events) / _decode_s(answered)
        assert float(visitor.cell(key)) == pytest.approx(expected, abs=0.006)
    visitor.tab.click("#retry")
    visitor.tab.wait_for_function("document.querySelector('#stats [data-key=state]').textContent === 'running'")
    visitor.tab.wait_for_function("document.querySelector('#stats [data-key=vs_ar]').textContent")
    assert visitor.cell("state") == "running", "what is known of this prompt is shown while the text comes"
    visitor.wait_idle()
    time.sleep(0.5)
    assert len(site.engine.calls) == 4, "measured once"


def _decode_s(events: list) -> float:
    times = [event.t1 for event in events if isinstance(event, ev.Tokens) and event.ids]
    return times[-1] - times[0]


def test_measuring_can_be_skipped_and_gives_way_to_the_next_message(visit, site):
    visitor = visit(site.url, query="")
    visitor.limit(256)
    site.engine.speed = 4
    visitor.ask("First")
    site.engine.speed = 0.5
    visitor.tab.wait_for_selector("#stop", state="visible")
    assert visitor.tab.inner_text("#stop") == "Skip" and visitor.tab.is_visible("#send")
    visitor.tab.click("#stop")
    visitor.tab.wait_for_function("document.querySelector('#stats [data-key=note_ar]').textContent === 'not measured'")
    assert len(site.engine.runs) == 2 and site.engine.runs[-1].cancelled and visitor.cell("vs_ar") == ""
    visitor.tab.click("#retry")
    until(lambda: len(site.engine.runs) == 3)
    site.engine.runs[-1].cancel()
    visitor.wait_idle()
    site.engine.speed = 4
    visitor.ask("Second")
    site.engine.speed = 0.5
    until(lambda: len(site.engine.runs) == 5, 5)
    measuring = site.engine.runs[-1]
    assert site.engine.calls[-1][1]["method"] == "ar"
    site.engine.speed = 4
    visitor.send("Third")
    until(lambda: len(site.engine.runs) == 6, 3)
    assert site.engine.calls[-1][0][-1]["content"] == "Third"
    assert measuring.cancelled, "the next message does not wait for measurements"


def test_tokens_are_shown_by_origin_and_explained(visit, site):
    visitor = visit(site.url)
    site.engine.text = EVIL + " \u202e \u0645\u0631\u062d\u0628\u0627"
    visitor.ask("Show me")
    visitor.tab.click(".an [data-view=tokens]")
    visitor.tab.wait_for_function("document.querySelectorAll('.an-text .t').length > 10")
    assert not visitor.tab.is_visible("#chat") and visitor.tab.inner_text(".an-asked") == "Show me"
    shown = visitor.tab.evaluate("document.querySelector('.an-text').textContent")
    named = site.engine.text.replace("\u202e", "\u2039U+202E\u203a").replace("\u202c", "\u2039U+202C\u203a")
    assert shown == named and visitor.tab.locator(".an-text *:not(span)").count() == 0
    states = [state for event in site.engine.runs[-1]._seen if isinstance(event, ev.Tokens) for state in event.state]
    letters = visitor.tab.evaluate("[...document.querySelectorAll('.an-text .t')].map((e) => e.classList[1])")
    assert letters == [state[0] for state in states]
    visitor.tab.focus(".an-text")
    visitor.tab.keyboard.press("End")
    visitor.tab.wait_for_selector(".an-tip", state="visible")
    told = visitor.tab.inner_text(".an-tip")
    assert "round " in told and ("hit" in told or "miss" in told)
    visitor.tab.hover(".an-text .t >> nth=1")
    assert visitor.tab.is_visible(".an-tip")
    visitor.tab.click(".an [data-view=rendered]")
    assert visitor.tab.is_visible("#chat")


def test_the_ghosts_play_at_true_speed(visit, site):
    visitor = visit(site.url)  # the recorded run
    visitor.tab.click(".an [data-view=tokens]")
    visitor.tab.wait_for_function("document.querySelectorAll('.an-text .t[data-at]').length > 1")
    state = answer_state(visitor)
    assert state["times"] == ["ssd", "ar", "sd"]
    visitor.tab.click(".an-go")
    began = time.monotonic()
    visitor.tab.wait_for_function("!document.querySelector('.an').sgState().playing")
    assert time.monotonic() - began == pytest.approx(state["end"] / 1000, abs=1.0)
    marks = visitor.tab.evaluate("[...document.querySelectorAll('.an-text .t[data-at]')].map((e) => e.dataset.at)")
    assert marks == ["SSD AR SD"], "at the end all have the whole text"


# ---------------------------------------------------------------------------------------------------------------
# The address, and the models that are still loading


def test_settings_travel_in_the_address(visit, site):
    query = "?compare=0&method=sd&k=2&temperature=0.7&seed=5&max_new_tokens=16&top_p=0.9&verification=coupled"
    visitor = visit(site.url, query=query + "&prompt=Hello%20there")
    assert visitor.tab.input_value("#prompt textarea") == "Hello there"
    visitor.tab.press("#prompt textarea", "Enter")
    until(lambda: site.engine.calls, 5)
    wanted = {"method": "sd", "k": 2, "temperature": 0.7, "seed": 5, "max_new_tokens": 16, "top_p": 0.9}
    assert wanted.items() <= site.engine.calls[-1][1].items()
    visitor.wait_idle()
    visitor.pick("ar")
    visitor.tab.wait_for_function("new URLSearchParams(location.search).get('method') === 'ar'")
    assert "seed=5" in visitor.tab.url and "compare=0" in visitor.tab.url
    visitor.pick("ssd")
    visitor.tab.wait_for_function("!new URLSearchParams(location.search).has('method')")


def test_a_hostile_address_is_refused_with_a_sentence(visit, site):
    from urllib.parse import urlencode

    hostile = {
        "method": EVIL,
        "k": EVIL,
        "temperature": "nan",
        "seed": "-1",
        "trace": EVIL,
        "tab": EVIL,
        "prompt": EVIL,
    }
    visitor = visit(site.url, query="?compare=0&" + urlencode(hostile))
    visitor.tab.wait_for_selector("#notice .sg-notice.error")
    assert all(name in visitor.notice() for name in ("method", "k", "temperature", "seed", "trace"))
    assert "<" not in visitor.notice() and set(_elements(visitor)) <= {"pre"}  # of the recorded run
    assert visitor.tab.input_value("#prompt textarea") == EVIL
    visitor.limit(16)
    visitor.ask("Hello")
    assert site.engine.calls[-1][1]["method"] == "ssd" and site.engine.calls[-1][1]["seed"] == 0


def test_the_page_is_there_before_the_models(visit):
    from viz.context import EngineSlot

    come, slot = threading.Event(), EngineSlot()
    slot.load(lambda: (come.wait(30), StubEngine())[1])
    site = Site(slot=slot)
    try:
        visitor = visit(site.url)
        visitor.tab.wait_for_function("document.querySelector('.sg-models').innerText.includes('Loading the models')")
        assert visitor.timeline()["bars"][0] > 10 and visitor.cell("method") == "SSD", "a recorded run meanwhile"
        visitor.send("Hello")
        visitor.tab.wait_for_selector("#notice .sg-notice.error")
        assert "still loading" in visitor.notice() and visitor.tab.input_value("#prompt textarea") == "Hello"
        come.set()
        visitor.tab.wait_for_function("document.querySelector('.sg-models').innerText.includes('135M-parameter')")
        visitor.limit(16)
        visitor.ask("Hello")
        assert visitor.said("user") == ["Hello"]
    finally:
        site.close()


def test_a_failed_load_is_said_on_the_page(visit):
    from viz.context import EngineSlot

    def fail():
        raise ValueError("no such model " + HOSTILE[0])

    slot = EngineSlot()
    slot.load(fail).join()
    site = Site(slot=slot)
    try:
        visitor = visit(site.url)
        visitor.tab.wait_for_function("document.querySelector('.sg-models').innerText.includes('could not be loaded')")
        assert HOSTILE[0] in visitor.tab.inner_text(".sg-models")
        visitor.send("Hello")
        visitor.tab.wait_for_selector("#notice .sg-notice.error")
        assert "could not be loaded" in visitor.notice()
    finally:
        site.close()


# ---------------------------------------------------------------------------------------------------------------
# The timeline


def _counts(run) -> tuple[list[int], int]:
    codes = [made[0] for made in deltas.rows(run._seen)]
    waits = [event.lane for event in run._seen if isinstance(event, (ev.Wait, ev.Prefill))]
    target = codes.count("v") + waits.count(ev.TARGET)
    return [target, sum(map(codes.count, ("g", "ts", "ds"))) + waits.count(ev.DRAFT)], codes.count("lk")


def test_a_browser_that_freezes_still_gets_every_event(visit, site):
    visitor = visit(site.url)
    visitor.send("Hello")
    visitor.wait_running()
    visitor.tab.evaluate("() => { const end = performance.now() + 2500; while (performance.now() < end); }")
    visitor.wait_idle()
    bars, marks = _counts(site.engine.runs[-1])
    visitor.tab.wait_for_function("document.querySelector('.tl').sgState().done")
    state = visitor.timeline()
    assert (state["bars"], state["marks"]) == (bars, marks)
    assert " ".join(WORDS[:12]) in visitor.said("bot")[0]


def test_the_timeline_is_drawn_follows_pans_zooms_and_explains(visit, site):
    visitor = visit(site.url)
    visitor.limit(160)
    visitor.ask("Hello")
    assert visitor.inked() > 8
    following = visitor.timeline()
    assert following["following"] and following["view"]["b"] == pytest.approx(following["latest"])
    visitor.tab.click('[data-act="fit"]')
    fitted = visitor.timeline()
    assert not fitted["following"] and fitted["view"]["a"] == 0 and fitted["view"]["b"] > fitted["latest"]
    visitor.tab.locator(".tl-stage").scroll_into_view_if_needed()
    box = visitor.tab.locator(".tl-stage").bounding_box()
    visitor.tab.focus(".tl-stage")
    visitor.tab.mouse.move(box["x"] + 300, box["y"] + 60)
    visitor.tab.mouse.wheel(0, -600)
    visitor.tab.wait_for_function(
        f"(v => v.b - v.a < {fitted['view']['b'] / 1.3})(document.querySelector('.tl').sgState().view)"
    )
    zoomed = visitor.timeline()["view"]
    visitor.tab.mouse.down()
    visitor.tab.mouse.move(box["x"] + 200, box["y"] + 60, steps=3)
    visitor.tab.mouse.up()
    assert visitor.timeline()["view"]["a"] > zoomed["a"]
    spot = visitor.tab.evaluate("() => { const s = document.querySelector('.tl').sgState().view; return s; }")
    assert spot["b"] - spot["a"] == pytest.approx(zoomed["b"] - zoomed["a"])
    for dx in range(40, 400, 7):
        visitor.tab.mouse.move(box["x"] + dx, box["y"] + 60)
        if visitor.tab.is_visible(".tl-tip"):
            break
    assert " ms" in visitor.tab.inner_text(".tl-tip")
    assert "Verification rounds" in visitor.tab.get_attribute(".tl-stage", "aria-label")
    visitor.tab.click(".tl-text summary")
    visitor.tab.wait_for_function("document.querySelector('.tl-text table').innerText.includes(' hits, ')")


def test_nothing_is_drawn_while_nothing_happens(visit, site):
    visitor = visit(site.url)
    visitor.limit(16)
    visitor.ask("Hello")
    time.sleep(0.3)
    before = visitor.timeline()["draws"]
    time.sleep(0.5)
    assert visitor.timeline()["draws"] == before


# ---------------------------------------------------------------------------------------------------------------
# Looks


@pytest.mark.parametrize("mode", ("light", "dark"))
@pytest.mark.parametrize("width", (1280, 390))
def test_light_and_dark_wide_and_narrow_fit(visit, site, mode, width):
    visitor = visit(site.url, width=width, query=f"?__theme={mode}&compare=0")
    visitor.limit(256)
    heights = {visitor.tab.locator("#stats").bounding_box()["height"]}
    visitor.send("Hello " + "x" * 200)
    visitor.wait_running()
    heights.add(visitor.tab.locator("#stats").bounding_box()["height"])
    assert visitor.tab.evaluate("document.documentElement.scrollWidth") <= width
    visitor.wait_idle()
    heights.add(visitor.tab.locator("#stats").bounding_box()["height"])
    assert visitor.tab.evaluate("document.documentElement.scrollWidth") <= width
    assert len(heights) == 1, "the numbers jumped"
    assert visitor.tab.evaluate("document.body.classList.contains('dark')") == (mode == "dark")
    before = visitor.tab.evaluate("document.querySelector('.tl canvas').toDataURL()")
    visitor.tab.click(".sg-theme")
    visitor.tab.wait_for_function("(before) => document.querySelector('.tl canvas').toDataURL() !== before", arg=before)


def test_the_page_says_which_model_answers(visit, site):
    visitor = visit(site.url)
    assert "135M-parameter model" in visitor.tab.inner_text(".sg-models")


# ---------------------------------------------------------------------------------------------------------------
# Several visitors


def test_a_closed_tab_frees_the_engine(visit, site):
    visitor = visit(site.url)
    visitor.limit(1024)
    visitor.send("Hello")
    visitor.wait_running()
    visitor.close()
    until(lambda: site.engine.runs and site.engine.runs[-1].cancelled, 2.0)
    assert site.engine.busy == 0


def test_visitors_queue_and_can_leave(visit, site):
    first, second = visit(site.url), visit(site.url)
    first.limit(1024)
    first.send("Mine")
    first.wait_running()
    second.send("Yours")
    second.tab.wait_for_selector("#leave", state="visible")
    second.tab.wait_for_function("/queue: ?1/i.test(document.querySelector('#notice').innerText)")
    line = second.tab.locator("#notice [data-testid=status-tracker]").bounding_box()
    assert line["height"] >= 20 and line["width"] >= 100, "the place in the queue is there but cannot be seen"
    assert len(site.engine.runs) == 1 and "Yours" not in first.said("user")
    second.tab.click("#leave")
    second.wait_idle(2)
    assert second.tab.input_value("#prompt textarea") == "Yours"
    assert not site.engine.runs[-1].cancelled, "leaving the queue does not stop somebody else's answer"
    first.tab.click("#stop")
    first.wait_idle(2)
    assert len(site.engine.runs) == 1


def test_two_visitors_at_once_see_only_their_own(visit, site):
    first, second = visit(site.url), visit(site.url)
    for visitor in (first, second):
        visitor.limit(64)
    first.send("Mine")
    second.send("Yours")
    for visitor, own in ((first, "Mine"), (second, "Yours")):
        visitor.tab.wait_for_function(
            "document.querySelector('#stats [data-key=state]').textContent === 'length limit'"
        )
        assert visitor.said("user") == [own]
    assert len(site.engine.calls) == 2
    feeds = {visitor.timeline()["feed"] for visitor in (first, second)}
    assert len(feeds) == 2


# ---------------------------------------------------------------------------------------------------------------
# Without a browser: the endpoint, and replay


def test_the_chat_endpoint_streams(site):
    from gradio_client import Client

    client = Client(site.url, verbose=False)
    try:
        names = client.view_api(return_format="dict")["named_endpoints"]
        assert list(names) == ["/chat"]
        job = client.submit("Hello", "sd", 24, api_name="/chat")
        final = job.result(timeout=20)
        assert final == site.engine.runs[-1].text and final.startswith("The target model")
        assert len(set(job.outputs())) > 1
        assert site.engine.calls[-1][1]["method"] == "sd"
        with pytest.raises(Exception, match="empty"):
            client.predict("  ", api_name="/chat")
    finally:
        client.close()


def test_replay_shows_a_recorded_run_without_an_engine(visit, tmp_path):
    trace.save(tmp_path / "one.jsonl", play("ssd", 80, text="<b>hostile</b> " * 12))
    trace.save(tmp_path / "two.jsonl", play("ar", 30))
    site = Site(traces=tmp_path)
    try:
        visitor = visit(site.url)
        visitor.tab.wait_for_function("document.querySelector('.tl').sgState().bars[0] > 10")
        assert visitor.cell("method") == "SSD" and not visitor.timeline()["following"] and visitor.inked() > 8
        assert "<b>hostile</b>" in visitor.said("bot")[0]
        visitor.tab.click("#trace input")
        visitor.tab.click("ul[role=listbox] li:has-text('two.jsonl')")
        visitor.tab.wait_for_function("document.querySelector('#stats [data-key=method]').textContent === 'AR'")
    finally:
        site.close()


MENU = "#chat-files"


def test_an_answer_is_saved_with_its_baselines_and_opened_again(visit, site, tmp_path):
    visitor = visit(site.url, query="")
    compares(visitor)
    name, text = save(visitor.tab, MENU, "trace")
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    runs = recording.read(file)
    assert [recording.method(run) for run in runs] == ["ssd", "ar", "sd"]
    assert [run[-1] for run in runs] == [run._seen[-1] for run in site.engine.runs]
    assert save(visitor.tab, MENU, "for Perfetto")[1].count('"verify"') > 10
    assert save(visitor.tab, MENU, "slide")[1].startswith("<!doctype html>")
    said, faster = visitor.said("bot"), visitor.cell("vs_ar")
    visitor.tab.click("#clear")
    visitor.tab.wait_for_function("document.querySelector('#stats [data-key=method]').textContent === 'none yet'")
    upload(visitor.tab, MENU, file)
    visitor.tab.wait_for_function("document.querySelector('#stats [data-key=state]').textContent === 'recorded'")
    assert visitor.said("bot")[0].startswith(said[0][:40]) and visitor.cell("vs_ar") == faster


def test_a_strangers_run_is_shown_as_text_or_refused(visit, site, tmp_path):
    visitor = visit(site.url)
    bad, evil = tmp_path / "bad.jsonl", tmp_path / "evil.jsonl"
    bad.write_text('{"event": "<img src=x onerror=alert(1)>"}\n')
    upload(visitor.tab, MENU, bad)
    visitor.tab.wait_for_selector(f"{MENU} .sg-notice.error")
    start, *rest = play("ssd", text=EVIL)
    trace.save(evil, [ev.RunStarted(run=EVIL, prompt=EVIL, settings=start.settings, models={"target": EVIL}), *rest])
    upload(visitor.tab, MENU, evil)
    visitor.tab.wait_for_function("document.querySelector('#chat .user .md')?.textContent.includes('onerror')")
    assert _plain(visitor.said("user")[0]) == _plain(EVIL) and _elements(visitor) == []


def test_a_very_long_run_stays_bounded(visit, tmp_path):
    run = play("ssd", 200)
    length = run[-1].t1 + 0.1
    shifted = [
        ev.from_dict(e.to_dict() | {"t0": e.t0 + n * length, "t1": e.t1 + n * length})
        for n in range(34)
        for e in run[1:-1]
    ]
    trace.save(tmp_path / "long.jsonl", [run[0], *shifted])
    assert len(shifted) > deltas.ROWS_KEPT
    site = Site(traces=tmp_path)
    try:
        visitor = visit(site.url)
        visitor.tab.wait_for_function("document.querySelector('.tl').sgState().bars[0] > 1000")
        state = visitor.timeline()
        assert sum(state["bars"]) + state["marks"] <= 20_000 and state["latest"] == pytest.approx(34 * length, abs=1)
        assert visitor.inked() > 8
    finally:
        site.close()

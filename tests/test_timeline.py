"""The timeline, the magnifier and the inspector in a real browser, on a small page of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from saguaro_core import events as ev
from viz import deltas, rounds

from .browsing import watched
from .stub_engine import play
from .test_page import browser, until  # noqa: F401
from .test_viz import HOSTILE

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
gr = pytest.importorskip("gradio")

TIMEOUT_MS = 8000
LONG_S, RATE = 600, 40  # a ten-minute run at forty rounds a second
MIB = 1 << 20
LONG_TOKEN = "x" * 190
EVENTS = {
    "ssd": play("ssd", 160), "sd": play("sd", 60), "ar": play("ar", 30), "hostile": play("ssd", 60, wrong=(*HOSTILE, LONG_TOKEN)),
}  # fmt: skip


class Stage:
    """A page with the three components. `pace` seconds of a run are sent at once, `pause` seconds apart; no pace
    means the whole run at once, ended."""

    def __init__(self) -> None:
        from viz import page
        from viz.components import Inspector, Magnifier, Timeline

        self.feeds = deltas.Feeds()
        self.pace, self.pause = 0.0, 0.0
        self.feed: deltas.Feed | None = None
        with gr.Blocks(analytics_enabled=False, fill_width=True) as blocks:
            name = gr.Textbox("", elem_id="name", show_label=False)
            timeline = Timeline(self.feeds.since, elem_id="timeline")
            Magnifier("timeline", elem_id="magnifier")
            Inspector(self.feeds.round, "timeline", elem_id="inspector")
            name.submit(self._send, [name], [timeline], show_progress="hidden")
        blocks.queue()
        self._blocks = blocks
        self.url = page.launch(blocks)

    def _send(self, name: str) -> Iterator[dict]:
        self.feed = feed = self.feeds.open()
        for batch in _long() if name == "long" else self._batches(EVENTS[name]):
            feed.push(batch)
            yield feed.value()
            time.sleep(self.pause)
        yield feed.value() | {"done": True}

    def _batches(self, events: list[ev.Event]) -> Iterator[list[ev.Event]]:
        if not self.pace:
            yield events
            return
        end = self.pace
        while events:
            batch = [event for event in events if event.t1 < end]
            events = [event for event in events if event.t1 >= end]
            end += self.pace
            if batch:
                yield batch

    def close(self) -> None:
        self._blocks.close(verbose=False)


def _long() -> Iterator[list[ev.Event]]:
    """`LONG_S` seconds of decoding, a second at a time."""
    run = [event for event in play("ssd", 400)[3:-1] if event.round > 0]
    last = run[-1].round
    scale = (last / RATE) / (run[-1].t1 - run[0].t0)  # exactly `RATE` rounds a second
    start = run[0].t0
    second = []
    for n in range(LONG_S * RATE // last + 1):
        for event in run:
            at = n * last / RATE
            t0, t1 = ((t - start) * scale + at for t in (event.t0, event.t1))
            second.append(replace(event, round=n * last + event.round, t0=t0, t1=t1))
            if t1 // 1 > second[0].t1 // 1:
                yield second
                second = []
            if t1 >= LONG_S:
                yield second
                return


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


class Viewer:
    """A browser tab on the stage. Notes what must never happen: dialogs and errors."""

    def __init__(self, browser, stage: Stage, width: int = 1280, touch: bool = False, **context):
        self.stage = stage
        self.context = browser.new_context(viewport={"width": width, "height": 900}, has_touch=touch, **context)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(TIMEOUT_MS)
        self.bad = watched(self.tab)
        self.tab.goto(stage.url)
        self.tab.wait_for_selector(".in-none")

    def play(self, name: str, pace: float = 0.0, pause: float = 0.0, wait: bool = True) -> None:
        self.stage.pace, self.stage.pause = pace, pause
        self.tab.fill("#name textarea, #name input", name)
        self.tab.keyboard.press("Enter")
        if wait:
            self.tab.wait_for_function("(s => s.done && s.bars[0] > 0)(document.querySelector('.tl').sgState())")
            self.until("mg", "s => s.hit !== null")

    def state(self, part: str = "tl") -> dict:
        return self.tab.evaluate(f"document.querySelector('.{part}').sgState()")

    def until(self, part: str, condition: str) -> None:
        self.tab.wait_for_function(f"({condition})(document.querySelector('.{part}').sgState())")

    def at(self, t: float, lane: int = 0) -> tuple[float, float]:
        """Where on the page the moment `t` of a lane is, scrolled into view."""
        self.tab.locator(".tl-stage").scroll_into_view_if_needed()
        box, view = self.tab.locator(".tl-stage").bounding_box(), self.state()["view"]
        return box["x"] + (t - view["a"]) / (view["b"] - view["a"]) * box["width"], box["y"] + (60, 165)[lane]

    def open(self, number: int) -> None:
        """Open a round the way a mouse does."""
        verify = next(e for e in self.events() if isinstance(e, ev.Verify) and e.round == number)
        self.tab.mouse.click(*self.at((verify.t0 + verify.t1) / 2))
        self.until("in", f"s => s.round === {number}")

    def events(self) -> list[ev.Event]:
        return EVENTS[self.tab.input_value("#name textarea, #name input")]

    def shown(self, selector: str) -> list[str]:
        return [item.text_content() for item in self.tab.query_selector_all(selector)]

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def view(browser, stage):
    opened: list[Viewer] = []

    def open_tab(**options) -> Viewer:
        opened.append(Viewer(browser, stage, **options))
        return opened[-1]

    yield open_tab
    for viewer in opened:
        viewer.close()
        assert not viewer.bad, viewer.bad


# ---------------------------------------------------------------------------------------------------------------
# Opening rounds


def test_a_click_opens_a_round_and_arrows_step_through_them(view):
    viewer = view()
    viewer.play("ssd")
    viewer.open(12)
    assert viewer.state()["chosen"] == 12, "the timeline frames the open round"
    viewer.tab.focus('[data-go="next"]')
    for key, number in (("ArrowRight", 13), ("ArrowRight", 14), ("ArrowLeft", 13)):
        viewer.tab.keyboard.press(key)
        viewer.until("in", f"s => s.round === {number}")
    hits = {e.round: e.hit for e in viewer.events() if isinstance(e, ev.Lookup)}
    for go, wanted in (("next_miss", False), ("next_hit", True)):
        here = viewer.state("in")["round"]
        viewer.tab.click(f'[data-go="{go}"]')
        number = min(n for n, hit in hits.items() if n > here and hit is wanted)
        viewer.until("in", f"s => s.round === {number}")
        assert viewer.state("in")["kind"] == ("hit" if wanted else "miss")
    assert viewer.state()["chosen"] == viewer.state("in")["round"]


def test_a_drag_opens_nothing_and_the_keyboard_opens_what_is_in_view(view):
    viewer = view()
    viewer.play("ssd")
    x, y = viewer.at(0.5)
    viewer.tab.mouse.move(x, y)
    viewer.tab.mouse.down()
    viewer.tab.mouse.move(x - 80, y, steps=4)
    viewer.tab.mouse.up()
    assert viewer.state()["chosen"] is None and not viewer.state()["following"]
    viewer.tab.focus(".tl-stage")
    viewer.tab.keyboard.press("Enter")
    viewer.until("in", "s => s.round !== null")
    seen = viewer.state()["view"]
    (verify,) = [e for e in viewer.events() if isinstance(e, ev.Verify) and e.round == viewer.state("in")["round"]]
    assert seen["a"] <= verify.t0 <= seen["b"]


def test_an_opened_round_comes_into_view(view):
    viewer = view()
    viewer.play("ssd")
    viewer.tab.focus(".tl-stage")
    for _ in range(8):
        viewer.tab.keyboard.press("+")
    viewer.tab.keyboard.press("End")
    viewer.tab.click('.mg-one[data-of="hit"] .mg-open')
    viewer.until("in", "s => s.round !== null")
    number = viewer.state("in")["round"]
    (verify,) = [e for e in viewer.events() if isinstance(e, ev.Verify) and e.round == number]
    seen = viewer.state()["view"]
    assert seen["a"] <= verify.t0 and verify.t1 <= seen["b"] and seen["b"] - seen["a"] < 1


def test_fingers_zoom_pan_and_open(view):
    viewer = view(width=390, touch=True)
    viewer.play("ssd")
    cdp = viewer.context.new_cdp_session(viewer.tab)
    viewer.tab.locator(".tl-stage").scroll_into_view_if_needed()
    box, before = viewer.tab.locator(".tl-stage").bounding_box(), viewer.state()["view"]
    y = box["y"] + 60

    def touch(kind: str, *xs: float) -> None:
        points = [{"x": box["x"] + x, "y": y, "id": i} for i, x in enumerate(xs)]
        cdp.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 150, 190)
    for spread in (10, 30, 50, 70):
        touch("touchMove", 150 - spread, 190 + spread)
    touch("touchEnd")
    zoomed = viewer.state()["view"]
    assert zoomed["b"] - zoomed["a"] < 0.5 * (before["b"] - before["a"])
    assert viewer.state()["chosen"] is None, "a pinch is no tap"
    viewer.tab.touchscreen.tap(box["x"] + 170, y)
    viewer.until("in", "s => s.round !== null")


# ---------------------------------------------------------------------------------------------------------------
# What the inspector shows


@pytest.mark.parametrize("kind", ("hit", "miss"))
def test_the_inspector_shows_what_happened_in_the_round(view, kind):
    viewer = view()
    viewer.play("ssd")
    viewer.tab.click(f'[data-go="previous_{kind}"]')
    viewer.until("in", "s => s.round !== null")
    number, events = viewer.state("in")["round"], viewer.events()
    (lookup,) = [e for e in events if isinstance(e, ev.Lookup) and e.round == number]
    (verify,) = [e for e in events if isinstance(e, ev.Verify) and e.round == number]
    texts = {id: t for e in events if isinstance(e, ev.TokenTexts) for id, t in zip(e.ids, e.texts, strict=True)}
    shown = viewer.tab.inner_text(".in-round")
    assert lookup.hit == (kind == "hit") and f"Round {number}" in shown
    assert "The draft prepared 20 branches for 4 possible outcomes" in shown.replace("the draft", "The draft")
    assert len(viewer.shown(".in-fork")) == 4 and len(viewer.shown(".in-branch:not(.missing)")) == len(
        lookup.candidates
    )
    happened, missing = viewer.shown(".in-branch.happened .t"), viewer.shown(".in-branch.missing .t")
    if lookup.hit:
        assert happened == [texts[lookup.bonus], *(texts[id] for id in verify.drafted)] and not missing
    else:
        assert missing == [texts[lookup.bonus]] and not happened
    assert viewer.shown(".in-guess .t") == [texts[id] for id in (*verify.drafted, verify.bonus)]
    marks = viewer.shown(".in-guess small")
    assert marks[: verify.accepted] == ["✓ accepted"] * verify.accepted
    assert marks[verify.accepted : verify.accepted + 1] == ["✗ refused"] or verify.accepted == len(verify.drafted)
    assert f"{(verify.t1 - verify.t0) * 1e3:.2f} ms" in shown and "T_tree" in shown and "Slack" in shown
    assert viewer.tab.inner_text(".in-lead .m") == ("H" if lookup.hit else "M"), "a letter, not only a colour"


def test_methods_without_a_lookup_have_no_branches_to_show(view):
    viewer = view()
    for method, words in (("sd", "nothing is prepared"), ("ar", "one forward gave one token")):
        viewer.play(method)
        viewer.tab.click('[data-go="previous"]')
        viewer.tab.wait_for_function(
            "words => document.querySelector('.in-lead').innerText.includes(words)", arg=words, timeout=10_000
        )
        assert viewer.state("in")["kind"] == "plain"
        assert not viewer.tab.is_visible('.in-step[data-part="forks"]')
        assert viewer.shown('[data-of="hit"] b') == ["Last round"] and not viewer.tab.is_visible('[data-of="miss"]')


def test_hostile_tokens_are_shown_as_text_and_nothing_else(view):
    viewer = view()
    viewer.play("hostile")
    wanted, seen = {rounds.visible(text) for text in HOSTILE}, set()
    before = viewer.tab.evaluate("document.querySelectorAll('body > *').length")
    for go in ["previous"] + ["previous_hit", "previous_miss"] * 8:
        here = viewer.state("in")["round"]
        if viewer.tab.is_disabled(f'[data-go="{go}"]'):
            break
        viewer.tab.click(f'[data-go="{go}"]')
        viewer.until("in", f"s => s.round !== {here if here is not None else 'null'}")
        seen |= set(viewer.shown(".in .t"))
    assert wanted <= seen
    tags = viewer.tab.evaluate("[...new Set([...document.querySelectorAll('.in *')].map((e) => e.tagName))]")
    assert not {"IMG", "SCRIPT", "A", "IFRAME", "SVG"} & set(tags)
    assert viewer.tab.evaluate("document.querySelectorAll('body > *').length") == before
    assert viewer.tab.evaluate("[...document.querySelectorAll('.in .t')].every((t) => !t.children.length)")


# ---------------------------------------------------------------------------------------------------------------
# The magnifier


def test_the_magnifier_holds_the_last_hit_and_miss_and_is_renewed_twice_a_second(view):
    viewer = view()
    viewer.play("ssd", pace=0.1, pause=0.2, wait=False)
    viewer.until("mg", "s => s.hit !== null && s.miss !== null")
    began, before = time.monotonic(), viewer.state("mg")["draws"]
    time.sleep(1.5)
    drawn, took = viewer.state("mg")["draws"] - before, time.monotonic() - began
    assert not viewer.state()["done"], "the run must still be going on"
    assert 2 <= drawn <= 2 * (2 * took + 1), "two pictures, twice a second"
    viewer.until("tl", "s => s.done")
    hits = {e.round: e.hit for e in viewer.events() if isinstance(e, ev.Lookup)}
    last = {
        kind: max(n for n, hit in hits.items() if hit is wanted) for kind, wanted in (("hit", True), ("miss", False))
    }
    viewer.until("mg", f"s => s.hit === {last['hit']} && s.miss === {last['miss']}")
    (wait,) = [e for e in viewer.events() if isinstance(e, ev.Wait) and e.round == last["miss"] and e.lane == ev.TARGET]
    assert f"The target waited {(wait.t1 - wait.t0) * 1e3:.1f} ms" in viewer.shown('[data-of="miss"] .mg-said')[0]


def test_a_magnifier_out_of_sight_is_not_drawn(view):
    viewer = view(width=390)
    viewer.tab.set_viewport_size({"width": 390, "height": 320})
    viewer.tab.evaluate("scrollTo(0, 0)")
    time.sleep(0.3)
    before = viewer.state("mg")["draws"]
    viewer.play("ssd")
    time.sleep(0.3)
    assert viewer.state("mg")["hit"] and viewer.state("mg")["draws"] == before
    viewer.tab.locator(".mg-pair").scroll_into_view_if_needed()
    viewer.until("mg", f"s => s.draws > {before}")


def test_slow_motion_plays_the_last_two_seconds_at_a_twentieth(view):
    viewer = view()
    viewer.play("ssd")
    viewer.tab.click(".mg-start")
    assert viewer.tab.is_visible("text=slow motion 1/20")
    slow = viewer.state("mg")["slow"]
    assert slow["playing"] and slow["to"] == pytest.approx(viewer.state()["latest"])
    assert slow["to"] - slow["from"] == pytest.approx(2, abs=1e-6)
    clock = "() => [performance.now(), document.querySelector('.mg').sgState().slow.at]"
    (real0, run0), _, (real1, run1) = viewer.tab.evaluate(clock), time.sleep(2), viewer.tab.evaluate(clock)
    assert (run1 - run0) * 1000 / (real1 - real0) == pytest.approx(1 / 20, rel=0.15)
    viewer.tab.click('.mg [data-act="play"]')
    time.sleep(0.2)  # the frame that had been asked for
    still = viewer.state("mg")
    time.sleep(0.4)
    assert viewer.state("mg") == still, "a pause asks for no frames"
    viewer.tab.click('.mg [data-act="on"]')
    number = viewer.state("mg")["slow"]["round"]
    assert f"Round {number}" in viewer.tab.inner_text(".mg-says")
    viewer.tab.click('.mg [data-act="back"]')
    assert viewer.state("mg")["slow"]["round"] == number - 1
    viewer.tab.click('.mg [data-act="close"]')
    assert viewer.state("mg")["slow"] is None and not viewer.tab.is_visible(".mg-film")


def test_without_motion_slow_motion_goes_from_round_to_round(view):
    viewer = view(reduced_motion="reduce")
    viewer.play("ssd")
    viewer.tab.click(".mg-start")
    first = viewer.state("mg")["slow"]
    assert first["round"] is not None and not first["playing"] and not viewer.tab.is_visible('.mg [data-act="play"]')
    viewer.tab.click('.mg [data-act="on"]')
    time.sleep(0.3)
    after = viewer.state("mg")
    assert after["slow"]["round"] == first["round"] + 1 and after["frames"] == 0


# ---------------------------------------------------------------------------------------------------------------
# Words, looks, cost


def test_the_same_is_said_in_words_and_a_table(view):
    viewer = view()
    viewer.play("ssd")
    hits = [e.hit for e in viewer.events() if isinstance(e, ev.Lookup)]
    assert f"{sum(hits)} hits, {len(hits) - sum(hits)} misses" in viewer.tab.text_content(".tl-live")
    assert f"Verification rounds: {len(hits)}" in viewer.tab.get_attribute(".tl-stage", "aria-label")
    viewer.tab.click(".tl-text summary")
    viewer.tab.wait_for_selector(".tl-rounds tbody tr")
    verifies = [e for e in viewer.events() if isinstance(e, ev.Verify)]
    rows = viewer.tab.evaluate(
        "[...document.querySelectorAll('.tl-rounds tbody tr')].map((r) => [...r.children].map((c) => c.textContent))"
    )
    assert len(rows) == 20
    for row, verify in zip(rows, reversed(verifies), strict=False):
        assert row[0] == str(verify.round) and row[1][0] == ("H" if hits[verify.round - 1] else "M")
        assert row[2:4] == [str(len(verify.drafted)), str(verify.accepted)]
        assert row[6] == f"{(verify.t1 - verify.t0) * 1e3:.1f} ms"
    viewer.tab.click(".tl-rounds tbody tr:nth-child(3) button")
    viewer.until("in", f"s => s.round === {verifies[-3].round}")


@pytest.mark.parametrize("mode", ("light", "dark"))
@pytest.mark.parametrize("width", (1280, 390))
def test_nothing_is_wider_than_the_screen(view, mode, width):
    viewer = view(width=width, color_scheme=mode)
    viewer.play("hostile")
    viewer.tab.click('[data-go="previous_miss"]')
    viewer.until("in", "s => s.round !== null")
    viewer.tab.click(".mg-start")
    viewer.tab.click(".tl-text summary")
    assert viewer.tab.evaluate("document.body.classList.contains('dark')") == (mode == "dark")
    assert viewer.tab.evaluate("document.documentElement.scrollWidth") <= width
    beyond = viewer.tab.evaluate(
        "(right => [...document.querySelectorAll('.in-round *')].filter((e) => e.getBoundingClientRect().right > right + 1"
        "|| (e.matches('.t') && e.scrollWidth > e.clientWidth + 1)).map((e) => e.textContent))"
        "(document.querySelector('.in').getBoundingClientRect().right)"
    )
    assert LONG_TOKEN in viewer.shown(".in .t")
    assert beyond == []
    small = viewer.tab.evaluate(
        "[...document.querySelectorAll('.tl button, .mg button, .in button')].filter((b) => b.offsetParent)"
        ".filter((b) => b.offsetHeight < (innerWidth < 760 ? 40 : 26)).map((b) => b.textContent)"
    )
    assert small == [], "too small to touch"


def test_nothing_is_drawn_while_nothing_happens(view):
    viewer = view()
    viewer.play("ssd")
    viewer.open(20)
    time.sleep(0.8)
    before = viewer.state(), viewer.state("mg")
    time.sleep(0.8)
    assert (viewer.state(), viewer.state("mg")) == before


def test_ten_minutes_at_forty_rounds_a_second_stay_bounded(view):
    viewer = view()
    cdp = viewer.context.new_cdp_session(viewer.tab)
    cdp.send("Performance.enable")

    def heap() -> int:
        cdp.send("HeapProfiler.collectGarbage")
        metrics = cdp.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "JSHeapUsedSize")

    viewer.play("ssd")
    viewer.open(20)
    before = heap()
    viewer.play("long", pause=0.01, wait=False)
    until(lambda: viewer.state()["latest"] > 300 and viewer.state("mg")["hit"], 90)
    viewer.tab.click('[data-go="previous_hit"]')
    until(lambda: viewer.state()["done"] and viewer.state()["latest"] >= LONG_S - 1, 90)
    state = viewer.state()
    assert viewer.stage.feed.round(LONG_S * RATE - 10), "it really were forty rounds a second for ten minutes"
    assert sum(state["bars"]) + state["marks"] <= 20_000 and state["rounds"] < 4_000
    grown = heap() - before
    print(f"heap grew by {grown / MIB:.1f} MiB")
    assert grown < 50 * MIB

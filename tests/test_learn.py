"""The lessons: their numbers, their two languages, and what a person does with them in a real browser."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
from collections.abc import Iterator

import pytest

from saguaro_core import events as ev
from saguaro_core import theory, trace
from saguaro_core.summary import summarise
from viz import lessons

from .browsing import watched
from .stub_engine import play
from .test_viz import HOSTILE

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
pytest.importorskip("gradio")

from .test_page import browser  # noqa: F401 (a fixture)

TIMEOUT_MS = 20_000
PLACEHOLDER = re.compile(r"\{([\w.]+)(?::%?\d*)?\}")
LOCAL = {"n", "f", "b", "k", "bonus", "ready", "prompt", "name", "models"}  # filled in by the browser


@pytest.fixture(scope="module")
def library() -> lessons.Library:
    return lessons.Library({})


def leaves(value, path=()) -> dict[tuple, str]:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return {path: value}
    return {key: text for name, inner in items for key, text in leaves(inner, (*path, name)).items()}


# ---------------------------------------------------------------------------------------------------------------
# Strings and numbers


def test_both_languages_say_the_same_things():
    english, chinese = (leaves(each) for each in lessons.strings().values())
    assert english.keys() == chinese.keys()
    for path, text in english.items():
        assert sorted(PLACEHOLDER.findall(text)) == sorted(PLACEHOLDER.findall(chinese[path])), path
        if re.search(r"[a-z]{4}", PLACEHOLDER.sub("", text)) and path[0] == "steps":
            assert re.search(r"[\u4e00-\u9fff]", chinese[path]), path


def test_no_measured_number_is_typed_into_a_sentence():
    for language in lessons.strings().values():
        for path, text in leaves(language["steps"]).items():
            assert not re.search(r"\d+\.\d+|\d+ ?%|\d+ ms", PLACEHOLDER.sub("", text)), (path, text)


def test_every_number_of_the_strings_can_be_read_off_the_shipped_traces(library):
    numbers = library.lesson(None)["numbers"]
    told = {name for text in leaves(lessons.strings()["en"]).values() for name in PLACEHOLDER.findall(text)}
    for name in told - LOCAL - {"batch.from"}:  # `from` exists only where the two fallbacks change places
        value = numbers
        for key in name.split("."):
            assert key in value, name
            value = value[key]
        assert value is not None, name


def test_numbers_are_the_summary_of_the_run_that_is_played(library):
    lesson, cast = library.lesson(None), library.cast(None)
    for role, run in cast.items():
        summary = summarise(run.events)
        for key in ("decode_tok_s", "verify_ms", "tokens_per_round", "hit_rate", "overlap"):
            if summary[key] is not None:
                assert lesson["numbers"][role][key] == summary[key]
    ratio = cast["ssd"].summary["decode_tok_s"] / cast["ar"].summary["decode_tok_s"]
    assert lesson["numbers"]["ratio"]["ssd_ar"] == ratio
    assert len({run.started.prompt for run in cast.values()}) == 1


def test_runs_of_different_prompts_are_not_compared(library):
    other = next(run for run in library.runs.values() if run.started.prompt != library.cast(None)["ar"].started.prompt)
    assert lessons.ratios(library.cast(None) | {"ssd": other})["ssd_ar"] is None


def test_fan_out_counts_what_narrower_forks_would_have_held():
    lookups = [
        ev.Lookup(run="r", round=2, k=0, bonus=5, hit=True, rank=0, candidates=((0, 5, (1,)), (0, 6, (1,)))),
        ev.Lookup(run="r", round=3, k=0, bonus=6, hit=True, rank=1, candidates=((0, 5, (1,)), (0, 6, (1,)), (1, 7, (1,)))),
        ev.Lookup(run="r", round=4, k=1, bonus=9, hit=False, candidates=((0, 5, (1,)), (1, 7, (1,)))),
    ]  # fmt: skip
    made = lessons.by_fan_out(lessons.Recorded("x", lookups))
    assert made == [{"f": 1, "hits": 1, "branches": pytest.approx(5 / 3)}, {"f": 2, "hits": 2, "branches": pytest.approx(7 / 3)}]  # fmt: skip


def test_rounds_tell_the_outcome_and_the_branch_that_happened():
    run = lessons.Recorded("x", [
        ev.RunStarted(run="r", settings={"method": "ssd"}),
        ev.TokenTexts(run="r", ids=(1, 2, 3), texts=(" a", "<b>", "\u202e")),
        ev.Verify(run="r", round=1, drafted=(1, 2), accepted=1, bonus=3),
        ev.Lookup(run="r", round=2, k=1, bonus=3, hit=True, rank=0, candidates=((1, 3, (1,)), (0, 9, ()))),
    ])  # fmt: skip
    (told,) = lessons.told_rounds(run, [])
    assert told["drafted"] == [" a", "<b>"] and told["k"] == 1 and told["hit"]
    assert "U+202E" in told["bonus"] and "\u202e" not in told["bonus"]
    assert told["forks"] == [
        {"k": 0, "branches": [["#9", [], False]]},
        {"k": 1, "branches": [[told["bonus"], [" a"], True]]},
    ]


def test_a_damaged_or_foreign_trace_is_left_out(tmp_path):
    (tmp_path / "bad.jsonl").write_text("no trace\n")
    trace.save(tmp_path / "stub.jsonl", play("ssd", 60))
    strange = [e for e in play("ssd", 60) if not isinstance(e, ev.Lookup | ev.RunFinished)]
    trace.save(tmp_path / "strange.jsonl", strange)
    library = lessons.Library({file.name: file for file in tmp_path.iterdir()})
    assert "bad.jsonl" not in library.runs
    for name in ("stub.jsonl", "strange.jsonl"):
        lesson = library.lesson(name)
        assert lesson["chosen"] == name and not lesson["unknown"]
        json.dumps(lesson, allow_nan=False)


@pytest.mark.parametrize("name", ["../../etc/passwd", "<img src=x>", "", None, 7, [], {"a": 1}])
def test_an_unknown_name_gives_the_default(library, name):
    lesson = library.lesson(name)
    assert lesson["chosen"] == library.default
    assert lesson["unknown"] is bool(name)


# ---------------------------------------------------------------------------------------------------------------
# In a browser


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    from pathlib import Path

    from viz import page, replay
    from viz.context import Context, EngineSlot

    blocks = page.build(Context(EngineSlot(), replay.find(Path(__file__).parent.parent / "assets" / "traces")))
    yield page.launch(blocks)
    blocks.close(verbose=False)


class Reader:
    """A browser tab on the lessons. Notes what must never happen."""

    def __init__(self, chromium, url: str, query: str, width: int = 1280, height: int = 900, **options):
        self.tab = chromium.new_page(viewport={"width": width, "height": height}, **options)
        self.tab.set_default_timeout(TIMEOUT_MS)
        self.bad = watched(self.tab)
        self.tab.goto(url + query)
        self.tab.wait_for_selector('.ln[data-state="ready"]')

    def press(self, *keys: str) -> None:
        for key in keys:
            self.tab.keyboard.press(key)

    def text(self, part: str) -> str:
        return self.tab.inner_text(f".ln-{part}")

    def slide(self, name: str, value: float) -> None:
        self.tab.eval_on_selector(
            f'.ln input[data-name="{name}"]',
            "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', { bubbles: true })); }",
            str(value),
        )

    def read(self, name: str) -> float:
        return float(re.search(r"[\d.]+", self.tab.inner_text(f'[data-read="{name}"]'))[0])

    def close(self) -> None:
        self.tab.close()
        assert self.bad == []


@pytest.fixture
def reader(browser, url):
    opened: list[Reader] = []

    def make(query: str, **options) -> Reader:
        opened.append(Reader(browser, url, query, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_all_lessons_by_keyboard(reader, library, language):
    said = lessons.strings()[language]
    visit = reader(f"?tab=learn&lang={language}")
    for number, step in enumerate(said["steps"], 1):
        assert visit.text("question") == step["question"]
        assert not visit.tab.is_visible(".ln-answer")
        visit.press("Enter")
        assert visit.tab.is_visible(".ln-answer") and len(visit.text("says")) > 40
        assert len(visit.tab.query_selector_all(".ln-facts dd")) == len(step["facts"])
        everything = visit.tab.inner_text(".ln")
        assert "{" not in everything and "undefined" not in everything and "NaN" not in everything
        assert number == 1 or f"lesson={number}" in visit.tab.url
        visit.press("ArrowRight")
    visit.press("3", "l")
    other = lessons.strings()["zh" if language == "en" else "en"]
    assert visit.text("question") == other["steps"][2]["question"]
    assert ("lang=zh" in visit.tab.url) == (language == "en")


def test_facts_shown_are_the_numbers_of_the_trace(reader, library):
    numbers = library.lesson(None)["numbers"]
    visit = reader("?tab=learn&lesson=1")
    visit.press("Enter")
    shown = [place.inner_text() for place in visit.tab.query_selector_all(".ln-facts dd")]
    assert shown[0] == f"{numbers['ar']['verify_ms']:.1f} ms"
    assert shown[3] == f"{numbers['ar']['decode_tok_s']:.0f} tokens/s"


def test_space_plays_and_nothing_moves_by_itself(reader):
    visit = reader("?tab=learn&lesson=1")
    drawn = "window.drawn = 0; const clear = CanvasRenderingContext2D.prototype.clearRect; CanvasRenderingContext2D.prototype.clearRect = function (...box) { window.drawn++; return clear.apply(this, box); }; 0"  # fmt: skip
    visit.tab.wait_for_timeout(500)
    visit.tab.evaluate(drawn)
    visit.tab.wait_for_timeout(500)
    assert visit.tab.evaluate("window.drawn") == 0
    before = int(visit.tab.input_value(".ln-at"))
    visit.press(" ")
    visit.tab.wait_for_function(f"document.querySelector('.ln-at').value > {before + 10}")
    assert visit.tab.evaluate("window.drawn") > 2
    visit.press(" ")
    stopped = int(visit.tab.input_value(".ln-at"))
    visit.tab.wait_for_timeout(300)
    assert int(visit.tab.input_value(".ln-at")) == stopped
    visit.press(".")
    assert int(visit.tab.input_value(".ln-at")) > stopped


def test_reduced_motion_goes_step_by_step(reader):
    visit = reader("?tab=learn&lesson=4", reduced_motion="reduce")
    before = int(visit.tab.input_value(".ln-at"))
    visit.press(" ")
    after = int(visit.tab.input_value(".ln-at"))
    visit.tab.wait_for_timeout(1800)
    assert int(visit.tab.input_value(".ln-at")) == after != before


def test_fan_out_slider_reads_the_hit_rate_off_the_trace(reader, library):
    lesson = library.lesson(None)
    visit = reader("?tab=learn&lesson=5")
    for step in lesson["by_f"]:
        visit.slide("f", step["f"])
        assert visit.read("hits") == pytest.approx(step["hits"] / len(lesson["ranks"]) * 100, abs=0.51)
        assert visit.read("branches") == pytest.approx(step["branches"], abs=0.051)


def test_expectation_sliders_are_the_formulas(reader):
    visit = reader("?tab=learn&lesson=8")
    for p, e, x, prepare in ((0.9, 3.0, 0.5, 0.8), (0.2, 2.0, 0.3, 1.4)):
        for name, value in (("p", p), ("e", e), ("x", x), ("prepare", prepare)):
            visit.slide(name, value)
        over_ar = theory.ssd_speedup(p, e, e, prepare, x)
        assert visit.read("over_ar") == pytest.approx(over_ar, abs=0.006)
        assert visit.read("over_sd") == pytest.approx(over_ar / theory.sd_speedup(e, x), abs=0.006)
        assert visit.read("wrong") == pytest.approx(theory.summary_speedup(p, x), abs=0.006)


def test_batch_slider_is_corollary_16(reader, library):
    given = library.lesson(None)["numbers"]["batch"]
    visit = reader("?tab=learn&lesson=7")
    for b in (1, 8, 16):
        visit.slide("b", b)
        common = (b, given["p"], given["hit"])
        late = theory.ssd_speedup_batch(*common, given["miss"], given["prepare"], given["backup"])
        assert visit.read("neural") == pytest.approx(late, abs=0.006)
        assert visit.read("fast") == pytest.approx(theory.ssd_speedup_batch(*common, 1, given["prepare"], 0), abs=0.006)


def rows_of(visit: Reader) -> dict[str, list[float]]:
    rows = visit.tab.query_selector_all(".sc-kinds tr[data-kind]")
    return {
        r.get_attribute("data-kind"): [float(v) / 100 for v in re.findall(r"([\d.]+)\s%", r.inner_text())] for r in rows
    }


def recorded(temperature: float) -> tuple[list[float], list[float]]:
    tokens = lessons.distribution()["tokens"]
    made = []
    for name in ("p", "q"):
        row = [(token[name] or 0) ** (1 / temperature) for token in tokens]
        made.append([v / sum(row) for v in row])
    return made[0], made[1]


def drawn_independently(p, made, ranked, f) -> tuple[float, float]:
    """Acceptance and foreseen bonuses, by going through every drafted token and every bonus."""
    left = [max(0.0, a - b) for a, b in zip(p, made, strict=True)]
    refused = sum(left)
    foreseen = 0.0
    for x, t in itertools.product(range(len(p)), repeat=2):
        if t in [i for i in ranked if i != x][:f]:
            foreseen += made[x] * max(0.0, 1 - p[x] / made[x]) * left[t] / refused if made[x] else 0.0
    return 1 - refused, foreseen / refused


@pytest.mark.parametrize(("temperature", "f", "c"), [(1.0, 3, 0.5), (0.7, 5, 0.2)])
def test_sampling_sums_are_exact(reader, temperature, f, c):
    torch = pytest.importorskip("torch")
    from saguaro_core.saguaro_sampling import down_weighted, saguaro_sampling, second_choice

    visit = reader("?tab=learn&lesson=6")
    for name, value in (("t", temperature), ("f", f), ("c", c)):
        visit.slide(name, value)
    shown = rows_of(visit)
    p, q = recorded(temperature)
    ranked = sorted((i for i in range(len(q)) if q[i] > 0), key=lambda i: (-q[i], i))
    of = torch.tensor([q], dtype=torch.float64)
    proposals = {"plain": of, "saguaro": down_weighted(of, f, c), "geometric": saguaro_sampling(of, second_choice(of))}
    for kind, made in proposals.items():
        accepted, foreseen = drawn_independently(p, made[0].tolist(), ranked, f)
        assert shown[kind][:2] == pytest.approx([accepted, foreseen], abs=0.0006), kind
        assert shown[kind][2] == pytest.approx(accepted + (1 - accepted) * foreseen, abs=0.0006)
    assert shown["coupled"][:2] == pytest.approx(raced(p, q, f), abs=0.012)


def raced(p, q, f, races: int = 20_000) -> tuple[float, float]:
    """The same for coupled, by running the races."""
    random.seed(1)
    same = among = 0
    for _ in range(races):
        noise = [-math.log(1 - random.random()) for _ in p]
        bonus = min((e / v, i) for i, (e, v) in enumerate(zip(noise, p, strict=True)) if v)[1]
        order = [i for _, i in sorted((e / v, i) for i, (e, v) in enumerate(zip(noise, q, strict=True)) if v)]
        same += order[0] == bonus
        among += bonus in order[1 : f + 1]
    return same / races, among / (races - same)


def test_present_mode_fills_the_window_and_obeys_keys(reader):
    visit = reader("?view=present&lesson=3&trace=rainbow-ssd.jsonl")
    box = visit.tab.evaluate("(({ x, y, width, height }) => [x, y, width, height])(document.querySelector('.ln').getBoundingClientRect())")  # fmt: skip
    assert box == [0, 0, 1280, 900]
    assert not visit.tab.is_visible(".ln-pick") and not visit.tab.is_visible(".ln-keys")
    assert visit.text("kicker") == "Step 3 of 8"
    visit.press("PageDown")
    assert visit.tab.is_visible(".ln-answer")
    visit.press("PageDown")
    assert visit.text("kicker") == "Step 4 of 8"
    visit.press("8")
    assert visit.text("kicker") == "Step 8 of 8" and "view=present" in visit.tab.url
    visit.press("Escape")
    assert "view=present" not in visit.tab.url and visit.tab.is_visible("#header")


@pytest.mark.parametrize("bad", ["<img src=x onerror=alert(1)>", "${alert(1)}", "99", "-1", "1e0", "3'\"`", ""])
def test_a_hostile_address_opens_the_usual_lesson(reader, bad):
    from urllib.parse import quote

    visit = reader(f"?view=present&lesson={quote(bad)}&lang={quote(bad)}&trace={quote(bad)}")
    english = lessons.strings()["en"]
    assert visit.text("question") == english["steps"][0]["question"]
    assert visit.text("notice") == (english["ui"]["unknown"] if bad else "")
    assert visit.tab.query_selector(".ln img") is None


def test_hostile_tokens_are_shown_as_they_are(browser, tmp_path):
    import gradio as gr

    from viz import learn, page
    from viz.context import Context, EngineSlot

    texts = [text for text in HOSTILE if "\n" not in text][:8]
    events, at = [], 0
    for event in play("ssd", 60):
        if isinstance(event, ev.Tokens):
            pieces = tuple(texts[(at + i) % len(texts)] for i in range(len(event.ids)))
            at += len(pieces)
            event = ev.Tokens(**{**event.__dict__, "text": "".join(pieces), "pieces": pieces})
        elif isinstance(event, ev.RunStarted):
            event = ev.RunStarted(**{**event.__dict__, "prompt": texts[0], "models": {"target": texts[1]}})
        events.append(event)
    trace.save(tmp_path / "x.jsonl", events)
    with gr.Blocks(analytics_enabled=False) as blocks:
        learn.build(Context(EngineSlot(), {"x.jsonl": tmp_path / "x.jsonl"}))
    home = page.launch(blocks)
    try:
        visit = Reader(browser, home, "?lesson=3&trace=x.jsonl")
        visit.tab.eval_on_selector(".ln-at", "(a) => { a.value = 1000; a.dispatchEvent(new Event('input', { bubbles: true })); }")  # fmt: skip
        shown = visit.tab.text_content(".sc-said")
        assert all(text in shown for text in texts if text.isprintable())
        assert texts[0] in visit.text("source") and texts[1] in visit.text("source")
        assert visit.tab.query_selector(".ln img, .ln .sc-said script") is None
        visit.close()
    finally:
        blocks.close(verbose=False)


@pytest.mark.parametrize("step", range(1, 9))
def test_narrow_and_dark_fits(reader, step):
    visit = reader(f"?tab=learn&lesson={step}&__theme=dark", width=390, height=844)
    visit.press("Enter")
    assert visit.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert visit.tab.eval_on_selector(".ln", "(all) => all.scrollWidth <= all.clientWidth")
    small = visit.tab.eval_on_selector_all(
        ".ln button:not([hidden])", "(all) => all.filter((b) => b.offsetParent && b.offsetHeight < 36).map((b) => b.className)"
    )  # fmt: skip
    assert small == []

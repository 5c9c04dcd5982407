"""The page's pure parts: rows and feeds, running numbers, inert text, colours."""

from __future__ import annotations

import html
import json
import re

import pytest

from saguaro_core import events as ev
from saguaro_core.summary import summarise
from viz import deltas, livestats, safetext

from .stub_engine import play

METHODS = ("ar", "sd", "ssd")
HOSTILE = (
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "${alert(1)}", "`${alert(1)}`",
    "\\u{zz} \\x \\\\",
    "{{value}} {{{value}}}", "![x](http://example.invalid/a.png)", "&lt;b&gt; &amp; &#60;", "\u202egnp.exe\u202c",
    "$$\\frac{1}{2}$$",
    "[x](javascript:alert(1))", "    indented\n\n# not a heading", "a < b && c > d", "| a | b |\n|---|---|",
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# Rows and feeds


@pytest.mark.parametrize("method", METHODS)
def test_every_drawn_event_gives_one_row_with_its_times(method):
    events = play(method, 40)
    silent = (ev.Transfer, ev.Controller)
    assert len(deltas.rows(events)) == sum(not isinstance(event, silent) for event in events)
    for event in events:
        made = deltas.row(event)
        if made is not None:
            assert made[1] == event.round
            assert made[2] == round(event.t0 * 1e6) and abs(made[2] + made[3] - event.t1 * 1e6) <= 1


def test_rows_say_what_happened():
    lookup = ev.Lookup(
        run="r", round=4, t0=0.5, t1=0.5, k=2, bonus=9, hit=True, rank=1, candidates=((2, 5, (1,)), (2, 9, (1, 2, 3)))
    )
    assert deltas.row(lookup) == ["lk", 4, 500000, 0, 1, 2, 1, 3, 2]
    miss = ev.Lookup(run="r", round=4, k=2, bonus=8, candidates=((2, 5, (1,)),))
    assert deltas.row(miss) == ["lk", 4, 0, 0, 0, 2, -1, 0, 1]
    verify = ev.Verify(run="r", round=1, t0=0.1, t1=0.125, rows=4, drafted=(1, 2, 3), accepted=2, bonus=7)
    assert deltas.row(verify) == ["v", 1, 100000, 25000, 4, 3, 2]
    assert deltas.row(ev.Wait(run="r", lane=ev.TARGET, on=ev.DRAFT)) == ["w", 0, 0, 0, 0, 1]


def test_rows_hold_no_text_of_others():
    bad = HOSTILE[0]
    events = [
        ev.Notice(run=bad, text=bad),
        ev.Fallback(run=bad, strategy=bad, why=bad),
        ev.Tokens(run=bad, ids=(1,), state=(bad,), text=bad),
        ev.RunStarted(run=bad, settings={"method": bad}),
        ev.RunFinished(run=bad, reason=bad, error=bad),
        ev.Prefill(run=bad, lane=bad, tokens=1),
    ]
    assert not re.search(r"[<>=${}()]", json.dumps(deltas.rows(events)))


def _read(value: dict, seen: int, since) -> tuple[list, int]:
    """What the browser does with a value: take chunks in order, ask for a gap."""
    numbers = sorted(map(int, value["chunks"]))
    chunks = dict(value["chunks"])
    if numbers and numbers[0] > seen + 1:
        chunks |= since(value["feed"], seen)
    got = []
    for number in sorted(map(int, chunks)):
        if number > seen:
            assert number == seen + 1
            got += json.loads(chunks[str(number)])
            seen = number
    return got, seen


@pytest.mark.parametrize("every", (1, 3, 19, 60))
def test_a_browser_that_sees_only_some_updates_gets_every_row(every):
    feeds = deltas.Feeds()
    feed, events = feeds.open(), play("ssd", 120)
    got, seen = [], 0
    batches = [events[i : i + 7] for i in range(0, len(events), 7)]
    for number, batch in enumerate(batches, 1):
        feed.push(batch)
        value = json.loads(json.dumps(feed.value()))
        assert len(value["chunks"]) <= deltas.CHUNKS_IN_VALUE
        if number % every == 0 or number == len(batches):
            fresh, seen = _read(value, seen, feeds.since)
            got += fresh
    assert got == deltas.rows(events)
    assert feed.done


def test_feeds_are_bounded_and_answer_only_for_their_token():
    feeds = deltas.Feeds()
    first = feeds.open()
    event = ev.Glue(run="r", rows=1)
    for _ in range(deltas.ROWS_KEPT // 1000 + 5):
        first.push([event] * 1000)
    assert sum(count for _, count, _ in first.chunks) <= deltas.ROWS_KEPT
    (last,) = feeds.since(first.token, first.last - 1).values()
    assert json.loads(last) == deltas.rows([event] * 1000)
    for token, after in (("", 0), (None, 0), ("nobody", 0), (first.token, "0"), ([], 0)):
        assert feeds.since(token, after) == {}
    for _ in range(deltas.FEEDS_KEPT):
        feeds.open()
    assert feeds.since(first.token, 0) == {}


# ---------------------------------------------------------------------------------------------------------------
# Running numbers


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", (0, 1))
def test_running_numbers_equal_the_summary_of_the_same_events(method, seed):
    events = play(method, 70, seed=seed)
    tally = livestats.Tally()
    for count, event in enumerate(events, 1):
        tally.add([event])
        if count % 37 == 0 or count == len(events):
            summary = summarise(events[:count])
            for name, value in tally.summary().items():
                assert value == pytest.approx(summary[name]), (name, count)


def test_numbers_that_are_not_defined_stay_blank():
    tally = livestats.Tally()
    assert livestats.strip(tally, "ssd")["cells"]["speed"] == ""
    tally.add(play("ar", 20))
    strip = livestats.strip(tally)
    assert strip["method"] == "AR" and strip["cells"]["hits"] == "" and strip["cells"]["acceptance"] == ""
    assert strip["state"] == "length limit"


def test_the_method_shown_is_the_one_that_ran():
    tally = livestats.Tally().add(play("sd", 10))
    assert livestats.strip(tally, "ssd")["method"] == "SD"
    lost = livestats.Tally().add([*play("ssd", 10), ev.Notice(run="r", text="The draft stopped", code=ev.DRAFT_LOST)])
    assert livestats.strip(lost)["method"] == "SSD → AR"


# ---------------------------------------------------------------------------------------------------------------
# Inert text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_prompt_has_no_live_mark_left(text):
    shown = safetext.literal(text)
    assert re.fullmatch(r"(?:&#\d+;|[^!-/:-@\[-`{-~])*", shown)
    assert html.unescape(shown).replace("\N{NO-BREAK SPACE}", " ") == text


def test_an_answer_keeps_markdown_and_code_but_no_tags():
    text = "**bold** <b>x</b> `a<b` ``c`<d`` ![p](u)\n\n```c\nif (a < b) vector<int> v;\n```\nafter <i>\n\n`open < tick"
    shown = safetext.markdown(text)
    assert "**bold** &lt;b>x&lt;/b> `a<b` ``c`<d`` !&#91;p](u)" in shown
    assert "if (a < b) vector<int> v;" in shown
    assert shown.endswith("after &lt;i>\n\n`open &lt; tick")


def test_an_answer_is_inert_at_every_moment_of_its_stream():
    text = "one `<img src=x onerror=alert(1)>`\n\n<img src=x>\n~~~\n<b>\n~~~\n> ```\n> <b>\n> ```\n<i>"
    for end in range(len(text) + 1):
        outside = re.sub(r"(`+|~~~|> ```).*?(\1|\Z)", "", safetext.markdown(text[:end]), flags=re.S)
        assert "<" not in outside, text[:end]


# ---------------------------------------------------------------------------------------------------------------
# Parts that need gradio, but no browser

gradio = pytest.importorskip("gradio")


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", ("light", "dark"))
def test_text_is_readable_on_its_colour(mode):
    from viz import theme

    palette = theme.LIGHT if mode == "light" else theme.DARK
    page = theme.BACKGROUND[mode]
    pairs = [(palette[f"on-{name}"], palette[name]) for name in ("target", "prefill", "draft", "glue", "step")]
    pairs += [(palette["on-mark"], palette[name]) for name in ("hit", "miss")]
    pairs += [(palette[name], page) for name in ("muted", "target", "draft-ink", "miss-ink", "hit", "miss")]
    pairs += [(palette["tip-text"], palette["tip"]), (palette["muted"], palette["lane"])]
    for text, ground in pairs:
        assert _contrast(text, ground) >= 4.5, (text, ground)


def test_templates_are_static():
    from viz.components import base

    for file in base.FOLDER.glob("*.html"):
        assert base.static(file.stem, "html") and base.static(file.stem, "css") is not None


def test_the_page_names_no_other_host():
    from viz import theme
    from viz.components import base

    texts = [
        theme.head(),
        *(
            file.read_text(encoding="utf-8")
            for file in base.FOLDER.iterdir()
            if file.suffix in (".js", ".css", ".html")
        ),
    ]
    assert not [text for text in texts if re.search(r"https?://|//[a-z]+\.[a-z]", text)]
    assert all(not font.stylesheet()["url"] for font in theme.theme()._font if hasattr(font, "stylesheet"))


def test_settings_are_checked_with_a_sentence():
    from viz import handlers

    made = handlers.settings("ssd", "", "", 0, 0, 64)
    assert made == {"method": "ssd", "k": None, "fan_out": None, "temperature": 0.0, "seed": 0, "max_new_tokens": 64}
    assert handlers.numbers("10, 6/4 4") == [10, 6, 4, 4] and handlers.numbers(" 8 ") == 8
    assert handlers.lookahead(" 3 ") == 3 and handlers.lookahead("") is None and handlers.lookahead(None) is None
    with pytest.raises(ValueError, match="whole number"):
        handlers.lookahead("-1")
    with pytest.raises(ValueError, match="Fan-out"):
        handlers.numbers("ten")
    with pytest.raises(ValueError, match="method"):
        handlers.settings("xyz", None, "", 0, 0, 64)


@pytest.mark.parametrize(
    "target, said",
    (
        ("SmolLM2-135M-Instruct, dequantised from 4 bit", "Answers come from a 135M-parameter model: "),
        ("Qwen/Qwen3-8B", "Answers come from an 8B-parameter model."),
        ("some-model", ""),
    ),
)
def test_the_header_says_how_large_the_model_is(target, said):
    from viz.components.header import describe

    assert describe({"target": target, "draft": "d"})["caution"].startswith(said)


def test_traces_are_found_opened_and_refused_with_a_sentence(tmp_path):
    from saguaro_core import trace
    from viz import replay

    with pytest.raises(ValueError, match="no trace"):
        replay.find(tmp_path)
    trace.save(tmp_path / "a.jsonl", play("ssd", 20))
    (tmp_path / "b.jsonl").write_text('{"event": "nonsense"}\n')
    found = replay.find(tmp_path)
    assert list(found) == ["a.jsonl", "b.jsonl"] and replay.find(tmp_path / "a.jsonl") == {
        "a.jsonl": tmp_path / "a.jsonl"
    }
    message, strip, value, said = replay.open_trace(found["a.jsonl"], deltas.Feeds())
    assert (
        message[0]["content"].startswith("The target")
        and strip["method"] == "SSD"
        and value["done"]
        and not said["text"]
    )
    assert sum(len(json.loads(chunk)) for chunk in value["chunks"].values()) == len(deltas.rows(play("ssd", 20)))
    assert replay.open_trace(found["b.jsonl"], deltas.Feeds())[3]["level"] == "error"
    assert replay.open_trace(None, deltas.Feeds())[3]["level"] == "error"

"""The page's pure parts: rows and feeds, running numbers, inert text, colours."""

from __future__ import annotations

import html
import json
import re
import statistics
from pathlib import Path

import pytest

from saguaro_core import events as ev
from saguaro_core import trace
from saguaro_core.summary import summarise
from viz import deltas, livestats, rounds, safetext

from .stub_engine import play

METHODS = ("ar", "sd", "ssd")
TRACES = Path(__file__).parent.parent / "assets" / "traces"
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
    silent = (ev.Transfer, ev.Controller, ev.TokenTexts)
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
# Rounds in words


def _opened(events) -> tuple[deltas.Feeds, deltas.Feed]:
    feeds = deltas.Feeds()
    feed = feeds.open()
    feed.push(events)
    return feeds, feed


def _texts(events) -> dict[int, str]:
    return {id: text for e in events if isinstance(e, ev.TokenTexts) for id, text in zip(e.ids, e.texts, strict=True)}


@pytest.mark.parametrize("seed", (0, 1))
def test_a_round_is_told_as_the_events_have_it(seed):
    events = play("ssd", 90, seed=seed, wrong=HOSTILE)
    _, feed = _opened(events)
    texts, kinds = {id: rounds.visible(text) for id, text in _texts(events).items()}, set()
    lookups = {e.round: e for e in events if isinstance(e, ev.Lookup)}
    for verify in (e for e in events if isinstance(e, ev.Verify)):
        told, lookup = feed.round(verify.round), lookups[verify.round]
        kinds.add(told["kind"])
        assert told["kind"] == ("hit" if lookup.hit else "miss") and told["lead"].lower().startswith(told["kind"])
        states = ["accepted"] * verify.accepted + ["refused"] * (verify.accepted < len(verify.drafted))
        states += ["untested"] * (len(verify.drafted) - len(states))
        assert [(t["token"], t["state"]) for t in told["guess"]["tokens"]] == [
            (texts[id], state) for id, state in zip(verify.drafted, states, strict=True)
        ]
        assert told["guess"]["choice"]["token"] == texts[verify.bonus]
        assert told["key"]["token"] == texts[lookup.bonus] and told["key"]["accepted"] == max(lookup.k, 0)
        forks = told["forks"]["forks"]
        assert [(b["token"], tuple(b["ready"])) for fork in forks for b in fork["branches"]] == [
            (texts[token], tuple(texts[id] for id in ready)) for _, token, ready in lookup.candidates
        ]
        happened = [b for fork in forks for b in fork["branches"] if b["happened"]]
        missing = [fork["missing"] for fork in forks if fork["missing"] is not None]
        if lookup.hit:
            assert len(happened) == 1 and not missing
            assert tuple(happened[0]["ready"]) == tuple(texts[id] for id in verify.drafted)
        else:
            assert not happened and missing == [texts[lookup.bonus]]
            assert "token by token, while the target waited" in told["guess"]["came"]
    assert kinds == {"hit", "miss"}


def test_the_buttons_lead_to_the_next_and_previous_of_each_kind():
    events = play("ssd", 90)
    _, feed = _opened(events)
    hits = {e.round: e.hit for e in events if isinstance(e, ev.Lookup)}
    for number in hits:
        go = feed.round(number)["go"]
        for name, wanted in (("hit", True), ("miss", False)):
            kind = [n for n, hit in hits.items() if hit is wanted]
            assert go[f"previous_{name}"] == max((n for n in kind if n < number), default=None)
            assert go[f"next_{name}"] == min((n for n in kind if n > number), default=None)
        assert go["previous"] == number - 1 and go["next"] == (number + 1 if number < max(hits) else None)


@pytest.mark.parametrize("file", sorted(TRACES.glob("*.jsonl")), ids=lambda file: file.stem)
def test_the_numbers_of_recorded_rounds_add_up_to_the_summary(file):
    """Other code, the same definitions: the medians over all rounds."""
    events = trace.load(file)
    _, feed = _opened(events)
    summary, found = summarise(events), {}
    for number in (e.round for e in events if isinstance(e, ev.Verify)):
        for one in feed.round(number)["numbers"]:
            found.setdefault(one["name"].split(",")[0], []).append(float(one["value"].removesuffix(" ms")))
    assert statistics.median(found["T_V"]) == pytest.approx(summary["verify_ms"], abs=0.01)
    assert statistics.median(found["Overhead"]) == pytest.approx(summary["overhead_ms"], abs=0.01)
    assert ("T_tree" in found) == ("Slack" in found) == (summary["tree_step_ms"] is not None)


def test_rounds_of_other_methods_and_the_prompt_have_their_own_words():
    _, feed = _opened(play("ar", 12))
    told = feed.round(3)
    assert told["kind"] == "plain" and told["forks"] is None and told["guess"]["choice"]["state"] == "plain"
    assert "one forward gave one token" in told["lead"] and told["guess"]["tokens"] == []
    _, feed = _opened(play("sd", 12))
    assert "nothing is prepared" in feed.round(1)["lead"] and "token by token" in feed.round(1)["guess"]["came"]
    assert [one["value"] for one in feed.round(0)["numbers"]] and feed.round(0)["guess"]["choice"]["token"] == "The "


def test_tokens_without_a_text_are_shown_by_number():
    events = [e for e in play("ssd", 30) if not isinstance(e, ev.TokenTexts)]
    _, feed = _opened(events)
    verify = next(e for e in events if isinstance(e, ev.Verify))
    assert [t["token"] for t in feed.round(1)["guess"]["tokens"]] == [f"#{id}" for id in verify.drafted]


def test_a_branch_that_was_not_started_in_time_is_a_miss_that_says_so():
    lookup = ev.Lookup(run="r", round=2, k=1, bonus=9, hit=False, rank=0, candidates=((0, 5, (1,)), (1, 9, ())))
    _, feed = _opened([lookup, ev.Fallback(run="r", round=2, strategy="<b>", why="</script>")])
    told = feed.round(2)
    assert "no token of it had been drafted" in told["forks"]["found"]
    assert told["forks"]["forks"][1]["branches"][0]["happened"] and told["guess"] is None


def test_of_a_batch_the_first_sequence_is_told_and_it_says_so():
    mine, other = (ev.Verify(run="r", seq=seq, round=1, rows=2, drafted=(4,), accepted=seq, bonus=9) for seq in (0, 1))
    _, feed = _opened([mine, other])
    assert feed.round(1)["guess"]["tokens"][0]["state"] == "refused" and "first of 2 answers" in feed.round(1)["batch"]
    _, feed = _opened([mine])
    assert not feed.round(1)["batch"]


def test_what_the_fallback_did_is_said_even_where_there_was_no_guess():
    events = [
        ev.Lookup(run="r", round=3, k=0, bonus=7, candidates=((0, 5, (1,)),)),
        ev.Fallback(run="r", round=3, strategy="partial_accept", why="too many wait"),
        ev.Verify(run="r", round=3, rows=1, bonus=8),
    ]
    _, feed = _opened(events)
    told = feed.round(3)["guess"]
    assert "did not wait for a new guess" in told["came"] and "too many wait" in told["why"] and told["tokens"] == []


def test_rounds_are_bounded_and_told_only_to_who_has_the_token():
    feeds, feed = _opened([ev.Verify(run="r", round=n, rows=1, bonus=1) for n in range(1, rounds.ROUNDS_KEPT + 11)])
    assert feeds.round(feed.token, 10) == {} and feeds.round(feed.token, 11)["round"] == 11
    for token, number in (("", 11), (None, 11), ("nobody", 11), (feed.token, "11"), (feed.token, None), ([], 11)):
        assert feeds.round(token, number) == {}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_token_is_shown_in_full_and_cannot_turn_its_neighbours(text):
    shown = rounds.visible(text)
    assert not re.search("[\\x00-\\x1f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]", shown)
    back = re.sub("\u2039U\\+([0-9A-F]{4,})\u203a", lambda code: chr(int(code[1], 16)), shown)
    assert back.replace("\u21b5", "\n") == text


def test_whitespace_and_nothing_can_be_seen():
    assert rounds.visible("  ") == "\u2423\u2423" and rounds.visible("") == "\u2205" and rounds.visible(" a") == " a"
    assert rounds.visible("x" * 300) == "x" * rounds.TEXT_SHOWN + "\u2026"


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
    texts = [text.replace("http://www.w3.org/2000/svg", "") for text in texts]  # a name, never fetched
    assert not [text for text in texts if re.search(r"https?://|//[a-z]+\.[a-z]", text)]
    assert all(not font.stylesheet()["url"] for font in theme.theme()._font if hasattr(font, "stylesheet"))


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

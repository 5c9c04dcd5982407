"""What the chat's buttons do. No layout here: every handler returns or yields a `frame`, one value per output.

The engine belongs to everybody and runs one answer at a time; a run belongs to one browser session. Whoever leaves,
by Stop, by closing the tab or by an error, cancels the run.

Turns are dicts `{"role", "text", "note"}` kept on the server; the chatbot is only a view of them. After an answer,
`measure` runs the same prompt with AR and with SD, as a job of its own at the end of the queue: each may keep as many
tokens of earlier turns as the answer could, so that all three read the same prompt and hold the same keys and values.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from saguaro_core import events as ev

from . import choices, livestats, pace, recording, replay, safetext
from .components.answer import NO_ANSWER
from .components.notice import note
from .context import ABSENT, Context
from .deltas import EMPTY, Feed
from .tokenlog import TokenLog, TokenLogs

OUTPUTS = (
    "turns", "chatbot", "stats", "timeline", "answer", "notice", "prompt", "send", "leave", "stop", "retry", "undo",
    "clear", "held",
)  # fmt: skip
# An output costs the browser some milliseconds with every frame, even one that is skipped: what streams, and the rest.
STREAMED = ("chatbot", "stats", "timeline", "answer", "notice", "leave", "stop", "outcome")
SETTLED = ("turns", "prompt", "send", "leave", "stop", "retry", "undo", "clear", "held", "outcome")
MEASURED = ("stats", "answer", "notice", "stop", "held")
BASELINES_SPELT_OUT = "AR is plain decoding, one token at a time; SD is speculative decoding, first draft, then check."
UPDATE_S = 0.25  # four updates a second: a browser that falls behind never catches up, and drawing slows the engine
POLL_S = 0.1  # never blocks longer, so that Gradio can close the generator
BASELINES = replay.BASELINES
WHOLE = ("eos", "length", "stop")  # how a run ends that nobody broke off

Turn = dict[str, str]
ENDINGS = {
    "cancelled": "stopped",
    "length": "cut off at the limit of new tokens",
    "stop": "ended at a stop string",
    "error": "ended by an error",
}


def frame(names: tuple[str, ...] = OUTPUTS, /, **changes: Any) -> tuple:
    """The outputs `names` in order; what has no change stays as it is."""
    unknown = changes.keys() - set(names)
    if unknown:
        raise ValueError(f"unknown outputs {sorted(unknown)}")
    return tuple(changes.get(name, gr.skip()) for name in names)


def _of(names: tuple[str, ...], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: change for name, change in changes.items() if name in names}


def _last(changes: dict[str, Any]) -> tuple:
    """The last frame of an answer. What does not stream waits for `settle`, and with it the two buttons that both have,
    so that Send and Stop change places at one moment."""
    now = {name: change for name, change in changes.items() if name not in SETTLED}
    return frame(STREAMED, **now, outcome=_of(SETTLED, changes))


def buttons(state: str, turns: list[Turn]) -> dict[str, Any]:
    """Which buttons show. `leave` and `stop` look alike: the first gives up a place in the queue, the second stops the
    engine and lets the answer finish properly."""
    idle = state == "idle"
    return {
        "send": gr.update(visible=idle),
        "leave": gr.update(visible=state == "waiting"),
        "stop": gr.update(visible=state == "running", value="Stop"),
        **{name: gr.update(interactive=idle and bool(turns)) for name in ("retry", "undo", "clear")},
    }


# ---------------------------------------------------------------------------------------------------------------
# Turns and their view

_THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)


def view(turns: list[Turn]) -> list[dict[str, Any]]:
    return [message for turn in turns for message in _shown(turn)]


def _shown(turn: Turn) -> list[dict[str, Any]]:
    """A prompt as typed; an answer as Markdown, what it thinks before it answers folded away."""
    if turn["role"] == "user":
        return [{"role": "user", "content": safetext.literal(turn["text"])}]
    text, shown = turn["text"], []
    if thought := _THOUGHT.match(text):
        text, going_on = text[thought.end() :], not thought[0].rstrip().endswith("</think>")
        pending = going_on and not turn["note"]
        title = {"title": "Thinking", "status": "pending" if pending else "done"}
        shown.append({"role": "assistant", "content": safetext.markdown(thought[1]), "metadata": title})
    text = safetext.markdown(text)
    text = f"{_closed(text)}\n\n*{turn['note']}*" if turn["note"] else text
    return [*shown, {"role": "assistant", "content": text}] if text or not shown else shown


def _closed(text: str) -> str:
    """An answer cut inside a code block, with the block closed so that the note below is not code."""
    fences = re.findall(r"^[ \t]*(`{3,}|~{3,})", text, re.MULTILINE)
    return f"{text}\n{fences[-1]}" if len(fences) % 2 else text


def messages(turns: list[Turn]) -> list[dict[str, str]]:
    """What the engine gets: roles and the texts as they were written."""
    return [{"role": turn["role"], "content": turn["text"]} for turn in turns]


# ---------------------------------------------------------------------------------------------------------------
# An answer


@dataclass
class Answer:
    """A run as it is shown: everything that is folded from its events. `conversation` and `sampling` say which prompt
    was answered how; `bases` are AR and SD on the same, where they have been measured, and `base_events` what was
    measured here."""

    feed: Feed
    log: TokenLog
    method: str = ""
    limit: int = 0
    asked: str = ""
    conversation: list[dict[str, str]] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    bases: dict[str, pace.Pace] = field(default_factory=dict)
    events: list[ev.Event] = field(default_factory=list)
    base_events: dict[str, list[ev.Event]] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)  # words about baselines that are not there (yet)
    recorded: bool = False
    skipped: bool = False  # nobody waits for its baselines any more
    text: str = ""
    said: str = ""
    tally: livestats.Tally = field(default_factory=livestats.Tally)
    pace: pace.Pace = field(default_factory=pace.Pace)

    def add(self, batch: list[ev.Event]) -> None:
        self.events += batch
        self.tally.add(batch)
        self.pace.add(batch)
        self.feed.push(batch)
        self.log.add(batch)
        for event in batch:
            if isinstance(event, ev.Tokens):
                self.text += event.text
            elif isinstance(event, ev.Notice):
                self.said = event.text

    @property
    def done(self) -> bool:
        return self.tally.finished is not None

    def held(self) -> bytes:
        """The answer and its baselines, to be saved."""
        return recording.pack([self.events, *self.base_events.values()])

    @property
    def others(self) -> tuple[str, ...]:
        """The baselines that this answer is not itself."""
        return tuple(name for name in BASELINES if name != (self.tally.method or self.method))

    def stats(self) -> dict[str, Any]:
        against = {}
        for name in BASELINES:
            base = self.bases.get(name)
            if name not in self.others:
                against[name] = (None, "this answer")
            elif base is None:
                against[name] = (None, self.waiting.get(name, ""))
            else:
                against[name] = (pace.speedup(self.pace, base), self._compared(name, base))
        return livestats.strip(self.tally, self.method, against, "recorded" if self.recorded else "")

    def _compared(self, name: str, base: pace.Pace) -> str:
        n, last = pace.shared(self.pace, base), pace.parted(self.pace, base)
        if last is not None:
            return f"up to token {last - 1}, then the texts part"
        return (
            f"{livestats.label(name)}: {(n - 1) / base.times[n - 1]:.1f} tok/s" if n > 1 and base.times[n - 1] else ""
        )

    def tracks(self) -> dict[str, Any]:
        """The value of the answer component."""
        names = [self.tally.method or self.method, *self.others]
        times = pace.tracks(self.pace, self.bases.values())
        if not self.done:  # the answer's own times are only of use when all are there
            times.pop(self.pace.method)
        return {
            "log": self.log.token,
            "count": len(self.pace),
            "rows": len(self.log.rows),
            "asked": self.asked,
            "done": self.done,
            "limit": self.limit,
            "now": round(self.pace.times[-1] * 1e3, 1) if self.pace.times else 0,
            "names": names,
            "labels": {name: livestats.label(name) for name in names},
            "notes": self.waiting,
            "tracks": json.dumps(times, separators=(",", ":")) if times else "",
        }


# ---------------------------------------------------------------------------------------------------------------
# The desk


@dataclass
class Desk:
    """The engine's slot and the recorded runs; by browser session the run in progress and the last answer."""

    context: Context
    logs: TokenLogs = field(default_factory=TokenLogs)
    running: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)

    def begin(self, prompt: str, turns: list[Turn], request: gr.Request) -> tuple:
        """Take the prompt into the conversation. Last value: a ticket that starts `answer`, skipped for no prompt."""
        if not (prompt or "").strip():
            return *frame(notice=note("Type a message first.")), gr.skip()
        try:
            self.context.slot.get()
        except ValueError as error:
            return *frame(notice=note(str(error), "error")), gr.skip()
        self._skip(request)
        turns = [*turns, {"role": "user", "text": prompt, "note": ""}]
        return *self._waiting(turns, prompt=""), uuid.uuid4().hex

    def again(self, turns: list[Turn], request: gr.Request) -> tuple:
        """Answer the last message once more, with the settings as they are now."""
        kept = list(turns)
        while kept and kept[-1]["role"] != "user":
            kept.pop()
        if not kept:
            return *frame(notice=note("There is nothing to retry yet.")), gr.skip()
        self._skip(request)
        return *self._waiting(kept), uuid.uuid4().hex

    def undo(self, turns: list[Turn], request: gr.Request) -> tuple:
        """Take the last message and its answer back; the message returns to the box."""
        kept = list(turns)
        while kept and kept[-1]["role"] != "user":
            kept.pop()
        if not kept:
            return frame(notice=note("There is nothing to undo yet."))
        self._skip(request)
        last = kept.pop()
        if not kept:
            return frame(**self._blank(), prompt=last["text"])
        return frame(turns=kept, chatbot=view(kept), notice=note(), prompt=last["text"], **buttons("idle", kept))

    def _waiting(self, turns: list[Turn], **changes: Any) -> tuple:
        return frame(turns=turns, chatbot=view(turns), notice=note(), **buttons("waiting", turns), **changes)

    def answer(self, turns: list[Turn], *form: Any, request: gr.Request) -> Iterator[tuple]:
        """Run the engine on the conversation and stream frames until the run has ended; `settle` follows. `form` as in
        `choices.NAMES`."""
        if not turns or turns[-1]["role"] != "user":
            yield _last(buttons("idle", turns))
            return
        asked = dict(zip(choices.NAMES, form, strict=True))
        compare = asked.pop("compare")
        try:
            options = choices.keywords(**asked)
            run = self.context.slot.get().generate(messages(turns), **options)
        except Exception as error:  # whatever it is, the visitor gets a line and the prompt back
            yield _last(self._refused(turns, error))
            return
        session = request.session_hash or ""
        self.running[session] = run
        try:
            answer = self._new(session, turns, options, compare)
            yield from self._stream(run, turns, answer)
            yield _last(self._ended(turns, answer))
        finally:  # a closed tab arrives here as GeneratorExit
            if not run.finished:
                run.cancel()
            if self.running.get(session) is run:
                del self.running[session]

    def settle(self, outcome: dict[str, Any]) -> tuple:
        """The rest of what an answer changes: the conversation goes on from here."""
        return frame(SETTLED, outcome={}, **outcome)

    def _new(self, session: str, turns: list[Turn], options: dict[str, Any], compare: bool) -> Answer:
        """The answer to come. The same question with the same sampling has the same baselines as before."""
        sampling = {name: options[name] for name in ("verification", "temperature", "top_k", "top_p", "seed")}
        answer = Answer(self.context.feeds.open(), self.logs.open(), options["method"], options["max_new_tokens"])
        answer.asked, answer.conversation, answer.sampling = turns[-1]["text"], messages(turns), sampling
        before = self.answers.get(session)
        if before and (before.conversation, before.sampling) == (answer.conversation, sampling):
            answer.bases = {name: base for name, base in before.bases.items() if name in answer.others}
            answer.base_events = {name: before.base_events[name] for name in answer.bases}
        word = "measuring afterwards" if compare else "not measured"
        answer.waiting = {name: word for name in answer.others}
        self.answers[session] = answer
        return answer

    def _stream(self, run: Any, turns: list[Turn], answer: Answer) -> Iterator[tuple]:
        changed = _of(STREAMED, buttons("running", turns)) | {"stats": answer.stats()}
        said = ""
        for number, batch in enumerate(drain(run)):
            answer.add(batch)
            if answer.done:
                break
            # Every value costs the browser some milliseconds: numbers and tracks take turns, the rest goes if it is new.
            changed |= {"answer": answer.tracks()} if number % 2 else {"stats": answer.stats()}
            if answer.text:
                changed["chatbot"] = view([*turns, {"role": "assistant", "text": answer.text, "note": ""}])
            if answer.said != said:
                said = answer.said
                changed["notice"] = note(said)
            yield frame(STREAMED, timeline=answer.feed.value(), **changed)
            changed = {}

    def _ended(self, turns: list[Turn], answer: Answer) -> dict[str, Any]:
        finished = answer.tally.finished
        reason = finished.reason if finished else "error"
        shown = {
            "stats": answer.stats(),
            "timeline": answer.feed.value() | {"done": True},
            "answer": answer.tracks() | {"done": True},
            "held": answer.held(),
        }
        if reason == "error":
            sentence = finished.error if finished and finished.error else "The run ended without saying why."
            if not answer.text:
                return self._refused(turns, sentence, **shown)
            shown["notice"] = note(sentence, "error")
        else:
            shown["notice"] = note(answer.said)
        if answer.text or reason == "cancelled":
            turns = [*turns, {"role": "assistant", "text": answer.text, "note": ENDINGS.get(reason, "")}]
        return {"turns": turns, "chatbot": view(turns)} | shown | buttons("idle", turns)

    def _refused(self, turns: list[Turn], error: Any, **changes: Any) -> dict[str, Any]:
        """No answer came: say why and give the prompt back for another try."""
        kept, prompt = turns[:-1], turns[-1]["text"]
        sentence = str(error).strip() or type(error).__name__
        shown = {"notice": note(sentence, "error"), "prompt": prompt, **changes}
        return {"turns": kept, "chatbot": view(kept)} | shown | buttons("idle", kept)

    # ---- AR and SD on the same prompt

    def measure(self, compare: bool, request: gr.Request) -> Iterator[tuple]:
        """Run the last answer's prompt with AR and with SD, as far as the answer went."""
        yield frame(MEASURED)  # a generator that yields nothing would empty every output
        session = request.session_hash or ""
        answer = self.answers.get(session)
        if answer is None or answer.skipped or not compare:
            return
        missing = [name for name in answer.others if len(answer.bases.get(name, ())) < len(answer.pace)]
        if answer.pace.reason not in WHOLE or len(answer.pace) < 2:
            missing, answer.waiting = [], dict.fromkeys(answer.others, "not measured")
        for name in missing:
            answer.waiting[name] = "measuring"
        stopped = False
        for name in missing:
            if not stopped and not answer.skipped:
                yield from self._baseline(session, answer, name)
                stopped = name not in answer.bases
            answer.waiting[name] = "not measured"
        if not answer.skipped:
            shown = {"stats": answer.stats(), "answer": answer.tracks(), "held": answer.held()}
            yield frame(MEASURED, **shown, stop=gr.update(visible=False))

    def _baseline(self, session: str, answer: Answer, name: str) -> Iterator[tuple]:
        options = {"method": name, "max_new_tokens": len(answer.pace), "reuse": answer.pace.reused, **answer.sampling}
        try:
            run = self.context.slot.get().generate(answer.conversation, **options)
        except Exception as error:
            yield frame(MEASURED, notice=note(f"{livestats.label(name)} could not be measured: {error}", "error"))
            return
        base, recorded, first = pace.Pace(), [], {"stop": gr.update(visible=True, value="Skip")}
        self.running[session] = run
        try:
            for batch in drain(run):
                base.add(batch)
                recorded += batch
                answer.waiting[name] = f"measuring, {100 * len(base) // len(answer.pace)} %"
                if answer.skipped:
                    return
                yield frame(MEASURED, stats=answer.stats(), answer=answer.tracks(), **first)
                first = {}
            if base.reason in WHOLE:
                answer.bases[name], answer.base_events[name] = base, recorded
        finally:
            if not run.finished:
                run.cancel()
            if self.running.get(session) is run:
                del self.running[session]

    def _skip(self, request: gr.Request) -> None:
        """The conversation goes on: whatever is still to be measured for the last answer is left out."""
        if answer := self.answers.get(request.session_hash or ""):
            answer.skipped = True
        self.stop(request)

    # ---- recorded runs

    def show(self, name: str) -> tuple:
        """A run that comes along, by name."""
        try:
            return self.play([tuple(replay.load(self.context.traces.get(name)))])
        except ValueError as error:
            return frame(**self._blank() | {"notice": note(str(error), "error")})

    def play(self, runs: list[recording.Recording]) -> tuple:
        """The first recorded run that is no baseline in place of a conversation, beside AR and SD on the same prompt."""
        run = next((run for run in runs if recording.method(run) not in BASELINES), runs[0])
        answer = Answer(self.context.feeds.open(), self.logs.open(), recorded=True)
        answer.add(list(run))
        answer.asked = answer.pace.prompt
        others = [pace.Pace().add(other) for other in runs] + replay.paces(self.context.traces.values())
        answer.bases = replay.baselines(answer.pace, others)
        answer.waiting = {other: "not recorded" for other in answer.others}
        asked = [{"role": "user", "text": answer.asked, "note": ""}] if answer.asked else []
        said = {"role": "assistant", "text": answer.text, "note": ""}
        return frame(
            turns=[],
            chatbot=view([*asked, said]),
            stats=answer.stats(),
            timeline=answer.feed.value() | {"done": True},
            answer=answer.tracks() | {"done": True},
            notice=note(self._provenance(answer)),
            held=recording.pack(runs),
            **buttons("idle", []),
        )

    def _provenance(self, answer: Answer) -> str:
        where = f"Measured on {answer.pace.machine} and recorded" if answer.pace.machine else "A recorded run"
        live = " Send a message to run the models." if self.context.slot.state != ABSENT else ""
        return f"{where}; nothing is simulated. {BASELINES_SPELT_OUT}{live} {answer.said}".rstrip()

    # ---- the other buttons

    def stop(self, request: gr.Request) -> None:
        """Ask the engine to stop; the streaming handler sees the end and keeps the text."""
        run = self.running.get(request.session_hash or "")
        if run is not None:
            run.cancel()

    def leave(self, turns: list[Turn], request: gr.Request) -> tuple:
        """Stop pressed before the answer began: out of the queue, the prompt back in the box."""
        self.stop(request)
        if not turns or turns[-1]["role"] != "user":
            return frame(**buttons("idle", turns))
        kept = turns[:-1]
        restored = {"turns": kept, "chatbot": view(kept), "prompt": turns[-1]["text"]}
        return frame(**restored, notice=note("Left the queue."), **buttons("idle", kept))

    def clear(self, request: gr.Request) -> tuple:
        self._skip(request)
        self.answers.pop(request.session_hash or "", None)
        return frame(**self._blank())

    def _blank(self) -> dict[str, Any]:
        shown = {"stats": livestats.BLANK, "timeline": EMPTY, "answer": NO_ANSWER, "notice": note()}
        return {"turns": [], "chatbot": [], "held": b"", **shown, **buttons("idle", [])}

    def close_session(self, request: gr.Request) -> None:
        """The browser is gone for certain (the heartbeat ended)."""
        self._skip(request)
        self.answers.pop(request.session_hash or "", None)

    def chat(
        self,
        prompt: str,
        method: str = "ssd",
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Iterator[str]:
        """Answer one message; yields the text so far. `method` is one of `choices.METHODS`."""
        if not prompt.strip():
            raise gr.Error("The prompt is empty.", print_exception=False)
        form = {"method": method, "max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
        try:
            options = choices.keywords(**choices.DEFAULTS | form)
            run = self.context.slot.get().generate(prompt, **options)
        except Exception as error:
            raise gr.Error(str(error), print_exception=False) from None
        text = ""
        try:
            for batch in drain(run):
                text += "".join(event.text for event in batch if isinstance(event, ev.Tokens))
                failed = next((e for e in batch if isinstance(e, ev.RunFinished) and e.reason == "error"), None)
                if failed:
                    raise gr.Error(failed.error or "The run failed.", print_exception=False)
                yield text
        finally:
            if not run.finished:
                run.cancel()


def drain(run: Any) -> Iterator[list[ev.Event]]:
    """The run's events in batches, at most one batch per `UPDATE_S`. Ends with the batch that holds `RunFinished`."""
    while True:
        began = time.monotonic()
        batch = list(run.poll(POLL_S))
        pause = UPDATE_S - (time.monotonic() - began)
        if batch and pause > 0 and not _over(batch):
            time.sleep(pause)
            batch += run.poll(0)
        if not batch and run.finished:  # the last event may be on its way at this very moment
            yield list(run.poll(POLL_S))
            return
        yield batch
        if _over(batch):
            return


def _over(batch: list[ev.Event]) -> bool:
    return any(isinstance(event, ev.RunFinished) for event in batch)

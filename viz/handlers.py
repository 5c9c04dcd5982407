"""What the chat's buttons do. No layout here: every handler returns or yields a `frame`, one value per output.

The engine belongs to everybody and runs one answer at a time; a run belongs to one browser session. Whoever leaves,
by Stop, by closing the tab or by an error, cancels the run.

Turns are dicts `{"role", "text", "note"}` kept on the server; the chatbot is only a view of them.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from saguaro_core import events as ev

from . import livestats, safetext
from .components.notice import note
from .deltas import EMPTY, Feeds

OUTPUTS = ("turns", "chatbot", "stats", "timeline", "notice", "prompt", "send", "leave", "stop", "retry", "clear")
UPDATE_S = 0.2  # five updates a second: a browser that falls behind never catches up, and drawing slows the engine
POLL_S = 0.1  # never blocks longer, so that Gradio can close the generator
METHODS = ("ar", "sd", "ssd")

Turn = dict[str, str]
ENDINGS = {
    "cancelled": "stopped",
    "length": "cut off at the limit of new tokens",
    "stop": "ended at a stop string",
    "error": "ended by an error",
}


def frame(**changes: Any) -> tuple:
    """The outputs in order; what is not named stays as it is."""
    unknown = changes.keys() - set(OUTPUTS)
    if unknown:
        raise ValueError(f"unknown outputs {sorted(unknown)}")
    return tuple(changes.get(name, gr.skip()) for name in OUTPUTS)


def buttons(state: str, turns: list[Turn]) -> dict[str, Any]:
    """Which buttons show. `leave` and `stop` look alike: the first gives up a place in the queue, the second stops the
    engine and lets the answer finish properly."""
    idle = state == "idle"
    return {
        "send": gr.update(visible=idle),
        "leave": gr.update(visible=state == "waiting"),
        "stop": gr.update(visible=state == "running"),
        "retry": gr.update(interactive=idle and bool(turns)),
        "clear": gr.update(interactive=idle and bool(turns)),
    }


# ---------------------------------------------------------------------------------------------------------------
# Turns and their view


def view(turns: list[Turn]) -> list[dict[str, Any]]:
    return [{"role": turn["role"], "content": _shown(turn)} for turn in turns]


def _shown(turn: Turn) -> str:
    if turn["role"] == "user":
        return safetext.literal(turn["text"])
    text = safetext.markdown(turn["text"])
    return f"{_closed(text)}\n\n*{turn['note']}*" if turn["note"] else text


def _closed(text: str) -> str:
    """An answer cut inside a code block, with the block closed so that the note below is not code."""
    fences = re.findall(r"^[ \t]*(`{3,}|~{3,})", text, re.M)
    return f"{text}\n{fences[-1]}" if len(fences) % 2 else text


def messages(turns: list[Turn]) -> list[dict[str, str]]:
    """What the engine gets: roles and the texts as they were written."""
    return [{"role": turn["role"], "content": turn["text"]} for turn in turns]


# ---------------------------------------------------------------------------------------------------------------
# Settings


def settings(method: Any, k: Any, fan_out: Any, temperature: Any, seed: Any, max_new_tokens: Any) -> dict[str, Any]:
    """The engine's keywords; a blank K or fan-out leaves the choice to it. Raises ValueError with a sentence."""
    return {
        "method": _method(method),
        "k": lookahead(k),
        "fan_out": numbers(fan_out),
        "temperature": float(temperature or 0.0),
        "seed": int(seed or 0),
        "max_new_tokens": int(max_new_tokens or 256),
    }


def _method(name: Any) -> str:
    method = str(name).lower()
    if method not in METHODS:
        raise ValueError(f"Unknown method. Choose one of {', '.join(METHODS)}.")
    return method


def lookahead(text: Any) -> int | None:
    """K as a whole number, blank as None."""
    word = str("" if text is None else text).strip()
    if word and not (word.isascii() and word.isdigit()):
        raise ValueError("Lookahead K is a whole number, or blank for the engine's default.")
    return int(word) if word else None


def numbers(text: Any) -> int | list[int] | None:
    """ "10, 6, 4, 4" or "10/6/4/4" as a list, a single number as itself, blank as None."""
    words = [word for word in re.split(r"[\s,/;]+", str(text or "").strip()) if word]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError("Fan-out is one number, or one number per fork such as 10, 6, 4, 4.")
    if len(words) < 2:
        return int(words[0]) if words else None
    return [int(word) for word in words]


# ---------------------------------------------------------------------------------------------------------------
# The desk


@dataclass
class Desk:
    """One engine, the runs in progress by browser session, and the feeds of the timelines."""

    engine: Any
    feeds: Feeds = field(default_factory=Feeds)
    running: dict[str, Any] = field(default_factory=dict)

    def begin(self, prompt: str, turns: list[Turn]) -> tuple:
        """Take the prompt into the conversation. Last value: a ticket that starts `answer`, skipped for no prompt."""
        if not (prompt or "").strip():
            return *frame(notice=note("Type a message first.")), gr.skip()
        turns = [*turns, {"role": "user", "text": prompt, "note": ""}]
        return *self._waiting(turns, prompt=""), uuid.uuid4().hex

    def again(self, turns: list[Turn]) -> tuple:
        """Answer the last message once more, with the settings as they are now."""
        kept = list(turns)
        while kept and kept[-1]["role"] != "user":
            kept.pop()
        if not kept:
            return *frame(notice=note("There is nothing to retry yet.")), gr.skip()
        return *self._waiting(kept), uuid.uuid4().hex

    def _waiting(self, turns: list[Turn], **changes: Any) -> tuple:
        return frame(turns=turns, chatbot=view(turns), notice=note(), **buttons("waiting", turns), **changes)

    def answer(self, turns: list[Turn], *choices: Any, request: gr.Request) -> Iterator[tuple]:
        """Run the engine on the conversation and stream frames until the run has ended. `choices` as in `settings`."""
        if not turns or turns[-1]["role"] != "user":
            yield frame(**buttons("idle", turns))
            return
        try:
            options = settings(*choices)
            run = self.engine.generate(messages(turns), **options)
        except Exception as error:  # whatever it is, the visitor gets a line and the prompt back
            yield self._refused(turns, error)
            return
        session = request.session_hash or ""
        self.running[session] = run
        try:
            yield from self._stream(run, turns, options["method"])
        finally:  # a closed tab arrives here as GeneratorExit
            if not run.finished:
                run.cancel()
            if self.running.get(session) is run:
                del self.running[session]

    def _stream(self, run: Any, turns: list[Turn], method: str) -> Iterator[tuple]:
        tally, feed = livestats.Tally(), self.feeds.open()
        text, said = "", ""
        running = buttons("running", turns)
        for batch in drain(run):
            tally.add(batch)
            feed.push(batch)
            text += "".join(event.text for event in batch if isinstance(event, ev.Tokens))
            said = next((event.text for event in reversed(batch) if isinstance(event, ev.Notice)), said)
            if tally.finished:
                break
            now = [*turns, {"role": "assistant", "text": text, "note": ""}] if text else turns
            strip, value = livestats.strip(tally, method), feed.value()
            yield frame(turns=now, chatbot=view(now), stats=strip, timeline=value, notice=note(said), **running)
            running = {}
        yield self._ended(turns, text, said, tally, feed, method)

    def _ended(self, turns, text, said, tally, feed, method) -> tuple:
        finished = tally.finished
        reason = finished.reason if finished else "error"
        shown = {"stats": livestats.strip(tally, method), "timeline": feed.value() | {"done": True}}
        if reason == "error":
            sentence = finished.error if finished and finished.error else "The run ended without saying why."
            if not text:
                return self._refused(turns, sentence, **shown)
            shown["notice"] = note(sentence, "error")
        else:
            shown["notice"] = note(said)
        if text or reason == "cancelled":
            turns = [*turns, {"role": "assistant", "text": text, "note": ENDINGS.get(reason, "")}]
        return frame(turns=turns, chatbot=view(turns), **shown, **buttons("idle", turns))

    def _refused(self, turns: list[Turn], error: Any, **changes: Any) -> tuple:
        """No answer came: say why and give the prompt back for another try."""
        kept, prompt = turns[:-1], turns[-1]["text"]
        sentence = str(error).strip() or type(error).__name__
        shown = {"notice": note(sentence, "error"), "prompt": prompt, **changes}
        return frame(turns=kept, chatbot=view(kept), **shown, **buttons("idle", kept))

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

    def clear(self) -> tuple:
        shown = {"turns": [], "chatbot": [], "stats": livestats.BLANK, "timeline": EMPTY, "notice": note()}
        return frame(**shown, **buttons("idle", []))

    def close_session(self, request: gr.Request) -> None:
        """The browser is gone for certain (the heartbeat ended)."""
        self.stop(request)

    def chat(
        self,
        prompt: str,
        method: str = "ssd",
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Iterator[str]:
        """Answer one message; yields the text so far. `method` is ar, sd or ssd."""
        if not prompt.strip():
            raise gr.Error("The prompt is empty.", print_exception=False)
        try:
            run = self.engine.generate(prompt, **settings(method, None, None, temperature, seed, max_new_tokens))
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

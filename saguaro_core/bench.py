"""The benchmark: methods measured one after another on the same prompts, interleaved so that drift hits all alike.

For each prompt and temperature every method runs alone on the machine, the order rotating from prompt to prompt; then
the next prompt. Natural end of text, chat template, prefill apart. `ar` is measured twice, padded as the
bit-exactness rules want and unpadded; the identity check uses the padded one, ratios the faster one.

A conversation (one prompt, all its turns, with one method) is the unit: it is recorded when it is complete, and an
interrupted one is measured anew. What it leaves is a list of `Played` turns; `results` makes the numbers of them.

A batch of B takes the place of a conversation: the first turns of B consecutive prompts, decoded together. The last
batch wraps around to the first prompts, and one of more sequences than there are prompts holds some several times.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from .events import DRAFT_LOST, Event, Notice, RunFinished, RunStarted, Tokens
from .prompts import Prompt
from .settings import METHODS
from .summary import summarise

if TYPE_CHECKING:
    from .engine import SaguaroSSD

UNPADDED = "ar-unpadded"
BASELINES = ("hf-ar", "hf-assisted")  # transformers' own generate
SPLIT, ALL = "split", "all"
PAUSE_S = 0.05  # how often a run is looked at while it goes on; rare enough not to disturb it
WARM_UP_TOKENS = 8
MOST_FAILURES = 3  # conversations that fail one after another: then the machine is not fit to measure on


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured. `turns`: how many turns of each prompt are played, every method answering its own earlier
    answer. `resources`: "split" gives each of the two devices its own cores; "all" measures, beside that, every
    method whose devices never work at the same time with the cores of both (see `threads_of_all`). `settings` go to
    `generate`; its `verification` counts at temperatures above 0 where several temperatures are measured. Methods of
    BASELINES run one prompt at a time and are measured at batch size 1 only."""

    prompts: tuple[Prompt, ...]
    methods: tuple[str, ...]
    temperatures: tuple[float, ...] = (0.0,)
    batch_sizes: tuple[int, ...] = (1,)
    repeat: int = 1
    turns: int = 1
    resources: str = SPLIT
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not (self.prompts and self.methods and self.temperatures) or self.repeat < 1 or self.turns < 1:
            raise ValueError(
                "a benchmark needs at least one prompt, one method, one temperature, one repetition and one turn"
            )
        for method in self.methods:
            if method not in (*METHODS, *BASELINES):
                raise ValueError(f"unknown method {method!r}; choose from {', '.join((*METHODS, *BASELINES))}")
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError("batch sizes are whole numbers from 1")
        if 1 not in self.batch_sizes and (alone := [method for method in self.methods if method in BASELINES]):
            raise ValueError(f"{' and '.join(alone)}: one prompt at a time; measure batch size 1 too, or leave it out")
        if self.resources not in (SPLIT, ALL):
            raise ValueError(f"resources are {SPLIT!r} or {ALL!r}, not {self.resources!r}")
        if self.resources == ALL and not self.order(ALL):
            raise ValueError(
                "with resources 'all' choose a method whose devices take turns: ar, sd, ... but not only ssd"
            )

    @property
    def phases(self) -> tuple[str, ...]:
        """Engines that are needed, one after another, never at once."""
        return (SPLIT,) if self.resources == SPLIT else (SPLIT, ALL)

    def order(self, resources: str, batch_size: int = 1) -> list[str]:
        """The methods of a phase. SSD uses both devices at once already, so it has no place in the phase "all"."""
        methods = [method for method in self.methods if resources == SPLIT or not method.startswith("ssd")]
        methods = [method for method in methods if batch_size == 1 or method not in BASELINES]
        return list(dict.fromkeys([*methods, UNPADDED] if "ar" in methods else methods))

    def conversations(self, resources: str = SPLIT) -> list[Conversation]:
        """All of a phase, in the order in which they are measured."""
        return [
            Conversation(resources, repetition, number, temperature, method, batch_size)
            for repetition in range(self.repeat)
            for batch_size in self.batch_sizes
            for number in range(math.ceil(len(self.prompts) / batch_size))
            for temperature in self.temperatures
            for method in _rotated(self.order(resources, batch_size), number + repetition)
        ]

    def batch(self, number: int, batch_size: int) -> list[Prompt]:
        """The prompts of one batch."""
        return [self.prompts[(number * batch_size + row) % len(self.prompts)] for row in range(batch_size)]

    def at(self, temperature: float) -> dict[str, Any]:
        """The settings at one temperature."""
        settings = self.settings | {"temperature": temperature}
        if temperature == 0 and len(self.temperatures) > 1:
            settings |= {"verification": None}
        return settings

    def to_dict(self) -> dict[str, Any]:
        """For the record, and to know on resuming that the plan is the same: the prompts as a digest."""
        texts = json.dumps([asdict(prompt) for prompt in self.prompts]).encode()
        tasks = list(dict.fromkeys(prompt.category for prompt in self.prompts))
        made = {name: getattr(self, name) for name in ("repeat", "turns", "resources")}
        return made | {
            "tasks": tasks,
            "methods": list(self.methods),
            "temperatures": list(self.temperatures),
            "batch_sizes": list(self.batch_sizes),
            "prompts": len(self.prompts),
            "prompts_sha256": hashlib.sha256(texts).hexdigest(),
            "settings": {name: _plain(value) for name, value in self.settings.items() if value is not None},
        }


class Conversation(NamedTuple):
    """One prompt or batch (by its number in the plan) with one method. Its tuple is its name."""

    resources: str
    repetition: int
    number: int
    temperature: float
    method: str
    batch_size: int = 1


@dataclass(frozen=True, kw_only=True)
class Played:
    """One turn of a conversation. `summary`: `summary.summarise` of its run, None where it was `skipped` or ended in
    an `error` (each a sentence, or ""). `gaps_ms`: see `gaps_ms`; of a batch, those of all its sequences. `rows`: the
    ids of each sequence of a batch, which has no `ids`."""

    task: str
    prompt: str
    resources: str
    repetition: int
    number: int
    temperature: float
    method: str
    turn: int = 0
    batch_size: int = 1
    verification: str = ""
    ids: tuple[int, ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    gaps_ms: tuple[float, ...] = ()
    summary: dict[str, Any] | None = None
    skipped: str = ""
    error: str = ""

    @property
    def conversation(self) -> Conversation:
        return Conversation(
            self.resources, self.repetition, self.number, self.temperature, self.method, self.batch_size
        )


class Progress(NamedTuple):
    """`done` of `total` conversations; `at`: the one that is going on, None after the last."""

    done: int
    total: int
    at: Conversation | None


def measure(
    engine: SaguaroSSD,
    plan: Plan,
    played: list[Played],
    resources: str = SPLIT,
    on_run: Callable[[list[Event]], None] = lambda events: None,
    on_conversation: Callable[[list[Played]], None] = lambda turns: None,
) -> Iterator[Progress]:
    """Measure what of the plan's phase is not among `played` yet, and append it there, conversation by conversation.
    Yields several times a second; closing the generator stops the run that is going on.

    A prompt that does not fit into the context is skipped with the reason; so is a later turn, and the conversation
    ends there. A run that fails is recorded and the next one goes on. Raises ValueError for settings that make no
    sense and RuntimeError where MOST_FAILURES conversations in a row fail.
    """
    known = {turn.conversation for turn in played}
    everything = plan.conversations(resources)
    left = [conversation for conversation in everything if conversation not in known]
    done, failures = len(everything) - len(left), 0
    for temperature, method, batch_size in dict.fromkeys(conversation[3:] for conversation in left):
        settings = plan.at(temperature) | {"max_new_tokens": WARM_UP_TOKENS}
        for _ in _run(engine, ["Hello!"] * batch_size, method, settings):
            yield Progress(done, len(everything), left[0])
    for conversation in left:
        play = _converse if conversation.batch_size == 1 else _together
        playing = play(engine, plan, conversation, on_run)
        try:
            while True:
                next(playing)
                yield Progress(done, len(everything), conversation)
        except StopIteration as ended:
            turns = ended.value
        finally:
            playing.close()
        played += turns
        on_conversation(turns)
        done += 1
        failures = failures + 1 if turns[-1].error else 0
        if failures == MOST_FAILURES:
            raise RuntimeError(f"{failures} runs in a row failed; the last: {turns[-1].error}")
        yield Progress(done, len(everything), None)


def _converse(
    engine: SaguaroSSD, plan: Plan, conversation: Conversation, on_run: Callable[[list[Event]], None]
) -> Generator[None, None, list[Played]]:
    prompt = plan.prompts[conversation.number]
    turns: list[Played] = []
    messages: list[dict[str, str]] = []
    for number, text in enumerate(prompt.turns[: plan.turns]):
        about = {"task": prompt.category, "prompt": prompt.name, "turn": number, **conversation._asdict()}
        messages.append({"role": "user", "content": text})
        # the first turn starts from nothing; later ones keep the conversation's keys and values, as a chat does
        settings = plan.at(conversation.temperature) | {"reuse": None if number else 0}
        try:
            [run], [events] = yield from _run(engine, [list(messages)], conversation.method, settings)
        except ValueError as problem:  # the settings held in the warm-up, so it is the prompt
            turns.append(Played(**about, skipped=_line(problem)))
            break
        if wrong := _fault(events):
            turns.append(Played(**about, error=wrong))
            break
        verification = next((e.settings.get("verification", "") for e in events if isinstance(e, RunStarted)), "")
        summary = events[-1].summary
        turns.append(
            Played(**about, verification=verification, ids=tuple(run.ids), gaps_ms=gaps_ms(events), summary=summary)
        )
        on_run(events)
        messages.append({"role": "assistant", "content": run.text})
    return turns


def _together(
    engine: SaguaroSSD, plan: Plan, conversation: Conversation, on_run: Callable[[list[Event]], None]
) -> Generator[None, None, list[Played]]:
    prompts = plan.batch(conversation.number, conversation.batch_size)
    tasks = {prompt.category for prompt in prompts}
    about = {
        "task": tasks.pop() if len(tasks) == 1 else "mixed",
        "prompt": f"{prompts[0].name} .. {prompts[-1].name}",
        **conversation._asdict(),
    }
    messages = [[{"role": "user", "content": prompt.turns[0]}] for prompt in prompts]
    settings = plan.at(conversation.temperature) | {"reuse": 0}
    try:
        runs, of_rows = yield from _run(engine, messages, conversation.method, settings)
    except ValueError as problem:
        return [Played(**about, skipped=_line(problem))]
    if wrong := next(filter(None, map(_fault, of_rows)), ""):
        return [Played(**about, error=wrong)]
    events = [event for row in of_rows for event in row]
    on_run(events)
    return [
        Played(
            **about,
            verification=next((e.settings.get("verification", "") for e in events if isinstance(e, RunStarted)), ""),
            rows=tuple(tuple(run.ids) for run in runs),
            gaps_ms=tuple(gap for row in of_rows for gap in gaps_ms(row)),
            summary=summarise(events),
        )
    ]


def _run(
    engine, prompts: list, method: str, settings: dict[str, Any]
) -> Generator[None, None, tuple[list[Any], list[list[Event]]]]:
    """The runs of these prompts, decoded together, and the events of each."""
    if method == UNPADDED:
        method, settings = "ar", settings | {"padded": False}
    if len(prompts) == 1:
        runs = [engine.generate(prompts[0], method, **settings)]
    else:
        runs = engine.generate_batch(prompts, method, **settings).runs
    events: list[list[Event]] = [[] for _ in runs]
    try:
        while not all(of and isinstance(of[-1], RunFinished) for of in events):
            yield
            time.sleep(PAUSE_S)
            for run, of in zip(runs, events, strict=True):
                of += run.poll(0)
    finally:
        for run in runs:
            if not run.finished:
                run.cancel()
    return runs, events


def _fault(events: list[Event]) -> str:
    """Why a run is no measurement of its method, "" where it is one."""
    end = events[-1]
    if end.reason in ("error", "cancelled"):
        return _line(end.error or "the run was cancelled")
    return next((_line(e.text) for e in events if isinstance(e, Notice) and e.code == DRAFT_LOST), "")


def gaps_ms(events: Sequence[Event]) -> tuple[float, ...]:
    """Inter-token latencies of a run in ms: the times from one emission to the next. The tokens of one round come out
    of one verification at one instant and count as one emission, as a reader meets them."""
    instants = sorted({event.t1 for event in events if isinstance(event, Tokens) and event.ids})
    return tuple(round((b - a) * 1e3, 4) for a, b in pairwise(instants))


def threads_of_all(split: dict[str, Any]) -> int:
    """Threads of either worker in the phase "all", from the `info` of the engine of the phase "split", whose devices
    are both `cpu`: as many as both have there. The target gets them for `ar`; for `sd` target and draft each get them,
    as they take turns and never work at the same time. The draft stays a process of its own, so a round of `sd` still
    pays for its messages (about 0.1 ms). Where the two together ask for more threads than there are cores, the workers
    share all cores and are not pinned."""
    return split["target_threads"] + split["draft_threads"]


def _rotated(order: list[str], by: int) -> list[str]:
    shift = by % len(order)
    return order[shift:] + order[:shift]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _line(problem: Any) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__

"""Toy tabular models: the only thing they replace is the forward. Loop, cache, tree, rules and fallback are shipped.

A toy model keeps (token, position) per slot and reads its context back through the visibility it is given, so a wrong
slot, mask or position shows up as a wrong context (or as an assertion).
"""

from __future__ import annotations

import time

import torch

from saguaro_core.decoding import TargetSequence, decode
from saguaro_core.drafting import Drafter, DraftSequence
from saguaro_core.events import Lookup, Tokens
from saguaro_core.recorder import Recorder
from saguaro_core.rules import make_rule
from saguaro_core.sampling import Streams
from saguaro_core.settings import make_settings
from saguaro_core.trunk import Trunk

torch.set_num_threads(1)  # for tensors this small more threads only wait for one another


class TabularModel:
    """Next-token logits (float64) looked up by the whole context, random but fixed by `seed`."""

    def __init__(self, seed: int, ids=(0, 1, 2), context: int = 64, spread: float = 1.0):
        self.ids, self.context, self.seed, self.spread = torch.tensor(ids), context, seed, spread
        self._slots: dict[int, dict[int, tuple[int, int]]] = {}  # by sequence: (token, position) by slot
        self._table: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, context: tuple[int, ...]) -> torch.Tensor:
        row = self._table.get(context)
        if row is None:
            generator = torch.Generator().manual_seed(hash((self.seed, *context)) % 2**63)
            row = torch.randn(len(self.ids), generator=generator, dtype=torch.float64) * self.spread
            self._table[context] = row
        return row

    def reserve(self, sequences):
        return False

    def forward(self, batch):
        assert len({rows.seq for rows in batch}) == len(batch)
        return [self._forward(rows, self._slots.setdefault(rows.seq, {})) for rows in batch]

    def _forward(self, rows, slots):
        logits = []
        for i, (token, position) in enumerate(zip(rows.tokens, rows.positions, strict=True)):
            slots[rows.slot + i] = (token, position)
        for i, position in enumerate(rows.positions):
            seen = range(rows.slot + i + 1) if rows.visible is None else rows.visible[i].nonzero().flatten().tolist()
            context = sorted((slots[s][1], slots[s][0]) for s in seen)
            if position < self.context - 1:  # rows padded at the very end share the last position
                assert [p for p, _ in context] == list(range(position + 1)), "a row sees a wrong set of positions"
            logits.append(self.logits(tuple(token for _, token in context)))
        return torch.stack(logits[-rows.keep :] if rows.keep else logits)


class InProcessDraft:
    """The draft in the caller's own process. `steps`: how many tree steps it gets before it is interrupted."""

    def __init__(self, drafter: Drafter, steps: int | None = None):
        self.drafter, self.ids, self._steps = drafter, drafter.model.ids, steps

    def _interrupted(self):
        polls = iter(range(10**6))
        return lambda: self._steps is not None and next(polls) >= self._steps

    def begin(self, prompts):
        self.drafter.begin(prompts, None, self._interrupted())

    def speculate(self, outcomes, round):
        speculations = self.drafter.speculate(outcomes, round)
        self.drafter.prepare(self._interrupted())
        return speculations


def run(
    method,
    target,
    draft,
    prompt=(0, 1),
    *,
    streams=None,
    steps=None,
    eos=frozenset(),
    rounds=None,
    trunks=None,
    beside=(),
    controller=None,
    **settings,
):
    """One run in this process: `(output ids, events)`. `rounds`: cancel after so many. `beside`: prompts of
    other sequences of its batch."""
    settings = make_settings(method, **settings)
    streams = streams or Streams(settings.seed)
    (output, *_), events = run_batch(
        target,
        draft,
        [prompt, *beside],
        [settings] * (1 + len(beside)),
        streams=[streams, *(Streams(row) for row in range(1, 1 + len(beside)))],
        steps=steps,
        eos=eos,
        rounds=rounds,
        trunks=trunks and [trunks],
        controller=controller,
    )
    return output, [event for event in events if event.seq == 0]


def run_batch(
    target, draft, prompts, settings, *, streams=None, steps=None, eos=frozenset(), rounds=None, trunks=None,
    controller=None,
):  # fmt: skip
    """A batch in this process: `(output ids of each, events)`. `settings`: one for each, alike in method and K."""
    streams = streams or [Streams(each.seed) for each in settings]
    trunks = trunks or [(Trunk(target, seq), Trunk(draft, seq)) for seq in range(len(prompts))]
    for model in (target, draft):
        model.reserve(len(prompts))
    events = []
    record = Recorder("toy", time.perf_counter(), events.extend)
    speculator = None
    if settings[0].speculates:
        rules = [make_rule(each, draft.ids) for each in settings]
        drafting = [DraftSequence(t[1], rule, s) for t, rule, s in zip(trunks, rules, streams, strict=True)]
        speculator = InProcessDraft(Drafter(drafting, settings[0], record, controller and controller()), steps)
    sequences = [
        TargetSequence(prompt, trunk, make_rule(each, target.ids), stream, each.max_new_tokens)
        for prompt, (trunk, _), each, stream in zip(prompts, trunks, settings, streams, strict=True)
    ]
    decode(
        sequences,
        record,
        speculator=speculator,
        eos=eos,
        cancelled=lambda seq: rounds is not None and record.round >= rounds,
    )
    record.flush(force=True)
    outputs = [[] for _ in prompts]
    for event in events:
        if isinstance(event, Tokens):
            outputs[event.seq] += event.ids
    return outputs, events


class Replay:
    """Streams that replay chosen decisions and remember the others, so that a caller can walk all branches.

    `decided`: choice by (stream key, draw). Draws beyond take the first possible index, or the last with `last`.
    """

    def __init__(self, decided: dict, last: bool = False):
        self.decided, self.last, self.drawn = decided, last, {}

    def target(self, round):
        return ReplayStream(self, ("target", round))

    def just_in_time(self, round):
        return ReplayStream(self, ("jit", round))

    def branch(self, round, fork, candidate):
        return ReplayStream(self, ("branch", round, fork, candidate))


class ReplayStream:
    def __init__(self, replay: Replay, key):
        self._replay, self._key, self._count = replay, key, 0

    def choose(self, probs):
        draw = (self._key, self._count)
        self._count += 1
        possible = [i for i, p in enumerate(probs.tolist()) if p > 0]
        choice = self._replay.decided.get(draw, possible[-1 if self._replay.last else 0])
        self._replay.drawn[draw] = (choice, probs.tolist(), possible)
        return choice


def enumerate_law(
    method="ssd", target_seed=1, draft_seed=2, last=False, ids=(0, 1, 2), draft_ids=None, **kwargs
) -> dict[tuple[int, ...], float]:
    """The exact law of the output of `run`: every draw that can matter is walked over all its branches.

    Draws are walked in the order of consumption: what a round speculates from, then its verification. Draws of
    branches that are never looked up take a fixed choice: the first possible one, or the last (and all walks go
    backwards) with `last`.
    """
    law: dict[tuple[int, ...], float] = {}
    decided: dict = {}
    target, draft = TabularModel(target_seed, ids), TabularModel(draft_seed, draft_ids or ids)
    while True:
        replay = Replay(decided, last)
        output, events = run(method, target, draft, streams=replay, **kwargs)
        path = [draw for key in consumption(events) for draw in replay.drawn if draw[0] == key]
        weight = 1.0
        for draw in path:
            choice, probs, _ = replay.drawn[draw]
            weight *= probs[choice]
        law[tuple(output)] = law.get(tuple(output), 0.0) + weight
        while path:
            choice, _, possible = replay.drawn[path[-1]]
            untried = possible[: possible.index(choice)][::-1] if last else possible[possible.index(choice) + 1 :]
            if untried:
                break
            path.pop()
        if not path:
            return law
        decided = {draw: replay.drawn[draw][0] for draw in path[:-1]} | {path[-1]: untried[0]}


def consumption(events):
    """Stream keys of the draws that reached the output, in causal order."""
    keys = [("target", 0)]
    rounds = max(event.round for event in events)
    lookups = {event.round: event for event in events if isinstance(event, Lookup)}
    for round in range(1, rounds + 1):
        lookup = lookups.get(round)
        if lookup and lookup.hit:
            keys.append(("branch", round - 1, lookup.k, lookup.rank))
        keys += [("jit", round), ("target", round)]
    return keys


def total_variation(law, eos, prompt=(0, 1), target_seed=1, length=7, ids=(0, 1, 2)) -> float:
    """Distance between the target's own law over continuations of `length` tokens and `law` completed by it."""
    target = TabularModel(target_seed, ids)

    def next_probs(tokens):
        return target.logits((*prompt, *tokens)).softmax(-1).tolist()

    def completed(tokens, weight, into):
        if weight == 0:
            return
        if len(tokens) >= length or (tokens and tokens[-1] in eos):
            into[tokens] = into.get(tokens, 0.0) + weight
            return
        for token, p in enumerate(next_probs(tokens)):
            completed((*tokens, token), weight * p, into)

    expected, got = {}, {}
    completed((), 1.0, expected)
    for tokens, weight in law.items():
        completed(tokens, weight, got)
    return sum(abs(expected.get(x, 0) - got.get(x, 0)) for x in expected.keys() | got.keys()) / 2

"""What happened in one round, in words, tokens and numbers, for the inspector. Computed from events alone.

A round of SSD begins when the one before has ended: its outcome is looked up among the branches that the draft
prepared meanwhile, which gives the next guess (hit) or none (miss: the draft makes one while the target waits). Then
the target checks the guess in one forward. `describe` tells that story; every text in it is a string to be shown as
text, never as markup. Terms and formulas: Kumar, Dao, May, ICLR 2026; the numbers as in `saguaro_core.summary`.
"""

from __future__ import annotations

import unicodedata
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from saguaro_core import events as ev

ROUNDS_KEPT = 2_000  # about fifty seconds of decoding
TEXT_SHOWN = 200  # characters of one token
KEPT = (
    ev.Prefill,
    ev.Lookup,
    ev.Fallback,
    ev.DraftStep,
    ev.Wait,
    ev.Verify,
    ev.Glue,
    ev.TreeStep,
    ev.Tokens,
    ev.Transfer,
)

FALLBACKS = {
    "immediate_retry": "The draft made a new guess at once, token by token, while the target waited.",
    "batched_retry": "The draft made new guesses for all missing answers together, while the target waited.",
    "partial_accept": "The target did not wait for a new guess: it went on with what was ready.",
}
FIRST = -1  # the `k` of the look-up that follows the prompt


class Rounds:
    """The newest `ROUNDS_KEPT` rounds of one run. Not thread-safe: `deltas.Feed` holds the lock."""

    def __init__(self) -> None:
        self._rounds: OrderedDict[int, list[ev.Event]] = OrderedDict()
        self._texts: dict[int, str] = {}
        self._sequences = 1

    def add(self, events: Iterable[ev.Event]) -> None:
        """Keep what the events say about rounds. Of a batch only the first sequence is kept."""
        for event in events:
            self._sequences = max(self._sequences, event.seq + 1)
            if isinstance(event, ev.TokenTexts):
                self._texts.update(zip(event.ids, event.texts, strict=False))
            elif isinstance(event, KEPT) and event.seq == 0:
                self._rounds.setdefault(event.round, []).append(event)
        while len(self._rounds) > ROUNDS_KEPT:
            self._rounds.popitem(last=False)

    def describe(self, number: int) -> dict[str, Any]:
        """Round `number` for the inspector; {} where it is not (or no longer) known. Keys: see the inspector's js."""
        if number not in self._rounds:
            return {}
        found = _Round(self, number)
        many = (
            f"Shown is the first of {self._sequences} answers, which share each check." if self._sequences > 1 else ""
        )
        return {"round": number, "go": self._neighbours(number), "batch": many} | found.story()

    def text(self, id: int) -> str:
        """The token as a reader sees it, `#id` where nobody said how it reads."""
        known = self._texts.get(id)
        return f"#{id}" if known is None else visible(known)

    def events(self, number: int, kind: type[ev.Event]) -> list[Any]:
        return [event for event in self._rounds.get(number, ()) if isinstance(event, kind)]

    def one(self, number: int, kind: type[ev.Event]) -> Any:
        return next(iter(self.events(number, kind)), None)

    def hit(self, number: int) -> bool | None:
        lookup = self.one(number, ev.Lookup)
        return None if lookup is None else lookup.hit

    def _neighbours(self, number: int) -> dict[str, int | None]:
        """Where the inspector's buttons lead."""
        before = sorted((n for n in self._rounds if n < number), reverse=True)
        after = sorted(n for n in self._rounds if n > number)
        found = {"previous": next(iter(before), None), "next": next(iter(after), None)}
        for name, wanted in (("hit", True), ("miss", False)):
            found[f"previous_{name}"] = next((n for n in before if self.hit(n) is wanted), None)
            found[f"next_{name}"] = next((n for n in after if self.hit(n) is wanted), None)
        return found


class _Round:
    """One round while it is put into words."""

    def __init__(self, run: Rounds, number: int):
        self.run, self.number = run, number
        self.lookup: ev.Lookup | None = run.one(number, ev.Lookup)
        self.verify: ev.Verify | None = run.one(number, ev.Verify)
        self.before: ev.Verify | None = run.one(number - 1, ev.Verify)
        self.steps = run.events(number, ev.DraftStep)
        self.waited = sum(e.t1 - e.t0 for e in run.events(number, ev.Wait) if e.lane == ev.TARGET)

    def story(self) -> dict[str, Any]:
        return {
            "kind": self._kind(),
            "lead": self._lead(),
            "key": self._key(),
            "forks": self._forks(),
            "guess": self._guess(),
            "numbers": self._numbers(),
        }

    def _kind(self) -> str:
        """ "hit", "miss", "prompt" for round 0, or "plain" where nothing is looked up."""
        if self.number == 0:
            return "prompt"
        return "plain" if self.lookup is None else "hit" if self.lookup.hit else "miss"

    def _lead(self) -> str:
        waited = f"{_ms(self.waited)} ms"
        match self._kind():
            case "hit":
                return (
                    "Hit: the draft had prepared exactly what happened. Its next guess was ready, so the target waited "
                    f"only {waited}."
                )
            case "miss":
                while_drafting = " while the draft made a new guess" if self.steps else ""
                return f"Miss: what happened had not been prepared. The target waited {waited}{while_drafting}."
            case "prompt":
                return "Before the first round: both models read the prompt, and the target chooses the first token."
        if self.verify is None:
            return "This round has not come to its end."
        if not self.verify.drafted:
            return "The target made one token. There was no guess to check, so one forward gave one token."
        return f"With this method nothing is prepared: the target waited {waited} while the draft made a guess, then checked it."

    # ---- 1 the key, 2 what was prepared

    def _key(self) -> dict[str, Any] | None:
        """What was looked up: how the round before ended."""
        if self.lookup is None:
            return None
        k, ready = self.lookup.k, len(self.before.drafted) if self.before else None
        if k == FIRST:
            how = "The prompt had been read, and the target had chosen the first token"
        else:
            of = f" of {ready}" if ready is not None else ""
            how = f"Round {self.number - 1} ended with {k}{of} guessed tokens accepted, and then the target chose"
        return {"how": how, "accepted": max(k, 0), "first": k == FIRST, "token": self.run.text(self.lookup.bonus)}

    def _forks(self) -> dict[str, Any] | None:
        """The branches that were there to be looked up, by the number of accepted tokens they expected."""
        if self.lookup is None:
            return None
        first, branches = self.lookup.k == FIRST, self.lookup.candidates
        forks = [self._fork(k, branches) for k in sorted({fork for fork, _, _ in branches} | {self.lookup.k})]
        when = "read the prompt" if first else f"was busy with round {self.number - 1}"
        outcomes = "" if first else f" for {_count(len({fork for fork, _, _ in branches}), 'possible outcome')}"
        said = (
            f"While the target {when}, the draft prepared {_count(len(branches), 'branch', 'branches')}{outcomes}. "
            "A branch is one guess of the token that the target chooses, with the tokens that would follow it."
        )
        said = said if branches else "The draft had no branch ready."
        return {"said": said, "forks": forks, "found": self._found()}

    def _fork(self, k: int, branches: tuple) -> dict[str, Any]:
        happened = k == self.lookup.k
        label = "First token" if k == FIRST else f"{k} accepted"
        made = [
            {
                "token": self.run.text(token),
                "ready": [self.run.text(id) for id in ready],
                "happened": happened and token == self.lookup.bonus,
            }
            for fork, token, ready in branches
            if fork == k
        ]
        missing = happened and not any(branch["happened"] for branch in made)
        return {
            "label": label,
            "happened": happened,
            "branches": made,
            "missing": self.run.text(self.lookup.bonus) if missing else None,
        }

    def _found(self) -> str:
        if self.lookup.hit:
            place = "" if self.lookup.rank is None else f", the {_ordinal(self.lookup.rank + 1)} in its row"
            return f"The branch for what happened was there{place}: a hit."
        if self.lookup.rank is not None:
            return "The branch for what happened was listed, but no token of it had been drafted in time: a miss."
        return "No branch was prepared for what happened: a miss."

    # ---- 3 the guess and its check

    def _guess(self) -> dict[str, Any] | None:
        verify = self.verify
        if verify is None:
            first = self.run.one(self.number, ev.Tokens)
            if self.number or first is None or not first.ids:
                return None
            token = visible(first.text) if first.text else self.run.text(first.ids[0])
            return {"came": "", "why": "", "tokens": [], "choice": {"token": token, "state": "plain"}, "said": ""}
        tokens = [
            {"token": self.run.text(id), "state": _state(i, verify.accepted)} for i, id in enumerate(verify.drafted)
        ]
        state = "plain" if not tokens else "bonus" if verify.accepted == len(tokens) else "correction"
        return {
            "came": self._came() if tokens or self._why() else "",
            "why": self._why(),
            "tokens": tokens,
            "choice": {"token": self.run.text(verify.bonus), "state": state},
            "said": self._checked(verify, state),
        }

    def _came(self) -> str:
        made = f"{_count(len(self.steps), 'token')} in {_ms(sum(e.t1 - e.t0 for e in self.steps))} ms"
        if self.lookup is not None and self.lookup.hit:
            more = f" The draft added {made} while the target waited." if self.steps else ""
            return f"The guess is the continuation of that branch, taken as it was.{more}"
        fallback = self.run.one(self.number, ev.Fallback)
        said = FALLBACKS.get(fallback.strategy, f"Fallback: {visible(fallback.strategy)}.") if fallback else ""
        if not said:
            said = "The draft made the guess token by token, while the target waited."
        return f"{said} It made {made}." if self.steps else said

    def _why(self) -> str:
        fallback = self.run.one(self.number, ev.Fallback)
        return f"Why, in the engine's words: {visible(fallback.why)}." if fallback and fallback.why else ""

    def _checked(self, verify: ev.Verify, state: str) -> str:
        out = sum(len(e.ids) for e in self.run.events(self.number, ev.Tokens)) or verify.accepted + 1
        gives = f"The round gave {_count(out, 'token')}."
        if state == "plain":
            return gives
        if state == "bonus":
            return f"One forward of the target accepted every guessed token and added one of its own. {gives}"
        if verify.accepted:
            tested = f"accepted {_count(verify.accepted, 'guessed token')} and refused the next one"
        else:
            tested = "refused the first guessed token" if len(verify.drafted) > 1 else "refused the guessed token"
        return f"One forward of the target {tested}; the target's own choice took its place. {gives}"

    # ---- 4 the numbers

    def _numbers(self) -> list[dict[str, str]]:
        """Name, value and what it means, of all that was measured in this round."""
        if self.number == 0:
            return [
                _number(f"{'Target' if e.lane == ev.TARGET else 'Draft'} read the prompt", e.t1 - e.t0, _read(e))
                for e in self.run.events(0, ev.Prefill)
            ]
        verify, made = self.verify, []
        if self.lookup is not None or self.waited:
            made.append(
                _number("Target waited", self.waited, "from the end of the round before to the start of this check")
            )
        if self.steps:
            said = f"{_count(len(self.steps), 'draft step')} while the target waited"
            made.append(_number("Drafted just in time", sum(e.t1 - e.t0 for e in self.steps), said))
        if verify is None:
            return made
        rows = f"one forward of the target over {_count(verify.rows, 'row')}, and the decision what to accept"
        made.append(_number("T_V, the check", verify.t1 - verify.t0, rows))
        tree = sorted(
            self.run.events(self.number, ev.TreeStep) + self.run.events(self.number, ev.Glue), key=lambda e: e.t1
        )
        beside = sum(e.t1 - e.t0 for e in tree)
        if tree:
            steps = sum(isinstance(e, ev.TreeStep) for e in tree)
            said = (
                f"the draft's work beside it: the guess read once (glue), {_count(steps, 'tree step')} of new branches"
            )
            made.append(_number("T_tree, preparing", beside, said))
            slack = verify.t1 - tree[-1].t1
            said = (
                "from the draft's last step to the end of the check"
                if slack >= 0
                else "the draft's last step ended after the check"
            )
            made.append(_number("Slack", slack, said))
        for moved in self.run.events(self.number, ev.Transfer):
            said = f"distributions of the drafted tokens, over {visible(moved.path)}"
            made.append({"name": "Moved between devices", "value": f"{moved.bytes / 1024:.1f} KiB", "said": said})
        following = self.run.one(self.number + 1, ev.Verify)
        if following is not None:
            period = following.t0 - verify.t0
            late = sum(e.t1 - e.t0 for e in self.run.events(self.number + 1, ev.DraftStep))
            said = "to the start of the next check, less the longer of T_V and T_tree and any drafting in between"
            made.append(_number("Overhead", period - max(verify.t1 - verify.t0, beside) - late, said))
        return made


def visible(text: str) -> str:
    """`text` with everything that would be invisible or would turn other text around made visible: line breaks and
    tabs as arrows, control and direction marks by their code. Whitespace alone is shown as open boxes."""
    shown = "".join(map(_sign, str(text)[:TEXT_SHOWN])) + ("\N{HORIZONTAL ELLIPSIS}" if len(text) > TEXT_SHOWN else "")
    if not shown:
        return "\N{EMPTY SET}"
    return shown.replace(" ", "\N{OPEN BOX}") if not shown.strip() else shown


_ARROWS = {"\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "\t": "\N{RIGHTWARDS ARROW TO BAR}"}
_JOINERS = "\u200c\u200d"  # emoji and several scripts are written with them


def _sign(char: str) -> str:
    if char in _ARROWS:
        return _ARROWS[char]
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in _JOINERS:
        return f"\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}U+{ord(char):04X}\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
    return char


def _state(i: int, accepted: int) -> str:
    """A drafted token is accepted, refused (the first that is not), or never came to a decision."""
    return "accepted" if i < accepted else "refused" if i == accepted else "untested"


def _number(name: str, seconds: float, said: str) -> dict[str, str]:
    return {"name": name, "value": f"{seconds * 1e3:.2f} ms", "said": said}


def _read(event: ev.Prefill) -> str:
    reused = f", {event.reused} more were known from before" if event.reused else ""
    return f"{_count(event.tokens, 'token')} computed{reused}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _ordinal(n: int) -> str:
    return f"{n}{'th' if 10 <= n % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"

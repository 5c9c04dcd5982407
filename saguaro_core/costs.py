"""What forwards cost on the devices at hand, measured as a run goes on: milliseconds by number of rows."""

from __future__ import annotations

from statistics import median

from .events import DraftStep, Event, Glue, TreeStep

MEMORY = 200.0  # measurements after which an old one weighs 1/e
STIFFNESS = 30.0  # rows squared; how much evidence it takes to move the slope off its prior
ENOUGH = 5


class Line:
    """Time = a + b * rows, fitted to what was measured. `slope`: what b / mean time is held for until forwards of
    different numbers of rows have been seen. A stumble of the machine counts as twice the expected time at most; what to expect is the
    median of the first few measurements, then the line."""

    def __init__(self, slope: float):
        self._slope = slope
        self.count = 0
        self._first: list[tuple[float, float]] = []
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # running means and central moments

    def add(self, rows: float, ms: float) -> None:
        self.count += 1
        if self.count > ENOUGH:
            self._fit(rows, min(ms, 2 * self.ms(rows)))
            return
        self._first.append((rows, ms))
        if self.count == ENOUGH:
            expected = median(ms for _, ms in self._first)
            for rows, ms in self._first:
                self._fit(rows, min(ms, 2 * expected))

    def _fit(self, rows: float, ms: float) -> None:
        self._weight += 1 - self._weight / MEMORY
        keep = 1 - 1 / MEMORY
        dx, dy = rows - self._x, ms - self._y
        self._x += dx / self._weight
        self._y += dy / self._weight
        self._xx = self._xx * keep + dx * (rows - self._x)
        self._xy = self._xy * keep + dx * (ms - self._y)

    @property
    def known(self) -> bool:
        return self.count >= ENOUGH

    def ms(self, rows: float) -> float:
        slope = (self._xy + STIFFNESS * self._slope * self._y) / (self._xx + STIFFNESS)
        return max(0.2 * self._y, self._y + slope * (rows - self._x))


class Costs:
    """`verify`: from the hand-over of a speculation to the next request, so messages are in it; by rows verified.
    `glue`, `tree`: draft forwards beside it, by rows. `step`: one token drafted while the target waits."""

    def __init__(self):
        self.verify, self.glue, self.tree, self.step = Line(0.03), Line(0.02), Line(0.02), Line(0.0)

    def see(self, event: Event) -> None:
        """Learn what a draft forward cost, from the event that the draft recorded of it."""
        ms = (event.t1 - event.t0) * 1e3
        if isinstance(event, Glue):
            self.glue.add(event.rows, ms)
        elif isinstance(event, TreeStep):
            self.tree.add(event.rows, ms)
        elif isinstance(event, DraftStep):
            self.step.add(1, ms)

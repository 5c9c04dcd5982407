"""Every K with every budget M against the controller, as decode tok/s of `ssd`, interleaved prompt by prompt.

    python -m tests.grid [PROMPTS] [TOKENS] [REPEATS]

PROMPTS of each task that comes along. Each repeat starts an engine anew, so that the controller starts
cold, and goes round the cells at another place. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import statistics
import sys
from itertools import product

from saguaro_core import SaguaroSSD
from saguaro_core.prompts import load_tasks
from saguaro_core.results import total_tok_s

KS, BUDGETS = range(2, 9), (8, 16, 24)
FIXED = {f"K={k} M={m}": {"k": k, "fan_out": "best-first", "budget": m} for k, m in product(KS, BUDGETS)}
CELLS = FIXED | {"default": {}, "auto": {"k": "auto", "fan_out": "auto"}}


def main(count: int, tokens: int, repeats: int) -> None:
    prompts = [prompt.turns[0] for prompt in load_tasks(["all"], count)]
    speeds: dict[str, list[float]] = {name: [] for name in CELLS}
    for repeat in range(repeats):
        for name, speed in _once(prompts, tokens, repeat).items():
            speeds[name].append(speed)
        print(f"repeat {repeat + 1} of {repeats} done", flush=True)
    middle = {name: statistics.median(several) for name, several in speeds.items()}
    best = max(FIXED, key=middle.__getitem__)
    for name, several in speeds.items():
        spread = f"{min(several):.1f} to {max(several):.1f}"
        print(f"{name:10} {middle[name]:6.1f} tok/s ({spread}), {middle[name] / middle[best]:.3f} of {best}")


def _once(prompts: list[str], tokens: int, shift: int) -> dict[str, float]:
    names, summaries = list(CELLS), {name: [] for name in CELLS}
    with SaguaroSSD() as engine:
        engine.generate(prompts[0], method="sd", max_new_tokens=16).wait()  # warms the kernels, not the controller
        for number, prompt in enumerate(prompts):
            start = (shift * 11 + number * 7) % len(names)
            for name in names[start:] + names[:start]:
                run = engine.generate(prompt, method="ssd", max_new_tokens=tokens, reuse=0, **CELLS[name])
                run.wait()
                summaries[name].append(run.summary)
    return {name: total_tok_s(summaries[name]) for name in CELLS}


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(*given, *(2, 64, 3)[len(given) :])

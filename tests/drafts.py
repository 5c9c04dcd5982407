"""Two drafts of the embedded target against each other: tokens per round and decode tok/s, interleaved.

    python -m tests.drafts FILE.jsonl FIRST SECOND [PROMPTS] [TOKENS]

FIRST and SECOND: draft folders, or `embedded`. PROMPTS at even spacing from the file, greedy, prompt by prompt with
both drafts, by category. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from saguaro_core import SaguaroSSD
from saguaro_core.prompts import load_prompts
from saguaro_core.results import total_tok_s

METHODS = {"sd, K = 5": {"method": "sd", "k": 5}, "ssd, K = 5": {"method": "ssd", "k": 5}, "ssd": {"method": "ssd"}}


def main(path: str, first: str, second: str, count: int, tokens: int) -> None:
    runs: dict[tuple[str, str], dict[int, list[dict]]] = defaultdict(lambda: {0: [], 1: []})
    with SaguaroSSD(draft=first) as one, SaguaroSSD(draft=second) as two:
        for engine in (one, two):
            engine.generate("Hello, who are you?", method="ssd", max_new_tokens=16).wait()  # warms the kernels
        for number, prompt in enumerate(load_prompts(path, count)):
            for label, options in METHODS.items():
                for which in (0, 1) if number % 2 else (1, 0):
                    run = (one, two)[which].generate(prompt.turns[0], max_new_tokens=tokens, reuse=0, **options)
                    run.wait()
                    for category in (prompt.category, "all"):
                        runs[label, category][which].append(run.summary)
    for (label, category), pair in sorted(runs.items()):
        rounds, speed = _change(pair, _per_round), _change(pair, total_tok_s)
        print(f"{label:10} {category:16} {len(pair[0]):3} prompts: tokens per round {rounds}, tok/s {speed}")


def _change(pair: dict[int, list[dict]], measure) -> str:
    first, second = measure(pair[0]), measure(pair[1])
    return f"{first:.3f} to {second:.3f} ({second / first - 1:+.1%})" if first and second else "not defined"


def _per_round(summaries: list[dict]) -> float | None:
    rounds = sum(row["rounds"] for row in summaries)
    return sum(row["tokens"] - 1 for row in summaries) / rounds if rounds else None


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    counts = [int(text) for text in sys.argv[4:]]
    main(*sys.argv[1:4], *counts, *(40, 64)[len(counts) :])

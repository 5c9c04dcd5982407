"""The model card of a distilled draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROWS = 10  # of the table of progress


def write_card(folder: Path, target: str, settings: dict[str, Any], log: list[dict[str, Any]]) -> None:
    """Write `folder`/README.md from what was logged."""
    (folder / "README.md").write_text(card(target, settings, log), encoding="utf-8")


def card(target: str, settings: dict[str, Any], log: list[dict[str, Any]]) -> str:
    text = [row for row in log if row["what"] == "text"]
    training = [row for row in log if row["what"] == "training"]
    options, recipe = settings["options"], settings["recipe"]
    start = (
        f"It started from the draft `{options['init']}`."
        if options["init"]
        else f"It started as {options['layers']} layers of the target at even spacing."
    )
    return f"""---
library_name: transformers
tags:
  - speculative-decoding
  - draft-model
---

# A draft for {target}

A draft model for speculative decoding with {target} as the target. It is a *draft folder*: the embedding and the rows
`head_ids` of the output head are the target's, taken when the draft is loaded (`saguaro_core.models.load_draft`), so
it cannot run without its target. For each run Saguaro adds rows for the tokens of its prompts that are not among
`head_ids` (at most 512); other tokens are never drafted. The tokenizer is the target's.

## Training

{start} Embedding and head stayed frozen. The text, {sum(row["tokens"] for row in text):,} tokens, was written by the
target itself in {sum(row["seconds"] for row in text) / 60:.0f} minutes: user turns sampled from a few given words on,
answers mostly greedy. At the positions of the answers the student learned the target's likeliest 16 probabilities:
KL divergence, from {recipe["total_variation_from"]:.0%} of the time on mixed with {recipe["total_variation"]:.0%} of
total variation. AdamW, learning rate {recipe["rate"]:g} with a cosine schedule, {recipe["tokens"]:,} tokens a step; the
weights are a running average (decay {recipe["average"]:g}). All settings and the whole log are in `training.json`.

## Agreement with the target

On held-out conversations of the same kind. *Agreement*: both choose the same token greedily. *Acceptance*: sum of
min(p, q), the chance that a token drafted at temperature 1 is accepted. *Tokens per round*: what greedy speculative
decoding with a lookahead of {recipe["lookahead"]} makes of the answers.

| minutes | tokens trained on | agreement | acceptance | tokens per round |
|---|---|---|---|---|
{table(training)}

## Licence

The weights derive from {target}; its licence applies to them.
"""


def table(training: list[dict[str, Any]]) -> str:
    """At most `ROWS` of the reports, the first and the last among them, as rows of a table."""
    last = len(training) - 1
    chosen = sorted({round(i * last / (ROWS - 1)) for i in range(ROWS)})
    return "\n".join(
        f"| {row['seconds'] / 60:.1f} | {row['tokens']:,} | {row['agreement']:.3f} | {row['acceptance']:.3f} | "
        f"{row['tokens_per_round']:.2f} |"
        for row in (training[i] for i in chosen)
    )

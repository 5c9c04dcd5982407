"""The training loop: the student learns the target's distributions at the positions where the target answered.

The state (weights, their running average, optimiser, counters) is one file, written every few minutes and when the
loop is interrupted, so that a later call goes on from there.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from .loss import accepted_per_round, agreement, divergence, label, log_likelihoods
from .selfplay import ANSWER, Conversation


@dataclass(frozen=True)
class Recipe:
    """Settings of the training. `tokens`: of a step, padding included. Shares are of the training time."""

    tokens: int = 4096
    rate: float = 1e-3
    last_rate: float = 5e-5
    warm_up: float = 0.02
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    clip: float = 1.0
    average: float = 0.99  # decay of the running average of the weights, which is what is evaluated and kept
    total_variation_from: float = 0.6  # from this share on, the loss is mostly the total variation
    total_variation: float = 0.8
    lookahead: int = 5  # for the estimate of tokens per round
    report_s: float = 120
    seed: int = 0

    def rate_at(self, share: float) -> float:
        """Linear warm-up, then a cosine from `rate` to `last_rate`."""
        if share < self.warm_up:
            return self.rate * share / self.warm_up + self.last_rate
        done = min(1.0, (share - self.warm_up) / (1 - self.warm_up))
        return self.last_rate + (self.rate - self.last_rate) * (1 + math.cos(math.pi * done)) / 2

    def total_variation_at(self, share: float) -> float:
        return self.total_variation if share >= self.total_variation_from else 0.0


@dataclass
class Progress:
    """Counters of a training, over all its calls."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Measured:
    """On held-out text: greedy agreement, expected acceptance at temperature 1, tokens per round of greedy answers."""

    agreement: float
    acceptance: float
    tokens_per_round: float


class Trainer:
    """Trains `student` in place. `state`: the file that holds everything a later call needs to go on."""

    def __init__(self, student: PreTrainedModel, head_ids: Tensor, recipe: Recipe, state: Path):
        cpu = student.device.type == "cpu"
        precise = not torch.ops.mkldnn._is_mkldnn_bf16_supported() if cpu else not torch.cuda.is_bf16_supported()
        self._accelerator = Accelerator(cpu=cpu, mixed_precision="no" if precise else "bf16")
        self.recipe, self._state, self.progress = recipe, state, Progress()
        self.student, self.weights = student, {n: w for n, w in student.named_parameters() if w.requires_grad}
        optimizer = torch.optim.AdamW(
            self.weights.values(), lr=recipe.rate, betas=recipe.betas, weight_decay=recipe.weight_decay
        )
        self._model, self._optimizer = self._accelerator.prepare(student, optimizer)
        self.average = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self._column_of = torch.full((student.config.get_text_config().vocab_size,), -1, device=head_ids.device)
        self._column_of[head_ids] = torch.arange(len(head_ids), device=head_ids.device)

    def resume(self) -> bool:
        """Go on from the state file. False where there is none."""
        if not self._state.is_file():
            return False
        state = torch.load(self._state, map_location=self.student.device, weights_only=True)
        for name, weight in self.weights.items():
            weight.data.copy_(state["weights"][name])
        self.average, self.progress = state["average"], Progress(**state["progress"])
        self._optimizer.load_state_dict(state["optimizer"])
        return True

    def save(self) -> None:
        part = self._state.with_name(self._state.name + ".part")
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        optimizer = self._optimizer.state_dict()
        progress = vars(self.progress)
        torch.save({"weights": weights, "average": self.average, "optimizer": optimizer, "progress": progress}, part)
        os.replace(part, self._state)

    def train(
        self,
        text: Callable[[], Sequence[Conversation]],
        held_out: Sequence[Conversation],
        seconds: float,
        report: Callable[[Progress, float, Measured], None],
    ) -> None:
        """Train until `seconds` have been spent in all. `text` (some with answers) is asked for anew each time all of
        it has been seen."""
        losses: list[float] = []
        reported = self.progress.seconds
        try:
            for batch in self._batches(text):
                if self.progress.seconds >= seconds:
                    break
                started, worked = time.monotonic(), time.process_time()
                losses.append(self._step(batch, self.progress.seconds / seconds))
                # The smaller one: while the process is stopped or starved by others, the schedule waits for it.
                self.progress.seconds += min(time.monotonic() - started, time.process_time() - worked)
                if self.progress.seconds - reported >= self.recipe.report_s:
                    reported = self.progress.seconds
                    self.save()
                    report(self.progress, float(np.mean(losses)), self.measure(held_out))
                    losses.clear()
        finally:
            self.save()
        if losses:
            report(self.progress, float(np.mean(losses)), self.measure(held_out))

    def _batches(self, text: Callable[[], Sequence[Conversation]]) -> Iterator[list[Conversation]]:
        while True:
            rng = np.random.default_rng((self.recipe.seed, self.progress.step))
            yield from batches(text(), self.recipe.tokens, rng)

    def _step(self, batch: Sequence[Conversation], share: float) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(share)
        logits, labels, _ = self._answers(batch)
        loss = divergence(log_likelihoods(logits, labels), labels, self.recipe.total_variation_at(share))
        self._accelerator.backward(loss)
        self._accelerator.clip_grad_norm_(self.weights.values(), self.recipe.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), list(self.weights.values()), 1 - self.recipe.average)
        self.progress.step += 1
        self.progress.tokens += sum(len(one.tokens) for one in batch)
        return float(loss.detach())

    def _answers(self, batch: Sequence[Conversation]):
        """The student's logits at all positions that predict a token of an answer, their labels, and each one's
        conversation: `(logits [n, columns], Labels, index [n])`."""
        device = self.student.device
        longest = max(len(one.tokens) for one in batch)
        tokens = np.zeros((len(batch), longest), np.int64)
        for row, one in zip(tokens, batch, strict=True):
            row[: len(one.tokens)] = one.tokens
        answered = [np.flatnonzero(one.kinds == ANSWER) for one in batch]
        index = torch.from_numpy(np.repeat(np.arange(len(batch)), [len(at) for at in answered])).to(device)
        before = torch.from_numpy(np.concatenate(answered) - 1).to(device)
        with self._accelerator.autocast():
            # Causal attention needs no mask for padding at the end: nobody looks at those rows.
            hidden = self.student.base_model(torch.from_numpy(tokens).to(device), use_cache=False).last_hidden_state
            logits = self.student.get_output_embeddings()(hidden[index, before])
        if cap := getattr(self.student.config.get_text_config(), "final_logit_softcapping", None):
            logits = torch.tanh(logits / cap) * cap
        ids = np.concatenate([one.ids[at] for one, at in zip(batch, answered, strict=True)])
        probs = np.concatenate([one.probs[at] for one, at in zip(batch, answered, strict=True)])
        labels = label(torch.from_numpy(ids).to(device), torch.from_numpy(probs).to(device), self._column_of)
        return logits, labels, index

    @torch.no_grad()
    def measure(self, held_out: Sequence[Conversation]) -> Measured:
        """The averaged weights on held-out text."""
        same, accepted, tokens, rounds = [], [], 0, 0
        with self.averaged():
            for batch in batches(held_out, self.recipe.tokens, np.random.default_rng(0)):
                logits, labels, index = self._answers(batch)
                agrees, overlap = agreement(logits, log_likelihoods(logits, labels), labels)
                same.append(agrees)
                accepted.append(overlap)
                for row in range(len(batch)):
                    counts = accepted_per_round(agrees[index == row].tolist(), self.recipe.lookahead)
                    tokens, rounds = tokens + counts[0], rounds + counts[1]
        return Measured(
            torch.cat(same).float().mean().item(), torch.cat(accepted).mean().item(), tokens / max(rounds, 1)
        )

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights in the student's place."""
        present = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self._put(self.average)
        try:
            yield
        finally:
            self._put(present)

    def _put(self, values: dict[str, Tensor]) -> None:
        for name, weight in self.weights.items():
            weight.data.copy_(values[name])


def batches(text: Sequence[Conversation], tokens: int, rng: np.random.Generator) -> Iterator[list[Conversation]]:
    """All conversations that hold an answer, once, in random batches of similar lengths: at most `tokens` tokens when
    padded, at least one conversation."""
    usable = [one for one in text if (one.kinds == ANSWER).any()]
    order = rng.permutation(len(usable))
    group = 4096
    planned = []
    for first in range(0, len(order), group):
        batch: list[Conversation] = []
        for i in sorted(order[first : first + group], key=lambda i: len(usable[i].tokens)):
            if batch and len(usable[i].tokens) * (len(batch) + 1) > tokens:
                planned.append(batch)
                batch = []
            batch.append(usable[i])
        planned.append(batch)
    for i in rng.permutation(len(planned)):
        yield planned[i]

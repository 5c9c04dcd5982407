"""The target writes its own training text: conversations in a batch, each token with the target's distribution.

A conversation starts with a given opening of a user turn (`Script`); the target goes on with that turn by sampling,
then answers it, greedily or sampled. Many conversations are written side by side, one in each row of a batch; a row
that has finished one starts the next at once, so all rows always work. Since the logits are there anyway, the
likeliest tokens and their probabilities are kept with each token: they are what a student learns from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from ..attention import KVStore, Write, soft_capped, up_to_block
from ..models import ModelError
from ..packing import pack

ATTENTION = "saguaro-selfplay"
LIKELIEST = 16  # tokens kept of each distribution, and sampled from
GIVEN, USER, ANSWER = 0, 1, 2  # kinds of tokens: given, the target's as a user, the target's as itself


@dataclass(frozen=True)
class Script:
    """How a conversation goes: given token ids, and limits on what the target adds.

    `opening` (not empty): up to where the target goes on with the user turn. `closing`: what follows that turn, up to
    where the answer begins. `user` and `answer`: the most tokens of each turn. Temperature 0 is greedy.
    """

    opening: tuple[int, ...]
    closing: tuple[int, ...]
    user: int
    answer: int
    temperature: float = 0.0


@dataclass(frozen=True)
class Conversation:
    """`tokens` int32 [n], their `kinds` int8 [n], and the target's likeliest ids (int32 [n, 16]) and their
    probabilities (float16 [n, 16]) *for* each token, given the tokens before it; zero for the first token."""

    tokens: np.ndarray
    kinds: np.ndarray
    ids: np.ndarray
    probs: np.ndarray


class _Row:
    """One row of the batch: the conversation it is writing, from slot `start` on, and what comes next."""

    def __init__(self, script: Script, start: int):
        self.script, self.start = script, start
        self._given = [*script.opening[1:], *(() if script.user else script.closing)]
        self._turn = USER if script.user else ANSWER
        self._written = 0  # tokens of the present turn
        self.tokens, self._kinds = [script.opening[0]], [GIVEN]
        self._ids, self._probs = [np.zeros(LIKELIEST, np.int32)], [np.zeros(LIKELIEST, np.float16)]

    @property
    def temperature(self) -> float:
        return 1.0 if self._turn == USER else self.script.temperature

    def take(self, chosen: int, ids: np.ndarray, probs: np.ndarray, ends: frozenset[int]) -> bool:
        """Append the next token: `chosen`, unless one is given. True where the conversation is complete."""
        kind, token = (GIVEN, self._given.pop(0)) if self._given else (self._turn, chosen)
        self._written += kind != GIVEN
        over = kind != GIVEN and token in ends
        if kind == USER and (over or self._written == self.script.user):
            self._given = list(self.script.closing)
            if over:  # it ended the turn by itself; in its own way only where the template does it so
                first = self._given.pop(0) if self._given else token
                kind, token = (kind if first == token else GIVEN), first
            self._turn, self._written = ANSWER, 0
        self.tokens.append(token)
        self._kinds.append(kind)
        self._ids.append(ids)
        self._probs.append(probs)
        return kind == ANSWER and (over or self._written == self.script.answer)

    def conversation(self) -> Conversation:
        kinds = np.array(self._kinds, np.int8)
        return Conversation(np.array(self.tokens, np.int32), kinds, np.stack(self._ids), np.stack(self._probs))


class Writer:
    """Takes `model` over (its attention and its linear layers are replaced). `rows` conversations side by side, in
    `slots` slots that the conversations of a row share one after another. `vocabulary`: ids below it may be written.
    """

    def __init__(self, model: PreTrainedModel, ends: frozenset[int], rows: int, slots: int, vocabulary: int):
        model.set_attn_implementation(ATTENTION)
        pack(model)
        config = model.config.get_text_config()
        self._layers, self._columns = config.num_hidden_layers, min(config.vocab_size, vocabulary)
        self.model, self.ends, self.rows = model, ends, rows
        self.slots = min(slots, config.max_position_embeddings)

    @torch.inference_mode()
    def write(
        self,
        scripts: Iterator[Script],
        generator: torch.Generator | None = None,
        until: float = math.inf,
    ) -> list[Conversation]:
        """Fill all slots once, or until `scripts` are exhausted, or `until` (of `time.monotonic`): the conversations,
        cut ones included."""
        store = KVStore(self._layers, up_to_block(self.slots))
        rows = [_Row(script, 0) for _, script in zip(range(self.rows), scripts, strict=False)]
        working, finished = set(range(len(rows))), []
        for slot in range(self.slots - 1):
            if not working or time.monotonic() >= until:
                break
            ids, probs = self._step(store, rows, slot)
            chosen = choose(ids, probs, [row.temperature for row in rows], generator).tolist()
            ids, probs = ids.cpu().numpy().astype(np.int32), probs.cpu().numpy().astype(np.float16)
            for i in sorted(working):
                if rows[i].take(chosen[i], ids[i], probs[i], self.ends):
                    finished.append(rows[i].conversation())
                    script = next(scripts, None)
                    if script is None:
                        working.remove(i)
                    else:
                        rows[i] = _Row(script, slot + 1)
        return finished + [rows[i].conversation() for i in sorted(working)]

    def _step(self, store: KVStore, rows: Sequence[_Row], slot: int) -> tuple[Tensor, Tensor]:
        """One forward over each row's newest token: the likeliest next ids and their probabilities, [rows, 16]."""
        device = self.model.device
        starts = torch.tensor([row.start for row in rows], device=device)
        end = up_to_block(slot + 1)
        store.writes = [Write(0, 1, slot)]
        at = torch.arange(end, device=device)
        hidden = (at < starts[:, None]) | (at > slot)
        mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=device).masked_fill_(hidden, -torch.inf)
        logits = self.model(
            input_ids=torch.tensor([[row.tokens[-1]] for row in rows], device=device),
            position_ids=slot - starts[:, None],
            cache=store,
            use_cache=True,
            plan=mask[:, None, None],
        ).logits[:, 0, : self._columns]
        return likeliest(logits)


def attention(
    module, query: Tensor, key: Tensor, value: Tensor, attention_mask, scaling=None, dropout=0.0, plan=None, **kwargs
) -> tuple[Tensor, None]:
    """One query row [B, H, 1, D] over the first n of keys and values [B, H_kv, slots, D] -> [B, 1, H, D].
    `plan`: additive mask [B, 1, 1, n]. For so few rows plain products are faster on a CPU than the fused kernel."""
    if kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise ModelError(f"{type(module).__name__} needs attention sinks or biases, which Saguaro does not do")
    batch, heads, _, width = query.shape
    key, value = key[:, :, : plan.shape[-1]], value[:, :, : plan.shape[-1]]
    grouped = query.reshape(batch, key.shape[1], -1, width)
    if kwargs.get("softcap"):
        out = soft_capped(grouped, key, value, plan, scaling, kwargs["softcap"])
    else:
        out = (grouped @ key.transpose(-1, -2) * scaling + plan).softmax(-1) @ value
    return out.reshape(batch, 1, heads, width), None


AttentionInterface.register(ATTENTION, attention)


def likeliest(logits: Tensor, count: int = LIKELIEST) -> tuple[Tensor, Tensor]:
    """Logits [n, V] -> the `count` largest columns and their probabilities among all V, likeliest first.

    The largest are looked for in the blocks with the largest maxima, which on a CPU is several times faster than
    looking through all columns.
    """
    n, columns = logits.shape
    size = 128
    padded = torch.nn.functional.pad(logits, (0, -columns % size), value=-torch.inf).view(n, -1, size)
    blocks = padded.amax(-1).topk(min(count, padded.shape[1])).indices
    candidates = padded.gather(1, blocks[..., None].expand(-1, -1, size)).view(n, -1)
    places = candidates.topk(min(count, columns)).indices
    ids = blocks.gather(1, places // size) * size + places % size
    return ids, torch.softmax(logits, -1, dtype=torch.float32).gather(1, ids)


def choose(ids: Tensor, probs: Tensor, temperatures: Sequence[float], generator: torch.Generator | None) -> Tensor:
    """One id of each row of `ids` [n, 16] at its temperature: [n]."""
    temperature = torch.tensor(temperatures, device=probs.device)[:, None]
    greedy = temperature[:, 0] == 0
    scaled = probs.clamp_min(1e-20) ** (1 / temperature.masked_fill(temperature == 0, 1))
    drawn = torch.multinomial(scaled, 1, generator=generator)[:, 0].masked_fill(greedy, 0)
    return ids.gather(1, drawn[:, None])[:, 0]

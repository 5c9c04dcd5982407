"""Our attention function and store of keys and values, plugged into ordinary transformers models.

`attach(model)` switches a loaded causal LM to the function; a `KVStore` is passed to the forward as `cache=`. The
mask comes from the store's plan for the forward at hand, never from transformers (its mask knows one offset for a
batch and no trees).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from .models import ModelError

NAME = "saguaro"
BLOCK = 128  # a row attends to slots up to the next multiple of this: see `exact_rows`
EVERY = slice(None)
FEWEST_ROWS = 6  # rows of one key head, below which the CPU's kernel sums in another order


@dataclass(frozen=True)
class Part:
    """Rows `first` .. `last` - 1 of a forward attend to slots 0 .. `end` - 1 of the sequences `seqs`: the one that
    packed rows belong to, or all of them where each is a row of the batch.

    `mask`: additive, [1, 1, g * copies * rows, end]; it holds the rows' mask once for each of the g query heads that
    share a key head, and that `copies` times: so few rows that the kernel would sum them in another order are done
    twice or more.
    """

    first: int
    last: int
    end: int
    copies: int
    mask: Tensor
    seqs: slice = field(default_factory=lambda: EVERY)


@dataclass(frozen=True)
class Write:
    """Keys and values of rows `first` .. `last` - 1 go to slots `slot`, `slot` + 1, ... of the sequences `seqs`."""

    first: int
    last: int
    slot: int
    seqs: slice = field(default_factory=lambda: EVERY)


def attention(
    module, query: Tensor, key: Tensor, value: Tensor, attention_mask, scaling=None, dropout=0.0, plan=None, **kwargs
) -> tuple[Tensor, None]:
    """`query` [B, H, q, D], `key` and `value` [B, H_kv, n, D] -> [B, q, H, D]. `plan`: the `Part`s that make up q."""
    if kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise ModelError(f"{type(module).__name__} needs attention sinks or biases, which Saguaro does not do")
    parts = [attend(query, key, value, part, scaling, kwargs.get("softcap")) for part in plan]
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    return out.transpose(1, 2).contiguous(), None


def attend(query: Tensor, key: Tensor, value: Tensor, part: Part, scaling: float, softcap: float | None) -> Tensor:
    """The rows of `part`: [B, H, rows, D]. The heads of a group become rows of one head, so that keys and values are
    read once and not g times."""
    query = query[:, :, part.first : part.last]
    if part.copies > 1:
        query = query.repeat(1, 1, part.copies, 1)
    key, value = key[part.seqs, :, : part.end], value[part.seqs, :, : part.end]
    batch, heads, rows, width = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, width)
    if softcap:
        out = soft_capped(grouped, key, value, part.mask, scaling, softcap)
    else:
        out = scaled_dot_product_attention(grouped, key, value, attn_mask=part.mask, scale=scaling)
    return out.reshape(batch, heads, rows, width)[:, :, : part.last - part.first]


def soft_capped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, cap: float) -> Tensor:
    """Attention whose scores are squashed to (-cap, cap) before the mask (Gemma 2): [B, H_kv, g * q, D]."""
    scores = torch.tanh(query @ key.transpose(-1, -2) * (scaling / cap)) * cap + mask
    return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value


AttentionInterface.register(NAME, attention)


def attach(model: PreTrainedModel) -> None:
    """Make `model` use our attention. Raises ModelError where its attention cannot be replaced."""
    try:
        model.set_attn_implementation(NAME)
    except (ValueError, ImportError, AttributeError, KeyError):
        raise ModelError(f"{type(model).__name__} does not let its attention be replaced") from None


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [B, H_kv, slots, D], allocated when the first ones arrive."""

    is_sliding = False

    def __init__(self, store: KVStore):
        super().__init__()
        self._store = store

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def empty(states: Tensor) -> Tensor:
            sequences = max(states.shape[0], self._store.sequences)
            return states.new_zeros(sequences, states.shape[1], self._store.slots, states.shape[3])

        self.keys, self.values = empty(key_states), empty(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        for write in self._store.writes:
            rows, end = slice(write.first, write.last), write.slot + write.last - write.first
            self.keys[write.seqs, :, write.slot : end] = key_states[:, :, rows]
            self.values[write.seqs, :, write.slot : end] = value_states[:, :, rows]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._store.slots, 0

    def get_seq_length(self) -> int:
        return self._store.writes[0].slot

    def get_max_length(self) -> int:
        return self._store.slots


class KVStore(Cache):
    """Keys and values of some `sequences`, in `slots` slots each. `writes` says where the next forward's go; rollback
    is writing at an earlier slot."""

    def __init__(self, layers: int, slots: int, sequences: int = 1):
        self.slots, self.sequences = slots, sequences
        self.writes: Sequence[Write] = ()
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])


class Masks:
    """What rows of one sequence see. Causal masks are views into a single band. `group`: query heads that share a key
    head."""

    def __init__(self, slots: int, rows: int, group: int, dtype: torch.dtype, device: torch.device):
        self._slots, self._group = slots, group
        column = torch.arange(2 * slots, device=device)
        row = torch.arange(rows, device=device)[:, None]
        self._band = _additive(column <= row + slots, dtype)

    def causal(self, write: Write) -> list[Part]:
        """Row i sees slots 0 .. slot + i. Where a few rows stand on both sides of a multiple of `BLOCK` they are two
        parts, because how far a row reads must depend on its own place only: it decides how sums are split."""
        rows = write.last - write.first
        border = write.slot // BLOCK * BLOCK + BLOCK - write.slot
        if rows > BLOCK or rows <= border:
            return [self._rows(write, 0, rows)]
        return [self._rows(write, 0, border), self._rows(write, border, rows)]

    def _rows(self, write: Write, first: int, last: int) -> Part:
        end = up_to_block(write.slot + last)
        left = self._slots - write.slot
        return self._part(write, first, last, self._band[first:last, left : left + end])

    def given(self, write: Write, visible: Tensor) -> list[Part]:
        """Row i sees the slots that are True in `visible` [rows, n]."""
        end = up_to_block(visible.shape[1])
        visible = torch.nn.functional.pad(visible, (0, end - visible.shape[1]))
        return [self._part(write, 0, len(visible), _additive(visible, self._band.dtype))]

    def _part(self, write: Write, first: int, last: int, mask: Tensor) -> Part:
        copies = -(-FEWEST_ROWS // (self._group * len(mask)))
        repeated = mask.repeat(self._group * copies, 1)[None, None]
        return Part(write.first + first, write.first + last, mask.shape[1], copies, repeated, write.seqs)


def up_to_block(slots: int) -> int:
    return -(-slots // BLOCK) * BLOCK


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)

"""Our attention function and store of keys and values, plugged into ordinary transformers models.

`attach(model)` switches a loaded causal LM to the function; a `KVStore` is passed to the forward as `cache=`. The
mask comes from the store's plan for the forward at hand, never from transformers (its mask knows one offset for a
batch and no trees).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from .models import ModelError

NAME = "saguaro"
BLOCK = 128  # attention reads up to the next multiple: architecture note, bit-exactness rule (b)


def attention(
    module, query: Tensor, key: Tensor, value: Tensor, attention_mask, scaling=None, dropout=0.0, plan=None, **kwargs
) -> tuple[Tensor, None]:
    """`query` [B, H, q, D], `key` and `value` [B, H_kv, n, D] -> [B, q, H, D]. `plan`: additive mask [1, 1, g * q, n],
    the mask of the q rows once for each of the g = H / H_kv query heads that share a key head.

    The heads of a group become rows of one head, so that keys and values are read once and not g times.
    """
    if kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise ModelError(f"{type(module).__name__} needs attention sinks or biases, which Saguaro does not do")
    batch, heads, rows, width = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, width)
    if kwargs.get("softcap"):
        out = soft_capped(grouped, key, value, plan, scaling, kwargs["softcap"])
    else:
        out = scaled_dot_product_attention(grouped, key, value, attn_mask=plan, scale=scaling)
    return out.reshape(batch, heads, rows, width).transpose(1, 2).contiguous(), None


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
    """Keys and values of one layer, [1, H_kv, slots, D], allocated when the first ones arrive."""

    is_sliding = False

    def __init__(self, store: "KVStore"):
        super().__init__()
        self._store = store

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def empty(states: Tensor) -> Tensor:
            return states.new_zeros(1, states.shape[1], self._store.slots, states.shape[3])

        self.keys, self.values = empty(key_states), empty(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        slot, end = self._store.slot, self._store.end
        self.keys[:, :, slot : slot + key_states.shape[2]] = key_states
        self.values[:, :, slot : slot + key_states.shape[2]] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._store.end, 0

    def get_seq_length(self) -> int:
        return self._store.slot

    def get_max_length(self) -> int:
        return self._store.slots


class KVStore(Cache):
    """One sequence's keys and values in `slots` slots. `slot` (where the next forward writes) and `end` (how far it
    reads) are set before the forward; rollback is writing at an earlier slot."""

    def __init__(self, layers: int, slots: int):
        self.slots, self.slot, self.end = slots, 0, 0
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])


class Masks:
    """Additive masks. The causal one is a view into a single band, so that it costs nothing per forward."""

    def __init__(self, slots: int, rows: int, dtype: torch.dtype, device: torch.device):
        self._slots = slots
        column = torch.arange(2 * slots, device=device)
        row = torch.arange(rows, device=device)[:, None]
        self._band = _additive(column <= row + slots, dtype)

    def causal(self, rows: int, slot: int, end: int) -> Tensor:
        """[1, 1, rows, end]: row i sees columns 0 .. slot + i."""
        return self._band[None, None, :rows, self._slots - slot : self._slots - slot + end]

    def given(self, visible: Tensor, end: int) -> Tensor:
        """[1, 1, rows, end] from `visible` bool [rows, n], nothing seen beyond n."""
        visible = torch.nn.functional.pad(visible, (0, end - visible.shape[1]))
        return _additive(visible, self._band.dtype)[None, None]


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)

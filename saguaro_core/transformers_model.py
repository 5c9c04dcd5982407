"""A transformers causal LM behind the one forward that the engine needs (`trunk.Model`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .attention import KVStore, Masks, attach, up_to_block
from .models import context_length
from .packing import pack
from .trunk import PREFILL_CHUNK

SCRATCH = 1024  # slots behind the context for padding rows and speculation trees


class TransformersModel:
    """Takes `model` over: its attention and its linear layers are replaced.

    `head_ids` int64 [H]: target ids of the logit columns, None where they are the ids themselves; then columns from
    `vocabulary` on (padding that the target does not have) are cut. `context`: positions to make room for, at most the
    model's own.
    """

    def __init__(
        self, model: PreTrainedModel, head_ids: Tensor | None = None, *, context: int, vocabulary: int | None = None
    ):
        attach(model)
        pack(model)
        config = model.config.get_text_config()
        self.context = min(context, context_length(config))
        self.model, self.device = model, model.device
        columns = min(config.vocab_size, vocabulary or config.vocab_size)
        self.ids = torch.arange(columns, device=self.device) if head_ids is None else head_ids
        key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        group = config.num_attention_heads // key_heads
        self.store = KVStore(config.num_hidden_layers, up_to_block(self.context + SCRATCH))
        self._masks = Masks(self.store.slots, PREFILL_CHUNK, group, model.dtype, self.device)

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int], positions: Sequence[int], slot: int, visible: Tensor | None = None, keep: int = 0
    ) -> Tensor:
        """See `trunk.Model.forward`. Logits [q, H] in the model's dtype."""
        plan = self._masks.causal(len(tokens), slot) if visible is None else self._masks.given(visible)
        self.store.slot, self.store.end = slot, plan[-1].end
        return self.model(
            input_ids=torch.tensor([tokens], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            cache=self.store,
            use_cache=True,
            plan=plan,
            logits_to_keep=keep,
        ).logits[0, :, : len(self.ids)]

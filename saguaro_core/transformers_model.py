"""A transformers causal LM behind the one forward that the engine needs (`trunk.Model`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .attention import KVStore, Masks, Write, attach, up_to_block
from .head import CutHead, RunHead
from .models import context_length
from .packing import pack
from .trunk import PREFILL_CHUNK, Rows

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
        head = model.get_output_embeddings()
        self._head = RunHead(head, head_ids) if isinstance(head, CutHead) else None
        if self._head:
            model.set_output_embeddings(self._head)
        pack(model)
        config = model.config.get_text_config()
        self.context = min(context, context_length(config))
        self.model, self.device = model, model.device
        columns = min(config.vocab_size, vocabulary or config.vocab_size)
        self.ids = torch.arange(columns, device=self.device) if head_ids is None else head_ids
        key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        group = config.num_attention_heads // key_heads
        self._layers = config.num_hidden_layers
        self._slots = up_to_block(self.context + SCRATCH)
        self.store = KVStore(self._layers, self._slots)
        self._masks = Masks(self._slots, PREFILL_CHUNK, group, model.dtype, self.device)

    def begin(self, prompts: Sequence[Sequence[int]]) -> None:
        """A run over these prompts begins: a cut head gets columns for their tokens, which changes `ids`."""
        if self._head:
            self.ids = self._head.begin(prompts)

    def reserve(self, sequences: int) -> bool:
        """See `trunk.Model.reserve`."""
        if sequences <= self.store.sequences:
            return False
        self.store = KVStore(self._layers, self._slots, sequences)
        return True

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows]) -> list[Tensor]:
        """See `trunk.Model.forward`. Logits [q, H] in the model's dtype.

        The rows of all sequences are packed one behind the other into a single row of the batch: linear layers see one
        matrix, attention goes part by part, so that a sequence attends in the very shapes it has alone.
        """
        writes, plan, kept = [], [], []
        at = 0
        for rows in batch:
            end = at + len(rows.tokens)
            write = Write(at, end, rows.slot, slice(rows.seq, rows.seq + 1))
            plan += self._masks.causal(write) if rows.visible is None else self._masks.given(write, rows.visible)
            writes.append(write)
            kept.append(range(end - rows.keep if rows.keep else at, end))
            at = end
        self.store.writes = writes
        wanted = [row for rows in kept for row in rows]
        logits = self.model(
            input_ids=torch.tensor([[token for rows in batch for token in rows.tokens]], device=self.device),
            position_ids=torch.tensor([[p for rows in batch for p in rows.positions]], device=self.device),
            cache=self.store,
            use_cache=True,
            plan=plan,
            logits_to_keep=0 if len(wanted) == at else torch.tensor(wanted, device=self.device),
        ).logits[0, :, : len(self.ids)]
        return list(logits.split([len(rows) for rows in kept]))

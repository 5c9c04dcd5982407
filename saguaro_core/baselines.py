"""transformers' own `generate`, timed with the same events: the baselines `hf-ar` and `hf-assisted`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from .events import PLAIN, Tokens
from .messages import Load, Perform
from .models import full_vocabulary, load_draft, load_target
from .recorder import Recorder


class Stock:
    """The same weights, dtype and threads in transformers' own modules, loaded when first asked for."""

    def __init__(self, load: Load):
        self._load = load

    @cached_property
    def target(self) -> PreTrainedModel:
        return load_target(self._load.target, self._load.device, getattr(torch, self._load.dtype))

    @cached_property
    def assistant(self) -> PreTrainedModel:
        """The draft as assisted generation wants it: logits over the target's whole vocabulary. A cut head stays as it
        was cut: it gets no tokens of a run."""
        load = self._load
        return full_vocabulary(*load_draft(load.draft, load.target, load.device, getattr(torch, load.dtype)))


class _Recording(BaseStreamer):
    """Turns what generate streams into token events. The first thing it streams is the prompt."""

    def __init__(self, record: Recorder):
        self._record, self._prompt_seen = record, False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            ids = tuple(value.reshape(-1).tolist())
            self._record.add(Tokens, ids=ids, state=(PLAIN,) * len(ids))
            self._record.flush()
            self._record.round += 1
        self._prompt_seen = True

    def end(self) -> None:
        pass


class _Cancelled(StoppingCriteria):
    def __init__(self, cancelled: Callable[[], bool]):
        self._cancelled = cancelled

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), self._cancelled(), dtype=torch.bool, device=input_ids.device)


@torch.inference_mode()
def generate(stock: Stock, perform: Perform, record: Recorder, cancelled: Callable[[], bool]) -> str:
    """Greedy or sampled `generate`, assisted with transformers' defaults where asked; returns why it ended."""
    model = stock.target
    (s,) = perform.settings
    ids = torch.tensor(perform.prompts, device=model.device)
    config = GenerationConfig(
        do_sample=s.temperature > 0,
        max_new_tokens=s.max_new_tokens,
        eos_token_id=sorted(perform.eos) or None,
        pad_token_id=min(perform.eos, default=0),
        **(dict(temperature=s.temperature, top_k=s.top_k, top_p=s.top_p) if s.temperature > 0 else {}),
    )
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=config,
        assistant_model=stock.assistant if perform.baseline == "hf-assisted" else None,
        streamer=_Recording(record),
        stopping_criteria=[_Cancelled(cancelled)],
    )
    if cancelled():
        return "cancelled"
    return "eos" if output[0, -1].item() in perform.eos else "length"

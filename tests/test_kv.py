"""After every round, the keys and values both models hold for committed tokens are those of a fresh prefill."""

from __future__ import annotations

import pytest
import torch

from saguaro_core.events import Lookup, Verify
from saguaro_core.text import encode_prompt
from saguaro_core.transformers_model import TransformersModel
from saguaro_core.trunk import Trunk

from . import toy


class CheckedTrunk(Trunk):
    """Compares its store with a fresh prefill whenever it is rolled back to what is committed."""

    def __init__(self, model: TransformersModel):
        super().__init__(model)
        self.checked, self.worst = 0, 0.0
        self._fresh = TransformersModel(model.model, model.ids, context=1024)

    def keep(self, length):
        super().keep(length)
        if not self.tokens:
            return
        Trunk(self._fresh).prefill(self.tokens, None)
        for mine, fresh in zip(self.model.store.layers, self._fresh.store.layers, strict=True):
            for a, b in ((mine.keys, fresh.keys), (mine.values, fresh.values)):
                a, b = a[:, :, : len(self.tokens)].float(), b[:, :, : len(self.tokens)].float()
                self.worst = max(self.worst, float((a - b).norm() / b.norm()))
        self.checked += 1


@pytest.mark.parametrize("steps", [None, 0, 2], ids=["whole trees", "no trees", "cut-short trees"])
def test_keys_and_values_equal_a_fresh_prefill(pair, steps):
    target, draft, tokenizer = pair
    trunks = CheckedTrunk(target), CheckedTrunk(draft)
    chat = [{"role": "user", "content": "Name three primary colours."}]
    events = []
    for _ in range(2):  # the second turn reuses the first one's keys and values
        prompt, _ = encode_prompt(tokenizer, chat)
        output, new = toy.run("ssd", target, draft, prompt, steps=steps, trunks=trunks, k=3, max_new_tokens=16)
        for trunk in trunks:  # what they hold is the conversation, but for what was cut off behind the last token
            held = [*prompt, *output][: len(trunk)]
            assert trunk.tokens[: len(held)] == held and len(held) >= len(prompt) + len(output) - 4
        chat += [
            {"role": "assistant", "content": tokenizer.decode(output)},
            {"role": "user", "content": "And two more?"},
        ]
        events += new
    lookups = [event for event in events if isinstance(event, Lookup)]
    if steps == 0:
        assert not any(event.hit for event in lookups)
    else:
        assert {event.hit for event in lookups} == {True, False}
    rounds = sum(isinstance(event, Verify) for event in events)
    for trunk in trunks:
        assert trunk.checked >= rounds
        # bf16 keeps 8 bits: rows of a 256-row prefill and of a 4-row forward differ by rounding, compounded over layers
        assert trunk.worst < (0.03 if target.model.dtype == torch.bfloat16 else 1e-4)


def test_second_turn_reuses_the_first(pair):
    target, draft, tokenizer = pair
    trunks = Trunk(target), Trunk(draft)
    prompt, _ = encode_prompt(tokenizer, "Hello!")
    output, _ = toy.run("ssd", target, draft, prompt, trunks=trunks, max_new_tokens=8)
    _, events = toy.run("ssd", target, draft, [*prompt, *output, *prompt[-5:]], trunks=trunks, max_new_tokens=4)
    reused = {event.lane: event.reused for event in events if event.kind == "prefill"}
    assert reused["target"] >= len(prompt) + len(output) - 1
    assert reused["draft"] >= len(prompt) + len(output) - 1

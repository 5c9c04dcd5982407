"""Tiny random models and tokenizers, written into a folder in a fraction of a second.

`tiny_model` writes an ordinary transformers model folder with its tokenizer; `tiny_draft` writes a draft folder for
it. Everything is deterministic in the arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)  # fmt: skip

CONTEXT = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "o n", "r e", "Ġ s", "a t", "Ð ¾", "ã ģ", "ð Ł")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KINDS = ("llama", "qwen3", "gpt_neox", "gemma2")


def tiny_config(kind: str = "llama", vocab: int = 320, layers: int = 2, **changes: Any) -> PretrainedConfig:
    """Configuration of a tiny model: hidden size 32, 4 heads (2 for keys and values where the kind has them apart)."""
    # A wide initialisation keeps the likeliest tokens apart, so that tests compare choices and not ties.
    common = {
        "vocab_size": vocab, "num_hidden_layers": layers, "hidden_size": 32, "intermediate_size": 64,
        "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "initializer_range": 0.3,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    }  # fmt: skip
    grouped = {"num_key_value_heads": 2, "head_dim": 8}
    kinds = {
        "llama": (LlamaConfig, grouped),
        "qwen3": (Qwen3Config, grouped | {"tie_word_embeddings": True}),
        "gpt_neox": (GPTNeoXConfig, {}),
        "gemma2": (Gemma2Config, grouped | {"sliding_window": CONTEXT}),
    }
    cls, own = kinds[kind]
    return cls(**(common | own | changes))


def tiny_model(
    path: str | Path, kind: str = "llama", seed: int = 0, vocab: int = 320, layers: int = 2, chat: bool = True,
    **changes: Any,
) -> Path:  # fmt: skip
    """Write a random float32 model of `kind` (one of KINDS) and its tokenizer to `path`; `changes` go to its config."""
    config = tiny_config(kind, vocab, layers, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(path)
    tiny_tokenizer(path, chat)
    return Path(path)


def tiny_draft(path: str | Path, seed: int = 1, vocab: int = 320, layers: int = 1, head_rows: int = 64) -> Path:
    """Write a draft folder for a tiny model of the same `vocab`: no embedding, a head of `head_rows` target ids."""
    config = tiny_config("llama", vocab, layers, tie_word_embeddings=False, architectures=["LlamaForCausalLM"])
    config.saguaro = {"embeddings": "target", "head_rows": head_rows}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tensors = AutoModelForCausalLM.from_config(config, dtype=torch.float32).state_dict()
        tensors["head_ids"] = torch.randperm(vocab)[:head_rows].sort().values.to(torch.int32)
    del tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    config.save_pretrained(path)
    save_file(tensors, Path(path) / "model.safetensors", metadata={"format": "pt"})
    return Path(path)


def tiny_tokenizer(path: str | Path, chat: bool = True) -> Path:
    """Write a byte-level tokenizer to `path`: SPECIAL, the 256 bytes, a few merges; with `chat`, a chat template."""
    merges = [tuple(merge.split()) for merge in MERGES]
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2],
        unk_token=SPECIAL[0], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    if chat:
        wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(path)
    return Path(path)

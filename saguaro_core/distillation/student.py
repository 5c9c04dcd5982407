"""The student: layers of the target at even spacing, the target's embeddings, a head cut to the frequent tokens."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ..models import ModelError, Source, embedding_names, load_draft


def spaced(total: int, count: int) -> list[int]:
    """`count` of `total` layers at even spacing, first and last included: `spaced(30, 4)` is [0, 10, 20, 29]."""
    if not 1 <= count <= total:
        raise ValueError(f"a draft of a target with {total} layers has 1 to {total} layers, not {count}")
    return [-(-i * (total - 1) // (count - 1)) for i in range(count)] if count > 1 else [0]


def frequent_tokens(counts: np.ndarray, rows: int, always: frozenset[int] = frozenset()) -> Tensor:
    """The `rows` ids with the largest `counts` [vocabulary], and those in `always` among them: int32, ascending."""
    counts = counts.astype(np.float64)
    counts[sorted(always)] = np.inf
    chosen = np.argsort(-counts, kind="stable")[: min(rows, len(counts))]
    return torch.from_numpy(np.sort(chosen).astype(np.int32))


def write_student(target: PreTrainedModel, layers: int, head_ids: Tensor, folder: Path) -> None:
    """Write the untrained student of `target` as a draft folder."""
    stack, total = _layer_stack(target)
    chosen = spaced(total, layers)
    tensors = {}
    for name, tensor in target.state_dict().items():
        if not name.startswith(stack):
            tensors[name] = tensor
            continue
        index, rest = name[len(stack) :].split(".", 1)
        if int(index) in chosen:
            tensors[f"{stack}{chosen.index(int(index))}.{rest}"] = tensor
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in chosen]
    save_draft(config, tensors, head_ids, folder)


def _layer_stack(model: PreTrainedModel) -> tuple[str, int]:
    """Prefix of the weights of the list of layers ("model.layers."), and its length."""
    total = model.config.num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == total:
            return name + ".", total
    raise ModelError(f"{type(model).__name__} has no plain list of layers to take a student from")


def save_draft(config: PretrainedConfig, tensors: dict[str, Tensor], head_ids: Tensor, folder: Path) -> None:
    """Write a draft folder (see `saguaro_core.models`); `tensors` may hold embeddings, which are left out."""
    config = copy.deepcopy(config)
    config.tie_word_embeddings, config.dtype = False, "bfloat16"
    config.saguaro = {"embeddings": "target", "head_rows": len(head_ids)}
    borrowed = embedding_names(config)
    own = {name: tensor for name, tensor in tensors.items() if name not in borrowed}
    kept = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in own.items()}
    kept["head_ids"] = head_ids.to("cpu", torch.int32)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def load_student(folder: Path, target: Source, device: str) -> tuple[PreTrainedModel, Tensor]:
    """A draft folder in float32, ready to train: embeddings and head stay frozen. With its head's ids."""
    model, head_ids = load_draft(Source(folder.name, str(folder)), target, device, torch.float32)
    if head_ids is None:
        raise ModelError(f"{folder} is not a draft folder: it has embeddings of its own")
    frozen = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    for weight in model.parameters():
        weight.requires_grad_(id(weight) not in frozen)
    return model, head_ids

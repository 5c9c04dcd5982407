"""Linear layers with weights in the blocked layout that the CPU's bf16 kernels want.

oneDNN repacks a plain bf16 weight on every call; for the few rows of a decode step that costs as much as the product.
Packing once at load halves the time of a forward, and the results stay bitwise those of `torch.nn.functional.linear`
(tests/test_packing.py). These are the operators that torch.compile's own CPU backend uses; where they are missing, or
the model is not bf16 on a CPU, layers stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 8  # rows the layout is chosen for; any number works


class PackedLinear(nn.Module):
    """Stands in for an `nn.Linear` in inference."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous(), ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def pack(model: nn.Module) -> int:
    """Replace the bf16 linear layers of a model on the CPU; returns how many."""
    if not can_pack():
        return 0
    packed = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and _packable(child):
                setattr(module, name, PackedLinear(child))
                packed += 1
    return packed


def _packable(linear: nn.Linear) -> bool:
    """Not a layer that does more than multiply: one rank's share of a layer has hooks that bring the parts together."""
    hooked = linear._forward_hooks or linear._forward_pre_hooks or type(linear.weight.data) is not Tensor
    return linear.weight.dtype == torch.bfloat16 and linear.weight.device.type == "cpu" and not hooked


def can_pack() -> bool:
    mkldnn = getattr(torch.ops, "mkldnn", None)
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(mkldnn, "_reorder_linear_weight")
        and hasattr(mkldnn, "_linear_pointwise")
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )

"""Packed linear layers give bitwise what plain ones give, whatever the number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from saguaro_core.packing import PackedLinear, can_pack, pack


@pytest.mark.skipif(not can_pack(), reason="no packed bf16 kernels on this machine")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(576, 192), (576, 1536), (1536, 576), (64, 320)])
def test_packed_equals_plain(shape, bias):
    torch.manual_seed(0)
    plain = nn.Linear(*shape, bias=bias).bfloat16()
    packed = PackedLinear(plain)
    x = torch.randn(1, 24, shape[0]).bfloat16()
    with torch.inference_mode():
        expected = plain.float()(x.float())
        whole = packed(x)
        for rows in (1, 4, 5, 9, 24):
            torch.testing.assert_close(packed(x[:, :rows]).float(), expected[:, :rows], atol=0.02, rtol=0.01)
            if rows >= 4:
                assert torch.equal(packed(x[:, :rows]), whole[:, :rows])


def test_only_bf16_layers_are_packed():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).bfloat16(), nn.ReLU())
    assert pack(model) == int(can_pack())
    assert type(model[0]) is nn.Linear
    assert pack(model) == 0

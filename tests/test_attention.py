"""Our attention, store and tree on tiny models of four architectures: logits equal transformers' own forward."""

from __future__ import annotations

import pytest
import torch

from saguaro_core.models import load_target, resolve
from saguaro_core.transformers_model import TransformersModel
from saguaro_core.tree import Tree
from saguaro_core.trunk import Trunk

from .tiny import KINDS, tiny_model
from .toy import run

TOLERANCE = 5e-5  # fp32; logits up to 20, so 2.5e-6 of their size. A wrong slot, mask or position is off by 1 or more


@pytest.fixture(params=KINDS)
def models(request, tmp_path):
    """`(ours, fresh)`: our model, and `fresh(tokens)`: logits [n, V] of transformers' own eager attention."""
    source = resolve(str(tiny_model(tmp_path, kind=request.param)), "target")
    stock = load_target(source, "cpu", torch.float32)
    stock.set_attn_implementation("eager")
    ours = TransformersModel(load_target(source, "cpu", torch.float32), context=400)

    @torch.inference_mode()
    def fresh(tokens):
        return stock(torch.tensor([tokens])).logits[0]

    return ours, fresh


def tokens(count, seed=0):
    return torch.randint(3, 300, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_prefill_verification_and_rollback(models):
    ours, fresh = models
    trunk = Trunk(ours)
    prompt = tokens(300)  # more than one chunk
    logits, reused = trunk.prefill(prompt, None)
    assert reused == 0
    torch.testing.assert_close(logits, fresh(prompt)[-1:], atol=TOLERANCE, rtol=0)
    for seed, kept in [(1, 2), (2, 0), (3, 4)]:
        speculation = tokens(5, seed)
        logits = trunk.extend(speculation, min_rows=4)
        torch.testing.assert_close(logits, fresh(trunk.tokens)[-5:], atol=TOLERANCE, rtol=0)
        trunk.keep(len(trunk) - 5 + kept)
    short = trunk.extend(tokens(1, 9), min_rows=4)
    torch.testing.assert_close(short, fresh(trunk.tokens)[-1:], atol=TOLERANCE, rtol=0)


def test_tree_branches_equal_their_own_sequences(models):
    ours, fresh = models
    trunk = Trunk(ours)
    base = tokens(70)
    trunk.extend(base)
    forks = [66, 68, 68, 70, 70]
    branches = [[token] for token in tokens(len(forks), 4)]
    tree = Tree(trunk, forks, steps=4)

    def check(logits, rows):
        for row, m in enumerate(rows):
            expected = fresh([*base[: forks[m]], *branches[m]])[-1]
            torch.testing.assert_close(logits[row], expected, atol=TOLERANCE, rtol=0)

    for step in range(2):
        rows = range(len(forks))
        positions = tree.positions(rows, step + 1)
        check(ours.forward([tree.rows([branch[-1] for branch in branches], rows, step)])[0], rows)
        for m, token in enumerate(tokens(len(forks), 5 + step)):
            branches[m].append(token)
            assert positions[m] == forks[m] + len(branches[m]) - 1
    check(ours.forward([tree.rows([branches[0][-1]], [0], 2)])[0], [0])  # a deeper step for one branch only
    branches[0].append(7)
    check(ours.forward([tree.rows([7], [0], 3)])[0], [0])
    check(ours.forward([tree.rows([branches[2][-1]], [2], 2)])[0], [2])  # another goes on alone from where it stopped


@pytest.mark.parametrize("method", ["sd", "ssd"])
def test_whole_runs_agree(tmp_path, method):
    """A tiny target with a tiny draft of another seed: little is accepted, the text is autoregressive decoding's."""
    target, draft = (
        TransformersModel(
            load_target(resolve(str(tiny_model(tmp_path / name, seed=seed)), "target"), "cpu", torch.float32),
            context=128,
        )
        for name, seed in (("target", 0), ("draft", 1))
    )
    expected, _ = run("ar", target, draft, tokens(20), max_new_tokens=60)
    assert run(method, target, draft, tokens(20), max_new_tokens=60, k=3)[0] == expected

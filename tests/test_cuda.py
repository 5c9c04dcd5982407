"""The real pair with both workers on one GPU: identity, keys and values, a killed worker. One GPU proves correctness,
not overlap; no speed is measured here. Skipped, and counted, where there is no GPU."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from saguaro_core.events import Notice

from .conftest import PROMPTS
from .test_kv import CheckedTrunk

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SHORT = dict(max_new_tokens=64, reuse=0)


@pytest.fixture(scope="module")
def cuda_engine():
    from saguaro_core import SaguaroSSD

    with SaguaroSSD(target_device="cuda:0", draft_device="cuda:0") as engine:
        yield engine


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}], ids=["greedy", "T=1"])
def test_identity(cuda_engine, settings):
    if not cuda_engine.info["exact"]:
        pytest.skip("this GPU's kernels are not row-invariant: methods may differ in near-ties")
    for prompt in PROMPTS:
        expected = cuda_engine.generate(prompt, "ar", **SHORT, **settings).wait().ids
        for method in ("sd", "ssd"):
            assert cuda_engine.generate(prompt, method, **SHORT, **settings).wait().ids == expected


def test_distributions_stay_on_the_gpu(cuda_engine):
    run = cuda_engine.generate(PROMPTS[0], "ssd", **SHORT, temperature=1.0, verification="token").wait()
    assert not run.result.error and run.summary["acceptance"] > 0
    assert {event.path for event in run.events if event.kind == "transfer"} == {"peer copy"}


def test_keys_and_values_equal_a_fresh_prefill():
    from saguaro_core.models import load_draft, load_target, resolve
    from saguaro_core.text import encode_prompt, load_tokenizer
    from saguaro_core.transformers_model import TransformersModel

    from . import toy

    target, draft = resolve("embedded", "target"), resolve("embedded", "draft")
    target_model = TransformersModel(load_target(target, "cuda:0", torch.bfloat16), context=1024)
    draft_model = TransformersModel(*load_draft(draft, target, "cuda:0", torch.bfloat16), context=1024)
    trunks = CheckedTrunk(target_model), CheckedTrunk(draft_model)
    prompt, _ = encode_prompt(load_tokenizer(target), PROMPTS[0])
    toy.run("ssd", target_model, draft_model, prompt, trunks=trunks, k=3, max_new_tokens=24)
    assert all(trunk.checked > 5 and trunk.worst < 0.03 for trunk in trunks)


def test_killed_draft(cuda_engine):
    run = cuda_engine.generate(PROMPTS[0], "ssd", max_new_tokens=500)
    while len(run.ids) < 10:
        run.poll()
    os.kill(cuda_engine.pids["draft"], signal.SIGKILL)
    run.wait()
    assert not run.result.error and any(isinstance(event, Notice) for event in run.events)
    assert cuda_engine.generate(PROMPTS[1], "ssd", **SHORT).wait().summary["acceptance"] > 0

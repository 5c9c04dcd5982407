"""Batches: a sequence says in a batch what it says alone, and leaves it when it has ended."""

from __future__ import annotations

import pytest

from saguaro_core.events import Verify
from saguaro_core.settings import make_settings, settings_of_rows

from . import toy
from .conftest import PROMPTS

RAGGED = [((0, 1), 9), ((1,), 5), ((2, 2, 1), 12), ((0, 0, 0, 1), 1)]  # prompt, most new tokens
K = {"ar": {}, "sd": {"k": 2}, "ssd": {"k": 2}}


@pytest.mark.parametrize("method", K)
@pytest.mark.parametrize("steps", [None, 1], ids=["whole trees", "cut-short trees"])
def test_rows_of_a_toy_batch_are_what_they_are_alone(method, steps):
    target, draft = toy.TabularModel(1), toy.TabularModel(2)
    temperatures = [0.0, 1.0, 0.7, 1.3]
    settings = [
        make_settings(method, temperature=temperature, seed=seed, max_new_tokens=most, **K[method])
        for seed, (temperature, (_, most)) in enumerate(zip(temperatures, RAGGED, strict=True))
    ]
    prompts = [prompt for prompt, _ in RAGGED]
    outputs, events = toy.run_batch(target, draft, prompts, settings, steps=steps, eos=frozenset({2}))
    for prompt, each, output in zip(prompts, settings, outputs, strict=True):
        alone, _ = toy.run(
            method, target, draft, prompt, steps=steps, eos=frozenset({2}), temperature=each.temperature,
            seed=each.seed, max_new_tokens=each.max_new_tokens, **K[method],
        )  # fmt: skip
        assert output == alone
    per_round = [sum(e.round == r for e in events if isinstance(e, Verify)) for r in range(1, 4)]
    assert per_round == sorted(per_round, reverse=True) and per_round[0] < len(RAGGED)  # one ends with its first token


def test_settings_of_rows():
    assert settings_of_rows(2, {"k": 3, "seed": [4, 5]}) == [{"k": 3, "seed": 4}, {"k": 3, "seed": 5}]
    assert settings_of_rows(2, {"fan_out": [8, 4]}) == [{"fan_out": [8, 4]}] * 2
    with pytest.raises(ValueError, match="seed has 3 values for 2 prompts"):
        settings_of_rows(2, {"seed": [1, 2, 3]})


def test_a_batch_through_the_workers(tiny_engine):
    prompts, most = ["abc", "a longer prompt, to be ragged", "x", "yes"], [20, 7, 1, 33]
    alone = [
        tiny_engine.generate(p, "ar", max_new_tokens=n, reuse=0).wait() for p, n in zip(prompts, most, strict=True)
    ]
    for method in ("sd", "ssd"):
        batch = tiny_engine.generate_batch(prompts, method, max_new_tokens=most, reuse=0).wait()
        assert [run.ids for run in batch.runs] == [run.ids for run in alone]
        assert [run.text for run in batch.runs] == [run.text for run in alone]
        assert [run.result.reason for run in batch.runs] == [run.result.reason for run in alone]
        assert batch.summary["sequences"] == 4 and batch.summary["tokens"] == sum(len(run.ids) for run in alone)


def test_one_sequence_of_a_batch_can_be_stopped(tiny_engine):
    batch = tiny_engine.generate_batch(["abc", "def"], "ssd", max_new_tokens=400)
    while not batch.runs[0].ids:
        batch.runs[0].poll()
    batch.runs[0].cancel()
    batch.wait()
    assert batch.runs[0].result.reason == "cancelled" and len(batch.runs[0].ids) < 400
    assert batch.runs[1].result.reason in ("length", "eos") and len(batch.runs[1].ids) > len(batch.runs[0].ids)


def test_what_a_batch_refuses(tiny_engine):
    with pytest.raises(ValueError, match="at least one prompt"):
        tiny_engine.generate_batch([])
    with pytest.raises(ValueError, match="one prompt at a time"):
        tiny_engine.generate_batch(["a", "b"], "hf-ar")
    with pytest.raises(ValueError, match="prompt is empty"):
        tiny_engine.generate_batch(["a", " "])


@pytest.mark.real
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "coupled"])
def test_rows_of_a_real_batch_are_what_they_are_alone(engine, temperature):
    if not engine.info["exact"]:
        pytest.skip("this machine's kernels are not row-invariant")
    prompts = [*PROMPTS, *(f"Write one sentence about the number {n}." for n in range(4))]
    seeds, most = list(range(8)), [24, 5, 24, 16, 24, 1, 12, 24]
    batch = {
        method: engine.generate_batch(
            prompts, method, temperature=temperature, seed=seeds, max_new_tokens=most, reuse=0
        ).wait()
        for method in ("ar", "sd", "ssd")
    }
    for row, (prompt, seed, n) in enumerate(zip(prompts, seeds, most, strict=True)):
        alone = engine.generate(prompt, "ar", temperature=temperature, seed=seed, max_new_tokens=n, reuse=0).wait()
        assert {method: b.runs[row].ids for method, b in batch.items()} == dict.fromkeys(batch, alone.ids)

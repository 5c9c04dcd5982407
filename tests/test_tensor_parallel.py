"""A target split over two ranks says what it says on one device, and leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saguaro_core import SaguaroSSD
from saguaro_core.models import ModelError

from .tiny import tiny_draft, tiny_model

SETTINGS = dict(max_new_tokens=24, reuse=0)
EXACT = dict(dtype="float32")  # in bf16 the sum of two halves is not the whole: near-ties of a random model flip


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    return str(tiny_model(folder / "target")), str(tiny_draft(folder / "draft"))


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line) for line in found.split()]


def test_two_ranks_say_what_one_device_says(pair):
    with SaguaroSSD(*pair, **EXACT) as engine:
        expected = [engine.generate(p, "ar", **SETTINGS).wait().ids for p in ("abc", "a longer prompt")]
    with SaguaroSSD(*pair, target_device="cpu,cpu", **EXACT) as engine:
        ranks = children(engine.pids["target"])
        assert len(ranks) >= 1
        for method in ("ar", "sd", "ssd"):
            got = [engine.generate(p, method, **SETTINGS).wait().ids for p in ("abc", "a longer prompt")]
            assert got == expected, method
        batch = engine.generate_batch(["abc", "a longer prompt"], "ssd", **SETTINGS).wait()
        assert [run.ids for run in batch.runs] == expected
        with pytest.raises(ValueError, match="split over several devices"):
            engine.generate("abc", "hf-ar")
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline, "a rank outlived its engine"
        time.sleep(0.1)


def test_a_lost_rank_ends_the_run_and_the_next_one_works(pair):
    with SaguaroSSD(*pair, target_device="cpu,cpu", **EXACT) as engine:
        for pid in children(engine.pids["target"]):
            os.kill(pid, 9)
        run = engine.generate("abc", "ssd", **SETTINGS).wait()
        assert run.result.reason == "error" and run.result.error
        assert engine.generate("abc", "ssd", **SETTINGS).wait().ids


def test_under_torchrun(pair):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "saguaro_core",
               "generate", "abc", "--target", pair[0], "--draft", pair[1], "--target-device", "cpu,cpu",
               "--dtype", "float32", "--max-new-tokens", "8", "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr[-2000:]
    with SaguaroSSD(*pair, **EXACT) as engine:
        expected = engine.generate("abc", "ar", max_new_tokens=8).wait().ids
    assert f'"ids": {expected}' in done.stdout


def test_what_cannot_be_split(pair, tmp_path):
    with pytest.raises(ModelError, match="3 devices cannot share evenly"):
        SaguaroSSD(*pair, target_device="cpu,cpu,cpu")
    with pytest.raises(ValueError, match="several GPUs or several shares of the CPU|no device"):
        SaguaroSSD(*pair, target_device="cpu,cuda:0")

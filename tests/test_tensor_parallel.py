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

PROMPTS = ["abc", "a longer prompt"]
SETTINGS = dict(max_new_tokens=24, reuse=0)
EXACT = dict(dtype="float32")  # in bf16 the sum of two halves is not the whole: near-ties of a random model flip


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    return str(tiny_model(folder / "target")), str(tiny_draft(folder / "draft"))


@pytest.fixture(scope="module")
def expected(pair):
    """What one device says to each prompt."""
    with SaguaroSSD(*pair, **EXACT) as engine:
        return [engine.generate(p, "ar", **SETTINGS).wait().ids for p in PROMPTS]


@pytest.fixture(scope="module")
def split(pair):
    """An engine whose target has two ranks."""
    with SaguaroSSD(*pair, target_device="cpu,cpu", **EXACT) as engine:
        yield engine


def ranks(engine: SaguaroSSD) -> list[int]:
    """Processes of the ranks other than 0, which are children of the target worker."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(engine.pids["target"])], capture_output=True, text=True)
    return [int(line) for line in listed.stdout.split()]


def test_two_ranks_say_what_one_device_says(split, expected):
    assert len(ranks(split)) >= 1
    for method in ("ar", "sd", "ssd"):
        assert [split.generate(p, method, **SETTINGS).wait().ids for p in PROMPTS] == expected, method
    batch = split.generate_batch(PROMPTS, "ssd", **SETTINGS).wait()
    assert [run.ids for run in batch.runs] == expected
    with pytest.raises(ValueError, match="split over several devices"):
        split.generate("abc", "hf-ar")


def test_a_lost_rank_ends_the_run_and_the_next_one_works(split, expected):
    for pid in ranks(split):
        os.kill(pid, 9)
    run = split.generate(PROMPTS[0], "ssd", **SETTINGS).wait()
    assert run.result.reason == "error" and run.result.error
    assert split.generate(PROMPTS[0], "ssd", **SETTINGS).wait().ids == expected[0]


def test_no_rank_outlives_its_engine(split):
    pids = ranks(split)
    assert pids
    split.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a rank outlived its engine"
        time.sleep(0.1)


def test_under_torchrun(pair, expected):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "saguaro_core",
               "generate", PROMPTS[0], "--target", pair[0], "--draft", pair[1], "--target-device", "cpu,cpu",
               "--dtype", "float32", "--max-new-tokens", str(SETTINGS["max_new_tokens"]), "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f'"ids": {expected[0]}' in done.stdout


def test_what_cannot_be_split(pair, tmp_path):
    with pytest.raises(ModelError, match="3 devices cannot share evenly"):
        SaguaroSSD(*pair, target_device="cpu,cpu,cpu")
    with pytest.raises(ValueError, match="several GPUs or several shares of the CPU|no device"):
        SaguaroSSD(*pair, target_device="cpu,cuda:0")

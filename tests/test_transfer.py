"""Tensors between devices: the memory is shared, the bytes are counted."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from saguaro_core import transfer as tr

CPU = torch.device("cpu")


def receive(connection, ready) -> None:
    room = connection.recv()
    ready.set()
    connection.recv()  # what is written after the handle was sent must be seen without another message of it
    connection.send(room[:2].sum().item())


def test_what_is_written_later_arrives_in_the_other_process():
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    ready = context.Event()
    process = context.Process(target=receive, args=(there, ready), daemon=True)
    process.start()
    room = tr.allocate(4, 1000, CPU, CPU)
    room.zero_()
    here.send(room)
    assert ready.wait(60)
    q = torch.rand(2, 1000)
    assert tr.transfer(q, room) == 2 * 1000 * 4
    here.send("look")
    assert here.poll(60) and here.recv() == pytest.approx(q.sum().item(), rel=1e-5)
    process.join(60)
    assert process.exitcode == 0


def test_paths():
    cuda = torch.device("cuda", 0)
    assert tr.path_between(CPU, CPU) == tr.SHARED
    assert tr.path_between(CPU, cuda) == tr.path_between(cuda, CPU) == tr.PINNED
    assert tr.path_between(cuda, cuda) == tr.PEER


def test_keys_and_values_are_only_measured():
    keys, values = torch.rand(1, 3, 50, 64).bfloat16(), torch.rand(1, 3, 50, 64).bfloat16()
    measured = tr.measure_kv_transfer(keys, values, CPU)
    assert measured["bytes"] == 2 * 3 * 50 * 64 * 2
    assert measured["path"] == tr.SHARED and measured["seconds"] > 0


def test_token_runs_send_their_distributions_through_shared_memory(tiny_engine):
    run = tiny_engine.generate("abc", "sd", temperature=1.0, verification="token", k=2, max_new_tokens=12).wait()
    assert not run.result.error
    moved = [event for event in run.events if event.kind == "transfer"]
    steps = [event for event in run.events if event.kind == "draft_step"]
    assert moved and {event.path for event in moved} == {tr.SHARED}
    assert sum(event.bytes for event in moved) % (4 * len(steps)) == 0 and sum(event.bytes for event in moved) > 0

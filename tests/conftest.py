"""Fixtures for the real pair: one engine for the whole session, models in this process for tests that look inside."""

from __future__ import annotations

import pytest

PROMPTS = [
    "Explain how a rainbow forms.",
    "Write a Python function that checks whether a number is prime.",
    "List five European capitals with one sentence about each.",
    "A train travels 60 km in 45 minutes. What is its speed in km/h?",
]


@pytest.fixture(scope="session")
def engine():
    """The embedded pair in its two worker processes."""
    from saguaro_core import SaguaroSSD

    with SaguaroSSD() as engine:
        yield engine


@pytest.fixture(scope="module")
def tiny_engine(tmp_path_factory):
    """A tiny random target and a draft folder for it, in two worker processes."""
    from saguaro_core import SaguaroSSD

    from .tiny import tiny_draft, tiny_model

    folder = tmp_path_factory.mktemp("tiny")
    with SaguaroSSD(str(tiny_model(folder / "target")), str(tiny_draft(folder / "draft"))) as engine:
        yield engine


@pytest.fixture(scope="session")
def pair():
    """The embedded pair as two models in this process: `(target, draft, tokenizer)`."""
    import torch

    from saguaro_core.models import default_dtype, load_draft, load_target, resolve
    from saguaro_core.text import load_tokenizer
    from saguaro_core.transformers_model import TransformersModel

    torch.set_num_threads(1)
    target, draft = resolve("embedded", "target"), resolve("embedded", "draft")
    dtype = default_dtype("cpu")
    return (
        TransformersModel(load_target(target, "cpu", dtype), context=1024),
        TransformersModel(*load_draft(draft, target, "cpu", dtype), context=1024),
        load_tokenizer(target),
    )

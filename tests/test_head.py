"""saguaro_core.head: a draft with a cut head knows the tokens of the run's prompts, and only as long as the run."""

from __future__ import annotations

import multiprocessing
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from saguaro_core import decoding
from saguaro_core.decoding import TargetSequence, decode
from saguaro_core.draft_worker import Outbox, begin_sequences
from saguaro_core.drafting import Drafter, Outcome, Speculation
from saguaro_core.embedded import EMBEDDED_DRAFT
from saguaro_core.events import Lookup, Tokens, Verify
from saguaro_core.head import MOST, tokens_outside
from saguaro_core.messages import Begin, Perform
from saguaro_core.models import Source, load_draft, load_target
from saguaro_core.packing import can_pack
from saguaro_core.recorder import Recorder
from saguaro_core.rules import make_rule
from saguaro_core.sampling import Streams
from saguaro_core.settings import make_settings
from saguaro_core.target_worker import Draft, RemoteDraft
from saguaro_core.text import encode_prompt
from saguaro_core.transformers_model import TransformersModel
from saguaro_core.trunk import Rows, Trunk

from .tiny import tiny_draft, tiny_model
from .toy import InProcessDraft, enumerate_law, total_variation

CPU = torch.device("cpu")
EOS = frozenset({2})
HITS = dict(fan_out=(2, 2, 2), patience=2)
MISSES = dict(fan_out=(1, 1, 1), patience=2, steps=0)
TOKEN = dict(eos=EOS, rounds=2, k=2, verification="token", temperature=1.0)
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.skipif(not can_pack(), reason="no bf16"))]


# -- which tokens -----------------------------------------------------------------------------------------------------


def test_tokens_of_the_prompts_that_the_head_lacks():
    assert tokens_outside({1, 2}, [[1, 7, 5, 7, 2]]) == [7, 5]
    assert tokens_outside({1, 2}, [[1, 2]]) == [] == tokens_outside(set(), [])


def test_a_batch_shares_the_columns():
    prompts = [[7, 5, 1], [9, 8, 7, 6]]
    assert sorted(tokens_outside({1}, prompts)) == [5, 6, 7, 8, 9]
    assert tokens_outside({1}, prompts, most=3) == [6, 5, 7]  # the latest of each first, so that none goes without


def test_the_latest_tokens_stay_where_they_are_too_many():
    prompt = list(range(2 * MOST))
    assert tokens_outside(set(), [prompt]) == prompt[: MOST - 1 : -1]


# -- the columns ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path):
    """`(target, draft)`; the draft is the whole target, but that its head is cut to every third id."""
    target = tiny_model(tmp_path / "target", tie_word_embeddings=False)
    config = AutoConfig.from_pretrained(target)
    config.saguaro = {"embeddings": "target"}
    config.save_pretrained(tmp_path / "draft")
    tensors = load_file(target / "model.safetensors")
    del tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    save_file(tensors | {"head_ids": torch.arange(3, 320, 3)}, tmp_path / "draft" / "model.safetensors")
    return Source("target", str(target)), Source("draft", str(tmp_path / "draft"))


@pytest.fixture(params=DTYPES, ids=str)
def models(request, folders):
    target, draft = folders
    return (
        TransformersModel(load_target(target, CPU, request.param), context=400),
        TransformersModel(*load_draft(draft, target, CPU, request.param), context=400),
    )


def test_every_column_is_the_full_heads(models):
    target, draft = models
    rows = [Rows([5, 6, 7, 8, 9], range(5), 0)]
    for prompts, own in [
        ([[3, 10, 11]], [11, 10]),
        ([list(range(100))], [id for id in range(99, -1, -1) if id == 0 or id % 3]),  # more than a step of columns
        ([[3, 6], [9]], []),
        ([[4], [4, 5, 8]], [4, 8, 5]),
    ]:
        draft.begin(prompts)  # each replaces the columns of the one before
        assert draft.ids.tolist() == [*range(3, 320, 3), *own]
        logits = draft.forward(rows)[0]
        assert logits.shape == (5, len(draft.ids))
        assert (draft.model.get_output_embeddings().own is None) == (not own)
        torch.testing.assert_close(logits, target.forward(rows)[0][:, draft.ids])


def test_a_draft_with_the_whole_vocabulary_stays_as_it_is(folders):
    target, _ = folders
    draft = TransformersModel(*load_draft(target, target, CPU, torch.float32), context=400)
    before = draft.ids
    draft.begin([[1, 2, 3]])
    assert draft.ids is before and len(before) == 320


def speculate(models, prompts, method, **settings):
    """A run of the draft's shipped sequences beside the target: `(outputs, events)`."""
    target, draft = models
    each = tuple(make_settings(method, **settings) for _ in prompts)
    events = []
    record = Recorder("run", time.perf_counter(), events.extend)
    target.reserve(len(prompts))
    speculator = None
    if method != "ar":
        drafting = begin_sequences(Begin("run", 0.0, prompts, each, 0), draft, [Trunk(draft)])
        speculator = InProcessDraft(Drafter(drafting, each[0], record))
    sequences = [
        TargetSequence(p, Trunk(target, seq), make_rule(s, target.ids), Streams(s.seed), s.max_new_tokens)
        for seq, (p, s) in enumerate(zip(prompts, each, strict=True))
    ]
    decode(sequences, record, speculator=speculator)
    record.flush(force=True)
    return [[id for e in events if isinstance(e, Tokens) and e.seq == s for id in e.ids] for s in range(2)], events


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_of_a_prompt_are_drafted(models, temperature):
    """The draft is the target: it is only wrong where its head lacks the token."""
    settings = dict(temperature=temperature, max_new_tokens=24)
    known = set(models[1].ids.tolist())
    answer = speculate(models, ((5, 6, 7),), "ar", **settings)[0][0]
    prompt = (*reversed(answer), 5, 6, 7)  # whatever it says to this, much of it has no column of its own
    expected = speculate(models, (prompt, (4, 5)), "ar", **settings)[0]
    for method, k in [("sd", {"k": 4}), ("ssd", {"k": 4}), ("ssd", {"k": 3, "fan_out": 2})]:
        outputs, events = speculate(models, (prompt, (4, 5)), method, **settings, **k)
        assert outputs == expected
        verified = [e for e in events if isinstance(e, Verify)]
        own = {*prompt, 4} - known
        assert set(models[1].ids.tolist()) == known | own
        assert any(set(e.drafted[: e.accepted]) & own for e in verified)
        for event in verified:
            assert set(event.drafted) <= known | own
            if event.accepted < len(event.drafted):  # only for want of a column, but for near-ties in bf16
                assert event.bonus not in known | own or models[0].model.dtype == torch.bfloat16
        foreseen = {c[1] for e in events if isinstance(e, Lookup) for c in e.candidates}
        assert method == "sd" or foreseen & own


# -- verification -----------------------------------------------------------------------------------------------------


def columns(head, prompt=(0, 1)):
    return (*head, *tokens_outside(head, [prompt]))


@pytest.mark.parametrize("method, case", [("sd", {}), ("ssd", HITS), ("ssd", MISSES)], ids=["sd", "hits", "misses"])
@pytest.mark.parametrize("head", [(2,), (0,)], ids=["all known in another order", "one token never drafted"])
def test_token_verification_is_lossless_over_the_columns(head, method, case):
    law = enumerate_law(method, draft_ids=columns(head), **TOKEN, **case)
    assert total_variation(law, EOS) < 1e-12


def test_the_enumeration_would_see_distributions_over_wrong_columns(monkeypatch):
    shipped = decoding.over_target_ids
    monkeypatch.setattr(decoding, "over_target_ids", lambda q, ids, v: shipped(q, ids.sort().values, v))
    assert total_variation(enumerate_law("sd", draft_ids=columns((2,)), **TOKEN), EOS) > 1e-3


def test_distributions_of_every_width_cross_with_their_ids():
    """What the target reads are the draft's distributions and ids, wider or narrower than in the run before."""
    here, there = multiprocessing.Pipe()
    record = Recorder("run", time.perf_counter(), lambda events: None)
    outbox, draft = Outbox(CPU, CPU), Draft(there, "cpu")
    rooms = set()
    for width in (8, 5, 5, 40, 8):
        ids = torch.randperm(50)[:width]
        perform = Perform("run", 0.0, ((1,),), (make_settings("sd"),), EOS, None)
        remote = RemoteDraft(draft, perform, record, lambda: False)
        for round in (1, 2):
            sent = [Speculation((1, 2), torch.rand(2, width)), Speculation(), Speculation((3,), torch.rand(1, width))]
            outbox.send(here, sent, ids, record)
            got = remote.speculate([Outcome(seq, 0, 1, 5) for seq in range(3)], round)
            assert here.recv().round == round
            assert [one.tokens for one in got] == [one.tokens for one in sent] and got[1].q is None
            assert torch.equal(got[0].q, sent[0].q) and torch.equal(got[2].q, sent[2].q)
            assert torch.equal(remote.ids, ids)
        rooms.add(draft.room.data_ptr())
    assert len(rooms) == 1  # made once for the largest K, it has room for all of these


def test_runs_of_workers_change_columns(tiny_engine, tmp_path):
    """Token runs with prompts of other tokens, one after another: the bytes that cross are those of their columns."""
    head = load_file(tiny_draft(tmp_path) / "model.safetensors")["head_ids"].tolist()
    for prompt in ("abc", "The quick brown fox jumps over the lazy dog.", "abc"):
        settings = dict(temperature=1.0, verification="token", k=2, max_new_tokens=12)
        run = tiny_engine.generate(prompt, "sd", **settings).wait()
        assert not run.result.error
        width = len(head) + len(tokens_outside(head, [encode_prompt(tiny_engine.tokenizer, prompt)[0]]))
        assert width > len(head)
        steps = sum(event.kind == "draft_step" for event in run.events)
        assert steps and sum(e.bytes for e in run.events if e.kind == "transfer") == 4 * width * steps


@pytest.mark.real
def test_rare_names_of_a_prompt_are_drafted_and_the_text_is_the_targets(engine):
    prompt = "Who wrote Wuthering Heights, and what happens to Heathcliff?"
    head = load_file(EMBEDDED_DRAFT / "model.safetensors")["head_ids"].tolist()
    own = set(tokens_outside(head, [encode_prompt(engine.tokenizer, prompt)[0]]))
    for settings in ({}, {"temperature": 0.7}):
        expected = engine.generate(prompt, "ar", max_new_tokens=48, reuse=0, **settings).wait().ids
        for method in ("sd", "ssd"):
            run = engine.generate(prompt, method, max_new_tokens=48, reuse=0, **settings).wait()
            assert run.ids == expected or not engine.info["exact"]
            accepted = {id for e in run.events if isinstance(e, Verify) for id in e.drafted[: e.accepted]}
            assert accepted & own

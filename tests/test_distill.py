"""Distillation: loss, head and layers by hand; the command from a random target to a draft that drafts."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from saguaro_core.__main__ import main
from saguaro_core.distillation import command
from saguaro_core.distillation.command import Options, run
from saguaro_core.distillation.loss import Labels, accepted_per_round, agreement, divergence, label, log_likelihoods
from saguaro_core.distillation.openings import scripts
from saguaro_core.distillation.selfplay import ANSWER, GIVEN, USER, Script, Writer, likeliest
from saguaro_core.distillation.student import frequent_tokens, load_student, spaced, write_student
from saguaro_core.distillation.training import Recipe, Trainer, batches
from saguaro_core.models import ModelError, Source, load_draft, load_target, resolve
from saguaro_core.text import eos_ids, load_tokenizer
from saguaro_core.transformers_model import TransformersModel
from saguaro_core.trunk import Trunk

from .tiny import tiny_draft, tiny_model

SMALL = {"rows": 8, "slots": 160, "head_rows": 200, "layers": 2}
FAST = Recipe(tokens=512, rate=3e-3, report_s=0.5, total_variation_from=0.5)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("target"), layers=4)


# -- loss -------------------------------------------------------------------------------------------------------------


def by_hand():
    """Two positions, a head of three tokens; the target's second likeliest token of the second one lies outside."""
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]))
    return logits, Labels(torch.tensor([[1, 0], [2, -1]]), torch.tensor([[0.6, 0.4], [0.7, 0.3]]))


def test_kl_by_hand():
    logits, labels = by_hand()
    expected = (0.6 * np.log(0.6 / 0.3) + 0.4 * np.log(0.4 / 0.5) + 0.7 * np.log(0.7 / 0.8)) / 2
    assert divergence(log_likelihoods(logits, labels), labels, 0.0).item() == pytest.approx(expected, abs=1e-6)


def test_total_variation_by_hand():
    logits, labels = by_hand()
    expected = ((0.6 - 0.3) + (0.4 - 0.4) + (0.7 - 0.7)) / 2
    assert divergence(log_likelihoods(logits, labels), labels, 1.0).item() == pytest.approx(expected, abs=1e-6)


def test_total_variation_prefers_the_higher_acceptance():
    """A step against its gradient raises the sum of min(p, q)."""
    logits, labels = by_hand()
    logits.requires_grad_()
    before = agreement(logits, log_likelihoods(logits, labels), labels)[1].mean()
    divergence(log_likelihoods(logits, labels), labels, 1.0).backward()
    moved = logits.detach() - 0.1 * logits.grad
    assert agreement(moved, log_likelihoods(moved, labels), labels)[1].mean() > before


def test_agreement_by_hand():
    logits, labels = by_hand()
    same, accepted = agreement(logits, log_likelihoods(logits, labels), labels)
    assert same.tolist() == [False, True]
    assert accepted.tolist() == pytest.approx([0.3 + 0.4, 0.7])


def test_labels_know_what_the_head_cannot_say():
    column_of = torch.tensor([-1, 0, -1, 1])
    labels = label(torch.tensor([[3, 2, 1]]), torch.tensor([[0.5, 0.3, 0.1]]), column_of)
    assert labels.columns.tolist() == [[1, -1, 0]]
    assert labels.inside[0].tolist() == pytest.approx([0.5, 0.0, 0.1])


@pytest.mark.parametrize(
    ("same", "rounds"),
    [("", 0), ("0", 1), ("1", 1), ("11", 1), ("110", 1), ("1101", 2), ("000", 3), ("111111", 2), ("11111", 2)],
)
def test_rounds_of_an_answer(same, rounds):
    """Lookahead 3: a round takes its right drafts, at most three, and one token of the target."""
    assert accepted_per_round([c == "1" for c in same], 3) == (len(same), rounds)


# -- student ----------------------------------------------------------------------------------------------------------


def test_layers_at_even_spacing():
    assert spaced(30, 4) == [0, 10, 20, 29]
    assert spaced(30, 1) == [0]
    assert spaced(4, 4) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="1 to 4 layers"):
        spaced(4, 5)


def test_head_takes_the_frequent_tokens_and_the_ends():
    counts = np.array([0, 5, 9, 1, 7, 0])
    assert frequent_tokens(counts, 3).tolist() == [1, 2, 4]
    assert frequent_tokens(counts, 3, always=frozenset({5})).tolist() == [2, 4, 5]
    assert frequent_tokens(counts, 99).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt_neox", "gemma2"])
def test_student_with_all_layers_is_the_target(kind, tmp_path):
    """Whatever the architecture, layers, norm and embeddings all end up in their places."""
    source = resolve(str(tiny_model(tmp_path / "target", kind, layers=3)), "target")
    model = load_target(source, "cpu", torch.float32)
    head_ids = torch.arange(0, 320, 2, dtype=torch.int32)
    write_student(model, 3, head_ids, tmp_path / "student")
    student, ids = load_draft(Source("student", str(tmp_path / "student")), source, "cpu", torch.float32)
    tokens = torch.arange(10)[None]
    expected, got = model(tokens).logits[..., ids], student(tokens).logits
    assert torch.allclose(got, expected, atol=0.05 * expected.std().item())  # bfloat16 on disk


# -- text -------------------------------------------------------------------------------------------------------------


def writer_of(folder, rows=4, slots=64):
    source = resolve(str(folder), "target")
    tokenizer = load_tokenizer(source)
    ends = eos_ids(source, tokenizer)
    return Writer(load_target(source, "cpu", torch.float32), ends, rows, slots, len(tokenizer)), tokenizer, ends


def test_conversations_follow_their_script_and_carry_the_targets_distribution(target):
    """Row by row against plain forwards of the target: also conversations that start late in a row."""
    writer, tokenizer, ends = writer_of(target)
    plain = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    script = Script(opening=(1, 40, 50), closing=(2, 60, 61), user=6, answer=9)
    conversations = writer.write(iter([script] * 9), torch.Generator().manual_seed(0))
    assert len(conversations) == 9
    for one in conversations:
        assert one.tokens[:3].tolist() == [1, 40, 50] and one.kinds[:3].tolist() == [GIVEN] * 3
        assert (one.kinds == USER).sum() <= 6 and (one.kinds == ANSWER).sum() <= 9
        answer = one.kinds == ANSWER
        start = int(np.flatnonzero(answer)[0])
        assert one.tokens[start - 3 : start].tolist() == [2, 60, 61]
        assert answer.sum() == 9 or one.tokens[-1] in ends or len(one.tokens) < 21
        with torch.inference_mode():
            logits = plain(torch.from_numpy(one.tokens).long()[None]).logits[0, :, : len(tokenizer)]
        for at in range(1, len(one.tokens)):
            p = logits[at - 1].softmax(-1)
            assert np.allclose(p[torch.from_numpy(one.ids[at]).long()], one.probs[at], atol=2e-3)
        # greedy answers are the likeliest tokens
        assert (one.tokens[answer] == one.ids[answer][:, 0]).all()


def test_text_of_a_target_without_a_chat_template(tmp_path):
    _, tokenizer, _ = writer_of(tiny_model(tmp_path, chat=False))
    script = next(scripts(tokenizer, 0))
    assert script.user == 0 and script.opening[0] == tokenizer.bos_token_id


def test_likeliest_are_the_top_of_the_softmax():
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    ids, probs = likeliest(logits)
    expected = logits.softmax(-1).topk(16)
    assert torch.equal(ids, expected.indices) and torch.allclose(probs, expected.values)


def test_batches_hold_every_conversation_once_within_the_limit(target):
    writer, *_ = writer_of(target)
    script = Script(opening=(1, 40), closing=(2, 60), user=9, answer=12)
    text = writer.write(iter([script] * 20), torch.Generator().manual_seed(1))
    got = list(batches(text, 64, np.random.default_rng(0)))
    assert sorted(id(one) for batch in got for one in batch) == sorted(map(id, text))
    assert all(len(batch) == 1 or len(batch) * max(len(one.tokens) for one in batch) <= 64 for batch in got)


def test_a_student_that_is_the_target_agrees_with_it(target, tmp_path):
    """Positions, labels and rounds fit together: all layers and the whole vocabulary leave nothing to learn."""
    writer, *_ = writer_of(target)
    source = resolve(str(target), "target")
    write_student(load_target(source, "cpu", torch.float32), 4, torch.arange(320), tmp_path / "student")
    student, head_ids = load_student(tmp_path / "student", source, "cpu")
    script = Script(opening=(1, 40, 50), closing=(2, 60, 61), user=5, answer=12)
    text = writer.write(iter([script] * 12), torch.Generator().manual_seed(2))
    measured = Trainer(student, head_ids, FAST, tmp_path / "state.pt").measure(text)
    assert measured.agreement > 0.7 and measured.tokens_per_round > 2.5  # not 1 and 6: weights are bfloat16 on disk
    kept = np.mean([one.probs[at].sum() for one in text for at in np.flatnonzero(one.kinds == ANSWER)])
    assert measured.acceptance == pytest.approx(kept, abs=0.1)


# -- command ----------------------------------------------------------------------------------------------------------


def test_end_to_end_with_resume(target, tmp_path):
    """Text, student, training, interruption, more training; the draft gets better, loads and drafts."""
    out, said = tmp_path / "draft", []
    options = Options(target=str(target), **SMALL)
    run(out, options, 0.1, recipe=FAST, say=said.append)
    first = json.loads((out / "training.json").read_text())["log"]
    run(out, options, 0.3, resume=True, recipe=FAST, say=said.append)
    log = [row for row in json.loads((out / "training.json").read_text())["log"] if row["what"] == "training"]
    first = [row for row in first if row["what"] == "training"]
    assert log[: len(first)] == first
    assert log[-1]["step"] > first[-1]["step"] > 0
    assert log[-1]["acceptance"] > log[0]["acceptance"] + 0.02
    assert f"--draft {out}" in said[-1] and any("tokens a round" in line for line in said)
    card = (out / "README.md").read_text()
    assert target.name in card and "licence applies" in card and f"{log[-1]['acceptance']:.3f}" in card

    model, head_ids = load_draft(resolve(str(out), "draft"), resolve(str(target), "target"), "cpu", torch.float32)
    assert len(head_ids) == 200
    draft = TransformersModel(model, head_ids, context=64)
    logits = Trunk(draft).extend([1, 40, 50], keep=1)
    assert logits.shape == (1, 200) and int(draft.ids[logits.argmax()]) in head_ids.tolist()


def test_interruption_leaves_what_resume_needs(target, tmp_path, monkeypatch):
    out, said = tmp_path / "draft", []
    options = Options(target=str(target), **SMALL)

    def interrupted(self, *args):
        self.progress.step += 1
        for weight in self.weights.values():
            weight.data += 0.01
        if self.progress.step == 3:
            raise KeyboardInterrupt
        return 0.0

    with monkeypatch.context() as patch:
        patch.setattr(command.Trainer, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(out, options, 0.02, recipe=FAST, say=said.append)
    assert "--resume" in said[-1]
    texts = set(out.glob("training/text-*"))
    left = torch.load(out / "training" / "state.pt", weights_only=True)
    run(out, options, 0.02, resume=True, recipe=replace(FAST, rate=0.0, last_rate=0.0), say=said.append)
    assert texts <= set(out.glob("training/text-*"))
    after = torch.load(out / "training" / "state.pt", weights_only=True)
    assert after["progress"]["step"] > left["progress"]["step"] == 3
    assert all(torch.equal(weight, left["weights"][name]) for name, weight in after["weights"].items())
    assert json.loads((out / "training.json").read_text())["log"][-1]["step"] == after["progress"]["step"]


def test_start_from_a_draft(target, tmp_path):
    init = tiny_draft(tmp_path / "init", layers=1, head_rows=64)
    run(tmp_path / "out", Options(target=str(target), init=str(init), rows=8, slots=160), 0.05, recipe=FAST)
    _, head_ids = load_draft(
        resolve(str(tmp_path / "out"), "draft"), resolve(str(target), "target"), "cpu", torch.float32
    )
    _, expected = load_draft(resolve(str(init), "draft"), resolve(str(target), "target"), "cpu", torch.float32)
    assert torch.equal(head_ids, expected)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--minutes", "0"], "--minutes must be more than 0"),
        (["--layers", "9"], "--layers must be 1 to 4"),
        (["--head-rows", "0"], "--head-rows"),
        (["--init", "nowhere/at/all"], "no such file or folder"),
        (["--resume"], "no distillation in"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_mistakes_are_one_line_with_status_2(target, tmp_path, capsys, extra, message):
    assert main(["distill", "--target", str(target), "--out", str(tmp_path / "out"), *extra]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_draft_with_its_own_embeddings_is_no_start(target, tmp_path, capsys):
    argv = ["distill", "--target", str(target), "--out", str(tmp_path / "out"), "--init", str(target)]
    assert main(argv) == 2
    assert "not a draft folder" in capsys.readouterr().err


def test_other_peoples_folders_are_left_alone(target, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ModelError, match="not empty"):
        run(tmp_path, Options(target=str(target)), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]

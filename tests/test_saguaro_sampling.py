"""Saguaro sampling: what the two forms do to a distribution, and how C is chosen from round to round."""

from __future__ import annotations

import pytest
import torch

from saguaro_core.rules import Token
from saguaro_core.saguaro_sampling import CHOICES, OnlineC, down_weighted, saguaro_sampling, second_choice
from saguaro_core.settings import make_settings


def rows(count=200, size=12, spread=2.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(count, size, generator=generator, dtype=torch.float64)).softmax(-1)


def geometric(q):
    return saguaro_sampling(q, second_choice(q))


FORMS = {"saguaro": lambda q: down_weighted(q, 3, 0.4), "geometric": geometric}


def test_down_weighted():
    q = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).double()
    expected = torch.tensor([[0.25, 0.1, 0.2, 0.1]]).double() / 0.65
    assert down_weighted(torch.tensor([[0.5, 0.25, 0.2, 0.05]]), 1, 0.0).tolist()[0] == pytest.approx([0, 0, 0.8, 0.2])
    got = down_weighted(q, 1, 0.5)
    assert sorted(got[0].tolist()) == pytest.approx(sorted(expected[0].tolist()))
    assert torch.allclose(down_weighted(q, 1, 1.0), q)
    assert down_weighted(q, 9, 0.5).tolist()[0] == pytest.approx(q[0].tolist())
    assert torch.equal(down_weighted(q, 9, 0.0), q)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_second_choice_is_the_second_of_two_different_draws(dtype):
    q = rows(20, 5).to(dtype)
    for row, got in zip(q.tolist(), second_choice(q).tolist(), strict=True):
        expected = [sum(row[x] * row[t] / (1 - row[x]) for x in range(5) if x != t) for t in range(5)]
        assert sum(expected) == pytest.approx(1, abs=1e-5)
        assert got == pytest.approx(expected, abs=1e-5)


def test_a_certain_draft_stays_as_it_is():
    certain = torch.tensor([[0.0, 1.0, 0.0], [1 - 1e-7, 1e-7, 0.0]])
    for form in FORMS.values():
        assert torch.isfinite(form(certain)).all()
        assert torch.equal(form(certain)[0], certain[0])
    assert second_choice(certain)[1].tolist() == pytest.approx([0, 1, 0], abs=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_distributions_over_the_same_tokens(name):
    q = rows()
    q[:, 3] = 0
    q = q / q.sum(-1, keepdim=True)
    got = FORMS[name](q)
    assert got.sum(-1).tolist() == pytest.approx([1] * len(q))
    assert torch.equal(got > 0, q > 0)


@pytest.mark.parametrize("name", FORMS)
def test_residuals_move_onto_likely_tokens(name):
    """For targets near the draft: less acceptance, more of the residual on the draft's four likeliest tokens, of which
    the cache of fan-out 3 holds all but the drafted one."""
    q = rows()
    p = (q.log() + 0.7 * torch.randn(q.shape, generator=torch.Generator().manual_seed(1))).softmax(-1)
    top = torch.zeros_like(q, dtype=torch.bool).scatter_(1, q.topk(4).indices, True)

    def acceptance(proposal):
        return torch.minimum(p, proposal).sum(-1).mean()

    def foreseen(proposal):
        residual = (p - proposal).clamp(min=0)
        return (residual * top).sum() / residual.sum()

    changed = FORMS[name](q)
    assert acceptance(changed) < acceptance(q)
    assert foreseen(changed) > foreseen(q) + 0.05


@pytest.mark.parametrize("c", [0.2, 0.5, 0.9])
def test_coverage_never_gets_worse_as_c_falls(c):
    """Accepted, or rejected with a correction among the weighed-down tokens: 1 minus the residual elsewhere."""
    q, p = rows(seed=2), rows(seed=3)
    top = torch.zeros_like(q, dtype=torch.bool).scatter_(1, q.topk(4).indices, True)

    def missed(proposal):
        return ((p - proposal).clamp(min=0) * ~top).sum(-1)

    assert (missed(down_weighted(q, 3, c)) <= missed(q) + 1e-12).all()


@pytest.mark.parametrize("name", FORMS)
def test_the_estimated_residual_has_the_order_of_the_draft(name):
    """Candidates are ranked by q: with the draft as the estimate of the target, the residual's order is the same."""
    q = rows()
    residual = (q - FORMS[name](q)).clamp(min=0)
    order = residual.gather(1, q.argsort(dim=-1, descending=True))
    assert (order[:, :-1] >= order[:, 1:] - 1e-12).all()
    assert (order[:, 0] > 0).all()


def test_the_rule_draws_from_what_it_sends():
    class Stream:
        def choose(self, probs):
            self.asked = probs
            return int(probs.argmax())

    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    for name, form in FORMS.items():
        c = 0.4 if name == "saguaro" else None
        rule = Token(make_settings("ssd", verification="token", temperature=0.7, proposal=name, saguaro_c=c))
        streams = [Stream() for _ in logits]
        _, q = rule.propose(logits, [0, 0, 0], streams, width=3)
        assert torch.allclose(q, form((logits / 0.7).softmax(-1)))
        assert all(torch.equal(stream.asked, row) for stream, row in zip(streams, q, strict=True))


def simulate(online, wait, rounds, model):
    """Rounds in which C gives `model(c)` = (chance of one more accepted token, hit rate); how often each C was used."""
    generator, used, hit = torch.Generator().manual_seed(4), dict.fromkeys(CHOICES, 0), False
    verified = None
    for _ in range(rounds):
        tokens = None
        prepared = online.c
        if verified is not None:
            chance, hits = model(verified)
            tokens = int((torch.rand(3, generator=generator) < chance).int().cumprod(0).sum())
            hit = bool(torch.rand((), generator=generator) < hits)
        online.outcome(tokens, hit, wait)
        verified = prepared if hit else online.c
        used[verified] += 1
    return used


@pytest.mark.parametrize("wait, model, best", [
    (3.0, lambda c: (0.6, 1.0 - 0.8 * c), CHOICES[-1]),  # waiting is dear, and C decides about it
    (0.05, lambda c: (0.3 + 0.6 * c, 0.7), CHOICES[0]),  # acceptance decides
])  # fmt: skip
def test_c_goes_where_tokens_come_faster(wait, model, best):
    used = simulate(OnlineC(), wait, 400, model)
    assert max(used, key=used.get) == best and used[best] > 200
    assert min(used.values()) > 10


def test_c_is_credited_to_the_speculation_that_was_drawn_with_it():
    online = OnlineC()
    online.outcome(None, False, 0.3)  # a miss: drafted just in time, with the C chosen now
    first = online.c
    online.outcome(2, True, 0.3)  # that speculation gave 3 tokens; the next one was drawn in the tree, with `first`
    assert online._seen[first] == [1, 3, 0]
    second = online.c
    assert second != first
    online.outcome(0, False, 0.3)
    assert online._seen[first] == [2, 4, 1] and online._seen[second] == [0, 0, 0]


def test_settings():
    chosen = make_settings("ssd+hsd", temperature=1.0, proposal="saguaro")
    assert chosen.verification == "block" and chosen.saguaro_c == "auto"
    assert (
        make_settings("ssd", temperature=1.0, verification="token", proposal="saguaro", saguaro_c=0.5).saguaro_c == 0.5
    )
    for method in ("ar", "sd", "hsd"):  # no cache to aim at
        assert make_settings(method, temperature=1.0, proposal="geometric").proposal == "plain"
    assert make_settings("hsd").verification == "greedy"
    assert make_settings("hsd", temperature=0.5, verification="coupled").verification == "block"


@pytest.mark.parametrize("wrong, words", [
    ({"proposal": "geometric"}, "token or block"),
    ({"proposal": "saguaro", "temperature": 1.0}, "token or block"),
    ({"proposal": "best"}, "unknown proposal"),
    ({"verification": "token", "temperature": 1.0, "saguaro_c": 0.5}, "belongs to proposal saguaro"),
    ({"verification": "token", "temperature": 1.0, "proposal": "saguaro", "saguaro_c": 1.5}, "between 0 and 1"),
    ({"verification": "token", "temperature": 1.0, "proposal": "saguaro", "saguaro_c": "some"}, "between 0 and 1"),
    ({"verification": "block"}, "does not fit temperature 0"),
    ({"fallback": "hope"}, "unknown fallback"),
])  # fmt: skip
def test_settings_that_make_no_sense(wrong, words):
    with pytest.raises(ValueError, match=words):
        make_settings("ssd", **wrong)

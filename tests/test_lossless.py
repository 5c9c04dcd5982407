"""Losslessness, proved by enumeration on toy models through the shipped round, tree, cache, rule and fallback."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from saguaro_core import decoding, rules, sampling
from saguaro_core.drafting import Drafter
from saguaro_core.events import Fallback, Lookup, Verify
from saguaro_core.fallback import MissInfo
from saguaro_core.noise import Noise
from saguaro_core.sampling import Streams
from saguaro_core.trunk import Trunk
from saguaro_core.verification import match

from .toy import TabularModel, enumerate_law, run, total_variation

EOS = frozenset({2})
TOKEN = dict(eos=EOS, rounds=2, k=2, verification="token", temperature=1.0)
HITS = dict(fan_out=(2, 2, 3), patience=2)  # with three tokens, every outcome is a candidate
MISSES = dict(fan_out=(1, 1, 1), patience=2, steps=0)  # interrupted before the first step: no branch is ever ready
MIXED = dict(fan_out=(1, 1, 1), patience=1)
CUT_SHORT = dict(fan_out=(1, 2, 1), patience=2, steps=1)  # the outcome arrives after one of two steps


def lookups(events):
    return [event.hit for event in events if isinstance(event, Lookup)]


def test_the_forced_cases_are_what_they_say():
    def hits(**case):
        return lookups(run("ssd", TabularModel(1), TabularModel(2), k=2, max_new_tokens=16, **case)[1])[1:]

    assert all(hits(**HITS)) and not any(hits(**MISSES))
    assert len(set(hits(**MIXED))) == 2 and len(set(hits(**CUT_SHORT))) == 2


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("k", [1, 2, 3])
def test_greedy_is_autoregressive(seed, k):
    target, draft = TabularModel(seed), TabularModel(seed + 100)
    expected, _ = run("ar", target, draft, max_new_tokens=24)
    assert len(expected) == 24
    for method, case in [
        ("sd", {}),
        ("ssd", {}),
        ("ssd", {"steps": 0}),
        ("ssd", {"steps": 1, "patience": k}),
        ("ssd", {"fan_out": 2, "patience": k}),
    ]:
        assert run(method, target, draft, max_new_tokens=24, k=k, **case)[0] == expected


@pytest.mark.parametrize("seed", range(10))
def test_hierarchical_verification_of_greedy_text_is_autoregressive(seed):
    target, draft = TabularModel(seed), TabularModel(seed + 100)
    expected, _ = run("ar", target, draft, max_new_tokens=24)
    for method, case in [("hsd", {"k": 3}), ("ssd+hsd", {}), ("ssd+hsd", {"steps": 1, "fallback": "partial_accept"})]:
        output, events = run(method, target, draft, max_new_tokens=24, **case)
        assert output == expected
        assert (method == "ssd+hsd") == any(isinstance(event, Lookup) for event in events)


@pytest.mark.parametrize("limit", range(1, 12))
def test_what_stays_for_the_next_turn_does_not_depend_on_the_method(limit):
    """A run may end in the middle of a speculation; the keys and values it leaves must be those autoregressive decoding
    leaves, or the next turn would read other tokens anew than another method does."""
    target, draft = TabularModel(5), TabularModel(5)
    for method in ("ar", "sd", "ssd"):
        trunks = Trunk(target), Trunk(draft)
        output, _ = run(method, target, draft, trunks=trunks, max_new_tokens=limit, k=3, eos=EOS)
        assert trunks[0].tokens == [0, 1, *output[:-1]]


def test_ar_follows_the_target():
    law = enumerate_law("ar", eos=EOS, rounds=2, verification="token", temperature=1.0)
    assert total_variation(law, EOS) < 1e-12


@pytest.mark.parametrize("case", [HITS, MISSES, MIXED, CUT_SHORT], ids=["hits", "misses", "mixed", "cut short"])
def test_token_follows_the_target(case):
    assert total_variation(enumerate_law(**TOKEN, **case), EOS) < 1e-12


def test_token_follows_the_target_in_sd():
    assert total_variation(enumerate_law("sd", **TOKEN), EOS) < 1e-12


# Two tokens, two rounds: every rule with every proposal and every way to go on after a miss. Where a fork has fan-out
# 0, proposal "saguaro" weighs down the likelier of the two.

TWO = dict(ids=(0, 1), rounds=2, k=2, temperature=1.0)
PROPOSALS = {
    "plain": {},
    "saguaro": dict(proposal="saguaro", saguaro_c=0.3),
    "C by itself": dict(proposal="saguaro"),
    "geometric": dict(proposal="geometric"),
}
AFTER = {
    "hits": dict(fan_out=(1, 1, 2), patience=2),
    "misses": dict(fan_out=(1, 0, 1), patience=1, steps=0),
    "mixed": dict(fan_out=(1, 0, 1), patience=2),
    "cut short": dict(fan_out=(1, 0, 1), patience=2, steps=1),
    "no draft": dict(fan_out=(1, 0, 1), fallback="partial_accept"),
    "what there is": dict(fan_out=(1, 0, 1), steps=1, patience=2, fallback="partial_accept"),
    "in a batch": dict(fan_out=(1, 0, 1), patience=2, beside=[(1,), (0, 1, 0, 0)]),
    "one by one": dict(fan_out=(1, 0, 1), patience=2, beside=[(1,)], fallback="immediate_retry"),
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("method", ["ssd", "ssd+hsd"])
def test_every_combination_follows_the_target(method, proposal, after):
    law = enumerate_law(method, verification="token", **TWO, **PROPOSALS[proposal], **AFTER[after])
    assert len(law) > 2 and total_variation(law, (), ids=(0, 1)) < 1e-12


def test_the_combinations_are_what_they_say():
    def play(**case):
        return run("ssd", TabularModel(1), TabularModel(2), k=2, max_new_tokens=30, **case)[1]

    assert len(set(lookups(play(**AFTER["no draft"])))) == 2
    used = {name: {e.strategy for e in play(**case) if isinstance(e, Fallback)} for name, case in AFTER.items()}
    assert used["misses"] == used["mixed"] == used["one by one"] == {"immediate_retry"}
    assert used["no draft"] == {"partial_accept"} and used["in a batch"] == {"batched_retry"}
    lengths = {len(e.drafted) for e in play(**AFTER["what there is"]) if isinstance(e, Verify)}
    assert lengths >= {0, 1}


@pytest.mark.parametrize("method", ["ssd", "ssd+hsd"])
def test_a_fallback_chosen_as_it_goes_follows_the_target(method, monkeypatch):
    """Whether to wait may depend on anything but the tokens that it would bring."""

    def measured(self, short):
        return MissInfo(gain=len(short[0][0].ids) % 2, step_s=1.0, rate=0.5)

    monkeypatch.setattr(Drafter, "_miss_info", measured)
    case = dict(fan_out=(1, 0, 1), patience=1, fallback="auto")
    law = enumerate_law(method, verification="token", proposal="geometric", **TWO, **case)
    assert total_variation(law, (), ids=(0, 1)) < 1e-12
    _, events = run("ssd", TabularModel(1), TabularModel(2), max_new_tokens=30, k=2, **case)
    assert {e.strategy for e in events if isinstance(e, Fallback)} == {"immediate_retry", "partial_accept"}


def test_three_tokens_and_the_end_of_the_text():
    law = enumerate_law("ssd+hsd", eos=EOS, rounds=2, k=2, temperature=1.0, fan_out=(1, 1, 1), patience=1)
    assert total_variation(law, EOS) < 1e-12
    law = enumerate_law("hsd", eos=EOS, rounds=1, k=3, temperature=1.0)
    assert total_variation(law, EOS) < 1e-12


@pytest.mark.parametrize("method", ["ssd", "ssd+hsd"])
def test_saguaro_sampling_of_three_tokens(method):
    case = dict(eos=EOS, rounds=1, k=3, temperature=1.0, verification="token", fan_out=(1, 1, 1, 1))
    law = enumerate_law(method, **case, **PROPOSALS["saguaro"])
    assert total_variation(law, EOS) < 1e-12


def test_hierarchical_verification_accepts_more():
    def accepted(method):
        total = 0
        for seed in range(120):
            _, events = run(method, TabularModel(1), TabularModel(2), verification="token", k=4, rounds=4,
                            max_new_tokens=40, temperature=1.0, seed=seed)  # fmt: skip
            total += sum(event.accepted for event in events if isinstance(event, Verify))
        return total

    assert accepted("hsd") > 1.02 * accepted("sd")


def test_branches_not_looked_up_cannot_change_the_output():
    first, last = (enumerate_law(**TOKEN, **MIXED, last=last) for last in (False, True))
    assert first.keys() == last.keys()
    assert max(abs(first[output] - last[output]) for output in first) < 1e-12


def test_top_k_and_top_p_are_part_of_the_law():
    law = enumerate_law("sd", **(TOKEN | dict(rounds=1, top_k=2)))
    outputs = {output[0] for output in law}
    expected = TabularModel(1).logits((0, 1)).topk(2).indices.tolist()
    assert outputs == set(expected)


# ---------------------------------------------------------------- negative controls: the proof must notice a mistake


def test_a_wrong_q_is_noticed(monkeypatch):
    shipped = decoding.over_target_ids
    monkeypatch.setattr(decoding, "over_target_ids", lambda q, *rest: shipped(q.flip(-1), *rest))
    assert total_variation(enumerate_law("sd", **(TOKEN | dict(rounds=1))), EOS) > 1e-3


@pytest.mark.parametrize("method", ["ssd", "ssd+hsd"])
@pytest.mark.parametrize("proposal", ["saguaro", "geometric"])
def test_verifying_with_the_distribution_not_drawn_from_is_noticed(method, proposal, monkeypatch):
    """The trap of Saguaro sampling: drawing from q' and verifying with q."""
    shipped = rules.Token.propose

    def propose(self, logits, positions, streams, width=0):
        return shipped(self, logits, positions, streams, width)[0], self._probs(logits)

    monkeypatch.setattr(rules.Token, "propose", propose)
    law = enumerate_law(method, verification="token", **TWO, **PROPOSALS[proposal], **AFTER["mixed"])
    assert total_variation(law, (), ids=(0, 1)) > 1e-3


def test_a_proposal_that_looks_at_the_token_drawn_is_noticed(monkeypatch):
    """Weighing down the tokens that were not drawn: no longer the distribution of the draw."""
    shipped = rules.Token.propose

    def propose(self, logits, positions, streams, width=0):
        columns, q = shipped(self, logits, positions, streams, width)
        sent = q * 0.5
        sent[range(len(columns)), columns] *= 2
        return columns, sent / sent.sum(-1, keepdim=True)

    monkeypatch.setattr(rules.Token, "propose", propose)
    assert total_variation(enumerate_law(verification="token", **TWO, **AFTER["hits"]), (), ids=(0, 1)) > 1e-3


def test_greedy_match_on_misses_is_noticed(monkeypatch):
    def matched(p, q, drafted, choose):
        return match([*p[: len(drafted)].argmax(-1).tolist(), choose(p[-1])], drafted)

    monkeypatch.setattr(rules, "speculative_sampling", matched)
    assert total_variation(enumerate_law(**(TOKEN | dict(rounds=1)), **MISSES), EOS) > 1e-3


def second_token_p_value(monkeypatch=None) -> float:
    """Chi-square of the second token of 3,000 real-stream SD runs against the target's law, given the first."""
    if monkeypatch:
        monkeypatch.setattr(sampling.Streams, "target", Streams.just_in_time)
    target, draft = TabularModel(1, spread=2.0), TabularModel(2, spread=2.0)
    counts = np.zeros((3, 3))
    for seed in range(3000):
        output, _ = run(
            "sd", target, draft, k=1, max_new_tokens=3, rounds=1, verification="token", temperature=1.0, seed=seed
        )
        counts[output[0], output[1]] += 1
    law = np.array([target.logits((0, 1, first)).softmax(-1).tolist() for first in range(3)])
    return chi_square_p(counts, law * counts.sum(1, keepdims=True), degrees=6)


def chi_square_p(counts, expected, degrees) -> float:
    """Upper tail of the chi-square distribution at the statistic of `counts`."""
    mask = expected > 0
    statistic = ((counts - expected)[mask] ** 2 / expected[mask]).sum()
    return float(1 - torch.special.gammainc(torch.tensor(degrees / 2), torch.tensor(statistic / 2)))


def test_shared_randomness_is_noticed(monkeypatch):
    assert second_token_p_value() > 1e-4
    assert second_token_p_value(monkeypatch) < 1e-9


# ------------------------------------------------------------------------------------------------- coupled


def test_coupled_is_autoregressive_under_the_same_noise():
    """10,000 seeds; the cases take turns."""
    target, draft = TabularModel(1), TabularModel(2)
    cases = [("sd", {}), ("ssd", HITS), ("ssd", MISSES), ("ssd", CUT_SHORT)]
    for seed in range(10_000):
        method, case = cases[seed % 4]
        common = dict(max_new_tokens=5, temperature=1.0, seed=seed, eos=EOS)
        assert run(method, target, draft, k=2, **common, **case)[0] == run("ar", target, draft, **common)[0]


def test_coupled_noise_draws_from_p():
    """First token and second token (given the first) of the race follow p; chi-square over 30,000 seeds."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05]).double()
    draws = np.array(
        [(p.log() + Noise(seed, torch.arange(4)).rows([7, 8])).argmax(-1).tolist() for seed in range(30_000)]
    )
    for column in range(2):
        counts = np.bincount(draws[:, column], minlength=4)
        assert chi_square_p(counts, p.numpy() * len(draws), degrees=3) > 1e-4
    joint = np.zeros((4, 4))
    np.add.at(joint, (draws[:, 0], draws[:, 1]), 1)
    assert chi_square_p(joint, np.outer(p, p) * len(draws), degrees=15) > 1e-4


def test_coupled_noise_is_uncorrelated():
    """Over positions, tokens and seeds: correlations of 50,000 draws stay within 5 standard errors."""
    ids = torch.arange(50_000)
    rows = [Noise(seed, ids).rows([position])[0] for seed, position in [(0, 5), (0, 6), (1, 5), (0, 5 + 2**20)]]
    rows.append(rows[0].roll(1))
    correlations = torch.corrcoef(torch.stack(rows)).fill_diagonal_(0)
    assert correlations.abs().max() < 5 / len(ids) ** 0.5
    uniform = (-(-rows[0]).exp()).exp()
    assert chi_square_p(np.histogram(uniform, 64, (0, 1))[0], np.full(64, len(ids) / 64), degrees=63) > 1e-4


def test_coupled_guesses_the_bonus_better_than_independent_draws():
    """With draft equal to target the race makes every outcome foreseeable: all accepted, first candidate right."""
    model = TabularModel(1)
    _, events = run("ssd", model, model, k=2, max_new_tokens=32, temperature=1.0, seed=3, fan_out=1)
    verifies = [event for event in events if isinstance(event, Verify)]
    assert all(event.accepted == len(event.drafted) for event in verifies)
    assert all(lookups(events))

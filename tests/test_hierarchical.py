"""Hierarchical verification: the law of the shipped code, walked exactly, against the paper's definitions.

A table holds random next-token distributions p (target) and q (draft) for every prefix of up to K tokens. The output of
one round is completed by the target to K + 1 tokens, so its law can be compared with the target's on every sequence.
"""

from __future__ import annotations

import importlib.util
import inspect
import tempfile
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
import torch

from saguaro_core import hierarchical
from saguaro_core.hierarchical import hierarchical_verification, law
from saguaro_core.sampling import Stream
from saguaro_core.verification import match

from .test_lossless import chi_square_p

SHAPES = [(3, 2), (3, 3), (3, 4), (4, 2), (4, 3), (5, 2), (5, 3), (5, 4)]  # (V, K)
KINDS = ["full", "zeros in p", "zeros in q", "zeros in both", "one-hot p", "one-hot q", "p = q", "reversed"]


def truncated(probs, keep):
    """Everything outside the `keep` likeliest tokens at 0."""
    probs = probs.masked_fill(probs < probs.topk(keep, dim=-1).values[..., -1:], 0)
    return probs / probs.sum(-1, keepdim=True)


def tables(size, k, kind="full", seed=0, noise=1.2):
    """p and q by prefix length: p[t] and q[t] are [size ** t, size]; prefixes count in base `size`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(t):
        return torch.randn(size**t, size, generator=generator, dtype=torch.float64)

    logits = [1.5 * normal(t) for t in range(k + 1)]
    p = [rows.softmax(-1) for rows in logits]
    q = [(rows + noise * normal(t)).softmax(-1) for t, rows in enumerate(logits)][:k]
    if kind in ("zeros in p", "zeros in both", "one-hot p"):
        p = [truncated(rows, 1 if kind == "one-hot p" else 2) for rows in p]
    if kind in ("zeros in q", "zeros in both", "one-hot q"):
        q = [truncated(rows, 1 if kind == "one-hot q" else 2) for rows in q]
    if kind == "p = q":
        q = p[:k]
    if kind == "reversed":
        q = [rows.flip(-1) for rows in p[:k]]
    return p, q


def drafts(p, q):
    """All drafts that can be drawn, as a batch: `(p [N, K + 1, V], q [N, K, V], drafted [N, K], Q [N])`."""
    k, size = len(q), p[0].shape[-1]
    drafted = torch.tensor(list(product(range(size), repeat=k)))
    place = [torch.zeros(len(drafted), dtype=torch.int64)]
    for t in range(k):
        place.append(place[-1] * size + drafted[:, t])
    rows_p = torch.stack([p[t][place[t]] for t in range(k + 1)], dim=1)
    rows_q = torch.stack([q[t][place[t]] for t in range(k)], dim=1)
    weight = rows_q.gather(2, drafted[..., None]).squeeze(2).prod(1)
    possible = weight > 0
    return rows_p[possible], rows_q[possible], drafted[possible], weight[possible]


def lengths(drafted):
    return torch.full((len(drafted),), drafted.shape[1])


def completed(p, stopped):
    """The law over K + 1 tokens of mass `stopped[t]` [size ** (t + 1)] that goes on as the target after t + 1 tokens."""
    mass = torch.zeros_like(stopped[0])
    for t, own in enumerate(stopped):
        mass = mass + own
        if t + 1 < len(p):
            mass = (mass[:, None] * p[t + 1]).flatten()
    return mass


def target_law(p):
    return completed(p, [p[0][0], *[torch.zeros(rows.numel(), dtype=rows.dtype) for rows in p[1:]]])


def output_law(p, q, law=law):
    """The law of one round's output, completed by the target, through `law`."""
    rows_p, rows_q, drafted, weight = drafts(p, q)
    accepted, residual = law(rows_p, rows_q, drafted, lengths(drafted))
    mass = residual.sum(-1, keepdim=True)
    following = torch.where(mass > 0, residual / mass, rows_p)
    size, stopped = p[0].shape[-1], []
    place = torch.zeros(len(drafted), dtype=torch.int64)
    for t in range(len(p)):
        emitted = (weight * accepted[:, t])[:, None] * following[:, t]
        into = torch.zeros(size**t, size, dtype=emitted.dtype)
        stopped.append(into.index_add_(0, place, emitted).flatten())
        if t < len(q):
            place = place * size + drafted[:, t]
    return completed(p, stopped)


def total_variation(p, q, law=law):
    return float((output_law(p, q, law) - target_law(p)).abs().sum() / 2)


# -------------------------------------------------------------------------------------------------- the law, exactly


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size, k", SHAPES)
def test_the_output_follows_the_target(size, k, kind):
    for seed in range(2):
        assert total_variation(*tables(size, k, kind, seed)) < 1e-14


def definitions(p, q, x):
    """Definitions 2-6 and Eqs. 16-20 of the paper for one draft, as joint masses in exact arithmetic:
    `(accepted [K + 1], residual [K + 1][V])`. Nothing is shared with the shipped form."""
    k, size = len(x), len(p[0])
    joint_p, joint_q = [Fraction(1)], [Fraction(1)]
    for t in range(k):
        joint_p.append(joint_p[-1] * p[t][x[t]])
        joint_q.append(joint_q[-1] * q[t][x[t]])
    r = [a / b for a, b in zip(joint_p, joint_q, strict=True)]

    def scale(t):
        """min(r_m, 1) / r_m of the children of x_1..x_t, whose proper prefixes are those up to t (Defs. 4 and 5)."""
        best = max([Fraction(1), *r[1 : t + 1]])
        return 1 / best

    def children(t):
        return [(scale(t) * joint_p[t] * p[t][v], joint_q[t] * q[t][v]) for v in range(size)]

    h = [Fraction(1)]
    for t in range(1, k):
        deficit = sum(max(a - b, Fraction(0)) for a, b in children(t))
        excess = sum(max(b - a, Fraction(0)) for a, b in children(t))
        h.append(deficit / excess if excess else Fraction(1))
    if k:
        h.append(min(scale(k - 1) * r[k], Fraction(1)))
    accepted, rest = [Fraction(0)] * (k + 1), Fraction(1)
    for t in range(k, -1, -1):
        accepted[t], rest = rest * h[t], rest * (1 - h[t])
    residual = [[max(a - b, Fraction(0)) for a, b in children(t)] for t in range(k)]
    return accepted, [*residual, p[k]]


def fractions(rows):
    """Distributions of rational numbers near `rows`, which sum to exactly 1."""
    parts = [[int(value * 10**6) for value in row] for row in rows.tolist()]
    return [[Fraction(part, sum(row)) for part in row] for row in parts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size, k", [(3, 2), (3, 3), (4, 3)])
def test_the_shipped_form_is_the_papers(size, k, kind):
    """Equal on every draft; and the definitions themselves give a total variation of exactly 0."""
    exact = [[fractions(rows) for rows in table] for table in tables(size, k, kind, seed=7)]
    p, q = (
        [torch.tensor([[float(v) for v in row] for row in rows], dtype=torch.float64) for rows in table]
        for table in exact
    )
    rows_p, rows_q, drafted, _ = drafts(p, q)
    accepted, residual = law(rows_p, rows_q, drafted, lengths(drafted))
    output = {}
    for n, x in enumerate(drafted.tolist()):
        place = [sum(token * size ** (t - 1 - i) for i, token in enumerate(x[:t])) for t in range(k + 1)]
        path_p = [exact[0][t][place[t]] for t in range(k + 1)]
        path_q = [exact[1][t][place[t]] for t in range(k)]
        taus, following = definitions(path_p, path_q, x)
        assert accepted[n].tolist() == pytest.approx([float(value) for value in taus], abs=1e-12)
        weight = Fraction(1)
        for t in range(k):
            weight *= path_q[t][x[t]]
        for t, tau in enumerate(taus):
            mass = sum(following[t])
            if tau == 0 or mass == 0:
                continue
            shipped = residual[n, t] / residual[n, t].sum()
            assert shipped.tolist() == pytest.approx([float(value / mass) for value in following[t]], abs=1e-9)
            for v, value in enumerate(following[t]):
                key = (*x[:t], v)
                output[key] = output.get(key, 0) + weight * tau * value / mass

    def probability(tokens):
        place, value = 0, Fraction(1)
        for t, token in enumerate(tokens):
            value, place = value * exact[0][t][place][token], place * size + token
        return value

    for tokens in product(range(size), repeat=k + 1):
        got = sum(
            output.get(tokens[: t + 1], 0) * (probability(tokens) / probability(tokens[: t + 1]))
            for t in range(k + 1)
            if probability(tokens[: t + 1])
        )
        assert got == probability(tokens)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size, k", SHAPES)
def test_no_lossless_rule_for_one_draft_accepts_more(size, k, kind):
    """The bound: a prefix is accepted at most as often as it is drafted, and at most as often as the target goes on
    with it. Token-by-token verification stays at or below."""
    rows_p, rows_q, drafted, weight = drafts(*tables(size, k, kind))
    accepted, _ = law(rows_p, rows_q, drafted, lengths(drafted))
    expected = float((weight[:, None] * accepted * torch.arange(k + 1)).sum())
    ratio = (rows_p[:, :-1].gather(2, drafted[..., None]) / rows_q.gather(2, drafted[..., None])).squeeze(2)
    bound, share = 0.0, torch.ones(len(drafted), dtype=torch.float64)
    for t in range(k):
        share = torch.minimum(torch.ones_like(share), share * ratio[:, t])
        bound += float((weight * share).sum())
    token_by_token = float((weight[:, None] * ratio.clamp(max=1).cumprod(1)).sum())
    assert expected == pytest.approx(bound, abs=1e-12)
    assert expected >= token_by_token - 1e-12
    if kind in ("one-hot p", "one-hot q", "p = q"):
        assert expected == pytest.approx(token_by_token, abs=1e-12)
    elif kind == "full":
        assert expected > token_by_token * 1.005


def test_the_toy_example():
    """p = (1/3, 2/3), q = (2/3, 1/3), K = 2: 11/9 accepted tokens, where token-by-token verification accepts 10/9."""
    p, q = torch.tensor([1 / 3, 2 / 3]).double(), torch.tensor([2 / 3, 1 / 3]).double()
    tables = [p.expand(2**t, 2) for t in range(3)], [q.expand(2**t, 2) for t in range(2)]
    rows_p, rows_q, drafted, weight = drafts(*tables)
    accepted, _ = law(rows_p, rows_q, drafted, lengths(drafted))
    assert float((weight[:, None] * accepted * torch.arange(3)).sum()) == pytest.approx(11 / 9)
    ratio = (p / q)[drafted].clamp(max=1).cumprod(1)
    assert float((weight[:, None] * ratio).sum()) == pytest.approx(10 / 9)


def test_float32_is_enough():
    """V = 32,000, K = 16: joint probabilities would underflow; b and h do not move."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(8, 17, 32_000, generator=generator, dtype=torch.float64)
    p = logits.softmax(-1)
    q = (logits[:, :-1] + 0.3 * torch.randn(8, 16, 32_000, generator=generator, dtype=torch.float64)).softmax(-1)
    drafted = q.flatten(0, 1).multinomial(1, generator=generator).reshape(8, 16)
    exact, residual = law(p, q, drafted, lengths(drafted))
    single, residual32 = law(p.float(), q.float(), drafted, lengths(drafted))
    assert (exact - single).abs().max() < 1e-5
    assert (residual - residual32).abs().max() < 1e-5
    assert ((exact * torch.arange(17)).sum(-1) > 1).all()


# ------------------------------------------------------------------------ wrong variants, which the test must notice


def mutant(*changes):
    """`hierarchical.law` with lines of its own source changed."""
    source = inspect.getsource(hierarchical)
    for old, new in changes:
        assert source.count(old) == 1, f"no longer one place: {old}"
        source = source.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("saguaro_core.mutant", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.law


UNCAPPED = (
    "(p[:, :-1].gather(2, drafted[..., None]) / q.gather(2, drafted[..., None])).squeeze(2)"
    ".cumprod(1)[:, -1:].clamp(max=1)"
)
LAST_GAIN = """
    gains = (ratios.squeeze(2) > 0) & (prefix > 0)
    peak = torch.zeros_like(prefix)
    for t in range(1, prefix.shape[1]):
        peak[:, t] = torch.where(gains[:, t - 1], prefix[:, t - 1], peak[:, t - 1])
    peak = torch.maximum(peak, torch.where(prefix > peak, prefix, peak))"""
MUTANTS = {
    "the full draft accepted with its uncapped ratio": [("torch.where(last, b, h)", f"torch.where(last, {UNCAPPED}, h)")],
    "no prefix ratio inside the rows": [
        ("share = b.masked_fill(last, 1)", "share = torch.ones_like(b)"),
        ("spare / (spare + 1 - b), 1)", "torch.ones_like(b), 1)"),
    ],
    "no cap": [
        ("(prefix - peak).exp()", "prefix.exp()"),
        ("h[:, 0] = 1", "h = h.nan_to_num(1).clamp(0, 1); h[:, 0] = 1"),
    ],
    "cap at the last gain": [("    peak = prefix.clamp(min=0).cummax(1).values", LAST_GAIN)],
    "the token-by-token residual": [("dim=1), residual", "dim=1), (p - owed).clamp(min=0)")],
    "sums over the draft's support": [("residual.sum(-1)", "(residual * (owed > 0)).sum(-1)")],
    "the row before": [
        ("residual.sum(-1)", "(b[..., None] * p.roll(1, 1) - owed.roll(1, 1)).clamp(min=0).sum(-1)"),
    ],
}  # fmt: skip


def test_the_source_changes_keep_the_law_where_nothing_changes():
    assert total_variation(*tables(4, 3), law=mutant()) < 1e-14


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_variant_is_noticed(name):
    """Where only truncated distributions can show it, on those."""
    wrong = mutant(*MUTANTS[name])
    kind = "zeros in q" if name == "sums over the draft's support" else "full"
    assert max(total_variation(*tables(3, 4, kind, seed), law=wrong) for seed in range(10)) > 1e-3


def test_the_last_token_before_the_scan_is_noticed():
    """A forward scan that stops at the first rejection instead of keeping the longest accepted prefix."""

    def forward(p, q, drafted, lengths):
        accepted, residual = law(p, q, drafted, lengths)
        above = accepted.flip(1).cumsum(1).flip(1)
        h = torch.where(1 - above + accepted > 1e-12, accepted / (1 - above + accepted), 0)
        h[:, 0] = 1
        passed = torch.cat((h[:, 1:], torch.zeros_like(h[:, :1])), dim=1)
        return h.cumprod(1) * (1 - passed), residual

    assert total_variation(*tables(4, 3), law=forward) > 1e-3


# ---------------------------------------------------------------------------------------------- the batched sampler


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sampled_outcomes_follow_the_law(dtype):
    """Accepted lengths and next tokens of 6,000 real draws of one draft, in batches."""
    p, q = ([rows.to(dtype) for rows in table] for table in tables(4, 3, seed=3))
    rows_p, rows_q, drafted, weight = drafts(p, q)
    n = int(weight.argmax())
    accepted, residual = law(*(x[n : n + 1].double() for x in (rows_p, rows_q)), drafted[n : n + 1], torch.tensor([3]))
    following = residual[0] / residual[0].sum(-1, keepdim=True).clamp(min=1e-30)
    expected = (accepted[0][:, None] * following).numpy()
    counts, streams = torch.zeros(4, 4), [Stream(seed).choose for seed in range(60)]
    for _ in range(100):
        outcomes = hierarchical_verification(
            rows_p[n].expand(60, -1, -1), rows_q[n].expand(60, -1, -1), [drafted[n].tolist()] * 60, streams
        )
        for outcome in outcomes:
            assert outcome.tokens == (*drafted[n, : outcome.k].tolist(), outcome.bonus)
            counts[outcome.k, outcome.bonus] += 1
    assert chi_square_p(counts.numpy(), 6000 * expected, degrees=int((expected > 0).sum()) - 1) > 1e-4
    assert not counts.numpy()[expected == 0].any()


class Draws:
    """Remembers what it was asked to draw from; always takes the likeliest."""

    def __init__(self):
        self.asked = []

    def __call__(self, probs):
        self.asked.append(probs.tolist())
        return int(probs.argmax())


def test_speculations_of_different_lengths_are_verified_as_if_alone():
    rows_p, rows_q, drafted, _ = drafts(*tables(4, 3, seed=5))
    generator = torch.Generator().manual_seed(1)
    together = [drafted[n, : int(torch.randint(0, 4, (), generator=generator))].tolist() for n in range(len(drafted))]
    assert {len(tokens) for tokens in together} == {0, 1, 2, 3}
    noise = rows_q.clone()
    for n, tokens in enumerate(together):
        noise[n, len(tokens) :] = 0  # what a padded batch holds there
    draws = [Draws() for _ in together]
    outcomes = hierarchical_verification(rows_p, noise, together, draws)
    for n, tokens in enumerate(together):
        alone, k = Draws(), len(tokens)
        (outcome,) = hierarchical_verification(rows_p[n : n + 1, : k + 1], rows_q[n : n + 1, :k], [tokens], [alone])
        assert outcome == outcomes[n]
        accepted, following = draws[n].asked
        assert accepted[: k + 1] == pytest.approx(alone.asked[0], abs=1e-15) and not any(accepted[k + 1 :])
        assert following == pytest.approx(alone.asked[1], abs=1e-15)


def test_a_token_the_target_never_says_is_never_accepted():
    p = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    q = torch.tensor([[[0.9, 0.1]]])
    accepted, residual = law(p, q, torch.tensor([[0]]), torch.tensor([1]))
    assert accepted.tolist() == [[1.0, 0.0]] and residual[0, 0].tolist()[0] == 0


def test_a_certain_target_gives_its_own_text():
    """A one-hot p: what comes out is what matching the argmax gives, token for token."""
    rows_p, rows_q, drafted, _ = drafts(*tables(4, 3, "one-hot p"))
    outcomes = hierarchical_verification(rows_p, rows_q, drafted.tolist(), [Draws() for _ in drafted])
    for n, outcome in enumerate(outcomes):
        assert outcome == match(rows_p[n].argmax(-1).tolist(), drafted[n].tolist())

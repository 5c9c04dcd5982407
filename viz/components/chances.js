// The sums of lesson 6 over two recorded distributions, exact up to floating point (and a fine quadrature for coupled).
// Arrays p (target) and q (draft) hold probabilities of the same tokens and sum to 1.
//
//   Chances.warm(row, T)              recorded probabilities (null: not kept) at temperature T, normalised
//   Chances.down(q, F, c)             Saguaro's form: the F + 1 likeliest at c times their probability
//   Chances.geometric(q)              proportional to sqrt(q r), r the law of the second of two draws that differ
//   Chances.independent(p, q, made, F)  { accepted, foreseen, covered, residual, cached }: drafts drawn from `made`, candidates
//                                     are the F likeliest of q without the drafted token
//   Chances.coupled(p, q, F)          the same for two exponential races on shared noise (Daliri, Musco, Suresh 2024)
//
// foreseen: given a refusal, that the bonus is among the candidates (null without refusals). covered: no miss here.
const Chances = (() => {
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const normal = (list, otherwise) => { const all = sum(list); return all > 0 ? list.map((v) => v / all) : otherwise; };
  const order = (q) => q.map((_, i) => i).filter((i) => q[i] > 0).sort((a, b) => q[b] - q[a] || a - b);

  const warm = (row, temperature) => normal(row.map((v) => (v ? v ** (1 / temperature) : 0)), row);

  function down(q, fanOut, c) {
    const top = new Set(order(q).slice(0, fanOut + 1));
    return normal(q.map((v, i) => (top.has(i) ? c * v : v)), q);
  }

  function geometric(q) {
    const odds = q.map((v) => Math.min(v / (1 - v), 1e6)), all = sum(odds);
    const second = normal(q.map((v, i) => v * Math.max(0, all - odds[i])), q);
    return normal(q.map((v, i) => Math.sqrt(v * second[i])), q);
  }

  function independent(p, q, made, fanOut) {
    const left = p.map((v, i) => Math.max(0, v - made[i])), refused = sum(left), ranked = order(q);
    const law = left.map((v) => (refused > 0 ? v / refused : 0)), cached = p.map(() => 0);
    made.forEach((v, x) => { // drafted x and refused: candidates are the likeliest others
      const share = Math.max(0, v - p[x]);
      if (share > 0) for (const t of ranked.filter((i) => i !== x).slice(0, fanOut)) cached[t] += share * law[t];
    });
    return result(1 - refused, sum(cached), left, cached);
  }

  // Token i wins the target's race with E_i / p_i = e. Then token j is ahead of i in the draft's race with probability
  // 1 - exp(-(q_j p_i / q_i - p_j)+ e): the places of i follow a Poisson binomial law, integrated over e.
  function coupled(p, q, fanOut) {
    const NODES = 400, accepted = p.map(() => 0), left = p.map(() => 0), cached = p.map(() => 0);
    p.forEach((pi, i) => {
      if (pi <= 0) return;
      if (q[i] <= 0) { left[i] = pi; return; }
      const rates = p.map((pj, j) => (j === i ? 0 : Math.max(0, (q[j] * pi) / q[i] - pj))).filter((rate) => rate > 0);
      const places = new Array(fanOut + 1).fill(0);
      for (let n = 0; n < NODES; n++) { // v = exp(-e), cubed steps: dense where v is small and the integrand steep
        const u = (n + 0.5) / NODES, v = u ** 3, weight = (3 * u * u) / NODES;
        const law = new Array(fanOut + 1).fill(0);
        law[0] = 1;
        for (const rate of rates) {
          const behind = v ** rate;
          for (let r = fanOut; r >= 0; r--) law[r] = law[r] * behind + (r ? law[r - 1] * (1 - behind) : 0);
        }
        law.forEach((value, r) => { places[r] += weight * value; });
      }
      accepted[i] = pi * places[0];
      left[i] = pi - accepted[i];
      cached[i] = pi * sum(places.slice(1));
    });
    return result(sum(accepted), sum(cached), left, cached);
  }

  function result(accepted, cached, left, each) {
    const refused = sum(left);
    return { accepted, foreseen: refused > 1e-9 ? cached / refused : null, covered: accepted + cached, residual: left, cached: each };
  }

  return { warm, down, geometric, independent, coupled };
})();

// What each lesson shows. Scenes[n](stage) fills stage.box and returns what the player needs:
//
//   stage = { box, data, words, fill, lang, keep, big }   words: the language's strings; fill(template, more): a sentence with
//            its numbers, "" where one is missing; keep: what the visitor set on this step; big: present mode
//   scene = { clock: "time" | "beats", from, to, start, stops, pace, slow, draw(at), extra(box) }
//            "time": `at` is a second of the recording; "beats": a whole number, `pace` ms each. null: nothing to show.
//
// Text of recordings goes through textContent or fillText only.
const Scenes = (() => {
  const el = (tag, name = "", text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const put = (parent, ...children) => { parent.append(...children); return parent; };
  const percent = (value, digits = 0) => `${(value * 100).toFixed(digits)}\u00a0%`;
  const bare = (text) => text.replace(/^ (?=\S)/, ""); // a token that begins a word, without its space
  const times = (value) => (Number.isFinite(value) ? `${value.toFixed(2)}×` : "–");

  function slider(box, keep, name, label, { min, max, step, value, show }, changed) {
    const row = put(el("label", "sc-slider"), el("span", "sc-label", label)), input = el("input"), out = el("output");
    Object.assign(input, { type: "range", min, max, step, value: keep[name] ?? value });
    input.dataset.name = name;
    const write = () => { out.textContent = show(Number(input.value)); };
    input.addEventListener("input", () => { keep[name] = Number(input.value); write(); changed(); });
    write();
    box.append(put(row, input, out));
    return { get value() { return Number(input.value); }, set(to) { input.value = to; keep[name] = Number(input.value); write(); } };
  }

  function readouts(box, labels) { // big numbers with a label each
    const list = el("dl", "sc-reads"), places = {};
    for (const [name, label] of Object.entries(labels)) {
      places[name] = el("dd");
      places[name].dataset.read = name;
      list.append(put(el("div"), el("dt", "", label), places[name]));
    }
    box.append(list);
    return (values) => { for (const [name, value] of Object.entries(values)) places[name].textContent = value; };
  }

  // ---- a run on its two lanes --------------------------------------------------------------------------------------
  function lanes(stage, role, { both = true, counts = true, large = 2, stops } = {}) {
    const run = stage.data.runs[role], ui = stage.words.ui;
    if (!run || !run.words.length) return null;
    const log = Lanes.log();
    log.add(JSON.parse(run.rows));
    const said = el("p", "sc-said"), canvas = el("canvas", "sc-canvas"), tally = el("p", "sc-tally");
    said.setAttribute("dir", "auto");
    canvas.setAttribute("role", "img");
    stage.box.append(said, canvas, legend(stage.words, role), ...(counts ? [tally] : []));
    const ends = [...new Set(run.words.map(([t]) => t))], from = ends[0], to = ends[ends.length - 1];
    const period = (to - from) / Math.max(1, ends.length - 1);
    let shown = -1, theme = Lanes.theme(canvas);

    function tell(at) {
      const count = run.words.filter(([t]) => t <= at).length;
      if (count === shown) return;
      if (count < shown || shown < 0) { said.replaceChildren(); shown = 0; }
      for (const [, text, state] of run.words.slice(shown, count)) said.append(el("span", `t ${state}`, text));
      shown = count;
      said.scrollTop = said.scrollHeight;
      const passes = log.verified().filter((round) => round.at + round.verify <= at).length, made = Math.max(0, count - 1);
      const gigabytes = stage.data.numbers.weights?.gb;
      const parts = [stage.fill(stage.words.scene.passes, { n: passes }), stage.fill(stage.words.scene.tokens, { n: made })];
      if (role === "ar" && gigabytes) parts.push(stage.fill(stage.words.scene.read, { n: (gigabytes * passes).toFixed(1) }));
      else if (passes) parts.push(stage.fill(stage.words.scene.per_pass, { n: (made / passes).toFixed(2) }));
      tally.textContent = parts.join("   ·   ");
    }

    function draw(at) {
      tell(at);
      const width = canvas.clientWidth, zoom = stage.big ? Math.min(large, Math.max(1, width / 900)) : Math.min(1.25, Math.max(1, width / 900));
      const look = Lanes.look(both ? { title: 20, lane: 46, gap: role === "ssd" ? 44 : 26 } : { title: 20, lane: 46, gap: 0 });
      const high = both ? look.height : look.lanes[0] + look.lane + 1;
      if (!both) look.height = high;
      look.title = 0; // the room is kept, the names are ours
      canvas.style.height = `${Math.round(high * zoom)}px`;
      const pen = Lanes.fit(canvas);
      if (!pen) return;
      theme = Lanes.theme(canvas);
      pen.scale(zoom, zoom);
      const span = period * Math.min(9, Math.max(3.5, width / zoom / 95)), a = Math.max(log.dropped, at - span * 0.82);
      if (!both) look.lanes[1] = high + 50; // the draft's lane is out of the picture
      Lanes.draw(pen, log, { a, b: a + span, width: width / zoom, look, theme, until: at, letters: stage.lang === "en" });
      pen.textAlign = "left";
      pen.textBaseline = "alphabetic";
      pen.font = `700 13px ${theme.font}`;
      [ui.target, ui.draft].slice(0, both ? 2 : 1).forEach((name, lane) => {
        pen.fillStyle = lane ? theme.draftInk : theme.verify;
        pen.fillText(name, 2, look.lanes[lane] - 5);
      });
      pen.fillStyle = theme.text; // the playhead
      pen.fillRect(Math.min((at - a) / span, 1) * (width / zoom) - 1, look.axis, 2, high - look.axis);
      canvas.setAttribute("aria-label", tally.textContent);
    }
    const start = Math.min(from + period * 7.5, to);
    return { clock: "time", from, to, start, stops: stops ? stops(log).filter((t) => t <= to) : ends, slow: 8, draw, log };
  }

  function legend(words, role) {
    const ui = words.ui, list = el("ul", "sc-legend");
    const bars = { ar: ["verify"], sd: ["verify", "step", "wait"], ssd: ["verify", "tree", "step", "wait", "both"] }[role];
    for (const name of bars) list.append(put(el("li"), el("span", `k ${name}`), role === "ar" ? ui.legend_pass : ui[`legend_${name}`]));
    if (role === "ar") return list;
    if (role === "ssd") for (const [name, letter] of [["hit", "H"], ["miss", "M"]]) list.append(put(el("li"), el("span", `m ${name}`, letter), ui[`legend_${name}`]));
    for (const [letter, name] of [["a", "accepted"], ["c", "correction"], ["b", "bonus"]]) list.append(put(el("li"), el("span", `t ${letter}`, "abc"), ui[name]));
    return list;
  }

  // ---- 1, 2, 3 -----------------------------------------------------------------------------------------------------
  function alone(stage) {
    const scene = lanes(stage, "ar", { both: false }), many = stage.data.numbers.many, say = stage.words.scene;
    if (!scene) return null;
    scene.extra = (box) => {
      if (!many) return;
      box.append(el("p", "sc-caption", say.bars));
      const most = Math.max(...many.bars.map(([, ms]) => ms)), list = el("div", "sc-bars");
      for (const [drafted, ms, method] of many.bars) {
        const fill = el("span", `sc-fill ${method.toLowerCase()}`), name = drafted === 0 ? say.no_guess : drafted === 1 ? say.one_guess : stage.fill(say.guesses, { n: drafted });
        fill.style.width = `${(ms / most) * 100}%`;
        list.append(put(el("div", "sc-bar"), el("span", "", `${method}, ${name}`), put(el("span", "sc-rail"), fill), el("b", "", `${ms.toFixed(1)} ms`)));
      }
      box.append(list);
    };
    return scene;
  }

  // ---- 4 -----------------------------------------------------------------------------------------------------------
  function outcome(stage) {
    const rounds = stage.data.rounds, say = stage.words.scene, ui = stage.words.ui;
    if (!rounds.length) return null;
    const first = Math.max(0, rounds.findIndex((r) => r.hit && r.drafted.length > 1));
    const chip = (text, name = "") => { const made = el("span", `sc-chip ${name}`, bare(text)); made.setAttribute("dir", "auto"); return made; };
    function draw(at) {
      const round = rounds[Math.min(rounds.length - 1, Math.floor(at / 4))], beat = at % 4;
      const head = el("ol", "sc-beats");
      say.beats.forEach((text, n) => { const item = el("li", n === beat ? "on" : n < beat ? "done" : "", text); if (n === beat) item.setAttribute("aria-current", "step"); head.append(item); });
      const guess = put(el("p", "sc-guess"), el("span", "sc-caption", `${stage.fill(ui.round, { n: round.round })}, ${say.checking}`));
      round.drafted.forEach((text, i) => guess.append(chip(text, beat < 2 ? "" : i < round.k ? "a" : i === round.k ? "refused" : "untested")));
      if (beat >= 2) guess.append(chip(round.bonus, round.k === round.drafted.length ? "b" : "c"), el("span", "sc-pair", `${say.outcome} = ${stage.fill(say.pair, { k: round.k, bonus: bare(round.bonus) })}`));
      const table = el("div", `sc-table${beat < 1 ? " later" : ""}`);
      for (const fork of round.forks) {
        const row = el("div", `sc-fork${beat === 3 && fork.k === round.k ? " on" : ""}`), cells = el("div", "sc-cells");
        for (const [token, ready, happened] of fork.branches.slice(0, 8)) cells.append(put(chip(token, beat === 3 && happened ? "found" : ""), el("small", "", ready.length ? ` ${ready.join("")}` : "")));
        if (fork.branches.length > 8) cells.append(el("small", "sc-rest", `+${fork.branches.length - 8}`));
        table.append(put(row, el("span", "sc-k", stage.fill(say.row, { n: fork.k })), cells));
      }
      const found = round.forks.flatMap((fork) => fork.branches).find((branch) => branch[2]);
      const text = beat < 3 ? "" : round.hit ? stage.fill(say.is_hit, { ready: found ? bare(found[1].join("")) : "" }) : found ? say.is_late : say.is_miss;
      const end = el("p", `sc-end ${round.hit ? "hit" : "miss"}`, text);
      end.setAttribute("dir", "auto");
      stage.box.replaceChildren(head, guess, table, end);
    }
    return { clock: "beats", from: 0, to: rounds.length * 4 - 1, start: first * 4 + 3, pace: 1500, draw };
  }

  // ---- 5 -----------------------------------------------------------------------------------------------------------
  function fanOut(stage) {
    const { ranks, by_f: steps } = stage.data, say = stage.words.scene;
    if (!ranks.length || !steps.length) return null;
    const two = el("div", "sc-two"), left = el("div"), right = el("div", "sc-side"), marks = el("div", "sc-marks"), curve = el("div", "sc-chart");
    stage.box.append(put(two, put(left, el("p", "sc-caption", say.fan_marks), marks), right));
    let at = ranks.length;
    const shown = ranks.slice(0, 160), cells = shown.map(([, rank]) => el("span", "", rank < 0 ? "–" : String(rank + 1)));
    marks.append(...cells);
    const width = slider(right, stage.keep, "f", say.fan_out, { min: 1, max: steps.length, step: 1, value: Math.min(3, steps.length), show: String }, () => draw(at));
    const read = readouts(right, { hits: "", branches: say.fan_branches });
    right.append(curve);
    const caption = right.querySelector("dt");
    function draw(position) {
      at = position;
      const f = width.value, count = Math.min(ranks.length, Math.max(0, at)), seen = ranks.slice(0, count);
      cells.forEach((cell, i) => { cell.className = i >= count ? "later" : shown[i][1] >= 0 && shown[i][1] < f ? "hit" : "miss"; });
      caption.textContent = stage.fill(say.fan_hits, { f });
      read({ hits: count ? percent(seen.filter(([, rank]) => rank >= 0 && rank < f).length / count) : "–", branches: steps[f - 1].branches.toFixed(1) });
      Curves.chart(curve, {
        x: [1, Math.max(2, steps.length)], y: [0, 1], xTicks: steps.map((s) => s.f).filter((n) => steps.length < 13 || n % 2), yTicks: [0, 0.25, 0.5, 0.75, 1], yText: (v) => percent(v),
        xName: say.fan_axis, yName: say.hit_rate, mark: f, label: say.fan_axis,
        lines: [{ kind: "hit", at: steps.map((s) => [s.f, s.hits / ranks.length]) }],
        points: steps.map((s) => ({ kind: s.f === f ? "hit now" : "hit", x: s.f, y: s.hits / ranks.length })),
      });
    }
    return { clock: "beats", from: 0, to: ranks.length, start: ranks.length, pace: 90, draw };
  }

  // ---- 6 -----------------------------------------------------------------------------------------------------------
  const KINDS = ["plain", "saguaro", "geometric", "coupled"], SWEEP = 20;
  function dice(stage) {
    const given = stage.data.distribution, say = stage.words.scene, keep = stage.keep;
    if (!given) return null;
    keep.kind ||= "plain";
    const two = el("div", "sc-two"), bars = el("div", "sc-dist"), right = el("div", "sc-side"), table = el("table", "sc-kinds");
    stage.box.append(put(two, put(el("div"), diceLegend(say), bars), right));
    right.append(table);
    const temperature = slider(right, keep, "t", say.temperature, { min: 0.3, max: 1.5, step: 0.05, value: 1, show: (v) => v.toFixed(2) }, change);
    const width = slider(right, keep, "f", say.fan_out, { min: 1, max: 8, step: 1, value: 3, show: String }, change);
    const constant = slider(right, keep, "c", say.constant, { min: 0, max: 1, step: 0.05, value: 0.5, show: (v) => v.toFixed(2) }, () => { pick("saguaro"); });
    const pick = (kind) => { keep.kind = kind; change(); };
    function outcomes() {
      const p = Chances.warm(given.tokens.map((t) => t.p), temperature.value), q = Chances.warm(given.tokens.map((t) => t.q), temperature.value), f = width.value;
      const made = { plain: q, saguaro: Chances.down(q, f, constant.value), geometric: Chances.geometric(q), coupled: q };
      return { p, made, of: Object.fromEntries(KINDS.map((kind) => [kind, kind === "coupled" ? Chances.coupled(p, q, f) : Chances.independent(p, q, made[kind], f)])) };
    }
    function change() {
      const found = outcomes(), kind = keep.kind, { p, made, of } = found, q = made[kind], result = of[kind];
      const seen = given.tokens.map((_, i) => i).sort((a, b) => Math.max(p[b], q[b]) - Math.max(p[a], q[a])).slice(0, 9), rest = given.tokens.map((_, i) => i).filter((i) => !seen.includes(i));
      const most = Math.max(...seen.map((i) => Math.max(p[i], q[i])), 0.05), total = (list, at) => at.reduce((sum, i) => sum + list[i], 0);
      const line = (name, at) => {
        const row = el("div", "sc-token"), label = el("span", "sc-name", name), tracks = el("span", "sc-tracks"), target = el("span", "sc-track"), draft = el("span", "sc-track thin");
        label.setAttribute("dir", "auto");
        const left = total(result.residual, at), held = total(result.cached, at), whole = total(p, at);
        const share = left > 0 ? Math.min(1, held / left) : 0; // of the bonuses that fall here, those in the cache
        for (const [name, value] of [["ok", whole - left], ["held", left * share], ["out", left * (1 - share)]]) { const part = el("i", name); part.style.width = `${(value / most) * 100}%`; target.append(part); }
        const drawn = el("i", "drawn");
        drawn.style.width = `${(total(q, at) / most) * 100}%`;
        draft.append(drawn);
        return put(row, label, put(tracks, target, draft), el("span", "sc-values", `${percent(whole)} / ${percent(total(q, at))}`));
      };
      bars.replaceChildren(...seen.map((i) => line(bare(given.tokens[i].text), [i])), line(say.other, rest));
      table.replaceChildren(put(el("tr"), ...["scheme", "acceptance", "foreseen", "covered"].map((name) => el("th", "", say[name]))));
      for (const name of KINDS) {
        const row = el("tr", name === kind ? "on" : ""), button = el("button", "", say.schemes[name]);
        button.type = "button";
        button.setAttribute("aria-pressed", String(name === kind));
        button.addEventListener("click", () => { pick(name); table.querySelectorAll("button")[KINDS.indexOf(name)].focus(); });
        row.dataset.kind = name;
        const { accepted, foreseen, covered } = of[name];
        table.append(put(row, put(el("td"), button), ...[accepted, foreseen, covered].map((v) => el("td", "", v === null ? "–" : percent(v, 1)))));
      }
    }
    let last = null;
    function draw(at) { // the player sweeps C from 1 to 0
      if (last !== null && at !== last) { constant.set(1 - at / SWEEP); keep.kind = "saguaro"; }
      last = at;
      change();
    }
    return { clock: "beats", from: 0, to: SWEEP, start: Math.round((1 - constant.value) * SWEEP), pace: 250, draw };
  }
  function diceLegend(say) {
    const list = el("ul", "sc-legend");
    for (const [kind, name] of [["ok", "overlap"], ["held", "cached"], ["out", "residual"], ["drawn", "q"]]) list.append(put(el("li"), el("span", `k d-${kind}`), kind === "drawn" ? say[name] : `${say.p}: ${say[name]}`));
    return list;
  }

  // ---- 7 -----------------------------------------------------------------------------------------------------------
  const mixed = (p, hit, miss) => p * hit + (1 - p) * miss;
  const batched = (b, p, hit, miss, prepare, backup) => mixed(p, hit, miss) / (p ** b * Math.max(1, prepare) + (1 - p ** b) * (1 + backup)); // Corollary 16
  function misses(stage) {
    const late = (log) => log.marks.filter((m) => !m.hit).map((m) => log.rounds.get(m.round)).filter((r) => r?.verify !== undefined).map((r) => r.at + r.verify * 0.6);
    const scene = lanes(stage, "ssd", { counts: false, large: 1.1, stops: late }), say = stage.words.scene, given = stage.data.numbers.batch;
    if (!scene) return null;
    scene.start = scene.stops.find((t) => t >= scene.start) ?? scene.start;
    if (!given) return scene;
    const two = el("div", "sc-two even"), curve = el("div", "sc-chart"), side = el("div", "sc-side");
    stage.box.append(put(two, curve, side));
    const size = slider(side, stage.keep, "b", say.batch, { min: 1, max: 16, step: 1, value: 4, show: String }, plot);
    const read = readouts(side, { all: "", neural: say.neural, fast: say.fast });
    const neural = (b) => batched(b, given.p, given.hit, given.miss, given.prepare, given.backup), fast = (b) => batched(b, given.p, given.hit, 1, given.prepare, 0);
    const sizes = [...Array(16)].map((_, i) => i + 1), all = [...sizes.map(neural), ...sizes.map(fast)];
    const y = [Math.max(0, Math.floor((Math.min(...all) - 0.15) * 4) / 4), Math.ceil((Math.max(...all) + 0.15) * 4) / 4];
    function plot() {
      const b = size.value;
      side.querySelector("dt").textContent = stage.fill(say.all_hit, { b });
      read({ all: percent(given.p ** b, 1), neural: times(neural(b)), fast: times(fast(b)) });
      const unit = [0.25, 0.5, 1].find((n) => (y[1] - y[0]) / n <= 5) || 2, ticks = [];
      for (let v = Math.ceil(y[0] / unit) * unit; v <= y[1]; v += unit) ticks.push(v);
      Curves.chart(curve, {
        x: [1, 16], y, xTicks: [1, 4, 8, 12, 16], yTicks: ticks, yText: (v) => v.toFixed(2), xName: say.batch_axis, yName: say.speedup, mark: b, height: stage.big ? 145 : 190, label: say.batch_axis,
        lines: [{ kind: "step", at: sizes.map((n) => [n, neural(n)]) }, { kind: "muted dash", at: sizes.map((n) => [n, fast(n)]) }],
        points: [{ kind: "step", x: b, y: neural(b), name: say.neural, below: neural(b) < fast(b) }, { kind: "muted", square: true, x: b, y: fast(b), name: say.fast, below: fast(b) <= neural(b) }],
      });
    }
    const draw = scene.draw;
    let plotted = 0;
    scene.draw = (at) => { draw(at); if (plotted !== curve.clientWidth) { plotted = curve.clientWidth; plot(); } };
    return scene;
  }

  // ---- 8 -----------------------------------------------------------------------------------------------------------
  function expect(stage) {
    const { runs, numbers } = stage.data, say = stage.words.scene, given = numbers.expect, measured = numbers.ratio || {};
    const roles = ["ar", "sd", "ssd"].filter((role) => runs[role] && (role === "ssd" || runs[role].prompt === runs.ssd?.prompt));
    if (!given || !runs.ssd) return null;
    const race = el("div", "sc-race"), two = el("div", "sc-two even"), curve = el("div", "sc-chart"), side = el("div", "sc-side");
    stage.box.append(race, put(two, curve, side));
    const tracks = roles.map((role) => {
      const words = runs[role].words, fill = el("span", `sc-fill ${role}`), count = el("b"), first = words[0][0];
      race.append(put(el("div", "sc-bar"), el("span", "", role.toUpperCase()), put(el("span", "sc-rail"), fill), count));
      return { fill, count, at: words.map(([t]) => t - first) };
    });
    const longest = Math.max(...tracks.map((track) => track.at[track.at.length - 1]));
    const set = (name, label, value, max, show) => slider(side, stage.keep, name, label, { min: name === "e" ? 1 : 0, max, step: 0.01, value, show }, plot);
    const two2 = (v) => v.toFixed(2);
    const p = set("p", say.p_hit, given.p, 1, (v) => percent(v)), e = set("e", say.expected_tokens, given.tokens, Math.max(6, given.tokens), two2);
    const x = set("x", say.draft_time, given.x, Math.max(1.5, given.x), two2), prepare = set("prepare", say.prepare_time, given.prepare, Math.max(2, given.prepare), two2);
    const read = readouts(side, { over_ar: say.over_ar, over_sd: say.over_sd, wrong: say.summary_line });
    const reset = el("button", "sc-reset", say.reset);
    reset.type = "button";
    reset.addEventListener("click", () => { p.set(given.p); e.set(given.tokens); x.set(given.x); prepare.set(given.prepare); plot(); });
    side.append(reset);
    function plot() {
      const sd = e.value / (1 + x.value), ssd = (hit) => batched(1, hit, e.value, e.value, prepare.value, x.value); // Leviathan Theorem 3.8, Kumar Theorem 7
      read({ over_ar: times(ssd(p.value)), over_sd: times(ssd(p.value) / sd), wrong: times(x.value / (1 - p.value + x.value * p.value)) });
      const top = Math.max(2, Math.ceil(Math.max(e.value, measured.ssd_ar || 0) + 0.2)), grid = [...Array(51)].map((_, i) => i / 50), ticks = [...Array(top + 1)].map((_, i) => i);
      Curves.chart(curve, {
        x: [0, 1], y: [0, top], xTicks: [0, 0.25, 0.5, 0.75, 1], xText: (v) => percent(v), yTicks: ticks, xName: say.p_hit, yName: say.speedup, mark: p.value, label: say.speedup,
        lines: [{ kind: "muted", name: "AR", at: [[0, 1], [1, 1]] }, { kind: "sd dash", name: say.sd_line, at: [[0, sd], [1, sd]] }, { kind: "ssd", at: grid.map((hit) => [hit, ssd(hit)]) }],
        points: [
          ...(measured.sd_ar ? [{ kind: "sd", square: true, x: 0, y: measured.sd_ar, name: `SD, ${say.measured}: ${times(measured.sd_ar)}`, beside: true }] : []),
          ...(measured.ssd_ar ? [{ kind: "ssd", x: given.p, y: measured.ssd_ar, name: `SSD, ${say.measured}: ${times(measured.ssd_ar)}`, beside: true }] : []),
          { kind: "ssd open", x: p.value, y: ssd(p.value), name: say.ssd_line },
        ],
      });
    }
    let plotted = 0;
    function draw(at) {
      for (const track of tracks) {
        const count = track.at.filter((t) => t <= at).length, end = track.at[track.at.length - 1];
        track.fill.style.width = `${(count / track.at.length) * 100}%`;
        track.count.textContent = at >= end ? `${count} / ${end.toFixed(2)} s` : String(count);
      }
      if (plotted !== curve.clientWidth) { plotted = curve.clientWidth; plot(); }
    }
    const extra = (box) => {
      const table = el("table", "sc-compare");
      say.compare.forEach((row, n) => table.append(put(el("tr"), ...row.map((text, i) => el(n === 0 || i === 0 ? "th" : "td", "", text)))));
      const wrong = el("ul", "sc-wrong");
      for (const name of ["wrong_speedup", "wrong_bound", "wrong_sampling"]) { const text = stage.fill(say[name]); if (text) wrong.append(el("li", "", text)); }
      box.append(put(el("div", "sc-scroll"), table), el("h3", "", say.wrong_title), wrong);
    };
    return { clock: "time", from: 0, to: longest, start: longest, stops: [...Array(11)].map((_, n) => (longest * n) / 10), slow: 1, draw, extra };
  }

  return [null, alone, (stage) => lanes(stage, "sd"), (stage) => lanes(stage, "ssd"), outcome, fanOut, dice, misses, expect];
})();

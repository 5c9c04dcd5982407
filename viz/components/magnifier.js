// At forty rounds a second a live lane is a blur. This holds the last hit and the last miss still and large, renewed
// twice a second, and plays the last two seconds at 1/20 speed. It draws the rows that its timeline has; frames are
// asked for only while slow motion runs. Where motion is not wanted, slow motion goes from round to round instead.
const root = element.querySelector(".mg");
const pair = root.querySelector(".mg-pair"), panels = [...root.querySelectorAll(".mg-one")];
const scale = root.querySelector(".mg-scale"), start = root.querySelector(".mg-start");
const box = root.querySelector(".mg-slow"), film = root.querySelector(".mg-film"), seek = root.querySelector(".mg-seek");
const nowLine = root.querySelector(".mg-now"), says = root.querySelector(".mg-says"), play = root.querySelector('[data-act="play"]');
const source = (props.value || {}).source || "";

const RENEW_MS = 500;
const SWEEP = 1100 / 1.5;           // css px per second of the live timeline: what "times" refers to
const SPANS = [4, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 300, 500, 800, 1200, 2000]; // ms in view
const SECONDS = 2, SLOWER = 20, FRAME_MS = 30;
const FILM_SCALE = 5300;            // css px per second
const small = Lanes.look({ lane: 36, gap: 38 }), large = Lanes.look();
const still = matchMedia("(prefers-reduced-motion: reduce)");
const ms = (seconds) => `${(seconds * 1000).toFixed(1)} ms`;
const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

let theme = Lanes.theme(root), shown = {}, feed = null, renewed = 0, due = 0, draws = 0, frames = 0, inView = true;

// ---- the two panels ---------------------------------------------------------------------------------------------
function arrived() {
  const entry = Lanes.published(source);
  if (!entry) return;
  if (entry.feed !== feed) { feed = entry.feed; shown = {}; close(); renewed = 0; }
  if (due) return;
  due = setTimeout(renew, Math.max(0, renewed + RENEW_MS - performance.now()));
}

// The newest round of each kind that is over, draft's work included: the next round has begun, or the run has ended.
function newest(log, done) {
  const found = {};
  const rounds = log.verified(), last = rounds.length ? rounds[rounds.length - 1].round : 0;
  for (let i = rounds.length - 1; i >= 0 && !(found.hit && found.miss); i--) {
    const round = rounds[i];
    if (round.round === last && !done) continue;
    const kind = round.hit === undefined ? "plain" : round.hit ? "hit" : "miss";
    found[kind] ||= round;
    if (kind === "plain" && !log.marks.length) break;
  }
  return log.marks.length ? { hit: found.hit, miss: found.miss } : { hit: found.plain };
}

function renew() {
  due = 0;
  renewed = performance.now();
  const entry = Lanes.published(source);
  if (!entry || !root.isConnected) return;
  const { log, done } = entry;
  start.disabled = !log.verified(1).length;
  const found = newest(log, done);
  shown = found;
  pair.classList.toggle("one", !log.marks.length && !!found.hit);
  paint();
}

function paint() {
  const entry = Lanes.published(source);
  const known = Object.values(shown).filter(Boolean);
  const longest = Math.max(0, ...known.map((round) => round.t1 - round.t0)) * 1.06;
  const alone = pair.classList.contains("one"), needed = longest * 1000 * (alone && root.clientWidth > 760 ? 2 : 1);
  const span = (SPANS.find((n) => n >= needed) || needed) / 1000; // one scale for both, so that lengths compare
  let times = 0;
  for (const panel of panels) {
    const round = shown[panel.dataset.of], canvas = panel.querySelector("canvas"), open = panel.querySelector(".mg-open");
    const ctx = inView ? Lanes.fit(canvas) : null;
    open.hidden = !round;
    panel.querySelector("b").textContent = alone ? "Last round" : panel.dataset.of === "hit" ? "Last hit" : "Last miss";
    if (ctx) draws++;
    if (!round || !entry) {
      canvas.setAttribute("aria-label", "None yet.");
      if (ctx) Lanes.draw(ctx, Lanes.log(), { a: 0, b: span || 0.04, width: canvas.clientWidth, look: small, theme });
      continue;
    }
    open.textContent = `Open round ${round.round}`;
    const text = sentence(round);
    panel.querySelector(".mg-said").textContent = text;
    canvas.setAttribute("aria-label", text);
    times = canvas.clientWidth / span / SWEEP;
    if (!ctx) continue;
    const a = round.t0 - span * 0.02;
    Lanes.draw(ctx, entry.log, { a, b: a + span, width: canvas.clientWidth, look: small, theme, zero: round.t0, round: round.round, faint: true });
  }
  scale.textContent = times ? `${times < 10 ? times.toFixed(1) : times.toFixed(0)} times as large as the live picture` : "";
}

function sentence(round) {
  const out = round.tokens === undefined ? "" : ` ${count(round.tokens, "token")} came out.`;
  const check = round.drafted ? `then checked ${count(round.drafted, "guessed token")} in ${ms(round.verify)}` : `then ran for ${ms(round.verify)}`;
  if (round.hit) return `The next guess was ready. The target waited ${ms(round.waited)}, ${check}.${out}`;
  if (round.hit === false) {
    const made = round.steps ? ` while the draft made ${count(round.steps, "token")}` : "";
    return `No guess was ready. The target waited ${ms(round.waited)}${made}, ${check}.${out}`;
  }
  if (!round.drafted) return `One forward of the target: ${ms(round.verify)}.${out}`;
  return `The target waited ${ms(round.waited)} while the draft made ${count(round.steps, "token")}, ${check}.${out}`;
}

for (const panel of panels) {
  panel.querySelector(".mg-open").addEventListener("click", () => {
    const round = shown[panel.dataset.of];
    if (round) Lanes.open(source, round.round);
  });
}

// ---- slow motion ------------------------------------------------------------------------------------------------
let slow = null; // { log, from, to, at, playing, last, round }: seconds; `round` is framed while stepping

function begin() {
  const entry = Lanes.published(source);
  if (!entry) return;
  const to = entry.log.latest, from = Math.max(entry.log.dropped, to - SECONDS);
  slow = { log: entry.log.cut(from, to), from, to, at: from, playing: false, last: 0, round: null };
  box.hidden = false;
  start.textContent = "Take the last 2 seconds anew";
  play.style.display = still.matches ? "none" : "";
  if (still.matches) step(1); else run(true);
}

function close() {
  slow = null;
  box.hidden = true;
  start.textContent = "Last 2 seconds in slow motion";
}

function run(on) {
  if (on && slow.at >= slow.to) slow.at = slow.from;
  if (on) slow.round = null;
  if (on && !slow.playing) { slow.last = performance.now(); requestAnimationFrame(tick); }
  slow.playing = on;
  showSlow();
}

function tick(now) {
  frames++;
  if (!slow || !slow.playing) return;
  if (!film.clientWidth) { slow.playing = false; return; } // on another tab of the page
  if (now - slow.last >= FRAME_MS) {
    slow.at = Math.min(slow.to, slow.at + Math.min(now - slow.last, 200) / 1000 / SLOWER);
    slow.last = now;
    if (slow.at >= slow.to) slow.playing = false;
    showSlow();
  }
  if (slow.playing) requestAnimationFrame(tick);
}

function step(by) {
  const rounds = slow.log.verified().filter((round) => round.t0 >= slow.from);
  const next = by > 0 ? rounds.find((round) => round.t1 > slow.at + 1e-6) : rounds.reverse().find((round) => round.t1 < slow.at - 1e-6);
  slow.playing = false;
  if (next) { slow.at = next.t1; slow.round = next.round; }
  showSlow();
}

function showSlow() {
  play.textContent = slow.playing ? "Pause" : "Play";
  play.setAttribute("aria-pressed", String(slow.playing));
  seek.value = String((slow.at - slow.from) / Math.max(slow.to - slow.from, 1e-9));
  nowLine.textContent = `at ${slow.at.toFixed(3)} s`;
  const words = slow.round === null ? happening(slow.at) : told(slow.log.rounds.get(slow.round));
  if (says.textContent !== words) says.textContent = words;
  says.setAttribute("aria-live", slow.playing ? "off" : "polite");
  const ctx = Lanes.fit(film);
  if (!ctx) return;
  const width = film.clientWidth, span = Math.min(0.25, Math.max(0.06, width / FILM_SCALE)), a = slow.at - span * 0.75;
  Lanes.draw(ctx, slow.log, { a, b: a + span, width, look: large, theme, until: slow.at, round: slow.round });
  const px = Math.round(width * 0.75);
  ctx.fillStyle = theme.text;
  ctx.fillRect(px, large.axis - 4, 2, large.height - large.axis + 4);
}

function told(round) {
  const kind = round.hit === undefined ? "" : round.hit ? ", H: hit" : ", M: miss";
  return `Round ${round.round}${kind}. ${sentence(round)}`;
}

const DOES = {
  verify: (item) => (item.drafted ? `checks ${count(item.drafted, "guessed token")}` : "makes one token"),
  prefill: () => "reads the prompt", wait: () => "waits",
  glue: () => "reads the guess under check", tree: (item) => `prepares branches, step ${item.depth + 1}`, step: (item) => `makes token ${item.i + 1} of a new guess`,
};
function happening(t) {
  const at = slow.log.roundAt(t);
  const does = [0, 1].map((lane) => {
    const item = slow.log.between(lane, t, t).find((known) => known.t0 <= t);
    return item ? DOES[item.kind](item) : "idle";
  });
  return `${at === null ? "" : `Round ${at}. `}Target: ${does[0]}. Draft: ${does[1]}.`;
}

start.addEventListener("click", begin);
seek.addEventListener("input", () => {
  if (!slow) return;
  slow.playing = false;
  slow.round = null;
  slow.at = slow.from + Number(seek.value) * (slow.to - slow.from);
  showSlow();
});
const acts = { back: () => step(-1), on: () => step(1), play: () => run(!slow.playing), close };
for (const button of root.querySelectorAll("[data-act]")) button.addEventListener("click", () => { if (slow) acts[button.dataset.act](); });

// ---- start ------------------------------------------------------------------------------------------------------
function repaint() {
  theme = Lanes.theme(root);
  paint();
  if (slow) showSlow();
}
Lanes.onPublish(source, root, arrived);
let wide = 0;
new IntersectionObserver(([entry]) => { // scrolled away, it costs nothing
  if (entry.isIntersecting === inView) return;
  inView = entry.isIntersecting;
  if (inView) paint();
}).observe(pair);
new ResizeObserver(() => { if (root.clientWidth !== wide) { wide = root.clientWidth; repaint(); } }).observe(root);
new MutationObserver(repaint).observe(document.body, { attributes: true, attributeFilter: ["class"] });
document.fonts?.ready.then(repaint);
root.sgState = () => ({
  hit: shown.hit?.round ?? null, miss: shown.miss?.round ?? null, draws, frames,
  slow: slow && { from: slow.from, to: slow.to, at: slow.at, playing: slow.playing, round: slow.round },
});
repaint();
arrived();

// Two lanes on one wall clock. Rows come in numbered chunks (see viz/deltas.py); everything is drawn on one canvas, once
// per change and never in an idle loop. Times are seconds here, microseconds in the rows.

// ---- parts of the page ------------------------------------------------------------------------------------------
const root = element.querySelector(".tl");
const stage = root.querySelector(".tl-stage");
const canvas = root.querySelector("canvas");
const tip = root.querySelector(".tl-tip");
const empty = root.querySelector(".tl-empty");
const clock = root.querySelector(".tl-clock");
const followButton = root.querySelector('[data-act="follow"]');
const textView = root.querySelector(".tl-text");
const ctx = canvas.getContext("2d");

const MAX_ROWS = 20000;      // beyond, the oldest fifth is dropped and the picture says so
const FOLLOW_S = 1.5;        // seconds in view while following, on a wide screen
const MIN_SPAN = 0.004, MIN_LABEL = 30;
const AXIS = 20, LANE = 56, GAP = 42, TITLE = 17; // heights
const LANE_Y = [AXIS + TITLE, AXIS + TITLE + LANE + GAP];
const MARK_Y = AXIS + TITLE + LANE + 13;

// ---- the log ----------------------------------------------------------------------------------------------------
let feed = "", seen = 0, asking = false, done = true;
let lanes, marks, rounds, longest, latest, dropped, outcome, method;

function clear() {
  lanes = [[], []];          // bars {t0, t1, kind, round, ...}, sorted by t0
  marks = [];                // lookups, sorted by time
  rounds = new Map();        // round -> {tokens, accepted, drafted}
  longest = [0, 0];
  latest = 0; dropped = 0; outcome = ""; method = "";
}

function insert(list, item) {
  let at = list.length;
  while (at > 0 && list[at - 1].t0 > item.t0) at--;
  if (at === list.length) list.push(item); else list.splice(at, 0, item);
}

function bar(lane, kind, row, more) {
  const item = { kind, round: row[1], t0: row[2] / 1e6, t1: (row[2] + row[3]) / 1e6, ...more };
  longest[lane] = Math.max(longest[lane], item.t1 - item.t0);
  insert(lanes[lane], item);
}

const LANE_OF = [0, 1];
function take(row) {
  latest = Math.max(latest, (row[2] + row[3]) / 1e6);
  switch (row[0]) {
    case "v": bar(0, "verify", row, { rows: row[4], drafted: row[5], accepted: row[6] }); break;
    case "pf": bar(LANE_OF[row[4]] || 0, "prefill", row, { tokens: row[5], reused: row[6] }); break;
    case "w": bar(LANE_OF[row[4]] || 0, "wait", row, {}); break;
    case "ds": bar(1, "step", row, { i: row[4] }); break;
    case "g": bar(1, "glue", row, { rows: row[4] }); break;
    case "ts": bar(1, "tree", row, { depth: row[4], rows: row[5] }); break;
    case "lk": insert(marks, { t0: row[2] / 1e6, round: row[1], hit: !!row[4], k: row[5], rank: row[6], ready: row[7], candidates: row[8] }); break;
    case "tk": rounds.set(row[1], row[4]); break;
    case "start": method = String(row[4] || ""); break;
    case "end": outcome = String(row[4] || ""); break;
  }
}

function bound() {
  if (lanes[0].length + lanes[1].length + marks.length <= MAX_ROWS) return;
  for (const list of [lanes[0], lanes[1], marks]) list.splice(0, Math.ceil(list.length / 5));
  dropped = Math.min(...[lanes[0], lanes[1]].map((list) => (list.length ? list[0].t0 : latest)));
  const first = Math.min(...[lanes[0], lanes[1]].map((list) => (list.length ? list[0].round : 0)));
  for (const round of rounds.keys()) if (round < first) rounds.delete(round);
}

function apply(chunks) {
  let any = false;
  for (const number of Object.keys(chunks).map(Number).sort((a, b) => a - b)) {
    if (number !== seen + 1) continue;
    for (const row of JSON.parse(chunks[number])) take(row);
    seen = number;
    any = true;
  }
  if (any) bound();
  return any;
}

// A value may be the only one of several that the browser saw: what is missing is asked for.
async function receive() {
  const value = props.value || {};
  if ((value.feed || "") !== feed) {
    feed = value.feed || "";
    seen = 0;
    clear();
    following = !value.done;
    fitWhenDone = !!value.done;
  }
  const chunks = value.chunks || {};
  const first = Math.min(...Object.keys(chunks).map(Number));
  if (Number.isFinite(first) && first > seen + 1 && !asking) {
    asking = true;
    const asked = feed;
    try {
      const missing = await server.missed({ feed: asked, after: seen });
      if (asked === feed) {
        const numbers = Object.keys(missing || {}).map(Number);
        if (numbers.length) seen = Math.max(seen, Math.min(...numbers) - 1); // older ones the server has forgotten too
        apply(missing || {});
      }
    } catch (error) {
      seen = Math.max(seen, first - 1); // the rest is better than nothing
    }
    asking = false;
    if (asked === feed && seen < first - 1) seen = first - 1;
    return receive();
  }
  apply(chunks);
  done = !!value.done;
  if (fitWhenDone && lanes[0].length + lanes[1].length) { fit(); fitWhenDone = false; }
  empty.hidden = lanes[0].length + lanes[1].length > 0;
  empty.style.display = empty.hidden ? "none" : "";
  if (done) describe();
  if (textView.open) table();
  redraw();
}

// ---- the view ---------------------------------------------------------------------------------------------------
let view = { a: 0, b: FOLLOW_S }, following = true, fitWhenDone = false, span = 0, wide = 800, pending = false, draws = 0, hover = null;

const followSpan = () => span || Math.min(FOLLOW_S, Math.max(0.5, (FOLLOW_S * wide) / 1100));
const x = (t) => ((t - view.a) / (view.b - view.a)) * wide;
const timeAt = (px) => view.a + (px / wide) * (view.b - view.a);

function fit() {
  following = false;
  view = { a: dropped, b: Math.max(latest * 1.01, dropped + 0.05) };
}

function zoom(factor, px = wide) {
  if (following) {
    span = Math.min(60, Math.max(MIN_SPAN * 10, followSpan() * factor));
  } else {
    const at = timeAt(px), width = Math.min(Math.max((view.b - view.a) * factor, MIN_SPAN), Math.max(latest * 1.2, 1));
    const left = (at - view.a) / (view.b - view.a);
    view = { a: at - left * width, b: at + (1 - left) * width };
  }
  redraw();
}

function pan(seconds) {
  following = false;
  const width = view.b - view.a;
  const a = Math.min(Math.max(view.a + seconds, Math.min(0, dropped) - width / 2), Math.max(latest - width / 2, 0));
  view = { a, b: a + width };
  redraw();
}

function act(name) {
  if (name === "follow") { following = !following; span = 0; }
  if (name === "fit") fit();
  if (name === "in") zoom(1 / 1.5, wide / 2);
  if (name === "out") zoom(1.5, wide / 2);
  redraw();
}

// ---- drawing ----------------------------------------------------------------------------------------------------
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draws++; draw(); });
}

let colours = {}, hatch = null, font = "sans-serif";
function readTheme() {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(name).trim() || "gray";
  colours = {
    text: read("--body-text-color"), muted: read("--sg-muted"), line: read("--border-color-primary"), page: read("--background-fill-primary"), lane: read("--sg-lane"),
    verify: read("--sg-target"), prefill: read("--sg-prefill"), glue: read("--sg-glue"), tree: read("--sg-draft"), step: read("--sg-step"),
    wait: read("--sg-wait"), overlap: read("--sg-overlap"), overlapLine: read("--sg-overlap-line"), hit: read("--sg-hit"), miss: read("--sg-miss"),
    onMark: read("--sg-on-mark"), onverify: read("--sg-on-target"), onprefill: read("--sg-on-prefill"), onglue: read("--sg-on-glue"),
    ontree: read("--sg-on-draft"), onstep: read("--sg-on-step"), onwait: read("--sg-muted"), draftInk: read("--sg-draft-ink"),
  };
  font = style.fontFamily || font;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colours.wait;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(-1, 7); pen.lineTo(7, -1); pen.moveTo(-1, 1); pen.lineTo(1, -1); pen.moveTo(5, 7); pen.lineTo(7, 5);
  pen.stroke();
  hatch = ctx.createPattern(tile, "repeat");
}

function firstVisible(list, slack) { // index of the first item that may reach into view
  const from = view.a - slack;
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].t0 < from) low = middle + 1; else high = middle;
  }
  return low;
}

function visible(lane) {
  const list = lanes[lane], found = [];
  for (let i = firstVisible(list, longest[lane]); i < list.length && list[i].t0 <= view.b; i++) if (list[i].t1 >= view.a) found.push(list[i]);
  return found;
}

function draw() {
  const width = stage.clientWidth, height = stage.clientHeight, scale = window.devicePixelRatio || 1;
  if (!width || !height) return; // hidden tab: the observer calls again
  wide = width;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  if (following) {
    const width = followSpan(), b = Math.max(latest, width);
    view = { a: b - width, b };
  }
  followButton.setAttribute("aria-pressed", String(following));
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  ctx.clearRect(0, 0, width, height);
  drawAxis(width);
  drawLaneFloors(width);
  const bars = [visible(0), visible(1)];
  drawOverlap(bars);
  for (const lane of [0, 1]) drawBars(lane, bars[lane], width);
  drawMarks(width);
  if (dropped > view.a && dropped > 0) note(`before ${dropped.toFixed(1)} s: no longer kept`, Math.max(4, x(view.a) + 4), LANE_Y[0] + LANE / 2);
  const label = latest > 0 ? `${latest.toFixed(2)} s` : "";
  if (clock.textContent !== label) clock.textContent = label;
}

function drawAxis(width) {
  const target = (view.b - view.a) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(target));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= target);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const milli = view.b - view.a < 0.5;
  ctx.font = `11px ${font}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  for (let n = Math.ceil(view.a / step); n * step <= view.b; n++) {
    if (n < 0) continue;
    const px = Math.round(x(n * step)) + 0.5;
    ctx.strokeStyle = colours.line;
    ctx.beginPath();
    ctx.moveTo(px, AXIS - 5);
    ctx.lineTo(px, LANE_Y[1] + LANE);
    ctx.stroke();
    const text = milli ? `${(n * step * 1000).toFixed(Math.max(0, digits - 3))} ms` : `${(n * step).toFixed(digits)} s`;
    ctx.fillStyle = colours.muted;
    if (px + 4 + ctx.measureText(text).width < width) ctx.fillText(text, px + 4, 8);
  }
}

function drawLaneFloors(width) {
  ctx.textBaseline = "alphabetic";
  ctx.textAlign = "left";
  for (const lane of [0, 1]) {
    ctx.fillStyle = colours.lane;
    ctx.fillRect(0, LANE_Y[lane], width, LANE);
    ctx.font = `600 12px ${font}`;
    ctx.fillStyle = lane ? colours.draftInk : colours.verify;
    ctx.fillText(lane ? "Draft device" : "Target device", 2, LANE_Y[lane] - 4);
    const after = ctx.measureText(lane ? "Draft device" : "Target device").width + 10;
    ctx.font = `12px ${font}`;
    ctx.fillStyle = colours.muted;
    ctx.fillText(lane ? "prepares the next guesses" : "verifies guesses", after, LANE_Y[lane] - 4);
  }
}

// Where a working bar of one lane meets a working bar of the other, from lane to lane.
function drawOverlap(bars) {
  const [target, draft] = bars.map((list) => list.filter((item) => item.kind !== "wait"));
  const top = LANE_Y[0], height = LANE_Y[1] + LANE - top;
  let j = 0, from = null, to = null;
  const paint = () => {
    if (from === null) return;
    const left = Math.max(x(from), 0), right = Math.min(x(to), wide);
    ctx.fillStyle = colours.overlap;
    ctx.fillRect(left, top, Math.max(right - left, 0.5), height);
    if (right - left > 3) {
      ctx.fillStyle = colours.overlapLine;
      ctx.fillRect(left, LANE_Y[0] + LANE, right - left, 2);
    }
  };
  for (const one of target) {
    while (j < draft.length && draft[j].t1 <= one.t0) j++;
    for (let i = j; i < draft.length && draft[i].t0 < one.t1; i++) {
      const a = Math.max(one.t0, draft[i].t0), b = Math.min(one.t1, draft[i].t1);
      if (b <= a) continue;
      if (to !== null && a - to < (view.b - view.a) / wide) to = Math.max(to, b); // joins what is less than a pixel apart
      else { paint(); from = a; to = b; }
    }
  }
  paint();
}

// Bars wider than a pixel are drawn one by one; narrower ones as the share of each pixel's time, stacked by kind.
const KINDS = ["verify", "prefill", "tree", "glue", "step", "wait"];
function drawBars(lane, bars, width) {
  const top = LANE_Y[lane], broad = [], share = {};
  for (const item of bars) {
    const left = x(item.t0), right = x(item.t1);
    if (right - left >= 1.5) broad.push([item, left, right]);
    else addShare((share[item.kind] ||= new Float32Array(Math.ceil(width) + 1)), left, right);
  }
  drawShares(share, top, Math.ceil(width));
  for (const [item, left, right] of broad) drawBar(item, left, right, top);
}

function addShare(cells, left, right) {
  for (let px = Math.max(0, Math.floor(left)); px <= Math.min(cells.length - 1, Math.floor(right)); px++) {
    cells[px] += Math.max(0, Math.min(right, px + 1) - Math.max(left, px));
  }
}

function drawShares(share, top, columns) {
  const used = KINDS.filter((kind) => share[kind]);
  for (let px = 0; px < columns && used.length; px++) {
    let bottom = top + LANE;
    for (const kind of used) {
      const part = Math.min(1, share[kind][px]) * LANE;
      if (part < 0.3) continue;
      ctx.fillStyle = kind === "wait" ? colours.line : colours[kind];
      ctx.fillRect(px, bottom - part, 1, part);
      bottom -= part;
    }
  }
}

function drawBar(item, left, right, top) {
  const from = Math.max(left, -2), width = Math.min(right, wide + 2) - from - (right - left > 4 ? 1 : 0);
  const low = item.kind === "wait" ? 14 : 0; // waiting is a lower, hatched box: a gap, not work
  if (item.kind === "wait") {
    ctx.fillStyle = hatch;
    ctx.fillRect(from, top + low, width, LANE - 2 * low);
    ctx.strokeStyle = colours.wait;
    if (width > 4) ctx.strokeRect(from + 0.5, top + low + 0.5, width - 1, LANE - 2 * low - 1);
  } else {
    ctx.fillStyle = colours[item.kind];
    ctx.beginPath();
    if (width > 6) ctx.roundRect(from, top, width, LANE, 3); else ctx.rect(from, top, width, LANE);
    ctx.fill();
  }
  if (item === hover) { ctx.strokeStyle = colours.text; ctx.lineWidth = 2; ctx.strokeRect(from + 1, top + 1 + low, width - 2, LANE - 2 - 2 * low); ctx.lineWidth = 1; }
  if (width < MIN_LABEL || item.kind === "wait") return;
  ctx.fillStyle = colours["on" + item.kind];
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  const lines = captions(item), pad = 5;
  ctx.font = `600 11.5px ${font}`;
  if (ctx.measureText(lines[0]).width > width - 2 * pad) return;
  ctx.fillText(lines[0], from + pad, top + (lines[1] ? LANE / 2 - 7 : LANE / 2));
  ctx.font = `11px ${font}`;
  if (lines[1] && ctx.measureText(lines[1]).width <= width - 2 * pad) ctx.fillText(lines[1], from + pad, top + LANE / 2 + 8);
}

function captions(item) {
  const ms = `${((item.t1 - item.t0) * 1000).toFixed(1)} ms`;
  if (item.kind === "verify") return item.t1 - item.t0 > 0 && item.drafted ? [`${item.accepted}/${item.drafted} +1`, ms] : ["+1", ms];
  if (item.kind === "prefill") return ["prefill", ms];
  if (item.kind === "tree") return [`tree ${item.depth + 1}`, `${item.rows} rows`];
  if (item.kind === "step") return [`draft ${item.i + 1}`, ms];
  return [item.kind, ms];
}

function drawMarks(width) {
  let last = -100, close = false;
  const shown = [];
  for (let i = firstVisible(marks, 0); i < marks.length && marks[i].t0 <= view.b; i++) {
    const px = x(marks[i].t0);
    if (px - last < 15) close = true;
    last = px;
    shown.push([px, marks[i]]);
  }
  if (close) return drawDense(shown, width);
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  for (const [px, mark] of shown) {
    ctx.fillStyle = mark.hit ? colours.hit : colours.miss;
    ctx.beginPath();
    if (mark.hit) ctx.arc(px, MARK_Y, 7, 0, 7); else ctx.roundRect(px - 6.5, MARK_Y - 6.5, 13, 13, 2);
    ctx.fill();
    ctx.fillStyle = colours.onMark;
    ctx.font = `700 10px ${font}`;
    ctx.fillText(mark.hit ? "H" : "M", px, MARK_Y + 0.5);
  }
}

// Too close for letters: hits stand up from the middle line, misses hang down; crowded columns show the shares.
function drawDense(shown, width) {
  const step = 3, cells = new Map();
  for (const [px, mark] of shown) {
    const at = Math.floor(px / step);
    const cell = cells.get(at) || [0, 0];
    cell[mark.hit ? 0 : 1]++;
    cells.set(at, cell);
  }
  ctx.fillStyle = colours.line;
  ctx.fillRect(0, MARK_Y, width, 1);
  for (const [at, [hits, misses]] of cells) {
    const all = hits + misses;
    ctx.fillStyle = colours.hit;
    ctx.fillRect(at * step, MARK_Y - (8 * hits) / all, step - 1, (8 * hits) / all);
    ctx.fillStyle = colours.miss;
    ctx.fillRect(at * step, MARK_Y + 1, step - 1, (8 * misses) / all);
  }
  ctx.font = `700 10px ${font}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const [letter, y, colour] of [["H", MARK_Y - 6, colours.hit], ["M", MARK_Y + 7, colours.miss]]) {
    ctx.fillStyle = colours.page;
    ctx.fillRect(0, y - 6, 12, 12);
    ctx.fillStyle = colour;
    ctx.fillText(letter, 1, y);
  }
}

function note(text, px, py) {
  ctx.font = `12px ${font}`;
  ctx.fillStyle = colours.muted;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  ctx.fillText(text, px, py);
}

// ---- values under the pointer -----------------------------------------------------------------------------------
function under(px, py) {
  const t = timeAt(px), slack = ((view.b - view.a) / wide) * 7;
  if (py > MARK_Y - 11 && py < MARK_Y + 11) {
    let best = null;
    for (let i = firstVisible(marks, slack); i < marks.length && marks[i].t0 <= view.b + slack; i++) {
      const away = Math.abs(marks[i].t0 - t);
      if (away < slack && (!best || away < Math.abs(best.t0 - t))) best = marks[i];
    }
    return best;
  }
  const lane = [0, 1].find((n) => py >= LANE_Y[n] && py <= LANE_Y[n] + LANE);
  if (lane === undefined) return null;
  const list = lanes[lane];
  for (let i = firstVisible(list, longest[lane]); i < list.length && list[i].t0 <= t; i++) if (list[i].t1 >= t) return list[i];
  return null;
}

const NAMES = { verify: "Verification", prefill: "Prefill", glue: "Glue", tree: "Tree step", step: "Draft step", wait: "Waiting" };
function explain(item) {
  if ("hit" in item) {
    const lines = [`${item.hit ? "H: hit" : "M: miss"}, round ${item.round}`];
    if (item.k >= 0) lines.push(`outcome: ${item.k} accepted, then the target's own token`);
    lines.push(item.rank < 0 ? "not among the candidates" : `candidate ${item.rank + 1} of its fork`);
    lines.push(`${item.candidates} branches were prepared`);
    if (item.hit) lines.push(`${item.ready} drafted tokens were ready`);
    return lines;
  }
  const lines = [`${NAMES[item.kind]}, round ${item.round}`, `${((item.t1 - item.t0) * 1000).toFixed(2)} ms, from ${item.t0.toFixed(3)} s`];
  if (item.kind === "verify") {
    lines.push(`${item.accepted} of ${item.drafted} drafted tokens accepted, +1 of its own`, `${item.rows} rows in one forward`);
    if (rounds.has(item.round)) lines.push(`${rounds.get(item.round)} tokens came out`);
  }
  if (item.kind === "prefill") lines.push(`${item.tokens} tokens read, ${item.reused} reused`);
  if (item.kind === "tree") lines.push(`depth ${item.depth + 1}, ${item.rows} branches at once`);
  if (item.kind === "glue") lines.push(`${item.rows} rows to fork from`);
  if (item.kind === "step") lines.push(`drafted token ${item.i + 1}, just in time`);
  return lines;
}

function point(event) {
  const box = stage.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
  const item = under(px, py);
  if (item !== hover) { hover = item; redraw(); }
  tip.hidden = !item;
  if (!item) return;
  tip.textContent = explain(item).join("\n");
  tip.style.left = `${Math.max(4, Math.min(px + 12, wide - tip.offsetWidth - 4))}px`;
  tip.style.top = `${py > 110 ? Math.max(2, py - tip.offsetHeight - 12) : py + 14}px`;
}

// ---- pointer, wheel, keys ---------------------------------------------------------------------------------------
const fingers = new Map();
let pinch = 0;
stage.addEventListener("pointerdown", (event) => {
  if (event.pointerType === "mouse" && event.button !== 0) return;
  fingers.set(event.pointerId, event.clientX);
  if (event.pointerType === "mouse") stage.setPointerCapture(event.pointerId);
  point(event);
});
stage.addEventListener("pointermove", (event) => {
  if (!fingers.has(event.pointerId)) return point(event);
  const before = fingers.get(event.pointerId), moved = event.clientX - before;
  if (fingers.size === 1 && Math.abs(moved) > 0) {
    stage.classList.add("drag");
    tip.hidden = true;
    pan((-moved / wide) * (view.b - view.a));
  }
  fingers.set(event.pointerId, event.clientX);
  if (fingers.size === 2) {
    const [a, b] = [...fingers.values()], apart = Math.abs(a - b);
    following = false;
    if (pinch > 8 && apart > 8) zoom(pinch / apart, (a + b) / 2 - stage.getBoundingClientRect().left);
    pinch = apart;
  }
});
for (const name of ["pointerup", "pointercancel"]) {
  stage.addEventListener(name, (event) => { fingers.delete(event.pointerId); pinch = 0; stage.classList.remove("drag"); });
}
stage.addEventListener("pointerleave", (event) => {
  if (event.pointerType !== "mouse") { fingers.delete(event.pointerId); pinch = 0; }
  tip.hidden = true;
  if (hover) { hover = null; redraw(); }
});
stage.addEventListener("wheel", (event) => {
  const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
  if (!sideways && !event.ctrlKey && document.activeElement !== stage) return; // the page keeps its own scrolling
  event.preventDefault();
  if (sideways) pan(((event.deltaX || event.deltaY) / wide) * (view.b - view.a));
  else zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.003), event.clientX - stage.getBoundingClientRect().left);
}, { passive: false });
stage.addEventListener("keydown", (event) => {
  const keys = {
    ArrowLeft: () => pan(-(view.b - view.a) / 8), ArrowRight: () => pan((view.b - view.a) / 8),
    "+": () => act("in"), "=": () => act("in"), "-": () => act("out"), f: () => act("follow"), F: () => act("follow"), 0: () => act("fit"), Home: () => act("fit"),
  };
  if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  keys[event.key]();
});
for (const button of root.querySelectorAll("[data-act]")) button.addEventListener("click", () => act(button.dataset.act));

// ---- the same in words ------------------------------------------------------------------------------------------
function facts() {
  const busy = lanes.map((list) => list.reduce((sum, item) => sum + (item.kind === "wait" ? 0 : item.t1 - item.t0), 0));
  const both = (() => {
    const [target, draft] = lanes.map((list) => list.filter((item) => item.kind !== "wait"));
    let j = 0, sum = 0;
    for (const one of target) {
      while (j < draft.length && draft[j].t1 <= one.t0) j++;
      for (let i = j; i < draft.length && draft[i].t0 < one.t1; i++) sum += Math.max(0, Math.min(one.t1, draft[i].t1) - Math.max(one.t0, draft[i].t0));
    }
    return sum;
  })();
  const verifies = lanes[0].filter((item) => item.kind === "verify");
  const middle = verifies.map((item) => item.t1 - item.t0).sort((a, b) => a - b)[verifies.length >> 1] || 0;
  const total = Math.max(latest - dropped, 1e-9), hits = marks.filter((mark) => mark.hit).length;
  const share = (part) => `${Math.min(100, (100 * part) / total).toFixed(0)} % of the time`;
  return [
    ["Shown", `${dropped.toFixed(1)} to ${latest.toFixed(2)} s`],
    ["Verification rounds", String(verifies.length)],
    ["Median verification", `${(middle * 1000).toFixed(1)} ms`],
    ["Target device busy", share(busy[0])],
    ["Draft device busy", share(busy[1])],
    ["Both at once", share(both)],
    ["Hits and misses", marks.length ? `${hits} hits, ${marks.length - hits} misses` : "none looked up"],
    ["Tokens accepted", String(verifies.reduce((sum, item) => sum + item.accepted, 0))],
  ];
}

function describe() {
  const known = lanes[0].length + lanes[1].length > 0;
  const label = known ? "Timeline. " + facts().map(([name, value]) => `${name}: ${value}`).join(". ") + "." : "No run yet.";
  stage.setAttribute("aria-label", label);
}

function table() {
  const body = root.querySelector(".tl-text tbody");
  body.replaceChildren(...facts().map(([name, value]) => {
    const line = document.createElement("tr"), head = document.createElement("th"), cell = document.createElement("td");
    head.scope = "row";
    head.textContent = name;
    cell.textContent = value;
    line.append(head, cell);
    return line;
  }));
}
textView.addEventListener("toggle", () => { if (textView.open) table(); });

// ---- start ------------------------------------------------------------------------------------------------------
clear();
readTheme();
new ResizeObserver(() => redraw()).observe(stage);
new MutationObserver(() => { readTheme(); redraw(); }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
document.fonts?.ready.then(() => redraw());
// What the tests look at: the numbers behind the picture.
root.sgState = () => ({ feed, seen, bars: lanes.map((list) => list.length), marks: marks.length, view: { ...view }, following, latest, done, dropped, draws });
watch("value", receive);
receive();

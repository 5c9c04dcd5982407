// Plays recorded runs of one prompt in step (viz/comparison.py makes them). The data comes once; the clock is the
// browser's, and frames are asked for only while playing. Text of models and prompts is placed by textContent only.
// Times are seconds since each run's first token.

// ---- parts of the page ------------------------------------------------------------------------------------------
const root = element.querySelector(".race");
const part = (name) => root.querySelector(`.rc-${name}`);
const [board, one, text, panes, scrub, clock, lanesCanvas, curvesCanvas, stage] = ["board", "one", "text", "panes", "scrub", "clock", "lanes", "curves", "stage"].map(part);
const playButton = root.querySelector('[data-act="play"]');
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
const KNOWN = ["ar", "sd", "hsd", "ssd", "ssd+hsd", "hf-ar", "hf-assisted"]; // methods with a colour of their own
const SHAPE = { axis: 0, title: 0, lane: 20, gap: 20 };
const CAPTION = 20, PIXELS_A_SECOND = 340; // of the lanes
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;

let race = null, held = null, runs = [], length = 0, longest = 0, now = 0, speed = 1, view = "one", playing = 0, theme = null, marks = [], lead = [0, 0], moments = [], scale = null, draws = 0;
// `held`: the seconds in view while the pointer drags over the lanes.

// ---- reading ----------------------------------------------------------------------------------------------------
// Controls that cannot be seen, some of which reorder what stands around them, are named instead.
const inert = (piece) => piece.replace(UNSEEN, (sign) => `\u2039U+${sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u203a`);
const colourOf = (method) => `var(--sg-m-${KNOWN.includes(method) ? method.replace("+", "-") : "other"})`;
const make = (name, className = "", words = "") => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (words) made.textContent = words;
  return made;
};

function open() {
  const value = props.value || {};
  pause();
  race = value.race ? JSON.parse(value.race) : null;
  theme = null;
  root.toggleAttribute("data-empty", !race);
  if (!race) { runs = []; return; }
  runs = race.runs.map((run) => {
    const log = Lanes.log();
    log.add(run.rows);
    const at = Float64Array.from(run.at, (us) => us / 1e6);
    return { ...run, first: run.first / 1e6, at, pieces: run.pieces.map(inert), log, count: 0, colour: colourOf(run.method) };
  });
  length = Math.max(...runs.map((run) => run.at[run.at.length - 1]), 1e-3);
  longest = Math.max(...runs.map((run) => run.at.length));
  moments = [...new Set(runs.flatMap((run) => [...run.at]))].sort((a, b) => a - b);
  scale = curve(baseline());
  describe();
  build();
  choose(race.identical ? "one" : "panes");
  seek(0);
  if (value.autoplay && !calm.matches) play();
}

// ---- arithmetic -------------------------------------------------------------------------------------------------
function reached(run, t) { // tokens that a run has at time t
  let low = 0, high = run.at.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.at[middle] <= t + 1e-9) low = middle + 1; else high = middle;
  }
  return low;
}

const time = (run, count) => run.at[Math.min(count, run.at.length) - 1];
const rate = (run, count) => { // tokens after the first, over the time since it
  const ahead = reached(run, 0), span = count > 0 ? time(run, count) : 0;
  return span > 0 ? (count - ahead) / span : null;
};
const baseOf = (name) => (race.bases[name] === null ? null : runs[race.bases[name]]);
const baseline = () => baseOf("ar") || baseOf("sd");

function speedup(run, base, count) { // over the first `count` tokens of both; null where that is not defined
  const same = base ? Math.min(count, run.at.length, base.at.length) : 0;
  const mine = same > 0 ? time(run, same) : 0;
  return mine > 0 ? time(base, same) / mine : null;
}

// ---- words ------------------------------------------------------------------------------------------------------
const number = (value, digits, unit = "") => (value === null || value === undefined ? "–" : value.toFixed(digits) + unit);
const times = (value) => number(value, 2, "×");

function describe() {
  const source = part("source");
  source.textContent = race.measured ? "measured here, just now" : "recorded run";
  source.classList.toggle("measured", race.measured);
  part("prompt").textContent = inert(race.prompt);
  part("about").textContent = inert(race.about);
  part("notice").textContent = race.notices.map(inert).join("\n");
  const base = baseline();
  part("base").textContent = base ? `over ${base.label}, by number of tokens` : "";
  verdict();
}

function verdict() {
  const base = baseline(), others = runs.filter((run) => run !== base);
  const gains = others.map((run) => [run, speedup(run, base, run.at.length)]).filter(([, gain]) => gain !== null).sort((a, b) => b[1] - a[1]);
  const best = gains[0], sd = baseOf("sd");
  let said = "";
  if (best) {
    const [run, gain] = best, over = sd && sd !== base && sd !== run ? speedup(run, sd, run.at.length) : null;
    said = gain >= 1
      ? `${run.label} is the fastest: ${times(gain)} the decode speed of ${base.label}${over === null ? "" : `, ${times(over)} that of ${sd.label}`}.`
      : `${base.label} is the fastest here; ${run.label} comes next at ${times(gain)} its decode speed.`;
  } else said = runs.length > 1 ? "" : `One run: ${runs[0].label}.`;
  const same = runs.length < 2 ? "" : race.identical ? ` The texts are identical, token for token (${race.agreed}).` : ` The texts agree for ${race.agreed} tokens.`;
  part("verdict").textContent = said + same;
  const columns = [
    ["Method", (run) => run.label],
    ["Decode", (run) => number(run.numbers.decode_tok_s, 1, " tok/s")],
    ["vs AR", (run) => times(speedup(run, baseOf("ar"), run.at.length))],
    ["vs SD", (run) => times(speedup(run, baseOf("sd"), run.at.length))],
    ["First token", (run) => number(run.numbers.ttft_s === null ? null : run.numbers.ttft_s * 1000, 0, " ms")],
    ["Tokens", (run) => String(run.numbers.tokens)],
    ["Tokens per round", (run) => number(run.numbers.tokens_per_round, 2)],
    ["Acceptance", (run) => number(run.numbers.acceptance === null ? null : run.numbers.acceptance * 100, 0, " %")],
    ["Hit rate", (run) => number(run.numbers.hit_rate === null ? null : run.numbers.hit_rate * 100, 0, " %")],
  ];
  const line = make("tr");
  for (const [name] of columns) { const cell = make("th", "", name); cell.scope = "col"; line.append(cell); }
  root.querySelector("thead").replaceChildren(line);
  root.querySelector("tbody").replaceChildren(...runs.map((run) => {
    const row = make("tr");
    row.style.setProperty("--mine", run.colour);
    columns.forEach(([, cell], i) => { const made = make(i ? "td" : "th", "", cell(run)); if (!i) made.scope = "row"; row.append(made); });
    return row;
  }));
}

// ---- building ---------------------------------------------------------------------------------------------------
function build() {
  board.replaceChildren(...runs.map((run) => {
    const row = make("div", "rc-row"), track = make("div", "rc-track");
    row.style.setProperty("--mine", run.colour);
    run.fill = make("div", "rc-fill");
    track.append(run.fill);
    run.counter = make("span", "rc-count");
    run.speedWord = make("span", "rc-speed");
    run.timesWord = make("span", "rc-times");
    row.append(make("div", "rc-name", run.label), track, run.counter, run.speedWord, run.timesWord);
    return row;
  }));
  const whole = runs.find((run) => run.at.length === longest);
  marks = whole.pieces.map((piece) => make("span", "t", piece));
  text.replaceChildren(...marks, ...runs.map((run) => {
    run.cursor = make("div", "rc-cursor");
    run.cursor.style.setProperty("--mine", run.colour);
    run.tag = make("b", "", run.label);
    run.cursor.append(make("i"), run.tag);
    return run.cursor;
  }));
  lead = [0, 0];
  panes.replaceChildren(...runs.map((run) => {
    const pane = make("div", "rc-pane"), box = make("div"), after = make("u");
    pane.style.setProperty("--mine", run.colour);
    box.dir = "auto";
    run.same = document.createTextNode("");
    run.other = document.createTextNode("");
    after.append(run.other);
    box.append(run.same, after);
    run.box = box;
    run.written = 0;
    pane.append(make("h4", "", run.label), box);
    return pane;
  }));
  lanesCanvas.style.height = `${runs.length * (CAPTION + Lanes.look(SHAPE).height + 6)}px`;
  for (const run of runs) run.count = -1;
}

function choose(name) {
  view = name;
  for (const button of root.querySelectorAll("[data-view]")) button.setAttribute("aria-pressed", String(button.dataset.view === view));
  one.hidden = view !== "one";
  panes.hidden = view !== "panes";
  root.querySelector('[data-view="one"]').disabled = !race.identical && runs.length > 1;
  root.querySelector('[data-view="one"]').hidden = !race.identical && runs.length > 1;
  if (view === "panes") runs.forEach(write); else place();
}

// ---- playing ----------------------------------------------------------------------------------------------------
function seek(t) {
  now = Math.min(Math.max(t, 0), length);
  draw();
}

let before = 0;
function frame(at) {
  if (!playing) return;
  const passed = Math.min((at - before) / 1000, 0.5);
  before = at;
  if (root.offsetParent === null) return pause(); // another tab of the page is open
  seek(now + passed * speed);
  if (now >= length) return pause();
  playing = requestAnimationFrame(frame);
}

function play() {
  if (!race || playing) return;
  if (now >= length) now = 0;
  before = performance.now();
  playing = requestAnimationFrame(frame);
  label();
}

function pause() {
  if (playing) cancelAnimationFrame(playing);
  playing = 0;
  label();
}

function label() {
  playButton.textContent = playing ? "Pause" : now >= length && race ? "Again" : "Play";
  if (!playing && race) tell();
}

function step(direction) {
  pause();
  const next = direction > 0 ? moments.find((t) => t > now + 1e-9) : moments.findLast((t) => t < now - 1e-9);
  seek(next === undefined ? (direction > 0 ? length : 0) : next);
  label();
}

// ---- drawing ----------------------------------------------------------------------------------------------------
function draw() {
  draws++;
  clock.textContent = `${now.toFixed(2)} s`;
  scrub.value = String(Math.round((now / length) * 1000));
  scrub.setAttribute("aria-valuetext", `${now.toFixed(2)} of ${length.toFixed(2)} seconds`);
  let moved = false;
  const base = baseline();
  for (const run of runs) {
    const count = reached(run, now);
    if (count === run.count) continue;
    moved = true;
    run.count = count;
    run.fill.style.transform = `scaleX(${count / longest})`;
    const over = count === run.at.length;
    run.counter.textContent = over ? `✓ ${number(run.at[count - 1], 2)} s` : `${count} of ${run.at.length}`;
    run.speedWord.textContent = number(rate(run, count), 1, " tok/s");
    run.timesWord.textContent = run === base ? "1.00×" : times(speedup(run, base, count));
    if (view === "panes") write(run);
  }
  if (moved && view === "one") place();
  pictures();
}

function write(run) {
  if (!race || run.count < 0) return;
  if (run.count < run.written) { run.same.data = run.other.data = ""; run.written = 0; }
  const parting = race.identical ? longest : race.agreed;
  const until = Math.max(run.written, Math.min(run.count, parting));
  run.same.appendData(run.pieces.slice(run.written, until).join(""));
  run.other.appendData(run.pieces.slice(until, run.count).join(""));
  run.written = run.count;
  run.box.scrollTop = run.box.scrollHeight;
}

// The one text: which tokens nobody, somebody, everybody has; and a cursor before the next token of each method.
function place(follow = true) {
  if (!race || one.hidden || !text.offsetWidth) return;
  const counts = runs.map((run) => Math.max(0, run.count)), low = Math.min(...counts), high = Math.max(...counts);
  const from = Math.min(low, lead[0], high, lead[1]), to = Math.max(low, lead[0], high, lead[1]);
  for (let i = from; i < Math.min(to, marks.length); i++) {
    const name = i < low ? "t all" : i < high ? "t some" : "t";
    if (marks[i].className !== name) marks[i].className = name;
  }
  lead = [low, high];
  const frame = text.getBoundingClientRect(), spots = runs.map((run) => ({ run, ...spot(Math.max(0, run.count), frame) }));
  const last = Math.max(...spots.map(({ y }) => y)), first = Math.min(...spots.map(({ y }) => y)), room = one.clientHeight;
  if (follow) { // all cursors if they fit, else the leading one
    if (last + 48 > one.scrollTop + room || last < one.scrollTop) one.scrollTop = last + 56 - room;
    else if (first < one.scrollTop && last + 48 - first < room) one.scrollTop = Math.max(0, first - 8);
  }
  for (const place of spots) {
    place.behind = place.y + 30 < one.scrollTop; // its label waits at the upper edge
    if (place.behind) place.y = one.scrollTop + 12;
  }
  spots.sort((a, b) => a.y - b.y || a.x - b.x);
  let line = null, free = 0;
  for (const { run, x, y, behind } of spots) {
    if (line === null || Math.abs(y - line) > 4) { line = y; free = 0; }
    const said = behind ? `${run.label} \u2191` : run.label;
    if (run.tag.textContent !== said) run.tag.textContent = said;
    run.cursor.classList.toggle("behind", behind);
    run.cursor.style.transform = `translate(${x}px, ${y}px)`;
    const wide = run.tag.offsetWidth + 3, left = Math.max(0, Math.min(Math.max(free, x), Math.max(free, frame.width - wide - 4)));
    run.tag.style.transform = `translateX(${left - x}px)`;
    free = left + wide;
  }
}

function spot(count, frame) { // where the next token begins; after the last token, where it ends
  const end = count >= marks.length, mark = marks[end ? marks.length - 1 : count];
  const boxes = mark ? mark.getClientRects() : [];
  const box = end ? boxes[boxes.length - 1] : boxes[0];
  if (!box) return count > 0 && !end ? spot(count + 1, frame) : { x: 18, y: 20 };
  const right = getComputedStyle(text).direction === "rtl" ? !end : end;
  return { x: (right ? box.right : box.left) - frame.left, y: box.top + box.height / 2 - 20 - frame.top };
}

let waiting = false;
function pictures() {
  if (playing) return drawBoth();
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawBoth(); });
}

function drawBoth() {
  if (!race || root.offsetParent === null) return;
  if (!theme) {
    theme = Lanes.theme(root);
    for (const run of runs) run.tint = getComputedStyle(run.fill).backgroundColor;
  }
  drawLanes();
  drawCurves();
}

function span(width) { // the seconds of the lanes in view
  if (held) return held;
  const wide = Math.min(length * 1.02, Math.max(0.6, width / PIXELS_A_SECOND));
  const a = Math.min(Math.max(0, now - wide * 0.7), length * 1.02 - wide);
  return [a, a + wide];
}


function drawLanes() {
  const ctx = Lanes.fit(lanesCanvas);
  if (!ctx) return;
  const width = lanesCanvas.clientWidth, look = Lanes.look(SHAPE), [a, b] = span(width);
  runs.forEach((run, i) => {
    const top = i * (CAPTION + look.height + 6), drafts = run.log.bars[1].length > 0;
    ctx.save();
    ctx.translate(0, top + CAPTION);
    Lanes.draw(ctx, run.log, { a: a + run.first, b: b + run.first, width, look, theme, until: now + run.first, letters: true });
    ctx.restore();
    ctx.font = `700 13px ${theme.font}`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.fillStyle = run.tint;
    ctx.fillText(run.label, 0, top + CAPTION / 2);
    const after = ctx.measureText(run.label).width + 8;
    ctx.font = `12px ${theme.font}`;
    ctx.fillStyle = theme.muted;
    if (!run.log.bars[0].length) ctx.fillText("its devices are not recorded", after, top + CAPTION / 2);
    else if (!drafts) ctx.fillText("the second device has nothing to do", after, top + CAPTION / 2);
  });
  const x = ((now - a) / (b - a)) * width;
  ctx.fillStyle = theme.text;
  ctx.fillRect(Math.min(x, width - 2), 0, 2, lanesCanvas.clientHeight);
}

// The speedup of each run after n tokens, and the range that holds them. The first few tokens swing too wildly to count.
function curve(base) {
  const skip = Math.max(2, Math.round(longest * 0.08));
  let low = 0.9, high = 1.2;
  for (const run of runs) {
    run.curve = [];
    for (let n = 2; base && n <= Math.min(run.at.length, base.at.length); n++) {
      const value = run === base ? 1 : speedup(run, base, n);
      if (value === null) continue;
      run.curve.push([n, value]);
      if (n >= skip) { low = Math.min(low, value); high = Math.max(high, value); }
    }
  }
  const margin = (high - low) * 0.08;
  return { low: Math.max(0, low - margin), high: high + margin };
}

// Speedup against tokens: solid as far as each method is, faint beyond.
function drawCurves() {
  const ctx = Lanes.fit(curvesCanvas);
  if (!ctx) return;
  const width = curvesCanvas.clientWidth, height = curvesCanvas.clientHeight, base = baseline();
  ctx.font = `12px ${theme.font}`;
  ctx.textBaseline = "middle";
  if (!base || runs.length < 2) {
    ctx.fillStyle = theme.muted;
    ctx.textAlign = "center";
    ctx.fillText(runs.length < 2 ? "One run has nothing to be compared with." : "Race AR or SD as well to see speedups.", width / 2, height / 2);
    return;
  }
  const most = Math.max(2, longest), { low, high } = scale;
  ctx.font = `700 12.5px ${theme.font}`;
  const words = Math.max(...runs.map((run) => ctx.measureText(`${run.label} 00.00×`).width));
  ctx.font = `12px ${theme.font}`;
  const box = { left: 46, right: width - words - 10, top: 8, bottom: height - 34 };
  const x = (n) => box.left + ((n - 1) / (most - 1)) * (box.right - box.left);
  const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
  ctx.lineWidth = 1;
  const tick = [0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5].find((size) => (high - low) / size <= 6) || 10;
  for (let i = Math.ceil(low / tick); i * tick <= high; i++) {
    const value = i * tick, unity = Math.abs(value - 1) < 1e-9;
    ctx.strokeStyle = unity ? theme.muted : theme.line;
    ctx.beginPath();
    ctx.moveTo(box.left, Math.round(y(value)) + 0.5);
    ctx.lineTo(box.right, Math.round(y(value)) + 0.5);
    ctx.stroke();
    ctx.fillStyle = unity ? theme.text : theme.muted;
    ctx.textAlign = "right";
    ctx.fillText(`${value.toFixed(tick < 0.1 || tick === 0.25 ? 2 : 1)}×`, box.left - 5, y(value));
  }
  ctx.fillStyle = theme.muted;
  ctx.textAlign = "center";
  const every = [10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((size) => most / size <= 6);
  for (let n = every; n <= most; n += every) ctx.fillText(String(n), x(n), box.bottom + 12);
  ctx.fillText("tokens so far", (box.left + box.right) / 2, box.bottom + 27);
  const ends = [];
  ctx.save();
  ctx.beginPath();
  ctx.rect(box.left, box.top - 4, box.right - box.left + 2, box.bottom - box.top + 8);
  ctx.clip();
  runs.forEach((run) => {
    for (const [alpha, thick, limit] of [[0.28, 1.5, Infinity], [1, 2.5, run.count]]) {
      ctx.globalAlpha = alpha;
      ctx.lineWidth = thick;
      ctx.strokeStyle = run.tint;
      ctx.beginPath();
      for (const [n, value] of run.curve) { if (n > limit) break; ctx.lineTo(x(n), y(value)); }
      ctx.stroke();
    }
    ctx.globalAlpha = 1;
    const known = run.curve.findLast(([n]) => n <= run.count);
    if (known) ends.push({ run, x: x(known[0]), y: Math.min(Math.max(y(known[1]), box.top), box.bottom), value: known[1] });
  });
  ctx.restore();
  ends.sort((a, b) => a.y - b.y);
  let free = 0;
  for (const end of ends) { end.text = Math.max(end.y, free); free = end.text + 16; }
  let over = Math.max(0, free - 16 - box.bottom);
  ctx.textAlign = "left";
  for (const end of ends) {
    ctx.fillStyle = end.run.tint;
    ctx.beginPath();
    ctx.arc(end.x, end.y, 4, 0, 7);
    ctx.fill();
    ctx.font = `700 12.5px ${theme.font}`;
    ctx.fillText(`${end.run.label} ${times(end.value)}`, box.right + 8, end.text - over);
  }
}

function tell() { // the pictures in words
  const base = baseline();
  const state = runs.map((run) => `${run.label}: ${Math.max(0, run.count)} tokens${base && run !== base ? `, ${times(speedup(run, base, run.count))} ${base.label}` : ""}`).join(". ");
  lanesCanvas.setAttribute("aria-label", `What each device was doing, up to ${now.toFixed(2)} seconds. ${state}.`);
  curvesCanvas.setAttribute("aria-label", `Speedup over the tokens so far. ${state}.`);
}

// ---- controls ---------------------------------------------------------------------------------------------------
const ACTS = { play: () => (playing ? pause() : play()), restart: () => { pause(); seek(0); label(); }, back: () => step(-1), forward: () => step(1) };
root.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button || !race) return;
  const { act, speed: chosen, view: name } = button.dataset;
  if (act) ACTS[act]();
  if (name) choose(name);
  if (chosen) {
    speed = Number(chosen);
    for (const other of root.querySelectorAll("[data-speed]")) other.setAttribute("aria-pressed", String(other === button));
  }
  if (event.detail) root.focus({ preventScroll: true }); // after the mouse, space plays again
});
root.addEventListener("keydown", (event) => {
  if (!race || event.ctrlKey || event.metaKey || event.altKey) return;
  const name = event.target.tagName;
  if (name === "INPUT" || (name === "BUTTON" && event.key === " ")) return;
  const act = { " ": "play", ArrowLeft: "back", ArrowRight: "forward", Home: "restart" }[event.key];
  if (event.key === "End") { pause(); seek(length); label(); }
  if (act) ACTS[act]();
  if (act || event.key === "End") event.preventDefault();
});
scrub.addEventListener("input", () => { const at = (Number(scrub.value) / 1000) * length; pause(); seek(at); label(); });
const drag = (event) => {
  const box = stage.getBoundingClientRect(), [a, b] = held;
  pause();
  seek(a + ((event.clientX - box.left) / box.width) * (b - a));
  label();
};
one.addEventListener("scroll", () => { if (!playing) place(false); });
stage.addEventListener("pointerdown", (event) => { if (race) { stage.setPointerCapture(event.pointerId); held = span(lanesCanvas.clientWidth); drag(event); } });
stage.addEventListener("pointermove", (event) => { if (race && stage.hasPointerCapture(event.pointerId)) drag(event); });
for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, () => { held = null; if (race) pictures(); });

// ---- start ------------------------------------------------------------------------------------------------------
new ResizeObserver(() => { if (race) { place(); pictures(); } }).observe(root);
new MutationObserver(() => { theme = null; if (race) pictures(); }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
document.fonts?.ready.then(() => { if (race) { theme = null; place(); pictures(); } });
// What the tests look at: the numbers behind the picture.
root.sgRace = () => ({ now, length, playing: !!playing, speed, view, counts: runs.map((run) => run.count), labels: runs.map((run) => run.label), draws, agreed: race?.agreed });
watch("value", open);
open();

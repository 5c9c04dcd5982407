// The timeline: follow, pan, zoom, hover, open a round. Rows come in numbered chunks (see viz/deltas.py) and are kept and
// drawn by lanes.js, once per change and never in an idle loop. Times are seconds.

// ---- parts of the page ------------------------------------------------------------------------------------------
const root = element.querySelector(".tl");
const stage = root.querySelector(".tl-stage");
const canvas = root.querySelector("canvas");
const tip = root.querySelector(".tl-tip");
const empty = root.querySelector(".tl-empty");
const clock = root.querySelector(".tl-clock");
const followButton = root.querySelector('[data-act="follow"]');
const textView = root.querySelector(".tl-text");
const live = root.querySelector(".tl-live");
const name = element.closest(".block")?.id || "";

const FOLLOW_S = 1.5; // seconds in view while following, on a wide screen
const MIN_SPAN = 0.004;
const ROUNDS_LISTED = 20;
const SPOKEN_MS = 5000, TABLE_MS = 1000; // words are renewed no more often than this
const look = Lanes.look();

// ---- what has come ----------------------------------------------------------------------------------------------
let feed = "", seen = 0, asking = false, done = true, log = Lanes.log();

function apply(chunks) {
  for (const number of Object.keys(chunks).map(Number).sort((a, b) => a - b)) {
    if (number !== seen + 1) continue;
    log.add(JSON.parse(chunks[number]));
    seen = number;
  }
}

// A value may be the only one of several that the browser saw: what is missing is asked for.
async function receive() {
  const value = props.value || {};
  if ((value.feed || "") !== feed) {
    feed = value.feed || "";
    seen = 0;
    log = Lanes.log();
    chosen = hover = null;
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
  if (fitWhenDone && !log.empty) { fit(); fitWhenDone = false; }
  empty.style.display = log.empty ? "" : "none";
  speak();
  table();
  redraw();
  Lanes.publish(name, { feed, log, done });
}

// ---- the view ---------------------------------------------------------------------------------------------------
let view = { a: 0, b: FOLLOW_S }, following = true, fitWhenDone = false, span = 0, wide = 800, pending = false, draws = 0;
let hover = null, chosen = null, theme = Lanes.theme(root);

const followSpan = () => span || Math.min(FOLLOW_S, Math.max(0.5, (FOLLOW_S * wide) / 1100));
const timeAt = (px) => view.a + (px / wide) * (view.b - view.a);
const full = () => ({ ...view, width: wide, look, theme, hover, round: chosen });

function fit() {
  following = false;
  view = { a: log.dropped, b: Math.max(log.latest * 1.01, log.dropped + 0.05) };
}

function zoom(factor, px = wide) {
  if (following) {
    span = Math.min(60, Math.max(MIN_SPAN * 10, followSpan() * factor));
  } else {
    const at = timeAt(px), width = Math.min(Math.max((view.b - view.a) * factor, MIN_SPAN), Math.max(log.latest * 1.2, 1));
    const left = (at - view.a) / (view.b - view.a);
    view = { a: at - left * width, b: at + (1 - left) * width };
  }
  redraw();
}

function pan(seconds) {
  following = false;
  const width = view.b - view.a;
  const a = Math.min(Math.max(view.a + seconds, Math.min(0, log.dropped) - width / 2), Math.max(log.latest - width / 2, 0));
  view = { a, b: a + width };
  redraw();
}

function act(what) {
  if (what === "follow") { following = !following; span = 0; }
  if (what === "fit") fit();
  if (what === "in") zoom(1 / 1.5, wide / 2);
  if (what === "out") zoom(1.5, wide / 2);
  redraw();
}

// Somebody opened a round, here or elsewhere: it gets a frame and comes into view, unless new rounds are followed.
function frame(round) {
  chosen = round;
  const known = log.rounds.get(round);
  if (known && !(following && !done) && (known.t0 < view.a || known.t1 > view.b)) {
    following = false;
    const width = Math.max(view.b - view.a, (known.t1 - known.t0) * 1.5), middle = (known.t0 + known.t1) / 2;
    view = { a: middle - width / 2, b: middle + width / 2 };
  }
  redraw();
}

function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draws++; draw(); });
}

function draw() {
  const ctx = Lanes.fit(canvas);
  if (!ctx) return; // hidden tab: the observer calls again
  wide = canvas.clientWidth;
  if (following) {
    const width = followSpan(), b = Math.max(log.latest, width);
    view = { a: b - width, b };
  }
  followButton.setAttribute("aria-pressed", String(following));
  Lanes.draw(ctx, log, full());
  if (log.dropped > view.a && log.dropped > 0) {
    ctx.font = `12px ${theme.font}`;
    ctx.fillStyle = theme.muted;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.fillText(`before ${log.dropped.toFixed(1)} s: no longer kept`, 4, look.lanes[0] + look.lane / 2);
  }
  const label = log.latest > 0 ? `${log.latest.toFixed(2)} s` : "";
  if (clock.textContent !== label) clock.textContent = label;
}

// ---- pointer, wheel, keys ---------------------------------------------------------------------------------------
function place(event) {
  const box = stage.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function point(event) {
  const [px, py] = place(event), item = Lanes.under(log, full(), px, py);
  if (item !== hover) { hover = item; redraw(); }
  tip.hidden = !item;
  if (!item) return;
  tip.textContent = Lanes.explain(item, log).join("\n");
  tip.style.left = `${Math.max(4, Math.min(px + 12, wide - tip.offsetWidth - 4))}px`;
  tip.style.top = `${py > 110 ? Math.max(2, py - tip.offsetHeight - 12) : py + 14}px`;
}

function openAt(event) {
  const [px, py] = place(event), item = Lanes.under(log, full(), px, py);
  const round = item ? item.round : log.roundAt(timeAt(px));
  if (round !== null) Lanes.open(name, round);
}

// From the keyboard: the framed round if it is in view, else the last one in view.
function openSelected() {
  const inView = log.verified().filter((round) => round.t1 >= view.a && round.t0 <= view.b);
  const round = inView.find((known) => known.round === chosen) || inView[inView.length - 1];
  if (round) Lanes.open(name, round.round);
}

const fingers = new Map();
let pinch = 0, pressed = null; // where a press began; null once it has become a drag
stage.addEventListener("pointerdown", (event) => {
  if (event.pointerType === "mouse" && event.button !== 0) return;
  fingers.set(event.pointerId, event.clientX);
  if (event.pointerType === "mouse") stage.setPointerCapture(event.pointerId);
  pressed = fingers.size === 1 ? [event.clientX, event.clientY] : null;
  point(event);
});
stage.addEventListener("pointermove", (event) => {
  if (!fingers.has(event.pointerId)) return point(event);
  if (pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) < 4) return; // a click may tremble
  pressed = null;
  const moved = event.clientX - fingers.get(event.pointerId);
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
function release(event) {
  fingers.delete(event.pointerId);
  pinch = 0;
  stage.classList.remove("drag");
}
stage.addEventListener("pointerup", (event) => {
  if (pressed && fingers.has(event.pointerId)) openAt(event);
  pressed = null;
  release(event);
});
stage.addEventListener("pointercancel", (event) => { pressed = null; release(event); });
stage.addEventListener("pointerleave", (event) => {
  if (event.pointerType !== "mouse") release(event);
  tip.hidden = true;
  if (hover) { hover = null; redraw(); }
});
stage.addEventListener("wheel", (event) => {
  const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
  if (!sideways && !event.ctrlKey && document.activeElement !== stage) return; // the page keeps its own scrolling
  event.preventDefault();
  if (sideways) pan(((event.deltaX || event.deltaY) / wide) * (view.b - view.a));
  else zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.003), place(event)[0]);
}, { passive: false });
stage.addEventListener("keydown", (event) => {
  const keys = {
    ArrowLeft: () => pan(-(view.b - view.a) / 8), ArrowRight: () => pan((view.b - view.a) / 8), Enter: openSelected,
    "+": () => act("in"), "=": () => act("in"), "-": () => act("out"), f: () => act("follow"), F: () => act("follow"), 0: () => act("fit"), Home: () => act("fit"),
  };
  if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  keys[event.key]();
});
for (const button of root.querySelectorAll("[data-act]")) button.addEventListener("click", () => act(button.dataset.act));

// ---- the same in words ------------------------------------------------------------------------------------------
function facts() {
  const working = log.bars.map((list) => list.filter((item) => item.kind !== "wait"));
  const busy = working.map((list) => list.reduce((sum, item) => sum + item.t1 - item.t0, 0));
  let both = 0, j = 0;
  for (const one of working[0]) {
    while (j < working[1].length && working[1][j].t1 <= one.t0) j++;
    for (let i = j; i < working[1].length && working[1][i].t0 < one.t1; i++) both += Math.max(0, Math.min(one.t1, working[1][i].t1) - Math.max(one.t0, working[1][i].t0));
  }
  const rounds = log.verified(), middle = rounds.map((round) => round.verify).sort((a, b) => a - b)[rounds.length >> 1] || 0;
  const total = Math.max(log.latest - log.dropped, 1e-9), share = (part) => `${Math.min(100, (100 * part) / total).toFixed(0)} % of the time`;
  return [
    ["Shown", `${log.dropped.toFixed(1)} to ${log.latest.toFixed(2)} s`],
    ["Verification rounds", String(rounds.length)],
    ["Median verification", `${(middle * 1000).toFixed(1)} ms`],
    ["Target device busy", share(busy[0])],
    ["Draft device busy", share(busy[1])],
    ["Both at once", share(both)],
    ["Hits and misses", log.marks.length ? counted() : "none looked up"],
    ["Tokens accepted", String(rounds.reduce((sum, round) => sum + round.accepted, 0))],
  ];
}

function counted() {
  const hits = log.marks.filter((mark) => mark.hit).length;
  return `${hits} hits, ${log.marks.length - hits} misses`;
}

// The picture's label once the run has ended, and a short line now and then while it goes on.
let spoken = 0;
function speak() {
  if (log.empty) {
    stage.setAttribute("aria-label", "No run yet.");
    live.textContent = "";
    return;
  }
  if (done) stage.setAttribute("aria-label", "Timeline. " + facts().map(([label, value]) => `${label}: ${value}`).join(". ") + ".");
  if (!done && performance.now() - spoken < SPOKEN_MS) return;
  spoken = performance.now();
  live.textContent = `Timeline, ${log.latest.toFixed(1)} seconds: ${log.verified().length} rounds${log.marks.length ? ", " + counted() : ""}.`;
}

let tabled = 0, tableDue = 0;
function table() {
  if (!textView.open || tableDue) return;
  const wait = done ? 0 : Math.max(0, tabled + TABLE_MS - performance.now());
  tableDue = setTimeout(() => { tableDue = 0; tabled = performance.now(); fillTables(); }, wait);
}

function cell(tag, text, scope) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (scope) made.scope = scope;
  return made;
}

function line(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

function fillTables() {
  const ms = (seconds) => `${(seconds * 1000).toFixed(1)} ms`;
  root.querySelector(".tl-facts tbody").replaceChildren(...facts().map(([label, value]) => line(cell("th", label, "row"), cell("td", value))));
  root.querySelector(".tl-rounds tbody").replaceChildren(...log.verified(ROUNDS_LISTED).reverse().map((round) => {
    const head = cell("th", "", "row"), opener = cell("button", String(round.round));
    opener.type = "button";
    opener.setAttribute("aria-label", `Open round ${round.round}`);
    opener.addEventListener("click", () => Lanes.open(name, round.round));
    head.append(opener);
    const result = round.hit === undefined ? "–" : round.hit ? "H hit" : "M miss";
    return line(head, ...[result, round.drafted, round.accepted, round.tokens ?? "–", ms(round.waited), ms(round.verify)].map((value) => cell("td", String(value))));
  }));
}
textView.addEventListener("toggle", () => { if (textView.open) fillTables(); });

// ---- start ------------------------------------------------------------------------------------------------------
Lanes.onOpen(name, root, frame);
new ResizeObserver(() => redraw()).observe(stage);
new MutationObserver(() => { theme = Lanes.theme(root); redraw(); }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
document.fonts?.ready.then(() => redraw());
// What the tests look at: the numbers behind the picture.
root.sgState = () => ({
  feed, seen, bars: log.bars.map((list) => list.length), marks: log.marks.length, rounds: log.rounds.size, view: { ...view }, following,
  latest: log.latest, done, dropped: log.dropped, draws, chosen,
});
watch("value", receive);
receive();

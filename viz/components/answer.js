// The last answer as tokens, and one track per method: how many of the same tokens each had at a moment. Token rows (see
// viz/tokenlog.py) are fetched while they are looked at. Whatever a model wrote is placed with textContent.
const root = element.querySelector(".an");
const list = root.querySelector(".an-text"), asked = root.querySelector(".an-asked"), tip = root.querySelector(".an-tip");
const go = root.querySelector(".an-go"), icon = root.querySelector(".an-icon"), slide = root.querySelector(".an-slide"), clock = root.querySelector(".an-clock");
const board = root.querySelector(".an-tracks"), tracks = [...root.querySelectorAll(".an-track")];
const FRAME_MS = 100;
const STATES = { a: "accepted draft", c: "correction by the target", b: "bonus of the target", p: "plain, without a draft", "": "text held back until now" };
const PICTURE = { go: "M5 3l12 7-12 7z", pause: "M4 3h4v14H4zM12 3h4v14h-4z" };
// Marks that change the direction or cannot be seen are named, all but the joiners that emoji and scripts need.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;
const seen = (text) => text.replace(UNSEEN, (mark) => `\u2039U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u203a`);

let view = "rendered", log = "", rows = [], tokens = [], asking = false, times = {}, tracksText = "", moment = null, end = 0, timer = 0, current = -1, marked = [];

function show() {
  const value = props.value || {};
  if ((value.log || "") !== log) reset(value.log || "");
  root.dataset.view = view;
  if (asked.textContent !== (value.asked || "")) asked.textContent = value.asked || "";
  if ((value.tracks || "") !== tracksText) {
    tracksText = value.tracks || "";
    times = tracksText ? JSON.parse(tracksText) : {};
    end = Math.max(0, ...Object.values(times).map((list) => list[list.length - 1] || 0));
    slide.max = String(end || 1);
  }
  const playable = !!value.done && end > 0;
  go.disabled = slide.disabled = !playable;
  if (!playable) stop();
  fetchRows();
  draw();
}

function reset(name) {
  stop();
  log = name; rows = []; tokens = []; times = {}; tracksText = ""; moment = null; end = 0; current = -1; marked = [];
  list.replaceChildren();
  tip.hidden = true;
}

// ---- tokens -----------------------------------------------------------------------------------------------------
async function fetchRows() {
  const value = props.value || {};
  if (view !== "tokens" || asking || !log || (value.rows || 0) <= rows.length) return;
  asking = true;
  const wanted = log;
  try {
    const text = await server.tokens({ log: wanted, after: rows.length });
    if (text && wanted === log) append(JSON.parse(text));
  } catch (error) { /* the next update asks again */ }
  asking = false;
  if (wanted !== log) fetchRows();
}

function append(fresh) {
  const down = list.scrollHeight - list.scrollTop - list.clientHeight < 40, part = document.createDocumentFragment();
  for (const row of fresh) {
    const span = document.createElement("span"), text = String(row[0]);
    span.className = `t ${row[1] || "p"}`;
    span.textContent = text === "" ? "\u00b7" : seen(text).replace(/\n/g, "\u21b5\n");
    if (row[1]) tokens.push(rows.length);
    rows.push(row);
    part.append(span);
  }
  list.append(part);
  if (down) list.scrollTop = list.scrollHeight;
  draw();
}

function explain(index) {
  const [, state, round, hit, ms] = rows[index];
  const lines = [STATES[state] || STATES[""]];
  if (state && round > 0) {
    lines.push(`round ${round}` + (hit === 1 ? ": hit, the guess was waiting" : hit === 0 ? ": miss, the guess was made while the target waited" : ""));
  }
  if (state) lines.push(`token ${tokens.indexOf(index) + 1}, ${(ms / 1000).toFixed(2)} s after the first`);
  return lines.join("\n");
}

function point(index) {
  list.children[current]?.classList.remove("on");
  current = index;
  const span = list.children[index];
  tip.hidden = !span;
  if (!span) return;
  span.classList.add("on");
  tip.textContent = explain(index);
  list.setAttribute("aria-label", `${span.textContent}: ${tip.textContent.replace(/\n/g, ", ")}`);
  const box = root.getBoundingClientRect(), at = span.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(at.left - box.left, box.width - tip.offsetWidth - 8))}px`;
  tip.style.top = `${at.bottom - box.top + 6}px`;
}

list.addEventListener("pointerover", (event) => { const at = [...list.children].indexOf(event.target); if (at >= 0) point(at); });
list.addEventListener("pointerleave", () => point(-1));
list.addEventListener("blur", () => point(-1));
list.addEventListener("focus", () => { if (current < 0 && rows.length && list.matches(":focus-visible")) point(0); });
list.addEventListener("scroll", () => { if (!tip.hidden) point(-1); });
list.addEventListener("click", (event) => { const at = [...list.children].indexOf(event.target); if (at >= 0 && rows[at][2] > 0) open(at); });
list.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -1e9, End: 1e9 }[event.key];
  if (event.key === "Enter" && current >= 0 && rows[current][2] > 0) open(current);
  if (!step || !rows.length) return;
  event.preventDefault();
  const at = Math.max(0, Math.min(rows.length - 1, current + step));
  list.children[at].scrollIntoView({ block: "nearest" });
  requestAnimationFrame(() => point(at));
});
function open(index) { Lanes.open("timeline", rows[index][2]); }

// ---- tracks -----------------------------------------------------------------------------------------------------
function reached(list, ms) { // tokens that are there at `ms`
  let low = 0, high = list.length;
  while (low < high) { const middle = (low + high) >> 1; if (list[middle] <= ms) low = middle + 1; else high = middle; }
  return low;
}

function draw() {
  const value = props.value || {}, names = value.names || [], labels = value.labels || {}, notes = value.notes || {};
  const own = times[names[0]];
  const now = moment ?? (value.done && own ? own[own.length - 1] || 0 : value.now || 0);
  const all = Math.max(1, value.done ? value.count || 1 : value.limit || 1);
  const said = [];
  tracks.forEach((track, i) => {
    const [name, rail, note] = track.children, method = names[i], known = times[method];
    const tokensNow = known ? reached(known, now) : i === 0 ? value.count || 0 : 0;
    const text = !method ? "" : known || i === 0 ? `${tokensNow} tokens` + (known && value.done ? ` (all: ${(known[known.length - 1] / 1000).toFixed(2)} s)` : "") : notes[method] || "";
    put(name, method ? labels[method] || method : "");
    put(note, known && value.done && known.length < all ? `${tokensNow} tokens, then the texts part` : text);
    rail.firstElementChild.style.transform = `scaleX(${Math.min(1, tokensNow / all)})`;
    if (method) said.push(`${labels[method] || method}: ${text}`);
  });
  put(clock, names.length ? `${(now / 1000).toFixed(2)} s` : "");
  if (!timer && document.activeElement !== slide) slide.value = String(now);
  const label = said.length ? `At ${(now / 1000).toFixed(2)} s after the first token. ${said.join(". ")}.` : "No answer yet.";
  if (!timer) board.setAttribute("aria-label", label);
  cursors(names, labels, now, value.done);
}

function put(place, text) { if (place.textContent !== text) place.textContent = text; }

function cursors(names, labels, now, done) {
  for (const span of marked) delete span.dataset.at;
  marked = [];
  if (view !== "tokens" || !tokens.length) return;
  const own = times[names[0]], mine = done && own ? reached(own, now) : tokens.length;
  names.forEach((name, i) => {
    if (!times[name] || (i === 0 && !done)) return;
    const at = reached(times[name], now);
    const span = at > 0 ? list.children[tokens[Math.min(at, tokens.length) - 1]] : null;
    if (!span) return;
    span.dataset.at = span.dataset.at ? `${span.dataset.at} ${labels[name] || name}` : labels[name] || name;
    marked.push(span);
  });
  tokens.forEach((index, n) => list.children[index].classList.toggle("ahead", n >= mine));
}

// ---- playing ----------------------------------------------------------------------------------------------------
function play() {
  const from = moment === null || moment >= end ? 0 : moment, began = performance.now();
  timer = setInterval(() => {
    moment = Math.min(end, from + performance.now() - began);
    slide.value = String(moment);
    if (moment >= end) stop();
    draw();
  }, FRAME_MS);
  icon.setAttribute("d", PICTURE.pause);
  go.setAttribute("aria-label", "Pause");
}
function stop() {
  clearInterval(timer);
  timer = 0;
  icon.setAttribute("d", PICTURE.go);
  go.setAttribute("aria-label", "Play again at true speed");
}
go.addEventListener("click", () => { if (timer) { stop(); draw(); } else play(); });
slide.addEventListener("input", () => { stop(); moment = Number(slide.value); draw(); });

for (const button of root.querySelectorAll("[data-view]")) {
  if (button.tagName !== "BUTTON") continue;
  button.addEventListener("click", () => {
    view = root.dataset.view = button.dataset.view;
    for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
    point(-1);
    fetchRows();
    draw();
  });
}
root.sgState = () => ({ view, rows: rows.length, moment, end, playing: !!timer, times: Object.keys(times) });
watch("value", show);
show();

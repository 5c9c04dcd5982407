// The lessons' frame: which step, which language, the player, the answer, the keys, present mode. Scenes are in scenes.js.
const root = element.querySelector(".ln");
const part = (name) => root.querySelector(`.ln-${name}`);
const STEPS = 8, FRAME_MS = 33, SLOW = [8, 20, 1];
const address = () => new URL(location.href).searchParams;
const still = matchMedia("(prefers-reduced-motion: reduce)");

// ---- what is shown ------------------------------------------------------------------------------------------------
let data = null, lang = address().get("lang") === "zh" ? "zh" : "en", presenting = address().get("view") === "present";
let step = /^[1-8]$/.test(address().get("lesson") || "") ? Number(address().get("lesson")) : 1;
let scene = null, at = 0, playing = false, slow = 8, last = 0, carried = 0, frame = 0, open = false;
const kept = {}; // what the visitor set, by step

const words = () => data.strings[lang];

// "{ssd.hit_rate:%1}": a path into the numbers (or into `more`), then decimals, or % with decimals.
function fill(template, more = {}) {
  let whole = true;
  const text = String(template).replace(/\{([\w.]+)(?::(%?)(\d*))?\}/g, (_, path, share, digits) => {
    const value = path in more ? more[path] : path.split(".").reduce((at, key) => at?.[key], data.numbers);
    if (value === null || value === undefined) { whole = false; return ""; }
    if (typeof value !== "number") return String(value);
    return share ? `${(value * 100).toFixed(digits || 0)}\u00a0%` : digits === undefined || digits === "" ? String(value) : value.toFixed(Number(digits));
  });
  return whole ? text : "";
}

async function load(trace) {
  root.dataset.state = "waiting";
  try {
    data = JSON.parse(await server.lesson({ trace }));
  } catch (error) {
    part("notice").textContent = "The recorded runs could not be fetched. Reload the page to try again. / 无法取得记录的运行，请重新加载页面。";
    return;
  }
  const pick = part("trace");
  pick.replaceChildren(...data.names.map((name) => new Option(name, name, false, name === data.chosen)));
  root.dataset.state = "ready";
  show();
  document.fonts?.ready.then(() => scene && visible() && move(at)); // a canvas drawn before its font came
}

function show() {
  const { ui, steps } = words(), said = steps[step - 1];
  root.lang = lang === "zh" ? "zh-Hans" : "en";
  root.dataset.step = step;
  root.classList.toggle("presenting", presenting);
  document.documentElement.style.overflow = presenting ? "hidden" : "";
  part("steps").setAttribute("aria-label", ui.steps);
  part("steps").replaceChildren(...steps.map((each, n) => {
    const button = document.createElement("button"), number = document.createElement("b"), name = document.createElement("span");
    button.type = "button";
    button.dataset.go = n + 1;
    number.textContent = n + 1;
    name.textContent = each.short;
    if (n + 1 === step) button.setAttribute("aria-current", "step");
    button.append(number, name);
    button.setAttribute("aria-label", `${n + 1}, ${each.short}`);
    return button;
  }));
  for (const place of root.querySelectorAll("[data-ui]")) place.textContent = ui[place.dataset.ui];
  for (const button of root.querySelectorAll("[data-lang]")) button.setAttribute("aria-pressed", String(button.dataset.lang === lang));
  part("theme").setAttribute("aria-label", ui.theme);
  part("present").textContent = presenting ? ui.leave : ui.present;
  part("back").textContent = `← ${ui.back}`;
  part("next").textContent = `${ui.next} →`;
  part("back").disabled = step === 1;
  part("next").disabled = step === STEPS;
  part("earlier").setAttribute("aria-label", ui.earlier);
  part("later").setAttribute("aria-label", ui.later);
  part("at").setAttribute("aria-label", ui.position);
  part("keys").textContent = ui.keys;
  part("kicker").textContent = fill(ui.step, { n: step });
  part("question").textContent = said.question;
  part("lead").textContent = fill(said.lead);
  part("notice").textContent = data.unknown ? ui.unknown : "";
  stage();
  answer();
  source();
}

function stage() {
  const box = part("scene");
  pause();
  box.replaceChildren();
  const before = scene && scene.step === step ? at : null;
  scene = Scenes[step]({ box, data, words: words(), fill, lang, keep: (kept[step] ||= {}), big: presenting });
  part("player").hidden = !scene;
  if (!scene) {
    const note = document.createElement("p");
    note.className = "sc-missing";
    note.textContent = words().ui.missing;
    box.append(note);
    return;
  }
  if (before === null) slow = scene.slow || 1;
  scene.step = step;
  move(before ?? scene.start);
  play(false);
}

function answer() {
  const said = words().steps[step - 1], ui = words().ui;
  part("reveal").textContent = open ? ui.hide : ui.reveal;
  part("reveal").setAttribute("aria-expanded", String(open));
  part("answer").hidden = !open;
  root.toggleAttribute("data-open", open);
  if (open && presenting) play(false);
  if (!open) return scene && move(at); // presenting, the scene was hidden
  part("says").textContent = fill(said.answer);
  const more = step === 7 ? ["from", "always", "never"].filter((name) => data.numbers.batch?.[name]).map((name) => fill(said[`more_${name}`])) : [fill(said.more)];
  part("more").textContent = more.join(" ");
  part("facts").replaceChildren(...said.facts.map(([label, value]) => [fill(label), fill(value)]).filter(([label, value]) => label && value).map(([label, value]) => {
    const fact = document.createElement("div"), name = document.createElement("dt"), number = document.createElement("dd");
    name.textContent = label;
    number.textContent = value;
    fact.append(number, name);
    return fact;
  }));
  part("extra").replaceChildren();
  scene?.extra?.(part("extra"));
  part("note").textContent = fill(said.note);
}

function source() {
  const run = data.runs[{ 1: "ar", 2: "sd" }[step] || "ssd"], given = data.distribution;
  const from = step === 6 && given ? { prompt: given.prompt, name: "distribution.json", models: [given.target, given.draft, given.dtype].join(", ") } : run;
  part("source").textContent = from ? fill(words().ui.source, from) : "";
}

// ---- the player ---------------------------------------------------------------------------------------------------
function move(to) {
  at = Math.min(Math.max(to, scene.from), scene.to);
  scene.draw(scene.clock === "beats" ? Math.floor(at + 1e-9) : at);
  const range = part("at");
  range.value = Math.round(((at - scene.from) / Math.max(1e-9, scene.to - scene.from)) * 1000);
}

function pause() {
  playing = false;
  cancelAnimationFrame(frame);
}

function play(on) {
  pause();
  if (!scene) return;
  playing = on && !still.matches; // whoever wants less motion goes on step by step
  const ui = words().ui;
  part("play").textContent = still.matches ? `${ui.later} ▸` : playing ? `❚❚ ${ui.pause}` : `▶ ${ui.play}`;
  part("speed").hidden = scene.clock === "beats" || still.matches;
  part("speed").textContent = slow === 1 ? ui.real : fill(ui.slow, { n: slow });
  part("speed").setAttribute("aria-label", `${ui.speed}: ${part("speed").textContent}`);
  if (!playing) return;
  if (at >= scene.to - 1e-9) move(scene.from);
  last = performance.now();
  carried = 0;
  frame = requestAnimationFrame(tick);
}

function tick(now) {
  if (!playing || !root.isConnected || !visible()) return pause();
  carried += now - last;
  last = now;
  const beat = scene.clock === "beats" ? scene.pace : FRAME_MS;
  if (carried >= beat) {
    const steps = Math.floor(carried / beat);
    move(scene.clock === "beats" ? Math.floor(at) + steps : at + carried / 1000 / slow);
    carried = scene.clock === "beats" ? carried - steps * beat : 0;
  }
  if (at >= scene.to - 1e-9) return play(false);
  frame = requestAnimationFrame(tick);
}

function toggle() {
  if (open && presenting) reveal(); // the scene was behind the answer
  if (still.matches) hop(1); else play(!playing);
}

function hop(by) { // to the next or previous stop
  if (!scene) return;
  play(false);
  if (scene.clock === "beats") return move(Math.floor(at) + by);
  const ahead = by > 0 ? scene.stops.find((t) => t > at + 1e-6) : scene.stops.findLast((t) => t < at - 1e-6);
  move(ahead ?? (by > 0 ? scene.to : scene.from));
}

// ---- going about --------------------------------------------------------------------------------------------------
function go(to) {
  if (!data || to < 1 || to > STEPS || to === step) return;
  step = to;
  open = false;
  remember();
  show();
  if (root.contains(document.activeElement) || document.activeElement === document.body) part("question").focus({ preventScroll: true });
  (presenting ? root : part("question")).scrollIntoView?.({ block: "nearest" });
  root.scrollTop = 0;
}

function remember() { // the address always leads back here
  const url = new URL(location.href);
  url.searchParams.set("lesson", step);
  for (const [name, value, usual] of [["lang", lang, "en"], ["view", presenting ? "present" : "", ""], ["tab", "learn", ""]]) {
    if (value === usual) url.searchParams.delete(name); else url.searchParams.set(name, value);
  }
  if (url.href !== location.href) history.replaceState(history.state, "", url);
}

function reveal() {
  open = !open;
  answer();
  if (presenting) root.scrollTop = 0; else if (open) part("answer").scrollIntoView({ block: "nearest" });
}

function speak(to) {
  lang = to;
  remember();
  show();
}

function present(on) {
  presenting = on;
  if (!on && document.fullscreenElement) document.exitFullscreen();
  remember();
  show();
}

root.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button || !data) return;
  const is = (name) => button.classList.contains(`ln-${name}`);
  if (button.dataset.go) go(Number(button.dataset.go));
  else if (button.dataset.lang) speak(button.dataset.lang);
  else if (is("theme")) document.body.classList.toggle("dark");
  else if (is("present")) present(!presenting);
  else if (is("play")) toggle();
  else if (is("earlier")) hop(-1);
  else if (is("later")) hop(1);
  else if (is("speed")) faster();
  else if (is("reveal")) reveal();
  else if (is("back")) go(step - 1);
  else if (is("next")) go(step + 1);
});
part("at").addEventListener("input", (event) => {
  if (!scene) return;
  play(false);
  move(scene.from + (event.target.value / 1000) * (scene.to - scene.from));
});
part("trace").addEventListener("change", (event) => {
  const url = new URL(location.href);
  url.searchParams.set("trace", event.target.value);
  history.replaceState(history.state, "", url);
  scene = null;
  load(event.target.value);
});

function faster() {
  const on = playing;
  slow = SLOW[(SLOW.indexOf(slow) + 1) % SLOW.length];
  play(on);
}

// ---- keys: only while the lessons are in view, and never instead of what a focused control does with a key ----------
const visible = () => root.getClientRects().length > 0;
function pressed(event) {
  if (!root.isConnected) return document.removeEventListener("keydown", pressed);
  if (!data || !visible() || event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
  const target = event.target, range = target.type === "range", button = target.tagName === "BUTTON" || target.tagName === "SUMMARY";
  if ((target.matches("input, textarea, select, [contenteditable]") && !range) || (target.getAttribute("role") === "tab" && /Arrow|Home|End|Enter| /.test(event.key))) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (range && /Arrow|Page|Home|End/.test(key)) return;
  if (button && (key === "Enter" || key === " ")) return;
  const keys = {
    ArrowRight: () => go(step + 1), ArrowLeft: () => go(step - 1), PageUp: () => go(step - 1),
    PageDown: () => (open ? go(step + 1) : reveal()), // a presenter's remote: first the answer, then the next question
    " ": toggle, Enter: reveal, 9: reveal, ",": () => hop(-1), ".": () => hop(1), s: faster,
    l: () => speak(lang === "en" ? "zh" : "en"), d: () => document.body.classList.toggle("dark"), p: () => present(!presenting),
    f: () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen?.()),
    Escape: () => presenting && present(false),
  };
  const act = /^[1-8]$/.test(key) ? () => go(Number(key)) : keys[key];
  if (!act || (key.startsWith("Page") && !presenting)) return;
  event.preventDefault();
  act();
}
document.addEventListener("keydown", pressed);

// ---- when it comes into view, changes size or theme -----------------------------------------------------------------
let asked = false, wide = 0;
function seen() {
  if (!visible()) return pause();
  if (!asked) {
    asked = true;
    load(address().get("trace") || "");
  } else if (scene && root.clientWidth !== wide) {
    wide = root.clientWidth;
    move(at);
  }
}
const sizes = new ResizeObserver(seen);
sizes.observe(root);
const dark = new MutationObserver(() => { if (!root.isConnected) { dark.disconnect(); sizes.disconnect(); } else if (scene && visible()) move(at); });
dark.observe(document.body, { attributes: true, attributeFilter: ["class"] });
still.addEventListener?.("change", () => scene && play(false));
root.classList.toggle("presenting", presenting);
seen();

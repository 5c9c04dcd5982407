// One round, opened up. What is shown comes from the server for (feed, round), see viz/rounds.py; every text of it is
// placed with textContent. The small picture draws the rows that the timeline has.
const root = element.querySelector(".in");
const none = root.querySelector(".in-none"), body = root.querySelector(".in-round"), canvas = root.querySelector("canvas");
const steps = root.querySelector(".in-steps");
const source = (props.value || {}).source || "";
const look = Lanes.look({ lane: 36, gap: 38 });
const RENEW_MS = 1000; // a round that was still going on is asked for again no more often than this

let theme = Lanes.theme(root), feed = "", shown = null, wanted = null, asked = 0, due = 0;

// ---- which round ------------------------------------------------------------------------------------------------
async function open(number) {
  const entry = Lanes.published(source);
  if (!entry || !entry.feed) return;
  const mine = ++asked;
  wanted = number;
  let story = {};
  try {
    story = await server.story({ feed: entry.feed, round: number });
  } catch (error) { /* told below */ }
  if (mine !== asked) return;
  const fresh = number !== shown?.round || feed !== entry.feed;
  feed = entry.feed;
  shown = story && story.round === number ? story : null;
  if (!shown) {
    wanted = null;
    none.textContent = `Round ${number} is no longer kept.`;
  }
  show(fresh);
}

// The timeline has news: of another run, or of a round that was still going on.
function arrived() {
  const entry = Lanes.published(source);
  if (!entry) return;
  if (entry.feed !== feed) {
    feed = entry.feed;
    asked++;
    shown = wanted = null;
    none.textContent = "Click a round in the timeline to see what happened in it, or use the buttons above.";
    show(false);
  } else if (shown && shown.go.next === null && !due && entry.log.verified(1)[0]?.round > shown.round) {
    due = setTimeout(() => { due = 0; if (wanted === shown?.round) open(wanted); }, RENEW_MS);
  }
  if (!shown) buttons();
}

// Where a button leads: as the server said, or before any round is open, from what the timeline has.
function target(go) {
  if (shown) return shown.go[go];
  const rounds = Lanes.published(source)?.log.verified() || [];
  if (go === "previous" || go === "next") return rounds.length ? rounds[rounds.length - 1].round : null;
  if (go.startsWith("next")) return null;
  const hit = go === "previous_hit";
  return rounds.reverse().find((round) => round.hit === hit)?.round ?? null;
}

function buttons() {
  for (const button of root.querySelectorAll("[data-go]")) {
    const off = target(button.dataset.go) === null;
    if (button.disabled !== off) button.disabled = off;
  }
}

function go(where) {
  const number = target(where);
  if (number !== null && number !== undefined) Lanes.open(source, number);
}

// ---- drawing it -------------------------------------------------------------------------------------------------
function make(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function token(text, kind = "") {
  const made = make("span", `t ${kind}`, text);
  made.dir = "auto";
  return made;
}

function write(part, values) {
  const section = root.querySelector(`[data-part="${part}"]`);
  section.hidden = !values;
  for (const place of section.querySelectorAll("[data-text]")) place.textContent = values ? values[place.dataset.text] || "" : "";
  return section;
}

function show(fresh) {
  none.hidden = !!shown;
  body.hidden = !shown;
  buttons();
  if (!shown) return;
  const mark = root.querySelector(".m"), hit = shown.kind === "hit", miss = shown.kind === "miss";
  mark.className = `m ${shown.kind}`;
  mark.textContent = hit ? "H" : miss ? "M" : "";
  root.querySelector(".in-number").textContent = `Round ${shown.round}`;
  const lead = root.querySelector(".in-text");
  const said = [shown.lead, shown.batch].filter(Boolean).join(" ");
  if (lead.textContent !== said) lead.textContent = said;
  forks(shown.forks);
  key(shown.key);
  guess(shown.guess);
  numbers(shown.numbers);
  steps.classList.toggle("plain", !shown.forks);
  [...root.querySelectorAll(".in-step:not([hidden]) .n")].forEach((place, i) => { place.textContent = String(i + 1); });
  picture();
  if (fresh && document.activeElement?.closest?.(".tl")) body.scrollIntoView({ block: "nearest" });
}

function forks(values) {
  const section = write("forks", values);
  section.querySelector(".in-forks").replaceChildren(...(values ? values.forks : []).map((fork) => {
    const row = make("div", `in-fork ${fork.happened ? "happened" : ""}`), list = make("div", "in-branches");
    row.append(make("b", "", fork.happened ? `${fork.label}: this is what happened` : fork.label), list);
    for (const branch of fork.branches) {
      const box = make("span", `in-branch ${branch.happened ? "happened" : ""}`);
      box.append(token(branch.token), ...branch.ready.map((text) => token(text, "then")));
      if (branch.happened) box.append(make("i", "", "✓ this one happened"));
      list.append(box);
    }
    if (fork.missing !== null) {
      const box = make("span", "in-branch missing");
      box.append(token(fork.missing), make("i", "", "✗ this came, and was not prepared"));
      list.append(box);
    }
    return row;
  }));
}

function key(values) {
  const line = write("key", values).querySelector(".in-key");
  line.replaceChildren();
  if (!values) return;
  const pair = values.first ? "This token is the key that was looked up." : `The pair (${values.accepted} accepted, this token) is the key that was looked up.`;
  line.append(`${values.how} `, token(values.token, "target"), `. ${pair}`);
}

const STATES = { accepted: "✓ accepted", refused: "✗ refused", untested: "not reached" };
const CHOICES = { correction: "the target's choice instead", bonus: "the target's extra token", plain: "the target's token" };
function guess(values) {
  const section = write("guess", values && { ...values, checked: values.said });
  section.querySelector(".in-guess").replaceChildren(...(values ? [...values.tokens.map((one) => [one.token, one.state, STATES[one.state], one.state]),
    [values.choice.token, "target", CHOICES[values.choice.state], "target"]] : []).map(([text, kind, said, colour]) => {
    const box = make("div");
    box.append(token(text, kind), make("small", colour, said));
    return box;
  }));
}

function numbers(values) {
  const section = write("numbers", values.length ? {} : null);
  section.querySelector("tbody").replaceChildren(...values.map((one) => {
    const row = make("tr"), head = make("th", "", one.name);
    head.scope = "row";
    row.append(head, make("td", "", one.value), make("td", "", one.said));
    return row;
  }));
}

function picture() {
  const log = Lanes.published(source)?.log, round = log?.rounds.get(shown?.round);
  canvas.style.display = round && round.verify !== undefined ? "" : "none";
  const ctx = round && Lanes.fit(canvas);
  if (!ctx) return;
  const span = (round.t1 - round.t0) * 1.08, a = round.t0 - span * 0.03;
  Lanes.draw(ctx, log, { a, b: a + span, width: canvas.clientWidth, look, theme, zero: round.t0, round: shown.round, faint: true });
}

// ---- keys, start ------------------------------------------------------------------------------------------------
for (const button of root.querySelectorAll("[data-go]")) button.addEventListener("click", () => go(button.dataset.go));
root.addEventListener("keydown", (event) => {
  const where = { ArrowLeft: "previous", ArrowRight: "next" }[event.key];
  if (!where || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  event.preventDefault();
  go(where);
});
Lanes.onOpen(source, root, open);
Lanes.onPublish(source, root, arrived);
let wide = 0;
new ResizeObserver(() => { if (root.clientWidth !== wide) { wide = root.clientWidth; if (shown) picture(); } }).observe(root);
new MutationObserver(() => { theme = Lanes.theme(root); if (shown) picture(); }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
root.sgState = () => ({ round: shown?.round ?? null, kind: shown?.kind ?? null });
buttons();
arrived();

// Two lanes on one wall clock: what the rows of viz/deltas.py say, kept and drawn. A component gets this text before its
// own by naming it in `Part.shared`. No part of the page is touched here but the canvas context that is handed in.
//
//   const log = Lanes.log();               log.add(rows) takes rows in any order; log.bars[lane], log.marks, log.rounds,
//                                          log.latest (s), log.method, log.outcome. Bounded: log.dropped (s) is where it begins.
//   const theme = Lanes.theme(element);    colours and font as they are now; read again when the theme changes
//   const look = Lanes.look({ lane: 30 }); heights in css px { axis, title, lane, gap }; 0 leaves a part out. look.height
//   Lanes.draw(ctx, log, view)             view = { a, b, width, look, theme }: the seconds a to b over `width` css px, from
//                                          (0, 0) on; clipped, and nothing is cleared before. Further fields of a view:
//       until    nothing later than this second is drawn (a playhead)
//       hover    a bar or mark to outline          round    a round to frame
//       letters  false: no words in the bars       faint    true: whatever is not of `round` is dimmed
//       zero     the second that the axis calls 0
//   Lanes.under(log, view, px, py)         the bar or mark at a point, null where there is none
//   Lanes.explain(item, log)               what it was, as lines of text
//   Lanes.fit(canvas)                      sizes the canvas to its box; its context in css px and cleared, null while hidden
//
// Components of one page meet by the name of a timeline (its elem_id), each giving its own element so that it is
// forgotten when that leaves the page:
//   Lanes.publish(name, entry)             entry = { feed, log, done }: what the timeline shows has changed
//   Lanes.published(name)                  the newest entry, undefined before the first
//   Lanes.onPublish(name, element, call)   Lanes.onOpen(name, element, call): call(round) when somebody opens a round
//   Lanes.open(name, round)
//
// Times are seconds here, microseconds in the rows. Lane 0 is the target, lane 1 the draft.
const Lanes = (() => {
  const MAX_ITEMS = 20000; // beyond, the oldest fifth is dropped
  const NARROW = 30;       // css px below which a bar has no words
  const NAMES = { verify: "Verification", prefill: "Prefill", glue: "Glue", tree: "Tree step", step: "Draft step", wait: "Waiting" };
  const KINDS = ["verify", "prefill", "tree", "glue", "step", "wait"]; // from the bottom of a stack

  // ---- the log --------------------------------------------------------------------------------------------------
  function insert(list, item) {
    let at = list.length;
    while (at > 0 && list[at - 1].t0 > item.t0) at--;
    if (at === list.length) list.push(item); else list.splice(at, 0, item);
  }

  class Log {
    constructor() {
      this.bars = [[], []];      // { kind, round, t0, t1, ... } by t0
      this.marks = [];           // look-ups { round, t0, hit, k, rank, ready, candidates } by t0
      this.rounds = new Map();   // round -> { round, t0, t1, verify, rows, drafted, accepted, tokens, waited, steps, stepped, beside, hit }
      this.longest = [0, 0];     // of a lane's bars, in seconds
      this.latest = this.dropped = 0;
      this.method = this.outcome = "";
    }

    add(rows) {
      for (const row of rows) this.take(row);
      if (this.bars[0].length + this.bars[1].length + this.marks.length > MAX_ITEMS) this.drop();
    }

    take(row) {
      const t0 = row[2] / 1e6, t1 = (row[2] + row[3]) / 1e6, round = row[1];
      this.latest = Math.max(this.latest, t1);
      const put = (lane, kind, more) => {
        const item = { kind, round, t0, t1, ...more };
        this.longest[lane] = Math.max(this.longest[lane], t1 - t0);
        insert(this.bars[lane], item);
      };
      const of = () => {
        let known = this.rounds.get(round);
        if (!known) this.rounds.set(round, (known = { round, t0, t1, waited: 0, steps: 0, stepped: 0, beside: 0 }));
        return known;
      };
      const begins = (known) => { known.t0 = Math.min(known.t0, t0); known.t1 = Math.max(known.t1, t1); };
      switch (row[0]) {
        case "v": {
          const [rows, drafted, accepted] = row.slice(4);
          put(0, "verify", { rows, drafted, accepted });
          begins(Object.assign(of(), { verify: t1 - t0, at: t0, rows, drafted, accepted }));
          break;
        }
        case "pf": put(row[4] === 1 ? 1 : 0, "prefill", { tokens: row[5], reused: row[6] }); break;
        case "w":
          put(row[4] === 1 ? 1 : 0, "wait", {});
          if (row[4] !== 1) { of().waited += t1 - t0; begins(of()); }
          break;
        case "ds": put(1, "step", { i: row[4] }); of().steps++; of().stepped += t1 - t0; begins(of()); break;
        case "g": put(1, "glue", { rows: row[4] }); of().beside += t1 - t0; break;
        case "ts": put(1, "tree", { depth: row[4], rows: row[5] }); of().beside += t1 - t0; break;
        case "lk":
          insert(this.marks, { t0, round, hit: !!row[4], k: row[5], rank: row[6], ready: row[7], candidates: row[8] });
          begins(Object.assign(of(), { hit: !!row[4], ready: row[7], candidates: row[8] }));
          break;
        case "tk": of().tokens = (of().tokens || 0) + row[4]; break;
        case "start": this.method = String(row[4] || ""); break;
        case "end": this.outcome = String(row[4] || ""); break;
      }
    }

    drop() {
      const lists = [...this.bars, this.marks];
      for (const list of lists) list.splice(0, Math.ceil(list.length / 5));
      this.dropped = Math.min(...this.bars.map((list) => (list.length ? list[0].t0 : this.latest)));
      const first = Math.min(...this.bars.map((list) => (list.length ? list[0].round : Infinity)));
      for (const round of this.rounds.keys()) if (round < first) this.rounds.delete(round);
    }

    get empty() { return !this.bars[0].length && !this.bars[1].length; }

    between(lane, a, b) { // bars that touch the seconds a to b
      const list = this.bars[lane], found = [];
      for (let i = from(list, a - this.longest[lane]); i < list.length && list[i].t0 <= b; i++) if (list[i].t1 >= a) found.push(list[i]);
      return found;
    }

    // What touches the seconds a to b, as a log of its own.
    cut(a, b) {
      const part = Object.assign(new Log(), { method: this.method, latest: Math.min(b, this.latest), dropped: a, longest: [...this.longest] });
      part.bars = [0, 1].map((lane) => this.between(lane, a, b));
      part.marks = this.marks.filter((mark) => mark.t0 >= a && mark.t0 <= b);
      for (const [number, round] of this.rounds) if (round.t1 >= a && round.t0 <= b) part.rounds.set(number, round);
      return part;
    }

    roundAt(t) { // the verified round that t lies in, null between rounds
      for (const round of this.rounds.values()) if (round.verify !== undefined && round.t0 <= t && t <= round.t1) return round.round;
      return null;
    }

    // Verified rounds, the newest last. `count` from the end, all of them where it is left out.
    verified(count = Infinity) {
      const found = [...this.rounds.values()].filter((round) => round.verify !== undefined);
      return count === Infinity ? found : found.slice(-count);
    }
  }

  function from(list, t) { // index of the first item at or after t
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle].t0 < t) low = middle + 1; else high = middle;
    }
    return low;
  }

  // ---- looks ----------------------------------------------------------------------------------------------------
  function look(heights = {}) {
    const { axis, title, lane, gap } = { axis: 20, title: 17, lane: 56, gap: 42, ...heights };
    const first = axis + title, second = first + lane + gap;
    return { axis, title, lane, gap, lanes: [first, second], mark: first + lane + Math.min(13, gap / 2), height: second + lane + 1 };
  }

  function theme(element) {
    const style = getComputedStyle(element);
    const read = (name) => style.getPropertyValue(name).trim() || "gray";
    const tile = document.createElement("canvas"), pen = tile.getContext("2d");
    tile.width = tile.height = 6;
    pen.strokeStyle = read("--sg-wait");
    pen.beginPath();
    for (const [x, y] of [[-1, 7], [-4, 4], [2, 10]]) { pen.moveTo(x, y); pen.lineTo(x + 8, y - 8); }
    pen.stroke();
    return {
      font: style.fontFamily || "sans-serif", hatch: pen.createPattern(tile, "repeat"),
      text: read("--body-text-color"), muted: read("--sg-muted"), line: read("--border-color-primary"), page: read("--background-fill-primary"), floor: read("--sg-lane"),
      verify: read("--sg-target"), prefill: read("--sg-prefill"), glue: read("--sg-glue"), tree: read("--sg-draft"), step: read("--sg-step"), wait: read("--sg-wait"),
      onverify: read("--sg-on-target"), onprefill: read("--sg-on-prefill"), onglue: read("--sg-on-glue"), ontree: read("--sg-on-draft"), onstep: read("--sg-on-step"),
      overlap: read("--sg-overlap"), overlapLine: read("--sg-overlap-line"), hit: read("--sg-hit"), miss: read("--sg-miss"), onMark: read("--sg-on-mark"), draftInk: read("--sg-draft-ink"),
    };
  }

  function fit(canvas) {
    const width = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
    if (!width || !height) return null;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const ctx = canvas.getContext("2d");
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, width, height);
    return ctx;
  }

  // ---- drawing --------------------------------------------------------------------------------------------------
  function draw(ctx, log, given) {
    const view = { until: Infinity, hover: null, round: null, letters: true, faint: false, zero: 0, ...given };
    view.x = (t) => ((t - view.a) / (view.b - view.a)) * view.width;
    view.end = Math.min(view.b, view.until);
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, 0, view.width, view.look.height);
    ctx.clip();
    drawAxis(ctx, view);
    drawFloors(ctx, view);
    const bars = [0, 1].map((lane) => log.between(lane, view.a, view.end));
    drawOverlap(ctx, view, bars);
    for (const lane of [0, 1]) drawBars(ctx, view, bars[lane], view.look.lanes[lane]);
    drawMarks(ctx, view, log);
    drawFrame(ctx, view, log);
    ctx.restore();
  }

  function drawAxis(ctx, { a, b, zero, width, x, look, theme }) {
    if (!look.axis) return;
    const least = (b - a) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), milli = b - a < 0.5;
    ctx.font = `11px ${theme.font}`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.strokeStyle = theme.line;
    ctx.fillStyle = theme.muted;
    ctx.lineWidth = 1;
    for (let n = Math.max(0, Math.ceil((a - zero) / step)); n * step <= b - zero; n++) {
      const px = Math.round(x(zero + n * step)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(px, look.axis - 5);
      ctx.lineTo(px, look.lanes[1] + look.lane);
      ctx.stroke();
      const text = milli ? `${(n * step * 1000).toFixed(Math.max(0, digits - 3))} ms` : `${(n * step).toFixed(digits)} s`;
      if (px + 4 + ctx.measureText(text).width < width) ctx.fillText(text, px + 4, 8);
    }
  }

  function drawFloors(ctx, { width, look, theme }) {
    ctx.textBaseline = "alphabetic";
    ctx.textAlign = "left";
    for (const lane of [0, 1]) {
      ctx.fillStyle = theme.floor;
      ctx.fillRect(0, look.lanes[lane], width, look.lane);
      if (!look.title) continue;
      const name = lane ? "Draft device" : "Target device";
      ctx.font = `600 12px ${theme.font}`;
      ctx.fillStyle = lane ? theme.draftInk : theme.verify;
      ctx.fillText(name, 2, look.lanes[lane] - 4);
      const after = ctx.measureText(name).width + 10;
      ctx.font = `12px ${theme.font}`;
      ctx.fillStyle = theme.muted;
      ctx.fillText(lane ? "prepares the next guesses" : "checks guesses", after, look.lanes[lane] - 4);
    }
  }

  // Where a working bar of one lane meets a working bar of the other, from lane to lane.
  function drawOverlap(ctx, view, bars) {
    const { a, b, width, end, x, look, theme } = view;
    const [target, draft] = bars.map((list) => list.filter((item) => item.kind !== "wait"));
    let j = 0, left = null, right = null;
    const paint = () => {
      if (left === null) return;
      const px = Math.max(x(left), 0), wide = Math.max(Math.min(x(right), width) - px, 0.5);
      ctx.fillStyle = theme.overlap;
      ctx.fillRect(px, look.lanes[0], wide, look.lanes[1] + look.lane - look.lanes[0]);
      if (wide <= 3) return;
      ctx.fillStyle = theme.overlapLine;
      ctx.fillRect(px, look.lanes[0] + look.lane, wide, 2);
    };
    for (const one of target) {
      while (j < draft.length && draft[j].t1 <= one.t0) j++;
      for (let i = j; i < draft.length && draft[i].t0 < one.t1; i++) {
        const t0 = Math.max(one.t0, draft[i].t0), t1 = Math.min(one.t1, draft[i].t1, end);
        if (t1 <= t0) continue;
        if (left !== null && t0 - right < (b - a) / width) right = Math.max(right, t1); // joins what is less than a pixel apart
        else { paint(); left = t0; right = t1; }
      }
    }
    paint();
  }

  // Bars wider than a pixel are drawn one by one; narrower ones as the share of each pixel's time, stacked by kind.
  function drawBars(ctx, view, bars, top) {
    const columns = Math.ceil(view.width), broad = [], share = {};
    for (const item of bars) {
      const left = view.x(item.t0), right = view.x(Math.min(item.t1, view.until));
      if (right - left >= 1.5 || item.t1 > view.until) { broad.push([item, left, right]); continue; }
      const cells = (share[item.kind] ||= new Float32Array(columns + 1));
      for (let px = Math.max(0, Math.floor(left)); px <= Math.min(columns, Math.floor(right)); px++) cells[px] += Math.max(0, Math.min(right, px + 1) - Math.max(left, px));
    }
    drawShares(ctx, view, share, top, columns);
    for (const [item, left, right] of broad) drawBar(ctx, view, item, left, right, top);
    ctx.globalAlpha = 1;
  }

  function drawShares(ctx, { look, theme }, share, top, columns) {
    const used = KINDS.filter((kind) => share[kind]);
    for (let px = 0; px < columns && used.length; px++) {
      let bottom = top + look.lane;
      for (const kind of used) {
        const part = Math.min(1, share[kind][px]) * look.lane;
        if (part < 0.3) continue;
        ctx.fillStyle = kind === "wait" ? theme.line : theme[kind];
        ctx.fillRect(px, bottom - part, 1, part);
        bottom -= part;
      }
    }
  }

  function drawBar(ctx, view, item, left, right, top) {
    const { width, look, theme } = view, waits = item.kind === "wait";
    const px = Math.max(left, -2), wide = Math.min(right, width + 2) - px - (right - left > 4 ? 1 : 0);
    const inset = waits ? look.lane / 4 : 0; // waiting is a lower, hatched box: a gap, not work
    const y = top + inset, high = look.lane - 2 * inset;
    ctx.globalAlpha = view.faint && item.round !== view.round ? 0.3 : 1;
    ctx.fillStyle = waits ? theme.hatch : theme[item.kind];
    ctx.beginPath();
    if (wide > 6 && !waits) ctx.roundRect(px, y, wide, high, 3); else ctx.rect(px, y, wide, high);
    ctx.fill();
    if (waits && wide > 4) {
      ctx.strokeStyle = theme.wait;
      ctx.strokeRect(px + 0.5, y + 0.5, wide - 1, high - 1);
    }
    if (item === view.hover) {
      ctx.strokeStyle = theme.text;
      ctx.lineWidth = 2;
      ctx.strokeRect(px + 1, y + 1, wide - 2, high - 2);
      ctx.lineWidth = 1;
    }
    if (view.letters && wide >= NARROW && item.t1 <= view.until) drawWords(ctx, view, item, px, wide, top);
  }

  function drawWords(ctx, { look, theme }, item, px, wide, top) {
    const lines = words(item), pad = 5, middle = top + look.lane / 2;
    const two = look.lane >= 36 && lines.length > 1;
    ctx.fillStyle = theme["on" + item.kind] || theme.muted;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.font = `600 11.5px ${theme.font}`;
    const room = (text) => ctx.measureText(text).width <= wide - 2 * pad;
    if (!room(lines[0])) return;
    ctx.fillText(lines[0], px + pad, two ? middle - 7 : middle);
    ctx.font = `11px ${theme.font}`;
    if (two && room(lines[1])) ctx.fillText(lines[1], px + pad, middle + 8);
  }

  function words(item) {
    const ms = `${((item.t1 - item.t0) * 1000).toFixed(1)} ms`;
    switch (item.kind) {
      case "verify": return [item.drafted ? `${item.accepted}/${item.drafted} +1` : "+1", ms];
      case "tree": return [`tree ${item.depth + 1}`, `${item.rows} rows`];
      case "step": return [`draft ${item.i + 1}`, ms];
      case "wait": return [ms];
      default: return [item.kind, ms];
    }
  }

  function drawMarks(ctx, view, log) {
    const { a, end, x, look, theme } = view;
    if (!look.gap) return;
    const shown = [], margin = ((view.b - a) / view.width) * 8;
    for (let i = from(log.marks, a - margin); i < log.marks.length && log.marks[i].t0 <= end; i++) shown.push([x(log.marks[i].t0), log.marks[i]]);
    if (shown.some(([px], i) => i && px - shown[i - 1][0] < 15)) return drawDense(ctx, view, shown);
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (const [px, mark] of shown) {
      const at = px < 0 ? px : Math.max(px, 7.5); // whole at the left edge, unless it lies before
      ctx.globalAlpha = view.faint && mark.round !== view.round ? 0.35 : 1;
      ctx.fillStyle = mark.hit ? theme.hit : theme.miss;
      ctx.beginPath();
      if (mark.hit) ctx.arc(at, look.mark, 7, 0, 7); else ctx.roundRect(at - 6.5, look.mark - 6.5, 13, 13, 2);
      ctx.fill();
      if (mark === view.hover) { ctx.strokeStyle = theme.text; ctx.lineWidth = 2; ctx.stroke(); ctx.lineWidth = 1; }
      ctx.fillStyle = theme.onMark;
      ctx.font = `700 10px ${theme.font}`;
      ctx.fillText(mark.hit ? "H" : "M", at, look.mark + 0.5);
    }
    ctx.globalAlpha = 1;
  }

  // Too close for letters: hits stand up from the middle line, misses hang down; crowded columns show the shares.
  function drawDense(ctx, { width, look, theme }, shown) {
    const step = 3, cells = new Map(), y = look.mark, high = Math.min(8, look.gap / 2 - 1);
    for (const [px, mark] of shown) {
      const at = Math.floor(px / step), cell = cells.get(at) || [0, 0];
      cell[mark.hit ? 0 : 1]++;
      cells.set(at, cell);
    }
    ctx.fillStyle = theme.line;
    ctx.fillRect(0, y, width, 1);
    for (const [at, [hits, misses]] of cells) {
      const all = hits + misses;
      ctx.fillStyle = theme.hit;
      ctx.fillRect(at * step, y - (high * hits) / all, step - 1, (high * hits) / all);
      ctx.fillStyle = theme.miss;
      ctx.fillRect(at * step, y + 1, step - 1, (high * misses) / all);
    }
    ctx.font = `700 10px ${theme.font}`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    for (const [letter, at, colour] of [["H", y - 6, theme.hit], ["M", y + 7, theme.miss]]) {
      ctx.fillStyle = theme.page;
      ctx.fillRect(0, at - 6, 12, 12);
      ctx.fillStyle = colour;
      ctx.fillText(letter, 1, at);
    }
  }

  function drawFrame(ctx, { round, faint, x, end, look, theme }, log) {
    const known = round === null || faint ? null : log.rounds.get(round);
    if (!known || known.t0 > end) return;
    const left = x(known.t0), wide = Math.max(3, x(known.t1) - left);
    ctx.strokeStyle = theme.text;
    ctx.lineWidth = 2;
    ctx.strokeRect(left, look.lanes[0] - 2, wide, look.lanes[1] + look.lane - look.lanes[0] + 2);
    ctx.lineWidth = 1;
  }

  // ---- values ---------------------------------------------------------------------------------------------------
  function under(log, { a, b, width, look }, px, py) {
    const t = a + (px / width) * (b - a), slack = ((b - a) / width) * 7;
    if (Math.abs(py - look.mark) < 11 && look.gap) {
      let best = null;
      for (let i = from(log.marks, t - slack); i < log.marks.length && log.marks[i].t0 <= t + slack; i++) {
        if (!best || Math.abs(log.marks[i].t0 - t) < Math.abs(best.t0 - t)) best = log.marks[i];
      }
      return best;
    }
    const lane = [0, 1].find((n) => py >= look.lanes[n] && py <= look.lanes[n] + look.lane);
    return lane === undefined ? null : log.between(lane, t, t)[0] || null;
  }

  function explain(item, log) {
    if ("hit" in item) {
      const lines = [`${item.hit ? "H: hit" : "M: miss"}, round ${item.round}`];
      if (item.k >= 0) lines.push(`outcome: ${item.k} accepted, then the target's own token`);
      lines.push(item.rank < 0 ? "not among the candidates" : `candidate ${item.rank + 1} for this outcome`);
      lines.push(`${item.candidates} branches were prepared`);
      if (item.hit) lines.push(`${item.ready} drafted tokens were ready`);
      return lines;
    }
    const lines = [`${NAMES[item.kind]}, round ${item.round}`, `${((item.t1 - item.t0) * 1000).toFixed(2)} ms, from ${item.t0.toFixed(3)} s`];
    if (item.kind === "verify") {
      lines.push(item.drafted ? `${item.accepted} of ${item.drafted} drafted tokens accepted, +1 of its own` : "one token of its own", `${item.rows} rows in one forward`);
      const tokens = log.rounds.get(item.round)?.tokens;
      if (tokens) lines.push(`${tokens} ${tokens === 1 ? "token" : "tokens"} came out`);
    }
    if (item.kind === "prefill") lines.push(`${item.tokens} tokens read, ${item.reused} reused`);
    if (item.kind === "tree") lines.push(`depth ${item.depth + 1}, ${item.rows} branches at once`);
    if (item.kind === "glue") lines.push(`${item.rows} rows to fork from`);
    if (item.kind === "step") lines.push(`drafted token ${item.i + 1}, while the target waits`);
    return lines;
  }

  // ---- meeting by name ------------------------------------------------------------------------------------------
  const known = (window.sgTimelines ||= new Map());
  const tell = (kind, name, round) => document.dispatchEvent(new CustomEvent(kind, { detail: { name, round } }));
  function listen(kind, name, element, call) {
    const heard = ({ detail }) => {
      if (!element.isConnected) document.removeEventListener(kind, heard);
      else if (detail.name === name) call(detail.round);
    };
    document.addEventListener(kind, heard);
  }

  return {
    log: () => new Log(), look, theme, fit, draw, under, explain,
    publish(name, entry) { known.set(name, entry); tell("sg-log", name); },
    published: (name) => known.get(name),
    onPublish: (name, element, call) => listen("sg-log", name, element, call),
    open: (name, round) => tell("sg-round", name, round),
    onOpen: (name, element, call) => listen("sg-round", name, element, call),
  };
})();

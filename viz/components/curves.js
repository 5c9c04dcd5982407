// Small charts in SVG whose colours are CSS classes, so that they follow the theme by themselves. Text by textContent.
//
//   Curves.chart(box, { x: [a, b], y: [a, b], xTicks, yTicks, xName, yName, lines, points, mark, height, label })
//     lines: [{ name, kind, at: [[x, y], ...] }]   points: [{ name, kind, x, y }]   kind: a CSS class
//   Curves.node(name, attributes, text)            an SVG element
const Curves = (() => {
  const NS = "http://www.w3.org/2000/svg";
  function node(name, attributes = {}, text) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function chart(box, given) {
    const { x, y, xTicks, yTicks, xName = "", yName = "", lines = [], points = [], label = "" } = given;
    const W = Math.max(300, Math.min(box.clientWidth || 560, 900)), H = given.height || 250;
    const pad = { l: 46, r: 26, t: 24, b: 42 };
    const px = (v) => pad.l + ((v - x[0]) / (x[1] - x[0])) * (W - pad.l - pad.r);
    const py = (v) => H - pad.b - ((v - y[0]) / (y[1] - y[0])) * (H - pad.t - pad.b);
    const svg = node("svg", { viewBox: `0 0 ${W} ${H}`, class: "cv", role: "img", "aria-label": label });
    for (const v of yTicks) {
      svg.append(node("line", { x1: pad.l, x2: W - pad.r, y1: py(v), y2: py(v), class: "cv-grid" }));
      svg.append(node("text", { x: pad.l - 7, y: py(v) + 4, class: "cv-tick", "text-anchor": "end" }, given.yText ? given.yText(v) : String(v)));
    }
    for (const v of xTicks) svg.append(node("text", { x: px(v), y: H - pad.b + 18, class: "cv-tick", "text-anchor": "middle" }, given.xText ? given.xText(v) : String(v)));
    svg.append(node("line", { x1: pad.l, x2: W - pad.r, y1: py(y[0]), y2: py(y[0]), class: "cv-axis" }));
    svg.append(node("text", { x: (pad.l + W - pad.r) / 2, y: H - 6, class: "cv-name", "text-anchor": "middle" }, xName));
    svg.append(node("text", { x: 4, y: 13, class: "cv-name" }, yName));
    for (const line of lines) {
      const at = line.at.filter(([, v]) => Number.isFinite(v)).map(([a, b]) => `${px(a).toFixed(1)},${py(Math.min(Math.max(b, y[0]), y[1])).toFixed(1)}`);
      svg.append(node("polyline", { points: at.join(" "), class: `cv-line ${line.kind}` }));
      if (line.name) svg.append(node("text", { x: W - pad.r - 4, y: Number(at[at.length - 1].split(",")[1]) + 15, class: "cv-text", "text-anchor": "end" }, line.name));
    }
    if (given.mark !== undefined) svg.append(node("line", { x1: px(given.mark), x2: px(given.mark), y1: pad.t, y2: py(y[0]), class: "cv-mark" }));
    for (const point of points) {
      const a = px(point.x), b = py(Math.min(Math.max(point.y, y[0]), y[1]));
      svg.append(point.square ? node("rect", { x: a - 5, y: b - 5, width: 10, height: 10, class: `cv-point ${point.kind}` }) : node("circle", { cx: a, cy: b, r: 5.5, class: `cv-point ${point.kind}` }));
      if (!point.name) continue;
      const left = a > W * 0.6;
      svg.append(node("text", { x: a + (left ? -10 : 10), y: b + (point.beside ? 4 : point.below ? 18 : -8), class: "cv-text", "text-anchor": left ? "end" : "start" }, point.name));
    }
    box.replaceChildren(svg);
  }

  return { chart, node };
})();

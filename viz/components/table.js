// Tables out of words, by textContent only. A table that is wider than the page scrolls in its own frame.
const root = element.querySelector(".tables");

function made(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function line(cells, tag, scope) {
  const row = document.createElement("tr");
  cells.forEach((text, i) => row.append(i && tag === "td" ? made("td", text) : made("th", text, { scope: tag === "td" ? "row" : scope })));
  return row;
}

function drawn(table) {
  const grid = document.createElement("table"), head = document.createElement("thead"), body = document.createElement("tbody");
  if (table.words) grid.className = "words";
  head.append(line(table.head, "th", "col"));
  body.append(...table.rows.map((cells) => line(cells, "td", "row")));
  grid.append(head, body);
  const frame = made("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title });
  frame.append(grid);
  return [made("h3", table.title), frame, ...(table.note ? [made("p", table.note)] : [])];
}

function show() {
  const value = props.value || {};
  root.replaceChildren(...(value.lines || []).map((text) => made("p", text)), ...(value.tables || []).flatMap(drawn));
}

watch("value", show);
show();

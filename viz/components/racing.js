// One list item per method, kept from update to update; words by textContent.
const list = element.querySelector(".racing");

function show() {
  const value = props.value || [];
  while (list.children.length > value.length) list.lastChild.remove();
  while (list.children.length < value.length) {
    const item = document.createElement("li"), line = document.createElement("div");
    line.append(document.createElement("b"), document.createElement("span"));
    item.append(line, document.createElement("progress"));
    list.append(item);
  }
  value.forEach((made, i) => {
    const item = list.children[i], bar = item.querySelector("progress");
    item.className = made.state === "left out" ? "out" : made.state;
    item.querySelector("b").textContent = made.label;
    item.querySelector("span").textContent = made.said || made.state;
    bar.max = made.of || 1;
    bar.value = made.state === "done" ? bar.max : made.tokens;
    bar.setAttribute("aria-label", made.label);
  });
}

watch("value", show);
show();

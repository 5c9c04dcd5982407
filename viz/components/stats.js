// Puts ready-made words into fixed places.
const places = [...element.querySelectorAll("[data-key]")];
const method = element.querySelector('[data-key="method"]');

function show() {
  const value = props.value || {};
  const words = { ...(value.cells || {}), method: value.method || "none yet", rule: value.rule || "", state: value.state === "idle" ? "" : value.state || "" };
  for (const place of places) {
    const word = words[place.dataset.key] || "";
    if (place.textContent !== word) place.textContent = word;
  }
  method.classList.toggle("none", !value.method);
}

watch("value", show);
show();

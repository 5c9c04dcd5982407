// Places the model line and switches the theme.
const who = element.querySelector(".sg-who");
const caution = element.querySelector(".sg-caution");
const line = element.querySelector(".sg-models");

function show() {
  const value = props.value || {};
  who.textContent = value.models || "";
  caution.textContent = value.caution || "";
  line.classList.toggle("loading", value.state === "loading");
  line.classList.toggle("failed", value.state === "failed");
  if (value.state === "failed") line.setAttribute("role", "alert");
}

element.querySelector(".sg-theme").addEventListener("click", () => document.body.classList.toggle("dark"));
watch("value", show);
show();

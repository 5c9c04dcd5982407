// Text only, by textContent: it may quote a prompt or a file name.
const line = element.querySelector(".sg-notice");

function show() {
  const value = props.value || {};
  line.classList.toggle("error", value.level === "error");
  line.setAttribute("role", value.level === "error" ? "alert" : "status");
  line.textContent = (value.level === "error" ? "\u26a0 " : "") + (value.text || "");
}

watch("value", show);
show();

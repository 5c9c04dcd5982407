// Places the model line and switches the theme.
const who = element.querySelector(".sg-who");
const caution = element.querySelector(".sg-caution");

function show() {
  const value = props.value || {};
  who.textContent = value.models || "";
  caution.textContent = value.caution || "";
}

element.querySelector(".sg-theme").addEventListener("click", () => document.body.classList.toggle("dark"));
watch("value", show);
show();

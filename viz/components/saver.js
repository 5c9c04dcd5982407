const line = element.querySelector(".saver");
let last = props.value?.number || 0;

function save() {
  const value = props.value || {};
  if (!value.number || value.number === last) return;
  last = value.number;
  const file = URL.createObjectURL(new Blob([value.text], { type: value.kind })), link = document.createElement("a");
  link.href = file;
  link.download = value.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(file), 60000);
  line.textContent = `Saved ${value.name}, ${Math.ceil(value.text.length / 1024)} kB.`;
}

watch("value", save);

// Four prompts to try. The words come with the value and are placed as text.
const cards = [...element.querySelectorAll(".ex-card")];

function show() {
  (props.value || []).forEach((example, n) => {
    const card = cards[n];
    if (!card) return;
    card.children[0].textContent = example.title;
    card.children[1].textContent = example.why;
    card.title = example.prompt;
  });
}

for (const card of cards) card.addEventListener("click", () => trigger("chosen", { n: Number(card.dataset.n) }));
watch("value", show);
show();

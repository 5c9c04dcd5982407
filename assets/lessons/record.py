"""Record distribution.json anew: what target and draft of the embedded pair think of the next token in the middle of an
answer. From the repository's root: python assets/lessons/record.py"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent.parent))

PROMPT = "Tell a short story about a lighthouse keeper."
BEGINNING = "Once upon a time, in a small"
KEPT = 24
SOURCE = (
    "Recorded by assets/lessons/record.py, not invented. Steps: the chat prompt and the beginning of an answer are given "
    f"to both models of the embedded pair; p (target) and q (draft) are the softmax of their last logits at temperature "
    f"1 over the whole vocabulary, for the {KEPT} likeliest tokens of each model. null: the token is not among the "
    f"{KEPT} of that model. mass: what the {KEPT} hold together."
)


def main() -> None:
    from saguaro_core.models import default_dtype, load_draft, load_target, resolve
    from saguaro_core.text import encode_prompt, load_tokenizer
    from saguaro_core.transformers_model import TransformersModel
    from saguaro_core.trunk import Trunk

    target, draft = resolve("embedded", "target"), resolve("embedded", "draft")
    dtype = default_dtype("cpu")
    tokenizer = load_tokenizer(target)
    ids = encode_prompt(tokenizer, [{"role": "user", "content": PROMPT}])[0]
    ids += tokenizer.encode(BEGINNING, add_special_tokens=False)
    loaded = {"p": (load_target(target, "cpu", dtype),), "q": load_draft(draft, target, "cpu", dtype)}
    kept = {}
    for name, parts in loaded.items():
        model = TransformersModel(*parts, context=1024)
        probs = Trunk(model).prefill(ids, 0)[0][0].float().softmax(-1)
        likeliest = probs.topk(KEPT)
        kept[name] = {int(model.ids[i]): float(p) for p, i in zip(*likeliest, strict=True)}
    union = sorted(kept["p"].keys() | kept["q"].keys(), key=lambda id: -max(kept[n].get(id, 0.0) for n in kept))
    data = {
        "source": SOURCE,
        "prompt": PROMPT,
        "beginning": BEGINNING,
        "target": target.name,
        "draft": draft.name,
        "dtype": str(dtype).removeprefix("torch."),
        "mass": {name: round(sum(probs.values()), 6) for name, probs in kept.items()},
        "tokens": [
            {"text": tokenizer.decode([id]), **{n: round(kept[n][id], 8) if id in kept[n] else None for n in kept}}
            for id in union
        ],
    }
    (FOLDER / "distribution.json").write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

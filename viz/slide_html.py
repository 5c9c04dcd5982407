"""A race as one HTML file that plays offline: the race component's own files, the palette and the data.

The file may show other people's text. Data goes in as JSON with every `<` escaped, so that it cannot end its script
element, and the file's content policy forbids all requests.
"""

from __future__ import annotations

import html
import json
from typing import Any

from . import theme
from .components.base import static
from .components.race import Race, shown

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
NAMES = {  # Gradio's variables, which the components read
    "light": {
        "body-text-color": "#171c26",
        "background-fill-primary": theme.BACKGROUND["light"],
        "border-color-primary": "#dde2ea",
    },
    "dark": {
        "body-text-color": "#eef1f6",
        "background-fill-primary": theme.BACKGROUND["dark"],
        "border-color-primary": "#2c3442",
    },
}
PAGE_CSS = """
* { box-sizing: border-box; }
body { margin: 0; padding: 18px; background: var(--background-fill-primary); color: var(--body-text-color);
  font-family: "IBM Plex Sans", system-ui, sans-serif; }
main { max-width: 1280px; margin: 0 auto; }
button, input { font-family: inherit; }
.race { border: 0 !important; padding: 0 !important; box-shadow: none !important; }
.rc-head { padding-right: 52px; }
.slide-theme { position: fixed; right: 14px; top: 12px; z-index: 9; }
@media print { .rc-controls, .slide-theme { display: none !important; } }
"""
START = """
const element = document.getElementById("race");
const props = { value: JSON.parse(document.getElementById("data").textContent) };
const watch = () => {};
if (matchMedia("(prefers-color-scheme: dark)").matches) document.body.classList.add("dark");
document.querySelector(".slide-theme").addEventListener("click", () => document.body.classList.toggle("dark"));
"""


def page(race: dict[str, Any]) -> str:
    """The file's text. `race`: what `comparison.compare` gives."""
    data = json.dumps(shown(race), ensure_ascii=False).replace("<", "\\u003c")
    script = "\n".join(static(name, "js") for name in (*Race.shared, Race.name))
    title = html.escape(f"Saguaro race: {race['prompt'][:80]}")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>:root{{{_variables("light", theme.LIGHT)}}}
body.dark{{{_variables("dark", theme.DARK)}}}
{PAGE_CSS}
#race {{ {static(Race.name, "css")} }}</style>
</head>
<body>
<button type="button" class="slide-theme" aria-label="Switch between light and dark">&#9680;</button>
<main id="race">{static(Race.name, "html")}</main>
<script type="application/json" id="data">{data}</script>
<script>(() => {{{START}
{script}
root.focus({{ preventScroll: true }});
}})();</script>
</body>
</html>
"""


def _variables(mode: str, palette: dict[str, str]) -> str:
    ours = {f"sg-{name}": value for name, value in palette.items()}
    return ";".join(f"--{name}:{value}" for name, value in (NAMES[mode] | ours).items())

"""Colours, fonts and the content policy of the page. Nothing here is fetched from another host.

The palette lives in two sets of CSS variables, light and dark, that every component and the canvas read. Text on each
colour has a contrast of at least 4.5 (tests/test_viz.py computes it).
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

CSS_FILE = Path(__file__).with_name("page.css")

LIGHT = {
    "muted": "#566072", "lane": "#f3f5f9",
    "target": "#2458d3", "on-target": "#ffffff", "prefill": "#a9c0f7", "on-prefill": "#0d1f4d",
    "draft": "#f3a83f", "on-draft": "#2b1a00", "draft-ink": "#8f5200", "glue": "#a85600", "on-glue": "#ffffff",
    "step": "#8a3ab0", "on-step": "#ffffff", "wait": "#aab3c2",
    "overlap": "rgb(13 148 120 / 0.16)", "overlap-line": "#0d9478",
    "hit": "#15784a", "miss": "#c02b2b", "miss-ink": "#b3261e", "on-mark": "#ffffff",
    "tip": "#1b2230", "tip-text": "#f4f6fa", "tok-a": "#d9f2e4", "tok-c": "#fbe0df", "tok-b": "#dde7fd",
    "m-ar": "#566072", "m-sd": "#9a4b00", "m-hsd": "#8a3ab0", "m-ssd": "#0d6e5c", "m-ssd-hsd": "#2458d3",
    "m-hf-ar": "#5c6600", "m-hf-assisted": "#b3265e", "m-other": "#171c26",
}  # fmt: skip
DARK = {
    "muted": "#a6b0c0", "lane": "#1d222c",
    "target": "#83a9ff", "on-target": "#0a1733", "prefill": "#3f5796", "on-prefill": "#ffffff",
    "draft": "#f5b353", "on-draft": "#2b1a00", "draft-ink": "#f5b353", "glue": "#cf7d24", "on-glue": "#1a0f00",
    "step": "#c892e3", "on-step": "#23092f", "wait": "#596272",
    "overlap": "rgb(45 212 170 / 0.15)", "overlap-line": "#2dd4aa",
    "hit": "#4cc98d", "miss": "#ff8e84", "miss-ink": "#ff9d94", "on-mark": "#0b1210",
    "tip": "#e9edf5", "tip-text": "#171c26", "tok-a": "#173a2b", "tok-c": "#472325", "tok-b": "#1f3157",
    "m-ar": "#a6b0c0", "m-sd": "#f5b353", "m-hsd": "#c892e3", "m-ssd": "#2dd4aa", "m-ssd-hsd": "#83a9ff",
    "m-hf-ar": "#cdd46a", "m-hf-assisted": "#ff93b8", "m-other": "#eef1f6",
}  # fmt: skip
BACKGROUND = {"light": "#ffffff", "dark": "#151922"}

# The page talks to its own server and to nobody else, whatever a model or a prompt says. Gradio's front end needs
# inline scripts and `Function` (gr.HTML), so this guards images, frames and requests, not scripts.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "worker-src 'self' blob:; frame-src 'none'; object-src 'none'; base-uri 'self'; form-action 'self'"
)


def head() -> str:
    """What goes into the document's head: the policy, the palette and the page's own css."""
    light, dark = (";".join(f"--sg-{name}:{value}" for name, value in palette.items()) for palette in (LIGHT, DARK))
    return (
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>:root{{{light}}} body.dark{{{dark}}}</style>"
        f"<style>{CSS_FILE.read_text(encoding='utf-8')}</style>"  # `css=` would rewrite selectors and lose @media rules
    )


def theme() -> gr.themes.Base:
    # Regular and bold only: the semi-bold files that come with Gradio hold a subset of the letters.
    sans = gr.themes.utils.fonts.LocalFont("IBM Plex Sans", weights=(400, 700))
    mono = gr.themes.utils.fonts.LocalFont("IBM Plex Mono", weights=(400, 700))
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        font=[sans, "system-ui", "sans-serif"],
        font_mono=[mono, "ui-monospace", "monospace"],
        radius_size=gr.themes.sizes.radius_lg,
    ).set(
        color_accent="var(--sg-target)",
        body_background_fill="#f7f8fb",
        body_background_fill_dark="#0e1118",
        background_fill_primary=BACKGROUND["light"],
        background_fill_primary_dark=BACKGROUND["dark"],
        block_background_fill=BACKGROUND["light"],
        block_background_fill_dark=BACKGROUND["dark"],
        body_text_color="#171c26",
        body_text_color_dark="#eef1f6",
        body_text_color_subdued=LIGHT["muted"],
        body_text_color_subdued_dark=DARK["muted"],
        border_color_primary="#dde2ea",
        border_color_primary_dark="#2c3442",
        block_border_width="1px",
        block_shadow="none",
        block_shadow_dark="none",
        button_primary_background_fill=LIGHT["target"],
        button_primary_background_fill_dark=DARK["target"],
        button_primary_background_fill_hover="#1c48b4",
        button_primary_background_fill_hover_dark="#a3c0ff",
        button_primary_text_color=LIGHT["on-target"],
        button_primary_text_color_dark=DARK["on-target"],
        button_secondary_background_fill=BACKGROUND["light"],
        button_secondary_background_fill_dark=BACKGROUND["dark"],
        button_secondary_background_fill_hover=LIGHT["lane"],
        button_secondary_background_fill_hover_dark=DARK["lane"],
        button_secondary_border_color="#dde2ea",
        button_secondary_border_color_dark="#2c3442",
        button_border_width="1px",
        button_cancel_background_fill=LIGHT["miss"],
        button_cancel_background_fill_dark=DARK["miss"],
        button_cancel_background_fill_hover="#a02222",
        button_cancel_background_fill_hover_dark="#ffaca4",
        button_cancel_text_color=LIGHT["on-mark"],
        button_cancel_text_color_dark=DARK["on-mark"],
        background_fill_secondary="#f3f5f9",
        background_fill_secondary_dark="#1d222c",
        input_background_fill=BACKGROUND["light"],
        input_background_fill_dark=BACKGROUND["dark"],
    )

"""What the browser tests do in any tab: watch for what must never happen, set a slider, open and save runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """Where the browser is."""
    return os.environ.get("SAGUARO_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def watched(tab, home: str | None = None) -> list[str]:
    """Watch a Playwright page from before it is opened; the list grows with what must not happen. `home`: the address
    that everything has to come from, None where requests are not watched."""
    bad: list[str] = []

    def requested(wanted: str) -> None:
        if not wanted.startswith((home, "data:", "blob:")):
            bad.append(f"request {wanted}")

    tab.on("dialog", lambda dialog: (bad.append(f"dialog {dialog.message}"), dialog.dismiss()))
    tab.on("pageerror", lambda error: bad.append(f"error {error}"))
    tab.on("console", lambda line: bad.append(f"console {line.text}") if line.type == "error" else None)
    if home is not None:
        tab.on("request", lambda request: requested(request.url))
    return bad


def set_slider(tab, slider: str, value: float) -> None:
    """Give the Gradio slider at the selector `slider` a value, through its number field."""
    for _ in range(10):  # a slider that was just mounted may put its old value back once
        tab.fill(f"{slider} input[type=number]", str(value))
        tab.press(f"{slider} input[type=number]", "Tab")
        tab.wait_for_timeout(150)
        if all(tab.input_value(f"{slider} input[type={kind}]") == str(value) for kind in ("number", "range")):
            return
    raise AssertionError(f"{slider} does not take its value")


def save(tab, menu: str, name: str) -> tuple[str, str]:
    """File name and content of what a button of the menu "Open / export" hands out."""
    unfold(tab, menu)
    with tab.expect_download() as download:
        tab.click(f"{menu} button:has-text('Save {name}')")
    return download.value.suggested_filename, Path(download.value.path()).read_text(encoding="utf-8")


def upload(tab, menu: str, *files: Path) -> None:
    unfold(tab, menu)
    tab.set_input_files(f"{menu} input[type=file]", files)


def unfold(tab, menu: str) -> None:
    if not tab.is_visible(f"{menu} button:has-text('Save')"):
        tab.click(f"{menu} > button")

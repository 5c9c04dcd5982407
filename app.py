"""The command line of the page: options -> engine -> page. Everything heavy is imported inside `main`.

python app.py                      the embedded pair on this machine's processor
python app.py --replay [PATH]      recorded traces, with no model and no torch
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from saguaro_core.options import add_engine_options, make_engine
from viz.context import one_line

TRACES = Path(__file__).parent / "assets" / "traces"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Watch speculative speculative decoding at work.", prog="app.py")
    made.add_argument(
        "--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        help="address to listen on (default: GRADIO_SERVER_NAME, or this machine only)",
    )  # fmt: skip
    made.add_argument("--port", type=int, help="port (default: GRADIO_SERVER_PORT, or the first free one from 7860)")
    made.add_argument(
        "--replay", metavar="PATH", nargs="?", const=str(TRACES),
        help="show recorded traces, with no model: a .jsonl file or a folder (default: the ones that come along)",
    )  # fmt: skip
    add_engine_options(made)
    return made


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    _quiet_environment()
    stopped = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: _interrupt(stopped))
    slot = page = None
    try:
        _check(options)
        slot, page, url = _serve(options)
        print(f"Saguaro is at {url}", flush=True)
        if options.replay is None:
            print("Loading the models ...", file=sys.stderr, flush=True)
            slot.load(lambda: make_engine(options)).join()
            if slot.state == "ready":
                print("The models are ready.", file=sys.stderr, flush=True)
        stopped.wait()
        return 0
    except KeyboardInterrupt:
        return 0
    except Refusal as refusal:
        print(f"app.py: {refusal}", file=sys.stderr)
        return 2
    finally:
        if page is not None:
            page.close(verbose=False)
        if slot is not None:
            slot.close()


class Refusal(Exception):
    """Something the user asked for that cannot be done, in one line."""


def _interrupt(stopped: threading.Event) -> None:
    first = not stopped.is_set()
    stopped.set()
    if first:  # breaks into a load that is still going on; a second signal must not break into the clean-up
        raise KeyboardInterrupt


def _quiet_environment() -> None:
    """Before gradio is imported: no telemetry, and no proxy between the page and this machine."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    for name in ("no_proxy", "NO_PROXY"):
        known = os.environ.get(name, "")
        if "127.0.0.1" not in known:
            os.environ[name] = ",".join(filter(None, (known, "localhost", "127.0.0.1")))


def _check(options: argparse.Namespace) -> None:
    """What can be seen to be wrong before anything is loaded."""
    if options.replay is None:
        from saguaro_core.devices import place

        try:
            place(options.target_device, options.draft_device, options.target_threads, options.draft_threads)
        except ValueError as error:
            raise Refusal(one_line(error)) from None
        for model in (options.target, options.draft):
            if model.startswith((".", "/", "~")) and not Path(model).expanduser().exists():
                raise Refusal(f"{model}: no such file or folder")


def _serve(options: argparse.Namespace):
    """The page, up before the models are: `(slot of the engine, page, address)`."""
    from viz import page, replay
    from viz.context import LOADING, Context, EngineSlot

    try:
        traces = replay.find(options.replay or TRACES)
    except ValueError as error:
        raise Refusal(one_line(error)) from None
    slot = EngineSlot()
    if options.replay is None:
        slot.state = LOADING
    blocks = page.build(Context(slot, traces))
    try:
        return slot, blocks, page.launch(blocks, options.host, options.port)
    except OSError:
        blocks.close(verbose=False)
        raise Refusal(
            f"cannot listen on {options.host}, port {options.port or '7860 to 7959'}: taken or not allowed"
        ) from None


if __name__ == "__main__":
    sys.exit(main())

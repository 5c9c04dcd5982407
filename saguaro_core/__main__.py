"""`python -m saguaro_core generate PROMPT`, `bench --prompts FILE`, `probe`, `distill`: see `--help`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

from . import trace
from .bench_command import add_bench_options, bench
from .distill import add_distill_options, distill
from .events import Notice, Tokens
from .options import add_engine_options, add_run_options, make_engine, run_settings
from .probe import add_probe_options, probe
from .settings import METHODS


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 a run failed, 2 something the user can mend, said in one line."""
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") != "0":
        from .tensor_parallel import follow

        follow()
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine is closed on the way out
    from .models import ModelError

    try:
        return args.command(args)
    except (ModelError, ValueError, OSError) as error:
        print(f"saguaro: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"saguaro: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m saguaro_core", description="Speculative speculative decoding.")
    commands = result.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("generate", help="answer one prompt, streaming")
    one.add_argument("prompt")
    one.add_argument("--method", default="ssd", help=f"{', '.join(METHODS)} (default ssd), hf-ar or hf-assisted")
    one.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; may be given again")
    one.set_defaults(command=generate)

    many = commands.add_parser("bench", help="measure methods on sets of prompts")
    add_bench_options(many)
    many.set_defaults(command=bench)

    made = commands.add_parser("distill", help="make a draft for a target")
    add_distill_options(made)
    made.set_defaults(command=distill)

    asked = commands.add_parser("probe", help="does SSD pay for these models on these devices? in about a minute")
    add_probe_options(asked)
    asked.set_defaults(command=probe)

    for command in (one, many):
        add_run_options(command)
        add_engine_options(command)
    return result


def generate(args: argparse.Namespace) -> int:
    from .engine import checked

    settings = run_settings(args)
    checked(args.method, [settings])  # a slip of the fingers should not wait for the models
    with make_engine(args) as engine:
        run = engine.generate(args.prompt, args.method, stop=args.stop, **settings)
        try:
            for event in run:
                if isinstance(event, Tokens):
                    print(event.text, end="", flush=True)
                elif isinstance(event, Notice):
                    print(f"[{event.text}]", file=sys.stderr)
        finally:
            run.cancel()
            print()
            if args.trace:
                trace.save(args.trace, run.events)
    if run.result.error:
        raise RuntimeError(run.result.error)
    print(one_line(args.method, run.summary), file=sys.stderr)
    if args.json:
        print(json.dumps({"text": run.text, "ids": run.ids, "reason": run.result.reason, "summary": run.summary}))
    return 0


def one_line(method: str, summary: dict) -> str:
    parts = [method, f"{summary['tokens']} tokens", f"TTFT {summary['ttft_s']:.2f} s"]
    for key, form in (
        ("decode_tok_s", "{:.1f} tok/s"),
        ("tokens_per_round", "{:.2f} tokens a round"),
        ("acceptance", "acceptance {:.2f}"),
        ("hit_rate", "hit rate {:.2f}"),
        ("overlap", "overlap {:.2f}"),
    ):
        if summary[key]:
            parts.append(form.format(summary[key]))
    return " · ".join(parts)


if __name__ == "__main__":
    sys.exit(main())

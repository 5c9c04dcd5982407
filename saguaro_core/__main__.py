"""`python -m saguaro_core generate PROMPT` and `python -m saguaro_core bench --prompts FILE`."""

from __future__ import annotations

import argparse
import json
import signal
import sys

from . import trace
from .events import Notice, Tokens
from .options import add_engine_options, add_run_options, make_engine, run_settings


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 a run failed, 2 something the user can mend, said in one line."""
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
    one.add_argument("--method", default="ssd", help="ar, sd, ssd (default), hf-ar or hf-assisted")
    one.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; may be given again")
    one.set_defaults(command=generate)

    many = commands.add_parser("bench", help="measure methods on a file of prompts")
    many.add_argument("--prompts", required=True, metavar="FILE", help="JSON lines with 'turns' or 'prompt'")
    many.add_argument("--methods", default="ar,sd,ssd", help="comma-separated (default ar,sd,ssd)")
    many.add_argument("--limit", type=int, metavar="N", help="take N prompts at even spacing")
    many.add_argument("--repeat", type=int, default=1, metavar="R", help="go through the prompts R times")
    many.add_argument("--turns", type=int, default=1, metavar="N", help="turns of each prompt to play (default 1)")
    many.set_defaults(command=bench)

    for command in (one, many):
        add_run_options(command)
        add_engine_options(command)
    return result


def generate(args: argparse.Namespace) -> int:
    with make_engine(args) as engine:
        run = engine.generate(args.prompt, args.method, stop=args.stop, **run_settings(args))
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


def bench(args: argparse.Namespace) -> int:
    from . import bench as benchmark
    from .prompts import load_prompts

    prompts = load_prompts(args.prompts, args.limit)
    methods = [method.strip() for method in args.methods.split(",") if method.strip()]
    events: list = []
    with make_engine(args) as engine:
        report = benchmark.bench(
            engine,
            prompts,
            methods,
            repeat=args.repeat,
            turns=args.turns,
            progress=lambda text: print(text, file=sys.stderr),
            on_run=lambda run: events.extend(run.events) if args.trace else None,
            **run_settings(args),
        )
    print(benchmark.table(report))
    if args.json:
        print(json.dumps(report))
    if args.trace:
        trace.save(args.trace, events)
    return 0


if __name__ == "__main__":
    sys.exit(main())

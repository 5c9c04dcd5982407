"""`python -m saguaro_core distill`: its options. The work is in `saguaro_core.distillation`."""

from __future__ import annotations

import argparse


def add_distill_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="embedded", help="hub id, folder, GGUF file or 'embedded' (default)")
    parser.add_argument("--out", required=True, metavar="DIR", help="the draft folder to write; --draft DIR loads it")
    parser.add_argument("--init", metavar="DRAFT", help="draft folder to start from, or 'embedded'")
    parser.add_argument("--minutes", type=float, default=60, metavar="M", help="time to spend in all (default 60)")
    parser.add_argument("--resume", action="store_true", help="go on with what was started in --out, as it was started")
    parser.add_argument("--layers", type=int, default=4, metavar="N", help="layers of a new student (default 4)")
    parser.add_argument("--head-rows", type=int, default=8192, metavar="N", help="tokens it can draft (default 8192)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda:N")
    parser.add_argument("--seed", type=int, default=0)


def distill(args: argparse.Namespace) -> int:
    from .distillation.command import Options, run

    options = Options(args.target, args.init, args.layers, args.head_rows, args.seed)
    run(args.out, options, args.minutes, args.resume, args.device)
    return 0

"""Command-line options that several programs share, and how they become engines."""

from __future__ import annotations

import argparse

from .fallback import FALLBACKS
from .fan_out import ALLOCATORS
from .settings import AUTO, DEFAULT_FALLBACK, PLAIN, PROPOSALS, VERIFICATIONS


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models and devices")
    group.add_argument("--target", default="embedded", help="hub id, folder, GGUF file or 'embedded' (default)")
    group.add_argument("--draft", default="embedded", help="likewise; a draft folder borrows the target's embeddings")
    group.add_argument("--target-device", default="cpu", metavar="DEVICE",
                       help="cpu (default), cuda:N, or several with commas: the target is split over them")  # fmt: skip
    group.add_argument("--draft-device", default="cpu", metavar="DEVICE", help="cpu (default) or cuda:N")
    group.add_argument("--target-threads", type=int, metavar="N", help="default: the cores the draft leaves")
    group.add_argument("--draft-threads", type=int, metavar="N", help="default: a quarter of the cores, at least one")
    group.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), help="default: bfloat16 where it is fast")
    group.add_argument("--context", type=int, default=4096, metavar="N", help="tokens of prompt and answer (4096)")


def make_engine(args: argparse.Namespace):
    """The engine these options name. Raises ModelError or ValueError with one line."""
    from .engine import SaguaroSSD

    return SaguaroSSD(
        args.target,
        args.draft,
        target_device=args.target_device,
        draft_device=args.draft_device,
        target_threads=args.target_threads,
        draft_threads=args.draft_threads,
        dtype=args.dtype,
        context=args.context,
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("generation")
    group.add_argument("--verification", choices=VERIFICATIONS,
                       help="of sd and ssd; default: greedy at temperature 0, coupled above")  # fmt: skip
    group.add_argument("--k", type=lookahead, metavar="K", help="lookahead: drafted tokens a round, or auto")
    group.add_argument("--patience", type=int, metavar="N", help="tokens drafted while the target waits, at most K")
    group.add_argument(
        "--fan-out",
        type=fan_out,
        metavar="F",
        help=f"candidates per fork: one number, K+1 with commas, auto, or a rule: {', '.join(ALLOCATORS)}",
    )
    group.add_argument("--budget", type=int, metavar="M", help="candidates in all, for a rule (16)")
    group.add_argument("--proposal", choices=PROPOSALS, default=PLAIN,
                       help="Saguaro sampling, for verification token and block under ssd (plain)")  # fmt: skip
    group.add_argument("--saguaro-c", type=saguaro_c, metavar="C",
                       help="factor of proposal saguaro for likely tokens: 0 to 1, or auto (default)")  # fmt: skip
    group.add_argument("--fallback", choices=FALLBACKS, default=DEFAULT_FALLBACK,
                       help=f"after a miss: a strategy, or how one is chosen ({DEFAULT_FALLBACK})")  # fmt: skip
    group.add_argument("--temperature", type=float, default=0.0, metavar="T")
    group.add_argument("--top-k", type=int, default=0, metavar="N", help="0: off")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1: off")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--max-new-tokens", type=int, default=256, metavar="N")
    group.add_argument("--trace", metavar="FILE", help="write all events as JSON lines")
    group.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def lookahead(text: str) -> int | str:
    """ "3" or "auto"."""
    return text if text == AUTO else int(text)


def saguaro_c(text: str) -> float | str:
    """ "0.5" or "auto"."""
    return text if text == AUTO else float(text)


def fan_out(text: str) -> int | tuple[int, ...] | str:
    """ "4", "8,4,2", "auto" or the name of a rule."""
    if text in (AUTO, *ALLOCATORS):
        return text
    numbers = tuple(int(part) for part in text.split(","))
    return numbers[0] if len(numbers) == 1 else numbers


def run_settings(args: argparse.Namespace) -> dict:
    names = (
        "verification", "proposal", "saguaro_c", "fallback", "k", "patience", "fan_out", "budget", "temperature",
        "top_k", "top_p", "seed", "max_new_tokens",
    )  # fmt: skip
    return {name: getattr(args, name) for name in names}

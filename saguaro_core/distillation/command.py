"""The distillation from beginning to end: text, student, training, draft folder.

OUT/config.json, model.safetensors    the draft folder, written at every report
OUT/README.md, training.json          its model card; settings and log
OUT/training/                         what --resume needs: options, text, first student, state, log
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..devices import check_device
from ..models import ModelError, default_dtype, load_config, load_target, resolve, uses_target_embeddings
from ..text import check_pair_agrees, eos_ids, load_tokenizer
from .card import write_card
from .corpus import load_shard, save_shard, shard_paths
from .openings import scripts
from .selfplay import ANSWER, GIVEN, Conversation, Writer
from .student import frequent_tokens, load_student, save_draft, write_student
from .training import Measured, Progress, Recipe, Trainer

HELD_OUT = 64  # conversations, about, that are never trained on
WRITING_SHARE = 0.4  # of the time goes into text


@dataclass(frozen=True)
class Options:
    """What is fixed when a distillation starts. `rows` conversations are written side by side in `slots` tokens."""

    target: str = "embedded"
    init: str | None = None
    layers: int = 4
    head_rows: int = 8192
    seed: int = 0
    rows: int = 96
    slots: int = 384


def run(
    out: str | Path, options: Options, minutes: float, resume: bool = False, device: str = "cpu",
    recipe: Recipe | None = None, say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Path:  # fmt: skip
    """Spend `minutes` in all on the draft folder `out`; returns it. Raises ModelError or ValueError with one line."""
    if not minutes > 0:
        raise ValueError(f"--minutes must be more than 0, not {minutes:g}")
    check_device(device)
    work = Work(Path(out).expanduser(), options, resume, device, say)
    recipe = recipe or Recipe(report_s=min(120, 60 * minutes / 20), seed=work.options.seed)
    try:
        work.write_text(60 * minutes * WRITING_SHARE)
        work.make_student()
        work.train(60 * minutes * (1 - WRITING_SHARE), recipe)
    except KeyboardInterrupt:
        say(f"Stopped. Go on with: python -m saguaro_core distill --out {out} --resume --minutes {minutes:g}")
        raise
    say(f"The draft is in {work.out}; use it with --target {work.options.target} --draft {work.out}")
    return work.out


class Work:
    """One distillation in the folder `out`."""

    def __init__(self, out: Path, options: Options, resume: bool, device: str, say: Callable[[str], None]):
        self.out, self.folder, self.device, self.say = out, out / "training", device, say
        self.options = self._stored_options() if resume else options
        self.target = resolve(self.options.target, "target")
        self.tokenizer = load_tokenizer(self.target)
        self.config = load_config(self.target).get_text_config(decoder=True)
        if not resume:
            self._check()
            self._start()

    def _stored_options(self) -> Options:
        try:
            return Options(**json.loads((self.folder / "options.json").read_text()))
        except (OSError, ValueError, TypeError):
            raise ModelError(f"there is no distillation in {self.out} to go on with") from None

    def _check(self) -> None:
        """Whatever the user can have got wrong, before any work."""
        if not 1 <= self.options.layers <= self.config.num_hidden_layers:
            raise ValueError(f"--layers must be 1 to {self.config.num_hidden_layers}, the target's layers")
        if self.options.head_rows < 1:
            raise ValueError(f"--head-rows must be 1 or more, not {self.options.head_rows}")
        if self.options.init:
            init = resolve(self.options.init, "draft")
            if not uses_target_embeddings(load_config(init)):
                raise ModelError(f"{init.name} is not a draft folder: it has embeddings of its own")
            check_pair_agrees(self.target, init, self.tokenizer)

    def _start(self) -> None:
        if self.folder.exists():
            raise ModelError(f"{self.out} holds a distillation already: go on with --resume, or choose another folder")
        if self.out.is_dir() and any(self.out.iterdir()):
            raise ModelError(f"{self.out} is not empty: choose another folder")
        self.folder.mkdir(parents=True)
        (self.folder / "options.json").write_text(json.dumps(asdict(self.options), indent=1))

    # -- text -------------------------------------------------------------------------------------------------------

    def write_text(self, seconds: float) -> None:
        """Let the target write until `seconds` have been spent on that in all."""
        spent, shard = sum(row["seconds"] for row in self._log("text")), len(shard_paths(self.folder))
        if shard and spent >= seconds:
            return
        self.say(f"{self.target.name} writes its own text for {_clock(seconds - spent)}")
        writer = Writer(
            load_target(self.target, self.device, default_dtype(self.device)),
            eos_ids(self.target, self.tokenizer), self.options.rows, self.options.slots, len(self.tokenizer),
        )  # fmt: skip
        seed = self.options.seed + shard
        source = scripts(self.tokenizer, seed, self.options.slots * 3 // 4)
        generator = torch.Generator(self.device).manual_seed(seed)
        while not shard or spent < seconds:
            started = time.monotonic()
            until = started + seconds - spent if shard else math.inf  # the first shard is whole: some of it is held out
            conversations = writer.write(source, generator, until)
            save_shard(self.folder / f"text-{shard:05d}.npz", conversations)
            took = time.monotonic() - started
            spent, shard = spent + took, shard + 1
            tokens = sum(len(one.tokens) for one in conversations)
            self._note("text", seconds=took, tokens=tokens, conversations=len(conversations))
            total = sum(row["tokens"] for row in self._log("text"))
            self.say(f"text {_clock(spent)} of {_clock(seconds)}: {total:,} tokens, {tokens / took:.0f} a second")

    @property
    def _held_out(self) -> tuple[list[Conversation], list[Conversation]]:
        """The held-out conversations, at even spacing in the first shard, and the others of that shard."""
        first = load_shard(shard_paths(self.folder)[0])
        spacing = max(2, len(first) // HELD_OUT)
        return first[::spacing], [one for i, one in enumerate(first) if i % spacing]

    def _text(self) -> list[Conversation]:
        """All that may be trained on."""
        return self._held_out[1] + [one for path in shard_paths(self.folder)[1:] for one in load_shard(path)]

    # -- student ----------------------------------------------------------------------------------------------------

    def make_student(self) -> None:
        """Put the first student into the work folder, once."""
        start = self.folder / "start"
        if (start / "model.safetensors").is_file():
            return
        if self.options.init:
            init = Path(resolve(self.options.init, "draft").path)
            start.mkdir(exist_ok=True)
            for name in ("config.json", "model.safetensors"):
                shutil.copyfile(init / name, start / name)
            return
        counts = np.zeros(self.config.vocab_size, np.int64)
        for one in self._text():
            counts += np.bincount(one.tokens[one.kinds != GIVEN], minlength=len(counts))
        head_ids = frequent_tokens(counts, self.options.head_rows, eos_ids(self.target, self.tokenizer))
        self.say(f"the head's {len(head_ids):,} tokens cover {counts[head_ids].sum() / counts.sum():.1%} of the text")
        write_student(load_target(self.target, "cpu", torch.float32), self.options.layers, head_ids, start)

    # -- training ---------------------------------------------------------------------------------------------------

    def train(self, seconds: float, recipe: Recipe) -> None:
        student, head_ids = load_student(self.folder / "start", self.target, self.device)
        trainer = Trainer(student, head_ids, recipe, self.folder / "state.pt")
        held_out, _ = self._held_out
        if not answered(held_out) or not answered(self._text()):
            raise ModelError("the text holds too few answers yet: go on with --resume and more --minutes")

        def report(progress: Progress, loss: float | None, measured: Measured) -> None:
            self._note("training", **vars(progress), loss=loss, **asdict(measured))
            self.say(
                f"training {_clock(progress.seconds)} of {_clock(seconds)}: {progress.tokens:,} tokens, agreement "
                f"{measured.agreement:.3f}, acceptance {measured.acceptance:.3f}, "
                f"{measured.tokens_per_round:.2f} tokens a round at K = {recipe.lookahead}"
            )
            with trainer.averaged():
                save_draft(student.config, trainer.weights, head_ids, self.out)
            self._write_card(recipe)

        if not trainer.resume():
            report(trainer.progress, None, trainer.measure(held_out))
        trainer.train(self._text, held_out, seconds, report)

    def _write_card(self, recipe: Recipe) -> None:
        settings = {"options": asdict(self.options), "recipe": asdict(recipe)}
        log = self._log()
        (self.out / "training.json").write_text(json.dumps({**settings, "log": log}, indent=1))
        write_card(self.out, self.target.name, settings, log)

    # -- log --------------------------------------------------------------------------------------------------------

    def _note(self, what: str, **values: Any) -> None:
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps({"what": what, **values}) + "\n")

    def _log(self, what: str | None = None) -> list[dict[str, Any]]:
        path = self.folder / "log.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        return [row for row in rows if what in (None, row["what"])]


def answered(text: list[Conversation]) -> bool:
    return any((one.kinds == ANSWER).any() for one in text)


def _clock(seconds: float) -> str:
    return f"{max(0, round(seconds)) // 60}:{max(0, round(seconds)) % 60:02d}"

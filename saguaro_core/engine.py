"""`SaguaroSSD`: a target and a draft in two worker processes, and a queue of runs.

The main process resolves models, owns the tokenizer and the workers, and turns what workers ship into the events of
a `Run`. It never runs a model.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait

from .devices import hardware, place, split
from .events import RunStarted
from .messages import Cancel, Connect, Done, Failed, Listening, Load, Perform, Ready
from .models import ModelError, check_supported, common_dtype, load_config, resolve
from .run import Batch, Run
from .settings import METHODS, Settings, make_settings, settings_of_rows
from .text import PromptError, check_pair_agrees, encode_prompt, eos_ids, load_tokenizer
from .worker_process import Worker

DEFAULT_CONTEXT = 4096
SMALLEST_CONTEXT = 64
END_SECONDS = 30.0  # a worker that does not end a cancelled run in this time is started anew
BASELINES = ("hf-ar", "hf-assisted")
HARDWARE_INFO = ("target_device", "draft_device", "target_threads", "draft_threads", "dtype", "min_rows")


def checked(method: str, settings: Sequence[dict]) -> list[Settings]:
    """Settings with every default filled in. Raises ValueError for an unknown method or a value that makes no sense."""
    if method.startswith("hf-") and method not in BASELINES:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join((*METHODS, *BASELINES))}")
    return [make_settings("ar" if method in BASELINES else method, **each) for each in settings]


class SaguaroSSD:
    """Speculative speculative decoding on two devices.

    `target`, `draft`: "embedded", a Hugging Face hub id, a local folder or a GGUF file. Devices are `cpu` or
    `cuda:N`; the target's may be several with commas between, over which it is split (tensor parallelism). `dtype`:
    "bfloat16" or "float32", None for the fastest exact one of the devices. `context`: tokens of prompt and answer to
    make room for, at most what the models allow. Blocks until both models are loaded. Raises ModelError or ValueError
    with one line for the user.
    """

    def __init__(
        self,
        target: str = "embedded",
        draft: str = "embedded",
        *,
        target_device: str = "cpu",
        draft_device: str = "cpu",
        target_threads: int | None = None,
        draft_threads: int | None = None,
        dtype: str | None = None,
        context: int = DEFAULT_CONTEXT,
    ):
        placements = place(target_device, draft_device, target_threads, draft_threads)
        if context < SMALLEST_CONTEXT:
            raise ValueError(f"the context must hold {SMALLEST_CONTEXT} tokens or more, not {context}")
        target_source = resolve(target, "target")
        draft_source = resolve(draft, "draft")
        for source in (target_source, draft_source):
            check_supported(load_config(source))
        self.tokenizer = load_tokenizer(target_source)
        check_pair_agrees(target_source, draft_source, self.tokenizer)
        self.eos = eos_ids(target_source, self.tokenizer)
        dtype = dtype or common_dtype(*split(target_device), draft_device)
        if dtype not in ("bfloat16", "float32", "float16"):
            raise ValueError(f"unknown dtype {dtype!r}; use bfloat16, float16 or float32")
        self._placement_notice = placements[2]
        self._hardware = hardware()
        self._names = itertools.count(1)
        self._runs: queue.Queue[tuple[list[Run], Perform, list[RunStarted], list[str]] | None] = queue.Queue()
        self._active: list[Run] = []
        self._key = secrets.token_hex(32)
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        sources = (target_source, draft_source)
        self._target = Worker("target", placements[0], Load(*sources, target_device, draft_device, dtype, context))
        self._draft = Worker("draft", placements[1], Load(*sources, draft_device, target_device, dtype, context))
        atexit.register(self.close)
        try:
            self._start(self._target, self._draft)
        except BaseException:
            self.close()
            raise
        self.info = {
            "target": target_source.name,
            "draft": draft_source.name,
            "target_device": target_device,
            "draft_device": draft_device,
            "target_threads": placements[0].threads,
            "draft_threads": placements[1].threads,
            "dtype": dtype,
            "exact": self._target.info["exact"],
            "min_rows": self._target.info["min_rows"],
            "context": self._target.info["context"],
        }
        self._thread = threading.Thread(target=self._serve, name="saguaro-engine", daemon=True)
        self._thread.start()

    def generate(
        self,
        prompt: str | list[dict[str, str]],
        method: str = "ssd",
        *,
        stop: Sequence[str] | str = (),
        reuse: int | None = None,
        **settings,
    ) -> Run:
        """Queue a run and return it at once; iterate it for events.

        `prompt`: one user message, or a chat `[{"role": ..., "content": ...}]`. `method`: one of `METHODS`, or the
        baselines "hf-ar" and "hf-assisted" (transformers' own generate). `stop`: strings that end the text before
        them. `reuse`: how many tokens of an earlier turn's keys and values may be kept (None: all that match, 0: none).
        `settings`: `k`, `fan_out`, `temperature`, `seed`, `max_new_tokens` and the other arguments of
        `settings.make_settings`. Raises PromptError (empty, or longer than the context) and ValueError (settings).
        """
        batch = self._submit([prompt], method, stop, reuse, [settings])
        return batch.runs[0]

    def generate_batch(
        self,
        prompts: Sequence[str | list[dict[str, str]]],
        method: str = "ssd",
        *,
        stop: Sequence[str] | str = (),
        reuse: int | None = None,
        **settings,
    ) -> Batch:
        """Queue one run over several prompts, decoded together, and return it at once.

        As `generate`; each of `temperature`, `top_k`, `top_p`, `seed` and `max_new_tokens` is one value for all
        prompts or a list of one a prompt. A sequence that has ended leaves the batch. What a sequence of the batch
        says is what it says alone, if the engine is `exact` and verification is greedy or coupled. Raises PromptError
        and ValueError as `generate` does.
        """
        if not prompts:
            raise ValueError("a batch needs at least one prompt")
        return self._submit(list(prompts), method, stop, reuse, settings_of_rows(len(prompts), settings))

    def _submit(self, prompts, method, stop, reuse, settings: list[dict]) -> Batch:
        if self._closed:
            raise RuntimeError("the engine is closed")
        chosen = checked(method, settings)
        baseline = method if method in BASELINES else None
        if baseline and len(prompts) > 1:
            raise ValueError(f"{method} runs one prompt at a time")
        if baseline and len(split(self.info["target_device"])) > 1:
            raise ValueError(f"{method} does not run on a target that is split over several devices")
        encoded = [encode_prompt(self.tokenizer, prompt) for prompt in prompts]
        for ids, _ in encoded:
            if len(ids) >= self.info["context"]:
                raise PromptError(
                    f"the prompt has {len(ids)} tokens; the context holds {self.info['context']}, the answer included"
                )
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        name = f"run-{next(self._names)}"
        runs, started = [], []
        for seq, (prompt, (ids, _), each) in enumerate(zip(prompts, encoded, chosen, strict=True)):
            runs.append(Run(name, self.tokenizer, stop, len(ids), self._cancel, seq))
            started.append(
                RunStarted(
                    run=name,
                    seq=seq,
                    models={"target": self.info["target"], "draft": self.info["draft"]},
                    settings=each.to_dict() | {"method": method, "prompt_tokens": len(ids), "stop": list(stop)},
                    hardware=self._hardware | {name: self.info[name] for name in HARDWARE_INFO},
                    prompt=prompt if isinstance(prompt, str) else prompt[-1]["content"],
                    exact=self.info["exact"],
                )
            )
        notices = [text for text in (encoded[0][1], self._placement_notice) if text]
        perform = Perform(name, 0.0, tuple(tuple(ids) for ids, _ in encoded), tuple(chosen), self.eos, reuse, baseline)
        self._runs.put((runs, perform, started, notices))
        return Batch(runs)

    def close(self) -> None:
        """End both workers. Runs that have not ended end as cancelled."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            self._runs.put(None)
            for worker in (self._target, self._draft):
                worker.interrupt()
            if self._thread is not None:
                self._thread.join(10)
            for worker in (self._target, self._draft):
                worker.kill()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the workers at this moment."""
        processes = {worker.role: worker.process for worker in (self._target, self._draft)}
        return {role: process.pid for role, process in processes.items() if process is not None}

    def __enter__(self) -> SaguaroSSD:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    # ---- the engine's thread

    def _serve(self) -> None:
        while (item := self._runs.get()) is not None:
            runs, perform, started, notices = item
            for run, event in zip(runs, started, strict=True):
                run.begin(event, notices)
            reasons, error = ["cancelled"] * len(runs), ""
            if not (self._closed or all(run.cancelled for run in runs)):
                try:
                    self._revive()
                    reasons, error = self._perform(runs, replace(perform, start=runs[0].start))
                except Exception as problem:  # whatever it is, the runs must end and the next one work
                    reasons, error = [], str(problem) or type(problem).__name__
                    self._target.kill()
            with self._lock:
                self._active = []
            for run, reason in zip(runs, reasons or ["error"] * len(runs), strict=True):
                run.finish(*(("cancelled",) if self._closed else (reason, error)))
            self._revive_quietly()

    def _perform(self, runs: list[Run], perform: Perform) -> tuple[list[str], str]:
        """Send the runs to the workers and gather their events: `(reason of each, error)`, no reasons on an error."""
        with self._lock:
            self._active = runs
        self._target.send(perform)
        for run in runs:
            if run.cancelled:  # between the check before and this moment
                self._target.send(Cancel(run.name, run.seq))
        waiting = {self._target} | ({self._draft} if perform.settings[0].speculates else set())
        reasons, error = [], "The target worker stopped. It is started again for the next run."
        asked_to_end = None  # since when the workers that are waited for should be done
        while waiting:
            if asked_to_end is None and (self._target not in waiting or all(run.cancelled for run in runs)):
                asked_to_end = time.monotonic()
            if asked_to_end is not None and time.monotonic() - asked_to_end > END_SECONDS:
                for worker in waiting:  # it hangs
                    worker.kill()
                return reasons, error
            for connection in wait([worker.connection for worker in waiting], timeout=1.0):
                worker = self._target if connection is self._target.connection else self._draft
                message = worker.receive()
                if isinstance(message, Failed):
                    error = message.text if worker is self._target else error
                    worker.kill()
                    message = None
                if message is None:  # it died
                    waiting.discard(worker)
                    if worker is self._target:
                        return reasons, error
                elif isinstance(message, Done):
                    waiting.discard(worker)
                    if worker is self._target:
                        reasons, error = [] if message.error else list(message.reasons), message.error
                        if error:  # its device may be in no state to go on
                            self._target.kill()
                        if message.lost_draft:
                            self._draft.kill()
                            waiting.clear()
                else:
                    for event in message:
                        runs[event.seq].receive(event)
        return reasons, error

    def _cancel(self, run: Run) -> None:
        with self._lock:
            if run in self._active:
                self._target.send(Cancel(run.name, run.seq))

    def _revive(self) -> None:
        """Start workers that are not alive. A draft connects to its target, so a new target needs a new draft."""
        if not self._target.alive:
            self._draft.kill()
            self._start(self._target, self._draft)
        elif not self._draft.alive:
            self._start(self._draft)

    def _revive_quietly(self) -> None:
        """After a run; where it fails, the next run tries again and reports."""
        try:
            if not self._closed:
                self._revive()
        except ModelError as problem:
            print(f"saguaro: {problem}", file=sys.stderr)

    def _start(self, *workers: Worker) -> None:
        for worker in workers:
            worker.start(self._key)
        if self._target in workers:
            self._address = self._target.expect(Listening).address
        self._draft.send(Connect(self._address))
        for worker in workers:
            worker.info = worker.expect(Ready).info

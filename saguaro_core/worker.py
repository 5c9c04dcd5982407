"""A worker process: `python -m saguaro_core.worker target|draft`, started by the engine and by nobody else.

The environment brings thread counts (read when torch is imported), the cores to stay on, and how to reach the main
process. A thread reads what main sends, so that a cancel is seen in mid-run and the worker ends when main does, however
main ended.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from multiprocessing import current_process
from multiprocessing.connection import Connection

CORES, CONNECTION, KEY = "SAGUARO_CORES", "SAGUARO_CONNECTION", "SAGUARO_KEY"  # environment variables


class Inbox:
    """Messages from main, read by a thread of their own."""

    def __init__(self, connection: Connection):
        from .messages import Cancel

        self._cancel, self._connection = Cancel, connection
        self._messages: queue.Queue = queue.Queue()
        self._cancelled: set[tuple[str, int]] = set()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # main is gone
            if isinstance(message, self._cancel):
                self._cancelled.add((message.run, message.seq))
            else:
                self._messages.put(message)

    def get(self):
        return self._messages.get()

    def cancelled(self, run: str, seq: int) -> bool:
        return (run, seq) in self._cancelled


def main() -> None:
    role = sys.argv[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is main's business; its end ends us
    if os.environ.get(CORES) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in os.environ[CORES].split(",")})
    current_process().authkey = bytes.fromhex(os.environ.pop(KEY))
    connection = Connection(int(os.environ[CONNECTION]))
    inbox = Inbox(connection)

    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    from .messages import Failed
    from .models import ModelError

    try:
        if role == "target":
            from .target_worker import serve
        else:
            from .draft_worker import serve
        with torch.inference_mode():
            serve(connection, inbox)
    except ModelError as error:
        connection.send(Failed(str(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # main is gone
    except Exception as error:
        traceback.print_exc()
        connection.send(Failed(f"the {role} worker failed: {type(error).__name__}: {error}".splitlines()[0]))


if __name__ == "__main__":
    main()

"""A worker as the main process holds it: start, talk, notice that it died, kill."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from .devices import Placement
from .messages import Failed, Load
from .models import ModelError
from .worker import CONNECTION, CORES, KEY

LOAD_SECONDS = 900.0


class Worker:
    """`role`: "target" or "draft". Sending is safe from several threads, receiving from one."""

    def __init__(self, role: str, placement: Placement, load: Load):
        self.role, self._placement, self._load = role, placement, load
        self.info: dict = {}
        self.connection: Connection | None = None
        self.process: subprocess.Popen | None = None
        self._sending = threading.Lock()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, key: str) -> None:
        """Start the process and tell it what to load. `key` lets the workers connect to each other."""
        self.kill()
        self.connection, theirs = Pipe()
        fd = theirs.fileno()
        package_parent = str(Path(__file__).resolve().parent.parent)
        environment = os.environ | self._placement.environment
        environment |= {
            KEY: key,
            CONNECTION: str(fd),
            CORES: ",".join(map(str, self._placement.cores)),
            "PYTHONPATH": os.pathsep.join(filter(None, (package_parent, os.environ.get("PYTHONPATH")))),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "saguaro_core.worker", self.role],
            env=environment,
            pass_fds=(fd,),
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output is the command line's
        )
        theirs.close()
        self.send(self._load)

    def send(self, message) -> None:
        """Quietly does nothing when the worker is gone: whoever waits for its answer learns that there."""
        with self._sending:
            try:
                if self.connection is not None:
                    self.connection.send(message)
            except OSError:
                pass

    def receive(self):
        """The next message; None, and the process is ended, where none can come any more."""
        if self.connection is None:
            return None
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.kill()
            return None

    def expect(self, kind: type):
        """Wait for a message of this kind while the worker loads. Raises ModelError where it fails or dies."""
        deadline = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < deadline:
            if not self.connection.poll(0.2):
                continue
            message = self.receive()
            if isinstance(message, kind):
                return message
            if isinstance(message, Failed):
                raise ModelError(message.text)
            if message is None:
                raise ModelError(f"the {self.role} worker stopped while it loaded its model (out of memory?)")
        raise ModelError(f"the {self.role} worker did not load its model in {LOAD_SECONDS:.0f} seconds")

    def interrupt(self) -> None:
        """End the process; whoever waits for its messages finds out."""
        if self.process is not None:
            self.process.kill()

    def kill(self) -> None:
        """End the process, whatever it does, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        with self._sending:
            if self.connection is not None:
                self.connection.close()
                self.connection = None

"""The program: first paint before the models, replay without torch, clear refusals, a clean end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytest.importorskip("gradio")

# A stand-in for packages that replay must do without: importing one ends the program.
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "tokenizers", "safetensors", "accelerate"):
            raise SystemExit(f"{name} was imported")
sys.meta_path.insert(0, Blocked())
"""


class App:
    def __init__(self, *arguments: str, path: Path | None = None):
        environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "app.py", *arguments], cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def url(self) -> str:
        line = self.process.stdout.readline()
        assert line.startswith("Saguaro is at http"), line + self.process.stderr.read()
        return line.split()[-1]

    def answers(self) -> str:
        with urllib.request.urlopen(self.url(), timeout=5) as page:
            return page.read().decode()

    def end(self, sent: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(sent)
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


@pytest.fixture
def start():
    started: list[App] = []

    def run(*arguments: str, path: Path | None = None) -> App:
        started.append(App(*arguments, path=path))
        return started[-1]

    yield run
    for app in started:
        app.process.kill()
        app.process.wait()


def test_replay_answers_without_torch(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    app = start("--replay", path=tmp_path)
    assert "Saguaro" in app.answers()
    assert time.monotonic() - app.began < 10 * _slowness(), "replay has to be there at once"
    assert app.end() == (0, "")


def _slowness() -> float:
    """A machine that others use at the same time is given more time."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.parametrize(
    "arguments, said",
    (
        (["--target-device", "tpu"], "unknown device 'tpu'"),
        (["--target", "./no/such/folder"], "no such file or folder"),
        (["--replay", "./no/such/folder"], "no trace"),
    ),
)
def test_what_cannot_be_is_refused_in_one_line(start, arguments, said):
    app = start(*arguments)
    _, error = app.process.communicate(timeout=60)
    assert app.process.returncode == 2 and error.startswith("app.py: ") and said in error
    assert error.count("\n") == 1


def test_a_taken_port_is_refused_in_one_line(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        app = start("--replay", "--port", str(taken.getsockname()[1]))
        _, error = app.process.communicate(timeout=60)
    assert app.process.returncode == 2 and error.startswith("app.py: cannot listen") and error.count("\n") == 1


def test_a_load_that_fails_later_is_printed_and_the_page_stays(start, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    app = start("--target", str(tmp_path))
    assert "Saguaro" in app.answers()
    for line in app.process.stderr:
        if "could not be loaded" in line:
            break
    else:
        pytest.fail("nothing was said")
    assert app.process.poll() is None
    assert app.end()[0] == 0


@pytest.mark.real
def test_an_interrupt_while_loading_ends_it_without_orphans(start):
    app = start()
    assert "Saguaro" in app.answers()
    deadline = time.monotonic() + 60
    while not (workers := _children(app.process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers, "no worker was started"
    code, said = app.end(signal.SIGINT)
    assert code == 0 and "Traceback" not in said
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:  # the thread has ended
            continue
    return found

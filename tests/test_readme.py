"""What the README tells people to type works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_python_snippet_runs():
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    result = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert result.returncode == 0, result.stderr
    assert re.search(r"\d tok/s, hit rate [01]\.\d\d", result.stdout.splitlines()[-1])


def test_ci_runs_the_test_command():
    command = next(line for line in README.splitlines() if line.endswith("python -m pytest -q"))
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith(command)

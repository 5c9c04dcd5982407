"""The command line as a user meets it, on tiny models: streams, JSON, and one line with exit status 2 for mistakes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from saguaro_core import trace
from saguaro_core.__main__ import main
from saguaro_core.events import RunFinished

from .tiny import tiny_draft, tiny_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Options that name a tiny target and a draft folder for it."""
    folder = tmp_path_factory.mktemp("models")
    target, draft = tiny_model(folder / "target"), tiny_draft(folder / "draft")
    return ["--target", str(target), "--draft", str(draft)]


def saguaro(*args):
    return subprocess.run(
        [sys.executable, "-m", "saguaro_core", *map(str, args)], capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def command(capfd, monkeypatch):
    """Type a command in this process, which has imported all it takes: `(status, output, error)`."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the signals of a test run are not the command's

    def typed(*args):
        capfd.readouterr()
        status = main([str(arg) for arg in args])
        return status, *capfd.readouterr()

    return typed


@pytest.fixture
def mistake(command):
    """Type a command that cannot work: exit status 2 and one line."""

    def typed(*args, says):
        status, _, error = command(*args)
        assert status == 2, error
        lines = error.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("saguaro: "), error
        assert says in lines[0]

    return typed


def test_generate(models, tmp_path):
    path = tmp_path / "trace.jsonl"
    result = saguaro("generate", "Hello there", "--max-new-tokens", 20, "--json", "--trace", path, *models)
    assert result.returncode == 0, result.stderr
    *_, last = result.stdout.splitlines()
    answer = json.loads(last)
    assert answer["text"] in result.stdout and len(answer["ids"]) <= 20
    assert {"ttft_s", "decode_tok_s", "hit_rate", "acceptance", "overhead_ms"} <= answer["summary"].keys()
    assert "tok/s" in result.stderr
    events = trace.load(path)
    assert isinstance(events[-1], RunFinished) and events[-1].summary == answer["summary"]


def test_bench(models, command, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"question_id": i, "category": "c", "turns": [f"Question {i}?", "And then?"]} for i in range(5)]
    prompts.write_text("\n".join(json.dumps(line) for line in [*lines, {"prompt": "plain"}]))
    status, output, error = command("bench", "--prompts", prompts, "--limit", 3, "--turns", 2, "--max-new-tokens", 12,
                                    "--json", "--methods", "ar,sd,ssd,hf-ar,hf-assisted", *models)  # fmt: skip
    assert status == 0, error
    report = json.loads(output.splitlines()[-1])
    assert report["methods"].keys() == {"ar", "ar-unpadded", "sd", "ssd", "hf-ar", "hf-assisted"}
    assert {"decode_tok_s", "ttft_s", "tokens"} <= report["methods"]["ar"].keys()
    assert {"tokens_per_round", "acceptance"} <= report["methods"]["sd"].keys()
    assert {"hit_rate", "overlap", "overhead"} <= report["methods"]["ssd"].keys()
    assert {"sd/ar", "ssd/ar", "ssd/sd", "ssd/hf-assisted", "ar/hf-ar"} <= report["ratios"].keys()
    assert report["identical"]["of"] == 6
    if report["exact"]:
        assert report["identical"]["sd"] == report["identical"]["ssd"] == 6


def test_mistakes(models, tmp_path, mistake):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": ""}\n')
    mistake("generate", "  ", *models, says="empty")
    mistake("generate", "long " * 3000, *models, says="context")
    mistake("generate", "hi", "--target-device", "tpu", *models, says="tpu")
    mistake("generate", "hi", "--target-device", "cuda:99", *models, says="cuda:99")
    mistake("bench", "--prompts", bad, *models, says="line 1")
    mistake("bench", "--prompts", tmp_path / "absent", *models, says="absent")
    mistake("generate", "hi", "--target", tmp_path / "nowhere", says="nowhere")
    mistake("generate", "hi", "--target", "someone/no-such-model", says="someone/no-such-model")


def test_a_slip_in_the_settings_does_not_wait_for_the_models(mistake, monkeypatch):
    monkeypatch.setattr("saguaro_core.__main__.make_engine", lambda args: pytest.fail("loads the models first"))
    mistake("generate", "hi", "--k", 99, says="K must be")
    mistake("generate", "hi", "--method", "magic", says="magic")
    mistake("generate", "hi", "--method", "hf-magic", says="hf-assisted")
    mistake("generate", "hi", "--k", 16, "--fan-out", 15, says="fan-out")


def test_mismatched_tokenizers(tmp_path, mistake):
    target, draft = tiny_model(tmp_path / "target"), tiny_model(tmp_path / "draft")
    swapped = json.loads((draft / "tokenizer.json").read_text())
    vocabulary = swapped["model"]["vocab"]
    a, b = sorted(vocabulary, key=vocabulary.get)[10:12]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (draft / "tokenizer.json").write_text(json.dumps(swapped))
    mistake("generate", "hi", "--target", target, "--draft", draft, says="token")


def test_unsupported_architecture(models, tmp_path, mistake):
    target = tiny_model(tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(
        json.dumps(config | {"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
    )
    mistake("generate", "hi", "--target", target, *models[2:], says="mamba")
